#!/usr/bin/env python3
"""bench/collectives/collectives.py BUILD - two ranks: all-reduce and messages, beside others

Every round runs every contestant once, so that whatever else the machine does meets them
all alike; ratios are taken within a round. Printed: the median over the rounds, and for a
ratio its range; then what is wanted of it, and whether it held. A contestant that is not on
this machine is left out and said so; one that fails counts as failed. MPI's launchers are
asked not to bind: each rank pins itself.
"""
import argparse
import os
import re
import shutil
import statistics
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import namespaces  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
SIZES = {"few": [8, 4096, 400000, 4800000],
         "all": [8, 4096, 65536, 400000, 1048576, 4800000, 26214400]}
MESSAGES = [4 ** k for k in range(13)]
NET_MESSAGES = MESSAGES[:11]
# bytes a second of a stream; the latter is EC2's limit of a flow outside a placement group
FLOWS = {"flow": 100_000_000, "fast-flow": 625_000_000}
FLOW_SIZES = [131072, 4800000, 26214400]
MPI = ("openmpi", "mpich")
# how many times longer the first takes than the second, at so many bytes
WANTED = [("openmpi", "arena", 4800000, ">=", 4), ("gloo", "arena", 4800000, ">=", 35),
          ("arena", "floor", 4800000, "<=", 1.6), ("openmpi", "private", 4800000, ">=", 1.3),
          ("openmpi", "arena", 400000, ">=", 5), ("mpich", "arena", 400000, ">=", 5),
          ("private", "openmpi", 8, "<=", 1.5), ("private", "openmpi", 4096, "<=", 1.5),
          ("net-ours", "net-stream", 4800000, "<=", 1.25),
          ("net-gloo", "net-ours", 4800000, ">=", 2),
          ("flow-one", "flow-ours", 4800000, ">=", 8), ("fast-flow-one", "fast-flow-ours", 4800000, ">=", 2),
          ("msg-openmpi", "msg-ours", 16, ">=", 1), ("msg-openmpi", "msg-ours", 1024, ">=", 1),
          ("msg-openmpi", "msg-ours", 1048576, ">=", 1),
          ("netmsg-openmpi", "netmsg-ours", 16, ">=", 1)]
# how many times as many megabytes a second of a window of messages
WANTED_RATES = [("msg-ours", "msg-openmpi", 16, ">=", 1), ("msg-ours", "msg-openmpi", 1024, ">=", 1),
                ("netmsg-ours", "netmsg-openmpi", 16, ">=", 1)]


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
    while (share := busy_share(0.3 if seconds else 0.05)) > 0.1 and time.monotonic() < until:
        pass
    return share


