"""Preload helper: imports modules once per node; ranks are forked from it.

ddprun-agent runs the user's command line with this folder first in PYTHONPATH, so Python's
start-up imports this file before it reads the script. The helper imports the modules,
forks a rank at each request of the agent, and never returns. In a forked rank begin()
returns, and the interpreter continues with the script as usual.

Protocol, checks, and differences from a fresh interpreter: doc/preload.md.
Python 3.8 and later, standard library only.
"""
import _warnings
import os
import sys
import time
import zlib

HERE = os.path.dirname(__file__)
RANK = os.path.join(HERE, "rank")
LOADED = frozenset(sys.modules)  # modules of Python's start-up
PR_SET_PDEATHSIG, SIGKILL = 1, 9
VALID_S = 86400  # of what an earlier launch has found
# Packages whose imports pass the checks: no fork before them, which costs copies of pages.
GOOD = set("""PIL accelerate cv2 datasets diffusers einops huggingface_hub matplotlib numpy omegaconf
    pandas scipy sklearn timm torch torchvision tqdm transformers yaml""".split())
CAREFUL = -1  # as a record's number of steps: an import of GOOD failed a check, so fork before each
REFUSED = 75  # exit status of a child whose imports failed a check
EXTRA_FD = 63  # the number of PMI_FD in a rank


def run_file(name, **space):
    """Run a file of this folder without making it a module; returns its globals."""
    path = os.path.join(HERE, name)
    with open(path, encoding="utf-8") as f:
        exec(compile(f.read(), path, "exec"), space)
    return space


def remove_folders():
    """Remove our folders from the path, and import the sitecustomize that they hid, if any."""
    if RANK in sys.path:
        sys.path.remove(RANK)
    return in_rank["remove_folder"](HERE)


# --- checks: each returns why ranks must not be forked, or None ------------------------


class NoCollection:
    """Imports make few garbage cycles, and what they keep is exempt from collection anyway: without
    searches for cycles they take a sixth less time. The threshold, not gc.disable(): an import that
    sets one of them has its way."""
    NEVER = 1 << 30

    def begin(self):
        import gc
        self.gc, self.threshold = gc, gc.get_threshold()
        gc.set_threshold(self.NEVER, *self.threshold[1:])

    def end(self):
        """After gc.freeze(): the next allocation would search the whole heap, for half a second
        after an import of transformers."""
        if self.gc.get_threshold()[0] == self.NEVER:
            self.gc.set_threshold(*self.threshold)


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


def script_folder():
    """The folder that Python will insert as sys.path[0]; None: none."""
    script = sys.argv[0] if sys.argv else ""
    if getattr(sys.flags, "safe_path", False):
        return None
    if script in ("", "-", "-c", "-m"):
        return os.getcwd()
    return script if os.path.isdir(script) else os.path.dirname(os.path.realpath(script))


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


# Read by C libraries when they are loaded; Python's os.environ does not have them. pyarrow, and so
# pandas and datasets, allocates by mimalloc, and would start a thread of a jemalloc that is not used.
QUIET = {"JE_ARROW_MALLOC_CONF": "background_thread:false"}


def threads():
    return len(os.listdir("/proc/self/task"))


def count_threads():
    """Fork-safe libraries (OpenBLAS) stop their threads before a fork, so a trial fork comes
    first."""
    if threads() > 1:
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
    return f"an import has started threads ({threads()} now)" if threads() > 1 else None


def mappings():
    """(permissions, path) of each mapping of memory; "": it has none."""
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
        for line in maps:
            words = line.rstrip("\n").split(maxsplit=5)
            yield words[1], words[5] if len(words) > 5 else ""


def read_only(fd):
    with open(f"/proc/self/fdinfo/{fd}") as info:
        flags = next(line.split()[1] for line in info if line.startswith("flags:"))
    return int(flags, 8) & os.O_ACCMODE == os.O_RDONLY


def descriptors():
    """(number, target) of open descriptors except 0, 1, 2."""
    for fd in os.listdir("/proc/self/fd"):
        try:
            if int(fd) > 2:
                yield int(fd), os.readlink(f"/proc/self/fd/{fd}")
        except OSError:
            pass  # the descriptor of listdir() itself


