#!/usr/bin/env python3
"""recover.py - jobs with --max-restarts, --spares or --nnodes MIN:MAX, and one or two faults each.

    sudo tests/soak/recover.py --build BUILD [--seconds S | --launches N] [--seed N] [--lanes N]
                               [--only FAULT,...] [--first N]

As soak.py, of which it is made: job N of a seed is always the same. 2 to 16 ranks on 1 to 5 hosts meet
again and again by the store, a process group, PMI-1 or PMIx, and sockets (recover_rank.c); some leave a
process behind that goes on writing to all of these. The first fault comes at a random moment after the
first rank is up; a second one at another, or during the recovery. Checked: no rank is told anything of
another attempt; the ranks of an attempt agree on its number and size; no output of an attempt comes after
the next one's; the exit code; that nothing is left on any host. Exit: 0 when nothing was wrong.
"""
import collections
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time

import soak
from soak import Wrong

HOSTS = 6
UP = 60.0        # seconds until the first rank runs
SILENCE = "3s"   # --node-timeout
TAG = rb"\[(\d+)(?: [^\]]*)?\] (.*)"
DDPRUN = soak.Launcher(lambda job: job.command(), TAG, "RANK", r"\S*/ddprun -H", r"\S*/ddprun-agent\b", HOSTS,
                       True)


