"""What the kernel and the interpreter know about this process."""
import ctypes
import os
import sys

PR_SET_PDEATHSIG, SIGKILL = 1, 9


def die_with_parent(yes=True):
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, SIGKILL if yes else 0)


def threads():
    return len(os.listdir("/proc/self/task"))


def count_threads():
    """Fork-safe libraries (OpenBLAS) stop their threads before a fork, so a trial fork comes
    first."""
    if threads() > 1:
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
    return f"an import has started threads ({threads()} now)" if threads() > 1 else None


def mappings():
    """(permissions, path) of each mapping of memory; "": it has none."""
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
        for line in maps:
            words = line.rstrip("\n").split(maxsplit=5)
            yield words[1], words[5] if len(words) > 5 else ""


def read_only(fd):
    with open(f"/proc/self/fdinfo/{fd}") as info:
        flags = next(line.split()[1] for line in info if line.startswith("flags:"))
    return int(flags, 8) & os.O_ACCMODE == os.O_RDONLY


def descriptors():
    """(number, target) of open descriptors except 0, 1, 2."""
    for fd in os.listdir("/proc/self/fd"):
        try:
            if int(fd) > 2:
                yield int(fd), os.readlink(f"/proc/self/fd/{fd}")
        except OSError:
            pass  # the descriptor of listdir() itself


def code_descriptors():
    """libffi keeps its own library open, to map it again: each rank needs this descriptor,
    under the same number."""
    code = {path for permissions, path in mappings() if "x" in permissions}
    return {fd for fd, target in descriptors() if target in code and read_only(fd)}


def cuda():
    torch = sys.modules.get("torch")
    used = torch is not None and hasattr(torch, "cuda") and torch.cuda.is_initialized()
    return "an import has initialised CUDA" if used else None


def refuses_cuda():
    """In a fork: torch refuses to initialise CUDA, as the parent has counted the devices, by
    torch.cuda.is_available(), say."""
    torch = sys.modules.get("torch")
    refuses = getattr(getattr(torch, "cuda", None), "_is_in_bad_fork", None)
    return bool(refuses and refuses())
