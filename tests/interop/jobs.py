"""Running the ranks of PyTorch jobs, and finding PyTorch: shared by the interop tests.

Standard library only. A test that finds no PyTorch says why and exits 77: skipped.
"""
import os
import signal
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
CHECK = os.path.join(HERE, "programs", "check.py")
DEBIAN_PYTHON = "/usr/bin/python3"
JOB_SECONDS = 300  # generous: so that a hang fails

BASIC = ["collectives", "point_to_point", "objects", "barriers", "groups", "store"]
# Debian's 1.13 cannot import its FSDP and checkpoint packages under Python 3.11; the FSDP
# class of 2.15 asks for a GPU, fully_shard does not
TRAIN = {"1.13": ["ddp", "saving", "rpc"],
         "2.15": ["ddp", "saving", "fsdp", "checkpoint", "rpc"]}


def skip(why):
    print(f"skipped: {why}")
    sys.exit(77)


def newest_torch():
    """Path of a Python with PyTorch 2.15 (or what DDPRUN_TORCH names), or None."""
    found = subprocess.run([os.path.join(HERE, "torch-env.sh")], stdout=subprocess.PIPE,
                           stderr=subprocess.DEVNULL, text=True)
    return found.stdout.strip() if found.returncode == 0 else None


def debian_torch():
    """Debian's python3-torch, or None."""
    # looked for, not imported: that takes seconds
    probe = [DEBIAN_PYTHON, "-c", "import importlib.util as u; assert u.find_spec('torch')"]
    try:
        done = subprocess.run(probe, stderr=subprocess.DEVNULL)
    except OSError:
        return None
    return DEBIAN_PYTHON if done.returncode == 0 else None


def find_horovod():
    """Path of a Python with Horovod."""
    found = subprocess.run([os.path.join(HERE, "horovod-env.sh")], capture_output=True, text=True)
    if found.returncode != 0:
        print(found.stderr.strip())
        sys.exit(77)
    return found.stdout.strip()


def find_torches():
    """{"1.13": python, "2.15": python}, without what is not there; says so."""
    found = {"1.13": debian_torch(), "2.15": newest_torch()}
    for version, python in found.items():
        if not python:
            print(f"skipped: no PyTorch {version} on this machine; needs torch")
    found = {v: p for v, p in found.items() if p}
    if not found:
        sys.exit(77)
    return found


class Job:
    """Some processes that make one job, each in a session of its own."""

    def __init__(self, name):
        self.name, self.processes = name, []
        self.began = time.monotonic()

    def start(self, command, env=None, cwd=None):
        out = tempfile.TemporaryFile()
        process = subprocess.Popen(command, env=env, cwd=cwd, stdin=subprocess.DEVNULL,
                                   stdout=out, stderr=subprocess.STDOUT,
                                   start_new_session=True)
        self.processes.append((process, out))

    def kill(self):
        for process, _ in self.processes:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()

    def finish(self, ranks, checks, must_say=""):
        """Waits; every rank must have ended well and have passed every check, and
        `must_say` be among what was written."""
        text, codes = "", []
        try:
            for process, out in self.processes:
                left = self.began + JOB_SECONDS - time.monotonic()
                try:
                    codes.append(process.wait(max(left, 0.1)))
                except subprocess.TimeoutExpired:
                    codes.append("hung")
                    self.kill()
                # no seek(): a child that is still there would write over what it wrote
                text += os.pread(out.fileno(), os.fstat(out.fileno()).st_size, 0).decode(
                    errors="replace")
        finally:
            self.kill()
        missing = [f"{check} on rank {r}" for check in checks for r in range(ranks)
                   if f"held: {check} on rank {r}\n" not in text]
        if must_say not in text:
            missing.append(f"'{must_say}' is not said")
        self.text, self.codes = text, codes
        good = not missing and not any(codes)
        seconds = time.monotonic() - self.began
        print(f"{'ok' if good else 'FAILED'}: {self.name}: {ranks} ranks, "
              f"{len(checks)} checks, {seconds:.1f} s", flush=True)
        if not good:
            print(f"exit codes {codes}; not passed: {missing}\n{text[-6000:]}", flush=True)
        return good
