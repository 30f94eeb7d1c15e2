"""PyTorch's process groups in a rank: its flight recorder for hang reports (doc/hangs.md)."""
import os
import sys

QUIET = 2  # log level of c10: errors


def watch_groups(c10d, stem):
    """Before the first process group is made, open PyTorch's control plane (2.15 and later) on a
    unix socket: one thread, which serves its flight recorder. Record each group: "NAME RANKS" when
    the making of it begins (a name of "-": PyTorch numbers it), "." when it ends."""
    server = getattr(sys.modules.get("torch._C._distributed_c10d"), "_WorkerServer", None)
    make = c10d._new_process_group_helper

    def record(line):
        with open(stem + ".groups", "a") as f:
            f.write(line + "\n")

    def _new_process_group_helper(*args, **kwargs):
        try:
            name = kwargs.get("group_name") or (args[5] if len(args) > 5 else "-")
            record(f"{name} {','.join(map(str, args[2]))}")
            if server and not opened:
                opened.append(open_server(server, stem + ".sock"))
        except Exception:  # without it the reports say less
            pass
        try:
            return make(*args, **kwargs)
        finally:
            try:
                record(".")
            except OSError:
                pass  # the job ends

    opened = []
    c10d._new_process_group_helper = _new_process_group_helper


def open_server(server, path):
    """The server logs each of its steps as a warning: set the level for these moments."""
    import atexit
    import ctypes
    import socket
    folder = os.path.dirname(sys.modules["torch"].__file__)
    level = ctypes.c_int.in_dll(ctypes.CDLL(os.path.join(folder, "lib", "libc10.so")),
                                "FLAGS_caffe2_log_level")

    def quietly(call, *args):
        before, level.value = level.value, max(QUIET, level.value)
        try:
            return call(*args)
        finally:
            level.value = before

    def close():
        """A request first: if the server's thread does not listen yet, shutdown() does not end it, and
        waits for its end for ever."""
        try:
            with socket.socket(socket.AF_UNIX) as client:
                client.settimeout(10)
                client.connect(path)
                client.sendall(b"GET / HTTP/1.0\r\n\r\n")
                while client.recv(4096):
                    pass
        except OSError:
            pass  # the job's folder is gone, or the server does not answer
        opened.shutdown()

    opened = quietly(server, path)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(opened))  # its destructor logs too
    owner = os.getpid()
    atexit.register(lambda: os.getpid() == owner and quietly(close))
    return opened
