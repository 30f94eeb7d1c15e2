"""The tests of test_exit.py as on a kernel before Linux 5.1, such as RHEL 8's: no pidfd, no close_range()."""

import os

import test_exit
from launch import DDPRUN, main


class OldKernel(test_exit.Exit):
    def start(self, *args, command=(DDPRUN,), **how):
        return super().start(*args, command=[os.environ["OLD_KERNEL"], *command], **how)

    def test_that_the_calls_are_missing(self):
        launch = self.run_to_end("-np", 1, "python3", "-c", "import os; os.pidfd_open(os.getpid())")
        self.assert_ended(launch, 1)
        self.assertIn("[Errno 38]", launch.err)


if __name__ == "__main__":
    main()
