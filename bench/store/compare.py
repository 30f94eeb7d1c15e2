#!/usr/bin/env python3
"""The store beside Redis, PyTorch's own server and a bare echo, in one run.

    python3 bench/store/compare.py [--build DIR] [--rounds N] [--only WORD] [--json FILE]

All servers stand at once; in every round each is asked the same in turn, so that what else
the machine does hits all alike. Servers are bound to one CPU, the load to another. Told
are the server's CPU time per operation (all its threads, from /proc), the throughput, and
the ratio to ours, each as median and range over the rounds. What is missing (Redis,
PyTorch) is said and left out.
"""
import argparse
import json
import os
import resource
import statistics
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
CPUS = sorted(os.sched_getaffinity(0))
SERVER_CPU, LOAD_CPU = CPUS[0], CPUS[1 % len(CPUS)]

LIBUV = """
import sys, datetime, torch.distributed as d
s = d.TCPStore("127.0.0.1", 0, None, True, use_libuv=True)
print(s.port, flush=True)
sys.stdin.read()
"""

PYTORCH_GET = """
import sys, time, datetime, torch.distributed as d
s = d.TCPStore("127.0.0.1", int(sys.argv[1]), None, False, datetime.timedelta(seconds=10))
s.set("k", "v" * 64)
n, took = int(sys.argv[2]), []
for _ in range(n):
    began = time.perf_counter_ns()
    s.get("k")
    took.append(time.perf_counter_ns() - began)
print(sorted(took)[n // 2] / 1e3)
"""

# each measurement: title, operation, arguments, servers, rounds at most
EVERYBODY = ("ddp", "libuv", "redis", "echo")
ROWS = [
    ("get, 50 clients", "get", "--clients 50 --ops 40000", EVERYBODY, 99),
    ("wait and get, 50 clients", "waitget", "--clients 50 --ops 40000",
     ("ddp", "libuv"), 99),
    ("set, 50 clients", "set", "--clients 50 --ops 40000", EVERYBODY, 99),
    ("add, 50 clients", "add", "--clients 50 --ops 40000", ("ddp", "libuv", "redis"), 99),
    ("get, 50 clients, 16 in flight", "get", "--clients 50 --depth 16 --ops 160000",
     EVERYBODY, 99),
    ("multi_get of 16 keys, 50 clients", "mget", "--clients 50 --ops 20000",
     ("ddp", "libuv", "redis"), 99),
    ("wake 256 waiters (Redis: publish)", "wake", "--clients 256 --rounds 5",
     ("ddp", "libuv", "redis"), 99),
    ("fence of 2048 clients, 64 bytes each", "fence", "--clients 2048 --rounds 3",
     ("ddp", "libuv"), 3),
    ("connect 10000 clients", "connect", "--clients 10000", EVERYBODY, 3),
]


def bound(cpu):
    return lambda: os.sched_setaffinity(0, {cpu})


def without_dns():
    """PyTorch's server asks the name server for every client's name before it goes on, up
    to seconds each; its loop is to be measured, not the name server. So it gets a
    resolv.conf of its own, an empty one."""
    command = ["unshare", "-rm", "sh", "-c",
               'mount --bind /dev/null /etc/resolv.conf && exec "$@"', "sh"]
    try:
        if subprocess.run([*command, "true"], stderr=subprocess.DEVNULL).returncode == 0:
            return command
    except FileNotFoundError:
        pass
    print("no mount namespace here: PyTorch's server may wait for the name server")
    return []


class Servers:
    """The servers, by kind: (process, port)."""

    def __init__(self, build):
        self.build, self.all = build, {}
        self.load = os.path.join(build, "bench/store/store-load")
        self.start("ddp", [f"{build}/rendezvous/ddpstored", "--host", "127.0.0.1",
                           "--port", "0"])
        self.start("echo", [f"{build}/bench/store/store-echo"])
        self.python = subprocess.run([f"{ROOT}/tests/interop/torch-env.sh", "--make"],
                                     stdout=subprocess.PIPE, text=True).stdout.strip()
        if self.python:
            self.start("libuv", [*without_dns(), self.python, "-c", LIBUV])
        else:
            print("PyTorch is not there: its server is left out")
        self.start_redis()

    def start(self, kind, command):
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                   text=True, preexec_fn=bound(SERVER_CPU))
        self.all[kind] = process, int(process.stdout.readline())

    def start_redis(self):
        import socket
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "",
                   "--appendonly", "no", "--maxclients", "12000"]
        try:
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL,
                                       preexec_fn=bound(SERVER_CPU))
        except FileNotFoundError:
            print("redis-server is not there: it is left out")
            return
        self.all["redis"] = process, port

    def ask(self, kind, op, arguments):
        """One run of the load generator; its line of JSON, or None when not there."""
        if kind not in self.all:
            return None
        process, port = self.all[kind]
        command = [self.load, kind, "127.0.0.1", str(port), op, *arguments.split(),
                   "--pid", str(process.pid)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=300,
                              preexec_fn=bound(LOAD_CPU))
        if done.returncode != 0:
            sys.exit(f"{kind} {op}: the load generator has failed")
        return json.loads(done.stdout)

    def stop(self):
        for process, _ in self.all.values():
            process.kill()
            process.wait()


