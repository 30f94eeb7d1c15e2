"""What a Python script is sure to do before anything else, read from its text.

Run by sitecustomize.py beside it, which passes `LOADED`, the modules of Python's start-up,
and `folder`, what Python will put in front of sys.path (None: nothing). The rules are in
doc/preload.md; in short: nothing of the script is run, and the first statement that may
have consequences is the end. Standard library only, and of that only what is loaded anyway:
compile() makes the tree, and its nodes are known by the names of their classes.
"""
import os
import sys


class Unsure(Exception):
    """Why it cannot be said what comes next."""


def command():
    """What the interpreter is to run: ("c", text), ("m", module) or ("", path)."""
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


def named(node, *names):
    """Is it `a.b.c` of these names?"""
    for name in reversed(names[1:]):
        if type(node).__name__ != "Attribute" or node.attr != name:
            return False
        node = node.value
    return type(node).__name__ == "Name" and node.id == names[0]


def constant(node):
    return type(node).__name__ in ("Constant", "Str", "Num", "NameConstant", "Bytes")


def text_of(node):
    value = getattr(node, "value", getattr(node, "s", None)) if constant(node) else None
    return value if isinstance(value, str) else None


def plain(node):
    """An expression without consequences."""
    kind = type(node).__name__
    if kind in ("List", "Tuple", "Set"):
        return all(map(plain, node.elts))
    if kind == "Dict":
        return all(key is not None and plain(key) for key in node.keys) and all(
            map(plain, node.values))
    if kind == "UnaryOp":
        return constant(node.operand)
    return kind == "Name" or constant(node)


def type_only(node):
    return named(node, "TYPE_CHECKING") or named(node, "typing", "TYPE_CHECKING")


def file_of(folder, name):
    """The source of a module below a folder, and whether it is a package."""
    path = os.path.join(folder, *name.split("."))
    for source, package in ((os.path.join(path, "__init__.py"), True), (path + ".py", False)):
        if os.path.isfile(source):
            return source, package
    return None, False


def find(top):
    """The spec of a module, by the path as it is, without the script's folder."""
    for finder in sys.meta_path:
        spec = finder.find_spec(top, None)
        if spec:
            return spec
    return None


