#!/usr/bin/env python3
"""numpy_collectives.py SOURCE LIBRARY [--all]: what the process group computes is what numpy does

Every collective, operation, type and size, for every number of ranks and shape of group,
through the C API by ctypes (packaging/python/ddpgroup.py). The ranks are forked processes
that meet in a file; DDP_HOST_ID makes hosts of them. Without --all every other shape: the
C tests (test_group.c) have all of them anyway. numpy is that of the system, or the one that
came with the PyTorch of the interop tests; skipped where there is neither."""
import functools
import os
import subprocess
import sys
import tempfile
import traceback

SOURCE, os.environ["DDPGROUP_LIBRARY"] = sys.argv[1:3]
sys.path.insert(0, os.path.join(SOURCE, "packaging/python"))
sys.dont_write_bytecode = True
try:
    import numpy as np
except ImportError:
    other = subprocess.run(["sh", os.path.join(SOURCE, "tests/interop/torch-env.sh")],
                           capture_output=True, text=True).stdout.strip()
    if other and "NUMPY_TRIED" not in os.environ:
        os.execve(other, [other] + sys.argv, dict(os.environ, NUMPY_TRIED="1"))
    print("skipped: no Python here has numpy; needs package python3-numpy")
    sys.exit(77)
import ddpgroup

SHAPES = ["a", "aa", "aaa", "aaaa", "aaaaa", "aaaaaa", "aaaaaaa", "aaaaaaaa",
          "ab", "abc", "abcdefgh", "aab", "abab", "aaabbc", "abcabcab"]
SIZES = [0, 1, 37, 5003, 40001]
FLOATS = {"float32", "float64", "float16", "bfloat16"}
NUMPY_OPS = {"sum": np.add, "product": np.multiply, "max": np.maximum, "min": np.minimum,
             "avg": np.add, "band": np.bitwise_and, "bor": np.bitwise_or,
             "bxor": np.bitwise_xor}


class Kind:
    """A type, and how numpy holds it: of bfloat16 it knows the bits alone."""

    def __init__(self, name):
        self.name = name
        self.short = name == "bfloat16"
        self.dtype = np.dtype("uint16" if self.short else name)

    def make(self, values):
        if not self.short:
            return values.astype(self.dtype)
        bits = values.astype("float32").view("uint32")
        return ((bits + 0x7fff + ((bits >> 16) & 1)) >> 16).astype("uint16")

    def wide(self, array):
        """As something that numpy computes with: the short floats as float32."""
        if self.short:
            return (array.astype("uint32") << 16).view("float32")
        return array.astype("float32") if self.name == "float16" else array

    def fold(self, arrays, op):
        total = self.wide(arrays[0])
        with np.errstate(over="ignore"):
            for a in arrays[1:]:
                total = NUMPY_OPS[op](total, self.wide(a))
        if op == "avg" and self.name in FLOATS:
            total = total / total.dtype.type(len(arrays))
        elif op == "avg":  # towards zero
            total = np.trunc(total.astype("float64") / len(arrays))
        return self.make(total)


@functools.cache  # most of the time went into drawing them again for each type and operation
def drawn(product, small, rank, count, seed):
    random = np.random.default_rng([rank, count, seed])
    if product:
        return random.choice(np.array([1, -1, 1, 2], "int8"), count)
    return random.integers(*((0, 25) if small else (-7, 8)), count, "int8")


def values(kind, op, rank, count, seed):
    """Small whole numbers: every order of adding them gives the same."""
    made = drawn(op == "product", kind.name in ("uint8", "int8"), rank, count, seed)
    return kind.make(np.abs(made) if kind.name == "uint8" else made)


