"""Hosts that cannot be reached, that die, fall silent, and launchers and agents killed.

Whatever happens: one line says which host and why, the launch ends, no process is left."""

import os
import shutil
import signal
import time

import hosts
from hosts import LabTest, main, node
from launch import marked, parent_of, wait_until, who_is_left

setUpModule = hosts.set_up
tearDownModule = hosts.tear_down


class FaultTest(LabTest):
    def refused(self, bad, *words, options=(), hostlist=None):
        return self.was_refused(self.begin(bad, options, hostlist), *words)

    def begin(self, bad, options=(), hostlist=None):
        return self.start(
            "-H", hostlist or self.hosts(2, bad), "--start-timeout", "8s", *options,
            "touch", self.path("started"))

    def was_refused(self, launch, *words):
        launch.wait()
        self.assert_ended(launch, 125)
        self.assertFalse(os.path.exists(self.path("started")), "something was started")
        headline = launch.err.splitlines()[0]
        for word in words:
            self.assertIn(word, headline)
        self.assertLess(launch.seconds, 45)  # there is a minute by default
        return launch

    def running(self, *numbers, options=()):
        launch = self.start_on(
            numbers, "trap '' TERM INT; (setsid sleep 300 &); echo up; while :; do sleep 60; done",
            "--grace", "0.5s", *options,
        )
        if not wait_until(lambda: launch.out.count("up\n") == len(numbers)):
            self.fail(f"not up: {launch.out} {launch.err}")
        return launch

    def lost(self, launch, number):
        launch.wait()
        self.assertNotEqual(launch.rc, 0)
        self.assertIn(node(number), launch.err.splitlines()[0])


