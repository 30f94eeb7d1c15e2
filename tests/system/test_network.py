"""examples/network.c: the same losses for every number of ranks, however they are placed."""
import os
import re
import resource
import signal

from launch import LaunchTest, held, main, marked, wait_until

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
            came_to = self.epochs(launch)[-1][0]
            os.kill(self.ranks()[-1], signal.SIGKILL)
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

    def ranks(self):
        return sorted(pid for pid, command in marked(self.mark).items() if command.startswith(NETWORK))

    def test_a_save_goes_on_beside_the_steps_and_may_be_killed(self):
        """The one before it is whole, and the losses are those of a run in which nothing failed."""
        saved = self.path("saved")
        os.mkdir(saved)
        first, half = (f"step-{step}.safetensors" for step in ("00000100", "00000200"))
        part = os.path.join(saved, half + ".part")
        words = ("--tag-output=off", "-np", 3, "--max-restarts", 1, NETWORK, "saved", 345)
        launch = self.start(*words, saved, env=held(HOLD_RENAME=os.path.join(saved, half)))
        self.wait_for(launch, "epoch 285:")
        self.assertEqual(sorted(os.listdir(saved)), [first, half + ".part"])
        os.truncate(part, 1000)  # what is left of a killed one
        os.kill(self.ranks()[0], signal.SIGKILL)
        launch.wait()
        self.assert_ended(launch, 0)
        self.assertEqual(re.findall("going on .*", launch.out), ["going on after epoch 100"])
        self.assertEqual(sorted(os.listdir(saved)),
                         [f"step-{step:08}.safetensors" for step in (100, 200, 300, 345)])
        whole = self.run_to_end(*words)
        told, wanted = ([line for _, line in self.epochs(job)] for job in (launch, whole))
        self.assertEqual(list(dict.fromkeys(told)), wanted)

    def test_a_full_disk_is_told_at_the_next_save(self):
        saved = self.path("saved", "")
        launch = self.start("-np", 2, "sh", "-c", f"trap '' XFSZ; exec {NETWORK} saved 1000000000 {saved}")
        self.assertTrue(wait_until(lambda: os.path.exists(saved + "step-00000100.safetensors")), launch.err)
        for pid in self.ranks():
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (1000, 1000))
        launch.wait()
        self.assert_ended(launch, 1)
        (said,) = set(re.findall(r"no checkpoint.*", launch.err))  # the same of each rank
        self.assertRegex(said, rf"^no checkpoint: cannot write '{saved}step-\d+.safetensors.part': File too large$")
        newest = max(os.listdir(saved))
        self.assertRegex(newest, r"^step-\d+\.safetensors$")
        last = int(newest[5:13])
        again = self.run_to_end("--tag-output=off", "-np", 3, NETWORK, "saved", last + 15, saved)
        self.assert_ended(again, 0)
        self.assertIn(f"going on after epoch {last}\n", again.out)

    def test_a_job_that_cannot_restart_keeps_nothing(self):
        self.assertEqual(self.losses("-np", 2, NETWORK, "kept"), self.losses("-np", 2, NETWORK))


if __name__ == "__main__":
    main()
