#!/usr/bin/env python3
"""resume.py DDPRUN EXAMPLE: examples/python/resume.py goes on after killed ranks and killed jobs, with
2, 4 and 1 ranks, and ends with the weights of a run in which nothing failed"""
import collections
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import uuid

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "system"))
import launch  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
STEPS = 200
EVERY = 20


# PyTorch, and what its optimizers import, are imported here: so the ranks are forked from one import
RANK = """
import os, runpy, sys, torch, torch._dynamo
print("pid", os.getpid(), flush=True)
runpy.run_path(sys.argv.pop(1), run_name="__main__")
"""


class Job:
    """resume.py with np ranks, in a folder; its output is read line by line."""

    def __init__(self, np, folder, restarts=0):
        self.pids = collections.deque(maxlen=np)  # of the last attempt's ranks
        self.resumed = 0  # lines
        self.mark = f"ddprun-test-{uuid.uuid4().hex}"
        options = ("--max-restarts", restarts, "--max-no-progress", restarts) if restarts else ()
        self.process = subprocess.Popen(
            [*map(str, (DDPRUN, "-np", np, "-H", f"localhost:{np}", *options)), PYTHON, self.program(folder),
             EXAMPLE, str(STEPS)],
            cwd=folder, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "DDPRUN_TEST_MARK": self.mark, "OMP_NUM_THREADS": "1"})

    def read_to(self, step):
        """Until a checkpoint of this step or a later one is told."""
        for line in self.process.stdout:
            if "] pid " in line:
                self.pids.append(int(line.split()[-1]))
            self.resumed += "ddprun.resumed" in line
            if "ddprun.checkpoint" in line and int(line.split()[-1]) >= step:
                return int(line.split()[-1])
        raise AssertionError(f"no checkpoint of step {step}: exit {self.process.wait()}")

    def program(self, folder):
        path = os.path.join(folder, "rank.py")
        with open(path, "w", encoding="utf-8") as file:
            file.write(RANK)
        return path

    def end(self):
        self.resumed += self.process.stdout.read().count("ddprun.resumed")
        return self.process.wait()


class Resume(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with tempfile.TemporaryDirectory(prefix="ddprun-test-") as folder:
            job = Job(2, folder)
            assert job.end() == 0
            job.process.stdout.close()
            cls.whole = cls.weights(folder)

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="ddprun-test-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.jobs = []

    def tearDown(self):
        for job in self.jobs:
            launch.end_all(job.mark)
            job.process.wait()
            job.process.stdout.close()

    def start(self, *args):
        self.jobs.append(Job(*args))
        return self.jobs[-1]

    @staticmethod
    def weights(folder):
        return torch.load(os.path.join(folder, "resume.pt"))["model"]

    def compare(self, same):
        expected, got = self.whole, self.weights(self.folder)
        for name in expected:
            self.assertTrue(same(expected[name], got[name]), name)

    def test_killed_ranks(self):
        rng = random.Random(1)
        job = self.start(2, self.folder, 2)
        step = 0
        for _ in range(2):
            step = job.read_to(step + 2 * EVERY)
            time.sleep(rng.random() * 0.02)
            os.kill(rng.choice(job.pids), signal.SIGKILL)
        self.assertEqual(job.end(), 0)
        self.assertEqual(job.resumed, 3)  # of each attempt one, by rank 0
        self.compare(torch.equal)

    def test_two_then_four_then_one_rank(self):
        """Another number of ranks adds in another order: the same but for rounding."""
        step = 0
        for np in (2, 4):
            job = self.start(np, self.folder)
            step = job.read_to(step + 3 * EVERY)
            launch.end_all(job.mark)
        self.assertEqual(self.start(1, self.folder).end(), 0)
        self.compare(lambda a, b: torch.allclose(a, b, rtol=1e-3, atol=1e-5))


if __name__ == "__main__":
    DDPRUN, EXAMPLE = (os.path.abspath(path) for path in sys.argv[1:3])
    env = subprocess.run(["sh", os.path.join(HERE, "torch-env.sh")], capture_output=True, text=True)
    if env.returncode != 0:
        print(env.stderr.strip())
        sys.exit(77)
    PYTHON = env.stdout.strip()
    if os.path.realpath(sys.prefix) != os.path.realpath(os.path.dirname(os.path.dirname(PYTHON))):
        os.execv(PYTHON, [PYTHON, os.path.abspath(__file__), *sys.argv[1:3]])
    import torch

    unittest.main(argv=sys.argv[:1], verbosity=2)
