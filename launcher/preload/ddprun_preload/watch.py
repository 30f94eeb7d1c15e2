"""Detect imports that use per-rank data: environment variables, random numbers and temporary
directories; and keep what they write.

Most classes are context managers for the imports; `why_not()` then returns why ranks must not be
forked, or None.
"""
import ctypes
import gc
import os
import random
import sys
from itertools import compress, filterfalse, repeat
from operator import is_not

SPECIAL = {name for kind in (str, bytes, int, float, dict, property) for name in dir(kind)
           if name.startswith("__")} | {"__fspath__", "__call__", "__next__", "__enter__",
                                        "__exit__", "__complex__", "__matmul__", "__buffer__"}
KEPT = {"__class__", "__del__", "__dict__", "__doc__", "__init__", "__init_subclass__",
        "__module__", "__new__", "__subclasshook__", "__weakref__", "__slots__"}


# Random numbers that may be equal in all ranks, by their callers: names of a file and a semaphore
# created to test whether that is possible, the number of the first anonymous symbol, names of
# attributes that hold the state of modules, keys of a process's own tables, examples in texts of
# documentation, and the number of a terminal's first hyperlink.
KNOWN = {("tempfile", "_get_default_tempdir"), ("joblib._multiprocessing_helpers", "<module>"),
         ("scipy.stats._distribution_infrastructure", "_generate_example"),
         ("opentelemetry.context", "create_key"), ("sympy.core.symbol", "Dummy"),
         ("rich.style", "<module>"),
         ("torch.distributed._composable.contract", "generate_state_key")}
# Identifiers of a session with a server, drawn by an import and read only when a request is sent: no
# search of the heap for what else contains them.
SESSIONS = {("transformers.utils.hub", "SESSION_ID"), ("diffusers.utils.hub_utils", "SESSION_ID")}
PROCESS = ("multiprocessing.process", "multiprocess.process")  # the second belongs to dill

# Modules that keep the rank in `rank_zero_only.rank` for later, and what it is in a rank.
RANK_ZERO = {"torchmetrics.utilities.prints": lambda module: int(os.environ.get("LOCAL_RANK", 0)),
             **dict.fromkeys(("lightning.fabric.utilities.rank_zero", "lightning_fabric.utilities.rank_zero"),
                             lambda module: module._get_rank() or 0)}

# Modules whose C libraries read variables of a rank, which os.environ cannot see.
IN_C = {"mpi4py.MPI": "initialises MPI"}

URANDOM = os.urandom


def callers():
    frame = sys._getframe(2)
    while frame:
        yield frame.f_globals.get("__name__"), frame.f_code.co_name
        frame = frame.f_back


def of_type(kind, objects, types):
    return compress(objects, map({kind}.__contains__, types))


class Heap:
    """Every reference to a string that an object holds (`texts`): a heap of a million objects is
    walked once, in C.

    Tuples are reached from what refers to them: half of those that gc lists are names in code, until
    its first collection. gc does not list dictionaries of only strings, say."""

    def __init__(self):
        objects = gc.get_objects()
        found = gc.get_referents(*compress(objects, map(is_not, map(type, objects), repeat(tuple))))
        del objects
        self.texts, seen = [], {}
        while found:
            types = list(map(type, found))
            self.texts += of_type(str, found, types)
            found = list(compress(found, map({dict, tuple}.__contains__, types)))
            types = list(map(type, found))
            boxes = [*of_type(tuple, found, types),
                     *filterfalse(gc.is_tracked, of_type(dict, found, types))]
            fresh = dict(zip(map(id, boxes), boxes))
            for known in fresh.keys() & seen.keys():
                del fresh[known]
            seen.update(fresh)
            found = gc.get_referents(*fresh.values())
        different = set(self.texts)
        self.text = ["\n".join(filter(str.isascii, different)),
                     "\n".join(filterfalse(str.isascii, different))]

    def count(self, part):
        """How often it occurs in different strings."""
        return sum(text.count(part) for text in self.text)


heap, searched = None, 0


def search():
    """The Heap, until the next collection or forget()."""
    global heap, searched
    collections = gc.get_stats()[2]["collections"]
    if heap is None or searched != collections:
        heap = None
        heap, searched = Heap(), collections
    return heap


