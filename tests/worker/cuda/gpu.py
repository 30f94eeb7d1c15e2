"""gpu.py - what the tests of the engine for GPUs share; arguments as test_cuda.py's"""
import ctypes
import gzip
import os
import re
import struct
import sys

sys.path.insert(0, os.path.join(sys.argv[2], "tests", "worker", "train"))
from ranks import losses, rows, run_ok  # noqa: E402

ENGINE = os.path.abspath(sys.argv[3])
EMULATED = "emulated" in ENGINE
DIGITS = os.path.join(os.path.abspath(sys.argv[2]), "worker", "data", "digits")
CACHE = os.environ["XDG_CACHE_HOME"] = "cache"  # in each test's folder
FEW = ("--data", "few", "--epochs", 2, "--plot", "none", "--seed", 3)


def count_gpus():
    if EMULATED:
        return 8
    n = ctypes.c_int(0)
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    return n.value if driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(n)) == 0 else 0


GPUS = count_gpus()


def on_gpu(**more):
    return {"DDP_ENGINE": ENGINE, "EMU_DEVICES": "8", **more}


def few_digits(folder="few", train=90, test=24, black=False):
    """The first training and test images, or as many black ones: the emulation is slow."""
    os.mkdir(folder)
    for part, n in (("train", train), ("t10k", test)):
        for kind, size in (("images-idx3", 64), ("labels-idx1", 1)):
            name = f"{part}-{kind}-ubyte"
            with gzip.open(os.path.join(DIGITS, name + ".gz")) as f:
                raw = f.read()
            head = 16 if size > 1 else 8
            with open(os.path.join(folder, name), "wb") as f:
                found = raw[head:head + n * size]
                f.write(raw[:4] + struct.pack(">I", n) + raw[8:head] +
                        (bytes(len(found)) if black and size > 1 else found))


def narrow_resnet18():
    """resnet18; for the emulation, which is slow, a file of the same layers with a sixteenth of their channels."""
    if not EMULATED:
        return "resnet18"
    with open(os.path.join(sys.argv[2], "models", "resnet18.model")) as f, open("narrow.model", "w") as narrow:
        narrow.write(re.sub(r"outputs=(\d+)", lambda m: f"outputs={int(m[1]) // 16}", f.read()))
    return "./narrow.model"


def same(a, b, tolerance):
    assert len(a) == len(b) and len(a) > 1, (a, b)
    for x, y in zip(a, b):
        assert abs(x - y) <= tolerance * max(1, abs(x)), (a, b)


def on_cpu(n, name, *args):
    run_ok(n, *args, "--engine", "cpu", "--kernels", "simd", "--log", name + ".cpu")


def as_on_cpu(n, name, *args, tolerance=2e-5, precision="fp32", **env):
    """The run on the GPU, beside the one that on_cpu() has seen; returns what it showed."""
    log = f"{name}.{precision}"
    shown = run_ok(n, *args, "--engine", "cuda", "--log", log, "--precision", precision,
                   env=on_gpu(**env)).out
    same(losses(name + ".cpu"), losses(log), tolerance)
    a, b = rows(name + ".cpu", "epoch")[-1], rows(log, "epoch")[-1]
    assert abs(a["test_loss"] - b["test_loss"]) <= tolerance * max(1, a["test_loss"]), (a, b)
    return shown


def both(n, name, *args, **more):
    on_cpu(n, name, *args)
    return as_on_cpu(n, name, *args, **more)
