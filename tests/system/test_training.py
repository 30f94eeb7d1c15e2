"""ddp-train under ddprun: what it shows, where its output goes, and that its checkpoints are progress."""

import os
import re

from launch import LaunchTest, main
from terminal import shown

DDP_TRAIN = os.environ.get("DDP_TRAIN")


class Training(LaunchTest):
    shown = shown

    def test_a_training_shows_its_bar(self):
        shown = self.shown("-np", "2", DDP_TRAIN, "--epochs", "2", "--plot", "none")
        self.assertRegex(shown, r"\[0\] epoch   1/2    \S+ +\d+ %.*\r")  # under way
        shown = shown.replace("\x1b[K", "")
        self.assertRegex(shown, r"\[0\] epoch   2/2    \S+  loss .*images/s\r\n")
        for line in re.split(r"[\r\n]+", shown):
            self.assertLessEqual(len(line), 80)

    def test_a_training_prints_into_no_connection(self):
        """Its stdout is closed, and the ranks use TCP."""
        launch = self.sh(2, f"DDP_HOST_ID=$RANK exec {DDP_TRAIN} --model toy --epochs 2 --plot none >&-")
        self.assert_ended(launch, 0)
        self.assertEqual(launch.out + launch.err, "")

    def test_progress_by_checkpoints_of_the_trainer(self):
        """An epoch more in each of three attempts, and then no more."""
        file = self.path("checkpoint")
        launch = self.sh(2, f'N=$TORCHELASTIC_RESTART_COUNT; [ $N -lt 3 ] || N=2; [ -e {file} ] && R=--resume; '
                         f'{DDP_TRAIN} --model linreg --data synthetic --plot none --epochs $((N + 1)) '
                         f'--checkpoint {file} $R || exit 1; exit 3', "--max-restarts", 50,
                         "--max-no-progress", 2, "--progress-file", file)
        self.assert_ended(launch, 93)
        self.assertEqual(launch.err.count("ddprun: all ranks are started again, attempt "), 4)
        self.assertNotIn("status 1 ", launch.err)


if __name__ == "__main__":
    main()
