#!/usr/bin/env python3
"""PMI-1 and PMI-2, by a client of our own: no MPI is needed."""

import os
import shutil
import signal
import time

import launch
import mpi
from terminal import OnTerminal


class Pmi(launch.LaunchTest):
    client = os.path.join(mpi.HERE, "programs", "pmi_client.py")

    def test_clients_of_both_dialects(self):
        client = os.path.join(mpi.HERE, "programs", "pmi_client.py")
        for dialect in "12":
            with self.subTest(dialect):
                launched = self.run_to_end(
                    "-np", 3, "--tag-output=off", "python3", client, dialect
                )
                self.assert_ended(launched, 0)
                self.assertEqual(launched.out, "size 3 mapping (vector,(0,1,3))\n")

    def test_clients_of_both_dialects_spawn(self):
        """Beside options of which the spawned job has others."""
        expected = [f"[1:{r}] port a b=c; {args} ({number} of 3)" for r, args, number in (
            (0, "['x y', '; =', ':']", 0), (1, "['x y', '; =', ':']", 0), (2, "[]", 1))]
        os.mkdir(self.path("in"))
        for dialect, *options in ("1", "2", ("1", "--wdir", "in"), ("2", "--max-restarts", "1", "--report")):
            with self.subTest(dialect):
                launched = self.run_to_end("-np", 2, *options, "python3", self.client, f"spawn{dialect}",
                                           cwd=self.path())
                self.assert_ended(launched, 0)
                self.assertEqual(sorted(launched.out.splitlines()), expected)
        launched = self.run_to_end("python3", self.client, "spawn1",
                                   env={"DDPRUN_OPTIONS": "--nnodes 1:2 --nproc-per-node 2"})
        self.assert_ended(launched, 0)
        self.assertEqual(sorted(launched.out.splitlines()), expected)

    def test_a_rank_spawns_when_ddprun_was_replaced(self):
        """As by an upgrade: the file is another one, and there may be none."""
        for then in "mv other ddprun", "rm ddprun":
            with self.subTest(then):
                ddprun = shutil.copy(launch.DDPRUN, self.path("ddprun"))
                self.write("other", "#!/bin/false\n", 0o755)
                launched = self.run_to_end(
                    "-np", 1, "sh", "-c", f'{then}; exec "$@"', "sh", "python3", self.client, "run", self.path(),
                    "python3", self.client, "run", self.path(), command=[ddprun], cwd=self.path())
                self.assert_ended(launched, 0)
                self.assertEqual(launched.out, "rc 0\n")

    def test_a_second_signal_ends_at_once_what_is_spawned(self):
        launched = self.start("-np", 1, "--grace", "100s", "python3", self.client, "deaf")
        self.wait_for(launched, "[1:0] deaf")
        launched.signal(signal.SIGINT)
        time.sleep(0.5)
        self.end_by(launched, signal.SIGINT, 130)
        self.assertEqual(launched.err.count("ddprun: "), 1, launched.err)

    def test_what_is_spawned_on_a_terminal(self):
        """Its lines begin on the left, and Ctrl-C ends it when the only rank has ended."""
        terminal = OnTerminal(self.mark, "-np", "1", "--grace", "0.3s", "python3", self.client, "deaf")
        seen = terminal.read("\n") + "\n" + terminal.read("\n") + "\n"
        time.sleep(1)
        terminal.type("\x03")
        seen += terminal.read()
        self.assertEqual(terminal.end(), 130, seen)
        self.assertTrue(terminal.restored, seen)
        self.assertIn("[1:0] deaf\r\n", seen)

    def test_each_program_has_a_number(self):
        client = os.path.join(mpi.HERE, "programs", "pmi_client.py")
        for dialect in "12":
            with self.subTest(dialect):
                launched = self.run_to_end(
                    "-np", 1, "--tag-output=off", "python3", client, dialect, "0",
                    ":", "-np", 2, "python3", client, dialect, "1")
                self.assert_ended(launched, 0)

    def test_time_in_which_the_job_is_stopped_does_not_count(self):
        """Rank 0 ends without MPI, which rank 1 leaves within the limit."""
        go = self.path("go")
        launched = self.start("-np", 2, "--log-level", "mpi=debug", "python3", "-c", (
            "import os, time\n"
            "def ask(line):\n"
            "    os.write(fd, line)\n"
            "    os.read(fd, 100)\n"
            "if os.environ['RANK'] == '1':\n"
            "    fd = int(os.environ['PMI_FD'])\n"
            "    ask(b'cmd=init pmi_version=1 pmi_subversion=1\\n')\n"
            f"    while not os.path.exists({go!r}):\n"
            "        time.sleep(0.02)\n"
            "    ask(b'cmd=finalize\\n')\n"))
        self.wait_for(launched, "rank 0 has ended without MPI_Init", "err")
        ours = [pid for pid, line in launch.marked(self.mark).items() if line.startswith(launch.DDPRUN + " ")]
        for pid in ours:
            os.kill(pid, signal.SIGSTOP)
        with open(go, "x", encoding="utf-8"):
            pass
        time.sleep(3)
        launched.signal(signal.SIGCONT)
        time.sleep(0.3)
        for pid in ours:
            if launch.state_of(pid) == "T":
                os.kill(pid, signal.SIGCONT)
        launched.wait()
        self.assert_ended(launched, 0)

    def test_a_wait_for_mpi_init_begins_with_it(self):
        launched = self.run_to_end("-np", 2, "--hang-after", "4s", "--on-hang", "stop", "python3", self.client, "late")
        self.assert_ended(launched, 0)
        self.assertNotIn("hang", launched.err)

    def test_rubbish_is_cut_off(self):
        client = os.path.join(mpi.HERE, "programs", "pmi_client.py")
        for what in ("lines", "lengths"):
            with self.subTest(what):
                launched = self.run_to_end("-np", 2, "python3", client, what)
                self.assertIn("rank 1 wrote to its PMI_FD what is not PMI", launched.err)
                self.assertNotIn("Error", launched.out + launched.err)


if __name__ == "__main__":
    launch.main()
