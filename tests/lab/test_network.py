"""Networks that are slow, cut and mended, over hosts whose clocks say different things."""

import os
import time

import hosts
from hosts import LabTest, main, node
from launch import wait_until

setUpModule = hosts.set_up
tearDownModule = hosts.tear_down

# ends a rank badly: by itself, or by PMI's own word
EXIT = "exit 7"
ABORT = ("printf 'cmd=init pmi_version=1 pmi_subversion=1\\ncmd=abort exitcode=7\\n' >&$PMI_FD; "
         "exec sleep 60")


class FirstCause(LabTest):
    """Uptimes differ by days; what ends first is the cause, although it is heard of last."""

    def first_is(self, first, second, end):
        self.addCleanup(self.heal, first)
        self.addCleanup(self.heal, second)
        go = self.path("go")
        script = self.write(
            "rank", "#!/bin/bash\n"
            f"until [ -s {go} ]; do echo up; sleep 0.1; done\n"
            f"[ $(hostname) = {node(first)} ] && at=$(cat {go}) || at=$(($(cat {go}) + 100))\n"
            "while [ $(($(date +%s%N) / 1000000)) -lt $at ]; do :; done\n"
            f"[ $(hostname) = {node(first)} ] && {{ {end}; }}\nexit 8\n", 0o755)
        launch = self.start("-H", self.hosts(first, second), script)
        self.assertTrue(wait_until(
            lambda: all(f" {node(n)}] up" in launch.out
                        for n in (first, second))), launch.err)
        self.fault(first, "delay", "150")
        # a ping before the delay has told the clocks apart; the agent's word now takes 150 ms
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


if __name__ == "__main__":
    main()
