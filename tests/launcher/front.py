#!/usr/bin/env python3
"""front.py DDPRUN TOPO: options, hosts, dry run and binding of the real programs."""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

DDPRUN, TOPO = sys.argv[1:3]
faults = []


def run(*args, env=None, check=None):
    """Runs the launcher and returns (code, stdout, stderr)."""
    full = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "OMP_"))}
    full.update(env or {})
    p = subprocess.run([DDPRUN, *args], capture_output=True, text=True, timeout=150,
                       env=full, stdin=subprocess.DEVNULL)
    return p.returncode, p.stdout, p.stderr


def expect(what, condition, seen):
    if not condition:
        faults.append(f"{what}: {seen}")


def usage():
    code, out, err = run("--help")
    expect("--help", code == 0 and "--hostfile" in out and not err, (code, err))
    code, out, err = run("--help", "launch")
    expect("--help TOPIC", code == 0 and "--start-timeout" in out and "--hostfile" not in out, out)
    code, out, err = run("--help=nosuch")
    expect("--help nosuch", code == 2 and not out and "no help about 'nosuch'; topics: " in err, err)
    code, out, err = run()
    expect("no program", code == 2 and err == "ddprun: no program given (try ddprun "
           "--help)\n", (code, err))
    code, out, err = run("--hostfil", "x", "true")
    expect("a slip", code == 2 and err.count("\n") == 1 and "--hostfile?" in err, err)
    code, out, err = run("--log-level", "nosuch=debug", "true")
    expect("--log-level", code == 2 and err.startswith(
        "ddprun: there is no 'nosuch' to log: agent, ") and err.count("\n") == 1, err)
    code, out, err = run("--log-level", "INFO,start=Debug,job=WARNING", "true")
    expect("--log-level INFO", code == 0, err)
    code, out, err = run("-H", "::1:2", "--dry-run", "true")
    expect("-H ::1:2", "'::1:2' is one IPv6 address; write [::1]:2 for 2 slots" in err, err)
    code, out, err = run("-H", "[::1:2]", "--dry-run", "true")
    expect("-H [::1:2]", code == 0 and not err, err)
    code, out, err = run("--version")
    expect("--version", code == 0 and re.match(r"ddprun \d", out), out)
    code, out, err = run("--show-env")
    expect("--show-env", code == 0 and "MASTER_ADDR" in out, (code, err))


def interpreters(folder):
    """Scripts that are not executable run with the interpreter of their user."""
    subprocess.run(["python3", "-m", "venv", "--without-pip", str(folder / "venv")], check=True)
    say = "import os, sys\nprint(sys.prefix, sys.argv[1:], sep='')\n"
    for name, text, mode in (
            ("train.py", say, 0o644), ("plain.py", say, 0o755), ("pack/__init__.py", "", 0o644),
            ("pack/module.py", say, 0o644), ("run.sh", "echo $0 of ${BASH_VERSION%%.*}\n", 0o644),
            ("posix.sh", "#!/bin/sh -e\nfalse\necho no\n", 0o644),
            ("own.py", "#!/bin/echo\n", 0o755), ("x.jl", "", 0o644),
            ("bin/julia", "#!/bin/sh\necho julia $*\n", 0o755)):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
        (folder / name).chmod(mode)
    venv = {"VIRTUAL_ENV": f"{folder}/venv", "CONDA_PREFIX": "/nowhere",
            "PATH": f"{folder}/venv/bin:{folder}/bin:{os.environ['PATH']}"}
    for args, out, code in (
            (["train.py", "--lr"], f"{folder}/venv['--lr']\n", 0),
            (["plain.py"], f"{folder}/venv[]\n", 0), ([f"{folder}/train.py"], f"{folder}/venv[]\n", 0),
            (["-m", "pack.module", "-x"], f"{folder}/venv['-x']\n", 0),
            (["run.sh"], "run.sh of 5\n", 0), (["./posix.sh"], "", 1), (["own.py"], f"{folder}/./own.py\n", 0),
            (["x.jl", "-p"], "julia x.jl -p\n", 0), (["--no-python", "./train.py"], "", 126)):
        for options in (["--no-preload"], ["--no-preload", "-np", "2", "--output-from", "0",
                                           "--tag-output=off"]):
            done = run("--wdir", str(folder), *options, *args, env=venv)
            expect(args, done[:2] == (code, out), done)
    code, out, err = run("--wdir", str(folder), "--dry-run", "train.py", env=venv)
    expect("which", f"interpreter: {folder}/venv/bin/python3, from virtual environment "
           f"{folder}/venv\n" in out, out)
    code, out, err = run("--wdir", str(folder), "--dry-run", "run.sh", env=venv)
    expect("which", "interpreter: bash, from PATH\n" in out, out)


