#!/usr/bin/env python3
"""Horovod's Gloo ranks find each other by the store: one host, restarts, two hosts of the lab."""

import os
import subprocess
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "system"))
import launch  # noqa: E402

SUM = os.path.join(HERE, "programs", "horovod_sum.py")
FAIL_ONCE = f"[ $TORCHELASTIC_RESTART_COUNT = 1 ] || {{ sleep 1; exit 3; }}; exec \"$0\" {SUM}"


class Horovod(launch.LaunchTest):
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
            f"[ $RANK = 1 ] && exec sleep 60; exec {python} {SUM}")
        self.assert_ended(launched, 134)
        self.assertIn("Wait timeout after 3 seconds", launched.out + launched.err)


if __name__ == "__main__":
    found = subprocess.run([os.path.join(HERE, "horovod-env.sh")], stdout=subprocess.PIPE,
                           stderr=subprocess.PIPE, text=True)
    if found.returncode != 0:
        print(found.stderr.strip())
        sys.exit(77)
    python = found.stdout.strip()
    unittest.main(verbosity=2)
