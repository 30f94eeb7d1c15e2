"""Horovod's elastic mode over several hosts: the ranks that stay keep their processes and their state."""

import os
import re
import signal
import sys

import hosts
from hosts import LabTest, main
from launch import parent_of, wait_until

sys.path.insert(0, os.path.join(hosts.SOURCE, "tests", "interop"))
import jobs  # noqa: E402

setUpModule = hosts.set_up
tearDownModule = hosts.tear_down

TRAIN = os.path.join(hosts.SOURCE, "tests", "interop", "programs", "horovod_elastic.py")
RUNS = r"runs: (\d+) is (\d+) of (\d+) from (\d+) in (\d+)\n"
DONE = r"done: (\d+) at (\d+), work (\d+), weights (\S+)\n"


class Horovod(LabTest):
    deadline = 120.0

    OURS = ("--nnodes", "1:4", "--elastic", "horovod", "--max-restarts", 3)
    HOROVODRUN = ("--as", "horovodrun", "-np", 2, "--max-np", 8, "--slots-per-host", 2)

    def begin(self, *options, env=None):
        # as root: only root can read the Python environment that has Horovod
        return self.start(*(options or self.OURS), "--host-discovery-script", f"cat {self.path('hosts')}",
                          "--discovery-interval", "200ms", "--tag-output=off", "--grace", "5s", "--wdir",
                          "/tmp", python, TRAIN, user="root",
                          env={"UNTIL": self.go, "PAUSE": "0.05", **(env or {})})

    def begin_four(self, *options):
        """Ranks 0 to 3 have a state to keep."""
        launch = self.begin(*options)
        self.expect_world(launch, 1, 0, 1, 2, 3)
        self.wait_for(launch, "batch 5 of 4", "out")
        return launch

    def worlds(self, launch, rank):
        """(Horovod's rank, size, first batch, pid) of a rank of ddprun, by world."""
        return [tuple(map(int, run[1:])) for run in re.findall(RUNS, launch.out) if run[0] == str(rank)]

    def expect_world(self, launch, count, *ranks):
        """These ranks of ddprun run in their `count`th world (0: any), as Horovod's 0, 1, ..."""
        def right():
            last = [self.worlds(launch, r)[-1:] for r in ranks]
            return all(last) and [(w[0][0], w[0][1]) for w in last] == [
                (i, len(ranks)) for i in range(len(ranks))] and count in (0, len(self.worlds(launch, ranks[0])))
        if not wait_until(right, self.deadline):
            self.fail(f"not the world of {ranks}: {launch.out[-3000:]} {launch.err}")

    def end_of(self, launch, *ranks):
        self.say_go()
        launch.wait(self.deadline)
        self.assert_ended(launch, 0)
        done = re.findall(DONE, launch.out)
        self.assertEqual(sorted(int(d[0]) for d in done), sorted(ranks), launch.out[-2000:])
        self.assertEqual(len({d[1:] for d in done}), 1, done)
        self.assertNotIn("all ranks are started again", launch.err)

    def assert_stayed(self, launch, *ranks):
        """One process in all worlds, each of which went on at a commit of the one before."""
        for rank in ranks:
            worlds = self.worlds(launch, rank)
            self.assertEqual(len({w[3] for w in worlds}), 1, worlds)
            self.assertEqual(sorted(w[2] for w in worlds), [w[2] for w in worlds])
            self.assertTrue(all(w[2] > 0 and w[2] % 5 == 0 for w in worlds[1:]), worlds)

    def test_hosts_are_added_and_removed(self):
        self.list_hosts(1)
        launch = self.begin()
        self.expect_world(launch, 1, 0, 1)
        self.list_hosts(1, 2, 3)
        self.expect_world(launch, 2, 0, 1, 2, 3, 4, 5)
        self.wait_for(launch, "ddprun: Horovod's ring has 6 ranks now\n", "err")
        self.list_hosts(1, 3)
        self.expect_world(launch, 3, 0, 1, 4, 5)
        self.assertTrue(wait_until(lambda: not self.on_host(2)), self.on_host(2))
        self.list_hosts(1, 3, 2)
        self.expect_world(launch, 4, 0, 1, 2, 3, 4, 5)
        self.assert_stayed(launch, 0, 1, 4, 5)
        self.end_of(launch, 0, 1, 2, 3, 4, 5)
        self.assertNotIn("removed from elastic job", launch.out + launch.err)

    def test_the_host_of_rank_0_is_removed(self):
        """Its agent stays, as it has the store, without ranks."""
        self.list_hosts(1, 2)
        launch = self.begin()
        self.expect_world(launch, 1, 0, 1, 2, 3)
        self.list_hosts(2, 3)
        self.expect_world(launch, 0, 2, 3, 4, 5)  # there may be one of two ranks first
        self.assertTrue(wait_until(lambda: not any("horovod_elastic.py" in line
                                                   for line in self.on_host(1).values()
                                                   if "ddprun" not in line)), self.on_host(1))
        self.list_hosts(1, 2, 3)
        self.expect_world(launch, 0, 2, 3, 0, 1, 4, 5)
        self.assert_stayed(launch, 2, 3)
        self.end_of(launch, 0, 1, 2, 3, 4, 5)

    def list_slots(self, *slots):
        self.list(*(f"{hosts.node(i + 1)}:{n}" for i, n in enumerate(slots)))

    def test_slots_of_a_host_change(self):
        """Its ranks end, and as many as it has slots now are started: also on the host of the store."""
        self.list_slots(2, 2)
        launch = self.begin()
        self.expect_world(launch, 1, 0, 1, 2, 3)
        self.list_slots(2, 1)
        self.expect_world(launch, 3, 0, 1, 4)
        self.list_slots(2, 3)
        self.expect_world(launch, 5, 0, 1, 5, 6, 7)
        self.list_slots(1, 3)
        self.expect_world(launch, 3, 5, 6, 7, 4)  # of a host that had one rank, too
        self.assert_stayed(launch, 5, 6, 7)
        self.end_of(launch, 5, 6, 7, 4)

    def begin_held(self):
        """Ranks wait where Horovod forgets a request to them."""
        return self.begin(*self.OURS, "--log-level", "job=info", env={"HELD": self.path("held")})

    def wait_for_holds(self, launch, count):
        self.assertTrue(wait_until(lambda: launch.out.count("waits: 0\n") == count, self.deadline),
                        launch.out[-2000:] + launch.err)

    def go_on_when_told(self, launch):
        def told():
            return launch.err.count("is told that hosts have changed")
        before, worlds = told(), self.worlds(launch, 0)
        self.assertTrue(wait_until(lambda: told() > before, self.deadline), launch.err)
        self.assertEqual(self.worlds(launch, 0), worlds)
        self.write("held", "")

    def test_rank_0_is_told_before_it_listens(self):
        self.list_slots(1)
        launch = self.begin_held()
        self.wait_for_holds(launch, 1)
        self.list_slots(1, 2)
        self.go_on_when_told(launch)
        self.expect_world(launch, 2, 0, 1, 2)
        self.end_of(launch, 0, 1, 2)

    def test_rank_0_is_told_before_it_is_reset(self):
        self.write("held", "")
        self.list_slots(2, 2)
        launch = self.begin_held()
        self.expect_world(launch, 1, 0, 1, 2, 3)
        os.remove(self.path("held"))
        self.list_slots(2, 1)
        self.wait_for_holds(launch, 2)
        self.go_on_when_told(launch)
        self.expect_world(launch, 3, 0, 1, 4)
        self.assert_stayed(launch, 0, 1)
        self.end_of(launch, 0, 1, 4)

    def test_slots_of_all_hosts_change(self):
        """One after the other, as long as another one has the state; one that is alone says so."""
        self.list_slots(1)
        launch = self.begin()
        self.expect_world(launch, 1, 0)
        self.list_slots(2)
        self.wait_for(launch, "ddprun: node001 has 2 slots now, and keeps its ranks, 1, as long as no other "
                              "host has their state\n", "err")
        self.list_slots(1, 1)
        self.expect_world(launch, 2, 0, 1)
        self.list_slots(2, 2)
        self.expect_world(launch, 0, 2, 3, 4, 5)
        self.assert_stayed(launch, 2, 3)
        self.end_of(launch, 2, 3, 4, 5)
        self.assertEqual(launch.err.count("keeps its ranks"), 1, launch.err)

    def test_limits_in_ranks(self):
        """As Horovod's documentation writes it: the script alone knows the slots."""
        self.list_slots(2)
        launch = self.begin("--as", "horovodrun", "-np", 3, "--min-np", 2, "--max-np", 5)
        self.wait_for(launch, "lists 2 slots, but the job starts with 3 ranks", "err")
        self.list_slots(2, 2)
        self.expect_world(launch, 1, 0, 1, 2, 3)
        self.list_slots(2, 2, 2)
        self.expect_world(launch, 2, 0, 1, 2, 3, 4)
        self.list_slots(2)
        self.expect_world(launch, 3, 0, 1)
        self.assert_stayed(launch, 0, 1)
        self.end_of(launch, 0, 1)

    def test_ranks_wait_with_their_state_for_a_host(self):
        self.list_slots(2, 2)
        launch = self.begin_four("--as", "horovodrun", "-np", 4)
        self.lose(2)
        self.wait_for(launch, "; the ranks wait up to 600 s for another one (--node-wait)\n", "err")
        self.list_slots(2, 2, 2)
        self.expect_world(launch, 2, 0, 1, 2, 3)
        self.assert_stayed(launch, 0, 1)
        self.end_of(launch, 0, 1, 2, 3)

    def test_a_host_is_lost_and_comes_back(self):
        self.list_hosts(1, 2)
        launch = self.begin_four()
        self.lose(2)
        self.wait_for(launch, "; the ranks of other hosts keep running\n", "err")
        self.expect_world(launch, 2, 0, 1)
        self.heal(2)
        self.expect_world(launch, 3, 0, 1, 2, 3)
        self.assert_stayed(launch, 0, 1)
        self.end_of(launch, 0, 1, 2, 3)

    def test_the_first_host_is_lost_and_comes_back(self):
        """The key-value server is the launcher's, on another host; the second host's rank 2 has the state."""
        self.list_hosts(2, 3)
        launch = self.begin_four()
        self.lose(2)
        self.wait_for(launch, "; the ranks of other hosts keep running\n", "err")
        self.expect_world(launch, 2, 2, 3)
        self.heal(2)
        self.expect_world(launch, 3, 2, 3, 0, 1)
        self.wait_for(launch, "Horovod's ring has 4 ranks", "err")  # before that a loss would restart all
        self.lose(2)
        self.expect_world(launch, 4, 2, 3)
        self.list_hosts(3, 4)
        self.expect_world(launch, 5, 2, 3, 0, 1)
        self.assert_stayed(launch, 2, 3)
        self.end_of(launch, 0, 1, 2, 3)

    def test_the_agent_of_the_first_host_is_killed(self):
        """It is the launcher's own: its host stays listed, and an agent is started there by ssh."""
        self.list_hosts(1, 2)
        launch = self.begin_four()
        ours = [pid for pid, line in self.on_host(1).items() if line.startswith(f"{hosts.LAB_HOSTS.ddprun} ")]
        os.kill(next(pid for pid in ours if parent_of(pid) in ours), signal.SIGKILL)
        self.wait_for(launch, "node001 is lost: its agent has ended; the ranks of other hosts", "err")
        self.expect_world(launch, 0, 2, 3, 0, 1)  # there may be one without it first
        self.assert_stayed(launch, 2, 3)
        self.end_of(launch, 0, 1, 2, 3)

    def test_a_rank_fails_while_a_host_joins(self):
        """One new world has both."""
        self.list_hosts(1)
        launch = self.begin(*self.HOROVODRUN, env={"KILL": "1 7", "FLAGS": self.folder.name})
        self.list_hosts(1, 2)
        self.expect_world(launch, 1 + len(self.worlds(launch, 0)), 0, 1, 2, 3)
        self.assert_stayed(launch, 0)
        self.end_of(launch, 0, 1, 2, 3)


if __name__ == "__main__":
    python = jobs.find_horovod()
    main()
