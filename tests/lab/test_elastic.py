"""Hosts that come and go: --node-wait, --host-discovery-script, a hostfile that changes, --grow."""

import os
import unittest

import hosts
from hosts import LabTest, main, node
from launch import wait_until

setUpModule = hosts.set_up
tearDownModule = hosts.tear_down

# each rank says where it is, and the size of its world
SAY = ("echo $RANK $(hostname) $TORCHELASTIC_RESTART_COUNT $WORLD_SIZE $GROUP_RANK "
       "$GROUP_WORLD_SIZE $LOCAL_WORLD_SIZE $MASTER_ADDR; ")
# ranks stay until this file is there
STAY = SAY + "while ! [ -e {} ]; do sleep 0.1; done"


class Elastic(LabTest):
    def setUp(self):
        super().setUp()
        self.go = self.path("go")

    def lose(self, number, how="kill"):
        self.addCleanup(self.heal, number)
        self.fault(number, how)

    def lines(self, launch, attempt):
        """What the ranks of this attempt say: [(rank, host, world, node rank, nodes, local, master)]."""
        words = [line.split() for line in launch.out.splitlines()]
        return sorted((int(w[-8]), w[-7], *map(int, w[-5:-1]), w[-1]) for w in words
                      if len(w) >= 8 and w[-6] == str(attempt))

    def expect(self, launch, attempt, *numbers, slots=2):
        """The world of this attempt: these hosts, in their order."""
        size = len(numbers) * slots
        master = f"10.77.0.{numbers[0]}" if len(numbers) > 1 else "127.0.0.1"
        world = [(r, node(numbers[r // slots]), size, r // slots, len(numbers), slots, master)
                 for r in range(size)]
        if not wait_until(lambda: self.lines(launch, attempt) == world):
            self.fail(f"not {world}: {launch.out} {launch.err}")

    def say_go(self):
        self.write("go", "")

    def end(self, launch, code=0):
        self.say_go()
        launch.wait()
        self.assert_ended(launch, code)


class NodeWait(Elastic):
    def begin(self, numbers, *options, **how):
        return self.start_on(numbers, STAY.format(self.go), "--grace", "1s", *options, slots=2, **how)

    def test_the_agent_is_started_again(self):
        launch = self.begin((1, 2), "--node-wait", "100s")
        self.expect(launch, 0, 1, 2)
        self.lose(2)
        self.wait_for(launch, "too few hosts are left; waiting up to 100 s", "err")
        self.heal(2)
        self.expect(launch, 1, 1, 2)
        self.assertIn("ddprun: node002 has joined the job\n", launch.err)
        self.assertIn("ddprun: all ranks are started again, attempt 2\n", launch.err)
        self.end(launch)

    def test_an_agent_that_was_killed(self):
        launch = self.begin((1, 2), "--node-wait", "100s")
        self.expect(launch, 0, 1, 2)
        self.kill_agent(2)
        self.expect(launch, 1, 1, 2)
        self.end(launch)

    def kill_agent(self, number):
        for pid, line in self.on_host(number).items():
            if "ddprun-agent" in line:
                try:
                    os.kill(pid, 9)
                except ProcessLookupError:
                    pass

    def test_no_host_comes(self):
        launch = self.begin((1, 2), "--node-wait", "3s")
        self.expect(launch, 0, 1, 2)
        self.lose(2)
        launch.wait()
        self.assert_ended(launch, 125)
        self.assertIn("ddprun: no host has come in the place of the lost one within 3 s "
                      "(--node-wait)", launch.err)


class Discovery(Elastic):
    def list(self, *lines):
        path = self.path("hosts.new")
        self.write("hosts.new", "".join(f"{line}\n" for line in lines))
        os.rename(path, self.path("hosts"))

    def list_hosts(self, *numbers):
        self.list(*(f"{node(n)}:2" for n in numbers))

    def begin(self, *options, nnodes="1:4", script=None, **how):
        return self.start("--host-discovery-script", script or f"cat {self.path('hosts')}",
                          "--nnodes", nnodes, "--discovery-interval", "200ms", "--grace", "1s",
                          *options, "sh", "-c", STAY.format(self.go), **how)

    def test_grows_at_once_and_shrinks(self):
        self.list_hosts(1)
        launch = self.begin("--grow", "now")
        self.expect(launch, 0, 1)
        self.list_hosts(2, 1)
        self.expect(launch, 1, 1, 2)
        self.list_hosts(1, 2, 3)
        self.expect(launch, 2, 1, 2, 3)
        self.list_hosts(1, 3)
        self.expect(launch, 3, 1, 3)
        self.end(launch)

    def test_grows_at_the_next_restart(self):
        self.list_hosts(1, 2)
        launch = self.begin()
        self.expect(launch, 0, 1, 2)
        self.list_hosts(1, 2, 3)
        self.wait_for(launch, "node003 has joined the job; it gets ranks at the next restart", "err")
        self.lose(2)
        self.expect(launch, 1, 1, 3)
        self.end(launch)


del LabTest, Elastic

if __name__ == "__main__":
    main()