def lines(text):
    """{bytes: [microseconds, ...]}"""
    return {int(a): [float(x) for x in b.split()]
            for a, b in re.findall(r"^(\d+)((?: [\d.]+)+)$", text, re.M)}


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
    """Who competes in what; a contestant is a name and a function that runs it once."""

    def __init__(self, opts, hosts):
        self.build, self.timeout, self.hosts = opts.build, opts.timeout, hosts
        sizes = SIZES["few" if opts.quick else "all"]
        times = 3 if opts.quick else 12
        self.task = ["all_reduce", str(times)] + [str(s) for s in sizes]
        self.net_task = ["all_reduce", str(max(2, times // 2))] + [str(s) for s in SIZES["few"]]
        self.messages = ["messages", str(max(1, times // 4))] + [str(s) for s in MESSAGES]
        self.net_messages = self.messages[:2] + [str(s) for s in NET_MESSAGES]
        self.python = self.find_torch()

    def path(self, name):
        return os.path.join(self.build, "bench", "collectives", name)

    def find_torch(self):
        found = subprocess.run(
            ["sh", os.path.join(HERE, "../../tests/interop/torch-env.sh")],
            capture_output=True, text=True)
        if found.returncode == 0:
            return found.stdout.strip()
        print(f"# gloo is not here: {found.stderr.strip()}", file=sys.stderr)
        return None

    def with_store(self, run, apart=False):
        """run(environment of a launcher), beside a store of its own, on one host or on the
        first of two."""
        addr = self.hosts.addrs[0] if apart else "127.0.0.1"
        store = subprocess.Popen(
            (self.hosts.enter(0) if apart else [])
            + [os.path.join(self.build, "rendezvous", "ddpstored"), "-H", addr, "-p", "0"]
            + (["--allow", ",".join(self.hosts.addrs)] if apart else []),
            stdout=subprocess.PIPE, text=True)
        try:
            port = re.search(r"(\d+)\s*$", store.stdout.readline()).group(1)
            return run(dict(os.environ, MASTER_ADDR=addr, MASTER_PORT=port, WORLD_SIZE="2",
                            TORCHELASTIC_USE_AGENT_STORE="True"))
        finally:
            store.kill()
            store.wait()

    def with_mpi(self, mpi, task, apart=False):
        launcher = {"openmpi": ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe",
                                "--bind-to", "none", "-np", "2"],
                    "mpich": ["mpiexec.hydra", "-bind-to", "none", "-np", "2"]}[mpi]
        if apart:
            only = self.hosts.network
            launcher = self.hosts.enter(0) + launcher + [
                "--host", ",".join(self.hosts.addrs), "--map-by", "node",
                "--mca", "plm_rsh_agent", self.hosts.remote_shell(),
                "--mca", "pml", "ob1", "--mca", "btl", "tcp,self",
                "--mca", "btl_tcp_if_include", only, "--mca", "oob_tcp_if_include", only]
        return run_all([(launcher + [self.path(f"mpi_{mpi}")] + task, None)], self.timeout)

    def has_mpi(self, mpi):
        tool = {"openmpi": "mpirun.openmpi", "mpich": "mpiexec.hydra"}[mpi]
        if shutil.which(tool) and os.path.exists(self.path(f"mpi_{mpi}")):
            return True
        print(f"# {mpi} is not here", file=sys.stderr)
        return False

    def gloo(self, task, apart=False):
        hosts = self.hosts
        netns = [hosts.file(0), hosts.file(1)] if apart else ["-", "-"]
        more = {"TORCH_CPP_LOG_LEVEL": "ERROR",
                "GLOO_SOCKET_IFNAME": hosts.interface if apart else "lo"}
        command = [self.python, os.path.join(HERE, "gloo.py")] + netns + task
        return self.with_store(
            lambda env: run_all([(command, dict(env, **more))], self.timeout), apart)

    def ours(self, kind, task, apart=False, **more):
        def rank(env, r):
            own = dict(env, RANK=str(r), LOCAL_RANK=str(0 if apart else r), **more)
            if apart:
                own["DDP_HOST_ID"] = f"host{r}"
            return (self.hosts.enter(r) if apart else []) + command, own
        command = [self.path("ddp"), kind] + task
        return self.with_store(
            lambda env: run_all([rank(env, r) for r in range(2)], self.timeout), apart)

    def contestants(self):
        yield "floor", lambda: run_all([([self.path("floor")] + self.task, None)],
                                       self.timeout)
        for kind in "arena", "private":
            yield kind, lambda k=kind: self.ours(k, self.task)
        mpis = [m for m in MPI if self.has_mpi(m)]
        for mpi in mpis:
            yield mpi, lambda m=mpi: self.with_mpi(m, self.task)
        if self.python:
            yield "gloo", lambda: self.gloo(self.task)
        yield "msg-ours", lambda: self.ours("private", self.messages)
        for mpi in mpis:
            yield f"msg-{mpi}", lambda m=mpi: self.with_mpi(m, self.messages)
        if self.hosts:
            yield from self.network_contestants(mpis)

    def network_contestants(self, mpis):
        hosts = self.hosts
        yield "net-stream", lambda: run_all(
            [([self.path("stream"), hosts.addrs[0], hosts.file(0), hosts.file(1)]
              + self.net_task, None)], self.timeout)
        yield "net-ours", lambda: self.ours("private", self.net_task, apart=True)
        if "openmpi" in mpis:
            yield "net-openmpi", lambda: self.with_mpi("openmpi", self.net_task, apart=True)
        if self.python:
            yield "net-gloo", lambda: self.gloo(self.net_task, apart=True)
        for name, rate in FLOWS.items():
            limit = {"LD_PRELOAD": self.path("libpace.so"), "PACE_BYTES_PER_SECOND": str(rate)}
            task = ["all_reduce", "6"] + [str(s) for s in FLOW_SIZES]
            for many in 1, 8:
                yield f"msg{name}-{many}", lambda e=limit, m=many: self.ours(
                    "private", ["messages", "3"] + [str(s) for s in FLOW_SIZES], apart=True,
                    DDP_TCP_STREAMS=str(m), **e)
            yield f"{name}-ours", lambda e=limit, t=task: self.ours("private", t, apart=True, **e)
            yield f"{name}-one", lambda e=limit, t=task: self.ours("private", t, apart=True, DDP_TCP_STREAMS="1", **e)
        yield "netmsg-ours", lambda: self.ours("private", self.net_messages, apart=True)
        if "openmpi" in mpis:
            yield "netmsg-openmpi", lambda: self.with_mpi("openmpi", self.net_messages,
                                                          apart=True)


# ---- what came of it ----

def ratio(results, a, b, size, at=0):
    """Median, lowest and highest of a / b within each round; None when there is none."""
    r = sorted(x[size][at] / y[size][at]
               for x, y in zip(results.get(a, []), results.get(b, []))
               if x and y and size in x and size in y)
    return (statistics.median(r), r[0], r[-1]) if r else None


def told(r):
    return f"{r[0]:.2f} ({r[1]:.2f}-{r[2]:.2f})" if r else "failed"


def median(results, name, size, at=0):
    values = [r[size][at] for r in results[name] if r and size in r]
    return statistics.median(values) if values else float("nan")


def table(heads, rows):
    print("| " + " | ".join(heads) + " |")
    print("|---|" + "---|" * (len(heads) - 1))
    for row in rows:
        print("| " + " | ".join(row) + " |")


def show_times(title, results, names, sizes, pairs):
    print(f"\n{title}: microseconds, median of the rounds (sums verified)")
    table(["bytes"] + names,
          [[f"{s:,}"] + [f"{median(results, n, s):,.2f}" for n in names] for s in sizes])
    pairs = [p for p in pairs if p[0] in results and p[1] in results]
    print("\nhow many times longer, median of the ratios of each round (lowest-highest)")
    table(["bytes"] + [f"{a} / {b}" for a, b in pairs],
          [[f"{s:,}"] + [told(ratio(results, a, b, s)) for a, b in pairs] for s in sizes])


def show_messages(title, results, names, sizes):
    """Of messages one by one, and of a window of them."""
    short = [n.split("-", 1)[1] for n in names]
    print(f"\n{title}: microseconds, and megabytes a second of a window of them")
    table(["bytes"] + [f"{n}, us" for n in short] + [f"{n}, MB/s" for n in short],
          [[f"{s:,}"] + [f"{median(results, n, s):,.2f}" for n in names]
           + [f"{median(results, n, s, 1):,.0f}" for n in names] for s in sizes])
    pairs = [(n, k) for n in names if not n.endswith("-ours") for k in (0, 1)]
    ours = names[0].split("-")[0] + "-ours"
    if ours not in results or not pairs:
        return
    print("\nours is better so many times, median of the ratios of each round (lowest-highest)")
    table(["bytes"] + [f"{n.split('-', 1)[1]}, {'rate' if k else 'latency'}" for n, k in pairs],
          [[f"{s:,}"] + [told(ratio(results, *((ours, n) if k else (n, ours)), s, k))
                         for n, k in pairs] for s in sizes])


def draw_messages(build, results, names, svg):
    text = "".join(f"{n[4:]} {s} {median(results, n, s)} {median(results, n, s, 1)}\n"
                   for n in names for s in MESSAGES)
    subprocess.run([os.path.join(build, "bench", "collectives", "curves"), svg], input=text,
                   text=True, check=True)
    print(f"\ncurves: {svg}")


def show_wanted(results):
    print("\nwhat is wanted")
    rows = []
    for at, wanted in enumerate((WANTED, WANTED_RATES)):
        for a, b, size, sign, limit in wanted:
            r = ratio(results, a, b, size, at)
            held = r and (r[0] >= limit if sign == ">=" else r[0] <= limit)
            rows.append([f"{size:,}", f"{a} / {b}{', rate' if at else ''}", f"{sign} {limit:g}",
                         told(r) if r else "-",
                         "held" if held else "missed" if r else "not measured"])
    table(["bytes", "how many times longer, or the rate", "wanted", "is", ""], rows)


def show(opts, results):
    on_host = [n for n in results if "-" not in n]
    over_net = [n for n in results if n.startswith("net-")]
    messages = [n for n in results if n.startswith("msg-")]
    net_messages = [n for n in results if n.startswith("netmsg-")]
    if on_host:
        show_times("all-reduce on one host", results, on_host,
                   SIZES["few" if opts.quick else "all"],
                   [("arena", "floor")] + [(n, ours) for n in ("openmpi", "mpich", "gloo")
                                           for ours in ("arena", "private")])
    if over_net:
        show_times("all-reduce over TCP, between two namespaces", results, over_net,
                   SIZES["few"], [("net-ours", "net-stream"), ("net-openmpi", "net-ours"),
                                  ("net-gloo", "net-ours")])
    for name, rate in FLOWS.items():
        flows = [n for n in results if n.startswith(f"{name}-")]
        if flows:
            show_times(f"all-reduce over TCP streams of {rate // 1_000_000} MB/s each", results, flows,
                       FLOW_SIZES, [(f"{name}-one", f"{name}-ours")])
        flows = [n for n in results if n.startswith(f"msg{name}-")]
        if flows:
            show_messages(f"messages over so many TCP streams of {rate // 1_000_000} MB/s each", results, flows,
                          FLOW_SIZES)
    if messages:
        show_messages("messages on one host", results, messages, MESSAGES)
        draw_messages(opts.build, results, messages, opts.svg)
    if net_messages:
        show_messages("messages over TCP, between two namespaces", results, net_messages,
                      NET_MESSAGES)
    show_wanted(results)


def compete(opts, hosts):
    contest = Contest(opts, hosts)
    field = [(n, f) for n, f in contest.contestants()
             if not opts.only or n in opts.only.split(",")]
    results = {name: [] for name, _ in field}
    for round_no in range(opts.rounds):
        shares, took = [], []
        for name, run in field:
            shares.append(wait_for_quiet(opts.quiet))
            began = time.monotonic()
            try:
                results[name].append(run())
            except (RuntimeError, subprocess.TimeoutExpired, AttributeError) as e:
                print(f"# {name} failed: {e}", file=sys.stderr)
                results[name].append(None)
            took.append(f"{name} {time.monotonic() - began:.1f}")
        print(f"# round {round_no + 1}: before each run others used "
              f"{min(shares):.0%}-{max(shares):.0%} of the CPUs; seconds: {', '.join(took)}",
              file=sys.stderr)
    show(opts, results)
    return any(r is None for rs in results.values() for r in rs)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("build", help="the build directory")
    parser.add_argument("--quick", action="store_true",
                        help="two short rounds, few sizes: half a minute on an idle machine")
    parser.add_argument("--rounds", type=int, help="default: 7, or 2 when quick")
    parser.add_argument("--timeout", type=float, default=120, help="of a run, seconds")
    parser.add_argument("--quiet", type=float,
                        help="wait this long for an idle machine before each run, seconds; "
                             "default: 5, or 0 when quick")
    parser.add_argument("--only", help="contestants, comma separated")
    parser.add_argument("--svg", help="where the curves go; default: messages.svg in BUILD")
    opts = parser.parse_args()
    opts.rounds = opts.rounds or (2 if opts.quick else 7)
    opts.quiet = (0 if opts.quick else 5) if opts.quiet is None else opts.quiet
    opts.svg = opts.svg or os.path.join(opts.build, "messages.svg")
    missing = namespaces.why_not()
    if missing:
        print(f"# nothing over TCP between two hosts: {missing}", file=sys.stderr)
        return compete(opts, None)
    with namespaces.TwoHosts() as hosts:
        return compete(opts, hosts)


if __name__ == "__main__":
    sys.exit(main())
