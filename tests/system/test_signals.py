"""Ranks that do not want to go, signals to the launcher, and the death of its parts."""

import ctypes
import os
import pty
import select
import signal
import socket
import subprocess
import sys
import time
import unittest

from launch import (DDPRUN, DEADLINE, PATIENT, LaunchTest, held, main, marked, parent_of,
                    read_proc, state_of, wait_until, who_is_left)

STUBBORN = "trap '' TERM INT HUP; echo up; while :; do sleep 60; done"


class Ranks(LaunchTest):
    def fails_beside(self, script):
        """Rank 0 fails when the other's `script` says that it is up."""
        up = self.path("up")
        return (f"[ $RANK = 0 ] && {{ until [ -e {up} ]; do sleep 0.05; done; exit 3; }}; "
                + script.replace("echo up;", f"echo up; : >{up};"))

    def test_one_that_ignores_sigterm_is_killed(self):
        launch = self.sh(2, self.fails_beside(STUBBORN), "--grace", "0.3s")
        self.assert_ended(launch, 3)
        self.assertIn("[1] up\n", launch.out)

    def test_one_that_closes_its_stdout_lives_on(self):
        launch = self.sh(2, 'exec >&- 2>&-; sleep 0.5; exit $((RANK * 7))')
        self.assert_ended(launch, 7)
        self.assertGreater(launch.seconds, 0.5)

    def test_sigterm_lets_them_clean_up(self):
        launch = self.sh(2, self.fails_beside(
            "trap 'echo cleaned; exit 0' TERM; echo up; sleep 60 & wait"), *PATIENT)
        self.assert_ended(launch, 3)
        self.assertIn("[1] cleaned\n", launch.out)

    def test_sigterm_lets_one_clean_up_that_the_agent_has_not_heard_of(self):
        """It runs already, but the thread that has started it has not reported it yet."""
        up = self.path("up")
        launch = self.start_sh(
            1, f"trap 'echo cleaned; exit 0' TERM; : >{up}; sleep 60 & wait", "--log-level", "agent=debug",
            *PATIENT, env=held(HOLD_START_UNTIL=self.path("gate")))
        self.assertTrue(wait_until(lambda: os.path.exists(up)), launch.err)
        launch.signal(signal.SIGTERM)
        self.wait_for(launch, "active -> terminating", "err")
        self.write("gate.0", "")
        launch.wait()
        self.assert_ended(launch, 143)
        self.assertEqual(launch.out, "cleaned\n")

    def leaves(self, script, rc=0):
        launch = self.sh(2, script, "--grace", "0.3s")
        self.assert_ended(launch, rc)
        self.assertLess(launch.seconds, 45)

    def test_a_grandchild_in_the_background(self):
        self.leaves("sleep 60 & exit 0")

    def test_a_grandchild_in_its_own_session(self):
        self.leaves("setsid sleep 60 & sleep 0.1; exit 0")

    def test_a_grandchild_of_a_double_fork(self):
        self.leaves("(setsid sh -c 'sleep 60 & sleep 60' &) ; sleep 0.1; exit 0")

    def test_a_grandchild_that_ignores_everything(self):
        self.leaves(f"(setsid sh -c \"{STUBBORN}\" &) ; sleep 0.1; exit 4", 4)

    def test_a_daemon_without_our_output(self):
        self.leaves("(setsid sleep 60 </dev/null >/dev/null 2>&1 &) ; exit 0")


class Orphans(LaunchTest):
    def test_agents_whose_launcher_is_killed_at_their_start_end_well(self):
        """Each at another moment; we become the parent of those agents."""
        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
        self.addCleanup(ctypes.CDLL(None).prctl, 36, 0, 0, 0, 0)

        def start():
            return subprocess.Popen([DDPRUN, "-np", "1", "true"], stdout=subprocess.DEVNULL,
                                    stderr=subprocess.DEVNULL)
        began, launches = time.monotonic(), 200
        start().wait()
        whole = time.monotonic() - began
        signals = set()
        for i in range(launches):
            launcher = start()
            time.sleep(whole * i / launches)
            launcher.kill()
            launcher.wait()
            end, pid = time.monotonic() + DEADLINE, 0
            while pid >= 0 and time.monotonic() < end:
                try:
                    pid, status = os.waitpid(-1, os.WNOHANG)
                except ChildProcessError:
                    break
                if pid == 0:
                    time.sleep(0.001)
                elif os.WIFSIGNALED(status):
                    signals.add(os.WTERMSIG(status))
        self.assertLessEqual(signals, {signal.SIGKILL})  # of a rank