def code_descriptors():
    """libffi keeps its own library open, to map it again: each rank needs this descriptor,
    under the same number."""
    code = {path for permissions, path in mappings() if "x" in permissions}
    return {fd for fd, target in descriptors() if target in code and read_only(fd)}


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


def cuda():
    torch = sys.modules.get("torch")
    used = torch is not None and hasattr(torch, "cuda") and torch.cuda.is_initialized()
    return "an import has initialised CUDA" if used else None


def timers():
    import _signal
    running = any(_signal.getitimer(which)[0] for which in (0, 1, 2))
    return "an import has set a timer" if running else None


def broken_fork():
    """Before 3.10.1 a fork mixes up Python's allocators, which the debug allocator reports."""
    debug = sys.flags.dev_mode or "debug" in os.environ.get("PYTHONMALLOC", "")
    return "Python before 3.10.1 cannot fork and debug memory" if (
        debug and sys.version_info < (3, 10, 1)) else None


def why_not(steps, folders, files, variables, random_numbers, temporary, collected, fork_before):
    # Python's own, also before `warnings` is imported: 3.13 does not import it at its start
    folder, before = os.getcwd(), list(_warnings.filters)
    with random_numbers, temporary:
        why = broken_fork() or run_steps(steps, variables, fork_before)
    return (why or hidden_module(folders, files) or filters(steps, before)
            or (None if temporary.remove() else "an import has left files in a temporary directory")
            or random_numbers.why_not() or temporary.why_not() or children() or count_threads()
            or collected(open_files) or collected(shared_memory) or cuda() or timers() or (
                "an import has changed the directory" if os.getcwd() != folder else None))


# Libraries whose destructors only free memory.
PLAIN_FOLDERS = ("torch", "numpy", "numpy.libs", "lib-dynload")
PLAIN_LIBRARIES = (
    "ld-linux", "libc.", "libm.", "libdl.", "libpthread.", "librt.", "libutil.", "libgcc_s.",
    "libstdc++.", "libgomp.", "libgfortran", "libquadmath", "libpython", "libz.", "libbz2.",
    "liblzma.", "libffi.", "libssl.", "libcrypto.", "libuuid.", "libexpat.", "libnccl.",
    "libcublas", "libcudart.", "libcudnn", "libcufft", "libcufile", "libcupti", "libcurand",
    "libcusolver", "libcusparse", "libnvJitLink", "libnvrtc", "libnvshmem", "libnvToolsExt")


def libraries():
    return {path for _, path in mappings() if ".so" in path}


def only_plain(paths):
    return all(any(f"/{folder}/" in path for folder in PLAIN_FOLDERS)
               or os.path.basename(path).startswith(PLAIN_LIBRARIES) for path in paths)


# --- a rank ----------------------------------------------------------------------------


def set_environment(entries, own):
    """Replace the environment by `entries`, in this order. `own`: variables that Python or an
    import has set (LC_CTYPE in a C locale) or, with None, removed."""
    for name in list(os.environ):
        del os.environ[name]
    for entry in entries:
        name, _, value = entry.partition("=")
        if name:
            os.environ[name] = value
    for name, value in own.items():
        if value is not None:
            os.environ[name] = value
        else:
            os.environ.pop(name, None)
    in_rank["restore_variable"](RANK)


def renew_stdin():
    """Reopen sys.stdin: at start-up Python decided for the helper's stdin, a socket, whether it
    is seekable."""
    old = sys.stdin
    if old is None or old is not sys.__stdin__:
        return
    import io
    raw = open(0, "rb", closefd=False)
    raw.raw.name = "<stdin>"
    new = io.TextIOWrapper(raw, encoding=old.encoding, errors=old.errors, newline="\n",
                           write_through=old.write_through)
    new.mode = "r"
    sys.stdin = sys.__stdin__ = new


def renew_threads():
    if "threading" in sys.modules:
        main = sys.modules["threading"].main_thread()
        if hasattr(main, "_set_native_id"):
            main._set_native_id()


