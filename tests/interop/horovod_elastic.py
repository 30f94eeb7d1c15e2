#!/usr/bin/env python3
"""Horovod's elastic mode: ranks that die are replaced, the others keep their processes and state."""

import os
import re
import sys
import unittest

import jobs

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "system"))
import launch  # noqa: E402

TRAIN = os.path.join(HERE, "programs", "horovod_elastic.py")
BATCHES = 20
# what a survivor of the ring prints in the order of its worlds
RUNS = r"runs: (\d+) is (\d+) of (\d+) from (\d+) in (\d+)\n"


class Elastic(launch.LaunchTest):
    deadline = 200.0

    def train(self, ranks, kill, restarts=5, code=0, **env):
        launched = self.run_to_end(
            "-np", ranks, "-H", f"localhost:{ranks}", "--tag-output=off", "--elastic", "horovod",
            "--max-restarts", restarts, python, TRAIN,
            env={"BATCHES": str(BATCHES), "KILL": kill, "FLAGS": self.folder.name, **env})
        self.assert_ended(launched, code)
        return launched

    def worlds(self, launched, rank):
        """(Horovod's rank, size, first batch, pid) of a rank of ddprun, by world."""
        return [tuple(int(n) for n in run[1:]) for run in re.findall(RUNS, launched.out)
                if run[0] == str(rank)]

    def assert_done(self, launched, ranks):
        done = re.findall(r"done: (\d) at (\d+), work (\d+), weights (\S+)\n", launched.out)
        self.assertEqual(sorted(d[0] for d in done), [str(r) for r in range(ranks)], launched.out)
        self.assertEqual({d[1:3] for d in done}, {(str(BATCHES), str(BATCHES * ranks))})
        return done[0][3]

    def test_a_rank_dies_and_the_others_keep_their_state(self):
        undisturbed = self.assert_done(self.train(3, ""), 3)
        launched = self.train(3, "1 12")
        self.assertEqual(self.assert_done(launched, 3), undisturbed)
        for rank in 0, 2:
            first, second = self.worlds(launched, rank)
            self.assertEqual((first[:3], second[:3]), ((rank, 3, 0), (rank, 3, 10)))
            self.assertEqual(first[3], second[3], "another process")
        first, second = self.worlds(launched, 1)
        self.assertEqual(second[:3], (1, 3, 10))
        self.assertNotEqual(first[3], second[3])
        self.assertIn("ddprun: rank 1 on localhost died of SIGKILL (killed), not sent by ddprun; the "
                      "others keep running, and it is started again (1 of 5)\n", launched.err)
        self.assertRegex(launched.err, r"Horovod's ring has 3 ranks again, \S+ s after the failure\n")

    def test_the_state_is_not_taken_from_a_new_rank_0(self):
        launched = self.train(3, "0 7")
        self.assertEqual([w[:3] for w in self.worlds(launched, 0)], [(0, 3, 0), (1, 3, 5)])
        self.assertEqual([w[:3] for w in self.worlds(launched, 1)], [(1, 3, 0), (0, 3, 5)])
        self.assert_done(launched, 3)

    def test_several_at_once_and_again(self):
        launched = self.train(4, "0 6 2 6 3 13")
        self.assertEqual(len(self.worlds(launched, 1)), 3)
        self.assertEqual(len({w[3] for w in self.worlds(launched, 1)}), 1)
        self.assert_done(launched, 4)

    def test_a_survivor_dies_before_the_others_can_find_it(self):
        """Another process takes its place in the world that is being formed."""
        launched = self.train(4, "1 12", JOIN_DIES="2,GET /global/")
        for rank in 0, 3:
            first, second = self.worlds(launched, rank)
            self.assertEqual(second[:3], (rank, 4, 10))
            self.assertEqual(first[3], second[3], "another process")
        self.assertIn("and it is started again (2 of 5)\n", launched.err)
        self.assert_done(launched, 4)

    def test_the_ring_cannot_be_formed(self):
        """A survivor dies which the others try to connect to, or which has the state to be copied: the
        attempt fails, and no rank waits for Horovod's time limit."""
        for dies in "2,GET /global/0", "0,GET /global/":
            with self.subTest(dies=dies):
                flags = os.path.join(self.folder.name, dies[0])
                os.mkdir(flags)
                launched = self.train(3, "1 12", JOIN_DIES=dies, FLAGS=flags)
                self.assertIn(f"ddprun: rank {dies[0]} on localhost died of SIGKILL", launched.err)
                self.assertIn("all ranks are started again, attempt 2 of 6\n", launched.err)
                self.assertNotIn("Horovod could not be initialized", launched.out + launched.err)
                self.assert_done(launched, 3)

    def test_no_rank_is_left(self):
        launched = self.train(2, "0 12 1 12")
        self.assertIn("ddprun: all ranks are started again, attempt 2 of 6\n", launched.err)
        self.assertEqual([w[2] for w in self.worlds(launched, 0)], [0, 0])
        self.assert_done(launched, 2)

    def test_too_many_have_died(self):
        launched = self.train(2, "1 3 1 7 1 9", restarts=1, code=137)
        self.assertIn("all ranks are started again, attempt 2 of 2\n", launched.err)


if __name__ == "__main__":
    python = jobs.find_horovod()
    unittest.main(verbosity=2)
