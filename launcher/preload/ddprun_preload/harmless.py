"""Expressions of a Python script: which cannot affect a later import, where their names come from, and the values of
paths and numbers. compile() makes the syntax tree; nodes are identified by the names of their classes.
"""
import _ast
import builtins
import os

# Calls that do not affect later imports: the function or everything below that name, and methods
# of its result. BUT: exceptions.
HARMLESS = """
    abc argparse ast base64 builtins calendar collections colorsys contextlib.asynccontextmanager
    contextlib.contextmanager contextlib.nullcontext contextlib.suppress copy dataclasses
    datetime decimal enum fractions functools gc.disable gc.freeze glob hashlib io.StringIO
    itertools json.loads json.load json.dumps logging.getLogger logging.StreamHandler
    logging.Formatter math operator.attrgetter operator.itemgetter os.access os.cpu_count
    os.environ.copy os.environ.get os.environ.items os.fspath os.getcwd os.getenv os.getpid
    os.listdir os.path os.sched_getaffinity os.uname pathlib platform pprint re shutil.which
    socket.gethostname string sys.getsizeof sys.setrecursionlimit textwrap time typing
    typing_extensions
    torch.backends torch.compile torch.compiler torch.cuda.device_count torch.cuda.is_available
    torch.cuda.is_bf16_supported torch.device torch.distributed.elastic.multiprocessing
    torch.distributed.is_available torch.finfo torch.fx.wrap torch.iinfo torch.inference_mode
    torch.jit.export torch.jit.ignore torch.jit.is_scripting torch.jit.script torch.jit.unused
    torch.no_grad torch.set_printoptions cv2.setNumThreads PIL.ExifTags
    torch.distributed.fsdp diffusers.configuration_utils
    torch.autograd.set_detect_anomaly torch.set_float32_matmul_precision torch.tensor
    numpy.arange numpy.array numpy.asarray numpy.ones numpy.set_printoptions numpy.zeros
    accelerate.logging.get_logger diffusers.utils.check_min_version diffusers.utils.is_
    diffusers.utils.logging.get_logger hydra.main packaging.version
    timm.models yacs.config.CfgNode transformers.utils.check_min_version transformers.utils.is_
    transformers.utils.logging.get_logger transformers.utils.versions.require_version
    """.split()
BUT = """
    argparse.ArgumentParser().parse_args() argparse.ArgumentParser().parse_known_args()
    builtins.__import__ builtins.breakpoint builtins.compile builtins.delattr builtins.eval
    builtins.exec builtins.exit builtins.globals builtins.input builtins.locals builtins.quit
    builtins.setattr builtins.vars functools.reduce logging.getLogger()
    """.split()
# These do not call a function passed to them before the imports.
CALLED_LATER = """
    collections.defaultdict dataclasses functools.lru_cache functools.partial functools.wraps
    torch.jit.script typing
    """.split()
CALLED_NOW = ("builtins.filter", "builtins.map", "re")  # these call a function passed to them
# Builtins that return objects of Python's own types, whose methods are harmless too.
OBJECT = "builtins.object"
MAKING = set("""bool bytes dict enumerate float frozenset int len list open range repr set sorted
    str sum tuple zip object.format object.join object.lower object.read object.readlines
    object.replace object.split object.strip object.upper""".split())
WRITING = {"chmod", "mkdir", "open", "rename", "replace", "rmdir", "symlink_to", "touch", "unlink",
           "write_bytes", "write_text"}  # methods of pathlib.Path
PATHS = ("builtins.int", "builtins.max", "builtins.min", "builtins.str", "os.cpu_count", "os.getcwd",
         "os.path", "pathlib")  # their results can be computed here
# A constant may be assigned to their attributes; to those of an object, anything harmless.
FLAGS = ("pandas.options", "torch.backends", "yacs.config.CfgNode()")
OWN = "?"  # the origin of the script's own functions and classes


# --- nodes -----------------------------------------------------------------------------


def kind_of(node):
    return type(node).__name__


def children(node):
    for field in node._fields:
        value = getattr(node, field, None)
        for child in value if isinstance(value, list) else [value]:
            if hasattr(child, "_fields"):
                yield child


def walk(node):
    yield node
    for child in children(node):
        yield from walk(child)


def constant(node):
    return kind_of(node) == "Constant"


def text_of(node):
    return node.value if constant(node) and isinstance(node.value, str) else None


def below(path, names):
    return any(path == name or path.startswith((name + ".", name + "()")) or (
        name.endswith("_") and path.startswith(name)) for name in names)


# --- modules ---------------------------------------------------------------------------


