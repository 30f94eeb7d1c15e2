#!/usr/bin/env python3
"""soak.py - launches with one fault each, at a random moment, and what may come of it.

    sudo tests/soak/soak.py --build BUILD [--seconds S | --launches N] [--seed N] [--lanes N]
                            [--only FAULT,...] [--first N] [--long] [--tree] [--launcher NAME]
                            [--python P]

Launch N of a seed is always the same job with the same fault: `--seed S --first N --launches 1`
runs it again. A lane is a thread with HOSTS hosts of a lab; lanes run side by side. After each
launch are checked: the exit code, the line that names the first cause, every byte of output, and
that no process, shared memory or file is left on any host. The fault comes, in one launch of two, of a
peer in three of four, when ranks run. --long: processes are stopped and links cut for up to 90 s instead
of 3, when ranks run, and with a --node-timeout of two minutes. --tree: three to five hosts, whose agents
connect in a tree, if not started by qrsh. --launcher: `slurm` (ddprun in an allocation of Slurm), `sge`
(in a job of Grid Engine), or a peer, of which less is asked: `mpirun`
(Open MPI), `torchrun` (one host; --python: one with PyTorch that alice may run, as Debian's 1.13 starts
nothing with Python 3.11). SIGINT and SIGTERM: no more launches, and the report. Exit: 0 when nothing was
wrong.
"""
import argparse
import collections
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import traceback

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.join(ROOT, "tests", "lab"))
from hosts import Folder  # noqa: E402

HOSTS = 3       # per lane, each of which has its own lab
TREE = 5        # with --tree
LONG = 90.0     # seconds, of a fault with --long
SSH_WAITS = 8.0  # seconds, and a bit more, for a host that does not answer
UID = 5001      # alice, the lab's user
CPUS = 40       # of a host of the lab's Slurm
HANG = 120.0    # seconds; no job of the soak takes longer, but for its --long fault
SOCKETS = f"/tmp/ddprun-{UID}"  # the folder of all jobs on all hosts, which share /tmp
RANKS = f"ddprun-{UID}-ranks-"  # in /dev/shm: of an agent that was killed; the next one removes it
GONE = 10.0     # seconds until all processes of a job that has ended are gone
PROGRAMS = ("launcher/ddprun", "launcher/ddprun-agent", "launcher/ddprun-topo", "tests/soak/soak_rank",
            "launcher/ssh_config")


class Launcher(collections.namedtuple("Launcher", "command tag rank main agent hosts ours")):
    """command(job): its command line. tag: of a line of output, with the rank and the line. rank: its
    variable. main, agent: what their command lines match. hosts: at most. ours: held to all promises."""