def options_behind_the_program_are_told_of():
    """The program gets them; no warning if the number of ranks was given before it."""
    code, out, err = run("echo", "-np", "2")
    expect("late -np", code == 0 and out == "-np 2\n" and
           re.fullmatch(r"ddprun: warning: '-np' follows the program and was passed to echo.*\n", err), (out, err))
    code, out, err = run("echo", "--nproc_per_node=2", "-n", "4", "--np-x")
    expect("late --nproc_per_node=", code == 0 and err.count("\n") == 1 and
           err.startswith("ddprun: warning: '--nproc_per_node' follows the program and"), err)
    with tempfile.TemporaryDirectory() as home:
        written = pathlib.Path(home) / "accelerate/default_config.yaml"
        written.parent.mkdir()
        written.write_text("num_processes: 8\n", encoding="utf-8")
        for launcher, said in (("accelerate launch", f"ddprun: warning: '{written}' is not read: give its values as options\n"),
                               ("torchrun", "")):
            done = run("--as", *launcher.split(), "echo", "a", env={**os.environ, "HF_HOME": home})
            expect("accelerate's configuration", done == (0, "a\n", said), done)
    done = run("--dry-run", "echo", env={**os.environ, "PET_NNODES": "2"})
    expect("options that are not on the command line", done[0] == 2 and done[2].startswith("ddprun: --nnodes 2, but") and
           done[2].endswith("; options are also from PET_*: --nnodes=2\n"), done)
    for other in (["torchrun", "--nproc-per-node", "2", "t.py"], ["srun", "-n2", "t.py"], ["accelerate", "launch", "t.py"],
                  ["python3", "-u", "-m", "torch.distributed.run", "--nproc-per-node=2", "t.py"]):
        code, out, err = run("--dry-run", *other)
        name = "torchrun" if "-m" in other else other[0]
        expect("another launcher", code == 0 and err.count("\n") == 1 and
               f"{name} starts processes of its own" in err and f"'ddprun --as {name} " in err, (other, err))
    for other in (["-np", "1", "torchrun", "t.py"], ["python3", "t.py", "-m", "torch.distributed.run"],
                  ["accelerate", "env"]):
        expect("no other launcher", run("--dry-run", *other)[2] == "", other)
    code, out, err = run("-np", "1", "echo", "-np", "2")
    expect("the program's -np", code == 0 and out == "-np 2\n" and not err, (out, err))
    code, out, err = run("--", "echo", "-np", "2", ":", "-np", "1")
    expect("behind --", code == 0 and out.startswith("-np 2") and not err, (out, err))
    code, out, err = run("-np", "1", "echo", "a", ":", "-np", "1", "echo", "b")
    expect("another program", code == 0 and not err and
           sorted(out.splitlines()) == ["[0] a", "[1] b"], (out, err))
    code, out, err = run("-np", "1", "--", "echo", ":")
    expect("a program's own colon", (code, out, err) == (0, ":\n", ""), (out, err))
    code, out, err = run("--standalone", "--rdzv-id", "7", "-np", "1", "echo", "a")
    expect("ignored", (code, out, err) == (
        0, "a\n", "ddprun: warning: ignored, as they have no effect in ddprun: --standalone --rdzv-id\n"),
        (out, err))
    code, out, err = run("-np", "1", "--mpi", "echo", "a")
    expect("horovodrun --mpi", (code, out, err) == (0, "a\n", ""), (out, err))


