#!/usr/bin/env python3
"""Launching beside others: side by side, in interleaved rounds, every round verified.

    bench/launch.py [--build DIR] start [--np 2,16,64,256] [--rounds 7]
    bench/launch.py [--build DIR] kill  [--np 64] [--rounds 20]
    bench/launch.py [--build DIR] output [--rounds 7]
    --ddprun PATH: another ddprun than that of DIR, such as an installed one

start: from exec of the launcher to its exit, for /bin/true and for a static child that
       appends a byte to a file (the round counts only if there are N bytes).
kill:  from SIGKILL of one of N ranks to the exit of the launcher; of ddprun and of a loop of
       posix_spawn, kill and wait also to the line that names the cause, by when all ranks must
       have been reaped.
output: one million lines of 4 ranks, tagged with the rank, read to the last (counted).

Beside the bare posix_spawn loop stand mpiexec.hydra, mpirun and torchrun (of the Python
that tests/interop/torch-env.sh has made); what is not installed is left out. A run that
does not end within its limit is counted as hung, ended, and not part of the medians.
"""

import argparse
import contextlib
import os
import resource
import select
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

SOURCE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LIMIT = 10.0  # seconds for one launch


def wait(pid, limit):
    """The exit status of a child, None when it had to be killed."""
    fd = os.pidfd_open(pid)
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    ended = poller.poll(limit * 1000)
    os.close(fd)
    if not ended:
        for p in children_of(pid) | {pid}:
            with contextlib.suppress(ProcessLookupError):  # it may have ended just now
                os.kill(p, signal.SIGKILL)
    status = os.waitpid(pid, 0)[1]
    return status if ended else None


def spawn(command, env, stderr=None):
    actions = [
        (os.POSIX_SPAWN_OPEN, fd, "/dev/null", os.O_RDWR, 0) for fd in (0, 1, 2)
    ]
    if stderr is not None:
        actions.append((os.POSIX_SPAWN_DUP2, stderr, 2))
    return os.posix_spawnp(command[0], command, env, file_actions=actions, setpgroup=0)


class Contender:
    def __init__(self, name, command, most=10**6):
        self.name, self.command, self.most = name, command, most
        self.ms, self.cpu_ms, self.told_ms, self.hung, self.wrong = [], [], [], 0, 0

    def fresh(self):
        return Contender(self.name, self.command, self.most)


def contenders(args):
    ddprun = args.ddprun or f"{args.build}/launcher/ddprun"
    found = [
        Contender("posix_spawn loop", [f"{args.build}/bench/spawnloop", "{n}"]),
        Contender("ddprun", [ddprun, "-np", "{n}"]),
    ]
    if shutil.which("mpiexec.hydra"):
        found.append(Contender("mpiexec.hydra", ["mpiexec.hydra", "-np", "{n}"]))
    if shutil.which("mpirun"):
        found.append(
            Contender("mpirun", "mpirun --allow-run-as-root --oversubscribe -np {n}".split())
        )
    finder = [f"{SOURCE}/tests/interop/torch-env.sh"]
    torch = subprocess.run(
        ["sh", *finder], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False
    ).stdout.decode().strip()
    if torch:
        run = "-m torch.distributed.run --no-python --monitor-interval 0.1 --nproc-per-node {n}"
        found.append(Contender("torchrun", [torch, *run.split()], most=2))
    return found


class Counter:
    """The file that children append to."""

    def __init__(self):
        self.file = tempfile.NamedTemporaryFile(prefix="ddprun-bench-")
        self.env = {**os.environ, "TINY_COUNT": self.file.name}

    def reset(self):
        os.truncate(self.file.name, 0)

    def value(self):
        return os.stat(self.file.name).st_size


def median_and_range(values):
    if not values:
        return f"{'-':>24}"
    return f"{statistics.median(values):8.2f} ({min(values):.2f}-{max(values):.2f})".ljust(28)


def table(title, results, base):
    print(f"\n{title}")
    for c in results:
        ratio = "" if c.name == base or not c.ms else ratio_to(c, results, base)
        faults = f"  hung {c.hung}" * (c.hung > 0) + f"  wrong {c.wrong}" * (c.wrong > 0)
        cpu = f"cpu {statistics.median(c.cpu_ms):8.2f}  " if c.cpu_ms else ""
        print(f"  {c.name:18} {median_and_range(c.ms)}{cpu}{ratio}{faults}")
    sys.stdout.flush()


def ratio_to(c, results, base):
    """Round by round, as the machine's mood is that of the round."""
    other = next(r for r in results if r.name == base)
    pairs = [a / b for a, b in zip(c.ms, other.ms)]
    if not pairs:
        return ""
    return f"{statistics.median(pairs):6.2f} x {base} ({min(pairs):.2f}-{max(pairs):.2f})"


