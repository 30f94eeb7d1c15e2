"""The bundled trainer over hosts that share a network and nothing else."""

import json
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

    def rows(self, kind):
        try:
            with open(self.path("log"), encoding="ascii") as f:  # at once: between two reads a line grows
                rows = [json.loads(line) for line in f.read().splitlines(True) if line.endswith("\n")]
        except OSError:
            return []
        return [row for row in rows if row["kind"] == kind]

    def wait_for_runs(self, launch, *sizes):
        """Until there have been runs of so many ranks, and the last has taken some steps."""
        def there():
            runs, steps = self.rows("run"), self.rows("step")
            return [run["ranks"] for run in runs] == list(sizes) and steps[-1:] and \
                steps[-1]["step"] > runs[-1]["step"] + 20
        if not wait_until(there):
            self.fail(f"not {sizes}: {self.rows('run')} {launch.out} {launch.err}")

    def begin(self, *launcher):
        return self.start(*launcher, "--grace", "1s", *self.options(
            "--model", "mlp", "--epochs", 100000, "--log", self.path("log"), "--checkpoint", self.path("c"),
            "--checkpoint-every", 10, "--resume"))

    def end(self, launch):
        launch.signal(signal.SIGTERM)
        launch.wait()
        self.assert_ended(launch, 128 + signal.SIGTERM)
        return [row["step"] for row in self.rows("step")]

    def test_it_goes_on_with_more_hosts_and_with_fewer(self):
        """Its ranks get TERM, and save their state: no step is lost, and none is taken twice."""
        self.list_hosts(1, 2)
        launch = self.begin("--hostfile", self.path("hosts"), "--nnodes", "1:3", "--grow", "now",
                            "--discovery-interval", "200ms")
        self.wait_for_runs(launch, 4)
        self.list_hosts(1, 2, 3)
        self.wait_for_runs(launch, 4, 6)
        self.list_hosts(1, 3)
        self.wait_for_runs(launch, 4, 6, 4)
        steps = self.end(launch)
        self.assertEqual(steps, list(range(1, len(steps) + 1)))

    def test_a_spare_goes_on_from_the_checkpoint(self):
        launch = self.begin("-H", self.hosts(1, 2, 3, slots=2), "--spares", 1)
        self.wait_for_runs(launch, 4)
        self.lose(2)
        self.wait_for_runs(launch, 4, 4)
        steps = self.end(launch)
        first = self.rows("run")[1]["step"]
        # none is lost if the ranks, which get TERM, still agree to end
        lost = next((i for i, step in enumerate(steps[1:], 1) if step != steps[i - 1] + 1), first)
        self.assertTrue(0 < first <= lost, (first, lost))
        self.assertEqual(steps, [*range(1, lost + 1), *range(first + 1, first + 1 + len(steps) - lost)])


if __name__ == "__main__":
    main()
