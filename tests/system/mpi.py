"""MPI programs for the tests, compiled with whatever MPI this machine has."""

import os
import shutil
import subprocess

HERE = os.path.dirname(os.path.abspath(__file__))


class Mpi:
    """An MPI: its compiler, and what it calls itself."""

    def __init__(self, name, compilers):
        self.name = name
        self.mpicc = next(filter(None, map(shutil.which, compilers)), None)
        self.mpifort = self.mpicc and self.mpicc.replace("mpicc", "mpifort")

    def compile(self, folder, source="mpi_check.c"):
        program = os.path.join(folder, f"{source.rpartition('.')[0]}.{self.name}")
        if not os.path.exists(program):
            subprocess.run(
                [self.mpicc, "-w", "-O1", "-o", program, os.path.join(HERE, "programs", source)],
                check=True,
            )
        return program


def needs_pmix(file):
    """Ubuntu 24.04's MPICH was built for PMIx: no Hydra can start its programs."""
    needed = subprocess.run(["ldd", file], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False)
    return "libpmix" in needed.stdout


OPENMPI = Mpi("openmpi", ("mpicc.openmpi",))
MPICH = Mpi("mpich", ("mpicc.mpich",))
# without a bond to two cores that others use, and without what tests do not look at
QUICK = {
    "OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self,vader,tcp",
    "OMPI_MCA_btl_base_warn_component_unused": "0",
    "UCX_TLS": "self,sm",  # MPICH: no network devices, as those of other tests come and go
}
