#!/usr/bin/env python3
"""Unmodified MPI programs on one machine: they find each other, and end as they should."""

import glob
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import tempfile
import unittest

import launch
import mpi


def traces():
    """What MPI programs leave on a machine without cleaning up."""
    return {
        path
        for pattern in ("/dev/shm/vader_segment.*", "/dev/shm/*ddprun*", "/tmp/ddprun-mpi-*")
        for path in glob.glob(pattern)
        if not path.startswith("/dev/shm/ddprun-")  # of other jobs' agents
    }


class Programs:
    """The same for every MPI."""

    mpi = None
    finds_host = True  # MPI_COMM_TYPE_SHARED has all ranks of a host

    @classmethod
    def setUpClass(cls):
        cls.programs = tempfile.TemporaryDirectory(prefix="ddprun-test-")
        cls.addClassCleanup(cls.programs.cleanup)
        cls.program = cls.mpi.compile(cls.programs.name)

    def check(self, np, what, *options, **env):
        return self.run_to_end(
            "-np", np, "--tag-output=off", *options, self.program, what,
            env={**mpi.QUICK, "TMPDIR": self.folder.name, **env},
        )

    def said(self, np, what):
        return f"{what} ok on {np} ranks, {np if self.finds_host else 1} of them here\n"

    def assert_ok(self, np, what, launched):
        self.assert_ended(launched, 0)
        self.assertEqual(launched.out, self.said(np, what))

    def test_everything_is_computed_right(self):
        self.assert_ok(4, "all", self.check(4, "all"))

    def test_a_world_of_one(self):
        self.assert_ok(1, "ring", self.check(1, "ring"))

    def test_abort_gives_its_code(self):
        launched = self.check(3, "abort")
        self.assert_ended(launched, 42)
        self.assertIn("ddprun: rank 2 on ", launched.err)
        self.assertRegex(launched.err, r" called MPI_Abort with code 42( and '.*')? \(after")

    def test_who_leaves_without_finalize_fails_the_job(self):
        launched = self.check(3, "leave")
        self.assert_ended(launched, 1)
        self.assertIn("exited with status 0 without calling MPI_Finalize", launched.err)

    def test_who_never_comes_to_mpi_fails_the_job(self):
        launched = self.run_to_end(
            "-np", 3, "--tag-output=off", "sh", "-c",
            f"[ $RANK = 1 ] || exec {self.program} ring",
            env={**mpi.QUICK, "TMPDIR": self.folder.name})
        self.assert_ended(launched, 1)
        self.assertRegex(launched.err, "ddprun: rank 1 on .* exited with status 0 without calling "
                                       r"MPI_Init, in which rank [02] waits for it \(after")

    def test_who_is_late_for_mpi_is_the_cause_of_a_hang(self):
        launched = self.start(
            "-np", 3, "--tag-output=off", "--hang-after", "1s", "--on-hang", "stop", "sh", "-c",
            f"[ $RANK = 1 ] && exec sleep 600; exec {self.program} ring",
            cwd=self.folder.name, env={**mpi.QUICK, "TMPDIR": self.folder.name})
        launched.wait(self.deadline)
        self.assert_ended(launched, 124)
        self.assertRegex(launched.err, r"ddprun: hang: rank [02] waits in MPI_Init; ranks 0-2 on \S+ have not all called it")

    def test_who_dies_is_the_headline(self):
        for what, rc, words in (("exit", 3, "exited with status 3"), ("kill", 137, "SIGKILL")):
            with self.subTest(what):
                launched = self.check(3, what)
                self.assert_ended(launched, rc)
                self.assertRegex(launched.err, rf"ddprun: rank 2 on \S+ [^\n]*{words}")

    def test_an_attempt_after_an_abort(self):
        program = self.write(
            "program.sh", "#!/bin/sh\nif [ $TORCHELASTIC_RESTART_COUNT = 0 ]; then\n"
            f"exec {self.program} abort\nfi\nexec {self.program} all\n", 0o755,
        )
        launched = self.run_to_end(
            "-np", 3, "--tag-output=off", "--max-restarts", 1, program, env=mpi.QUICK
        )
        self.assert_ended(launched, 0)
        self.assertIn("called MPI_Abort with code 42", launched.err)
        self.assertIn(self.said(3, "all"), launched.out)

    def test_each_program_has_a_number(self):
        launched = self.check(2, "appnum", self.program, "appnum", ":", "-np", 1)
        self.assert_ended(launched, 0)
        self.assertEqual(launched.out, self.said(3, "0 0 1 appnum"))

    def test_alone_with_none(self):
        # isolated: else each would start an orted of its own, and now and then fail at that; it also fails now
        # and then if both make their files in one folder at a time
        launched = self.run_to_end(
            "-np", 2, "--tag-output=off", "--mpi", "none", "sh", "-c",
            'TMPDIR=$TMPDIR/$RANK; mkdir "$TMPDIR"; exec "$0" hello', self.program,
            env={**mpi.QUICK, "TMPDIR": self.folder.name, "OMPI_MCA_ess_singleton_isolated": "1"},
        )
        self.assert_ended(launched, 0)
        self.assertEqual(launched.out, "hello ok on 1 ranks, 1 of them here\n" * 2)


