"""The bundled trainer over hosts that share a network and nothing else."""

import os
import re
import signal

import hosts
from hosts import LabTest, main
from launch import wait_until

setUpModule = hosts.set_up
tearDownModule = hosts.tear_down


class Train(LabTest):
    def options(self, *more):
        return (os.path.join(hosts.LAB_HOSTS.bin, "ddp-train"), "--plot", "none", *more)

    def test_ranks_of_two_hosts_train_one_model(self):
        launch = self.run_to_end(
            "-H", self.hosts(1, 2, slots=2), *self.options("--check-replicas"))
        self.assert_ended(launch, 0)
        self.assertIn("4 over shm+tcp", launch.out)
        self.assertIn("4 alike", launch.out)
        accuracy = float(re.search(r"accuracy +([\d.]+) % of 359", launch.out)[1])
        self.assertGreaterEqual(accuracy, 97)

    def test_a_rank_that_dies_elsewhere_ends_all(self):
        launch = self.start(
            "-H", self.hosts(1, 2, 3), *self.options("--epochs", "100000", "--progress", "lines"))
        self.assertTrue(wait_until(lambda: "epoch" in launch.out))
        victims = [
            pid for pid, line in hosts.launch.marked(launch.mark).items()
            if line.startswith(os.path.join(hosts.LAB_HOSTS.bin, "ddp-train"))
        ]
        self.assertEqual(len(victims), 3)
        os.kill(victims[-1], signal.SIGKILL)
        launch.wait()
        self.assertEqual(launch.rc, 128 + signal.SIGKILL, launch.err)
        first = [line for line in launch.err.splitlines() if line.startswith("ddprun: ")][0]
        self.assertRegex(first, r"rank \d on node00\d died of SIGKILL")
        self.assertRegex(launch.err, r"rank \d on node00\d has gone")


if __name__ == "__main__":
    main()
