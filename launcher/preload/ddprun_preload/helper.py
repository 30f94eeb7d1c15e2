"""The helper: serves the agent. Imports what the script imports first, then forks a rank at each request."""
import _socket
import atexit
import os
import sys
import time

from . import HERE, RANK, vanish
from .first_steps import first_steps
from .imported import Imported
from .process import SIGKILL, count_threads, die_with_parent, refuses_cuda
from .rank_start import RankStart, set_environment
from .record import CAREFUL, OURS, Cache, changed_at, origins, write_file

# Packages whose imports pass the checks: no fork before them, which costs copies of pages.
GOOD = set("""PIL accelerate cv2 datasets diffusers einops huggingface_hub matplotlib numpy omegaconf
    pandas scipy sklearn timm torch torchvision tqdm transformers yaml""".split())
REFUSED = 75  # exit status of a child whose imports failed a check
NO_CUDA = 76  # and of one in which torch.cuda refuses to work
# Read by C libraries when they are loaded; Python's os.environ does not have them. pyarrow, and so
# pandas and datasets, allocates by mimalloc, and would start a thread of a jemalloc that is not used.
QUIET = {"JE_ARROW_MALLOC_CONF": "background_thread:false"}


def script_folder():
    """The folder that Python will insert as sys.path[0]; None: none."""
    script = sys.argv[0] if sys.argv else ""
    if getattr(sys.flags, "safe_path", False):
        return None
    if script in ("", "-", "-c", "-m"):
        return os.getcwd()
    return script if os.path.isdir(script) else os.path.dirname(os.path.realpath(script))