class Silence(FaultTest):
    def test_hosts_that_fall_silent(self):
        """Side by side, as in each case time has to pass: one is off and the sshd of another
        hangs before the start, one loses power and the cable of another is pulled after it."""
        for number in (3, 4, 5, 6):
            self.addCleanup(self.heal, number)
        soon = ("--node-timeout", "5s")
        without_power, without_cable = (self.running(1, 2, n, options=soon) for n in (4, 5))
        self.fault(3, "link-down")
        self.fault(6, "sshd-hang")
        unreached = [(self.begin(number), number) for number in (3, 6)]
        self.fault(4, "crash")
        self.fault(5, "drop")
        for launch, number in unreached:
            self.was_refused(launch, node(number))
        self.lost(without_power, 4)
        self.lost(without_cable, 5)
        # cut off, the host must clean up by itself
        self.assertTrue(wait_until(lambda: not self.on_host(5), 30), self.on_host(5))

    def test_a_host_behind_an_agent_that_is_stopped(self):
        """The agent's host answers. All ranks end, those of the agent by its guard, which lets it go on, too."""
        launch = self.running(1, 2, 3, options=("--tree-width", 1, "--node-timeout", "3s"))
        (agent,) = [p for p, line in self.on_host(2).items()
                    if os.path.basename(line.split()[0]) == "ddprun-agent"]
        os.kill(agent, signal.SIGSTOP)
        self.lost(launch, 2)  # before the first ping the limit of host 3 is the default, a minute
        for number in 2, 3:
            self.assertTrue(wait_until(lambda n=number: not self.on_host(n), 120), self.on_host(number))

    def test_a_cut_that_heals_in_time(self):
        """Nothing arrives for a while, and TCP repeats what was lost: the job goes on."""
        self.addCleanup(self.heal, 4)
        launch = self.start_on(
            (1, 4), "for i in $(seq 300); do echo tick; sleep 0.05; done; echo done")
        self.wait_for(launch, "tick")
        self.fault(4, "drop")
        time.sleep(8)
        self.fault(4, "undrop")
        launch.wait()
        self.assert_ended(launch, 0)
        self.assertEqual(launch.out.count("tick"), 600)

    def test_a_launcher_that_slept(self):
        """As on a laptop: its network is away, too, and the agents end before it wakes up."""
        self.addCleanup(self.heal, 1)
        launch = self.start_on((2, 3), "echo up; sleep 100", "--node-timeout", "4s")
        self.assertTrue(wait_until(lambda: launch.out.count("up\n") == 2), launch.err)
        self.fault(1, "freeze")
        self.fault(1, "link-down")
        for number in (2, 3):
            self.assertTrue(wait_until(lambda n=number: not self.on_host(n)), self.on_host(number))
        self.fault(1, "link-up")
        self.fault(1, "thaw")
        launch.wait()
        self.assert_ended(launch, 125)
        lines = launch.err.splitlines()
        self.assertRegex(lines[0], r"node00[23] is lost: ")
        self.assertRegex(lines[-1], r"note: this ddprun did not run for \d+ s, longer than --node-timeout")

    def held(self, name, *numbers):
        """A launch whose agents call back when release(name) is called."""
        agent = self.write(
            f"agent-{name}", f"#!/bin/sh\necho >>{self.path('up-' + name)}\n"
            f"until [ -e {self.path('go-' + name)} ]; do sleep 0.05; done\n"
            f"exec {hosts.LAB_HOSTS.bin}/ddprun-agent \"$@\"\n", 0o755)
        launch = self.start_on(numbers, "echo done", "--agent", agent)
        up = self.path(f"up-{name}")
        self.assertTrue(wait_until(lambda: self.lines_of(up) == len(numbers) - 1), launch.err)
        return launch

    @staticmethod
    def lines_of(path):
        try:
            with open(path, encoding="ascii") as f:
                return len(f.readlines())
        except FileNotFoundError:
            return 0

    def release(self, name):
        self.write(f"go-{name}", "")

    def test_a_cut_while_an_agent_calls_back(self):
        """ssh has started it; nothing answers for longer than it tries an address, and ssh's own
        connection is cut, too."""
        self.addCleanup(self.heal, 4)
        launch = self.held("cut", 1, 4)
        self.fault(4, "drop")
        self.release("cut")
        time.sleep(10)
        self.fault(4, "undrop")
        launch.wait()
        self.assert_ended(launch, 0)
        self.assertEqual(launch.out.count("done"), 2)

    def launcher_of(self, name):
        """Of several launches, the one of held(name); its agent has the same command line."""
        ours = [pid for pid, line in marked(*self.marks).items()
                if line.startswith(hosts.LAB_HOSTS.ddprun + " ") and f"/agent-{name} " in line]
        return next(pid for pid in ours if parent_of(pid) not in ours)

    def has_agent(self, number):
        return any("ddprun-agent" in line.split()[0] for line in self.on_host(number).values())

    def test_a_launcher_that_is_stopped_while_agents_call_back(self):
        """For longer than an agent tries a network that is cut. Its kernel answers the agents on
        hosts 2 and 3; the one on 4 cannot reach it, the one on 5 no more after a while, and what
        waits on 6 ends with the launcher."""
        for number in (4, 5):
            self.addCleanup(self.heal, number)
        launches = {name: self.held(name, 1, *numbers) for name, numbers in (
            ("stopped", (2, 3)), ("cut", (4,)), ("cut-later", (5,)), ("killed", (6,)))}
        launchers = {name: self.launcher_of(name) for name in launches}
        for pid in launchers.values():
            os.kill(pid, signal.SIGSTOP)
        self.fault(4, "drop")
        for name in launches:
            self.release(name)
        for number in (2, 3, 4, 5, 6):
            self.assertTrue(wait_until(lambda n=number: self.has_agent(n)), number)
        time.sleep(3)
        self.fault(5, "drop")
        time.sleep(32)
        for number in (2, 3, 6):
            self.assertTrue(self.has_agent(number), number)
        for number in (4, 5):
            self.assertTrue(wait_until(lambda n=number: not self.on_host(n)), self.on_host(number))
            self.fault(number, "undrop")
        os.kill(launchers["killed"], signal.SIGKILL)
        self.assertTrue(wait_until(lambda: not self.on_host(6)), self.on_host(6))
        for pid in marked(launches["stopped"].mark):
            try:
                os.kill(pid, signal.SIGCONT)
            except ProcessLookupError:
                pass
        for launch in launches.values():
            launch.wait()
        self.assert_ended(launches["stopped"], 0)
        self.assertEqual(launches["stopped"].out.count("done"), 3)
        for name in ("cut", "cut-later"):
            self.assert_ended(launches[name], 125)

    def test_a_launcher_that_is_stopped_while_ranks_write(self):
        """Longer than the node timeout, and its window is full: its kernel still answers."""
        launch = self.start_on(
            (1, 2), "echo up; sleep 1; head -c 8000000 /dev/zero | tr '\\0' x | fold; echo",
            "--node-timeout", "4s")
        self.wait_for(launch, "up")
        launch.signal(signal.SIGSTOP)
        time.sleep(12)
        for pid in marked(launch.mark):  # what carries it into the host stops and goes on with it
            try:
                os.kill(pid, signal.SIGCONT)
            except ProcessLookupError:
                pass  # what writes ends soon after the launcher goes on
        launch.wait()
        self.assert_ended(launch, 0)
        self.assertTrue(launch.out.count("x") == 16_000_000, launch.out.count("x"))


