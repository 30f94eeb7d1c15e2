"""ddpgroup.py - process groups of ddprun for Python, by ctypes: nothing to install

    import ddpgroup
    group = ddpgroup.Group()          # rank, size, rendezvous: from the environment
    x = group.array(1000, "float32")  # in memory that the ranks of a host share
    group.all_reduce(x)

Arrays are contiguous numpy arrays; every call works in place and raises ddpgroup.Error
with the library's error text. The library is searched at $DDPGROUP_LIBRARY, in a build
directory, in the lib/ above this module, and in the system's library path.
include/ddprun/group.h documents the calls.
"""
import ctypes as c
import glob
import os

TYPES = {"float32": 0, "float64": 1, "int32": 2, "int64": 3, "uint8": 4, "float16": 5,
         "bfloat16": 6, "int8": 7}
OPS = {"sum": 0, "product": 1, "max": 2, "min": 3, "avg": 4, "band": 5, "bor": 6, "bxor": 7}


class Error(RuntimeError):
    pass


class Err(c.Structure):
    _fields_ = [("text", c.c_char * 512)]


class Options(c.Structure):
    _fields_ = [("rank", c.c_int), ("size", c.c_int), ("master_addr", c.c_char_p),
                ("master_port", c.c_int), ("name", c.c_char_p), ("timeout_ms", c.c_int64),
                ("arena_bytes", c.c_size_t), ("backend", c.c_char_p),
                ("meeting", c.c_char_p), ("world_ranks", c.POINTER(c.c_int))]


def _load():
    here = os.path.dirname(os.path.abspath(__file__))
    places = [os.environ.get("DDPGROUP_LIBRARY")]
    places += sorted(glob.glob(os.path.join(here, "../../build*/worker/group/libddpgroup.so")))
    places += [os.path.join(here, up, "libddpgroup.so.0")
               for up in ("..", "../..", "../../../lib", "../../../lib64")]
    places += sorted(glob.glob(os.path.join(here, "../../*/libddpgroup.so.0")))  # Debian: lib/x86_64-linux-gnu
    lib = c.CDLL(next((p for p in places if p and os.path.exists(p)), "libddpgroup.so.0"))
    for name in ("ddp_group_init", "ddp_group_sub", "ddp_arena_alloc"):
        getattr(lib, name).restype = c.c_void_p
    lib.ddp_group_backend.restype = c.c_char_p
    return lib


library = _load()


def _text(text):
    return text.encode() if text is not None else None