class Helper:
    def __init__(self, agent, rank):
        self.agent, self.rank = agent, rank  # pid; what each rank does at its start-up
        self.own = {}  # variables: rank_start.set_environment()
        self.missing = None  # the exception if the user has no sitecustomize
        self.has_imported = self.skipped = self.counted_cuda = False
        self.waiting = []  # pids of the processes that this one was forked from
        self.cache, self.forked_at = None, 0
        self.record, self.files = "", [OURS, *sys.path]
        self.watch = self.start = self.imported_by = None
        self.imported = Imported()
        atexit.register(self.imported.skip_teardown)  # registered first, called last
        self.wire = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET, 0, 0)

    def receive(self):
        """Receive a request: its descriptors and strings. Exits when the agent has closed."""
        room = _socket.CMSG_SPACE(6 * 4)
        data, extra, _, _ = self.wire.recvmsg(16, room, _socket.MSG_CMSG_CLOEXEC)
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
        if self.watch:
            self.watch.temporary.remove()
        if self.waiting:
            self.watch.output.take(keep=False)  # the parent has not this text
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
        with what it has imported: True. Otherwise False. After an import that has counted CUDA's devices
        torch.cuda refuses to work in a fork of os.fork(): no more forks."""
        top = name.partition(".")[0]
        if not later and (top in sys.modules or top in getattr(sys, "stdlib_module_names", ())):
            return False
        first, self.has_imported = not self.has_imported, True
        if first or self.cache.good or self.counted_cuda or count_threads():
            return False
        if top in GOOD and not later and not self.cache.careful:
            self.skipped = True
            return False
        self.watch.output.take()
        parent = os.getpid()
        pid = self.watch.random_numbers.fork()
        if pid == 0:
            if refuses_cuda():
                os._exit(NO_CUDA)
            self.waiting.append(parent)
            self.forked_at = i
            die_with_parent()
            if os.getppid() != parent:
                os._exit(0)
            return False
        _, status = os.waitpid(pid, 0)
        self.counted_cuda = os.WIFEXITED(status) and os.WEXITSTATUS(status) == NO_CUDA
        if self.counted_cuda:
            return False
        if not os.WIFEXITED(status) or os.WEXITSTATUS(status) != REFUSED:
            os._exit(0)  # the child has ended in another way
        self.cache.known = True  # the child has recorded it
        return True

    def end_waiting(self):
        """The checks have passed: the processes that have waited for this one end. The agent, a
        subreaper, becomes its parent, so that each rank needs one fork (sibling.py)."""
        if not self.waiting:
            return
        die_with_parent(False)
        for pid in self.waiting:
            try:
                os.kill(pid, SIGKILL)
            except ProcessLookupError:
                pass  # it has ended with its parent
        until = time.monotonic() + 10
        while os.getppid() in self.waiting and time.monotonic() < until:
            time.sleep(0.001)
        die_with_parent()
        if os.getppid() != self.agent:
            os._exit(0)

    def begin_as_python(self, differing):
        """The user's sitecustomize is watched as an import: a plain rank's sees RANK."""
        sys.path[:] = [folder for folder in sys.path if folder not in (HERE, RANK)]
        found = origins({"sitecustomize"})
        if not found:
            self.missing = self.rank.remove_folder(HERE, RANK)
            return
        from .watch import Environment
        self.files += found
        variables = Environment(differing, self.give_up)
        variables.reader = "sitecustomize"
        with variables:
            self.missing = self.rank.remove_folder(HERE, RANK)
        why = variables.why_not()
        if why:
            self.give_up(why)

    def first_steps(self, modules):
        """(steps, the script's folders)"""
        if modules not in ("", "?"):
            return [("import", name, ()) for name in modules.split(",")], [script_folder()]
        steps, why, folders, files = first_steps(script_folder())
        self.files += files
        if why:
            self.give_up(why)
        return steps, folders

    def run(self, steps, folders, differing):
        """Imports. Returns why ranks must not be forked, or None."""
        from .checks import why_not
        from .watch import Watch, forget
        vanish()
        self.watch = Watch(differing, self.give_up, self.cache.good)
        quiet = [name for name in QUIET if name not in os.environ]
        for name in quiet:
            os.putenv(name, QUIET[name])
        self.imported.begin()
        why = why_not(steps, folders, self.files, self.watch, self.fork_before)
        forget()
        self.watch.output.take()
        for name in quiet:
            os.unsetenv(name)
        return why

    def prepare(self):
        _, (modules, differing, self.record, *entries) = self.receive()
        known = dict(entry.partition("=")[::2] for entry in entries)
        ours = ("DDPRUN_PRELOAD", "PYTHONPATH")
        self.own = {name: value for name, value in os.environ.items()
                    if known.get(name) != value and name not in ours}
        set_environment(entries, self.own, self.rank)
        before = dict(os.environ)
        self.begin_as_python(differing.split(","))
        steps, folders = self.first_steps(modules)
        self.cache = Cache(steps, folders, differing)
        self.files += self.cache.files
        steps = self.cache.passed(steps)
        if modules == "?":
            self.send("would " + ", ".join(dict.fromkeys(
                step[1] for step in steps if step[0] == "import")))
            os._exit(0)
        why = self.run(steps, folders, differing.split(","))
        if why:
            self.give_up(why)
        after = dict(os.environ)
        self.own.update({name: after.get(name) for name in {**before, **after}
                         if before.get(name) != after.get(name)})
        self.cache.store(len(steps), "")
        self.start = RankStart(self.agent, self.rank, self.own, self.watch)
        self.imported.freeze()
        self.end_waiting()
        self.imported_by = os.getpid()
        self.send(f"ready {self.imported_by}")

    def serve(self):
        """Serve requests; returns in a rank only."""
        try:
            self.prepare()
            while True:
                fds, (cpus, *entries) = self.receive()
                why = count_threads()
                answer = f"no {why}" if why else self.start.fork(self.wire, fds, cpus, entries)
                if not answer:
                    self.watch.output.repeat({self.imported_by, *self.waiting})
                    self.rank.set_up()
                    return
                self.send(answer)
        except BaseException as e:
            try:
                self.send(f"no {type(e).__name__}: {e}")
            finally:
                os._exit(1)