class Launcher(LaunchTest):
    def running(self, script, *options, np=2):
        launch = self.start_sh(np, script, *options)
        for rank in range(np):
            self.wait_for(launch, f"[{rank}] up\n")
        return launch

    def test_pkill_ends_all_that_ranks_have_started(self):
        launch = self.running("setsid sleep 60 & echo up; wait")
        ours = [pid for pid in marked(self.mark) if b"ddprun" in read_proc(pid, "comm")]
        self.assertIn(launch.process.pid, ours)
        for signum in (signal.SIGSTOP, signal.SIGKILL):  # at the same moment
            for pid in ours:
                os.kill(pid, signum)
        launch.wait()
        self.assertEqual(launch.rc, -signal.SIGKILL)
        self.assertTrue(wait_until(lambda: not marked(self.mark)), marked(self.mark))

    def test_a_stopped_rank_can_handle_the_signal(self):
        launch = self.running("trap 'echo cleaned; exit 0' TERM; echo up; [ $RANK = 0 ] || kill -STOP $$; "
                              "while :; do sleep 0.05; done", "--grace", "20s")
        self.end_by(launch, signal.SIGTERM, 143, deadline=40)
        for rank in range(2):
            self.assertIn(f"[{rank}] cleaned\n", launch.out)

    def test_what_serves_a_ranks_files_is_not_ended_before_it(self):
        """Apptainer's squashfuse_ll has a process group of its own; without it the image is gone."""
        server = self.write("squashfuse_ll", "#!/bin/sh\nmkfifo $1; exec 3<>$1; read x <&3\n", 0o755)
        fifo = self.path("fifo$RANK")
        launch = self.running("trap 'sleep 1; grep -aq fuse /proc/$s/cmdline && echo served; kill $s; exit 0' TERM; "
                              f"setsid {server} {fifo} & s=$!; until [ -e {fifo} ]; do sleep 0.05; done; "
                              "echo up; while :; do sleep 0.05; done", *PATIENT)
        self.end_by(launch, signal.SIGTERM, 143, deadline=40)
        for rank in range(2):
            self.assertIn(f"[{rank}] served\n", launch.out)

    def test_ctrl_c_is_orderly(self):
        launch = self.running("trap 'echo cleaned; exit 0' INT TERM; echo up; "
                              "while :; do sleep 0.1; done", *PATIENT)
        self.end_by(launch, signal.SIGINT, 130)
        self.assertEqual(launch.out.count("cleaned\n"), 2)

    def test_ctrl_c_ends_a_plain_program(self):
        launch = self.running("echo up; exec sleep 60")
        self.end_by(launch, signal.SIGINT, 130)

    def test_in_the_background_of_a_script(self):
        # its shell lets INT be ignored; one that is sent is meant all the same
        launch = self.start(
            "-c", f"'{DDPRUN}' -np 2 sh -c 'echo up; exec sleep 60' & echo pid $!; wait $!",
            command=["sh"])
        self.wait_for(launch, "[0] up\n")
        self.wait_for(launch, "[1] up\n")
        os.kill(int(launch.out.split("pid ")[1].split()[0]), signal.SIGINT)
        launch.wait()
        self.assert_ended(launch, 130)

    def test_ctrl_c_twice_is_now(self):
        launch = self.running(STUBBORN, "--grace", "60s")
        while launch.process.poll() is None:  # two that come together count as one
            launch.signal(signal.SIGINT)
            time.sleep(0.3)
        launch.wait()
        self.assert_ended(launch, 130)

    def test_ctrl_c_again_and_again_until_it_has_exited(self):
        for _ in range(15):
            launch = self.start_sh(1, "echo up; sleep 60")
            self.wait_for(launch, "up")
            while launch.process.poll() is None:
                launch.signal(signal.SIGINT)
                time.sleep(0.0003)  # some come while it is exiting
            launch.wait()
            self.assert_ended(launch, 130)

    def test_ctrl_c_says_what_another_would_do(self):
        launch = self.running("trap 'sleep 1; exit 0' INT; echo up; while :; do sleep 0.1; done",
                              *PATIENT)
        self.end_by(launch, signal.SIGINT, 130)
        self.assertEqual(launch.err, "ddprun: interrupted (SIGINT); press Ctrl-C again to kill at "
                                     "once; stopping ranks 0-1\n")

    def test_one_that_ignores_ctrl_c_is_killed_two_seconds_after_term(self):
        launch = self.running(
            "trap '' INT; trap ': >$RANK.term' TERM; echo up; while :; do sleep 0.05; done",
            "--grace", "3s", "--wdir", self.folder.name)
        began = time.monotonic()
        self.end_by(launch, signal.SIGINT, 130)
        self.assertGreater(time.monotonic() - began, 5)  # INT, 3 s, TERM, 2 s, KILL
        self.assertTrue(os.path.exists(self.path("1.term")))

    def test_a_second_sigterm_after_a_while_is_now(self):
        launch = self.running(STUBBORN, "--grace", "60s")
        launch.signal(signal.SIGTERM)
        self.wait_for(launch, "SIGTERM", "err")
        time.sleep(5.5)  # a scheduler's and a script's are closer together
        self.end_by(launch, signal.SIGTERM, 143, deadline=20)

    def test_hup_ends_the_job(self):
        launch = self.running("echo up; exec sleep 60")
        self.end_by(launch, signal.SIGHUP, 128 + signal.SIGHUP, deadline=20)

    def test_sigterm_ends_the_job(self):
        launch = self.running("echo up; exec sleep 60")
        self.end_by(launch, signal.SIGTERM, 143)

    def test_sigterm_of_a_scheduler_and_of_a_script_is_one_order(self):
        launch = self.running(
            "trap 'sleep 1; echo saved; exit 0' TERM; echo up; while :; do sleep 0.05; done",
            *PATIENT)
        launch.signal(signal.SIGTERM)
        time.sleep(0.1)  # or both would be one to the kernel
        self.end_by(launch, signal.SIGTERM, 143)
        self.assertEqual(launch.out.count("saved\n"), 2)

    def test_other_signals_are_passed_on(self):
        for name in ("USR1", "USR2", "WINCH", "URG", "ALRM", "VTALRM", "XCPU"):
            with self.subTest(name):
                launch = self.running(
                    f"trap 'echo got; exit 0' {name}; echo up; while :; do sleep 0.1; done")
                launch.signal(getattr(signal, "SIG" + name))
                launch.wait()
                self.assert_ended(launch, 0)
                self.assertEqual(launch.out.count("got\n"), 2)

    def test_a_signal_that_comes_before_there_are_ranks(self):
        """It is pending when ddprun is executed: it ended ddprun."""
        script = ("import os, signal, sys; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1]);"
                  "os.kill(os.getpid(), signal.SIGUSR1); os.execv(sys.argv[1], sys.argv[1:])")
        for _ in range(3):  # on a busy machine the ranks may be sooner
            launch = self.run_to_end("-np", 2, "grep", "SigBlk", "/proc/self/status",
                                     command=[sys.executable, "-c", script, DDPRUN])
            if "died of SIGUSR1" not in launch.err:
                break
        self.assert_ended(launch, 0)
        self.assertEqual(launch.err, "ddprun: note: SIGUSR1 was not passed on: not all ranks have been started\n")
        self.assertEqual(launch.out.count("SigBlk:\t0000000000000000\n"), 2)

    def all_stopped(self, but):
        """A shell that has called vfork() is in D until its child executes: that may be stopped before."""
        states = {pid: state_of(pid) for pid in marked(self.mark) if pid not in but}
        before_exec = {parent_of(pid) for pid, state in states.items() if state == "T"}
        return all(state == "T" or state == "D" and pid in before_exec for pid, state in states.items())

    def test_ctrl_z_stops_the_ranks_and_fg_goes_on(self):
        launch = self.running(
            "echo up; until [ -e end ]; do date >>$RANK.ticks; sleep 0.1; done; echo done",
            "--wdir", self.folder.name)

        def ticks():
            return [os.path.getsize(self.path(f"{rank}.ticks")) for rank in range(2)]

        self.assertTrue(wait_until(lambda: all(os.path.exists(self.path(f"{r}.ticks")) for r in range(2))))
        agents = self.agents()
        launch.signal(signal.SIGTSTP)
        self.assertTrue(wait_until(lambda: self.all_stopped(agents)), marked(self.mark))
        before = ticks()
        time.sleep(1)
        self.assertEqual(ticks(), before)
        launch.signal(signal.SIGCONT)
        self.assertTrue(wait_until(lambda: ticks() != before))
        self.write("end", "")
        launch.wait()
        self.assert_ended(launch, 0)
        self.assertEqual(launch.out.count("done\n"), 2)

    def test_a_launcher_killed_leaves_nobody(self):
        launch = self.running(f"(setsid sleep 60 &); {STUBBORN}", np=4)
        launch.signal(signal.SIGKILL)
        launch.wait()
        self.assertEqual(who_is_left(self.mark), {})

    def test_a_launcher_killed_leaves_no_file(self):
        """Its agent removes them, also while the launcher's parent has not waited for it."""
        folder = self.path("ddprun")
        launch = self.start("-np", 1, "--ui=127.0.0.1:0", "sleep", 60, env={"XDG_RUNTIME_DIR": self.folder.name})
        self.assertTrue(wait_until(lambda: os.path.exists(folder) and len(os.listdir(folder)) == 2))
        os.kill(launch.process.pid, signal.SIGKILL)
        self.assertEqual(who_is_left(self.mark), {})
        self.assertFalse(os.path.exists(folder))

    def test_a_launcher_stopped_and_killed_leaves_nobody(self):
        launch = self.running(STUBBORN)
        launch.signal(signal.SIGSTOP)
        launch.signal(signal.SIGKILL)
        launch.wait()
        self.assertEqual(who_is_left(self.mark), {})

    def agents(self):
        """On this machine the agent is a fork of the launcher."""
        ours = [p for p, line in marked(self.mark).items() if line.startswith(DDPRUN + " ")]
        return [pid for pid in ours if parent_of(pid) in ours]

    def test_hup_that_nohup_ignores(self):
        launch = self.start("-np", 2, "sh", "-c", "echo up; sleep 2; echo done", command=["nohup", DDPRUN])
        self.assertTrue(wait_until(lambda: launch.out.count("up\n") == 2))
        agents = self.agents()
        self.assertTrue(agents, marked(self.mark))
        for pid in (*agents, launch.process.pid):
            os.kill(pid, signal.SIGHUP)
        launch.wait()
        self.assert_ended(launch, 0)
        self.assertEqual(launch.out.count("done\n"), 2)

    def test_an_agent_killed_leaves_nobody_and_is_said(self):
        launch = self.running(f"(setsid sleep 60 &); {STUBBORN}", np=4)
        agents = self.agents()
        self.assertTrue(agents, marked(self.mark))
        for pid in agents:
            os.kill(pid, signal.SIGKILL)
        launch.wait()
        self.assertNotEqual(launch.rc, 0)
        self.assertIn("agent", launch.err)

    def test_an_agent_that_is_stopped_for_a_while_goes_on(self):
        """As on a node that swaps."""
        launch = self.start("-np", 1, "sh", "-c", "echo up; sleep 3; echo done")
        self.assertTrue(wait_until(lambda: "up" in launch.out))
        (agent,) = self.agents()
        os.kill(agent, signal.SIGSTOP)
        time.sleep(7)
        os.kill(agent, signal.SIGCONT)
        launch.wait()
        self.assert_ended(launch, 0)
        self.assertEqual(launch.out, "up\ndone\n")

    def test_an_agent_that_is_stopped_ends_its_ranks(self):
        """As soon as they have to end."""
        for by, options, rc, seen in (("--timeout", ("--timeout", "2s"), 124, "term"),
                                      ("Ctrl-C", (), 130, "int")):
            launch = self.start("-np", 1, *options, "--node-timeout", "100s", "sh", "-c",
                                "trap 'echo int; exit' INT; trap 'echo term; exit' TERM; "
                                "echo up; while :; do sleep 0.05; done")
            self.assertTrue(wait_until(lambda launch=launch: "up" in launch.out))
            os.kill(self.agents()[0], signal.SIGSTOP)
            if by == "Ctrl-C":
                launch.signal(signal.SIGINT)
            launch.wait()
            self.assert_ended(launch, rc)
            self.assertIn(seen, launch.out, by)

    def test_an_agent_that_is_stopped_is_lost_after_the_node_timeout(self):
        launch = self.start("-np", 1, "--node-timeout", "2s", "sh", "-c", "echo up; sleep 10")
        self.assertTrue(wait_until(lambda: "up" in launch.out))
        (agent,) = self.agents()
        os.kill(agent, signal.SIGSTOP)
        launch.wait()
        self.assert_ended(launch, 125)
        self.assertIn("is lost: nothing heard from it for 2 s (--node-timeout); its agent, "
                      f"process {agent}, is stopped", launch.err)

    @unittest.skipIf(os.geteuid() != 0, "descriptors of another process; needs root")
    def test_an_agent_that_sends_nonsense_is_lost_at_once(self):
        """Through its own link, which on one machine is a pair of sockets."""
        launch = self.running(STUBBORN, "--log-level", "job=debug")
        (agent,) = self.agents()
        process, pairs = os.pidfd_open(agent), []
        for name in os.listdir(f"/proc/{agent}/fd"):
            if os.readlink(f"/proc/{agent}/fd/{name}").startswith("socket:"):
                fd = ctypes.CDLL(None).syscall(438, process, int(name), 0)  # pidfd_getfd
                pairs.append(socket.socket(fileno=fd))
        os.close(process)
        for pair in pairs:
            try:
                if pair.family == socket.AF_UNIX:
                    pair.send(b"\xff" * 64)
            except BrokenPipeError:
                pass  # the launcher has closed the others
            pair.close()
        launch.wait()
        self.assert_ended(launch, 125)
        self.assertIn("is lost: a frame of unknown type 255", launch.err)
        self.assertNotIn("time limit passed", launch.err)  # of an agent that was to leave

    def test_signals_that_the_parent_has_blocked(self):
        blocked = ("import os, signal, sys; signal.pthread_sigmask(signal.SIG_BLOCK, "
                   "[signal.SIGTERM, signal.SIGINT, signal.SIGCHLD]); os.execvp(sys.argv[1], sys.argv[1:])")
        launch = self.start("-np", 2, "sh", "-c", "grep SigBlk /proc/self/status; echo up; exec sleep 60",
                            command=[sys.executable, "-c", blocked, DDPRUN])
        self.assertTrue(wait_until(lambda: launch.out.count("up") == 2))
        self.end_by(launch, signal.SIGTERM, 143)
        self.assertEqual(launch.out.count("SigBlk:\t0000000000000000"), 2, launch.out)

    def test_an_agent_that_hangs_in_the_kernel_is_not_waited_for(self):
        """A tracer that does not wait for the agent keeps its end from ddprun, too."""
        seize, go_on, ptrace = 0x4206, 7, ctypes.CDLL(None).ptrace
        go = self.path("go")
        launch = self.running(f"echo up; until [ -e {go} ]; do sleep 0.05; done")
        (agent,) = self.agents()
        if ptrace(seize, agent, None, None) < 0:
            self.skipTest("ptrace is not permitted; needs CAP_SYS_PTRACE")
        self.write("go", "")
        end = time.monotonic() + DEADLINE
        while launch.process.poll() is None and time.monotonic() < end:
            try:
                stop = os.waitid(os.P_PID, agent, os.WSTOPPED | os.WNOHANG)
            except ChildProcessError:  # a zombie
                stop = None
            if stop:
                ptrace(go_on, agent, None, ctypes.c_void_p(stop.si_status & 0xff))
            time.sleep(0.01)
        ended = launch.process.poll() is not None
        os.waitpid(agent, 0)
        launch.wait()
        self.assertTrue(ended, "it waits for its agent")
        self.assert_ended(launch, 0)

    def test_ctrl_c_in_front_of_a_background_launch(self):
        go = self.path("go")  # their end waits for what is typed meanwhile
        pid, fd = pty.fork()
        if pid == 0:
            os.environ["DDPRUN_TEST_MARK"] = self.mark
            os.execvp("sh", ["sh", "-c", f"trap 'echo interrupted' INT; '{DDPRUN}' -np 2 sh -c 'echo up; "
                             f"until [ -e {go} ]; do sleep 0.1; done; echo done' & wait; wait; wait"])
        seen, end, interrupted = b"", time.monotonic() + DEADLINE, False
        while time.monotonic() < end:
            if select.select([fd], [], [], 0.2)[0]:
                try:
                    seen += os.read(fd, 4096)
                except OSError:
                    break
            if seen.count(b"up") == 2 and not interrupted:
                os.write(fd, b"\x03")
                interrupted = True
            if b"interrupted" in seen:
                open(go, "w", encoding="ascii").close()
        os.close(fd)
        os.waitpid(pid, 0)
        self.assertIn(b"interrupted", seen)
        self.assertEqual(seen.count(b"done"), 2, seen)

    def test_ctrl_c_on_a_terminal(self):
        pid, fd = pty.fork()
        if pid == 0:
            os.environ["DDPRUN_TEST_MARK"] = self.mark
            os.execv(DDPRUN, [DDPRUN, "-np", "2", "sh", "-c", "echo up; exec sleep 60"])
        seen, end = b"", time.monotonic() + DEADLINE
        interrupted = False
        while time.monotonic() < end:
            if select.select([fd], [], [], 0.2)[0]:
                try:
                    seen += os.read(fd, 4096)
                except OSError:  # the last one on the terminal has gone
                    break
            if seen.count(b"up") == 2 and not interrupted:
                os.write(fd, b"\x03")
                interrupted = True
        self.assertTrue(interrupted, seen)
        if time.monotonic() >= end:
            os.kill(pid, signal.SIGKILL)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), 130, seen)


if __name__ == "__main__":
    main()
