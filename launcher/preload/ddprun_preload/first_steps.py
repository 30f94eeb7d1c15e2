"""Static analysis of a Python script: the imports it certainly executes first.

The rules are in doc/preload.md; in short: the script is not run, statements that cannot affect an
import are skipped, and the first other statement ends the scan. Standard library only, and of it only
modules that are loaded anyway.
"""
import builtins
import os
import sys

from . import LOADED
from .harmless import BUT, FLAGS, HARMLESS, OBJECT, OWN, Module, below, constant, kind_of, text_of

# 800 modules that torch imports when they are needed: by an optimizer's step, by DDP, by torch.compile.
LATER = "torch._dynamo"
# They will be needed if the script has one of these words.
TRAINING = {b"optim", b"zero_grad", b"DistributedDataParallel", b"Trainer", b"Accelerator"}
NO_NAME = bytes(c if chr(c).isalnum() and c < 128 or c == ord("_") else ord(" ") for c in range(256))
STANDARD = getattr(sys, "stdlib_module_names", ())


class Unsure(Exception):
    """The next statement cannot be analysed; the text says why."""


class Absent(Unsure):
    """An import would fail."""


def command():
    """What the interpreter will run: ("c", text), ("m", module) or ("", path)."""
    words = getattr(sys, "orig_argv", None)
    if words is None:  # before 3.10
        with open("/proc/self/cmdline", "rb") as f:
            words = os.fsdecode(f.read()).split("\0")[:-1]
    words = iter(words[1:])
    for word in words:
        if word == "-" or not word.startswith("-"):
            return "", word
        for i, letter in enumerate(word[1:], 2):
            if letter in "cm":
                return letter, word[i:] or next(words)
            if letter in "WX":
                word[i:] or next(words)
                break
    raise Unsure("there is no script")


def find(top):
    """The spec of a top-level module, by the current sys.path, without the script's folder."""
    for finder in sys.meta_path:
        spec = finder.find_spec(top, None)
        if spec:
            return spec
    return None