def changed_at(path):
    """Time of the last change; -1: there is no such file."""
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return -1


def origins(tops):
    """Where these packages are found."""
    specs = [finder.find_spec(top, None) for finder in sys.meta_path for top in sorted(tops)]
    return [spec.origin for spec in specs if spec and spec.origin]


def write_file(path, lines):
    """Replace the file, and remove those in its folder that are too old to be used."""
    folder = os.path.dirname(path)
    try:
        os.makedirs(folder, 0o700, exist_ok=True)
        with open(f"{path}.{os.getpid()}", "w", encoding="utf-8", errors="surrogateescape") as f:
            f.writelines(f"{line}\n" for line in lines)
        os.rename(f"{path}.{os.getpid()}", path)
        for other in os.scandir(folder):
            if time.time() - other.stat().st_mtime > VALID_S:
                os.unlink(other.path)
    except OSError:
        pass  # without it the next launch is only slower


class Cache:
    """Cache file with the number of steps of a script that passed the checks in an earlier
    launch, so that a failing import costs time only once, and imports that are all `good` need
    neither a way back nor a search of the heap. Valid for a day, with unchanged packages, and
    for the same set of variables that differ between ranks (`differing`)."""

    def __init__(self, steps, folders, differing):
        self.files = [os.path.join(HERE, "sitecustomize.py"), *sys.path, *origins(
            {step[1].partition(".")[0] for step in steps if step[0] == "import"})]
        times = [changed_at(path) for path in self.files]
        self.key = (f"{sys.version} {sys.executable} {sys.path} {folders} {times} {differing} "
                    f"{steps}").replace("\n", " ")
        home = os.environ.get("XDG_CACHE_HOME") or os.path.join(
            os.environ.get("HOME") or "/nonexistent", ".cache")
        self.path = os.path.join(home, "ddprun", "preload", f"{zlib.crc32(os.fsencode(self.key)):08x}")
        self.good = self.known = self.careful = False

    def passed(self, steps):
        """The steps to run."""
        try:
            with open(self.path, encoding="utf-8", errors="surrogateescape") as f:
                key, count, why = f.read().split("\n")[:3]
                fresh = 0 <= time.time() - os.fstat(f.fileno()).st_mtime < VALID_S
                count = int(count)
        except (OSError, ValueError):
            return steps
        if key != self.key or not fresh:
            return steps
        self.careful = count == CAREFUL
        self.known = not self.careful
        self.good = not why
        return steps if self.careful else steps[:count]

    def store(self, count, why):
        if not self.known:
            write_file(self.path, (self.key, count, why))

    def forget(self):
        """Remove the record: some recorded import failed a check, and it is unknown which."""
        try:
            os.unlink(self.path)
        except OSError:
            pass