def cpu_of_children():
    """Seconds of all that have been waited for, their waited-for descendants included."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def one_start(c, n, child, counter, counted):
    command = [word.replace("{n}", str(n)) for word in c.command] + [child]
    counter.reset()
    before = cpu_of_children()
    start = time.perf_counter()
    status = wait(spawn(command, counter.env), LIMIT)
    ms = (time.perf_counter() - start) * 1000
    after = cpu_of_children()
    if status is None:
        c.hung += 1
    elif status != 0 or (counted and counter.value() != n):
        c.wrong += 1
    else:
        c.ms.append(ms)
        c.cpu_ms.append(1000 * (after - before))


def start(args):
    counter = Counter()
    for child in ("/bin/true", f"{args.build}/bench/tiny"):
        for n in map(int, args.np.split(",")):
            results = [c.fresh() for c in contenders(args) if n <= c.most]
            for _ in range(args.rounds):
                for c in results:
                    one_start(c, n, child, counter, child != "/bin/true")
            table(f"{n} x {os.path.basename(child)}, ms of wall time", results, "posix_spawn loop")


def children_of(pid):
    """All descendants of a process."""
    parents = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as f:
                    parents[int(name)] = int(f.read().rpartition(b")")[2].split()[1])
            except OSError:
                pass
    found, new = set(), {pid}
    while new:
        found |= new
        new = {p for p, parent in parents.items() if parent in found} - found
    return found - {pid}


def one_kill(c, n, tiny, counter):
    command = [word.replace("{n}", str(n)) for word in c.command] + [tiny, "stay"]
    counter.reset()
    reader, writer = os.pipe()
    pid = spawn(command, counter.env, writer)
    os.close(writer)
    end = time.monotonic() + LIMIT
    while counter.value() < n and time.monotonic() < end:
        time.sleep(0.005)
    below = children_of(pid)
    ranks = []
    for p in below:
        try:
            with open(f"/proc/{p}/cmdline", "rb") as f:
                if f.read().startswith(tiny.encode()):
                    ranks.append(p)
        except OSError:
            pass
    time.sleep(0.02)
    start = time.perf_counter()
    if ranks:
        os.kill(ranks[len(ranks) // 2], signal.SIGKILL)
    select.select([reader], [], [], LIMIT)
    told_ms = (time.perf_counter() - start) * 1000
    unreaped = [p for p in ranks if os.path.exists(f"/proc/{p}")]
    status = wait(pid, LIMIT)
    ms = (time.perf_counter() - start) * 1000
    os.close(reader)
    left = [p for p in below if os.path.exists(f"/proc/{p}/exe") and os.readlink(f"/proc/{p}/exe") == tiny]
    for p in left:
        os.kill(p, signal.SIGKILL)
    if status is None:
        c.hung += 1
    elif status == 0 or left or len(ranks) != n or (c.name in REAPS_FIRST and unreaped):
        c.wrong += 1
    else:
        c.ms.append(ms)
        c.told_ms.append(told_ms)


# print the cause when all ranks have been reaped
REAPS_FIRST = ("posix_spawn loop", "ddprun")


def percentile_99(values):
    return sorted(values)[min(len(values) - 1, int(len(values) * 0.99))]


def kill(args):
    counter, tiny = Counter(), os.path.abspath(f"{args.build}/bench/tiny")
    for n in map(int, (args.np or "64").split(",")):
        results = [
            c.fresh() for c in contenders(args) if c.name != "torchrun"
        ]
        for _ in range(args.rounds):
            for c in results:
                one_kill(c, n, tiny, counter)
        table(f"one of {n} killed to exit of the launcher, ms", results, "ddprun")
        for c in results:
            if c.ms:
                print(f"  {c.name} p99: {percentile_99(c.ms):.2f} ms")
            if c.name in REAPS_FIRST and c.told_ms:
                print(f"  {c.name}, all reaped and the cause printed: "
                      f"{median_and_range(c.told_ms)}p99 {percentile_99(c.told_ms):.2f} ms")


LINES = 250_000
WRITE = f"yes 'step 1234: loss 0.1234, accuracy 97.65 %, 123456 images/s' 2>/dev/null | head -n {LINES}"


def one_output(c, n):
    command = [word.replace("{n}", str(n)) for word in c.command] + ["sh", "-c", WRITE]
    reader, writer = os.pipe()
    before, start = cpu_of_children(), time.perf_counter()
    pid = os.posix_spawnp(
        command[0], command, os.environ, setpgroup=0,
        file_actions=[(os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
                      (os.POSIX_SPAWN_DUP2, writer, 1)],
    )
    os.close(writer)
    lines = 0
    while piece := os.read(reader, 1 << 20):
        lines += piece.count(b"\n")
    os.close(reader)
    status = wait(pid, LIMIT)
    if status != 0 or lines != n * LINES:
        c.wrong += 1
        return
    c.ms.append((time.perf_counter() - start) * 1000)
    c.cpu_ms.append(1000 * (cpu_of_children() - before))


def output(args):
    n = 4
    loop = f"for i in $(seq {n}); do {WRITE} & done; wait"
    results = [Contender("no launcher, no tags", ["sh", "-c", loop, "{n}"])]
    tag = {"ddprun": "--tag-output=on", "mpiexec.hydra": "-prepend-rank", "mpirun": "--tag-output"}
    for c in contenders(args):
        if c.name in tag:
            results.append(Contender(c.name, [*c.command, tag[c.name]]))
    for _ in range(args.rounds):
        for c in results:
            one_output(c, n)
    table(f"{n} x {LINES} tagged lines through a pipe, ms", results, "ddprun")


def parse(parser):
    """The arguments; with --realtime it and its children have a priority."""
    parser.add_argument("--realtime", action="store_true", help="SCHED_RR for all contenders: "
                        "what else the machine does then hardly shows (needs root)")
    args = parser.parse_args()
    if args.realtime:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(5))
    return args


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", default=f"{SOURCE}/build")
    parser.add_argument("--ddprun")
    parser.add_argument("what", choices=["start", "kill", "output"])
    parser.add_argument("--np")
    parser.add_argument("--rounds", type=int)
    args = parse(parser)
    if args.what == "start":
        args.np = args.np or "2,16,64,256"
    if not os.path.exists(f"{args.build}/bench/spawnloop"):
        parser.error(f"'{args.build}' has no bench/spawnloop: build everything with ninja -C DIR, name it by --build")
    args.rounds = args.rounds or {"start": 7, "kill": 20, "output": 7}[args.what]
    {"start": start, "kill": kill, "output": output}[args.what](args)


if __name__ == "__main__":
    main()