class Scan:
    """Follows a script from its first line while its statements are imports or harmless, and
    the modules beside it in the same way. Collects `steps`: ("import", name, imported names),
    ("set", variable, value, overwrite) and ("warn", function, args, kwargs); and `files`, what was
    read, or looked for: the result depends on them."""

    def __init__(self, folder):
        self.folders, self.later = [] if folder is None else [folder], []
        self.steps, self.read, self.branches = [], {}, 0
        self.files, self.words = {}, set()  # the keys; of all that was read

    def script(self):
        kind, what = command()
        if kind == "c":
            self.text(what, "the command", main=True)
        elif kind == "m":
            self.main_module(what)
        elif what == "-":
            raise Unsure("the script comes through stdin")
        else:
            what = os.path.join(what, "__main__.py") if os.path.isdir(what) else what
            self.file(what, main=True)

    def main_module(self, name):
        """As runpy: the parent packages first."""
        source, package = self.local(name)
        around = name if package else name.rpartition(".")[0]
        if source:
            self.parents(around)
        else:
            top, _, rest = name.partition(".")
            spec = find(top)
            if not spec or not spec.submodule_search_locations or not rest:
                raise Unsure(f"'{name}' is not found")
            source, package = self.file_of(spec.submodule_search_locations[0], rest)
            around = name if package else name.rpartition(".")[0]
            self.steps.append(("import", around, ()))
        if package:
            source = os.path.join(os.path.dirname(source), "__main__.py")
        if not source:
            raise Unsure(f"'{name}' is not found")
        self.file(source, around, main=True)

    def file_of(self, folder, name):
        """The source of a module below a folder, and whether it is a package."""
        path = os.path.join(folder, *name.split("."))
        for source, package in ((os.path.join(path, "__init__.py"), True), (path + ".py", False)):
            self.files[source] = None
            if os.path.isfile(source):
                return source, package
        return None, False

    def file(self, path, package="", main=False):
        self.files[path] = None
        try:
            with open(path, "rb") as f:
                source = f.read()
        except OSError as e:
            raise Unsure(f"'{path}' cannot be read: {e.strerror}") from None
        self.text(source, path, package, main)

    def text(self, source, path, package="", main=False):
        m = self.read[path] = Module(path, package, main)
        self.words.update((source if isinstance(source, bytes) else os.fsencode(source)).translate(
            NO_NAME).split())
        try:
            tree = compile(source, m.where, "exec", 0x400, True)  # ast.PyCF_ONLY_AST
        except (SyntaxError, ValueError):
            raise Unsure(f"{m.where} is no Python") from None
        try:
            self.body(tree.body, m)
        except Absent:
            del self.read[path]
            raise

    def body(self, statements, m):
        for node in statements:
            follow = getattr(self, "see_" + kind_of(node), None)
            if not follow or follow(node, m) is False:
                raise Unsure(f"line {node.lineno} of {m.where} may do anything")

    def branch(self, statements, m):
        """Statements that may or may not be executed: only harmless ones are accepted."""
        self.branches += 1
        try:
            self.body(statements, m)
        except Absent as e:  # it may not be executed
            raise Unsure(str(e)) from None
        finally:
            self.branches -= 1

    # --- statements ---

    def see_Expr(self, node, m):
        value = node.value
        path = m.origin(value.func) if kind_of(value) == "Call" else ""
        if path == "os.environ.setdefault":
            return len(value.args) == 2 and not value.keywords and self.setting(
                *value.args, m, also=False)
        if path == "sys.exit":
            return self.branches > 0
        if path in ("sys.path.append", "sys.path.insert"):
            return self.add_folder(path, value.args, m)
        if path in ("warnings.filterwarnings", "warnings.simplefilter"):
            return self.filter_warnings(path.partition(".")[2], value, m)
        return m.harmless(value)

    def see_Pass(self, node, m):
        return True

    see_Continue = see_Break = see_Pass

    def see_Raise(self, node, m):
        return self.branches > 0 and (not node.exc or m.harmless(node.exc))

    def see_Assign(self, node, m):
        for target in node.targets:
            if kind_of(target) == "Subscript" and m.named(target.value, "os.environ"):
                index = getattr(target.slice, "value", target.slice)  # wrapped before 3.9
                return len(node.targets) == 1 and self.setting(
                    index if constant(index) else target.slice, node.value, m, also=True)
        value = m.value(node.value, self.folders)
        if not m.harmless(node.value) or not all(
                self.target(target, node.value, m) for target in node.targets):
            return False
        if kind_of(node.targets[0]) == "Name" and not self.branches and isinstance(
                value, (str, int, os.PathLike)):  # what cannot change
            m.values[node.targets[0].id] = value
        return True

    def target(self, node, value, m):
        """Is the target the script's own, or one that does not affect imports?"""
        kind = kind_of(node)
        if kind in ("Tuple", "List"):
            if not all(self.target(part, None, m) for part in node.elts):
                return False
        elif kind in ("Attribute", "Subscript"):
            path = m.origin(node) or ""
            return m.origin(node.value) in (OWN, OBJECT) and m.harmless(node) or (
                below(path, FLAGS) and (constant(value) or value and "()" in path))
        m.bind(node, value and m.origin(value), not self.branches)
        return True

    def see_AugAssign(self, node, m):
        return m.harmless(node.value) and self.target(node.target, node.value, m)

    def see_AnnAssign(self, node, m):
        return m.harmless(node.annotation) and (node.value is None or (
            m.harmless(node.value) and self.target(node.target, node.value, m)))

    def see_Delete(self, node, m):
        return all(kind_of(target) == "Name" for target in node.targets)

    def see_Assert(self, node, m):
        return m.harmless(node.test)

    def add_folder(self, method, args, m):
        """Treat modules in a folder added to sys.path as the script's own."""
        folder = m.value(args[-1], self.folders) if args else None
        if not isinstance(folder, str) or len(args) != 1 + method.endswith("insert"):
            return False
        first = len(args) == 2 and getattr(args[0], "value", None) == 0
        if method.endswith("append"):
            self.later.append(folder)
        else:
            self.folders.insert(0 if first else len(self.folders), folder)
        return True

    def filter_warnings(self, name, call, m):
        """Record a filter for the helper too: imports may warn."""
        args = [("", arg) for arg in call.args] + [(k.arg, k.value) for k in call.keywords]
        done = [], {}
        for key, arg in args:
            path = m.origin(arg) or ""
            if constant(arg):
                value = arg.value
            elif path.startswith("builtins.") and hasattr(builtins, path[9:]):
                value = getattr(builtins, path[9:])
            else:
                return False
            done[0].append(value) if key == "" else done[1].update({key: value})
        self.steps.append(("warn", name, *done))
        return not self.branches and bool(done[0]) and None not in done[1]

    def setting(self, name, value, m, also):
        name, value = text_of(name), m.value(value, self.folders)
        if name is None or not isinstance(value, str) or self.branches:
            return False
        self.steps.append(("set", name, value, also))
        return True

    def decorated(self, node, m):
        """Are all decorators known ones? A decorator is called with the function or class."""
        known = all(m.harmless(d) if kind_of(d) == "Call" else
                    below(m.origin(d) or "", HARMLESS) and not below(m.origin(d), BUT) or
                    kind_of(d) == "Attribute" and d.attr in ("setter", "deleter")
                    for d in node.decorator_list)
        m.names[node.name] = OWN
        return known

    def see_FunctionDef(self, node, m):
        a = node.args
        every = a.args + a.kwonlyargs + getattr(a, "posonlyargs", []) + [
            x for x in (a.vararg, a.kwarg) if x]
        return self.decorated(node, m) and not getattr(node, "type_params", None) and all(
            map(m.harmless, a.defaults + [d for d in a.kw_defaults if d])) and all(
            x.annotation is None or m.harmless(x.annotation) for x in every) and (
            node.returns is None or m.harmless(node.returns))

    see_AsyncFunctionDef = see_FunctionDef

    def see_ClassDef(self, node, m):
        """Creating a class calls methods of its bases: those of libraries only register it; the
        script's own might do anything, in `watching`."""
        bases = [m.origin(base) for base in node.bases]
        watching = ("__init_subclass__", "__new__", "__init__") if any(
            below(base or "", ("enum",)) for base in bases) else ("__init_subclass__",)
        outer = dict(m.names)
        if not all(bases) or not all(map(m.harmless, node.bases)) or not all(
                constant(k.value) or below(m.origin(k.value) or "", HARMLESS)
                for k in node.keywords) or any(
                getattr(part, "name", "") in watching for part in node.body):
            return False
        self.body(node.body, m)
        m.names = outer
        return self.decorated(node, m)

    def see_If(self, node, m):
        if m.named(node.test, "typing.TYPE_CHECKING") or kind_of(node.test) == "Name" and (
                node.test.id == "TYPE_CHECKING"):
            self.body(node.orelse, m)
        elif kind_of(node.test) == "Compare" and kind_of(node.test.left) == "Name" and (
                node.test.left.id == "__name__") and [
                text_of(c) for c in node.test.comparators] == ["__main__"] and (
                kind_of(node.test.ops[0]) == "Eq"):
            self.body(node.body if m.main else node.orelse, m)
        elif not m.harmless(node.test):
            return False
        else:
            self.branch(node.body + node.orelse, m)
        return True

    def see_For(self, node, m):
        """Scan the body twice: the second time with the names bound by the first."""
        m.bind(node.target, m.element(node.iter), False)
        if not m.harmless(node.iter):
            return False
        self.branch(node.body * 2 + node.orelse, m)
        return True

    def see_With(self, node, m):
        for item in node.items:
            if not m.harmless(item.context_expr) or kind_of(item.context_expr) != "Call":
                return False
            if item.optional_vars:
                m.bind(item.optional_vars, m.origin(item.context_expr))
        self.branch(node.body, m)
        return True

    def see_Try(self, node, m):
        """An import that raises does so before any rank is forked. Only for a missing module it is
        known that the handler is executed next."""
        errors = ("builtins.ImportError", "builtins.ModuleNotFoundError")
        for part in node.body + node.orelse:
            if kind_of(part) not in ("Import", "ImportFrom", "Pass") and not (
                    kind_of(part) == "Assign" and constant(part.value)):
                self.branch(node.body + node.orelse, m)
                for handler in node.handlers:
                    m.names[handler.name or ""] = None
                    self.branch(handler.body, m)
                return self.body(node.finalbody, m)
        try:
            self.body(node.body + node.orelse, m)
        except Absent:
            found = [h for h in node.handlers if h.type is None or any(
                m.named(t, *errors, "builtins.Exception") for t in getattr(h.type, "elts", [h.type]))]
            if not found:
                raise
            m.names[found[0].name or ""] = None
            self.body(found[0].body, m)
        return self.body(node.finalbody, m)

    # --- imports ---

    def see_Import(self, node, m):
        for alias in node.names:
            self.module(alias.name, ())
            top = alias.name.partition(".")[0]
            m.names[alias.asname or top] = OWN if self.locate(top) else (
                alias.name if alias.asname else top)

    def see_ImportFrom(self, node, m):
        name = node.module or ""
        if node.level:
            base = m.package.split(".")
            base = base[:len(base) - node.level + 1]
            if not m.package or not base:
                return False
            name = ".".join(base + ([name] if name else []))
        if name == "__future__":
            return True
        followed = self.module(name, tuple(alias.name for alias in node.names))
        own = self.locate(name.partition(".")[0])
        for alias in node.names:
            if alias.name == "*":
                m.names.update(followed.names if followed else {})
                m.star = m.star or not own
            else:
                there = followed.names if followed else {}
                m.names[alias.asname or alias.name] = (
                    there.get(alias.name, OWN) if own else f"{name}.{alias.name}")
        return True

    def local(self, name):
        """Find a module in the script's folders: source, and whether it is a package."""
        for folder in self.folders:
            source, package = self.file_of(folder, name)
            if source:
                return source, package
        if self.later and not find(name.partition(".")[0]):
            for folder in self.later:
                source, package = self.file_of(folder, name)
                if source:
                    return source, package
        return None, False

    def is_folder(self, name):
        paths = [os.path.join(f, *name.split(".")) for f in self.folders + self.later]
        found = list(filter(os.path.isdir, paths))
        self.files.update(dict.fromkeys(set(paths).difference(found)))
        return bool(found)

    def locate(self, top):
        """Is it found in the script's folders? A plain folder is a package only if no other
        module has the name."""
        if top in LOADED or top in sys.builtin_module_names:
            return False
        return bool(self.local(top)[0]) or self.is_folder(top) and not find(top)

    def parents(self, name):
        """Follow the parent packages first."""
        parts = name.split(".") if name else []
        for i in range(1, len(parts) + 1):
            followed = self.follow(".".join(parts[:i]))
        return followed if parts else None

    def follow(self, name):
        source, package = self.local(name)
        if not source and self.is_folder(name):
            return None
        if not source:
            raise Unsure(f"'{name}' is not beside the script")
        if source not in self.read:
            if self.branches:
                raise Unsure(f"'{name}' may be imported or not")
            self.file(source, name if package else name.rpartition(".")[0])
        return self.read[source]

    def module(self, name, wanted):
        """Handle an import; returns the Module if it is the script's own."""
        top = name.partition(".")[0]
        if self.locate(top):
            followed = self.parents(name)
            for part in wanted:  # a submodule; else a name in the module
                if self.local(f"{name}.{part}")[0]:
                    self.follow(f"{name}.{part}")
            return followed
        if not (top in LOADED or top in sys.builtin_module_names or find(top)):
            raise Absent(f"there is no module '{top}'")
        known = top in LOADED or top in STANDARD or any(
            step[1].partition(".")[0] == top for step in self.steps if step[0] == "import")
        if not self.branches:
            self.steps.append(("import", name, wanted))
        elif not known:
            raise Unsure(f"'{name}' may be imported or not")
        return None