class Disk(FaultTest):
    """A file server that does not answer, under what the launcher writes."""

    def stalled(self, *options, command='exec "$0" "$@"', files=("rank.0.out", "rank.1.out")):
        """Ranks that write while it stands still, for longer than the node timeout."""
        self.addCleanup(self.heal, 1)
        self.fault(1, "slow", self.folder.name, "0")
        self.addCleanup(self.fault, 1, "mend", self.folder.name)
        launch = self.start_on(
            (1, 2), "for i in $(seq 100); do echo line $i; sleep 0.05; done", "--node-timeout", "4s",
            "--timeout", "90s", *options, wrapper=("sh", "-c", command))
        for name in files:
            self.assertTrue(wait_until(lambda name=name: self.has_line(name)), launch.err)
        self.fault(1, "stall", self.folder.name)
        time.sleep(10)
        self.fault(1, "unstall", self.folder.name)
        launch.wait(100)
        self.assert_ended(launch, 0)
        lines = "".join(f"line {i}\n" for i in range(1, 101))
        for name in files:
            text = hosts.LAB_HOSTS("exec", "node001", "cat", self.path("out", name))
            if name == "all":
                self.assertEqual(text.count("line"), 200)
            else:
                self.assertEqual(text, lines)

    def has_line(self, name):
        """From outside of the hosts, past the file server."""
        path = self.path("out", name)
        return os.path.exists(path) and os.path.getsize(path) > 0

    def test_under_files_of_ranks(self):
        self.stalled("--output-filename", self.path("out"))

    def test_under_our_stdout(self):
        self.stalled(command=f'mkdir {self.path("out")}; exec "$0" "$@" >{self.path("out", "all")}',
                     files=("all",))

    def test_a_program_that_is_slow_to_start(self):
        """Each rank's takes a while to load: the agent answers between two of them."""
        self.addCleanup(self.heal, 2)
        shutil.copy("/bin/echo", self.folder.name)
        self.fault(2, "slow", self.folder.name, "40")
        self.addCleanup(self.fault, 2, "mend", self.folder.name)
        launch = self.run_to_end(
            "-H", "node001:1,node002:24", "--node-timeout", "4s", self.path("echo"), "up")
        self.assert_ended(launch, 0)
        self.assertEqual(launch.out.count("up"), 25)

    def test_a_signal_ends_what_it_holds_up(self):
        self.addCleanup(self.heal, 1)
        self.fault(1, "slow", self.folder.name, "0")
        self.addCleanup(self.fault, 1, "mend", self.folder.name)
        launch = self.start_on((1, 2), "echo up; exec yes", "--output-filename", self.path("out"))
        self.wait_for(launch, "up")
        self.fault(1, "stall", self.folder.name)
        time.sleep(2)
        launch.signal(signal.SIGTERM)
        self.wait_for(launch, "SIGTERM", "err")
        self.assertTrue(wait_until(lambda: not self.on_host(2), 20), self.on_host(2))
        self.fault(1, "unstall", self.folder.name)  # here the kernel keeps a writer to its end
        launch.wait()
        self.assert_ended(launch, 143)


