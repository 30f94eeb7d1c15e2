"""PyTorch's client and ours meet at one store.   mixed.py LIBDDPSTORE PORT

Both live in this process, ours by ctypes: what one writes the other reads, and they pass a
barrier together.
"""
import ctypes
import datetime
import os
import sys
import threading

import torch.distributed as dist


class Value(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("size", ctypes.c_size_t)]


lib = ctypes.CDLL(sys.argv[1])
lib.ddp_store_connect.restype = ctypes.c_void_p
err = ctypes.create_string_buffer(512)


def ours(name, *arguments):
    assert getattr(lib, "ddp_store_" + name)(*arguments, err) == 0, err.value


port = int(sys.argv[2])
seconds = 20
theirs = dist.TCPStore("127.0.0.1", port, None, False, datetime.timedelta(seconds=seconds))
s = ctypes.c_void_p(lib.ddp_store_connect(b"127.0.0.1", port,
                                          ctypes.c_int64(seconds * 1000), err))
assert s, err.value

value, number = Value(), ctypes.c_int64()
theirs.set("from torch", b"a\0b")
ours("get", s, b"from torch", ctypes.byref(value))
assert ctypes.string_at(value.data, value.size) == b"a\0b"
lib.ddp_values_free(ctypes.byref(value), ctypes.c_size_t(1))

ours("set", s, b"from C", b"c\0d", ctypes.c_size_t(3))
assert theirs.get("from C") == b"c\0d"

both, late_key, gate_key = (f"{k}{os.getpid()}" for k in ("both", "late", "gate"))
theirs.add(both, 2)
ours("add", s, both.encode(), ctypes.c_int64(40), ctypes.byref(number))
assert number.value == 42 and theirs.add(both, 0) == 42

late = threading.Timer(0.1, lambda: theirs.set(late_key, "x"))
late.start()
ours("get", s, late_key.encode(), ctypes.byref(value))  # waits; the other client is not in its way
lib.ddp_values_free(ctypes.byref(value), ctypes.c_size_t(1))
late.join()

if hasattr(theirs, "barrier"):
    gate = threading.Thread(target=theirs.barrier, args=(gate_key, 2))
    gate.start()
    ours("barrier", s, gate_key.encode(), ctypes.c_int64(2))
    gate.join(seconds)
    assert not gate.is_alive()
lib.ddp_store_close(s)
print("held: mixed on rank 0")
