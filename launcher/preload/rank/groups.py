"""PyTorch's process groups in a rank: its flight recorder for hang reports (doc/hangs.md)."""
import os
import sys

QUIET = 2  # log level of c10: errors


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