def needs_torch(top):
    """Does the metadata of this module's package require torch, if only for an extra?"""
    for folder in sys.path:
        try:
            names = os.listdir(folder or ".")
        except OSError:
            continue
        for name in names:
            project, _, kind = name.partition("-")
            if not kind.endswith(".dist-info") or project.lower() != top.lower():
                continue
            with open(os.path.join(folder, name, "METADATA"), "rb") as f:
                for line in f:
                    key, _, value = line.partition(b":")
                    for sign in b";<>=!~([":
                        value = value.partition(bytes([sign]))[0]
                    if key == b"Requires-Dist" and value.strip() == b"torch":
                        return True
                    if not line.strip():
                        break
    return False


def import_later(words):
    """The import of LATER, if the script will need it, with the names that may be those of variables:
    the helper reads its variables earlier than torch would."""
    spec = find("torch")
    lazy = [os.path.isfile(os.path.join(folder, "_compile.py"))  # since 2.1
            for folder in spec and spec.submodule_search_locations or ()]
    return [("import", LATER, (), sorted(os.fsdecode(word) for word in words if word.isupper()))] if (
        any(lazy) and TRAINING & words) else []


def first_steps(folder):
    """`folder`: what Python will insert as sys.path[0]; None: nothing. Returns (steps, None, the script's
    folders, files that this depends on), if the script certainly imports torch or a package that requires
    it; else (None, why not, (), files)."""
    scan, end = Scan(folder), "it ends"
    try:
        scan.script()
    except Unsure as e:
        end = str(e)
        if isinstance(e, Absent):  # the script ends there
            scan.words.clear()
    except (RecursionError, StopIteration, OSError) as e:
        return None, f"the script cannot be followed: {type(e).__name__}", (), scan.files
    tops = dict.fromkeys(step[1].partition(".")[0] for step in scan.steps if step[0] == "import")
    if "torch" not in tops and not any(
            needs_torch(top) for top in tops if top not in LOADED and top not in STANDARD):
        return None, f"the script does not begin with an import of torch: {end}", (), scan.files
    return scan.steps + import_later(scan.words), None, scan.folders, scan.files
