"""ddp-train --peer-checkpoint: a lost host costs a few steps, with no checkpoint on disk."""

import glob
import json
import os
import re
import shutil

import hosts
from hosts import LabTest, main
from launch import end_all, marked, wait_until

setUpModule = hosts.set_up
tearDownModule = hosts.tear_down

STEPS = 300
PATIENCE = 200  # seconds, for so many steps of six ranks
LATEST = 10  # steps that a lost host may cost


class PeerCheckpoint(LabTest):
    def train(self, log, numbers, launcher=(), trainer=(), slots=2):
        """A run of STEPS steps, whose sums are bitwise the same from run to run."""
        return self.start(
            "-H", self.hosts(*numbers, slots=slots), "--grace", "1s", *launcher,
            os.path.join(hosts.LAB_HOSTS.bin, "ddp-train"), "--plot", "none", "--progress", "lines",
            "--model", "mlp", "--optimizer", "adam", "--batch-size", 8, "--bucket-mb", 1, "--epochs",
            1000, "--steps", STEPS, "--log", self.path(log), *trainer)

    def rows(self, log):
        try:
            with open(self.path(log), encoding="ascii") as f:
                return [json.loads(line) for line in f.read().splitlines(True) if line.endswith("\n")]
        except OSError:
            return []

    def losses(self, log):
        """[(step, loss)] in the order in which they were written."""
        return [(row["step"], row["loss"]) for row in self.rows(log) if row["kind"] == "step"]

    def wait_for_step(self, launch, log, step):
        if not wait_until(lambda: any(s >= step for s, _ in self.losses(log)), PATIENCE):
            self.fail(f"step {step} does not come: {launch.out} {launch.err}")

    def lose(self, number, how):
        self.addCleanup(self.heal, number)
        self.fault(number, how)

    def check_losses(self, log, reference):
        """Every step of every attempt has the loss of the run in which nothing failed. Returns for
        each further attempt the last step before it, and the step that it goes on from."""
        said, told = dict(self.losses(reference)), self.losses(log)
        self.assertEqual(len(said), STEPS)
        self.assertEqual({s for s, _ in told}, set(said))
        for step, loss in told:
            self.assertEqual(loss, said[step], f"step {step}")
        pairs = zip(self.rows(log), self.rows(log)[1:])
        steps = [(a["step"], b["step"]) for a, b in pairs if b["kind"] == "run"]
        self.assertTrue(steps)
        return steps

    def reference(self, numbers, *trainer):
        whole = self.train("whole", numbers, trainer=trainer)
        whole.wait(PATIENCE)
        self.assert_ended(whole, 0)

    def lose_a_host(self, number, *trainer):
        self.reference((1, 2, 3), *trainer)
        launch = self.train("log", (1, 2, 3, 4), ("--spares", 1),
                            (f"--peer-checkpoint={LATEST}", *trainer))
        self.wait_for_step(launch, "log", 70)
        self.lose(number, "kill")
        launch.wait(PATIENCE)
        self.assert_ended(launch, 0)
        ((last, resumed),) = self.check_losses("log", "whole")
        self.assertLessEqual(last - resumed, LATEST)
        self.assertIn(f"resumed     step {resumed} from the memory of 3 hosts", launch.out)
        self.assertIn("ddprun.checkpoint ", launch.out)

    def test_a_host_whose_optimiser_states_no_other_has(self):
        self.lose_a_host(2, "--shard-optimizer")

    def test_the_last_host_with_whole_states(self):
        self.lose_a_host(3)

    def test_two_neighbours_at_once_cost_what_the_disk_has_not(self):
        small = ("--batch-size", 1)  # 240 steps in an epoch, which ends with a checkpoint
        self.reference((1, 2, 3), *small)
        place = self.path("c")
        launch = self.train(
            "log", (1, 2, 3, 4, 5), ("--spares", 2, "--node-timeout", "8s"),
            (*small, "--peer-checkpoint", "--checkpoint", place, "--checkpoint-every", 60, "--resume"))
        self.wait_for_step(launch, "log", 70)
        self.lose(2, "drop")
        self.lose(3, "drop")
        launch.wait(PATIENCE)
        self.assert_ended(launch, 0)
        ((last, resumed),) = self.check_losses("log", "whole")
        self.assertIn(resumed, (60, 120, 180, 240))
        self.assertIn(f"resumed     {place}: training goes on after step", launch.out)
        if any(step % 5 == 0 for step in range(resumed + 1, last)):  # a set was there
            self.assertRegex(launch.out, r"resumed     not step \d+ from memory: [2-4] of its 6 parts were "
                             "on lost hosts\n")

    def test_fewer_hosts_and_another_number_of_ranks(self):
        launch = self.train("log", (1, 2, 3), ("--nnodes", "2:3"),
                            (f"--peer-checkpoint={LATEST}", "--shard-optimizer"))
        self.wait_for_step(launch, "log", 60)
        self.lose(3, "kill")
        launch.wait(PATIENCE)
        self.assert_ended(launch, 0)
        self.assertIn("4 over shm+tcp", launch.out)
        took = re.search(r"resumed     step (\d+) from the memory of 2 hosts", launch.out)
        self.assertGreater(int(took[1]), 60 - LATEST)

    def network(self, *options):
        """examples/network.c, by libraries that it finds on the hosts."""
        built, seen = os.path.dirname(os.path.dirname(os.environ["NETWORK"])), hosts.LAB_HOSTS.bin
        for name in ("examples/network", "worker/libddp.so.0", "worker/group/libddpgroup.so.0"):
            shutil.copy(os.path.join(built, name), seen)
        return self.start("--grace", "1s", "--tag-output=off", *options, "env", f"LD_LIBRARY_PATH={seen}",
                          os.path.join(seen, "network"), "kept", 10**9)

    @staticmethod
    def epochs(job):
        return [(int(m[1]), m[0]) for m in re.finditer(r"epoch (\d+): .*\n", job.out)]

    def goes_on(self, launch, times, change):
        """After the change, from the memory of the hosts. Returns a later epoch."""
        came_to = self.epochs(launch)[-1][0]
        change()
        self.assertTrue(wait_until(lambda: launch.out.count("going on") >= times, PATIENCE), launch.err)
        went_on = int(re.findall(r"going on after epoch (\d+)\n", launch.out)[-1])
        self.assertGreaterEqual(went_on, came_to - 2)  # of the last two sets one is whole
        return went_on - went_on % 15 + 60

    def test_a_program_of_ddp_h_grows_and_shrinks(self):
        """Each change in the number of ranks moves parts of the optimiser's state to other ranks."""
        self.list_hosts(1, 2)
        launch = self.network("--host-discovery-script", f"cat {self.path('hosts')}", "--nnodes", "1:3",
                              "--discovery-interval", "200ms", "--grow", "now")
        end = 60
        for times, numbers in enumerate(((1, 2, 3), (2, 3), (3,), (3, 1)), 1):
            self.wait_for(launch, f"epoch {end}:")
            end = self.goes_on(launch, times, lambda: self.list_hosts(*numbers))
        self.wait_for(launch, f"epoch {end}:")
        launch.signal(15)
        launch.wait()
        self.assertLess(float(self.epochs(launch)[-1][1].split()[-1]), 0.02)

    def test_a_program_of_ddp_h(self):
        """examples/network.c: a host is lost, and its ranks' states come from the next one."""
        def network(numbers, *options):
            return self.network("-H", self.hosts(*numbers, slots=2), *options)
        launch = network((1, 2, 3, 4), "--spares", 1)
        self.wait_for(launch, "epoch 60:")
        end = self.goes_on(launch, 1, lambda: self.lose(2, "kill"))
        self.wait_for(launch, f"epoch {end}:")
        launch.signal(15)
        launch.wait()
        whole = network((1, 3, 4), "--max-restarts", 1)
        self.wait_for(whole, f"epoch {end}:")
        whole.signal(15)
        whole.wait()
        told, wanted = ([line for epoch, line in self.epochs(job) if epoch <= end] for job in (launch, whole))
        self.assertEqual(list(dict.fromkeys(told)), wanted)

    def kept(self, pids):
        """The kept memory that these processes hold or map: inodes."""
        found = set()
        for pid in pids:
            try:
                found |= {os.stat(path).st_ino for path in glob.glob(f"/proc/{pid}/fd/*")
                          if "memfd:ddprun-kept" in os.readlink(path)}
                with open(f"/proc/{pid}/maps", encoding="ascii", errors="replace") as f:
                    found |= {int(line.split()[4]) for line in f if "memfd:ddprun-kept" in line}
            except OSError:
                pass  # gone meanwhile
        return found

    def test_nothing_is_left_when_all_of_it_is_killed(self):
        """The memory is the agents' and has no name, so the kernel frees it with the last of them."""
        launch = self.train("log", (2, 3), ("--max-restarts", 1), ("--peer-checkpoint",))
        self.wait_for_step(launch, "log", 20)
        ours = self.kept(marked(*self.marks))
        self.assertEqual(len(ours), 2)
        end_all(*self.marks)
        launch.wait(PATIENCE)
        left = lambda: ours & self.kept(filter(str.isdigit, os.listdir("/proc")))
        self.assertTrue(wait_until(lambda: not left()))


del LabTest

if __name__ == "__main__":
    main()