class Spawning:
    """MPI_Comm_spawn: every MPI but Debian 12's MPICH, whose UCX has no connections between jobs."""

    connects = {}  # variables with which MPI_Open_port() works

    def test_a_spawn_that_fails(self):
        launched = self.check(1, "spawn")
        self.assert_ok(1, "spawn", launched)
        self.assertIn("ddprun: spawned job 1: cannot run 'child': ", launched.err)
        self.assertIn("ddprun: error: rank 0 spawned 'true', which has ended without calling MPI_Init\n", launched.err)

    def spawn(self, what, *options, **env):
        return self.start("-np", 2, *options, self.program, what, cwd=self.folder.name,
                          env={**mpi.QUICK, "TMPDIR": self.folder.name, **env})

    def test_a_hang_of_what_is_spawned(self):
        launched = self.spawn("spawn-never", "--hang-after", "1s", "--on-hang", "stop")
        launched.wait(self.deadline)
        self.assert_ended(launched, 124)
        self.assertRegex(launched.err, r"ddprun: spawned job 1: hang: the rank that has spawned this job waits in "
                                       r"MPI_Comm_spawn; ranks 0-2 on \S+ have not all called MPI_Init\n")
        self.assertRegex(launched.err, r"\nddprun: rank 0 on \S+ spawned '\S+', which failed with exit code 124 \(")

    def test_a_report_names_what_is_spawned(self):
        launched = self.spawn("spawn-never")
        self.assertTrue(launch.wait_until(lambda: sum(
            c.startswith(self.program) for c in launch.marked(self.mark).values()) == 2 + 3))
        launched.signal(signal.SIGQUIT)
        for words in "waits in MPI_Comm_spawn for '", "spawned job 1: note: the whole report is in":
            self.wait_for(launched, words, "err")
        self.end_by(launched, signal.SIGINT, 130)

    def test_signals_reach_what_is_spawned(self):
        launched = self.spawn("spawn-waits")
        self.wait_for(launched, "spawn-waits ok")
        for rank in range(3):
            self.wait_for(launched, f"[1:{rank}] spawned {rank} of 3")
        ranks = [pid for pid, c in launch.marked(self.mark).items() if c.startswith(self.program) and "two words" in c]
        self.assertEqual(len(ranks), 3)
        launched.signal(signal.SIGTSTP)
        self.assertTrue(launch.wait_until(lambda: all(launch.state_of(pid) == "T" for pid in ranks)))
        launched.signal(signal.SIGCONT)
        self.assertTrue(launch.wait_until(lambda: all(launch.state_of(pid) != "T" for pid in ranks)))
        launched.signal(signal.SIGUSR1)
        launched.wait(self.deadline)
        self.assert_ended(launched, 0)
        for rank in range(3):
            self.assertEqual(launched.out.count(f"[1:{rank}] {rank} got the signal\n"), 1, launched.out)

    def test_ranks_spawn_others(self):
        launched = self.spawn("spawn-some", "--output-filename", self.path("out"), SPAWN_HOST="localhost:2")
        launched.wait(self.deadline)
        self.assert_ended(launched, 0)
        with open(self.path("out.spawned1", "rank.2.out"), encoding="utf-8") as f:
            self.assertIn("spawned 2 of 3 on ", f.read())
        self.assertEqual(
            sorted(line.partition(" on ")[0] for line in launched.out.splitlines()),
            ["[0] spawn-some ok", *(f"[1:{r}] spawned {r} of 3" for r in range(3))])

    def test_what_has_ended_is_forgotten(self):
        launched = self.spawn("spawn-thrice", "--log-level", "pmix=debug")
        launched.wait(self.deadline)
        self.assert_ended(launched, 0)
        if "joined" in launched.err:  # by PMIx
            self.assertRegex(launched.err, "job 'ddprun-[0-9a-f]+' has ended")

    def test_names_are_published(self):
        self.assert_ok(2, "names", self.check(2, "names", **self.connects))

    def test_a_spawned_rank_that_fails(self):
        launched = self.spawn("spawn-fails")
        launched.wait(self.deadline)
        self.assert_ended(launched, 7)
        self.assertRegex(launched.err, r"ddprun: spawned job 1: rank 1 on \S+ exited with status 7 \(after")
        self.assertRegex(launched.err, r"\nddprun: rank 0 on \S+ spawned '\S+', which failed with exit code 7 \(")

    def test_what_is_spawned_is_started_again(self):
        launched = self.spawn("spawn-fails", "--max-restarts", 1)
        launched.wait(self.deadline)
        self.assert_ended(launched, 7)
        for job in 1, 2:
            self.assertIn(f"ddprun: spawned job {job}: rank 1 on ", launched.err)

    def test_what_is_spawned_outlives_the_ranks(self):
        """And ends with ddprun, which says so once."""
        launched = self.spawn("spawn-waits")
        self.wait_for(launched, "[1:2] spawned 2 of 3")
        self.wait_for(launched, "spawn-waits ok")
        launched.signal(signal.SIGINT)
        self.assertEqual(launched.wait(self.deadline), 130, launched.err)
        self.assertEqual(len(re.findall("^ddprun: ", launched.err, re.M)), 1, launched.err)
        self.assertIn("interrupted (SIGINT)", launched.err)

    def test_what_is_spawned_ends_with_a_killed_ddprun(self):
        launched = self.spawn("spawn-waits")
        self.wait_for(launched, "[1:2] spawned 2 of 3")
        launched.signal(signal.SIGKILL)
        launched.wait(self.deadline)
        self.assertEqual(launch.who_is_left(self.mark), {})