class Module:
    """A module being analysed: its names and their origins: "os.path" for an import,
    "argparse.ArgumentParser()" for the result of a call."""

    def __init__(self, path, package, main):
        self.where, self.package, self.main = os.path.basename(path), package, main
        self.names, self.star = {"__file__": OBJECT, "__name__": OBJECT}, False
        self.values = {"__file__": os.path.abspath(path)}  # of names: paths, numbers

    def origin(self, node):
        kind = kind_of(node)
        if kind == "Name":
            builtin = not self.star and hasattr(builtins, node.id)
            return self.names.get(node.id, f"builtins.{node.id}" if builtin else None)
        if kind in ("Attribute", "Subscript", "Call", "BinOp"):
            start = self.origin(getattr(node, {"Call": "func", "BinOp": "left"}.get(kind, "value")))
            if not start or kind == "BinOp":
                return start
            if kind == "Attribute":
                return {OWN: OWN}.get(start, OBJECT if node.attr == "__version__" else
                                      f"{start}.{node.attr}")
            if kind == "Subscript":
                return start if below(start, ("pathlib", "typing")) else None
            if start.startswith("builtins."):
                return OBJECT if start[9:] in MAKING else None
            return f"{start}()"
        if kind in ("List", "Dict", "Set", "Tuple", "ListComp", "DictComp", "SetComp",
                    "GeneratorExp", "JoinedStr", "Compare") or constant(node):
            return OBJECT
        return None

    def element(self, node):
        """The origin of the elements of an iterable: lines, names, numbers."""
        path = self.origin(node.func if kind_of(node) == "Call" else node) or ""
        return OBJECT if path.endswith(".__dict__") or path in (
            "builtins.open", "builtins.range", "builtins.object.split") else None

    def named(self, node, *paths):
        return self.origin(node) in paths

    def harmless(self, node):
        """Can it be evaluated without an effect on later imports?"""
        kind = kind_of(node)
        if kind == "Call":
            return self.harmless_call(node)
        if kind in ("ListComp", "SetComp", "DictComp", "GeneratorExp"):
            outer = dict(self.names)
            for part in node.generators:
                self.bind(part.target, self.element(part.iter))
            found = all(map(self.harmless, children(node)))
            self.names = outer
            return found
        return kind == "Lambda" or kind not in (
            "Await", "Yield", "YieldFrom", "NamedExpr") and all(map(self.harmless, children(node)))

    def harmless_call(self, node):
        path = self.origin(node.func)
        if not path or path.endswith("()") or path == OBJECT or "._" in path or (
                not below(path, HARMLESS) or below(path, BUT)):
            return False
        if path == "builtins.open" and self.opens_to_write(node):
            return False
        if path.startswith("pathlib") and path.rpartition(".")[2] in WRITING:
            return False
        named = [keyword.value for keyword in node.keywords]
        every = [*node.args, *named]
        if not below(path, CALLED_LATER) and any(
                kind_of(x) == "Lambda" or self.origin(x) == OWN for x in every):
            return False
        if any(kind_of(x) == "Name" and not self.origin(x)
               for x in (every if below(path, CALLED_NOW) else named)):
            return False
        return self.harmless(node.func) and all(map(self.harmless, every))

    @staticmethod
    def opens_to_write(node):
        modes = [k.value for k in node.keywords if k.arg in ("mode", None)] + node.args[1:2]
        return any(text_of(mode) is None or set(text_of(mode)) & set("wax+") for mode in modes)

    def value(self, node, path):
        """The value of an expression of paths and numbers only; else None. `path`: sys.path."""
        known = {"os": os, "sys": type("sys", (), {"path": path})}
        space = {}
        for part in walk(node):
            start = self.origin(part.func if kind_of(part) == "Call" else part)
            if kind_of(part) == "Call" and not (below(start or "", PATHS) and self.harmless(part)):
                return None
            if below(start or "", ("os.environ",)):  # the script may have changed it
                return None
            if kind_of(part) == "Name":
                if start and start.startswith("pathlib"):
                    known["pathlib"] = __import__("pathlib")
                    known["pathlib.Path"] = known["pathlib"].Path
                if start in PATHS and start.startswith("builtins."):
                    known[start] = getattr(builtins, start[9:])
                space[part.id] = self.values.get(part.id, known.get(start))
                if space[part.id] is None:
                    return None
        try:
            return eval(compile(_ast.Expression(node), "", "eval"), space)
        except Exception:  # the script will raise it
            return None

    def bind(self, target, origin, sure=True):
        """Set the origin of a name. Not `sure` (under a condition): unknown if it had another."""
        if kind_of(target) == "Name":
            old = self.names.get(target.id, origin)
            self.names[target.id] = origin if sure or old == origin else None
            self.values.pop(target.id, None)
        elif kind_of(target) in ("Tuple", "List"):
            for part in target.elts:
                self.bind(part, None)
        elif kind_of(target) == "Starred":
            self.bind(target.value, None)
