"""wheels.py header|library NAME... - files of NVIDIA's Python packages, for meson.build

Where a toolkit has no cuDNN or NCCL, PyTorch's has: its wheels (nvidia-cudnn-cu13 and the like)
lie in the folder `nvidia` of a Python's packages, headers and all, but their libraries have no
plain names to link with. Prints a line for each: the folder of a header, the file of a library,
or an empty line."""
import glob
import importlib.util
import os
import sys


def places(kind):
    """Folders of all packages, those that keep to one folder a CUDA version first."""
    spec = importlib.util.find_spec("nvidia")
    for root in spec.submodule_search_locations if spec else ():
        yield from sorted(glob.glob(os.path.join(root, "cu[0-9]*", kind)), reverse=True)
        yield from sorted(glob.glob(os.path.join(root, "*", kind)))


def header(name):
    return next((p for p in places("include") if os.path.exists(os.path.join(p, name))), "")


def library(name):
    for place in places("lib"):
        found = sorted(glob.glob(os.path.join(place, f"lib{name}.so*")))
        if found:
            return found[0]
    return ""


for name in sys.argv[2:]:
    print({"header": header, "library": library}[sys.argv[1]](name))
