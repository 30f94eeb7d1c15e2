"""mpi4py in a rank: what records its calls of MPI for hang reports (doc/hangs.md)."""
import ctypes
import sys


def load(name, finders, folder):
    """Before the extension `name` is: our libraries in `folder` stand before MPI's functions."""
    ctypes.CDLL(folder + "/ddprun-mpi-calls.so", ctypes.RTLD_GLOBAL)
    if has_large_counts(name, finders):
        ctypes.CDLL(folder + "/ddprun-mpi-calls-large.so", ctypes.RTLD_GLOBAL)


def has_large_counts(name, finders):
    """Has its MPI functions for them, as MPI_Send_c? mpi4py's wheels work with any MPI, which they load
    when the extension is found; others are compiled for one."""
    file = find(name, finders)
    with open("/proc/self/maps") as f:
        loaded = set(line.split()[-1] for line in f if "/libmpi" in line)
    if loaded:
        return any(hasattr(ctypes.CDLL(library), "MPI_Send_c") for library in loaded)
    with open(file, "rb") as f:
        return b"\0MPI_Send_c\0" in f.read()


def find(name, finders):
    """The file of a module of a package; OSError if there is none."""
    for finder in finders:
        spec = hasattr(finder, "find_spec") and finder.find_spec(name, sys.modules[name.split(".")[0]].__path__)
        if spec:
            return spec.origin
    raise OSError(name)
