#!/usr/bin/env python3
"""Start, exchange, barrier, exit: process groups beside MPI, and Open MPI under us.

    bench/hello/hello.py [BUILD] [--np 16] [--rounds 5] [--quick] [--memory 256]

First table: from exec of the launcher to its exit, all ranks on this machine, the rounds of all
contenders in turn. `ddprun` starts our library's hello, mpirun and Hydra that of their MPI; in
the last rows ddprun starts MPI's own programs; in "all of hwloc" ddprun-pmix looks for displays and OpenCL
devices, too, as libpmix does by itself. Second: the slowest rank's MPI_Init, under
mpirun and under ddprun's PMIx. --quick: Open MPI with ob1, vader and tcp only, without its
search for other transports. --realtime (root): SCHED_RR, so that what else the machine does hardly
shows; MPICH is left out then, its ranks spin without giving way to each other. Without it
mind that Linux deals out time by session (sched_autogroup), and each rank of Hydra has one.
--memory N: what N ranks cost, and what serves them. --spawn N: MPI_Comm_spawn of N processes by one
rank of Open MPI, under mpirun and under ddprun. --calls: what recording them for hang reports adds to calls
of two ranks of each MPI.

Ratios are medians of the rounds' own ratios: what else the machine does hits both sides.
"""

import argparse
import os
import resource
import shutil
import statistics
import subprocess
import sys
import time

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
QUICK = {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self,vader,tcp"}
LIMIT = 120.0


def children_cpu():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class Contender:
    def __init__(self, name, command, env=None):
        self.name, self.command, self.env = name, command, env or {}
        self.ms, self.cpu_ms, self.init_ms = [], [], []

    def run(self, np):
        began, cpu = time.monotonic(), children_cpu()
        done = subprocess.run(
            self.command, env={**os.environ, **self.env}, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=LIMIT, check=False,
        )
        if done.returncode != 0:
            sys.exit(f"{self.name}: status {done.returncode}\n{done.stdout}{done.stderr}")
        self.ms.append(1e3 * (time.monotonic() - began))
        self.cpu_ms.append(1e3 * (children_cpu() - cpu))
        for line in done.stdout.splitlines():  # of an MPI program
            size, init = line.split()
            if int(size) != np:
                sys.exit(f"{self.name}: {size} ranks found each other, of {np}")
            self.init_ms.append(float(init))


def contenders(build, np, quick, realtime):
    def mpi(name):
        path = os.path.join(build, "bench", "hello", f"hello_{name}")
        return path if os.path.exists(path) else None

    env = QUICK if quick else {}
    ddprun = [os.path.join(build, "launcher", "ddprun"), "--tag-output=off", "-np", str(np)]
    found = [Contender("ddprun, our library", [*ddprun, os.path.join(build, "bench", "hello", "hello_ddp")])]
    if mpi("openmpi") and shutil.which("mpirun.openmpi"):
        found.append(Contender(
            "mpirun, Open MPI",
            ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "-np", str(np), mpi("openmpi")], env))
        found.append(Contender("ddprun, Open MPI", [*ddprun, mpi("openmpi")], env))
        found.append(Contender("the same with all of hwloc", [*ddprun, mpi("openmpi")], {**env, "HWLOC_COMPONENTS": ""}))
    if mpi("mpich") and not realtime and shutil.which("mpiexec.hydra"):
        found.append(Contender("Hydra, MPICH", ["mpiexec.hydra", "-n", str(np), mpi("mpich")]))
        found.append(Contender("ddprun, MPICH", [*ddprun, mpi("mpich")]))
    return found


def ratio(a, b):
    each = [x / y for x, y in zip(a, b)]
    return f"{statistics.median(each):.2f} ({min(each):.2f}-{max(each):.2f})"


def start(build, np, rounds, quick, realtime):
    found = contenders(build, np, quick, realtime)
    for round_ in range(rounds + 1):
        for c in found:
            c.run(np)
            if round_ == 0:  # files come from the disk
                c.ms, c.cpu_ms, c.init_ms = [], [], []
    ours = found[0]
    print(f"hello with {np} ranks, {rounds} rounds{', ob1 vader tcp' if quick else ''}")
    print("| from exec to exit | ms | x ours | ms of CPU | x ours |\n|---|---|---|---|---|")
    for c in found:
        print(f"| {c.name} | {statistics.median(c.ms):.1f} | {ratio(c.ms, ours.ms)} | "
              f"{statistics.median(c.cpu_ms):.1f} | {ratio(c.cpu_ms, ours.cpu_ms)} |")
    by_name = {c.name: c for c in found}
    theirs, under_us = by_name.get("mpirun, Open MPI"), by_name.get("ddprun, Open MPI")
    if theirs:
        print(f"Open MPI's MPI_Init, slowest rank: {statistics.median(theirs.init_ms):.0f} ms under "
              f"mpirun, {statistics.median(under_us.init_ms):.0f} ms under ddprun: "
              f"{ratio(under_us.init_ms, theirs.init_ms)}")


