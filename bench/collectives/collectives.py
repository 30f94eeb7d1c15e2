#!/usr/bin/env python3
"""bench/collectives/collectives.py BUILD - two ranks all-reduce, ours beside the others

Every round runs every contestant once, so that whatever else the machine does meets them
all alike; ratios are taken within a round. Printed: the median over the rounds, and for a
ratio its range. A contestant that is not on this machine is left out and said so; one that
fails counts as failed. MPI's launchers are asked not to bind: each rank pins itself.
"""
import argparse
import os
import re
import shutil
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
SIZES = [8, 4096, 65536, 400000, 1048576, 4800000, 26214400]


def busy_share(seconds=0.3):
    """The share of all CPUs that others use right now."""
    def read():
        v = [int(x) for x in open("/proc/stat").readline().split()[1:9]]
        return sum(v), v[3] + v[4]
    total, idle = read()
    time.sleep(seconds)
    total2, idle2 = read()
    return 1 - (idle2 - idle) / max(1, total2 - total)


def wait_for_quiet(seconds):
    """Until others use less than a tenth of the CPUs, or the time is up; the share."""
    until = time.monotonic() + seconds
    while (share := busy_share()) > 0.1 and time.monotonic() < until:
        pass
    return share


def lines(text):
    return {int(a): float(b) for a, b in re.findall(r"^(\d+) ([\d.]+)$", text, re.M)}


def run_all(commands, timeout):
    """Start all, wait for all; the output of the first."""
    procs = [subprocess.Popen(c, env=e, stdout=subprocess.PIPE, text=True)
             for c, e in commands]
    out = None
    try:
        for p in procs:
            text = p.communicate(timeout=timeout)[0]
            out = text if out is None else out
            if p.returncode != 0:
                raise RuntimeError(f"{commands[0][0][0]} ended with {p.returncode}")
    finally:
        for p in procs:
            p.kill()
            p.wait()
    return lines(out)


class Contest:
    def __init__(self, build, timeout):
        self.build, self.timeout = build, timeout
        self.sizes = [str(s) for s in SIZES]

    def path(self, name):
        return os.path.join(self.build, "bench", "collectives", name)

    def with_store(self, command, extra=None):
        """Two ranks with the variables of a launcher, and a store of their own."""
        store = subprocess.Popen(
            [os.path.join(self.build, "rendezvous", "ddpstored"), "-H", "127.0.0.1", "-p",
             "0"], stdout=subprocess.PIPE, text=True)
        try:
            port = re.search(r"(\d+)\s*$", store.stdout.readline()).group(1)
            env = dict(os.environ, MASTER_ADDR="127.0.0.1", MASTER_PORT=port,
                       WORLD_SIZE="2", **(extra or {}))
            return run_all([(command, dict(env, RANK=str(r), LOCAL_RANK=str(r)))
                            for r in range(2)], self.timeout)
        finally:
            store.kill()
            store.wait()

    def contestants(self):
        yield "floor", lambda: run_all([([self.path("floor")] + self.sizes, None)],
                                       self.timeout)
        for kind in "arena", "private":
            yield kind, lambda k=kind: self.with_store([self.path("ddp"), k] + self.sizes)
        yield "tcp", lambda: self.with_store([self.path("ddp"), "private"] + self.sizes,
                                             {"BENCH_BACKEND": "tcp"})
        ompi = ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "--bind-to",
                "none", "-np", "2"]
        mpich = ["mpiexec.hydra", "-bind-to", "none", "-np", "2"]
        for name, launcher in ("openmpi", ompi), ("mpich", mpich):
            program = self.path(f"mpi_{name}")
            if shutil.which(launcher[0]) and os.path.exists(program):
                yield name, lambda c=launcher + [program]: run_all(
                    [(c + self.sizes, None)], self.timeout)
            else:
                print(f"# {name} is not here", file=sys.stderr)
        python = subprocess.run(
            ["sh", os.path.join(HERE, "../../tests/interop/torch-env.sh"), "--no-make"],
            capture_output=True, text=True)
        if python.returncode == 0:
            yield "gloo", lambda: self.with_store(
                [python.stdout.strip(), os.path.join(HERE, "gloo.py")] + self.sizes,
                {"TORCHELASTIC_USE_AGENT_STORE": "True", "GLOO_SOCKET_IFNAME": "lo"})
        else:
            print(f"# gloo is not here: {python.stderr.strip()}", file=sys.stderr)


def show(results):
    names = list(results)
    print("\nmicroseconds, median of the rounds (verified)")
    print("| bytes | " + " | ".join(names) + " |")
    print("|---|" + "---|" * len(names))
    for size in SIZES:
        cells = [statistics.median([r[size] for r in results[n] if r] or [float("nan")])
                 for n in names]
        print(f"| {size:,} | " + " | ".join(f"{c:,.2f}" for c in cells) + " |")
    print("\nhow many times longer, median of the ratios of each round (lowest-highest)")
    pairs = [("arena", "floor")] + [(n, ours) for n in ("openmpi", "mpich", "gloo")
                                    for ours in ("arena", "private")] + [("gloo", "tcp")]
    pairs = [p for p in pairs if p[0] in results and p[1] in results]
    print("| bytes | " + " | ".join(f"{a} / {b}" for a, b in pairs) + " |")
    print("|---|" + "---|" * len(pairs))
    for size in SIZES:
        cells = []
        for a, b in pairs:
            r = sorted(x[size] / y[size] for x, y in zip(results[a], results[b]) if x and y)
            cells.append(f"{statistics.median(r):.2f} ({r[0]:.2f}-{r[-1]:.2f})" if r
                         else "failed")
        print(f"| {size:,} | " + " | ".join(cells) + " |")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("build", help="the build directory")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--timeout", type=float, default=120, help="of a run, seconds")
    parser.add_argument("--quiet", type=float, default=5,
                        help="wait this long for an idle machine before each run, seconds")
    parser.add_argument("--only", help="contestants, comma separated")
    opts = parser.parse_args()
    contest = Contest(opts.build, opts.timeout)
    field = [(n, f) for n, f in contest.contestants()
             if not opts.only or n in opts.only.split(",")]
    results = {name: [] for name, _ in field}
    for round_no in range(opts.rounds):
        shares = []
        for name, run in field:
            shares.append(wait_for_quiet(opts.quiet))
            try:
                results[name].append(run())
            except (RuntimeError, subprocess.TimeoutExpired, AttributeError) as e:
                print(f"# {name} failed: {e}", file=sys.stderr)
                results[name].append(None)
        print(f"# round {round_no + 1}: before each run others used "
              f"{min(shares):.0%}-{max(shares):.0%} of the CPUs", file=sys.stderr)
    show(results)
    return any(r is None for rs in results.values() for r in rs)


sys.exit(main())
