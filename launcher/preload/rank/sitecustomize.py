"""Start-up of a Python rank: prepares what a hang report reads (doc/hangs.md).

The agent puts this folder first in the PYTHONPATH of a rank; a rank that is forked from the
preload helper calls set_up() itself. DDPRUN_DIAGNOSE is "FOLDER/RANK"; the files made there begin
with "RANK.PID". Nothing runs in the rank until a report is asked for. Python 3.8 and later.
"""
import os
import sys

SIGNAL = 61  # SIGRTMAX-3: faulthandler writes the stacks of all threads
STACKS_FD = 62  # above the descriptors that programs use; the reporter checks that it is ours
QUIET = 2  # log level of c10: errors


def remove_folder(here):
    """Remove this folder from the path, and import the sitecustomize that it hid, if any. Returns
    the exception if there is none, to be raised at the end, as Python expects."""
    if here in sys.path:
        sys.path.remove(here)
    sys.path_importer_cache.pop(here, None)
    sys.modules.pop("sitecustomize", None)
    try:
        __import__("sitecustomize")
    except ImportError as e:
        if e.name != "sitecustomize":
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
    """First in sys.meta_path until torch.distributed is imported; finds no module."""
    __module__ = "ddprun"

    def __init__(self, stem):
        self.stem = stem

    def find_spec(self, name, path=None, target=None):
        if name.startswith("torch.distributed."):
            c10d = sys.modules.get("torch.distributed.distributed_c10d")
            if hasattr(c10d, "_new_process_group_helper"):
                sys.meta_path.remove(self)
                watch_groups(c10d, self.stem)


def watch_groups(c10d, stem):
    """Before the first process group is made, open PyTorch's control plane (2.15 and later) on a
    unix socket: one thread, which serves its flight recorder. Record the ranks of each group."""
    server = getattr(sys.modules.get("torch._C._distributed_c10d"), "_WorkerServer", None)
    make = c10d._new_process_group_helper
    if server is None:
        return

    def _new_process_group_helper(*args, **kwargs):
        try:
            if not opened:
                opened.append(open_server(server, stem + ".sock"))
            name = kwargs["group_name"] if "group_name" in kwargs else args[5]
            ranks = ",".join(map(str, args[2]))
            with open(stem + ".groups", "a") as f:
                f.write(f"{name} {ranks}\n")
        except Exception:  # without it the reports say less
            pass
        return make(*args, **kwargs)

    opened = []
    c10d._new_process_group_helper = _new_process_group_helper


def open_server(server, path):
    """The server logs each of its steps as a warning: set the level for these moments."""
    import atexit
    import ctypes
    folder = os.path.dirname(sys.modules["torch"].__file__)
    level = ctypes.c_int.in_dll(ctypes.CDLL(os.path.join(folder, "lib", "libc10.so")),
                                "FLAGS_caffe2_log_level")

    def quietly(call, *args):
        before, level.value = level.value, max(QUIET, level.value)
        try:
            return call(*args)
        finally:
            level.value = before

    opened = quietly(server, path)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(opened))  # its destructor logs too
    owner = os.getpid()
    atexit.register(lambda: os.getpid() == owner and quietly(opened.shutdown))
    return opened


def set_up():
    stem = os.environ.get("DDPRUN_DIAGNOSE")
    if not stem:
        return
    try:
        stem = f"{stem}.{os.getpid()}"
        register_stacks(stem + ".stacks")
        c10d = sys.modules.get("torch.distributed.distributed_c10d")
        if c10d:
            watch_groups(c10d, stem)
        else:
            sys.meta_path.insert(0, Finder(stem))
    except (OSError, RuntimeError, ImportError):
        pass  # the folder is gone, or the signal is taken: a report has /proc only


if __name__ == "sitecustomize":
    HERE = os.path.dirname(__file__)
    restore_variable(HERE)
    set_up()
    missing = remove_folder(HERE)
    if missing is not None:
        raise missing
