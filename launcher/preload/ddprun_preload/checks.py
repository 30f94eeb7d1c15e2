"""The imports of a script's first steps, and checks of the process after them: each returns why ranks must not be
forked, or None."""
import _warnings
import os
import sys

from . import LOADED
from .process import code_descriptors, count_threads, cuda, descriptors, mappings
from .watch import after_collection


def run_steps(steps, variables, fork_before):
    """Run the steps, until `fork_before` returns True. Returns why ranks must not be forked, or
    None."""
    with variables:
        for i, (kind, name, *more) in enumerate(steps):
            variables.reader = f"import of '{name}'" if kind == "import" else "the script"
            if kind == "set":
                value, also = more
                if also or name not in os.environ:
                    os.environ[name] = value
                continue
            if kind == "warn":
                getattr(sys.modules["warnings"], name)(*more[0], **more[1])
                continue
            imported, *mentioned = more  # by the script's own statement; else what may be variables
            if fork_before(i, name, bool(mentioned)):
                return None
            variables.reads.clear()
            try:
                __import__(name, {}, {}, imported, 0)
            except BaseException as e:  # whatever it is, a rank started without preload reports it
                return f"'{name}' cannot be imported: {type(e).__name__}: {e}"
            why = variables.why_not()
            if why:
                return why
            also = variables.reads.intersection(*mentioned) if mentioned else ()
            if also:
                return f"import of '{name}' reads {min(also)}, which the script mentions"
    return None


def hidden_module(folders, files):
    """Was a module imported that a file in the script's folders would hide? Adds it to `files`;
    of several the one that was imported first."""
    loaded, hidden = {}, []  # in the order of import
    for name in list(sys.modules):
        if name not in LOADED:
            loaded.setdefault(name.partition(".")[0], len(loaded))
    try:
        paths = [os.path.join(folder, name) for folder in folders if folder is not None
                 for name in os.listdir(folder)]
    except OSError:
        return "cannot read the script's folder"
    for path in paths:
        plain = os.path.isdir(path) and not any(
            n.startswith("__init__.") for n in os.listdir(path))
        if os.path.basename(path).partition(".")[0] in loaded and not plain:
            hidden.append(path)
    if not hidden:
        return None
    files.append(min(hidden, key=lambda path: loaded[os.path.basename(path).partition(".")[0]]))
    return f"'{files[-1]}' hides a module that was imported"


def filters(steps, before):
    """In a rank the script sets its filters again, which moves them before those of the
    imports. Harmless only if all filters have the same action."""
    given = {step[2][0] for step in steps if step[0] == "warn"}
    added = [f for f in sys.modules["warnings"].filters if f not in before] if given else []
    return "the script and an import filter warnings" if (
        len(given) > 1 or any(f[0] not in given for f in added)) else None


def open_files():
    code = code_descriptors()
    for fd, target in descriptors():
        if fd not in code:
            return f"an import has left '{target}' open"
    return None


def shared_memory():
    return "an import has mapped memory that forks would share" if any(
        "w" in permissions and "s" in permissions for permissions, _ in mappings()) else None


def children():
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return None
    return "an import has left a child process"


def timers():
    import _signal
    running = any(_signal.getitimer(which)[0] for which in (0, 1, 2))
    return "an import has set a timer" if running else None


def broken_fork():
    """Before 3.10.1 a fork mixes up Python's allocators, which the debug allocator reports."""
    debug = sys.flags.dev_mode or "debug" in os.environ.get("PYTHONMALLOC", "")
    return "Python before 3.10.1 cannot fork and debug memory" if (
        debug and sys.version_info < (3, 10, 1)) else None


def why_not(steps, folders, files, watch, fork_before):
    """Runs the steps. `files`: gets those that the answer depends on."""
    # Python's own, also before `warnings` is imported: 3.13 does not import it at its start
    folder, before = os.getcwd(), list(_warnings.filters)
    random_numbers, temporary = watch.random_numbers, watch.temporary
    with random_numbers, temporary:
        why = broken_fork() or run_steps(steps, watch.variables, fork_before)
    return (why or hidden_module(folders, files) or filters(steps, before)
            or (None if temporary.remove() else "an import has left files in a temporary directory")
            or random_numbers.why_not() or temporary.why_not() or children() or count_threads()
            or after_collection(open_files) or after_collection(shared_memory) or cuda() or timers() or (
                "an import has changed the directory" if os.getcwd() != folder else None))