@unittest.skipUnless(mpi.OPENMPI.mpicc and os.environ.get("DDPRUN_PMIX"), "no Open MPI or no PMIx; needs package libpmix-dev libopenmpi-dev")
class OpenMpi(Programs, Spawning, launch.LaunchTest):
    mpi = mpi.OPENMPI

    def setUp(self):
        super().setUp()
        self.before = traces()

    def tearDown(self):
        super().tearDown()
        # other jobs of this machine come and go: theirs are gone before long
        left = traces() - self.before
        launch.wait_until(lambda: not left & traces(), 30.0)
        self.assertEqual(left & traces(), set())
        self.assertEqual([n for n in os.listdir(self.folder.name) if "mpi" in n], [])

    def test_it_does_not_find_others_by_pmi(self):
        launched = self.check(2, "hello", "--mpi", "pmi")
        self.assert_ended(launched, 125)
        self.assertRegex(launched.err, r"needs PMIx.*\(it is linked to libmpi.so.40\): it would "
                         "run as 2 programs of one rank each")
        # two Open MPIs that know nothing of each other must not make one folder at a time
        own = 'mkdir "$TMPDIR/$RANK"; TMPDIR=$TMPDIR/$RANK exec '
        hidden = self.run_to_end(
            "-np", 2, "--tag-output=off", "--mpi", "pmi", "sh", "-c", f"{own}{self.program} hello",
            env={**mpi.QUICK, "TMPDIR": self.folder.name},
        )
        self.assertEqual(hidden.out, "hello ok on 1 ranks, 1 of them here\n" * 2, hidden.err)

    def test_an_abort_as_another_rank_ends(self):
        """Open MPI 6 aborts when a rank's connection breaks, which is before its exit is reported."""
        launched = self.check(3, "react")
        self.assert_ended(launched, 3)
        self.assertIn("rank 2 on ", launched.err)
        self.assertNotIn("called MPI_Abort", launched.err)

    def test_one_program_after_the_other(self):
        # MPICH's first program would shut its socket down for the second
        slow = self.path("slow_leave.so")
        source = os.path.join(mpi.HERE, "programs", "slow_leave.c")
        subprocess.run(["cc", "-shared", "-fPIC", "-o", slow, source, "-ldl"], check=True)
        first = f"LD_PRELOAD={slow} {self.program} ring"
        launched = self.run_to_end(
            "-np", 2, "--tag-output=off", "sh", "-c", f"{first} && {self.program} hello",
            env={**mpi.QUICK, "TMPDIR": self.folder.name},
        )
        self.assert_ended(launched, 0)
        self.assertEqual(
            launched.out.splitlines(),
            [f"{what} ok on 2 ranks, 2 of them here" for what in ("ring", "hello")],
        )
        self.assertNotIn("OPAL ERROR", launched.err)

    def test_a_rank_that_leaves_at_once_takes_part_in_the_next_program(self):
        """The server's main thread gets the CPU last: a rank has left before it goes on."""
        go = self.path("go")
        launched = self.start(
            "-np", 3, "--tag-output=off", "sh", "-c",
            f"{self.program} hello; echo $$; until [ -e {go} ]; do sleep 0.02; done; "
            f"for i in 1 2 3; do {self.program} hello; done",
            env={**mpi.QUICK, "TMPDIR": self.folder.name})
        self.assertTrue(launch.wait_until(lambda: len(re.findall(r"^\d+$", launched.out, re.M)) == 3))
        server = next(pid for pid, c in launch.marked(self.mark).items() if "ddprun-pmix" in c)
        cpu = {min(os.sched_getaffinity(0))}
        for pid in [*re.findall(r"^\d+$", launched.out, re.M), *os.listdir(f"/proc/{server}/task")]:
            os.sched_setaffinity(int(pid), cpu)
        os.sched_setscheduler(server, os.SCHED_IDLE, os.sched_param(0))
        with open(go, "x", encoding="utf-8"):
            pass
        launched.wait()
        self.assert_ended(launched, 0)
        self.assertEqual(launched.out.count("hello ok on 3 ranks"), 4)

    def test_a_server_of_another_version(self):
        """As after an upgrade of the files while the job runs."""
        ddprun = shutil.copy(launch.DDPRUN, self.folder.name)
        self.write("ddprun-pmix", f'#!/bin/sh\nexec {os.path.dirname(launch.DDPRUN)}/ddprun-pmix 99\n', 0o755)
        launched = self.run_to_end("-np", 2, self.program, "ring", command=[ddprun],
                                   env={**mpi.QUICK, "TMPDIR": self.folder.name})
        self.assert_ended(launched, 125)
        self.assertRegex(launched.err, "(?m)^ddprun: ddprun-pmix on .* is of another version than the ddprun that runs:")

    def test_memory_of_the_killed_is_removed(self):
        # what MPI_Init makes before the server knows of it, under the name that it gets
        program = self.write("killed.py", (
            "import os, socket, subprocess, sys\n"
            "h = 0\n"
            "for c in os.environb[b'PMIX_NAMESPACE']:\n"
            "    h = h + c & 0xffffffff\n"
            "    h = h + (h << 10) & 0xffffffff\n"
            "    h ^= h >> 6\n"
            "h = h + (h << 3) & 0xffffffff\n"
            "h ^= h >> 11\n"
            "h = h + (h << 15) & 0xffffffff & ~0x8000\n"
            "host = socket.gethostname().partition('.')[0]\n"
            "rank = os.environ['LOCAL_RANK']\n"
            "path = f'/dev/shm/vader_segment.{host}.{os.geteuid()}.{h:x}.{rank}'\n"
            "subprocess.run([sys.argv[1], 'hello'], check=True)\n"
            "open(path, 'x').close()\n"
            "print(path, flush=True)\n"
            "os.kill(os.getpid(), 9)\n"
        ))
        launched = self.run_to_end(
            "-np", 1, "--tag-output=off", "python3", program, self.program,
            env={**mpi.QUICK, "TMPDIR": self.folder.name},
        )
        self.assertEqual(launched.rc, 137, launched.err)
        path = launched.out.splitlines()[-1]
        self.assertRegex(path, "^/dev/shm/vader_segment")
        self.assertFalse(os.path.exists(path))

    def test_session_files_of_a_killed_server_are_removed(self):
        # the agent kills one that does not exit, as after a host was frozen
        launched = self.start(
            "-np", 1, "--tag-output=off", "sh", "-c", f"{self.program} hello; read line",
            stdin=b"", env={**mpi.QUICK, "TMPDIR": self.folder.name})
        self.wait_for(launched, "hello ok")
        server = next(pid for pid, c in launch.marked(self.mark).items() if "ddprun-pmix" in c)
        sessions = os.path.join(self.folder.name, "ddprun-mpi-*")
        self.assertEqual(len(glob.glob(sessions)), 1)
        os.kill(server, signal.SIGSTOP)
        launched.input = b"\n"
        launched.wait()
        self.assertEqual(glob.glob(sessions), [])

    def test_addresses_on_demand(self):
        launched = self.check(
            3, "all", OMPI_MCA_pmix_base_async_modex="1", OMPI_MCA_pmix_base_collect_data="0"
        )
        self.assert_ok(3, "all", launched)


