#!/usr/bin/env python3
"""Hosts by ssh, with an ssh that runs everything here: which host starts which, errors,
and input. Real sshd and real networks: tests/lab."""

import os
import re
import resource
import signal
import subprocess
import time

from fake_ssh import FAKE_SSH, SshTest
from launch import main, needs_gpus, wait_until, wait_until_settled
from terminal import OnTerminal

# Passes on what ddprun writes to the agent, but no address by which it is reached.
NO_CALL = r"""#!/usr/bin/env python3
import os, select, subprocess, sys, threading
agent = subprocess.Popen(["sh", "-c", sys.argv[1]], stdin=subprocess.PIPE, bufsize=0)
head = b""
while not head.endswith(b"end\n"):
    head += os.read(0, 1)
agent.stdin.write(b"\n".join(b"call 127.0.0.1 1" if line.startswith(b"call ") else line
                             for line in head.split(b"\n")))
open(os.environ["FAKE_LOG"] + ".passed", "w").close()

def pass_on():
    while select.select([0], [], []):
        try:
            data = os.read(0, 65536)
        except BlockingIOError:
            continue
        if not data:
            break
        agent.stdin.write(data)
    agent.stdin.close()

threading.Thread(target=pass_on, daemon=True).start()
os._exit(agent.wait())
"""


