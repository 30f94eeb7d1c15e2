#!/usr/bin/env python3
"""Horovod's Gloo ranks find each other by the store: one host, restarts, two hosts of the lab."""

import os
import subprocess
import sys
import unittest

import jobs

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "system"))
import launch  # noqa: E402

SUM = os.path.join(HERE, "programs", "horovod_sum.py")
FAIL_ONCE = f"[ $TORCHELASTIC_RESTART_COUNT = 1 ] || {{ sleep 1; exit 3; }}; exec \"$0\" {SUM}"


class Horovod(launch.LaunchTest):
    deadline = 200.0

    def held(self, ranks, *options, inits=1, program=(SUM,)):
        launched = self.run_to_end("-np", ranks, "-H", f"localhost:{ranks}", "--tag-output=off",
                                   *options, *program, env={"INITS": str(inits)})
        self.assert_ended(launched, 0)
        for i in range(inits):
            for r in range(ranks):
                self.assertIn(f"held {i}: rank {r} of {ranks} ({r} of {ranks}, 0 of 1) "
                              f"sum {ranks * (ranks + 1) // 2}\n", launched.out)
        return launched

    def test_ranks_find_each_other(self):
        for ranks in 2, 8:
            self.held(ranks, python)

    def test_again_in_one_process(self):
        self.held(4, python, inits=3)

    def test_a_restart_does_not_read_old_addresses(self):
        self.held(3, "--max-restarts", 1, "sh", program=("-c", FAIL_ONCE, python))

    def test_a_rank_that_never_comes_is_no_hang(self):
        launched = self.run_to_end(
            "-np", 2, "-x", "HOROVOD_GLOO_TIMEOUT_SECONDS=3", "sh", "-c",
            f"[ $RANK = 1 ] && exec sleep 190; exec {python} {SUM}")
        self.assert_ended(launched, 134)
        self.assertIn("Wait timeout after 3 seconds", launched.out + launched.err)

    @unittest.skipUnless(os.geteuid() == 0, "the lab makes namespaces; needs root")
    def test_over_two_hosts(self):
        lab = os.path.join(HERE, "..", "lab", "lab")
        env = dict(os.environ, LAB_STATE=os.path.join(self.folder.name, "lab"),
                   LAB_OWNER=str(os.getpid()))
        self.addCleanup(subprocess.run, [lab, "down"], env=env, stdin=subprocess.DEVNULL,
                        stdout=subprocess.DEVNULL, timeout=200)
        subprocess.run([lab, "up", "2"], env=env, stdin=subprocess.DEVNULL, check=True,
                       stdout=subprocess.DEVNULL, timeout=100)
        done = subprocess.run(
            [lab, "exec", "-l", "node001", "env", launch.DDPRUN, "-H", "node001:2,node002:2",
             "--tag-output=off", "--wdir", "/tmp", python, SUM],
            env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, 0, done.stderr)
        for r in range(4):
            self.assertIn(f"held 0: rank {r} of 4 ({r % 2} of 2, {r // 2} of 2) sum 10\n", done.stdout)


if __name__ == "__main__":
    python = jobs.find_horovod()
    unittest.main(verbosity=2)
