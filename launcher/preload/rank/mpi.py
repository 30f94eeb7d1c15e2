"""mpi4py in a rank: what records its calls of MPI for hang reports (doc/hangs.md)."""
import ctypes
import os

MPIS = "libmpi.so", "libmpich.so", "libmpi_abi.so"
WHEELS = "mpich", "openmpi", "mpiabi"  # MPI.mpich.cpython-311-x86_64-linux-gnu.so


def load(extension, folder):
    """Before mpi4py's extension is: our libraries in `folder` stand before MPI's functions."""
    ctypes.CDLL(folder + "/ddprun-mpi-calls.so", ctypes.RTLD_GLOBAL)
    if has_large_counts(extension):
        ctypes.CDLL(folder + "/ddprun-mpi-calls-large.so", ctypes.RTLD_GLOBAL)


def has_large_counts(extension):
    """Has its MPI functions for them, as MPI_Send_c? Wheels may have loaded MPI before. They name these functions
    whether MPI has them or not; an extension that is compiled for one MPI names what this one has."""
    with open("/proc/self/maps") as f:
        files = set(line.split()[-1] for line in f)
    loaded = [file for file in files if os.path.basename(file).startswith(MPIS)]
    if loaded:
        return all(hasattr(ctypes.CDLL(file), "MPI_Send_c") for file in loaded)
    if os.path.basename(extension).split(".")[1] in WHEELS:
        return False
    with open(extension, "rb") as f:
        return b"MPI_Send_c\0" in f.read()
