"""JAX in a job of a real Slurm: jax.distributed.initialize() without arguments."""

import os
import subprocess
import sys
import unittest

import hosts
from hosts import main, node
from test_sched import JobTest, UsesSlurm

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "interop"))
import jax_programs  # noqa: E402
import wheels  # noqa: E402

setUpModule = hosts.set_up
tearDownModule = hosts.tear_down


class Jax(UsesSlurm, JobTest):
    user = "root"  # whose environments of Python other users cannot read

    @classmethod
    def setUpClass(cls):
        name = "jax-0.10.2"
        try:
            cls.python = os.path.join(
                wheels.installed(name, *jax_programs.VERSIONS[name], seconds=200), "bin", "python")
        except (OSError, subprocess.SubprocessError) as why:
            raise unittest.SkipTest(f"no wheels of JAX: {why}; needs network") from why
        super().setUpClass()

    def test_processes_on_two_hosts_find_each_other(self):
        said = self.batch("-p dgx -N2 -n2", f"$ddprun {self.python} {jax_programs.SUM}; echo code $?")
        for rank in 0, 1:
            self.assertIn(f"[{rank} {node(1 + rank)}] held: rank {rank} of 2 sum 3 mpi 0\n", said)
        self.assertIn("code 0", said)


if __name__ == "__main__":
    main(hosts.missing("slurmctld"))