class Start(FaultTest):
    """A host that does not come up: the rest of the job does not start."""

    def test_a_name_nobody_knows(self):
        self.refused(0, "no-such-host", "resolve", hostlist="node002,no-such-host")

    def test_a_host_without_sshd(self):
        self.addCleanup(self.heal, 4)
        self.fault(4, "sshd-stop")
        self.refused(4, "node004", "refused")

    def ssh_with(self, *lines):
        config = self.write("ssh_config", "Host *\n    BatchMode yes\n    " + "\n    ".join(lines) + "\n")
        return ("--ssh", f"ssh -F {config}")

    def test_a_key_that_is_not_taken(self):
        options = self.ssh_with(
            "IdentityFile /dev/null", "IdentitiesOnly yes", "UserKnownHostsFile /dev/null",
            "GlobalKnownHostsFile /etc/ssh/ssh_known_hosts",
        )
        self.refused(3, "denied", options=options)

    def test_a_host_key_nobody_knows(self):
        options = self.ssh_with(
            "IdentityFile /etc/ssh/keys/%u/id", "UserKnownHostsFile /dev/null",
            "GlobalKnownHostsFile /dev/null", "StrictHostKeyChecking yes",
        )
        self.refused(3, "host key", options=options)

    def test_a_host_without_an_interface(self):
        self.was_refused(self.begin(3, ("--interface", "none0")),
                         "node002: rank 0's host: network interface 'none0' is not there")

    def test_no_agent_there(self):
        self.refused(3, "/no/such/agent", options=("--agent", "/no/such/agent"))

    def test_no_ssh_here(self):
        self.refused(3, "no-such-ssh", options=("--ssh", "/no-such-ssh"))

    def test_an_agent_that_says_nonsense(self):
        agent = self.write("agent", "#!/bin/sh\necho Welcome to this cluster\nsleep 60\n", 0o755)
        self.refused(3, options=("--agent", agent, "--start-timeout", "3s"))


class MidRun(FaultTest):
    def test_a_host_dies(self):
        self.addCleanup(self.heal, 3)
        launch = self.running(1, 2, 3)
        self.fault(3, "kill")
        self.lost(launch, 3)

    def test_the_launcher_is_killed(self):
        launch = self.running(1, 2, 3, 4)
        launch.signal(signal.SIGKILL)
        launch.wait()
        self.assertEqual(who_is_left(*self.marks), {})

    def killed(self, number, program):
        """SIGKILL for all that run `program` there."""
        here = self.on_host(number)
        found = [p for p, line in here.items() if os.path.basename(line.split()[0]) == program]
        self.assertTrue(found, here)
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass  # it went with the one before

    def test_an_agent_is_killed(self):
        launch = self.running(1, 2, 3)
        self.killed(2, "ddprun-agent")
        self.lost(launch, 2)

    def test_an_agents_guard_is_killed(self):
        launch = self.running(1, 2, 3)
        self.killed(3, "ddprun-guard")
        self.lost(launch, 3)

    def test_an_agent_in_the_tree_is_killed(self):
        launch = self.running(1, 2, 3, 4, 5, 6, 7, 8, options=("--tree-width", 2))
        self.killed(2, "ddprun-agent")
        launch.wait()
        self.assertNotEqual(launch.rc, 0)

    def test_an_ssh_is_killed(self):
        launch = self.running(1, 2, 3)
        self.killed(1, "ssh")
        launch.wait()
        self.assertNotEqual(launch.rc, 0)


if __name__ == "__main__":
    main()