def forget():
    global heap
    heap = None


def after_collection(check):
    """What the check finds, also without objects that only a garbage cycle refers to: imports run
    without collections."""
    found = check()
    if found:
        gc.collect()
        found = check()
    return found


class Environment:
    """The variables `names` differ between the ranks; those prefixed with '?' are unset in some
    ranks. os.environ returns the others unchanged. A differing value is replaced by a
    placeholder, which may be passed around and dropped, as by code that searches all variables
    for a name. Reading it calls `give_up`, which does not return: by any operation on it, or by
    the TypeError of a C function that expects a string."""

    def __init__(self, names, give_up):
        self.some = {name[1:] for name in names if name.startswith("?")}
        self.names = [name for name in names if name and not name.startswith("?")]
        self.reader, self.alive, self.give_up = "", {}, give_up
        self.reads = set()  # names of variables
        self.kind, self.trace = type(os.environ), None
        self.value = self.value_class()
        self.rank = type("value", (self.value,), {
            "__init__": lambda value: object.__setattr__(value, "name", "RANK"),
            "__del__": lambda value: None})
        self.keepers = {}  # names of modules of RANK_ZERO that have read a rank

    def stop(self, doing):
        self.give_up(f"{self.reader} {doing}")

    def value_class(self):
        def read(value, *_, **__):
            self.stop(f"reads {object.__getattribute__(value, 'name')}")

        def begin(value, name):
            object.__setattr__(value, "name", name)
            if not self.alive:
                self.trace_errors()
            self.alive[id(value)] = name

        def end(value):
            del self.alive[id(value)]
            if not self.alive:
                sys.settrace(self.trace)

        body = dict.fromkeys(SPECIAL - KEPT, read)
        return type("value", (), {**body, "__init__": begin, "__del__": end})

    def trace_errors(self):
        """Trace TypeErrors in the running functions and in those they call."""
        def trace(frame, event, what):
            frame.f_trace_lines = False
            if event == "exception" and issubclass(what[0], TypeError):
                self.stop(f"reads {', '.join(self.alive.values())}")
            return trace

        self.trace = sys.gettrace()
        frame = sys._getframe()
        while frame:
            frame.f_trace, frame.f_trace_lines = trace, False
            frame = frame.f_back
        sys.settrace(trace)

    def __enter__(self):
        kind, real = self.kind, {}

        def watch(method):
            real[method.__name__] = getattr(kind, method.__name__)
            setattr(kind, method.__name__, method)

        def differs(environ, key, doing):
            name = os.fsdecode(environ.encodekey(key))
            self.reads.add(name)
            if name in self.some or doing != "reads" and name in self.names:
                self.stop(f"{doing} {name}")
            return name in self.names and name

        def whole(doing):
            if self.some or doing:
                self.stop(doing or "reads the whole environment")

        @watch
        def __getitem__(environ, key):
            name = differs(environ, key, "reads")
            if name and self.is_keeper():
                return "0"
            return self.value(name) if name else real["__getitem__"](environ, key)

        @watch
        def __setitem__(environ, key, value):
            differs(environ, key, "sets")
            real["__setitem__"](environ, key, value)

        @watch
        def __delitem__(environ, key):
            differs(environ, key, "removes")
            real["__delitem__"](environ, key)

        @watch
        def __iter__(environ):
            whole(None)
            return iter([*real["__iter__"](environ), *(
                environ.decodekey(os.fsencode(name)) for name in self.names)])

        @watch
        def __len__(environ):
            whole(None)
            return real["__len__"](environ) + len(self.names)

        @watch
        def __repr__(environ):
            whole("prints the environment")

        @watch
        def __reduce_ex__(environ, version):
            whole("copies os.environ itself")

        self.real = real
        sys.meta_path.insert(0, self)
        return self

    def find_spec(self, name, path=None, target=None):
        self.hide_rank()
        if name in IN_C:
            self.stop(IN_C[name])

    def is_keeper(self):
        """Is a module of RANK_ZERO being executed, and does it read a variable itself?"""
        who = [(module, function) for module, function in callers()
               if module not in (__name__, "os", "collections.abc")]
        module = who[0][0] if who else None
        if module not in RANK_ZERO or (module, "<module>") not in who:
            return False
        self.keepers[module] = RANK_ZERO[module]
        return True

    def hide_rank(self):
        """What has been kept, "0", must not be read before renew() sets it. Returns whether all is
        where it is expected."""
        found = [getattr(sys.modules.get(name), "rank_zero_only", None) for name in self.keepers]
        for function in found:
            if type(getattr(function, "rank", None)) is int:
                function.rank = self.rank()
        return all(type(getattr(function, "rank", None)) is self.rank for function in found)

    def renew(self):
        """In a rank."""
        for name, find in self.keepers.items():
            sys.modules[name].rank_zero_only.rank = find(sys.modules[name])

    def __exit__(self, *_):
        sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not self]
        for name, method in self.real.items():
            setattr(self.kind, name, method)

    def why_not(self):
        if not self.hide_rank():
            return f"{self.reader} keeps RANK"
        if self.alive:
            gc.collect()
        names = ", ".join(dict.fromkeys(self.alive.values()))
        return f"{self.reader} keeps {names}" if names else None


