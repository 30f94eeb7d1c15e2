"""Networks that are slow, cut and mended, over hosts whose clocks say different things."""

import os
import time

import hosts
from hosts import LabTest, main, node
from launch import wait_until, who_is_left

setUpModule = hosts.set_up
tearDownModule = hosts.tear_down

# how the first rank fails: by its exit status, or by PMI's abort
EXIT = "exit 7"
ABORT = ("printf 'cmd=init pmi_version=1 pmi_subversion=1\\ncmd=abort exitcode=7\\n' >&$PMI_FD; "
         "exec sleep 60")


class FirstCause(LabTest):
    """Uptimes differ by days. The first failure is the cause, although its report arrives last."""

    def first_is(self, first, second, end):
        self.addCleanup(self.heal, first)
        self.addCleanup(self.heal, second)
        go = self.path("go")
        script = self.write(
            "rank", "#!/bin/bash\n"
            f"until [ -s {go} ]; do echo up; sleep 0.1; done\n"
            f"[ $(hostname) = {node(first)} ] && at=$(cat {go}) || at=$(($(cat {go}) + 500))\n"
            "while [ $(($(date +%s%N) / 1000000)) -lt $at ]; do sleep 0.02; done\n"
            f"[ $(hostname) = {node(first)} ] && {{ {end}; }}\nexit 8\n", 0o755)
        launch = self.start("-H", self.hosts(first, second), script)
        self.assertTrue(wait_until(
            lambda: all(f" {node(n)}] up" in launch.out
                        for n in (first, second))), launch.err)
        self.fault(first, "delay", "550")
        # the clock offset is known from pings before; messages now take 550 ms. The failures are half
        # a second apart, for which agents on a busy machine may be late; the report waits as long
        self.write("go.new", str(int(time.time() * 1000) + 1500))
        os.rename(self.path("go.new"), go)
        launch.wait()
        self.assert_ended(launch, 7)
        self.assertIn(node(first), launch.err.splitlines()[0])

    def test_clocks_differ_by_days(self):
        uptimes = [float(hosts.LAB_HOSTS("exec", node(n), "cat", "/proc/uptime").split()[0])
                   for n in (2, 1, 3)]
        self.assertGreater(uptimes[1], uptimes[0] + 20 * 86400)
        self.assertGreater(uptimes[2], uptimes[1] + 20 * 86400)

    def test_a_host_behind_the_launcher_is_first(self):
        self.first_is(2, 3, EXIT)

    def test_a_host_ahead_of_the_launcher_is_first(self):
        self.first_is(3, 2, EXIT)

    def test_an_abort_on_a_host_behind(self):
        self.first_is(2, 3, ABORT)

    def test_an_abort_on_a_host_ahead(self):
        self.first_is(3, 2, ABORT)


class Cut(LabTest):
    """Hosts that cannot reach each other for a while."""

    def counting(self, numbers, *options, **how):
        """Each rank writes a line every 0.1 s and ignores SIGTERM."""
        return self.start_on(
            numbers, "trap '' TERM; (setsid sleep 300 &); for i in $(seq 3000); do echo line $i; "
            "sleep 0.1; done", "--grace",
            "0.5s", "--node-timeout", "5s", *options, **how)

    def started(self, launch, ranks):
        self.assertTrue(wait_until(lambda: launch.out.count("] line 10\n") == ranks), launch.err)

    def test_partitions_that_heal_too_late(self):
        """In parallel: cut in both directions and in one. Each node is declared lost and ends its job;
        its processes end at the latest when the network is back."""
        cut = {2: (), 3: ("in",), 4: ("out",)}
        launches = {}
        for n in cut:
            self.addCleanup(self.heal, n)
            launches[n] = self.counting((1, n))
        for n, how in cut.items():
            self.started(launches[n], 2)
        for n, how in cut.items():
            self.fault(n, "drop", *how)
        for n, launch in launches.items():
            launch.wait()
            self.assertEqual(launch.rc, 125, launch.err)
            self.assertRegex(launch.err.splitlines()[0], f"{node(n)} (is )?lost")
            self.assertEqual(len(launch.err.splitlines()), 1, launch.err)
        self.assertTrue(wait_until(lambda: not self.on_host(4)))  # it still receives what we send
        for n in (2, 3):
            self.fault(n, "undrop")
        self.assertEqual(who_is_left(*self.marks), {})

    def test_half_open_connections(self):
        """A host loses power and boots again before its silence is noticed, so its peers hold
        half-open connections. A rank's host and a launcher's host, in parallel."""
        self.addCleanup(self.heal, 3)
        self.addCleanup(self.heal, 4)
        rank, launcher = self.counting((1, 3)), self.counting((2, 5), host=4)
        self.started(rank, 2)
        self.started(launcher, 2)
        for n in (3, 4):
            self.fault(n, "crash")
            self.fault(n, "boot")
        rank.wait()
        self.assertEqual(rank.rc, 125, rank.err)
        self.assertIn(node(3), rank.err.splitlines()[0])
        launcher.wait()
        began = time.monotonic()
        self.assertTrue(wait_until(lambda: not self.on_host(2) and not self.on_host(5), 40))
        self.assertLess(time.monotonic() - began, 20)


if __name__ == "__main__":
    main()