@unittest.skipUnless(mpi.MPICH.mpicc, "no MPICH; needs package libmpich-dev")
class Mpich(Programs, launch.LaunchTest):
    mpi = mpi.MPICH

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.by_pmix = mpi.needs_pmix(cls.program)
        if cls.by_pmix:
            return
        # Debian's 5.0 does not, under any launcher
        own = subprocess.run(["mpiexec.mpich", "-n", "2", cls.program, "hello"], env={**os.environ, **mpi.QUICK},
                             stdout=subprocess.PIPE, text=True, check=True)
        cls.finds_host = "2 of them here" in own.stdout

    def test_a_hang_without_the_program_that_reports_it(self):
        """As it is not installed: the launcher waits for the answers of hosts, then acts."""
        os.mkdir(self.path("bin"))
        for name in ("ddprun", "ddprun-agent"):
            shutil.copy(os.path.join(os.path.dirname(launch.DDPRUN), name), self.path("bin"))
        launched = self.start(
            "-np", 2, "--hang-after", "1s", "--on-hang", "stop", "sh", "-c",
            f"[ $RANK = 1 ] && exec sleep 600; exec {self.program} ring", command=[self.path("bin", "ddprun")],
            env={**mpi.QUICK, "TMPDIR": self.folder.name})
        launched.wait(self.deadline)
        self.assert_ended(launched, 124)
        self.assertIn("ddprun: warning: no report: ddprun-diagnose is not beside", launched.err)
        self.assertIn("stopped: the job hangs (--on-hang)", launched.err)

    def test_it_does_not_find_others_by_pmix(self):
        if self.by_pmix:
            self.skipTest("this MPICH was built for PMIx; needs system an MPICH that is not")
        launched = self.check(2, "hello", "--mpi", "pmix")
        self.assert_ended(launched, 125)
        self.assertIn("needs PMI, which is not served", launched.err)
        hidden = self.run_to_end(
            "-np", 2, "--tag-output=off", "--mpi", "pmix", "sh", "-c", f"{self.program} hello"
        )
        # 5.0 sees PMIx, and ends if it was built without it
        if "Fatal error in internal_Init" not in hidden.err:
            self.assertEqual(hidden.out, "hello ok on 1 ranks, 1 of them here\n" * 2)


