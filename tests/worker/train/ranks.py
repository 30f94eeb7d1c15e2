"""ranks.py - run ddp-train as 1 or N ranks that meet at a store of their own

Without ddprun, so that what fails here is the worker's fault.
"""
import json
import os
import signal
import subprocess
import sys
import tempfile
import time

BUILD = os.path.abspath(sys.argv[1])
TRAIN = os.path.join(BUILD, "worker", "ddp-train")
STORED = os.path.join(BUILD, "rendezvous", "ddpstored")
DEADLINE_S = 400  # a training takes a minute of two idle cores

OUTER = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_", "SLURM_", "OMPI_", "PMI", "PALS_",
         "FLUX_", "OMP_", "DDPRUN")


class Result:
    def __init__(self, code, out, err):
        self.code, self.out, self.err = code, out, err

    def __repr__(self):
        return f"exit {self.code}\n{self.out}\n{self.err}"


class Ranks:
    """N running ranks. `each(rank)` may give a rank's own arguments, `limit` is called in
    each child before the program, and `err0` is rank 0's stderr."""

    def __init__(self, n, *args, each=None, limit=None, env=None, err0=subprocess.PIPE):
        base = {k: v for k, v in os.environ.items() if not k.startswith(OUTER)}
        base.update({"OMP_NUM_THREADS": "1"}, **(env or {}))
        self.store = None
        if n > 1:
            self.store = subprocess.Popen([STORED, "--port", "0", "--host", "127.0.0.1"],
                                          stdout=subprocess.PIPE, text=True)
            base.update(WORLD_SIZE=str(n), LOCAL_WORLD_SIZE=str(n),
                        TORCHELASTIC_USE_AGENT_STORE="True", MASTER_ADDR="127.0.0.1",
                        MASTER_PORT=self.store.stdout.readline().strip())
        self.ranks = []
        for r in range(n):
            mine = dict(base, RANK=str(r), LOCAL_RANK=str(r)) if n > 1 else base
            words = [TRAIN, *map(str, args), *map(str, each(r) if each else ())]
            self.ranks.append(subprocess.Popen(
                words, env=mine, text=True, stdout=subprocess.PIPE,
                stderr=subprocess.PIPE if r else err0, preexec_fn=limit))

    def signal(self, which, rank=0):
        self.ranks[rank].send_signal(which)

    def wait(self):
        """A Result for each rank. A hang fails the test, and nothing is left behind."""
        try:
            results = []
            for p in self.ranks:
                out, err = p.communicate(timeout=DEADLINE_S)
                results.append(Result(p.returncode, out, err))
            return results
        finally:
            for p in self.ranks:
                if p.poll() is None:
                    p.send_signal(signal.SIGKILL)
                    p.wait()
            if self.store:
                self.store.terminate()
                self.store.wait()
                self.store.stdout.close()


def run(n, *args, **kw):
    return Ranks(n, *args, **kw).wait()


def run_ok(n, *args, **kw):
    results = run(n, *args, **kw)
    for r, result in enumerate(results):
        assert result.code == 0, f"rank {r}: {result}"
        assert result.err == "", f"rank {r}: {result}"
    for r in range(1, n):
        assert results[r].out == "", f"rank {r} is not quiet: {results[r]}"
    return results[0]


def wait_until(condition):
    """A minute at most. A caller checks it afterwards."""
    until = time.monotonic() + 60
    while time.monotonic() < until and not condition():
        time.sleep(0.02)


def rows(path, kind):
    with open(path) as f:
        return [row for row in map(json.loads, f) if row["kind"] == kind]


def losses(path):
    return [row["loss"] for row in rows(path, "step")]


def cpu_seconds():
    """Of this process and of all that it has waited for."""
    return sum(os.times()[:4])


def main(tests):
    """Runs the functions, each in an empty folder of its own, and names what fails."""
    failed, spent = 0, cpu_seconds()
    home = os.getcwd()
    for test in tests:
        with tempfile.TemporaryDirectory(prefix="ddp-train-") as folder:
            os.chdir(folder)
            try:
                test()
                spent, before = cpu_seconds(), spent
                print(f"ok {test.__name__} ({spent - before:.1f} s of CPU time)", flush=True)
            except (AssertionError, subprocess.TimeoutExpired) as why:
                failed += 1
                print(f"FAILED {test.__name__}: {why!r}\n{why}", flush=True)
            finally:
                os.chdir(home)
    sys.exit(1 if failed else 0)