def spawn(build, n, rounds):
    program = [os.path.join(build, "bench", "hello", "spawn_openmpi"), str(n), "1"]
    theirs = Contender("mpirun", ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "-np", "1", *program])
    ours = Contender("ddprun", [os.path.join(build, "launcher", "ddprun"), "--tag-output=off", "-np", "1", *program])
    for round_ in range(rounds + 1):
        for c in theirs, ours:
            c.run(1)
            if round_ == 0:
                c.init_ms = []
    print(f"MPI_Comm_spawn of {n}, {rounds} rounds: {statistics.median(theirs.init_ms):.0f} ms under mpirun, "
          f"{statistics.median(ours.init_ms):.0f} ms under ddprun: {ratio(ours.init_ms, theirs.init_ms)}")


def calls(build, rounds):
    for mpi in ("openmpi", "mpich"):
        program = os.path.join(build, "bench", "hello", f"calls_{mpi}")
        found = {"on": [], "off": []}
        for _ in range(rounds if os.path.exists(program) else 0):
            for wish, rows in found.items():
                done = subprocess.run(
                    [os.path.join(build, "launcher", "ddprun"), "--tag-output=off", "-np", "2", program],
                    env={**os.environ, **QUICK, "DDPRUN_MPI_CALLS": wish}, stdin=subprocess.DEVNULL,
                    capture_output=True, text=True, timeout=LIMIT, check=True)
                rows.append([float(word) for word in done.stdout.split()])
        names = ("broadcast of nothing", "wait for nothing", "test of nothing", "all-reduce of 4 bytes",
                 "the same begun", "messages of 4 bytes")
        for name, on, off in zip(names, zip(*found["on"]), zip(*found["off"])):
            print(f"{mpi}, {name}: {statistics.median(on):.1f} ns, {statistics.median(off):.1f} if it is not "
                  f"recorded; {ratio(on, off)}")


def memory_of(pid):
    """Private and shared-out (PSS) KiB."""
    found = {}
    with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as f:
        for line in f:
            name, _, value = line.partition(":")
            if value.strip().endswith("kB"):
                found[name] = int(value.split()[0])
    return found["Private_Clean"] + found["Private_Dirty"], found["Pss"]


def descendants(pid):
    for path in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{path}/children", encoding="ascii") as f:
            for child in map(int, f.read().split()):
                yield child
                yield from descendants(child)


def name_of(pid):
    with open(f"/proc/{pid}/comm", encoding="ascii") as f:
        return f.read().strip()


def memory(build, np):
    for program in ("hello_ddp", "hello_openmpi"):
        path = os.path.join(build, "bench", "hello", program)
        if not os.path.exists(path):
            continue
        launch = subprocess.Popen(
            [os.path.join(build, "launcher", "ddprun"), "-np", str(np), path, "20000"],
            env={**os.environ, **QUICK}, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        names = []
        while names.count(program) < np:  # they are there,
            time.sleep(1)
            names = [name_of(pid) for pid in descendants(launch.pid)]
        time.sleep(8)  # and have met
        sums = {}
        for pid in [launch.pid, *descendants(launch.pid)]:
            name, one = name_of(pid), memory_of(pid)
            n, private, pss = sums.get(name, (0, 0, 0))
            sums[name] = (n + 1, private + one[0], pss + one[1])
        for name, (n, private, pss) in sums.items():
            print(f"{program}, {np} ranks: {n} x {name}: {private / n:.0f} KiB private, "
                  f"{pss / n:.0f} KiB with their part of what is shared, each")
        launch.terminate()
        launch.wait()


def main():
    args = argparse.ArgumentParser()
    args.add_argument("build", nargs="?", default=os.path.join(SOURCE, "build"))
    args.add_argument("--np", type=int, default=16)
    args.add_argument("--rounds", type=int, default=5)
    args.add_argument("--quick", action="store_true")
    args.add_argument("--realtime", action="store_true")
    args.add_argument("--memory", type=int)
    args.add_argument("--spawn", type=int)
    args.add_argument("--calls", action="store_true")
    args = args.parse_args()
    if args.memory:
        memory(args.build, args.memory)
    elif args.calls:
        calls(args.build, args.rounds)
    elif args.spawn:
        spawn(args.build, args.spawn, args.rounds)
    else:
        if args.realtime:
            os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(5))
        start(args.build, args.np, args.rounds, args.quick, args.realtime)


main()