@unittest.skipUnless(os.environ.get("DDPRUN_PMIX"), "no PMIx; needs package libpmix-dev")
class Strangers(launch.LaunchTest):
    """A process outside the job connects to the address that ranks have for PMIx."""

    def test_a_stranger_starts_nothing(self):
        launched = self.start(
            "-np", 1, "--tag-output=off", "sh", "-c", "echo $PMIX_SERVER_URI41; read line",
            stdin=b"", env={"TMPDIR": "/proc/nowhere"},
        )
        self.wait_for(launched, "\n")
        port = int(launched.out.rpartition(":")[2])
        connect = (
            "import socket, sys\n"
            f"s = socket.create_connection(('127.0.0.1', {port}), 30)\n"
            "s.settimeout(30)\n"
            "try:\n    sys.exit(len(s.recv(1)))\n"
            "except ConnectionResetError:\n    pass\n"
        )
        for user in [None] + [65534] * (os.geteuid() == 0):
            with self.subTest(user):
                done = subprocess.run(["python3", "-c", connect], user=user, cwd="/", check=False)
                self.assertEqual(done.returncode, 0, "the connection was not closed")
        self.assertEqual([c for c in launch.marked(self.mark).values() if "ddprun-pmix" in c], [])
        launched.input = b"\n"
        launched.wait()
        self.assert_ended(launched, 0)
        self.assertRegex(launched.err, "refused a connection from 127.0.0.1:[0-9]+ to PMIx: ")
        self.assertEqual(launched.err.count("refused"), 1)  # once a minute

    def test_an_agent_without_descriptors_does_not_spin(self):
        """A connection that it cannot accept is left pending, and it sleeps between two attempts."""
        launched = self.start(
            "-np", 1, "--tag-output=off", "sh", "-c", "echo $PPID $PMIX_SERVER_URI41; read line",
            stdin=b"")
        self.wait_for(launched, "\n")
        agent, port = int(launched.out.split()[0]), int(launched.out.rpartition(":")[2])

        def slept():
            text = launch.read_proc(agent, "status").decode()
            return int(re.search(r"\nvoluntary_ctxt_switches:\s*(\d+)", text)[1])

        used = {int(fd) for fd in os.listdir(f"/proc/{agent}/fd")}
        lowest = next(fd for fd in range(len(used) + 1) if fd not in used)
        usual = resource.prlimit(agent, resource.RLIMIT_NOFILE)
        resource.prlimit(agent, resource.RLIMIT_NOFILE, (lowest, usual[1]))
        with socket.create_connection(("127.0.0.1", port)):
            before = slept()
            self.assertTrue(launch.wait_until(lambda: slept() > before + 5, 5))
            resource.prlimit(agent, resource.RLIMIT_NOFILE, usual)
            launched.input = b"\n"
            launched.wait()
        self.assert_ended(launched, 0)

    @unittest.skipUnless(mpi.OPENMPI.mpicc, "no Open MPI; needs package libopenmpi-dev openmpi-bin")
    def test_a_stranger_at_the_server_is_refused(self):
        """Once the server runs, it is asked by a stranger, and an MPI program goes on."""
        program, go = mpi.OPENMPI.compile(self.folder.name), self.path("go")
        launched = self.start(
            "-np", 2, "--tag-output=off", "sh", "-c",
            f"{program} hello; echo $PMIX_SERVER_URI41; until [ -e {go} ]; do sleep 0.05; done; "
            f"exec {program} hello", env={**mpi.QUICK, "TMPDIR": self.folder.name})
        # of both: a rank that begins again while another one ends loses its files
        self.assertTrue(launch.wait_until(lambda: launched.out.count(";tcp4:") == 2), launched.err)
        port = int(launched.out.partition(";tcp4://127.0.0.1:")[2].split()[0])
        with socket.create_connection(("127.0.0.1", port), 30) as stranger:
            stranger.settimeout(30)
            try:
                self.assertEqual(stranger.recv(1), b"")
            except ConnectionResetError:
                pass
        self.wait_for(launched, "to PMIx: no process of this job holds its socket", "err")
        with open(go, "w", encoding="utf-8"):
            pass
        launched.wait()
        self.assert_ended(launched, 0)

    def test_a_server_that_fails_ends_no_job_without_mpi(self):
        """A rank connects, but does not speak PMIx."""
        launched = self.run_to_end(
            "-np", 2, "--tag-output=off", "python3", "-c",
            "import os, socket, time\n"
            "port = int(os.environ['PMIX_SERVER_URI41'].rpartition(':')[2])\n"
            "try:\n"
            "    s = socket.create_connection(('127.0.0.1', port), 30)\n"
            "    s.settimeout(30)\n"
            "    s.recv(1)\n"
            "except ConnectionError:\n"
            "    pass\n",
            env={"TMPDIR": "/proc/nowhere"},
        )
        self.assert_ended(launched, 0)
        self.assertIn("cannot make a directory in '/proc/nowhere' (TMPDIR) for MPI", launched.err)


