"""Children of ranks that no signal of the user's ends."""

import os
import re
import shutil
import signal
import unittest

from launch import DDPRUN, LaunchTest, main, marked


@unittest.skipIf(os.geteuid() != 0, "only root can make a program of another user; needs root")
class Unkillable(LaunchTest):
    """A child of a rank that belongs to root, in a launch of an ordinary user's."""

    def setUp(self):
        super().setUp()
        os.chmod(self.folder.name, 0o777)
        shutil.copy(shutil.which("setpriv"), self.path("become"))
        os.chmod(self.path("become"), 0o4755)
        for program in (DDPRUN, os.path.join(os.path.dirname(DDPRUN), "ddprun-agent")):
            shutil.copy(program, self.folder.name)

    def leave(self, then, *options):
        """`then` follows in rank 0; the other ends well."""
        return self.start(
            "--reuid", "65534", "--regid", "65534", "--clear-groups", self.path("ddprun"),
            "-np", 2, "--grace", "1s", *options, "sh", "-c",
            f"[ $RANK = 0 ] || exit 0; {self.path('become')} --reuid 0 sleep 45 & "
            f"until [ $(cat /proc/$!/comm) = sleep ]; do sleep 0.05; done; {then}",
            command=["setpriv"], cwd="/", env={"HOME": "/"})

    def left(self, launch, rc):
        launch.wait(40)  # it would be alone after the 45 s of sleep
        for pid, line in marked(self.mark).items():
            if "sleep 45" in line:
                os.kill(pid, signal.SIGKILL)
        self.assert_ended(launch, rc)
        self.assertRegex(launch.err, r"(?m)^ddprun: warning: left behind on \S+, as SIGKILL does not "
                                     r"end it: .*process \d+ \(sleep\) of uid 0, state S")

    def test_a_job_that_went_well_ends_well(self):
        self.left(self.leave("exit 0"), 0)

    def test_a_failure_keeps_its_code(self):
        self.left(self.leave("exit 3"), 3)

    def test_a_rank_itself(self):
        launch = self.leave(f"exec {self.path('become')} --reuid 0 sleep 45",
                            "--timeout", "5s")
        self.left(launch, 124)
        self.assertIn("rank 0", launch.err)

    def test_a_thread_of_a_rank_whose_first_one_has_ended(self):
        """A zombie that cannot be reaped; what it has started is ended all the same."""
        leave = 93 if os.uname().machine == "aarch64" else 60  # exit(2): of this thread
        program = self.write("hang.py", (
            "import ctypes, subprocess, threading, time\n"
            "subprocess.Popen(['sleep', '46'], user=65534, start_new_session=True)\n"
            "threading.Thread(target=time.sleep, args=(45,)).start()\n"
            f"ctypes.CDLL(None).syscall({leave}, 0)\n"))
        launch = self.leave(f"exec {self.path('become')} --reuid 0 /usr/bin/python3 {program}",
                            "--timeout", "5s")
        self.left(launch, 124)
        named = re.search(r"process (\d+) \(python3\) of uid 0, thread \d+, state S", launch.err)
        self.assertTrue(named, launch.err)
        self.assertEqual([line for line in marked(self.mark).values() if "sleep 46" in line], [])
        os.kill(int(named[1]), signal.SIGKILL)


if __name__ == "__main__":
    main()