def where(job):
    slots = -(-job.np // len(job.hosts))
    return ",".join(f"{h.name}:{slots}" for h in job.hosts)


def program(job, flags):
    return [f"{job.lane.lab.bin}/soak_rank", str(job.text_seed), str(job.lines), str(job.ms), flags,
            *job.failures]


def in_slurm(job):
    per_host = -(-job.np // len(job.hosts))
    return ["salloc", "-Q", "-p", "all", "-w", ",".join(h.name for h in job.hosts), "-n", str(job.np),
            f"--ntasks-per-node={per_host}", "--oversubscribe",
            "sh", "-c", '"$@"; exit $?', "sh",  # salloc's own code is 0 if SIGINT kills its command
            f"{job.lane.lab.bin}/ddprun", "-np", str(job.np), *job.options, *program(job, job.flags)]


def in_sge(job):
    """Inside of a job of Grid Engine, with some of its hosts."""
    slots, path = -(-job.np // len(job.hosts)), f"{job.lane.folder}/pe_hostfile"
    with open(path, "w", encoding="ascii") as f:
        f.writelines(f"{h.name} {slots} all.q@{h.name} UNDEFINED\n" for h in job.hosts)
    return ["env", *job.lane.job_env, f"PE_HOSTFILE={path}", f"NHOSTS={len(job.hosts)}",
            f"{job.lane.lab.bin}/ddprun", "-np", str(job.np), *job.options, *program(job, job.flags)]


OURS = {"tag": rb"\[(\d+)(?: [^\]]*)?\] (.*\n?)", "rank": "RANK", "main": r"\S*/ddprun -np",
        "agent": r"\S*/ddprun-agent\b", "hosts": 3, "ours": True}
# PyTorch 1.13, which Debian has, finds no Std.NONE when Python is 3.11
TORCHRUN = ("import torch.distributed.run as r; "
            "r.Std.from_str = lambda text: r.Std(int(text)); r.main()")
LAUNCHERS = {
    "ddprun": Launcher(command=lambda job: [
        f"{job.lane.lab.bin}/ddprun", "-np", str(job.np), "-H", where(job), *job.options,
        *program(job, job.flags)], **OURS),
    "slurm": Launcher(command=in_slurm, **OURS),
    "sge": Launcher(command=in_sge, **OURS),
    "mpirun": Launcher(lambda job: [
        "mpirun", "-np", str(job.np), "--host", where(job), "--tag-output", "--oversubscribe",
        *program(job, job.flags.replace("m", "-"))], rb"\[1,(\d+)\]<stdout>:",
        "OMPI_COMM_WORLD_RANK", "mpirun ", r"(\S*/)?orted\b", 3, False),
    "torchrun": Launcher(lambda job: [
        job.lane.run_.args.python, "-c", TORCHRUN, "--standalone", f"--nproc_per_node={job.np}",
        "--no_python", *program(job, job.flags.replace("m", "-"))], None,
        "RANK", r"\S* -c import torch", r"\0", 1, False),
}


def read(path):
    try:
        with open(path, "rb") as f:
            return f.read()
    except OSError:
        return b""


def line_of(seed, rank, i):
    """Line `i` of a rank, as soak_rank.c writes it."""
    h = ((seed * 1000003 + rank * 8191 + i * 127) & 0xFFFFFFFF) % 65521
    size = 20000 if h % 97 == 0 else h % 200
    text = ALPHABET[h % 26:h % 26 + size]
    return b"%d %s\n" % (i, text)


ALPHABET = bytes(97 + k % 26 for k in range(20026))


class Wrong(Exception):
    """What a launch did that it must not."""


class Process:
    def __init__(self, pid):
        self.pid, self.line = pid, read(f"/proc/{pid}/cmdline").replace(b"\0", b" ").decode()

    def stat(self):
        return read(f"/proc/{self.pid}/stat").rpartition(b")")[2].split() or [b"X", b"0"]

    def parent(self):
        return int(self.stat()[1])

    def variable(self, name):
        for item in read(f"/proc/{self.pid}/environ").split(b"\0"):
            if item.startswith(name.encode() + b"="):
                return item.partition(b"=")[2].decode()
        return None

    def kill(self, signum):
        """False if it has ended before."""
        if self.stat()[0] in b"ZX":
            return False
        try:
            os.kill(self.pid, signum)
        except ProcessLookupError:
            return False
        return True


class Lab(Folder):
    def __init__(self, build, programs):
        super().__init__("ddprun-soak-")
        for name in programs:
            shutil.copy(os.path.join(build, name), self.bin)
        mounts = [line.split() for line in read("/proc/mounts").decode().splitlines()]
        self.cgroups = next((m[1] for m in mounts if m[2] == "cgroup2"), "/sys/fs/cgroup")


class Host:
    def __init__(self, lab, number):
        self.lab, self.name = lab, f"node{number:03}"
        self.folder = f"{lab.state}/hosts/{self.name}"
        self.cgroup = f"{lab.cgroups}/lab{lab.state.replace('/', '-')}/{self.name}"

    def init(self):
        return int((read(f"{self.folder}/pid").split() or [b"0"])[0])

    def processes(self):
        """Those of the lab's user in the host's process namespace, which its control group holds."""
        found = []
        for pid in map(int, read(f"{self.cgroup}/cgroup.procs").split()):
            try:
                if os.stat(f"/proc/{pid}").st_uid == UID:
                    found.append(Process(pid))
            except OSError:
                pass
        return [p for p in found if p.line and p.stat()[0] not in b"ZX"]

    def files(self):
        """What a job could leave behind, in memory or in folders of temporary files."""
        root, found = f"/proc/{self.init()}/root", []
        for folder in ("/dev/shm", "/tmp", f"/run/user/{UID}", "/run"):
            try:
                names = os.listdir(root + folder)
            except OSError:
                continue
            found += [f"{folder}/{n}" for n in names if not n.startswith(RANKS) and (
                folder == "/dev/shm" or "ddp" in n and not self.lab.folder.endswith(n) and "soak" not in n and
                owner(f"{root}{folder}/{n}") == UID and not is_in_use(f"{root}{folder}/{n}"))]
        return sorted(found)

    def enter(self, *command, user=True):
        become = ["setpriv", "--reuid", str(UID), "--regid", str(UID), "--clear-groups"] if user else []
        return ["nsenter", "-t", str(self.init()), "-n", "-u", "-m", "-i", "-p", "-T",
                "--", "env", "-C", "/", *become, *command]

    def join(self):
        with open(f"{self.cgroup}/cgroup.procs", "w", encoding="ascii") as f:
            f.write("0")

    def fault(self, *what):
        self.lab("fault", self.name, *what)


def owner(path):
    try:
        return os.lstat(path).st_uid
    except OSError:
        return None


def is_in_use(path):
    """The folder of sockets, while a job has something in it, or after it is gone."""
    try:
        return path.endswith(SOCKETS) and os.listdir(path) != []
    except OSError:
        return True


class Reader(threading.Thread):
    """Reads a pipe: at once, slowly, or not at all for a while; or closes it."""

    def __init__(self, file):
        super().__init__(daemon=True)
        self.file, self.data, self.way, self.until = file, bytearray(), "fast", 0.0
        self.start()

    def run(self):
        fd = self.file.fileno()
        while True:
            if self.way == "closed":
                self.file.close()
                return
            if time.monotonic() < self.until:
                if self.way == "stopped":
                    time.sleep(0.02)
                    continue
                time.sleep(0.005)
            piece = os.read(fd, 4096 if self.way == "slow" else 1 << 16)
            if not piece:
                self.file.close()
                return
            self.data += piece


class Job:
    """One launch; everything about it follows from the seed and its number."""

    rank_program = "soak_rank"
    long = False  # faults last up to LONG seconds

    def __init__(self, lane, seed, number, only, long):
        self.lane, self.number = lane, number
        self.r = random.Random(f"{seed} {number}")
        self.fault = self.r.choice(only)
        self.launched = lane.run_.launcher
        tree = lane.run_.args.tree
        many = self.r.choice((3, 4, TREE) if tree else (1, 1, 1, 2, 3))
        many = max(many, FAULTS[self.fault].hosts)
        self.hosts = lane.hosts[:many if tree else min(many, self.launched.hosts)]
        self.np = self.r.choice((1, 2, 3, 4, 6, 8)) if self.r.random() < 0.9 else self.r.choice((16, 32, 64))
        self.np = max(self.np, len(self.hosts))
        if lane.run_.args.launcher == "slurm":
            self.np = min(self.np, CPUS * len(self.hosts))
        self.text_seed = self.r.randrange(1 << 30)
        self.lines = self.r.choice((5, 20, 100, 400))
        self.ms = self.r.choice((50, 200, 500, 1000))
        self.long = long
        self.flags = "m" + "".join(f for f in "tc" if self.r.random() < 0.2)
        self.when = self.r.uniform(0, 0.15 + 0.2 * (len(self.hosts) > 1) + self.ms / 1000)
        self.options, self.failures = ["--grace", "0.5s"], []
        if long:
            self.options += ["--node-timeout", "120s"]
        if tree:
            self.options += ["--tree-width", self.r.choice("12")]
        self.folder = os.path.join(lane.folder, "out")
        self.process = self.out = self.err = None
        self.missed = False

    def span(self):
        """Seconds for which something is stopped or cut."""
        return self.r.uniform(0.2, LONG if self.long else 3.0)

    def start(self):
        head = self.lane.hosts[0]
        env = {"PATH": "/usr/bin:/bin", "HOME": f"{self.lane.lab.state}/home/alice", "LANG": "C",
               "USER": "alice", "SOAK": "1", "OMP_NUM_THREADS": "1",
               # its check for leaks stops threads by ptrace, and hangs when a SIGCONT comes
               "ASAN_OPTIONS": "detect_leaks=0",
               # a thread that waits for a stalled disk is there when the local agent is forked
               "TSAN_OPTIONS": "die_after_fork=0",
               **{k: v for k, v in os.environ.items() if k.endswith("SAN_OPTIONS")}}
        self.process = subprocess.Popen(
            head.enter(*self.launched.command(self)), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, env=env, preexec_fn=head.join)
        self.out, self.err = Reader(self.process.stdout), Reader(self.process.stderr)
        self.began = time.monotonic()
        # the start takes most of the time of a peer, and of ours on a busy machine; it has limits of a
        # minute of its own
        if self.long or self.fault in OF_RANKS or self.r.random() < (0.5 if self.launched.ours else 0.75):
            self.when = self.r.uniform(0, 0.8 * self.ms / 1000)
            for _ in range(1000):
                if self.process.poll() is not None or self.ranks():
                    break
                time.sleep(0.05)

    def wait(self):
        """False if it hangs. nsenter stops itself when its child has been stopped. Time during which the
        soak is stopped itself is not counted."""
        for _ in range(int((HANG + LONG * self.long) / 0.1)):
            try:
                self.process.wait(0.1)
                return True
            except subprocess.TimeoutExpired:
                self.process.send_signal(signal.SIGCONT)
        return False

    def kill(self):
        """End everything of it that is still there."""
        for p in self.processes():
            p.kill(signal.SIGCONT)
            p.kill(signal.SIGKILL)
        if self.process:
            self.process.kill()
            self.process.wait()

    # --- its processes ---

    def processes(self):
        return [p for h in self.lane.hosts for p in h.processes() if p.pid not in self.lane.job_pids]

    def ranks(self):
        mine = f"{self.lane.lab.bin}/{self.rank_program} "
        found = {}
        for p in self.processes():
            rank = p.variable(self.launched.rank) if p.line.startswith(mine) else None
            # a child of the rank has the same variables
            if rank is not None and not Process(p.parent()).line.startswith(mine):
                found[int(rank)] = p
        return found

    def launcher(self):
        """The ddprun whose parent is not one; its forked agent has the same command line."""
        mine = [p for p in self.lane.hosts[0].processes()
                if re.match(self.launched.main, p.line)]
        pids = {p.pid for p in mine}
        return next((p for p in mine if p.parent() not in pids), None)

    def agent(self, host):
        launcher = self.launcher()
        for p in host.processes():
            if re.match(self.launched.agent, p.line) or (
                    launcher and p.parent() == launcher.pid and p.line == launcher.line):
                return p
        return None

    def pick(self, choices):
        choices = list(choices)
        return self.r.choice(choices) if choices else None

    def text(self):
        return bytes(self.err.data).decode(errors="replace") if self.err else ""


class Expect:
    """codes: allowed exit codes. names: what the headline must match. whole: all output arrives."""

    def __init__(self, codes=(0,), names=None, whole=True, text=True):
        self.codes, self.names, self.whole, self.text = codes, names, whole, text


HEALTHY = Expect()
OF_RANKS = ("rank_killed", "rank_stopped", "all_ranks_stopped")
Fault = collections.namedtuple("Fault", "run hosts before")
FAULTS = {}


def fault(hosts=1, before=None):
    """Register a fault, which does its damage and returns what it expects, or None if what it was to
    break had ended already. hosts: it needs. before: changes the job ahead of its start."""
    def register(run):
        FAULTS[run.__name__] = Fault(run, hosts, before)
        return run
    return register


def for_a_while(job, *processes):
    """Stopped and continued."""
    stopped = [p for p in processes if p and p.kill(signal.SIGSTOP)]
    time.sleep(job.span())
    for p in stopped:
        p.kill(signal.SIGCONT)
    return HEALTHY if stopped else None


@fault()
def nothing(job):
    return HEALTHY


def failing(job):
    rank, code = job.r.randrange(job.np), job.r.randrange(1, 120)
    job.failures = [f"{rank}:{job.r.randrange(job.lines)}:{code}"]


@fault(before=failing)
def rank_fails(job):
    rank, _, code = job.failures[0].split(":")
    return Expect((int(code),), rf"rank {rank}\b", whole=False)


@fault()
def rank_killed(job):
    ranks = job.ranks()
    rank = job.pick(ranks)
    signum = job.r.choice((signal.SIGKILL, signal.SIGXCPU, signal.SIGABRT))
    if rank is None or not ranks[rank].kill(signum):
        return None
    return Expect((128 + signum, 0), rf"rank {rank}\b", whole=False)


@fault()
def rank_stopped(job):
    ranks = job.ranks()
    return for_a_while(job, ranks.get(job.pick(ranks)))


@fault()
def all_ranks_stopped(job):
    return for_a_while(job, *job.ranks().values())


@fault()
def agent_stopped(job):
    return for_a_while(job, job.agent(job.pick(job.hosts)))


@fault()
def launcher_stopped(job):
    return for_a_while(job, job.launcher())


@fault()
def agent_killed(job):
    host = job.pick(job.hosts)
    agent = job.agent(host)
    if not agent or not agent.kill(signal.SIGKILL):
        return None
    return Expect((0, 125, 137), rf"{host.name}|agent", whole=False)


@fault(hosts=2)
def guard_killed(job):
    """The agent's parent on another host; its death ends the agent."""
    host = job.pick(job.hosts[1:])
    guard = job.pick(p for p in host.processes() if re.match(r"\S*/ddprun-guard\b", p.line))
    if not guard or not guard.kill(signal.SIGKILL):
        return None
    return Expect((0, 125, 137), rf"{host.name}|agent", whole=False)


@fault()
def launcher_killed(job):
    launcher = job.launcher()
    if not launcher or not launcher.kill(signal.SIGKILL):
        return None
    return Expect((137, -9, 0), None, whole=False, text=False)


@fault()
def interrupted(job):
    launcher, signum = job.launcher(), job.r.choice((signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
    if not launcher or not launcher.kill(signum):
        return None
    return Expect((128 + signum, 0, -signum), None, whole=False)


@fault()
def interrupted_twice(job):
    launcher = job.launcher()
    if not launcher or not launcher.kill(signal.SIGINT):
        return None
    time.sleep(job.r.uniform(0, 0.3))
    launcher.kill(signal.SIGINT)
    return Expect((130, 0, -2), None, whole=False)


def limited(job):
    job.options += ["--timeout", f"{job.r.randrange(50, 1500)}ms"]


@fault(before=limited)
def timed_out(job):
    return Expect((0, 124), r"timed out|^$", whole=False)


@fault(hosts=2)
def ssh_killed(job):
    ssh = job.pick(p for p in job.processes() if re.match(r"(\S*/)?(ssh|srun|qrsh)\s", p.line))
    if not ssh or not ssh.kill(signal.SIGKILL):
        return None
    return Expect((0, 125, 137), r"node|ssh|srun|qrsh", whole=False)


@fault(hosts=2)
def link_cut_for_a_while(job):
    host, began = job.pick(job.hosts), time.monotonic()
    host.fault("drop", job.r.choice(("both", "in", "out")))
    time.sleep(job.span())
    host.fault("undrop")
    late = not job.long and time.monotonic() - began > SSH_WAITS  # on a machine that is overloaded
    return Expect((0, 125), "cannot start on", whole=False) if late else HEALTHY


@fault(hosts=2)
def link_slow(job):
    host = job.pick(job.hosts)
    host.fault("delay", str(job.r.randrange(1, 60)), str(job.r.randrange(0, 20)))
    job.wait()
    host.fault("clear")
    return HEALTHY


def short_timeout(job):
    job.options += ["--node-timeout", "2s"]


@fault(hosts=2, before=short_timeout)
def host_dies(job):
    host = job.pick(job.hosts[1:])
    host.fault(job.r.choice(("crash", "kill")))
    job.wait()
    job.lane.up()
    return Expect((0, 125, 137, 255), host.name, whole=False)


def to_files(job):
    job.options += ["--output-filename", job.folder + "/o"]


@fault(before=to_files)
def disk_full(job):
    """The terminal still gets all."""
    return Expect(names="No space left on device|^$")


@fault(before=to_files)
def disk_stalled(job):
    job.lane.hosts[0].fault("stall", job.folder)
    time.sleep(job.span())
    job.lane.hosts[0].fault("unstall", job.folder)
    return HEALTHY


@fault()
def reader_slow(job):
    job.out.way, job.out.until = "slow", time.monotonic() + job.span()
    return HEALTHY


@fault()
def reader_stopped(job):
    job.out.way, job.out.until = "stopped", time.monotonic() + job.span()
    return HEALTHY


@fault()
def reader_closed(job):
    job.out.way = "closed"
    return Expect((0, 141), r"^$", whole=False, text=False)


STRANGER = """
import os, random, socket, sys, time
r, ports, held = random.Random(int(sys.argv[1])), set(), []
for name in ("/proc/net/tcp", "/proc/net/tcp6"):
    for line in open(name).read().splitlines()[1:]:
        f = line.split()
        if f[3] == "0A":
            ports.add(int(f[1].rpartition(":")[2], 16))
for port in ports - {22}:
    for _ in range(r.randrange(1, 6)):
        s = socket.socket()
        s.settimeout(1)
        try:
            s.connect((sys.argv[2], port))
            s.send(os.urandom(r.randrange(0, 300)))
            held.append(s)
        except OSError:
            pass
time.sleep(r.uniform(0, 1))
"""


@fault()
def strangers(job):
    """Another user of the host at every port; what they find open closes them or waits."""
    host = job.pick(job.hosts)
    subprocess.run(host.enter("python3", "-Ic", STRANGER, str(job.number),
                              job.r.choice(("127.0.0.1", host.name)), user=False),
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=HANG, check=False)
    return HEALTHY


# --- a launch and its checks ------------------------------------------------------------------


def split(job):
    """What each rank has written, as far as it has arrived."""
    data = bytes(job.out.data)
    if job.np == 1 and job.launched.ours:
        return {0: data}
    ranks = collections.defaultdict(bytes)
    if not job.launched.ours:  # Open MPI puts tags into long lines, too
        pieces = re.split(job.launched.tag, data)
        for rank, text in zip(pieces[1::2], pieces[2::2]):
            ranks[int(rank)] += text
        return ranks
    for line in data.splitlines(keepends=True):
        m = re.fullmatch(job.launched.tag, line)
        if not m:
            raise Wrong(f"a line without a tag: {line[:100]!r}")
        ranks[int(m[1])] += m[2]
    return ranks


def check_output(job, expect):
    if not job.launched.tag:  # one rank's output cannot be told from another's
        size = sum(len(line_of(job.text_seed, r, i)) for r in range(job.np) for i in range(job.lines))
        if expect.whole and job.process.returncode == 0 and len(job.out.data) != size:
            raise Wrong(f"{size - len(job.out.data)} bytes are lost")
        return
    for rank, data in split(job).items():
        whole = b"".join(line_of(job.text_seed, rank, i) for i in range(job.lines))
        cut = data[:-1] if data.endswith(b"\n") else data  # ddprun ends a line that its rank did not
        if not whole.startswith(data) and not whole.startswith(cut):
            at = next(i for i, (a, b) in enumerate(zip(data, whole + bytes(1))) if a != b)
            raise Wrong(f"rank {rank}: other bytes than it wrote, from {at} on: {data[at:at + 60]!r}")
        if expect.whole and job.process.returncode == 0 and data != whole:
            raise Wrong(f"rank {rank}: {len(whole) - len(data)} bytes are lost")
    if expect.whole and job.process.returncode == 0 and len(split(job)) < job.np:
        raise Wrong(f"output of {len(split(job))} of {job.np} ranks")


def check_peer(job, expect):
    code = job.process.returncode
    if code != 0 and expect is HEALTHY:
        raise Wrong(f"a healthy job was ended with {code}")
    if code == 0 and 0 not in expect.codes:
        raise Wrong("exit code 0 of a job that failed")
    if expect.text:
        check_output(job, Expect(expect.codes, whole=code == 0))


def check(job, expect):
    code = job.process.returncode
    lines = [x for x in job.text().splitlines() if "note: all ranks have exited; ending" not in x]
    if job.fault != "strangers":  # a rank that was killed while it joined looks like one
        lines = [x for x in lines if "refused a connection" not in x or "closed already" not in x]
    if re.search(r"Sanitizer|runtime error:", job.text()):  # a job that fails may have other lines
        raise Wrong("a report of a sanitizer")
    headline = next((x for x in lines if x.startswith("ddprun: ") and "warning: " not in x), "")
    if code not in expect.codes:
        raise Wrong(f"exit code {code}, not one of {expect.codes}")
    if expect.names and code != 0 and not re.search(expect.names, headline):
        raise Wrong(f"the first line has no '{expect.names}'")
    if code == 0 and expect.whole and expect.names is None and (
            headline or lines and job.fault != "strangers"):
        raise Wrong("a message of a job in which nothing was wrong")
    if expect.text:
        if code == 0:
            expect = Expect(expect.codes, whole=True)
        check_output(job, expect)


def check_nothing_left(job, files, more=0.0):
    began, awake = time.monotonic(), 0.0
    while left := job.processes():
        awake += 0.01
        if awake > GONE + more:
            lines = [f"{p.pid} {p.line}" for p in left]
            for p in left:
                p.kill(signal.SIGKILL)
            raise Wrong(f"processes are left: {lines}")
        time.sleep(0.01)
    job.gone = time.monotonic() - began
    end = time.monotonic() + GONE
    for host, before in files.items():
        # the job of another lane may be making the folder, or removing it
        while (after := [f for f in host.files() if f not in before]) == [SOCKETS] and (
                time.monotonic() < end):
            time.sleep(0.01)
        if after:
            raise Wrong(f"{host.name}: files are left: {after}")


class Lane(threading.Thread):
    def __init__(self, run):
        super().__init__()
        self.lab = Lab(run.args.build, run.programs)
        self.run_, self.folder, self.finished = run, self.lab.folder, False
        self.nhosts = TREE if run.args.tree else run.hosts
        self.job_env, self.job_pids = [], set()  # of the launch's job of Grid Engine
        os.makedirs(os.path.join(self.folder, "out"))
        os.chown(os.path.join(self.folder, "out"), UID, UID)
        self.up()

    def up(self):
        """The hosts and their scheduler, also where some have died."""
        scheduler = self.run_.args.launcher
        first = 2 if scheduler == "sge" else 1  # its node001 only submits
        self.lab("up", str(self.nhosts + first - 1))
        self.hosts = [Host(self.lab, first + i) for i in range(self.nhosts)]
        if scheduler == "slurm":
            self.lab("slurm", "up")
        elif scheduler == "sge":
            if self.job_pids:
                self.lab("sge", "down")
                self.job_pids = set()
            self.lab("sge", "up")

    def in_front(self, *command):
        subprocess.run(Host(self.lab, 1).enter(*command), check=True, stdout=subprocess.DEVNULL, timeout=HANG)

    def hold(self):
        """Get a job of Grid Engine. It is ended when one of its tasks has failed, so that a launch has
        one of its own."""
        self.in_front("qsub", "-b", "y", "-o", "/dev/null", "-j", "y", "-pe", "mpi",
                      str(8 * len(self.hosts)), "sleep", "100000")
        for _ in range(int(HANG / 0.1)):
            held = [(h, p) for h in self.hosts for p in h.processes() if p.line == "sleep 100000 "]
            if held:
                break
            time.sleep(0.1)
        head, job = held[0]
        environ = read(f"/proc/{job.pid}/environ").decode().split("\0")
        self.job_env = [v for v in environ if re.match("(JOB_ID|SGE_(ROOT|CELL|TASK_ID)|PE|TMPDIR)=", v)]
        self.job_pids = {p.pid for h in self.hosts for p in h.processes()}
        self.hosts.sort(key=lambda h: h is not head)  # only the job's own host starts tasks

    def release(self):
        if self.job_pids:
            self.in_front("qdel", "-u", "alice")
        for _ in range(int(HANG / 0.1)):
            if not any(p.pid in self.job_pids for h in self.hosts for p in h.processes()):
                break
            time.sleep(0.1)
        self.job_pids = set()

    def run(self):
        while (number := self.run_.next()) is not None:
            self.one(number)
        self.finished = True

    def one(self, number):
        job, wrong = self.job(number), None
        try:
            self.launch(job)
        except Wrong as e:
            wrong = str(e)
        except Exception:  # pylint: disable=broad-except
            wrong = "the soak itself: " + traceback.format_exc()
        finally:
            job.kill()
            self.mend(job, wrong)
            subprocess.run(["find", job.folder, "-mindepth", "1", "-delete"], check=False)
        self.run_.ended(job, wrong)

    @staticmethod
    def ends(job):
        if not job.wait():
            raise Wrong(f"hangs: {[p.line[:200] for p in job.processes()]}")

    def job(self, number):
        if self.run_.args.launcher == "sge":
            self.hold()
        return Job(self, self.run_.args.seed, number, self.run_.only, self.run_.args.long)

    def launch(self, job):
        """From its start to all checks of it; raises Wrong."""
        what = FAULTS[job.fault]
        if what.before:
            what.before(job)
        if job.fault == "disk_full":
            self.hosts[0].fault("full", job.folder)
            os.remove(f"/proc/{self.hosts[0].init()}/root{job.folder}/.full")  # 64 KiB
        if job.fault == "disk_stalled":
            self.hosts[0].fault("slow", job.folder, "0")
        files = {h: h.files() for h in self.hosts}
        job.start()
        time.sleep(job.when)
        expect = what.run(job)
        job.missed = expect is None
        self.ends(job)
        for reader in (job.out, job.err):
            reader.join(max(0.0, reader.until - time.monotonic()) + GONE)
        (check if self.run_.launcher.ours else check_peer)(job, expect or HEALTHY)
        check_nothing_left(job, files)

    def mend(self, job, _):
        """What its fault has broken."""
        if job.fault == "disk_full":
            self.hosts[0].lab("exec", self.hosts[0].name, "umount", job.folder)
        if job.fault == "disk_stalled":
            self.hosts[0].fault("mend", job.folder)
        self.release()


class Run:
    hosts, programs = HOSTS, PROGRAMS

    def __init__(self, args):
        self.args, self.lock = args, threading.Lock()
        self.launcher = LAUNCHERS[args.launcher]
        self.only = args.only.split(",") if args.only else sorted(
            n for n, f in FAULTS.items() if f.hosts <= self.launcher.hosts and (
                self.launcher.ours or f.before in (None, failing)))
        for name in self.only:
            if name not in FAULTS:
                sys.exit(f"soak: no fault '{name}'; there are {', '.join(sorted(FAULTS))}")
        self.number, self.began = args.first, time.monotonic()
        self.done, self.missed, self.wrong = collections.Counter(), collections.Counter(), 0
        self.gone, self.stopped = [], False

    def stop(self, *_):
        self.stopped = True

    def next(self):
        with self.lock:
            n, seconds = self.number - self.args.first, time.monotonic() - self.began
            if self.stopped or (n >= self.args.launches if self.args.launches else seconds >= self.args.seconds):
                return None
            self.number += 1
            return self.number - 1

    def ended(self, job, wrong):
        with self.lock:
            self.done[job.fault] += 1
            self.missed[job.fault] += job.missed
            if job.fault == "launcher_killed" and not job.missed and not wrong:
                self.gone.append(job.gone)
            if wrong:
                self.wrong += 1
                print(f"launch {job.number} ({job.fault}, {job.np} ranks on {len(job.hosts)} hosts, after "
                      f"{job.when:.3f} s): {wrong}\n    {' '.join(job.launched.command(job))}\n    stderr: "
                      f"{job.text()[-1500:]}", flush=True)

    def report(self):
        for name in self.only:
            print(f"{self.done[name]:7} {name}" + (
                f" ({self.missed[name]} too late)" if self.missed[name] else ""))
        if self.gone:
            print(f"after a killed launcher all ended within {max(self.gone) * 1000:.0f} ms")
        total = sum(self.done.values())
        print(f"{total} launches in {time.monotonic() - self.began:.0f} s, {self.wrong} wrong "
              f"(seed {self.args.seed})")


def main(run_class=Run, lane_class=Lane, doc=__doc__):
    p = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--build", required=True)
    p.add_argument("--seconds", type=float, default=60)
    p.add_argument("--launches", type=int)
    p.add_argument("--seed", type=int, default=int(time.time()))
    p.add_argument("--lanes", type=int, default=2)
    p.add_argument("--first", type=int, default=0)
    p.add_argument("--only")
    p.add_argument("--long", action="store_true")
    p.add_argument("--tree", action="store_true")
    p.add_argument("--launcher", choices=LAUNCHERS, default="ddprun")
    p.add_argument("--python", default="python3")
    args = p.parse_args()
    if os.geteuid() != 0:
        print("skipped: the lab makes namespaces; needs root")
        sys.exit(77)
    if not shutil.which("sshd", path="/usr/sbin:/usr/bin"):
        print("skipped: no sshd; needs package openssh-server")
        sys.exit(77)
    run, lanes = run_class(args), []
    signal.signal(signal.SIGINT, run.stop)
    signal.signal(signal.SIGTERM, run.stop)
    try:
        for _ in range(args.lanes):
            lanes.append(lane_class(run))
        for lane in lanes:
            lane.start()
        for lane in lanes:
            lane.join()
    finally:
        for lane in lanes:
            lane.lab.down()
    run.report()
    broken = run.number == args.first or not all(lane.finished for lane in lanes)  # the soak itself
    sys.exit(1 if run.wrong or broken else 0)


if __name__ == "__main__":
    main()