class Scan:
    """Follows a script from its first line on, as long as its statements only import, or
    have no consequences; modules that lie beside it are followed in the same way. What is
    to be done before it goes on is in `steps`: ("import", name, names it is asked for), or
    ("set", variable, value, whether also when there is one)."""

    def __init__(self, folder):
        self.folder, self.steps, self.read = folder, [], set()

    def script(self):
        kind, what = command()
        if kind == "c":
            self.text(what, "the command")
        elif kind == "m":
            self.main_module(what)
        elif what == "-":
            raise Unsure("the script comes through stdin")
        else:
            self.file(os.path.join(what, "__main__.py") if os.path.isdir(what) else what)

    def main_module(self, name):
        """As runpy does it: the packages around it first."""
        source, package = self.local(name)
        around = name if package else name.rpartition(".")[0]
        if source:
            self.parents(around)
        else:
            top, _, rest = name.partition(".")
            spec = find(top)
            if not spec or not spec.submodule_search_locations or not rest:
                raise Unsure(f"'{name}' is not found")
            source, package = file_of(spec.submodule_search_locations[0], rest)
            around = name if package else name.rpartition(".")[0]
            self.steps.append(("import", around, ()))
        if package:
            source = os.path.join(os.path.dirname(source), "__main__.py")
        if not source:
            raise Unsure(f"'{name}' is not found")
        self.file(source, around)

    def file(self, path, package=""):
        try:
            with open(path, "rb") as f:
                source = f.read()
        except OSError as e:
            raise Unsure(f"'{path}' cannot be read: {e.strerror}") from None
        self.text(source, os.path.basename(path), package)

    def text(self, source, where, package=""):
        try:
            tree = compile(source, where, "exec", 0x400, True)  # ast.PyCF_ONLY_AST
        except (SyntaxError, ValueError):
            raise Unsure(f"{where} is no Python") from None
        self.body(tree.body, where, package)

    def body(self, statements, where, package):
        for node in statements:
            follow = getattr(self, "see_" + type(node).__name__, None)
            if not follow or follow(node, where, package) is False:
                raise Unsure(f"line {node.lineno} of {where} may do anything")

    def see_Expr(self, node, where, package):
        value = node.value
        if type(value).__name__ == "Call" and named(value.func, "os", "environ", "setdefault"):
            return self.setting(*value.args, also=False) if (
                len(value.args) == 2 and not value.keywords) else False
        return constant(value)

    def see_Pass(self, node, where, package):
        return True

    def see_Assign(self, node, where, package):
        target = node.targets[0]
        if type(target).__name__ == "Subscript" and named(target.value, "os", "environ"):
            index = getattr(target.slice, "value", target.slice)  # wrapped before 3.9
            return len(node.targets) == 1 and self.setting(
                index if constant(index) else target.slice, node.value, also=True)
        return plain(node.value) and all(type(t).__name__ == "Name" for t in node.targets)

    def see_AnnAssign(self, node, where, package):
        return type(node.target).__name__ == "Name" and plain(node.annotation) and (
            node.value is None or plain(node.value))

    def setting(self, name, value, also):
        name, value = text_of(name), text_of(value)
        if name is None or value is None:
            return False
        self.steps.append(("set", name, value, also))
        return True

    def see_FunctionDef(self, node, where, package):
        a = node.args
        every = a.args + a.kwonlyargs + getattr(a, "posonlyargs", []) + [
            x for x in (a.vararg, a.kwarg) if x]
        return not node.decorator_list and not getattr(node, "type_params", None) and all(
            map(plain, a.defaults + [d for d in a.kw_defaults if d])) and all(
            x.annotation is None or plain(x.annotation) for x in every) and (
            node.returns is None or plain(node.returns))

    see_AsyncFunctionDef = see_FunctionDef

    def see_If(self, node, where, package):
        if not type_only(node.test):
            return False
        self.body(node.orelse, where, package)
        return True

    def see_Try(self, node, where, package):
        """The handlers are for what is missing; whatever else an import may raise, it does
        so before any rank is forked."""
        self.body(node.body + node.orelse + node.finalbody, where, package)

    def see_Import(self, node, where, package):
        for alias in node.names:
            self.module(alias.name, ())

    def see_ImportFrom(self, node, where, package):
        name = node.module or ""
        if node.level:
            base = package.split(".")
            base = base[:len(base) - node.level + 1]
            if not package or not base:
                return False
            name = ".".join(base + ([name] if name else []))
        if name != "__future__":
            self.module(name, tuple(alias.name for alias in node.names))
        return True

    def local(self, name):
        return file_of(self.folder, name) if self.folder is not None else (None, False)

    def parents(self, name):
        """A package is imported before what is in it."""
        parts = name.split(".") if name else []
        for i in range(1, len(parts) + 1):
            self.follow(".".join(parts[:i]))

    def follow(self, name):
        source, package = self.local(name)
        if not source and os.path.isdir(os.path.join(self.folder, *name.split("."))):
            return  # a folder is a package as well
        if not source:
            raise Unsure(f"'{name}' is not beside the script")
        if source not in self.read:
            self.read.add(source)
            self.file(source, name if package else name.rpartition(".")[0])

    def module(self, name, wanted):
        top = name.partition(".")[0]
        if top in LOADED or top in sys.builtin_module_names:
            self.steps.append(("import", name, wanted))
        elif self.local(top)[0]:
            self.parents(name)
            for part in wanted:  # of a package; else it is a name in it
                if self.local(f"{name}.{part}")[0]:
                    self.follow(f"{name}.{part}")
        elif find(top):
            self.steps.append(("import", name, wanted))
        else:
            raise Unsure(f"there is no module '{top}'")


def needs_torch(top):
    """Does the package that brings this module say that it does?"""
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
                    if key == b"Requires-Dist" and value.strip() == b"torch" and (
                            b"extra" not in line):
                        return True
                    if not line.strip():
                        break
    return False


def first_steps():
    """(steps, None), or (None, why not): what the script is sure to do first, when torch is
    among it, or comes with it."""
    scan, end = Scan(folder), "it ends"
    try:
        scan.script()
    except Unsure as e:
        end = str(e)
    except (RecursionError, StopIteration, OSError) as e:
        return None, f"the script cannot be followed: {type(e).__name__}"
    tops = [step[1].partition(".")[0] for step in scan.steps if step[0] == "import"]
    if "torch" not in tops and not any(
            needs_torch(top) for top in dict.fromkeys(tops) if top not in LOADED):
        return None, f"the script does not begin with an import of torch: {end}"
    return scan.steps, None
