#!/usr/bin/env python3
"""JAX: jax.distributed.initialize() without arguments finds coordinator, size and rank."""

import os
import subprocess
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "system"))
import launch  # noqa: E402
import wheels  # noqa: E402

SUM = os.path.join(HERE, "programs", "jax_sum.py")
# the oldest and the newest that Debian 12's Python can use
VERSIONS = {"jax-0.4.30": ["jax==0.4.30", "numpy<2", "mpi4py==4.1.2"],
            "jax-0.10.2": ["jax==0.10.2", "mpi4py==4.1.2"]}
BATCH_STEP = {"SLURM_JOB_ID": "77", "SLURM_JOB_NODELIST": "node9", "SLURM_STEP_NODELIST": "node9",
              "SLURM_NTASKS": "1", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_STEP_ID": "0"}
pythons = {}


class Jax(launch.LaunchTest):
    deadline = 200.0

    def held(self, python, ranks, *arguments, env=None, mpi=0):
        launched = self.run_to_end("-H", f"localhost:{ranks}", "--tag-output=off", "--alloc",
                                   "hosts", python, SUM, *arguments, env=env or {})
        self.assert_ended(launched, 0)
        total = ranks * (ranks + 1) // 2
        for rank in range(ranks):
            self.assertIn(f"held: rank {rank} of {ranks} sum {total} mpi {mpi}\n", launched.out)

    def test_processes_find_each_other(self):
        for version, python in pythons.items():
            for ranks in 2, 8:
                with self.subTest(jax=version, ranks=ranks):
                    self.held(python, ranks)

    def test_in_a_batch_job_of_slurm(self):
        for version, python in pythons.items():
            with self.subTest(jax=version):
                self.held(python, 2, env=BATCH_STEP)

    def test_beside_mpi4py(self):
        for version, python in pythons.items():
            if not os.environ.get("DDPRUN_PMIX") or subprocess.run(
                    [python, "-c", "from mpi4py import MPI"], stderr=subprocess.DEVNULL).returncode:
                self.skipTest("mpi4py finds no MPI; needs package libopenmpi-dev")
            with self.subTest(jax=version):
                self.held(python, 2, "mpi4py", mpi=2)


if __name__ == "__main__":
    try:
        for name, packages in VERSIONS.items():
            pythons[name] = os.path.join(
                wheels.installed(name, *packages, seconds=200), "bin", "python")
    except (OSError, subprocess.SubprocessError) as why:
        print(f"skipped: no wheels of JAX: {why}; needs network")
        sys.exit(77)
    unittest.main(verbosity=2)