class Ssh(SshTest):
    # --- starting

    def test_flat(self):
        run = self.hosts("n1:2,n2:1,n3:2", "--tag-output=off")
        self.assert_ended(run, 0)
        self.assertEqual(run.err, "")
        lines = sorted(line.split("]")[-1].strip() for line in run.out.splitlines())
        self.assertEqual(lines, ["0 5 0", "1 5 0", "2 5 1", "3 5 2", "4 5 2"])
        self.assertEqual(
            sorted(self.started()), [("launcher", "n1"), ("launcher", "n2"), ("launcher", "n3")]
        )

    @needs_gpus
    def test_one_host_under_two_names(self):
        """Ranks with the same LOCAL_RANK would use the same GPU."""
        ssh = self.write("own-gpus", f'#!/bin/sh\ncase "$*" in *" n1 "*) export FAKE_GPUS=1; esac\n'
                                     f'exec {self.ssh} "$@"\n', 0o755)
        for hosts, names in (("n1:1,n2:1,n3:1", "'n2' and 'n3'"), ("n2:1,n3:1,n4:1", "'n2' and 'n3' (and 1 more)"),
                             ("n1:1,n2:2", None)):
            run = self.run_to_end("--ssh", ssh, "-H", hosts, "true", command=self.with_gpus(),
                                  env={"FAKE_LOG": self.log, "FAKE_GPUS": "0,1"})
            self.assert_ended(run, 0)
            self.assertEqual(run.err, names and (
                f"ddprun: warning: {names} are one host: both have a rank with LOCAL_RANK 0, which use the same GPU; "
                "name it once, with all its slots\n") or "")

    def test_tree(self):
        names = [f"n{i}" for i in range(1, 8)]
        run = self.hosts(",".join(f"{n}:1" for n in names), "--tree-width", "2")
        self.assert_ended(run, 0)
        self.assertEqual(len(run.out.splitlines()), 7)
        self.assertEqual(
            sorted(self.started()),
            sorted(
                [("launcher", "n1"), ("launcher", "n2")]
                + [("n1", "n3"), ("n1", "n4"), ("n2", "n5"), ("n2", "n6"), ("n3", "n7")]
            ),
        )

    def test_files_have_the_name_of_the_only_host(self):
        run = self.hosts("n1:2", "--output-filename", self.path("files", "%h.%r"))
        self.assert_ended(run, 0)
        self.assertEqual(sorted(os.listdir(self.path("files"))), ["n1.0", "n1.1"])
        self.assertIn("[0] 0 2 0\n", run.out)

    def test_a_tree_of_256_hosts(self):
        run = self.hosts(",".join(f"n{i}:1" for i in range(256)))
        self.assert_ended(run, 0)
        ranks = sorted(int(re.match(r"\[(\d+) ", line)[1]) for line in run.out.splitlines())
        self.assertEqual(ranks, list(range(256)))
        self.assertEqual(run.err, "")
        self.assertGreater(len({by for by, _ in self.started()}), 4)
        failed = self.hosts(",".join(f"n{i}:1" for i in range(256)),
                            script="[ $RANK = 200 ] && exit 7; exec sleep 50")
        self.assert_ended(failed, 7)
        self.assertRegex(failed.err, "^ddprun: rank 200 on n200 exited with status 7")

    def test_what_ranks_left_on_other_hosts_is_reported(self):
        for hosts, script, note in (("n1:1,n2:1", "[ $RANK = 0 ] || setsid sleep 60 &", r" on n2: process .*\n"),
                                    ("n1:1,n2:1,n3:1", "setsid sleep 60 &", r" on n[123]: process .*\n"
                                     r"ddprun: note: on 2 other hosts, too\n")):
            run = self.hosts(hosts, script=script)
            self.assert_ended(run, 0)
            self.assertRegex(run.err, f"^ddprun: note: all ranks have exited; ending what they left{note}$")

    def test_tree_where_only_the_launcher_may_use_ssh(self):
        run = self.hosts("n1:1,n2:1,n3:1", "--tree-width", "1", env={"FAKE_ONEWAY": "1"})
        self.assert_ended(run, 0)
        self.assertEqual(len(run.out.splitlines()), 3)
        self.assertEqual(
            self.started(),
            [("launcher", "n1"), ("n1", "n2"), ("launcher", "n2"), ("n2", "n3"), ("launcher", "n3")],
        )

    def test_window(self):
        run = self.hosts(",".join(f"n{i}:1" for i in range(6)), "--ssh-window", "1")
        self.assert_ended(run, 0)
        self.assertEqual([host for _, host in self.started()], [f"n{i}" for i in range(6)])

    def test_hosts_beyond_np_are_left_alone(self):
        run = self.hosts("n1:2,unknown:2", "-np", "2")
        self.assert_ended(run, 0)
        self.assertEqual(self.started(), [("launcher", "n1")])

    def test_sshd_that_was_busy_is_tried_again(self):
        run = self.hosts("flaky:1,n2:1")
        self.assert_ended(run, 0)
        self.assertEqual(sorted(h for _, h in self.started()), ["flaky", "flaky", "n2"])

    def test_one_that_is_reached_by_ssh_only_waits_for_a_stopped_launcher(self):
        """For longer than it takes to find that no address answers."""
        self.write("log.nocall", NO_CALL, 0o755)
        launch = self.start_hosts("nocall1:1", "echo $RANK")
        self.assertTrue(wait_until(lambda: os.path.exists(self.log + ".passed")))
        launch.signal(signal.SIGSTOP)
        time.sleep(7)
        launch.signal(signal.SIGCONT)
        launch.wait()
        self.assert_ended(launch, 0)
        self.assertEqual(launch.out, "0\n")

    def test_a_stopped_launcher_is_waited_for_along_a_chain(self):
        """Each agent says that it runs, also the one whose parent only says that."""
        launch = self.start_hosts("n1:1,n2:1,n3:1,n4:1", "echo up; sleep 9; echo $RANK",
                                  "--tree-width", 1, "--node-timeout", "2s")
        self.assertTrue(wait_until(lambda: launch.out.count("up") == 4))
        time.sleep(1)  # a ping has the limit
        launch.signal(signal.SIGSTOP)
        time.sleep(6)
        launch.signal(signal.SIGCONT)
        launch.wait()
        self.assert_ended(launch, 0)
        self.assertEqual(sorted(re.findall(r" (\d)$", launch.out, re.M)), ["0", "1", "2", "3"])

    def test_this_machine_beside_others(self):
        run = self.hosts("localhost:1,n2:1")
        self.assert_ended(run, 0)
        self.assertEqual(self.started(), [("launcher", "n2")])

    # --- hosts that do not start

    def test_each_host_that_fails_has_its_line(self):
        run = self.hosts("n1:1,unknown1:1,refused1:1,noagent1:1", script="echo ran")
        self.assert_ended(run, 125)
        self.assertEqual(run.out, "")
        lines = run.err.splitlines()
        self.assertEqual(len(lines), 3, run.err)
        for line, words in zip(
            lines, ("unknown1: the name", "refused1: connection refused", "noagent1: the agent")
        ):
            self.assertIn(f"cannot start on {words}", line)

    def test_an_agent_that_connects_when_all_is_over_is_no_stranger(self):
        # n1 joins, and n4 is not needed
        run = self.hosts("n1:1,unknown1:1,late:1,n4:1", "-np", 3)
        self.assert_ended(run, 125)
        self.assertEqual([line.split(": ")[1] for line in run.err.splitlines()],
                         ["cannot start on unknown1"])
        self.assertIn("; 1 more host has not answered yet\n", run.err)

    def test_a_failed_host_that_is_not_needed_leaves_the_others_their_time(self):
        run = self.hosts("n1:1,unknown1:1,late:1", "--nnodes", "2:3", script="echo $RANK $WORLD_SIZE")
        self.assert_ended(run, 0)
        self.assertEqual(sorted(line.split("] ")[1] for line in run.out.splitlines()), ["0 2", "1 2"])
        self.assertRegex(run.err, "^ddprun: warning: going on without unknown1: ")

    def test_an_ssh_that_cannot_be_run_fails_for_each_of_many_hosts(self):
        limits = resource.getrlimit(resource.RLIMIT_STACK)
        self.addCleanup(resource.setrlimit, resource.RLIMIT_STACK, limits)
        resource.setrlimit(resource.RLIMIT_STACK, (256 << 10, limits[1]))
        ssh = self.write("no-program", "", 0o755)
        run = self.run_to_end("--ssh", ssh, "-H", "n[1-2000]", "--tree-width", "0", "true")
        self.assert_ended(run, 125)
        self.assertIn("-2000]: cannot run", run.err)

    def test_a_dry_run_shows_which_host_starts_which(self):
        run = self.run_to_end("--dry-run", "-H", "n[1-7]", "--tree-width", "2", "true")
        self.assertEqual(re.findall(r"(\S+): ssh .* -- (n\d)", run.out), [
            ("here", "n1"), ("here", "n2"), ("n1", "n3"), ("n1", "n4"), ("n2", "n5"),
            ("n2", "n6"), ("n3", "n7")])

    def test_hosts_that_fail_alike_share_a_line(self):
        run = self.hosts("refused1:1,unknown[1-3]:1,refused[2-4]:1,unknown7:1")
        self.assert_ended(run, 125)
        self.assertEqual(
            [line.split(": ")[1] for line in run.err.splitlines()],
            ["cannot start on refused[1-4]", "cannot start on unknown[1-3,7]"],
        )

    def test_hosts_that_fail_alike_but_for_their_names_share_a_line(self):
        run = self.hosts("nokey1:1,refused1:1,nokey[2-30]:1")
        self.assert_ended(run, 125)
        lines = run.err.splitlines()
        self.assertEqual([line.split(": ")[1] for line in lines],
                         ["cannot start on nokey[1-30]", "cannot start on refused1"])
        self.assertIn("'ssh nokey1 true'", lines[0])

    def test_a_host_that_says_nothing_is_named_when_time_is_up(self):
        run = self.hosts("n1:1,silent:1,unneeded:1", "-np", 2, "--start-timeout", "5", script="echo ran")
        self.assert_ended(run, 125)
        self.assertEqual(run.out, "")
        self.assertIn("cannot start on silent: ssh has not connected in time: does 'ssh silent true' end", run.err)
        self.assertEqual(len(run.err.splitlines()), 1, run.err)

    def test_a_launcher_that_stands_still_while_it_starts(self):
        run = self.start_hosts("n1:1,slow:1", "echo ran", "--start-timeout", "4s")
        self.assertTrue(wait_until(lambda: os.path.exists(self.log)))
        self.pause(run.process.pid, 6)
        time.sleep(1)
        self.write("log.go", "")
        run.wait()
        self.assert_ended(run, 0)
        self.assertEqual(run.out.count("ran"), 2)

    def test_an_agent_that_ends_while_it_starts_is_noticed(self):
        """With so few descriptors an agent ends sooner or later: with some, after it has proved
        the key and before its first message."""
        self.ssh = self.write("ssh", FAKE_SSH.replace(
            "unset SSH", '[ $host = n1 ] || exec python3 -c "$TAKE" "$command"\nunset SSH'), 0o755)
        # of 64 descriptors, the least that an agent accepts, all but FEW are in use
        take = ("import os, resource, sys\n"
                "resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))\n"
                "for fd in range(3, 67 - int(os.environ['FEW'])):\n"
                "    os.dup2(2, fd)\n"
                "os.execvp('sh', ['sh', '-c', sys.argv[1]])\n")
        broke_off = 0
        for few in range(7, 20):
            run = self.hosts("n1:1,n2:1", "--start-timeout", "40s", env={"FEW": str(few), "TAKE": take})
            self.assertLess(run.seconds, 30, run.err)
            broke_off += "n2: the agent broke off while it was starting" in run.err
        self.assertGreater(broke_off, 0)

    def test_an_agent_without_a_key_does_not_start(self):
        run = self.hosts("n1:1,deaf:1")
        self.assert_ended(run, 125)
        self.assertIn("deaf: ddprun-agent: no key", run.err)

    def test_a_program_that_is_not_there(self):
        for hosts in "n1:1,n2:1", "n1":  # which may be there on this machine
            run = self.run_to_end("--ssh", self.ssh, "-H", hosts, "./nix", env={"FAKE_LOG": self.log})
            self.assert_ended(run, 127)
            self.assertRegex(run.err, r"^ddprun: cannot run './nix' on n[12]: no such file")

    def test_a_loopback_address_is_enough_for_two_names_of_one_machine(self):
        run = self.hosts("n1:1,n2:1", "--master-addr", "127.0.0.1", script="echo $MASTER_ADDR")
        self.assert_ended(run, 0)
        self.assertEqual(run.err, "")

    def test_a_store_port_that_is_taken(self):
        holder = self.start_hosts("n1:1,n2:1", "echo $MASTER_ADDR $MASTER_PORT; sleep 100")
        self.assertTrue(wait_until(lambda: holder.out.count("\n") == 2), holder.err)
        addr, port = holder.out.split()[-2:]
        run = self.hosts("n1:1,n2:1", "--master-addr", addr, "--store-port", port)
        self.assert_ended(run, 125)
        self.assertIn("Address already in use", run.err)
        holder.signal(15)
        self.assertEqual(holder.wait(), 143)

    # --- clocks

    def test_the_first_cause_where_clocks_differ_by_days(self):
        """A host's monotonic clock begins with its boot. Here one is made that booted a year
        earlier, and each of two hosts fails first in turn."""
        if subprocess.run(["unshare", "-T", "--fork", "true"], check=False).returncode != 0:
            self.skipTest("no time namespaces; needs system time namespaces")
        self.ssh = self.write("ssh", FAKE_SSH.replace(
            'exec sh -c "$command"\n',
            '[ $host = n2 ] && exec unshare -T --fork --kill-child --monotonic 31536000 '
            'sh -c "$command"\nexec sh -c "$command"\n'), 0o755)
        for first in (0, 1):
            with self.subTest(first):
                # a node's clock is known after its first pong; the second ends when the first
                # has been reaped
                pid = self.path(f"pid{first}")
                run = self.hosts("n1:1,n2:1", "--grace", "30s", script=(
                    f"trap '' TERM; [ $RANK = {first} ] && {{ echo $$ >{pid}; sleep 1; exit 5; }}; "
                    f"until [ -s {pid} ]; do sleep 0.05; done; "
                    f"while kill -0 $(cat {pid}); do sleep 0.05; done; exit 6"))
                self.assert_ended(run, 5)
                self.assertIn(f"rank {first} on n{first + 1} exited with status 5", run.err)
                after = float(re.search(r"\(after (\d+\.\d) s\)", run.err)[1])
                self.assertLessEqual(1, after)
                self.assertLess(after, run.seconds)

    def test_the_end_of_the_input_on_another_host(self):
        script = "[ $TORCHELASTIC_RESTART_COUNT = 1 ] || { echo up; exec sleep 60; }; wc -c"
        run = self.start_hosts("n1:1,n2:1", script, "--spares", "1")
        self.wait_for(run, "up\n")
        self.kill_agent("n1")
        run.wait()
        self.assert_ended(run, 0)
        self.assertIn("\n0\n", run.out)

    def on_terminal(self, *args):
        script = "tty >/dev/null && echo tty || echo pipe; exec sleep 60"
        return OnTerminal(self.mark, "--ssh", self.ssh, "--grace", "1s", *args, "sh", "-c", script,
                          env={**os.environ, "FAKE_LOG": self.log})

    def test_one_rank_of_two_keeps_its_pipes(self):
        """A terminal that is raw for a rank that has none would take Ctrl-C from the user."""
        terminal = self.on_terminal("-H", "n1:1,n2:1", "--nnodes", "1:2")
        for _ in range(2):
            terminal.read("pipe")
        self.kill_agent("n2")
        terminal.read("[0] pipe\r\n")
        terminal.type("\x03")
        terminal.read()
        self.assertEqual(terminal.end(), 130)

    def test_two_ranks_of_one_have_pipes(self):
        hosts = self.write("hosts", "n1:1\n")
        terminal = self.on_terminal("--host-discovery-script", f"cat {hosts}", "--nnodes", "1:2", "--pty",
                                    "--grow", "now", "--discovery-interval", "100ms")
        terminal.read("tty\r\n")
        self.write("hosts", "n1:1\nn2:1\n")
        for _ in range(2):
            terminal.read("pipe\r\n")
        terminal.type("\x03")
        terminal.read()
        self.assertEqual(terminal.end(), 130)

    def test_input_while_no_host_reads_it(self):
        go = self.path("go")
        self.write("ssh", f"#!/bin/sh\nuntil [ -e {go} ]; do sleep 0.05; done\n" + FAKE_SSH, 0o755)
        self.write("go", "")
        script = "[ $TORCHELASTIC_RESTART_COUNT = 1 ] || { echo up; exec sleep 60; }; wc -c"
        run = self.start("--ssh", self.ssh, "-H", "n1:1", "--node-wait", "60s", "sh", "-c", script,
                         env={"FAKE_LOG": self.log}, stdin="x" * 300000)
        self.wait_for(run, "up\n")
        os.unlink(go)
        self.kill_agent("n1")
        self.wait_for(run, "too few hosts are left", "err")
        run.process.stdin.write(b"x" * 50000)  # as much as a pipe holds
        run.process.stdin.flush()
        wait_until_settled(self.mark)
        self.write("go", "")
        run.wait()
        self.assert_ended(run, 0)
        self.assertIn("\n350000\n", run.out)

    def test_much_output_and_input(self):
        run = self.hosts(
            "n1:2,n2:2", script="[ $RANK = 0 ] && cat; seq 1 50000", stdin="x\n" * 100000
        )
        self.assert_ended(run, 0)
        self.assertEqual(len(run.out.splitlines()), 300000)


if __name__ == "__main__":
    main()
