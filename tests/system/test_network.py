"""examples/network.c: the same losses for every number of ranks, however they are placed."""
import os
import re
import signal
import unittest

from launch import LaunchTest, main, marked, wait_until

NETWORK = os.environ["NETWORK"]


class Network(LaunchTest):
    def losses(self, *words):
        launch = self.run_to_end("--tag-output=off", *words)
        self.assert_ended(launch, 0)
        lines = launch.out.splitlines()
        self.assertEqual(len(lines), 4, launch.out)
        return lines

    def test_losses_are_those_of_one_rank(self):
        alone = self.losses("-np", 1, NETWORK)
        self.assertLess(float(alone[-1].split()[-1]), 0.05)
        for ranks in (2, 3, 4):
            self.assertEqual(self.losses("-np", ranks, NETWORK), alone)
        self.assertEqual(self.losses("-np", 2, NETWORK, "replicated"), alone)
        # on two hosts
        self.assertEqual(self.losses("-np", 4, "sh", "-c", "DDP_HOST_ID=$((RANK / 2)) exec " + NETWORK),
                         alone)

    def epochs(self, launch):
        """[(epoch, line)] of the epochs so far."""
        return [(int(m[1]), m[0]) for m in re.finditer(r"epoch (\d+): .*\n", launch.out)]

    def test_killed_ranks_go_on_from_memory(self):
        """The losses are those of a run in which nothing failed, and the optimiser's states are kept, too."""
        words = ("--tag-output=off", "-np", 3, "--max-restarts", 2, NETWORK, "kept", 10**9)
        launch = self.start(*words)
        self.wait_for(launch, "epoch 150:")
        for times in (1, 2):
            ranks = sorted(pid for pid, command in marked(self.mark).items() if command.startswith(NETWORK))
            came_to = self.epochs(launch)[-1][0]
            os.kill(ranks[-1], signal.SIGKILL)
            self.assertTrue(wait_until(lambda n=times: launch.out.count("going on") == n), launch.err)
            went_on = int(re.findall(r"going on after epoch (\d+)\n", launch.out)[-1])
            self.assertGreaterEqual(went_on, came_to - 2)  # of the last two sets one is whole
        end = went_on - went_on % 15 + 300
        self.wait_for(launch, f"epoch {end}:")
        whole = self.start(*words)
        self.wait_for(whole, f"epoch {end}:")
        for job in (launch, whole):
            job.signal(signal.SIGTERM)
            self.assertEqual(job.wait(), 143, job.err)
        told, wanted = ([line for epoch, line in self.epochs(job) if epoch <= end] for job in (launch, whole))
        self.assertEqual(list(dict.fromkeys(told)), wanted)

    def test_a_job_that_cannot_restart_keeps_nothing(self):
        launch = self.run_to_end("-np", 2, NETWORK, "kept")
        self.assert_ended(launch, 1)
        self.assertIn("a checkpoint in memory needs a job that may restart: 'ddprun --max-restarts N'", launch.err)


if __name__ == "__main__":
    main()
