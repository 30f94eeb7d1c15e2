"""ddp-train goes on after restarts: ranks and jobs that are killed at random moments of a checkpoint,
a full disk, other numbers of ranks; each with the losses of a run in which nothing failed."""

import glob
import json
import os
import random
import shutil
import signal
import subprocess
import time
import unittest

from launch import PATIENT, LaunchTest, end_all, main, marked, read_proc, wait_until

TRAINER = os.environ.get("DDP_TRAIN")
SEED = int(os.environ.get("DDPRUN_TEST_SEED", "1"))
PATIENCE = 200  # seconds, for some hundred steps and a few restarts
GLOBAL_BATCH = 64


@unittest.skipUnless(TRAINER, "no ddp-train; needs build without sanitizers")
class Resume(LaunchTest):
    def train(self, np, log, *options, launcher=()):
        """Sums and their order are those of np; data, initial weights and steps of any np."""
        launch = self.start(
            "-np", np, "-H", f"localhost:{np}", *PATIENT, *launcher, TRAINER, "--plot", "none",
            "--model", "mlp", "--optimizer", "adam", "--batch-size", GLOBAL_BATCH // np, "--epochs", 100000,
            "--threads", 1, "--log", self.path(log), *options, cwd=self.folder.name)
        launch.args = options
        return launch

    def finish(self, launch, rc=0):
        launch.wait(PATIENCE)
        self.assert_ended(launch, rc)
        return launch

    def rows(self, log):
        """As they were written; a killed rank may leave half a line."""
        found = []
        if os.path.exists(self.path(log)):
            with open(self.path(log), encoding="ascii", errors="replace") as f:
                for line in f:
                    try:
                        found.append(json.loads(line))
                    except ValueError:
                        pass
        return found

    def losses(self, log):
        return [(row["step"], row["loss"]) for row in self.rows(log) if row["kind"] == "step"]

    def ranks(self, launch):
        return [pid for pid in marked(launch.mark)
                if os.path.realpath(f"/proc/{pid}/exe") == os.path.realpath(TRAINER)]

    def kill_one(self, launch, rng, attempt):
        """Kill a rank of this attempt: while a checkpoint is being written, or at any moment."""
        def of_this_attempt():
            return [pid for pid in self.ranks(launch) if
                    b"TORCHELASTIC_RESTART_COUNT=%d\0" % attempt in read_proc(pid, "environ")]

        before = len(self.losses("log"))
        wait_until(lambda: len(self.losses("log")) > before + 5 or launch.process.poll() is not None)
        if rng.random() < 0.7 and "--checkpoint" in launch.args:
            wait_until(lambda: glob.glob(self.path("*.part")) or launch.process.poll() is not None)
            time.sleep(rng.random() * 0.004)
        else:
            time.sleep(rng.random() * 0.1)
        for pid in rng.sample(of_this_attempt(), 1) if of_this_attempt() else ():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def check(self, told, said):
        """Each step was taken, and had, in each attempt, the loss that `said` has."""
        self.assertEqual({step for step, _ in told}, set(said))
        for step, loss in told:
            self.assertEqual(loss, said[step], f"step {step}")

    def stop(self, launch):
        launch.signal(signal.SIGTERM)
        launch.wait(PATIENCE)
        self.assertIn(launch.rc, (75, 143), launch.err)

    def killed_at_random(self, kills, *options):
        """A run in which so many ranks are killed, one after the other, and then all are stopped."""
        rng = random.Random(SEED)
        launch = self.train(2, "log", *options, launcher=("--max-restarts", kills))
        for attempt in range(kills):
            self.kill_one(launch, rng, attempt)
            again = f"started again, attempt {attempt + 2} of"
            if not wait_until(lambda: again in launch.err or launch.process.poll() is not None):
                self.fail(f"no attempt {attempt + 2}: {launch.err}")
        self.assertIn(again, launch.err)
        before = len(self.losses("log"))
        wait_until(lambda: len(self.losses("log")) > before + 5)
        self.stop(launch)
        told = self.losses("log")
        self.finish(self.train(2, "whole", "--steps", max(step for step, _ in told)))
        self.check(told, dict(self.losses("whole")))
        return launch

    def test_ranks_that_are_killed_while_a_checkpoint_is_written(self):
        self.killed_at_random(6, "--checkpoint", "c", "--checkpoint-every", 10, "--resume")
        self.assertEqual(sorted(os.listdir(self.folder.name)), ["c", "log", "whole"])

    def test_ranks_that_are_killed_while_a_checkpoint_in_parts_is_written(self):
        self.killed_at_random(6, "--checkpoint", "c", "--checkpoint-every", 10, "--resume",
                              "--checkpoint-shard-mb", 0)
        parts = sorted(name for name in os.listdir(self.folder.name) if name.startswith("c"))
        self.assertRegex(" ".join(parts), r"^c c\.(\d+-\d+)\.1-of-2 c\.\1\.2-of-2$")

    def test_ranks_that_are_killed_cost_a_few_steps_without_a_disk(self):
        launch = self.killed_at_random(6, "--peer-checkpoint=8")
        runs = [[]]
        for row in self.rows("log"):
            if row["kind"] == "run":
                runs.append([row["step"]])
            elif row["kind"] == "step":
                runs[-1].append(row["step"])
        for before, after in zip(runs[1:], runs[2:]):
            self.assertLessEqual(max(before) - after[0], 8)
        self.assertEqual(launch.out.count("from the memory of 1 host\n"), len(runs) - 2)
        self.assertEqual(sorted(os.listdir(self.folder.name)), ["log", "whole"])

    def test_a_run_that_memory_has_complete_is_written(self):
        """An attempt that dies before its last checkpoint is on disk leaves no step to the next one."""
        train = f"{TRAINER} --model toy --plot none --steps 20 --peer-checkpoint"
        launch = self.sh(2, f"[ $TORCHELASTIC_RESTART_COUNT = 1 ] && exec {train} --checkpoint c --resume; {train}; exit 3",
                         "--max-restarts", 1, cwd=self.folder.name)
        self.assert_ended(launch, 0)
        self.assertIn("resumed     step 20 from the memory of 1 host", launch.out)
        self.assertEqual(os.listdir(self.folder.name), ["c"])

    def killed_with_its_launcher(self, np, rng, steps):
        """A part of a job, of so many steps and some more, that ends while a checkpoint is written."""
        launch = self.train(np, f"log{np}", "--checkpoint", "c", "--checkpoint-every", 9, "--resume")
        if not wait_until(lambda: len(self.losses(f"log{np}")) > steps, PATIENCE):
            self.fail(launch.out + launch.err)
        wait_until(lambda: glob.glob(self.path("*.part")))
        time.sleep(rng.random() * 0.004)
        end_all(launch.mark)
        launch.wait(PATIENCE)

    def test_two_then_four_then_one_rank(self):
        """The losses are those of the same parts that end by themselves, to the bit; and those of one
        rank up to rounding, as another number of ranks adds in another order."""
        rng = random.Random(SEED)
        self.killed_with_its_launcher(2, rng, 40)
        self.killed_with_its_launcher(4, rng, 40)
        four = self.losses("log4")[0][0] - 1  # steps that were taken by two ranks
        last = max(step for step, _ in self.losses("log4")) + 40
        self.finish(self.train(1, "log1", "--steps", last, "--checkpoint", "c", "--resume"))
        one = self.losses("log1")[0][0] - 1
        os.remove(self.path("c"))
        said, taken = {}, {}
        for np, steps in ((2, four), (4, one), (1, last)):
            self.finish(self.train(np, f"whole{np}", "--steps", steps, "--checkpoint", "c", "--resume"))
            said.update(self.losses(f"whole{np}"))
            taken.update(self.losses(f"log{np}"))
        self.check(list(taken.items()), said)
        self.finish(self.train(1, "one", "--steps", last))
        for step, loss in self.losses("one"):
            self.assertAlmostEqual(loss, said[step], delta=1e-4 * max(loss, 0.05), msg=f"step {step}")

    @unittest.skipUnless(os.geteuid() == 0 and shutil.which("unshare"), "a small disk; needs root")
    def test_a_full_disk(self):
        """One line says so, restarts do not help, and once there is room the run goes on from the newest
        checkpoint that is whole."""
        small, room = self.path("small"), self.path("small", "filler")
        os.mkdir(small)
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=12m", "none", small], check=True)
        self.addCleanup(subprocess.run, ["umount", "-l", small], check=True)
        with open(room, "wb") as f:
            f.write(bytes(6 << 20))
        options = ("--checkpoint", "small/steps/", "--checkpoint-every", 10, "--resume", "--steps", 60)
        launch = self.finish(self.train(2, "log", *options, launcher=(
            "--max-restarts", 5, "--max-no-progress", 2)), 93)
        self.assertRegex(launch.out + launch.err, r"no checkpoint: cannot write 'small/steps/step-\d+\."
                         r"safetensors\.part': No space left on device")
        whole = sorted(os.listdir(self.path("small", "steps")))
        self.assertEqual(whole, ["step-00000010.safetensors"])
        os.remove(room)
        subprocess.run(["mount", "-o", "remount,size=200m", small], check=True)
        self.finish(self.train(2, "log", *options))
        self.finish(self.train(2, "whole", "--steps", 60))
        self.check(self.losses("log"), dict(self.losses("whole")))
        self.assertEqual(self.losses("log")[-50][0], 11)


if __name__ == "__main__":
    main()