class Group:
    def __init__(self, rank=-1, size=0, timeout=0, backend=None, meeting=None, name=None,
                 _pointer=None):
        options = Options(rank=rank, size=size, timeout_ms=int(timeout * 1000),
                           backend=_text(backend), meeting=_text(meeting), name=_text(name))
        self._g = c.c_void_p(_pointer or self._made(library.ddp_group_init, c.byref(options)))
        self.rank = library.ddp_group_rank(self._g)
        self.size = library.ddp_group_size(self._g)
        self.backend = library.ddp_group_backend(self._g).decode()

    @staticmethod
    def _made(function, *args):
        err = Err()
        pointer = function(*args, c.byref(err))
        if not pointer:
            raise Error(err.text.decode())
        return pointer

    def _open(self):
        if not self._g:
            raise Error("the group is closed")
        return self._g

    def _call(self, function, *args):
        err = Err()
        if function(self._open(), *args, c.byref(err)) != 0:
            raise Error(err.text.decode())

    @staticmethod
    def _data(array, least=0):
        if array is None and least == 0:
            return None
        if array is None:
            raise Error(f"an array of {least} elements is needed")
        if not array.flags["C_CONTIGUOUS"]:
            raise Error("the array is not contiguous")
        if array.size < least:
            raise Error(f"the array has {array.size} elements, and {least} are needed")
        return c.c_void_p(array.ctypes.data)

    @classmethod
    def _out(cls, array, least=0):
        if array is not None and not array.flags["WRITEABLE"]:
            raise Error("the array is read-only")
        return cls._data(array, least)

    @staticmethod
    def _type(array, bfloat16, other=None):
        """That of both arrays."""
        kind = array.dtype
        if other is not None and other.dtype != kind:
            raise Error(f"an array of {kind} and one of {other.dtype}")
        if bfloat16 and kind.name != "uint16":
            raise Error(f"bfloat16 is the bits in an array of uint16, not of {kind}")
        name = "bfloat16" if bfloat16 else kind.name
        if name not in TYPES or not kind.isnative:
            raise Error(f"no such element type '{kind}': {', '.join(TYPES)}")
        return TYPES[name]

    @staticmethod
    def _op(name):
        if name not in OPS:
            raise Error(f"no such operation '{name}': {', '.join(OPS)}")
        return OPS[name]

    def _counts(self, counts):
        if len(counts) != self.size:
            raise Error(f"{len(counts)} counts for {self.size} ranks")
        return (c.c_size_t * self.size)(*counts)

    def array(self, shape, dtype="float32"):
        """An array of zeros in the arena, valid until the group is closed."""
        import numpy as np  # all else works without
        count = int(np.prod(shape))
        nbytes = count * np.dtype(dtype).itemsize
        at = self._made(library.ddp_arena_alloc, self._open(), c.c_size_t(nbytes))
        return np.frombuffer((c.c_char * nbytes).from_address(at), dtype).reshape(shape)

    def split(self, colour, key=0):
        """The subgroup of this rank's colour, or None for a negative colour."""
        sub = c.c_void_p()
        self._call(library.ddp_group_split, colour, key, c.byref(sub))
        return Group(_pointer=sub.value) if sub.value else None

    def sub(self, ranks):
        numbers = (c.c_int * len(ranks))(*ranks)
        return Group(_pointer=self._made(library.ddp_group_sub, self._open(), numbers,
                                         len(ranks)))

    def close(self):
        if self._g:
            library.ddp_group_destroy(self._g)
        self._g = None

    def barrier(self):
        self._call(library.ddp_barrier)

    def send(self, x, dest, tag=0):
        self._call(library.ddp_send, self._data(x), c.c_size_t(x.nbytes), dest, tag)

    def recv(self, x, source, tag=0):
        self._call(library.ddp_recv, self._out(x), c.c_size_t(x.nbytes), source, tag)

    # bfloat16=True: the array is of uint16 and holds the bits

    def broadcast(self, x, root=0, bfloat16=False):
        self._call(library.ddp_broadcast, self._data(x) if self.rank == root else self._out(x),
                   c.c_size_t(x.size), self._type(x, bfloat16), root)

    def all_reduce(self, x, op="sum", bfloat16=False):
        self._call(library.ddp_all_reduce, self._out(x), c.c_size_t(x.size),
                   self._type(x, bfloat16), self._op(op))

    def reduce(self, x, out=None, op="sum", root=0, bfloat16=False):
        out = out if self.rank == root else None
        self._call(library.ddp_reduce, self._data(x),
                   self._out(out, x.size if self.rank == root else 0), c.c_size_t(x.size),
                   self._type(x, bfloat16, out), self._op(op), root)

    def all_gather(self, x, out, counts=None, bfloat16=False):
        kind = self._type(x, bfloat16, out)
        if counts is None:
            self._call(library.ddp_all_gather, self._data(x), self._out(out, x.size * self.size),
                       c.c_size_t(x.size), kind)
        else:
            sizes = self._counts(counts)
            self._call(library.ddp_all_gatherv, self._data(x, sizes[self.rank]),
                       self._out(out, sum(sizes)), sizes, kind)

    def reduce_scatter(self, x, out, counts=None, op="sum", bfloat16=False):
        kind = self._type(x, bfloat16, out)
        if counts is None:
            self._call(library.ddp_reduce_scatter, self._data(x, out.size * self.size),
                       self._out(out), c.c_size_t(out.size), kind, self._op(op))
        else:
            sizes = self._counts(counts)
            self._call(library.ddp_reduce_scatterv, self._data(x, sum(sizes)),
                       self._out(out, sizes[self.rank]), sizes, kind, self._op(op))

    def gather(self, x, out=None, counts=None, root=0):
        mine = self.rank == root
        out = out if mine else None
        kind = self._type(x, False, out)
        if counts is None:
            self._call(library.ddp_gather, self._data(x),
                       self._out(out, x.size * self.size if mine else 0),
                       c.c_size_t(x.size), kind, root)
        else:
            sizes = self._counts(counts)
            self._call(library.ddp_gatherv, self._data(x), c.c_size_t(x.size),
                       self._out(out, sum(sizes) if mine else 0), sizes, kind, root)

    def scatter(self, x, out, counts=None, root=0):
        mine = self.rank == root
        x = x if mine else None
        kind = self._type(out, False, x)
        if counts is None:
            self._call(library.ddp_scatter, self._data(x, out.size * self.size if mine else 0),
                       self._out(out), c.c_size_t(out.size), kind, root)
        else:
            sizes = self._counts(counts)
            self._call(library.ddp_scatterv, self._data(x, sum(sizes) if mine else 0), sizes,
                       self._out(out), c.c_size_t(out.size), kind, root)

    def all_to_all(self, x, out, send_counts=None, recv_counts=None):
        kind = self._type(x, False, out)
        if send_counts is None:
            each, rest = divmod(x.size, self.size)
            if rest:
                raise Error(f"{x.size} elements cannot be split evenly among {self.size} ranks")
            self._call(library.ddp_all_to_all, self._data(x), self._out(out, each * self.size),
                       c.c_size_t(each), kind)
        else:
            to, of = self._counts(send_counts), self._counts(recv_counts)
            self._call(library.ddp_all_to_allv, self._data(x, sum(to)), to,
                       self._out(out, sum(of)), of, kind)