class Helper:
    def __init__(self, agent):
        import _socket
        import ctypes
        import atexit
        self.agent = agent
        self.own = {}
        self.kept = {}
        self.has_imported = self.reports_leaks = self.skipped = False
        self.waiting = []  # pids of the processes that this one was forked from
        self.cache, self.forked_at = None, 0
        self.record, self.files = "", [os.path.join(HERE, "sitecustomize.py"), *sys.path]
        self.libraries = self.sibling = self.variables = self.random_numbers = self.temporary = None
        self.output = self.imported_by = None
        self.collector = NoCollection()
        self.ctypes = ctypes
        atexit.register(self.skip_module_teardown)  # registered first, called last
        self.prctl = ctypes.CDLL(None).prctl
        self.socket = _socket
        self.wire = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET, 0, 0)

    def receive(self):
        """Receive a request: its descriptors and strings. Exits when the agent has closed."""
        room = self.socket.CMSG_SPACE(6 * 4)
        data, extra, _, _ = self.wire.recvmsg(16, room, self.socket.MSG_CMSG_CLOEXEC)
        if not data:
            os._exit(0)
        passed = b"".join(blob for _, _, blob in extra)
        fds = [int.from_bytes(passed[i:i + 4], sys.byteorder)
               for i in range(0, len(passed), 4)]
        text = fds.pop()
        with open(text, "rb") as f:
            f.seek(0)
            return fds, os.fsdecode(f.read()).split("\0")[:-1]

    def send(self, text):
        self.wire.send(os.fsencode(text)[:1000])

    def give_up(self, why):
        if self.cache and self.cache.good:
            self.cache.forget()
        elif self.waiting:
            self.cache.store(self.forked_at, why)
        elif self.skipped:
            self.cache.known = False
            self.cache.store(CAREFUL, why)
        elif self.record:
            self.refuse(why)
        if self.temporary:
            self.temporary.remove()
        if self.waiting:
            self.output.take(keep=False)  # the parent has not this text
        self.send(f"left {why}" if self.waiting else f"no {why}")
        os._exit(REFUSED if self.waiting else 0)

    def refuse(self, why):
        """Record it for the agent (preload_known()): the next launch starts no interpreter."""
        files = [f"{changed_at(path)} {path}" for path in dict.fromkeys(self.files)]
        write_file(self.record, (line.replace("\n", " ") for line in (why, *files)))

    def fork_before(self, i, name, later):
        """Called before step `i`, which imports module `name`; `later`: the script does not import it.
        Forks for such a module and for each further package, unless it is GOOD: the child continues
        with it. If the child's imports fail a check, the parent, which is unchanged, serves the ranks
        with what it has imported: True. Otherwise False."""
        top = name.partition(".")[0]
        if not later and (top in sys.modules or top in getattr(sys, "stdlib_module_names", ())):
            return False
        first, self.has_imported = not self.has_imported, True
        if first or self.cache.good or count_threads():
            return False
        if top in GOOD and not later and not self.cache.careful:
            self.skipped = True
            return False
        self.output.take()
        parent = os.getpid()
        pid = self.random_numbers.fork()
        if pid == 0:
            self.waiting.append(parent)
            self.forked_at = i
            self.prctl(PR_SET_PDEATHSIG, SIGKILL)
            if os.getppid() != parent:
                os._exit(0)
            return False
        _, status = os.waitpid(pid, 0)
        if not os.WIFEXITED(status) or os.WEXITSTATUS(status) != REFUSED:
            os._exit(0)  # the child has ended in another way
        self.cache.known = True  # the child has recorded it
        return True

    def end_waiting(self):
        """The checks have passed: the processes that have waited for this one end. The agent, a
        subreaper, becomes its parent, so that each rank needs one fork (sibling.py)."""
        if not self.waiting:
            return
        self.prctl(PR_SET_PDEATHSIG, 0)
        for pid in self.waiting:
            try:
                os.kill(pid, SIGKILL)
            except ProcessLookupError:
                pass  # it has ended with its parent
        until = time.monotonic() + 10
        while os.getppid() in self.waiting and time.monotonic() < until:
            time.sleep(0.001)
        self.prctl(PR_SET_PDEATHSIG, SIGKILL)
        if os.getppid() != self.agent:
            os._exit(0)

    def begin_as_python(self, differing):
        """The user's sitecustomize is watched as an import: a plain rank's sees RANK. Returns watch.py's
        globals, or None: there is none."""
        sys.path[:] = [folder for folder in sys.path if folder not in (HERE, RANK)]
        found = origins({"sitecustomize"})
        if not found:
            self.missing = remove_folders()
            return None
        self.files += found
        watch = run_file("watch.py")
        self.variables = watch["Environment"](differing.split(","), self.give_up)
        self.variables.reader = "sitecustomize"
        with self.variables:
            self.missing = remove_folders()
        why = self.variables.why_not()
        if why:
            self.give_up(why)
        return watch

    def prepare(self):
        _, (modules, differing, self.record, *entries) = self.receive()
        known = dict(entry.partition("=")[::2] for entry in entries)
        ours = ("DDPRUN_PRELOAD", "PYTHONPATH")
        self.own = {name: value for name, value in os.environ.items()
                    if known.get(name) != value and name not in ours}
        set_environment(entries, self.own)
        before = dict(os.environ)
        watch = self.begin_as_python(differing)
        if modules in ("", "?"):
            scan = run_file("first_steps.py", LOADED=LOADED, folder=script_folder())
            steps, why, folders, files = scan["first_steps"]()
            self.files += files
        else:
            steps, why = [("import", name, ()) for name in modules.split(",")], None
            folders = [script_folder()]
        if why:
            self.give_up(why)
        self.cache = Cache(steps, folders, differing)
        self.files += self.cache.files
        steps = self.cache.passed(steps)
        if modules == "?":
            self.send("would " + ", ".join(dict.fromkeys(
                step[1] for step in steps if step[0] == "import")))
            os._exit(0)
        watch = watch or run_file("watch.py")
        self.random_numbers = watch["RandomNumbers"](self.cache.good)
        self.temporary, self.output = watch["TemporaryFolders"](self.cache.good), watch["Output"]()
        self.variables = watch["Environment"](differing.split(","), self.give_up)
        quiet = [name for name in QUIET if name not in os.environ]
        for name in quiet:
            os.putenv(name, QUIET[name])
        self.collector.begin()
        why = why_not(steps, folders, self.files, self.variables, self.random_numbers, self.temporary,
                      watch["after_collection"], self.fork_before)
        watch["forget"]()
        self.output.take()
        for name in quiet:
            os.unsetenv(name)
        after = dict(os.environ)
        self.own.update({name: after.get(name) for name in {**before, **after}
                         if before.get(name) != after.get(name)})
        if why:
            self.give_up(why)
        self.cache.store(len(steps), "")
        self.code = code_descriptors()
        self.sibling = run_file("sibling.py")["Sibling"]()
        self.freeze()
        self.end_waiting()
        self.imported_by = os.getpid()
        self.send(f"ready {self.imported_by}")

    def freeze(self):
        """Exclude the imported objects from garbage collection: a collection writes to them, so
        each rank would copy nearly all their pages. They live to the end anyway."""
        import gc
        self.kept = {name: module for name, module in sys.modules.items()
                     if name not in ("__main__", "__mp_main__", "builtins", "sys")}
        self.ctypes.pythonapi.Py_IncRef(self.ctypes.py_object(self.kept))  # never released, except:
        # extensions made with nanobind (triton) report objects that still exist after Python's end
        self.reports_leaks = any(
            getattr(kind, "__module__", "") == "nanobind" for kind in object.__subclasses__())
        found = libraries()
        self.libraries = found if only_plain(found) else None
        # the script's own variables end at exit as without us: its functions form a cycle with this dict
        own = [self.ctypes.py_object(thing) for thing in (
            sys.modules["__main__"], sys.modules["__main__"].__dict__)]
        for thing in own:
            self.ctypes.pythonapi.PyObject_GC_UnTrack(thing)
        gc.freeze()
        for thing in own:
            self.ctypes.pythonapi.PyObject_GC_Track(thing)
        self.collector.end()

    def skip_module_teardown(self):
        """At exit of a rank, after all other handlers: hide the preloaded modules from Python,
        which would destroy them one by one and so copy their shared pages. That is most of the
        cost of a short rank, and useless: the kernel frees the memory anyway. Not done while
        a thread or a device may be active, since it may depend on the order."""
        import gc
        if self.reports_leaks:
            gc.unfreeze()
            self.ctypes.pythonapi.Py_DecRef(self.ctypes.py_object(self.kept))
            self.kept = {}
            return
        dist = sys.modules.get("torch.distributed")
        if threads() > 1 or cuda() or (
                dist is not None and dist.is_available() and dist.is_initialized()):
            return
        import io
        # flush files that only the modules refer to; frozen objects are not listed
        for thing in gc.get_objects():
            if type(thing) in (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom):
                try:
                    thing.flush()
                except (OSError, ValueError):
                    pass  # closed, or reported when Python flushes it again
        for name, module in self.kept.items():
            if sys.modules.get(name) is module:
                del sys.modules[name]
        if self.libraries is not None and libraries() == self.libraries:
            self.skip_destructors()

    def skip_destructors(self):
        """The same for C++: after Python has finished, exit() flushes stdio and calls _exit(),
        without the destructors of libraries that only free memory (libtorch destroys its
        operator table entry by entry). exit() calls handlers in reverse order."""
        libc, pointer = self.ctypes.CDLL(None), self.ctypes.c_void_p
        on_exit, at_exit = (getattr(libc, name, None) for name in ("on_exit", "__cxa_atexit"))
        if on_exit and at_exit:
            on_exit(self.ctypes.cast(libc._exit, pointer), None)
            at_exit(self.ctypes.cast(libc.fflush, pointer), None, None)

    def set_up_rank(self, fds, cpus, entries, report):
        """In the new process: set up process group, descriptors, affinity and environment of the
        rank."""
        os.setpgid(0, 0)
        self.wire.detach()
        for fd in (0, 1, 2):
            os.dup2(fds[fd], fd)
        kept = {*fds[3:], report} | self.code
        for fd, _ in list(descriptors()):
            if fd not in kept:
                os.close(fd)
        for fd in fds[4:]:  # PMI_FD
            os.dup2(fd, EXTRA_FD)
            os.close(fd)
        if cpus:
            os.sched_setaffinity(0, {cpu for part in cpus.split(",") for cpu in
                                     range(int(part.split("-")[0]),
                                           int(part.split("-")[-1]) + 1)})
        set_environment(entries, self.own)
        renew_stdin()
        renew_threads()
        self.variables.renew()
        self.random_numbers.renew()
        self.temporary.renew()

    def wait_for_go(self, go):
        """Wait until the agent has recorded the pid. Only now it is certainly our parent."""
        went = os.read(go, 1)
        os.close(go)
        self.prctl(PR_SET_PDEATHSIG, SIGKILL)
        if not went or os.getppid() != self.agent:
            os._exit(127)

    def fork_for_agent(self):
        """(is this the rank, pid to wait for or None). The rank is a child of the agent. By a double
        fork where it has to be: the intermediate process exits at once, and the rank is reparented
        to the agent, the subreaper."""
        pid = self.sibling.fork() if os.getppid() == self.agent else None
        if pid is not None:
            return pid == 0, None
        intermediate = os.fork()
        if intermediate == 0 and os.fork() > 0:
            os._exit(0)
        return intermediate == 0, intermediate

    def fork_rank(self, fds, cpus, entries):
        """True in the rank."""
        answer, report = os.pipe()
        is_rank, intermediate = self.fork_for_agent()
        if is_rank:
            try:
                self.set_up_rank(fds, cpus, entries, report)
                os.write(report, b"%d" % os.getpid())
                os.close(report)
                self.wait_for_go(fds[3])
            except BaseException as e:
                os.write(report, os.fsencode(f"{type(e).__name__}: {e}")[:500])
                os._exit(127)
            return True
        for fd in (report, *fds):
            os.close(fd)
        with open(answer, "rb") as f:
            result = os.fsdecode(f.read())
        if intermediate:
            os.waitpid(intermediate, 0)
        self.send(f"pid {result}" if result.isdigit() else f"no {result or 'a fork has failed'}")
        return False

    def serve(self):
        """Serve requests; returns in a rank only."""
        try:
            self.prepare()
            while True:
                fds, (cpus, *entries) = self.receive()
                why = count_threads()
                if why:
                    self.send(f"no {why}")
                elif self.fork_rank(fds, cpus, entries):
                    self.output.repeat({self.imported_by, *self.waiting})
                    in_rank["set_up"]()
                    return
        except BaseException as e:
            try:
                self.send(f"no {type(e).__name__}: {e}")
            finally:
                os._exit(1)


def begin():
    """Processes started by imports also load this file: only the agent's own child serves."""
    agent = os.getppid()
    if os.environ.get("DDPRUN_PRELOAD") != str(agent):
        return remove_folders()
    helper = Helper(agent)
    helper.serve()
    return helper.missing


in_rank = run_file("rank/sitecustomize.py", __name__="rank")
missing = begin()
if missing is not None:
    raise missing