class Old(launch.LaunchTest):
    """Open MPI 1 and 2, of which only the names are needed."""

    def build(self, soname, *needs):
        library = self.path(soname)
        for need in needs:
            self.cc("-shared", f"-Wl,-soname,{need}", "-o", self.path(need))
        self.cc("-shared", f"-Wl,-soname,{soname}", "-o", library, "-Wl,--no-as-needed",
                *map(self.path, needs), "-Wl,-rpath,$ORIGIN")
        self.cc("-DMAIN", "-o", self.path("program"), "-Wl,--no-as-needed", library,
                "-Wl,-rpath,$ORIGIN")
        return self.path("program")

    def cc(self, *args):
        source = self.write("empty.c", "#ifdef MAIN\nint main(void) { return 0; }\n#endif\n")
        subprocess.run(["cc", "-fPIC", source, *args], check=True)

    def test_what_would_be_alone_is_not_started(self):
        for soname, *needs in (
            ("libmpi.so.1",), ("libmpi.so.20",), ("libmpi.so.12", "libopen-pal.so.13")
        ):
            with self.subTest(soname):
                program = self.build(soname, *needs)
                launched = self.run_to_end("-np", 2, program)
                self.assert_ended(launched, 125)
                self.assertEqual(
                    launched.err,
                    f"ddprun: '{program}' needs an Open MPI before 3, which only its own mpirun "
                    f"can start (it is linked to {soname}): it would run as 2 programs of one "
                    "rank each; with --mpi none it does\n",
                )
                for options in (("-np", 1), ("-np", 2, "--mpi", "none")):
                    self.assert_ended(self.run_to_end(*options, program), 0)

    def test_the_same_name_of_another_family_is_started(self):
        self.assert_ended(self.run_to_end("-np", 2, self.build("libmpi.so.12")), 0)


if __name__ == "__main__":
    launch.main()
