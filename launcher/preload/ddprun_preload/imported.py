"""What has been imported in the helper stays as it is in the ranks: neither collected nor torn down."""
import ctypes
import gc
import io
import os
import sys

from .process import cuda, mappings, threads

# Libraries whose destructors only free memory.
PLAIN_FOLDERS = ("torch", "numpy", "numpy.libs", "lib-dynload")
PLAIN_LIBRARIES = (
    "ld-linux", "libc.", "libm.", "libdl.", "libpthread.", "librt.", "libutil.", "libgcc_s.",
    "libstdc++.", "libgomp.", "libgfortran", "libquadmath", "libpython", "libz.", "libbz2.",
    "liblzma.", "libffi.", "libssl.", "libcrypto.", "libuuid.", "libexpat.", "libnccl.",
    "libcublas", "libcudart.", "libcudnn", "libcufft", "libcufile", "libcupti", "libcurand",
    "libcusolver", "libcusparse", "libnvJitLink", "libnvrtc", "libnvshmem", "libnvToolsExt")
NEVER = 1 << 30  # objects until a collection


def libraries():
    return {path for _, path in mappings() if ".so" in path}


def only_plain(paths):
    return all(any(f"/{folder}/" in path for folder in PLAIN_FOLDERS)
               or os.path.basename(path).startswith(PLAIN_LIBRARIES) for path in paths)


def skip_destructors():
    """After Python has finished, exit() flushes stdio and calls _exit(), without the destructors of
    libraries that only free memory (libtorch destroys its operator table entry by entry). exit() calls
    handlers in reverse order."""
    libc, pointer = ctypes.CDLL(None), ctypes.c_void_p
    on_exit, at_exit = (getattr(libc, name, None) for name in ("on_exit", "__cxa_atexit"))
    if on_exit and at_exit:
        on_exit(ctypes.cast(libc._exit, pointer), None)
        at_exit(ctypes.cast(libc.fflush, pointer), None, None)


class Imported:
    def __init__(self):
        self.modules, self.libraries, self.reports_leaks, self.threshold = {}, None, False, None

    def begin(self):
        """Imports make few garbage cycles, and what they keep is exempt from collection anyway: without
        searches for cycles they take a sixth less time. The threshold, not gc.disable(): an import that
        sets one of them has its way."""
        self.threshold = gc.get_threshold()
        gc.set_threshold(NEVER, *self.threshold[1:])

    def freeze(self):
        """Exclude the imported objects from garbage collection: a collection writes to them, so
        each rank would copy nearly all their pages. They live to the end anyway."""
        self.modules = {name: module for name, module in sys.modules.items()
                        if name not in ("__main__", "__mp_main__", "builtins", "sys")}
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.modules))  # never released, except:
        # extensions made with nanobind (triton) report objects that still exist after Python's end
        self.reports_leaks = any(
            getattr(kind, "__module__", "") == "nanobind" for kind in object.__subclasses__())
        found = libraries()
        self.libraries = found if only_plain(found) else None
        # the script's own variables end at exit as without us: its functions form a cycle with this dict
        own = [ctypes.py_object(thing) for thing in (
            sys.modules["__main__"], sys.modules["__main__"].__dict__)]
        for thing in own:
            ctypes.pythonapi.PyObject_GC_UnTrack(thing)
        gc.freeze()
        for thing in own:
            ctypes.pythonapi.PyObject_GC_Track(thing)
        # only now: the next allocation would search the whole heap, for half a second after an import of
        # transformers
        if gc.get_threshold()[0] == NEVER:
            gc.set_threshold(*self.threshold)

    def skip_teardown(self):
        """At exit of a rank, after all other handlers: hide the preloaded modules from Python,
        which would destroy them one by one and so copy their shared pages. That is most of the
        cost of a short rank, and useless: the kernel frees the memory anyway. Not done while
        a thread or a device may be active, since it may depend on the order."""
        if self.reports_leaks:
            gc.unfreeze()
            ctypes.pythonapi.Py_DecRef(ctypes.py_object(self.modules))
            self.modules = {}
            return
        dist = sys.modules.get("torch.distributed")
        if threads() > 1 or cuda() or (
                dist is not None and dist.is_available() and dist.is_initialized()):
            return
        # flush files that only the modules refer to; frozen objects are not listed
        for thing in gc.get_objects():
            if type(thing) in (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom):
                try:
                    thing.flush()
                except (OSError, ValueError):
                    pass  # closed, or reported when Python flushes it again
        for name, module in self.modules.items():
            if sys.modules.get(name) is module:
                del sys.modules[name]
        if self.libraries is not None and libraries() == self.libraries:
            skip_destructors()