def spread(numbers, form="{:.2f}"):
    low, middle, high = min(numbers), statistics.median(numbers), max(numbers)
    return f"{form.format(middle)} ({form.format(low)}-{form.format(high)})"


def table(servers, row, rounds):
    title, op, arguments, kinds, limit = row
    runs = {kind: [] for kind in kinds if kind in servers.all}
    for _ in range(min(rounds, limit)):
        for kind in runs:
            runs[kind].append(servers.ask(kind, op, arguments))
    print(f"\n{title}")
    print(f"  {'':8}{'CPU us/op':>24}{'1000 op/s':>24}{'CPU, x ours':>22}{'time, x ours':>22}")
    result = {}
    for kind, seen in runs.items():
        cpu = [1e6 * r["cpu_seconds"] / r["ops"] for r in seen]
        rate = [r["ops"] / r["seconds"] / 1e3 for r in seen]
        ours = runs["ddp"]
        cpu_ratio = [r["cpu_seconds"] / max(o["cpu_seconds"], 1e-9)
                     for r, o in zip(seen, ours)]
        time_ratio = [r["seconds"] / o["seconds"] for r, o in zip(seen, ours)]
        print(f"  {kind:8}{spread(cpu):>24}{spread(rate, '{:.1f}'):>24}"
              f"{spread(cpu_ratio):>22}{spread(time_ratio):>22}", flush=True)
        result[kind] = {"cpu_us": statistics.median(cpu),
                        "seconds": statistics.median(r["seconds"] / r["ops"] for r in seen),
                        "cpu_ratio": statistics.median(cpu_ratio),
                        "time_ratio": statistics.median(time_ratio)}
    if op == "fence":
        print("  seconds a fence: " + ", ".join(f"{k} {v['seconds']:.3f}" for k, v in result.items()))
    return result


def latency(servers, rounds, place, cpu):
    """One client's get of 64 bytes, microseconds."""
    get = f"{servers.build}/bench/store/store-get"
    port = {kind: str(p) for kind, (_, p) in servers.all.items()}
    asked = {"our client at our store": [get, "client", "127.0.0.1", port["ddp"], "3000"],
             "bare ping-pong": [get, "bare", "127.0.0.1", port["echo"], "3000"]}
    if servers.python:
        asked["PyTorch's client at our store"] = [servers.python, "-c", PYTORCH_GET,
                                                  port["ddp"], "3000"]
        asked["PyTorch's client at its own"] = [servers.python, "-c", PYTORCH_GET,
                                                port["libuv"], "3000"]
    took = {name: [] for name in asked}
    for _ in range(min(rounds, 5)):
        for name, command in asked.items():
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True,
                                  preexec_fn=bound(cpu))
            took[name].append(float(done.stdout))
    ours = took["our client at our store"]
    print(f"\nget by one client, {place}: microseconds, and x ours")
    for name, numbers in took.items():
        ratios = [n / o for n, o in zip(numbers, ours)]
        print(f"  {name:32}{spread(numbers):>24}{spread(ratios):>22}", flush=True)
    return {name: statistics.median(numbers) for name, numbers in took.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build", default=os.path.join(ROOT, "build"))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", default="", help="rows whose title has this word")
    parser.add_argument("--json", help="write the medians there")
    options = parser.parse_args()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard < 10100:
        print(f"'ulimit -n' is {hard}: connecting 10000 clients will fail")
    servers = Servers(os.path.abspath(options.build))
    results = {}
    try:
        for row in ROWS:
            if options.only in row[0]:
                results[row[0]] = table(servers, row, options.rounds)
        for place, cpu in (("another CPU than the server", LOAD_CPU),
                           ("the server's CPU", SERVER_CPU)):
            if options.only in "get by one client":
                results[f"latency, {place}"] = latency(servers, options.rounds, place, cpu)
    finally:
        servers.stop()
    if options.json:
        with open(options.json, "w", encoding="utf-8") as f:
            json.dump(results, f, indent=1)


if __name__ == "__main__":
    main()