def dry_run_tells_what_happens(folder):
    """The environment that a dry run shows is the one that ranks get."""
    env = {"SLURM_PROCID": "0", "SLURM_STEP_ID": "0", "OMP_NUM_THREADS": "7"}
    args = ["-np", "3", "-x", "MINE=a b", "--rank-names", "slurm"]
    code, out, err = run(*args, "--dry-run", "env", env=env)
    part = out[out.index("environment of rank 0"):out.index("  inherited:")]
    shown = dict(line.strip().split("=", 1) for line in part.splitlines()[1:])
    code, out, err = run(*args, "--output-from", "0", "--tag-output=off", "env", "-0",
                         env=env)
    real = dict(v.split("=", 1) for v in out.split("\0") if "=" in v)
    expect("dry run of env", code == 0 and len(shown) > 25, (code, err, len(shown)))
    for name, value in shown.items():
        if not value.startswith("("):  # chosen at start
            expect(f"{name} as shown", real.get(name) == value, real.get(name))
    expect("-x", real.get("MINE") == "a b", real.get("MINE"))
    expect("leftover", "SLURM_STEP_ID" not in real, real.get("SLURM_STEP_ID"))
    expect("kept", real.get("OMP_NUM_THREADS") == "7", real.get("OMP_NUM_THREADS"))


def replaced_values_are_said():
    """-x of a variable that differs between ranks: a warning; others: --verbose."""
    code, out, err = run("-np", "2", "-x", "RANK=7", "true")
    expect("-x RANK", code == 0 and err.count("\n") == 1 and "-x RANK=7" in err, err)
    env = {"PMIX_RANK": "3"}
    code, out, err = run("-np", "2", "true", env=env)
    expect("quiet", code == 0 and not err, err)
    code, out, err = run("-np", "2", "--verbose", "true", env=env)
    # without libpmix there is no new value
    expect("--verbose", re.search(r"PMIX_RANK (replaced|removed) \('3'\)", err), err)


def cpus_of(text):
    out = set()
    for part in text.split(","):
        lo, _, hi = part.partition("-")
        out |= set(range(int(lo), int(hi or lo) + 1))
    return out


def a_million_lines(folder):
    """Host files that no cluster needs cost seconds and some memory, and one line."""
    lines = [f"node{i:07} 4 all.q@x UNDEFINED\n" for i in range(1000000)]
    (folder / "pe").write_text("".join(lines))
    (folder / "names").write_text("".join(f"{line.split()[0]} slots=4\n" for line in lines))
    sge = {"JOB_ID": "1", "SGE_ROOT": "/x", "PE_HOSTFILE": str(folder / "pe")}
    for args, env in ((["--hostfile", str(folder / "names")], {}), (["--alloc", "sge"], sge)):
        with open(folder / "said", "wb") as said:
            process = subprocess.Popen([DDPRUN, *args, "true"], env={**os.environ, **env},
                                       stdin=subprocess.DEVNULL, stdout=said, stderr=said)
            _, status, used = os.wait4(process.pid, 0)
        said = (folder / "said").read_text()
        expect("a million hosts", os.waitstatus_to_exitcode(status) == 2 and
               "1000000 hosts are too many" in said and said.count("\n") == 1, said[:400])
        expect("their memory", used.ru_maxrss < 1500000, used.ru_maxrss)
        expect("their time", used.ru_utime + used.ru_stime < 60, used)