class Checker:
    def __init__(self, group):
        self.g, self.checks = group, 0

    def same(self, got, want, *what):
        self.checks += 1
        if not np.array_equal(got, want):
            raise AssertionError(f"{what}: {got[:8]} and not {want[:8]}")

    def uneven(self, count, shift):
        return [(count, count // 3, 0)[(r + shift) % 3] for r in range(self.g.size)]

    def reduces(self, kind, op, count, arena):
        g, n = self.g, self.g.size
        all_ = [values(kind, op, r, count, 1) for r in range(n)]
        want = kind.fold(all_, op)
        what = (kind.name, op, count, arena)
        x = arena(all_[g.rank])
        g.all_reduce(x, op, bfloat16=kind.short)
        self.same(x, want, "all_reduce", *what)
        root = count % n
        x, out = arena(all_[g.rank]), np.empty(count, kind.dtype)
        g.reduce(x, out, op, root, bfloat16=kind.short)
        if g.rank == root:
            self.same(out, want, "reduce", *what)
        for counts in None, self.uneven(count, 1):
            sizes = counts or [count] * n
            all_ = [values(kind, op, r, sum(sizes), 2) for r in range(n)]
            at = sum(sizes[:g.rank])
            out = np.empty(sizes[g.rank], kind.dtype)
            g.reduce_scatter(arena(all_[g.rank]), out, counts, op, bfloat16=kind.short)
            self.same(out, kind.fold(all_, op)[at:at + out.size], "reduce_scatter",
                      counts, *what)

    def moves(self, kind, count, arena):
        g, n = self.g, self.g.size
        what = (kind.name, count, arena)
        root = (count + 1) % n
        x = arena(values(kind, "sum", g.rank, count, 3))
        g.broadcast(x, root, bfloat16=kind.short)
        self.same(x, values(kind, "sum", root, count, 3), "broadcast", *what)
        for counts in None, self.uneven(count, 0):
            sizes = counts or [count] * n
            parts = [values(kind, "sum", r, sizes[r], 4) for r in range(n)]
            whole = np.concatenate(parts)
            out = np.empty(sum(sizes), kind.dtype)
            g.all_gather(arena(parts[g.rank]), out, counts, bfloat16=kind.short)
            self.same(out, whole, "all_gather", counts, *what)
            if kind.short:
                continue
            out = np.empty(sum(sizes), kind.dtype)
            g.gather(arena(parts[g.rank]), out, counts, root)
            if g.rank == root:
                self.same(out, whole, "gather", counts, *what)
            out = np.empty(sizes[g.rank], kind.dtype)
            g.scatter(arena(whole), out, counts, root)
            self.same(out, parts[g.rank], "scatter", counts, *what)
            # what a gives b, in a's row and b's column
            table = [[values(kind, "sum", 8 * a + b, sizes[(a + b) % n], 5)
                      for b in range(n)] for a in range(n)]
            want = np.concatenate([table[a][g.rank] for a in range(n)])
            out = np.empty(want.size, kind.dtype)
            give = counts and [sizes[(g.rank + b) % n] for b in range(n)]
            g.all_to_all(arena(np.concatenate(table[g.rank])), out, give, give)
            self.same(out, want, "all_to_all", counts, *what)

    def refuses(self):
        """What would be written behind an array's end, or is of another type, is an exception,
        and nothing is sent."""
        g, x = self.g, np.zeros(4 * self.g.size, "float32")
        fixed = np.frombuffer(bytes(4), "float32")
        for wrong in (lambda: g.all_gather(x, x[:3]),
                      lambda: g.all_gather(x, np.zeros(x.size * g.size, "uint8")),
                      lambda: g.reduce_scatter(x.astype("uint8"), x[:4]),
                      lambda: g.gather(x, np.zeros(x.size * g.size, "float16"), root=g.rank),
                      lambda: g.scatter(x.astype("float16"), x[:1], root=g.rank),
                      lambda: g.all_to_all(x, x.astype("int8")),
                      lambda: g.reduce(x, x.astype("int8"), root=g.rank),
                      lambda: g.reduce(x, root=g.rank),
                      lambda: g.all_reduce(x.astype("uint8"), bfloat16=True),
                      lambda: g.all_reduce(x.astype(">f4")),
                      lambda: g.all_reduce(fixed),
                      lambda: g.recv(fixed, g.rank),
                      lambda: g.all_reduce(x, "plus"),
                      lambda: g.all_to_all(np.zeros(g.size + 1), np.zeros(g.size + 1))
                      if g.size > 1 else g.all_gather(x, x[:3]),
                      lambda: g.all_gather(x, x, [1] * (g.size + 1)),
                      lambda: g.gather(x, x[:3], root=g.rank),
                      lambda: g.scatter(x[:0], x, [1] * g.size, root=g.rank),
                      lambda: g.all_to_all(x, x, [5] * g.size, [5] * g.size),
                      lambda: g.all_reduce(x.astype("complex64"))):
            try:
                wrong()
            except ddpgroup.Error:
                self.checks += 1
            else:
                raise AssertionError("a wrong array is taken")

    def run(self):
        self.refuses()

        def private(x):
            return x.copy()

        room = self.g.array(1 << 20, "uint8")

        def shared(x):
            if x.nbytes > room.nbytes:
                return x.copy()
            y = room[:x.nbytes].view(x.dtype)
            y[:] = x
            return y

        for name in ddpgroup.TYPES:
            kind = Kind(name)
            ops = [o for o in ddpgroup.OPS if name not in FLOATS or o[0] != "b"]
            for i, count in enumerate(SIZES):
                arena = shared if i % 2 == 0 else private
                for op in ops if i < 3 else ops[i - 3::3]:
                    self.reduces(kind, op, count, arena)
                self.moves(kind, count, arena)


def play(shape, rank, meeting):
    os.environ["DDP_HOST_ID"] = shape[rank]
    group = ddpgroup.Group(rank, len(shape), timeout=120, meeting=meeting)
    checker = Checker(group)
    checker.run()
    half = group.split(rank % 2, -rank) if len(shape) > 3 else None
    if half:  # a group made from it is as good
        other = Checker(half)
        for name in "float32", "int64":
            other.reduces(Kind(name), "sum", 5003, np.copy)
            other.moves(Kind(name), 37, np.copy)
        half.close()
    group.close()
    for call in (group.barrier, lambda: group.array(4), lambda: group.sub([0])):
        try:
            call()
        except ddpgroup.Error:
            checker.checks += 1
        else:
            raise AssertionError("a group that is closed is used")
    if rank == 0:
        print(f"{shape}: {checker.checks} results ({group.backend})", flush=True)


def main():
    failed = False
    with tempfile.TemporaryDirectory(prefix="ddp-numpy-") as folder:
        for shape in SHAPES if "--all" in sys.argv else SHAPES[1::2]:
            pids = []
            for rank in range(len(shape)):
                pid = os.fork()
                if pid == 0:
                    try:
                        play(shape, rank, f"file://{folder}/meeting")
                        os._exit(0)
                    except BaseException:
                        print(f"{shape}, rank {rank}:", file=sys.stderr)
                        traceback.print_exc()
                        os._exit(1)
                pids.append(pid)
            for pid in pids:
                failed |= os.waitpid(pid, 0)[1] != 0
    return failed


sys.exit(main())
