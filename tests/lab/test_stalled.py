"""Programs on a file server that does not answer: their starts wait, everything else goes on."""

import os
import shutil
import signal
import unittest

import hosts
from hosts import LabTest, main, node
from launch import wait_until

setUpModule = hosts.set_up
tearDownModule = hosts.tear_down
SLOTS = 20


@unittest.skipUnless(os.path.exists("/dev/fuse"), "no FUSE; needs system with /dev/fuse")
class Start(LabTest):
    """The program of node 2 is behind the server; the node timeout is shorter than the stall."""

    def setUp(self):
        super().setUp()
        self.work = self.path("work")
        os.mkdir(self.work)
        os.chmod(self.work, 0o777)
        shutil.copy("/bin/sh", self.work)
        self.addCleanup(self.heal, 2)

    def begin(self, *options, script="echo up"):
        return self.start(
            "-H", f"{node(1)}:1,{node(2)}:{SLOTS}", "--node-timeout", "4s", "--grace", "1s",
            *options, self.path("work", "sh"), "-c", script, cwd=self.work)

    def stalled_between(self):
        """Some ranks run, and one is being started: all would take a quarter of a minute."""
        self.fault(2, "slow", self.work, "200")
        launch = self.begin(script="echo up $RANK; exec sleep 0.1")
        self.wait_for(launch, "up 1\n")
        self.fault(2, "stall", self.work)
        self.wait_for(launch, "has taken", "err")
        return launch

    def stalled_before(self):
        self.fault(2, "slow", self.work, "0")
        self.fault(2, "stall", self.work)
        launch = self.begin()
        self.wait_for(launch, "has taken", "err")
        return launch

    def test_the_job_goes_on_when_it_answers(self):
        """The warning comes after more than twice the node timeout."""
        launch = self.stalled_between()
        self.assertRegex(launch.err, f"rank [0-9]+ on {node(2)}: starting '{self.work}/sh' .*"
                                     r"has taken [0-9]+ s \(stalled file system\?\)")
        self.fault(2, "unstall", self.work)
        launch.wait()
        self.assert_ended(launch, 0)
        self.assertEqual(launch.out.count("up"), 1 + SLOTS)

    def test_so_do_look_ups(self):
        launch = self.stalled_before()
        self.assertIn(f"rank 1 on {node(2)}: looking for '{self.work}/sh'", launch.err)
        self.fault(2, "unstall", self.work)
        launch.wait()
        self.assert_ended(launch, 0)
        self.assertEqual(launch.out.count("up"), 1 + SLOTS)

    def all_end(self, launch, rc):
        """What the kernel keeps is named, and ends with its request."""
        launch.wait()
        self.assertEqual(launch.rc, rc, launch.err)
        if f"left behind on {node(2)}" not in launch.err:
            self.assertTrue(wait_until(lambda: not self.on_host(2)), self.on_host(2))
        self.fault(2, "unstall", self.work)
        self.assertTrue(wait_until(lambda: not self.on_host(2)), self.on_host(2))

    def test_a_signal_ends_a_start(self):
        launch = self.stalled_between()
        launch.signal(signal.SIGINT)
        self.all_end(launch, 130)

    def test_a_signal_ends_a_look_up(self):
        launch = self.stalled_before()
        launch.signal(signal.SIGINT)
        self.all_end(launch, 130)

    def test_so_does_the_timeout(self):
        self.fault(2, "slow", self.work, "0")
        self.fault(2, "stall", self.work)
        self.all_end(self.begin("--timeout", "8s"), 124)


if __name__ == "__main__":
    main()
