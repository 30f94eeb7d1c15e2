#!/usr/bin/env python3
"""A hang report names the collective or message of unmodified MPI programs, without a debugger."""

import os
import re
import signal
import subprocess
import tempfile
import unittest

import launch
import mpi

STOP = ("--hang-after", "1s", "--on-hang", "stop")
MPI4PY = "from mpi4py import MPI\nimport time\nMPI.COMM_WORLD.barrier()\nif MPI.COMM_WORLD.rank == 1:\n    time.sleep(600)\nMPI.COMM_WORLD.barrier()\n"


class Programs:
    """The same for every MPI."""

    mpi = None

    @classmethod
    def setUpClass(cls):
        cls.programs = tempfile.TemporaryDirectory(prefix="ddprun-test-")
        cls.addClassCleanup(cls.programs.cleanup)
        cls.program = cls.mpi.compile(cls.programs.name, "mpi_hang.c")

    def launch(self, *command, np=4, options=STOP, **env):
        return self.start("-np", np, *options, *command, cwd=self.folder.name,
                          env={**mpi.QUICK, "TMPDIR": self.folder.name, **env})

    def hang(self, *command, **how):
        """The sentences of the report that ends the job."""
        launched = self.launch(*command, **how)
        launched.wait(self.deadline)
        self.assert_ended(launched, 124)
        return re.findall("^ddprun: hang: (.*)", launched.err, re.M)

    def test_a_rank_that_has_not_come(self):
        # MPICH takes seconds for a communicator where 4 ranks that spin share two busy CPUs
        said = self.hang(self.program, "world", options=("--hang-after", "8s", "--on-hang", "stop"))
        self.assertRegex(said[0], r"^3 of 4 ranks have waited \d+ s in MPI_Allreduce #144 of MPI_COMM_WORLD "
                                  r"\(1 x MPI_INT\).*; rank 1 has not arrived: it is ")

    def test_a_communicator_of_some_ranks(self):
        said = self.hang(self.program, "half")
        self.assertRegex(said[0], r"^1 of 2 ranks has waited \d+ s in MPI_Allreduce #2 of a communicator of "
                                  r"ranks (0,2|2,0) \(1 x MPI_INT\).*; rank 2 has not arrived: it is ")

    def test_requests(self):
        said = self.hang(self.program, "begun")
        self.assertRegex(said[0], r"^1 of 2 ranks has waited \d+ s in MPI_Iallreduce #4 of a communicator of "
                                  r"ranks (0,2|2,0) \(1 x MPI_INT\).*; rank 2 has not arrived: it is ")

    def test_no_hang(self):
        for what, np in ("both", 3), ("threads", 2), ("numbered", 3):
            with self.subTest(what):
                launched = self.launch(self.program, what, np=np)
                launched.wait(self.deadline)
                self.assert_ended(launched, 0)
                self.assertEqual(launched.err, "")

    def test_a_rank_that_ends(self):
        said = self.hang(self.program, "end")
        self.assertRegex(said[0], r"^3 of 4 ranks have waited \d+ s in MPI_Barrier #4 of MPI_COMM_WORLD.*; "
                                  r"rank 1 has not arrived: it is waiting in MPI_Finalize")

    def test_different_calls(self):
        said = self.hang(self.program, "other")
        self.assertRegex(said[0], r"^mismatch: collective #2 of communicator 'other' \(all ranks\) is MPI_Allreduce "
                                  r"\(1 x MPI_INT\) on ranks 0,2-3.*, MPI_Barrier on rank 1")

    def test_ranks_that_wait_for_messages_of_each_other(self):
        said = self.hang(self.program, "circle")
        self.assertRegex(said[0], r"^ranks 0-3 wait for each other: rank 0 has waited \d+ s in MPI_Recv for rank 1 "
                                  r"\(tag 7\)")

    def test_requests_of_messages(self):
        said = self.hang(self.program, "tag")
        self.assertIn("rank 2 has not arrived: it is waiting in MPI_Waitall for rank 1 (tag 10; it has sent one with tag 9)",
                      said[0])
        said = self.hang(self.program, "leave")
        self.assertRegex(said[0], r"^\d of 4 ranks ha(s|ve) waited \d+ s in MPI_Barrier #\d of MPI_COMM_WORLD")
        self.assertRegex(said[0], r"MPI_Waitall for rank 1 \(tag (10|2000)\)")

    def test_a_request_that_has_ended(self):
        said = self.hang(self.program, "reused")
        self.assertRegex(said[0], r"; ranks 0-1 have not arrived: they are waiting in MPI_Wait( at mpi_hang.c:\d+)?$")

    def test_a_rank_that_is_stopped(self):
        said = self.hang(self.program, "stopped")
        self.assertRegex(said[0], r"^rank 0 has waited \d+ s in MPI_Recv for rank 1 \(tag 7\).*, and 2 others so; "
                                  "rank 1 is stopped by a signal$")

    def test_a_message_that_has_not_come(self):
        """Others may compute: no hang; but a report names the rank."""
        launched = self.launch(self.program, "message")
        for rank in (1, 2, 3):
            self.wait_for(launched, f"rank {rank}\n")
        launched.signal(signal.SIGQUIT)
        self.wait_for(launched, "the whole report is in", "err")
        self.end_by(launched, signal.SIGINT, 130)
        self.assertRegex(launched.err, r"ddprun: hang: rank 0 has waited \d+ s in MPI_Recv for rank 1 \(tag 7\).*; "
                                       "rank 1 is ")

    def test_nothing_is_left_in_the_environment(self):
        for given in ("", "libm.so.6"):
            with self.subTest(given):
                launched = self.launch(self.program, "none", **({"LD_PRELOAD": given} if given else {}))
                launched.wait(self.deadline)
                self.assert_ended(launched, 0)
                self.assertEqual(launched.out, f"[0] LD_PRELOAD={given}\n")
                self.assertEqual(launched.err, "")

    def test_off(self):
        launched = self.launch(self.program, "half", options=(*STOP, "-x", "DDPRUN_MPI_CALLS=off", "--timeout", "4s"))
        launched.wait(self.deadline)
        self.assert_ended(launched, 124)
        self.assertNotIn("#2", launched.err)
        self.assertIn("--timeout", launched.err)

    def test_a_script(self):
        """Its program is recorded if the user says so."""
        said = self.hang("sh", "-c", f"{self.program} other; true", DDPRUN_MPI_CALLS="on")
        self.assertIn("mismatch: collective #2 of communicator 'other'", said[0])

    def test_fortran(self):
        for module in ("mpi", "mpi_f08"):
            with self.subTest(module):
                program = self.path(module)
                subprocess.run([self.mpi.mpifort, "-cpp", *(["-DF08"] if module == "mpi_f08" else []), "-o", program,
                                os.path.join(mpi.HERE, "programs", "mpi_hang.f90")], check=True)
                said = self.hang(program)
                self.assertRegex(said[0], r"^1 of 2 ranks has waited \d+ s in MPI_Ibarrier #2 of a communicator of "
                                          r"ranks 1,3.*; rank 1 has not arrived")


@unittest.skipUnless(mpi.OPENMPI.mpicc, "no Open MPI; needs package libopenmpi-dev")
@unittest.skipUnless(os.environ.get("DDPRUN_PMIX"), "no PMIx; needs package libpmix-dev")
class OpenMpi(Programs, launch.LaunchTest):
    mpi = mpi.OPENMPI

    def test_a_job_that_waits_for_what_it_has_spawned(self):
        launched = self.launch(self.program, "spawn", np=1)
        launched.wait(self.deadline)
        self.assert_ended(launched, 0)
        self.assertNotIn("hang", launched.err)

    def test_python(self):
        for wish in {}, {"DDPRUN_MPI_CALLS": "on"}:  # which loads it before Python
            with self.subTest(wish):
                said = self.hang("/usr/bin/python3", "-c", MPI4PY, np=3, **wish)
                self.assertRegex(said[0], r"^2 of 3 ranks have waited \d+ s in MPI_Barrier #2 of MPI_COMM_WORLD")


@unittest.skipUnless(mpi.MPICH.mpicc, "no MPICH; needs package libmpich-dev")
class Mpich(Programs, launch.LaunchTest):
    mpi = mpi.MPICH


if __name__ == "__main__":
    launch.main()