def binding():
    """Ranks run as planned, with the planned number of threads."""
    mine = os.sched_getaffinity(0)
    script = 'echo "$RANK $OMP_NUM_THREADS $(grep -o "list:.*" /proc/self/status | head -1)"'
    code, out, err = run("-np", "2", "--bind-to", "none", "--tag-output=off", "sh", "-c",
                         script)
    lines = sorted(out.split("\n"))[1:]
    expect("--bind-to none", code == 0 and len(lines) == 2, (out, err))
    for line in lines:
        rank, threads, _, cpus = line.split()
        expect("not bound", cpus_of(cpus) == mine, line)
        expect("fair share", int(threads) in (max(1, len(mine) // 2), len(mine) // 2 + 1),
               line)
    code, out, err = run("-np", "1", "--bind-to", "hwthread", "sh", "-c", script)
    rank, threads, _, cpus = out.split()
    expect("--bind-to hwthread", threads == "1" and len(cpus_of(cpus)) == 1 and
           cpus_of(cpus) <= mine, out)
    # the parent may ignore SIGCHLD; ddprun must not inherit that
    done = subprocess.run(["sh", "-c", "trap '' CHLD; exec \"$@\"", "sh", DDPRUN, "-np", "1",
                           "--bind-to", "hwthread", "--dry-run", "true"], timeout=150,
                          capture_output=True, text=True, stdin=subprocess.DEVNULL)
    expect("SIGCHLD ignored", done.returncode == 0 and not done.stderr, done.stderr)
    many = str(len(mine) + 1)
    code, out, err = run("-np", many, "--bind-to", "hwthread", "true")
    expect("too many", code == 125 and err.count("\n") == 1 and "--bind-to none" in err,
           (code, err))


def a_topology_without_end(folder):
    """A truncated topology is rejected: its missing CPUs would belong to no rank."""
    shutil.copy(DDPRUN, folder / "ddprun")
    (folder / "ddprun-topo").write_text("#!/bin/sh\nyes '0 0 0 0' 2>/dev/null | head -c 2000000\n")
    (folder / "ddprun-topo").chmod(0o755)
    done = subprocess.run([folder / "ddprun", "-np", "1", "--bind-to", "core", "true"],
                          timeout=150, capture_output=True, text=True,
                          stdin=subprocess.DEVNULL)
    expect("a topology without end", done.returncode == 125 and done.stderr.count("\n") == 1 and
           "ddprun-topo' prints more than 1048575 bytes" in done.stderr, done)


def topology():
    """ddprun-topo reads hwloc's descriptions."""
    out = subprocess.run([TOPO, "--synthetic", "pack:2 numa:2 core:2 pu:2"], check=True,
                         capture_output=True, text=True, timeout=120).stdout
    rows = [tuple(map(int, line.split())) for line in out.splitlines()]
    expect("synthetic", rows == [(i, i // 2, i // 4, i // 8) for i in range(16)], rows)
    out = subprocess.run([TOPO], check=True, capture_output=True, text=True,
                         timeout=120).stdout
    here = {int(line.split()[0]) for line in out.splitlines()}
    expect("this machine", os.sched_getaffinity(0) <= here, here)
    xml = pathlib.Path(__file__).parent.parent / "data/topologies/2s4n16c32t.xml"
    out = subprocess.run([TOPO, "--xml", str(xml)], check=True, capture_output=True,
                         text=True, timeout=120).stdout
    rows = [tuple(map(int, line.split())) for line in out.splitlines()]
    expect("xml", len(rows) == 32 and {r[2] for r in rows} == {0, 1, 2, 3} and
           {r[3] for r in rows} == {0, 1} and len({r[1] for r in rows}) == 16, rows)
    bad = subprocess.run([TOPO, "--xml", "/dev/null"], capture_output=True, text=True,
                         timeout=120)
    expect("bad xml", bad.returncode == 1, bad.returncode)


with tempfile.TemporaryDirectory() as name:
    usage()
    interpreters(pathlib.Path(name))
    options_behind_the_program_are_told_of()
    dry_run_tells_what_happens(pathlib.Path(name))
    replaced_values_are_said()
    a_million_lines(pathlib.Path(name))
    binding()
    topology()
    a_topology_without_end(pathlib.Path(name))
print("\n".join(faults) if faults else "the front holds")
sys.exit(1 if faults else 0)
