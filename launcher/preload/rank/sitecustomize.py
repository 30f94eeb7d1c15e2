"""Start-up of a Python rank: prepares what a hang report reads (doc/hangs.md), and PyTorch for a port that the
program chooses.

The agent puts this folder first in the PYTHONPATH of a rank; a rank that is forked from the
preload helper calls set_up() itself. DDPRUN_DIAGNOSE is "FOLDER/RANK"; the files made there begin
with "RANK.PID". Nothing runs in the rank until a report is asked for. Python 3.6 and later; in Python 2
only the path is restored.
"""
import os
import sys

SIGNAL = 61  # SIGRTMAX-3: faulthandler writes the stacks of all threads
STACKS_FD = 62  # above the descriptors that programs use; the reporter checks that it is ours


def remove_folder(*ours):
    """Remove our folders from the path, and import the sitecustomize that it hid, if any. Returns
    the exception if there is none, to be raised at the end, as Python expects."""
    for folder in ours:
        if folder in sys.path:
            sys.path.remove(folder)
        sys.path_importer_cache.pop(folder, None)
    sys.modules.pop("sitecustomize", None)
    try:
        __import__("sitecustomize")
    except ImportError as e:
        if getattr(e, "name", "sitecustomize") != "sitecustomize":
            raise
        return e
    return None


def restore_variable(here):
    """Children of the rank, and the script, see the PYTHONPATH of the user. A slash at the end:
    it was set, but empty."""
    path = os.environ.get("PYTHONPATH")
    if path == here:
        del os.environ["PYTHONPATH"]
    elif path == here + "/":
        os.environ["PYTHONPATH"] = ""
    elif path:
        os.environ["PYTHONPATH"] = path.replace(here + ":", "", 1)


def register_stacks(path):
    import faulthandler
    try:
        os.fstat(STACKS_FD)
        return  # in use
    except OSError:
        pass
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    os.dup2(fd, STACKS_FD, inheritable=False)
    os.close(fd)
    faulthandler.register(SIGNAL, file=STACKS_FD)


class Finder:
    """First in sys.meta_path until `wants`, called with each name, returns True; finds no module itself.
    `found` is called with the spec that another has found."""
    __module__ = "ddprun"

    def __init__(self, wants, found=None):
        self.wants = wants
        self.found = found

    def find_spec(self, name, path=None, target=None):
        if path is None or not self.wants(name):  # None: not an import of a submodule
            return None
        # who goes through the list leaves out the next one when this one is removed
        behind = sys.meta_path[sys.meta_path.index(self) + 1:] if self in sys.meta_path else []
        sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not self]
        for finder in behind:
            spec = hasattr(finder, "find_spec") and finder.find_spec(name, path, target)
            if spec:
                if self.found:
                    self.found(spec)
                return spec
        return None


def find_torch(stem, name):
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    if not name.startswith("torch.distributed.") or not hasattr(c10d, "_new_process_group_helper"):
        return False
    watch_torch(c10d, stem)
    return True


def watch_torch(c10d, stem):
    """In files of their own, as most ranks' start-up does not need them."""
    rendezvous = sys.modules.get("torch.distributed.rendezvous")
    try:
        run_file("groups.py")["watch_groups"](c10d, stem)
        if hasattr(rendezvous, "_create_c10d_store"):
            run_file("store.py")["watch_store"](rendezvous, os.environ.get("DDPRUN_MASTER_PORT"))
    except OSError:
        pass  # not installed


def load_mpi(spec):
    """Before mpi4py's extension is loaded: our libraries stand before MPI's functions."""
    if os.environ.get("DDPRUN_MPI_CALLS") == "off":
        return
    try:
        run_file("mpi.py")["load"](spec.origin, os.path.dirname(os.path.dirname(here())))
    except Exception:  # not installed, or a finder of the user's: reports say less
        pass


def here():
    return os.path.dirname(here.__code__.co_filename)


def run_file(name):
    path = os.path.join(here(), name)
    space = {}
    with open(path, encoding="utf-8") as f:
        exec(compile(f.read(), path, "exec"), space)
    return space


def add_local_rank():
    """What DeepSpeed's launcher gives to each script (--as deepspeed)."""
    if os.environ.pop("DDPRUN_LOCAL_RANK_ARG", "0") == "1":
        sys.argv.insert(1, "--local_rank=" + os.environ["LOCAL_RANK"])


def set_up():
    add_local_rank()
    stem = os.environ.get("DDPRUN_DIAGNOSE")
    if not stem:
        return
    try:
        stem = "%s.%d" % (stem, os.getpid())
        register_stacks(stem + ".stacks")
        c10d = sys.modules.get("torch.distributed.distributed_c10d")
        if c10d:
            watch_torch(c10d, stem)
        else:
            sys.meta_path.insert(0, Finder(lambda name: find_torch(stem, name)))
        sys.meta_path.insert(0, Finder(lambda name: name == "mpi4py.MPI", load_mpi))
    except (OSError, RuntimeError, ImportError):
        pass  # the folder is gone, or the signal is taken: a report has /proc only


if __name__ == "sitecustomize":
    HERE = os.path.dirname(__file__)
    restore_variable(HERE)
    set_up()
    missing = remove_folder(HERE)
    if missing is not None:
        raise missing
