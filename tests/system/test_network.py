"""examples/network.c: the same losses for every number of ranks, however they are placed."""
import os
import unittest

from launch import LaunchTest, main

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


if __name__ == "__main__":
    main()