def set_methods(kind, methods):
    """Of a C type: what is not allowed in Python."""
    gc.get_referents(kind.__dict__)[0].update(methods)
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(kind))


class RandomNumbers:
    """Random numbers that imports draw from the operating system: each rank must draw its own.
    Generators that seeded themselves and were not used yet are seeded again in each rank, by
    renew(); explicitly seeded ones are not changed. Any other random number may have been
    stored by the code that drew it: no ranks are forked."""

    def __init__(self, checked):
        self.checked = checked  # in an earlier launch: what needs a search of the heap
        self.drawn, self.made = {}, {}  # {bytes: module that drew them}; {id: (generator, state)}
        self.renewed, self.names = [], []
        self.of_torch, self.seeds = {}, []  # real methods; modules that have got a random seed of torch

    def __enter__(self):
        self.before = random.getstate()
        self.real = os.urandom, random._urandom, random.Random.seed, random.getrandbits

        def urandom(size):
            drawn, who = self.real[0](size), list(callers())
            if KNOWN.isdisjoint(who):
                self.drawn[drawn] = next(
                    module for module, _ in who if module not in ("random", "secrets", "uuid"))
            return drawn

        def seed(generator, a=None, version=2):
            self.real[2](generator, a, version)
            self.made.pop(id(generator), None)
            if a is None:
                self.made[id(generator)] = generator, KNOWN.isdisjoint(
                    callers()) and random.Random.getstate(generator)

        def getrandbits(n):
            return self.real[3](n) if KNOWN.isdisjoint(callers()) else (
                int.from_bytes(URANDOM(n // 8 + 1), "big") >> (8 - n % 8))

        self.mine = {getrandbits: self.real[3], urandom: self.real[0]}
        os.urandom = random._urandom = urandom
        random.Random.seed, random.getrandbits = seed, getrandbits
        sys.meta_path.insert(0, self)
        return self

    def find_spec(self, name, path=None, target=None):
        """torch describes its C methods itself in this module, and imports others after it."""
        described = getattr(sys.modules.get("torch._torch_docs"), "__spec__", None)
        if described and not described._initializing and not self.of_torch:
            kind = sys.modules["torch._C"].Generator
            names = "seed", "initial_seed", "get_state", "clone_state", "__reduce__"
            self.of_torch = {name: kind.__dict__[name] for name in names if name in kind.__dict__}
            set_methods(kind, {name: self.method_of_torch(name) for name in self.of_torch})

    def method_of_torch(self, name):
        """torch draws in C. seed() draws, and returns it; the default generator has drawn its seed."""
        def method(generator, *args):
            if name == "seed" or generator is sys.modules["torch._C"].default_generator:
                self.seeds.append(next(who for who, _ in list(callers()) if who != "torch.random"))
            return self.of_torch[name](generator, *args)
        return method

    def __exit__(self, *_):
        sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not self]
        if self.of_torch:
            set_methods(sys.modules["torch._C"].Generator, self.of_torch)
        os.urandom, random._urandom, random.Random.seed, random.getrandbits = self.real
        for holder in gc.get_referrers(*self.mine):  # `from os import urandom`
            for name, value in list(holder.items()) if type(holder) is dict else ():
                for mine, real in self.mine.items():
                    if value is mine:
                        holder[name] = real

    def fork(self):
        """os.fork(); Python seeds `random` again in the child."""
        unused = random.getstate() == self.before
        pid = os.fork()
        self.before = random.getstate() if unused else self.before
        return pid

    def why_not(self):
        if random.getstate() != self.before or any(
                state and random.Random.getstate(g) != state for g, state in self.made.values()):
            return "an import has seeded the generator of 'random', or has drawn from one"
        for name in PROCESS:
            if name in sys.modules:
                process = sys.modules[name].current_process()
                self.drawn.pop(bytes(process.authkey), None)
        after_collection(self.identifiers)
        why = self.numpy() or self.torch() or next(
            (f"import of '{who}' draws from the system's random numbers"
             for who in self.drawn.values()), None)
        return why

    def numpy(self):
        """An unseeded generator draws the entropy of its SeedSequence. RandomState(5) does so as
        well and discards it."""
        numpy = sys.modules.get("numpy.random")
        if not numpy:
            return None
        entropy = {int.from_bytes(drawn, "big"): drawn for drawn in self.drawn
                   if len(drawn) == 16}
        default = numpy.mtrand._rand._bit_generator
        every = gc.get_objects() if len(entropy) > 1 else [default]
        generators = [g for g in every if issubclass(type(g), numpy.BitGenerator)]
        for generator in generators:
            seeds = generator._seed_seq
            drawn = entropy.pop(getattr(seeds, "entropy", None), None)
            if drawn is None:
                continue
            fresh = type(generator)(numpy.SeedSequence(seeds.entropy))
            ours = generator, every
            shared = any(all(x is not y for y in ours) and not hasattr(x, "f_locals")
                         and x is not ours for x in gc.get_referrers(seeds))
            if shared or seeds.n_children_spawned or repr(seeds) != repr(
                    fresh._seed_seq) or repr(generator.state) != repr(fresh.state):
                return "an import has drawn from a generator of NumPy, or from its seed"
            del self.drawn[drawn]
            self.renewed.append(generator)
        if default not in self.renewed:
            return "an import has seeded NumPy's generator"
        forgotten = sum(g._seed_seq is None for g in generators)
        for drawn in list(entropy.values())[:forgotten]:
            del self.drawn[drawn]
        return None

    def identifiers(self):
        """Accept a `uuid4().hex` or `str(uuid4())` that is a global of modules, if no other string
        in the heap contains a part of it, or did in an earlier launch; renew() replaces it. Returns
        whether there are others."""
        uuid = sys.modules.get("uuid")
        drawn = {d: uuid.UUID(bytes=d, version=4) for d in self.drawn if len(d) == 16 and uuid}
        drawn = {d: value for d, value in drawn.items() if any(
            x in (value.hex, str(value)) for x in vars(sys.modules[self.drawn[d]]).values()
            if type(x) is str)} if drawn else {}
        trusted = {d for d, value in drawn.items() if self.checked or any(
            getattr(sys.modules.get(module), name, None) == value.hex for module, name in SESSIONS
            if module == self.drawn[d])}
        found = search() if drawn.keys() - trusted else None  # before there are parts of them
        for d, value in drawn.items():
            parts = value.hex[:8], value.hex[-8:]
            text = next(x for x in vars(sys.modules[self.drawn[d]]).values()
                        if type(x) is str and x in (value.hex, str(value)))
            places = [(vars(module), name) for module in list(sys.modules.values())
                      for name, x in list(getattr(module, "__dict__", {}).items()) if x is text]
            if d in trusted or all(found.count(part) == 1 for part in parts) and (
                    len(places) == found.texts.count(text)):
                self.names.append((places, "-" in text))
                del self.drawn[d]
        return any(d in self.drawn for d in drawn)

    def torch(self):
        """torch seeds its generators with a constant, except the default one, of which a seed below
        2^32 is taken for explicit."""
        torch = sys.modules.get("torch")
        if not hasattr(torch, "default_generator"):
            return None
        default = torch.default_generator
        if default.initial_seed() >> 32 == 0:
            return "an import has seeded torch's generator"
        if not torch.equal(torch.Generator().manual_seed(default.initial_seed()).get_state(),
                           default.get_state()):
            return "an import has drawn from torch's generator"
        return f"import of '{self.seeds[0]}' has got a random seed of torch" if self.seeds else None

    def renew(self):
        """In a rank: draw new random numbers. Python itself seeds `random` after a fork."""
        for generator, _ in self.made.values():
            random.Random.seed(generator)
        for generator in self.renewed:
            generator.__init__()
        if hasattr(sys.modules.get("torch"), "default_generator"):
            sys.modules["torch"].default_generator.seed()
        for name in PROCESS:
            if name in sys.modules:
                sys.modules[name].current_process().authkey = os.urandom(32)
        for places, dashes in self.names:
            value = sys.modules["uuid"].uuid4()
            for names, name in places:
                names[name] = str(value) if dashes else value.hex


class TemporaryFolders:
    """Objects of `tempfile.TemporaryDirectory` that imports create. Each rank must have directories
    of its own, as the first to exit removes its own: why_not() removes them here, and renew()
    creates them again. No other object may contain their names, and no file may be in them."""

    def __init__(self, checked):
        self.checked = checked  # in an earlier launch
        self.made, self.kept = [], []

    def __enter__(self):
        import tempfile
        import weakref
        self.kind, self.real = tempfile.TemporaryDirectory, tempfile.TemporaryDirectory.__init__

        def create(folder, *args, **named):
            names, tempfile._name_sequence = tempfile._name_sequence, iter(
                lambda: URANDOM(6).hex(), None)  # not from the generator, which is watched
            try:
                self.real(folder, *args, **named)
            finally:
                tempfile._name_sequence = names
            self.made.append((weakref.ref(folder), os.path.basename(folder.name)[::-1],
                              args, named))  # reversed: remove() searches for the name

        self.kind.__init__ = create
        return self

    def __exit__(self, *_):
        self.kind.__init__ = self.real

    def remove(self):
        """Returns whether all were empty."""
        empty = True
        for reference, _, args, named in self.made:
            folder = reference()
            if folder is None or not folder._finalizer.detach():
                continue  # it was removed by the import
            self.kept.append((folder, args, named))
            try:
                os.rmdir(folder.name)
            except FileNotFoundError:
                pass  # a child has removed it
            except OSError:
                empty = False
                sys.modules["shutil"].rmtree(folder.name, ignore_errors=True)
            folder.name = None
        return empty

    def why_not(self):
        """After remove()."""
        return "an import keeps the name of a temporary directory" if (
            self.made and not self.checked and after_collection(self.is_kept)) else None

    def is_kept(self):
        return any(search().count(name[::-1]) for _, name, _, _ in self.made)

    def renew(self):
        """In a rank."""
        for folder, args, named in self.kept:
            folder.__init__(*args, **named)


class Output:
    """What imports write to stdout and stderr, a pipe each: every rank writes it, too."""

    def __init__(self):
        self.texts = {1: b"", 2: b""}

    def take(self, keep=True):
        """Empty the pipes."""
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        for fd in self.texts:
            pipe = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_NONBLOCK)
            try:
                text = os.read(pipe, 1 << 20)
            except BlockingIOError:
                text = b""
            finally:
                os.close(pipe)
            self.texts[fd] += text if keep else b""

    def repeat(self, pids):
        """In a rank. torch logs lines with the process id: that of the helper becomes the rank's."""
        for fd, text in self.texts.items():
            for pid in pids:
                text = number_replaced(text, b"%d" % pid, b"%d" % os.getpid())
            try:
                with open(fd, "wb", closefd=False) as f:
                    f.write(text)
            except OSError:
                pass  # the rank finds out itself


class Watch:
    """All of that. `checked`: in an earlier launch."""

    def __init__(self, names, give_up, checked):
        self.variables = Environment(names, give_up)
        self.random_numbers, self.temporary = RandomNumbers(checked), TemporaryFolders(checked)
        self.output = Output()

    def renew(self):
        """In a rank."""
        self.variables.renew()
        self.random_numbers.renew()
        self.temporary.renew()


def number_replaced(text, old, new):
    first, *others = text.split(old)
    for other in others:
        first += (old if first[-1:].isdigit() or other[:1].isdigit() else new) + other
    return first
