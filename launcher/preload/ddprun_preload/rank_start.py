"""Forks a rank of the helper, and gives it what the agent gives to one that it starts itself."""
import io
import os
import sys

from . import RANK
from .process import code_descriptors, descriptors, die_with_parent
from .sibling import Sibling

EXTRA_FD = 63  # the number of PMI_FD in a rank


def set_environment(entries, own, rank):
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
    rank.restore_variable(RANK)


def renew_stdin():
    """Reopen sys.stdin: at start-up Python decided for the helper's stdin, a socket, whether it
    is seekable."""
    old = sys.stdin
    if old is None or old is not sys.__stdin__:
        return
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


def set_cpus(text):
    """"0-3,8"; empty: all."""
    if text:
        ranges = [part.partition("-") for part in text.split(",")]
        os.sched_setaffinity(0, {cpu for first, _, last in ranges
                                 for cpu in range(int(first), int(last or first) + 1)})


class RankStart:
    def __init__(self, agent, rank, own, watch):
        self.agent, self.rank, self.own, self.watch = agent, rank, own, watch
        self.code, self.sibling = code_descriptors(), Sibling()

    def set_up(self, fds, cpus, entries, report):
        """In the new process: process group, descriptors, affinity and environment of the rank."""
        os.setpgid(0, 0)
        for fd in (0, 1, 2):
            os.dup2(fds[fd], fd)
        kept = {*fds[3:], report} | self.code
        for fd, _ in list(descriptors()):
            if fd not in kept:
                os.close(fd)
        for fd in fds[4:]:  # PMI_FD
            os.dup2(fd, EXTRA_FD)
            os.close(fd)
        set_cpus(cpus)
        set_environment(entries, self.own, self.rank)
        renew_stdin()
        renew_threads()
        self.watch.renew()

    def wait_for_go(self, go):
        """Wait until the agent has recorded the pid. Only now it is certainly our parent."""
        went = os.read(go, 1)
        os.close(go)
        die_with_parent()
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

    def fork(self, wire, fds, cpus, entries):
        """None in the rank; else what to tell the agent."""
        answer, report = os.pipe()
        is_rank, intermediate = self.fork_for_agent()
        if is_rank:
            try:
                wire.detach()  # not to be closed: its number, 0, is stdin's in the rank
                self.set_up(fds, cpus, entries, report)
                os.write(report, b"%d" % os.getpid())
                os.close(report)
                self.wait_for_go(fds[3])
            except BaseException as e:
                os.write(report, os.fsencode(f"{type(e).__name__}: {e}")[:500])
                os._exit(127)
            return None
        for fd in (report, *fds):
            os.close(fd)
        with open(answer, "rb") as f:
            result = os.fsdecode(f.read())
        if intermediate:
            os.waitpid(intermediate, 0)
        return f"pid {result}" if result.isdigit() else f"no {result or 'a fork has failed'}"