class Job(soak.Job):
    """One launch; everything about it follows from the seed and its number."""

    def __init__(self, lane, seed, number, only):  # pylint: disable=super-init-not-called
        self.lane, self.number, self.launched = lane, number, DDPRUN
        self.r = r = random.Random(f"{seed} {number}")
        self.faults = [r.choice(only)]
        if r.random() < 0.5:
            self.faults.append(r.choice(only))
        self.fault = "+".join(self.faults)
        self.at_once = r.random() < 0.5  # the second fault comes during the recovery
        self.shrinks = r.random() < 0.25
        active = r.randint(2 if self.shrinks else 1, 4)
        self.spares = 0 if self.shrinks else r.randint(0, min(2, 5 - active))
        self.least = max(1, active - r.randint(1, 2)) if self.shrinks else active
        self.slots = r.randint(2 if self.least == 1 else 1, 16 // active)
        self.np = self.slots * active
        self.restarts = r.randint(0, 3)
        first = r.randint(0, HOSTS - active - self.spares)  # 0: the launcher's host is one of them
        self.hosts = lane.hosts[first:first + active + self.spares]
        self.rounds, self.ms = r.randint(5, 40), r.choice((300, 1000, 3000))
        self.mpi = r.choice(("none", "pmi", "pmix" if lane.run_.pmix else "pmi"))
        self.rank_program = "recover_rank_pmix" if self.mpi == "pmix" else "recover_rank"
        self.flags = {"none": "m", "pmi": "p", "pmix": "x"}[self.mpi] + "".join(
            f for f in "etl" if r.random() < 0.4)
        self.when = r.uniform(0, self.ms / 1000 + 0.3)
        self.pause = r.uniform(0, 1.5 if not self.at_once else 0.4)
        self.heals = r.random() < 0.5
        self.hits = collections.Counter()  # by what they use up
        self.broken = {}
        self.down = 0.0  # seconds: TCP sends again after a time up to that for which a link was down
        self.process = self.out = self.err = None
        self.missed = self.cleared = False  # cleared: a host has ended as by a power failure
        self.folder = lane.folder + "/out"

    def command(self):
        options = ["--nnodes", f"{self.least}:{len(self.hosts)}"] if self.shrinks else [
            "--spares", str(self.spares), "-np", str(self.np)]
        return ["env", f"TMPDIR={self.folder}", f"{self.lane.lab.bin}/ddprun", "-H", ",".join(f"{h.name}:{self.slots}" for h in self.hosts),
                *options, "--max-restarts", str(self.restarts), "--grace", "0.5s", "--mpi", self.mpi,
                "--node-timeout", SILENCE, f"{self.lane.lab.bin}/{self.rank_program}", str(self.rounds),
                str(self.ms), self.flags]

    def losses(self):
        """How many hosts it can lose."""
        return len(self.hosts) - self.least if self.shrinks else self.spares

    def until(self, what, seconds):
        """Or until the job has ended."""
        end = time.monotonic() + seconds
        while not what() and self.process.poll() is None:
            if time.monotonic() > end:
                return False
            time.sleep(0.005)
        return self.process.poll() is None

    def lose(self, host, *how):
        self.broken[host] = how[0], time.monotonic()
        self.hits["host"] += 1
        host.fault(*how)
        return True

    def heal(self, host):
        how, since = self.broken.pop(host)
        self.down = max(self.down, time.monotonic() - since)
        if how == "kill":
            self.lane.lab("up", str(HOSTS))
        else:
            host.fault({"drop": "undrop", "freeze": "thaw"}[how])

    def elsewhere(self):
        """A host other than the launcher's, which is not broken."""
        return self.pick(h for h in self.hosts if h is not self.lane.hosts[0] and h not in self.broken)


FAULTS = {}


def fault(run):
    """Register a fault; it returns whether it has met anything."""
    FAULTS[run.__name__] = run
    return run


@fault
def rank_killed(job):
    ranks = job.ranks()
    rank = job.pick(sorted(ranks))
    if rank is None or not ranks[rank].kill(job.r.choice((signal.SIGKILL, signal.SIGABRT))):
        return False
    job.hits["rank"] += 1
    return True


@fault
def agent_killed(job):
    host = job.pick(h for h in job.hosts if h not in job.broken)
    agent = host and job.agent(host)
    if not agent or not agent.kill(signal.SIGKILL):
        return False
    job.hits["host"] += 1
    return True


@fault
def host_killed(job):
    """Its connections are reset."""
    job.cleared = True
    host = job.elsewhere()
    return host is not None and job.lose(host, "kill")


@fault
def host_silent(job):
    host = job.elsewhere()
    return host is not None and job.lose(host, "drop", job.r.choice(("both", "both", "in", "out")))


@fault
def host_frozen(job):
    host = job.elsewhere()
    return host is not None and job.lose(host, "freeze")


@fault
def launcher_killed(job):
    launcher = job.launcher()
    if not launcher or not launcher.kill(signal.SIGKILL):
        return False
    job.hits["launcher"] += 1
    return True


# --- a job and its checks ---------------------------------------------------------------------


def break_it(job):
    """False if the job had ended before the first fault."""
    def first_up():
        return b" up 0 " in bytes(job.out.data)
    if not job.until(first_up, UP):
        if job.process.poll() is None:
            raise Wrong("no rank is up")
        return False
    time.sleep(job.when)
    if not FAULTS[job.faults[0]](job):
        return False
    if len(job.faults) > 1:
        if job.at_once:
            job.until(lambda: "attempt" in job.text(), 20)
        time.sleep(job.pause)
        FAULTS[job.faults[1]](job)
    if job.heals:  # a host that comes back too late
        job.until(lambda: job.text().count(" is lost") >= len(job.broken), 20)
        time.sleep(job.r.uniform(0, 1))
        for host in list(job.broken):
            job.heal(host)
    return True


def codes(job):
    """The exit codes that are right."""
    if job.hits["launcher"]:
        return (137, -9, 0)
    if "output is missing" in job.text():
        return (1,)
    if job.hits["rank"] <= job.restarts and job.hits["host"] <= job.losses():
        return (0,)
    return (0, 3, 125, 134, 137)


def check_output(job):
    """Every line of a rank names its attempt, and WORLD_SIZE."""
    now, sizes, done = 0, {}, collections.defaultdict(set)
    for line in bytes(job.out.data).splitlines():
        m = re.fullmatch(TAG, line)
        if not m:
            raise Wrong(f"a line without a tag: {line[:100]!r}")
        rank, words = int(m[1]), m[2].decode(errors="replace").split()
        if words[0] == "WRONG":
            raise Wrong(" ".join(words))
        attempt = int(words[1])
        if attempt < now:
            raise Wrong(f"output of attempt {attempt} after that of attempt {now}: {line!r}")
        now = attempt
        if words[0] in ("up", "done"):
            size, said = int(words[2]), int(words[3])
            if said != rank or sizes.setdefault(attempt, size) != size or rank >= size:
                raise Wrong(f"rank {rank} of {sizes[attempt]} says: {line!r}")
        if words[0] == "done":
            done[attempt].add(rank)
    if job.process.returncode == 0 and done[now] != set(range(sizes.get(now, 0))):
        raise Wrong(f"ended with 0, but in attempt {now} only {sorted(done[now])} of {sizes.get(now)} were done")


def check(job):
    code = job.process.returncode
    if code not in codes(job):
        raise Wrong(f"exit code {code}, not one of {codes(job)}: --max-restarts {job.restarts}, {job.losses()} "
                    f"hosts may be lost; {dict(job.hits)}")
    check_output(job)


def check_nothing_left(job, files):
    soak.check_nothing_left(job, {}, job.down)  # the sshd of a lost ssh
    left = [f"{h.name}: {f}" for h, before in files.items() for f in h.files()
            if f not in before and not f.startswith("/tmp/")] + os.listdir(job.folder)
    if left and not job.cleared:
        raise Wrong(f"files are left: {left}")


class Lane(soak.Lane):
    def __init__(self, run):
        """All hosts have one /tmp, which the jobs of other lanes use, too."""
        super().__init__(run)
        with open(f"{self.lab.state}/home/alice/.bashrc", "w", encoding="ascii") as f:
            f.write(f"export TMPDIR={self.folder}/out\n")

    def job(self, number):
        return Job(self, self.run_.args.seed, number, self.run_.only)

    def launch(self, job):
        files = {h: h.files() for h in self.hosts}
        try:
            job.start()
            job.missed = not break_it(job)
            self.ends(job)
        finally:
            for host in list(job.broken):
                job.heal(host)
        for reader in (job.out, job.err):
            reader.join(soak.GONE)
        check(job)
        check_nothing_left(job, files)

    def mend(self, job, wrong):
        for host in self.hosts if wrong else ():
            subprocess.run(host.enter("sh", "-c", "rm -rf /dev/shm/*", user=False), check=False)


class Run(soak.Run):
    hosts = HOSTS
    programs = ("launcher/ddprun", "launcher/ddprun-agent", "launcher/ddprun-topo", "tests/soak/recover_rank",
                "launcher/ssh_config")

    def __init__(self, args):  # pylint: disable=super-init-not-called
        self.args, self.lock = args, threading.Lock()
        self.launcher = DDPRUN
        self.only = args.only.split(",") if args.only else sorted(FAULTS)
        for name in self.only:
            if name not in FAULTS:
                sys.exit(f"recover: no fault '{name}'; there are {', '.join(sorted(FAULTS))}")
        self.number, self.began = args.first, time.monotonic()
        self.done, self.missed, self.wrong = collections.Counter(), collections.Counter(), 0
        self.gone, self.stopped = [], False
        self.faults = 0
        self.pmix = os.path.exists(f"{args.build}/launcher/ddprun-pmix")
        if self.pmix:
            self.programs += ("launcher/ddprun-pmix", "tests/soak/recover_rank_pmix")

    def ended(self, job, wrong):
        with self.lock:
            self.faults += sum(job.hits.values())
            for name in job.faults:
                self.done[name] += 1
        super().ended(job, wrong)

    def report(self):
        for name in self.only:
            print(f"{self.done[name]:7} {name}")
        print(f"{self.number - self.args.first} jobs with {self.faults} faults in "
              f"{time.monotonic() - self.began:.0f} s, {self.wrong} wrong (seed {self.args.seed})")


if __name__ == "__main__":
    soak.main(Run, Lane, __doc__)
