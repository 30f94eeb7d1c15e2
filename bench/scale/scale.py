#!/usr/bin/env python3
"""scale.py [--nodes N ...] [--ranks R] [--width W] [--seconds S] [--bytes B] [--check | --join ROUNDS]

Runs the real ddprun as in a Slurm job of N nodes, with bench/scale/agents.c as its "srun": one
process that plays all agents, over real links. Prints what the launcher sent, received and used,
and beside it what it should have by doc/scale.md, computed from the number of nodes, ranks and
links alone. --check: exit code 1 if messages or bytes differ, or memory, descriptors exceed it.

--join: instead, all ranks of the simulated nodes join the store of a real agent, and are admitted
by asking their nodes; beside a bare epoll server in the same network. Root only.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
BUILD = pathlib.Path(os.environ.get("DDPRUN_BUILD", HERE.parents[1] / "build"))

# a frame's header, and what sealing it as a record of its own adds
FRAME = 8 + 20
HANDSHAKE_UP, HANDSHAKE_DOWN = 74, 40 + 32
# bodies of fixed size (doc/agent.md)
BODY = {"ping": 12, "pong": 16, "alive": 8, "spawned": 0, "output": 5, "exit": 25, "terminated": 0,
        "terminate": 13, "shutdown": 4, "input": 0}
HELLO = 90  # of a simulated node, at most
# KiB of memory: the program itself, its libraries, a link, a node, a rank
BASE_KIB, LINK_KIB, NODE_KIB, RANK_KIB = 6000, 16, 2, 0.25
TAILS_KIB = 64 << 10
CREDIT_MIB = 80  # 64, and 4 KiB of each node beyond
BASE_FDS = 32
# bytes of a line that each rank prints at its end
LINE = 40
# nodes that get a ping of their own in each round of heartbeats
PROBES = 8


def simulate(nodes, ranks, width, seconds, nbytes, more=None):
    """The report of one launch, with the times of its start and end."""
    with tempfile.TemporaryDirectory() as place:
        os.symlink(BUILD / "bench/scale/scale-agents", f"{place}/srun")
        env = {"PATH": f"{place}:{os.environ['PATH']}", "HOME": os.environ.get("HOME", "/"),
               "SCALE_REPORT": f"{place}/report", "SCALE_SECONDS": str(seconds),
               "SCALE_BYTES": str(nbytes), "SLURM_JOB_ID": "1",
               "SLURM_JOB_NODELIST": f"n[00001-{nodes:05}]", "SLURM_JOB_NUM_NODES": str(nodes),
               "SLURM_NTASKS": str(nodes * ranks), "SLURM_TASKS_PER_NODE": f"{ranks}(x{nodes})",
               "SCALE_JOINED": f"{place}/joined", "SCALE_LINE": str(LINE)} | (more or {})
        began = time.monotonic_ns()
        ran = subprocess.run([BUILD / "launcher/ddprun", "--start", "srun", "--tree-width",
                              str(width), "true"], env=env,
                             stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, timeout=600)
        ended = time.monotonic_ns()
        if ran.returncode != 0:
            sys.exit(f"ddprun has ended with {ran.returncode}")
        report = json.loads(pathlib.Path(f"{place}/report").read_text())
        joined = pathlib.Path(f"{place}/joined")
        return report | {"began": began, "ended": ended,
                         "joined": json.loads(joined.read_text()) if joined.exists() else None}


def paper(nodes, ranks, links, rounds):
    """Frames of each phase: up, down. In a tree those that go up are merged, and these are more
    than the launcher gets."""
    probes = min(PROBES, nodes)
    return {
        "start": ({"hello": nodes, "pong": links}, {"ping": links, "store": 1,
                                                    "pmi_mapping": links}),
        "launch": ({"store_ready": 1, "spawned": nodes}, {"job": links, "share": nodes}),
        "barrier": ({"fence": nodes}, {"fence": links}),
        "exchange": ({"fence": nodes}, {"fence": links}),
        "quiet": ({"alive": nodes * rounds, "pong": probes * rounds},
                  {"ping": (links + probes) * rounds}),
        "end": ({"output": 3 * nodes * ranks, "exit": nodes * ranks, "terminated": nodes},
                {"terminate": links, "shutdown": links}),
    }


def compare(phase, way, expected):
    """Frames of a phase in one direction, measured and by paper, and bytes by paper. Heartbeats of
    another phase than the quiet one, and the end of stdin, are counted as they came."""
    seen = {name: n for name, (n, _) in phase[f"frames_{way}"].items()}
    frames = dict(expected)
    for name in {"ping", "pong", "alive", "input"} & seen.keys():
        if name == "input" or phase["phase"] != "quiet":
            frames[name] = seen[name]
    body = {"hello": HELLO} | {name: size / n for name, (n, size) in
                               phase[f"frames_{way}"].items()} | BODY
    return seen, frames, sum(n * (FRAME + body.get(name, 0)) for name, n in frames.items())


class Table:
    def __init__(self):
        self.rows, self.bad = [], []

    def row(self, what, measured, expected="", most=None):
        """`most`: the largest ratio of measured to expected that is as it should be."""
        self.rows.append((what, measured, expected))
        if most is not None and measured > expected * most:
            self.bad.append(f"{what}: {measured:,.0f}, not {expected:,.0f}")

    def show(self):
        for what, measured, expected in self.rows:
            texts = [f"{v:,.0f}" if isinstance(v, (int, float)) and v >= 100 else
                     f"{v:,.3g}" if isinstance(v, (int, float)) else v for v in (measured, expected)]
            print(f"{what:44} {texts[0]:>16} {texts[1]:>16}")


def table(nodes, ranks, width, seconds, nbytes):
    report = simulate(nodes, ranks, width, seconds, nbytes)
    t, links, phases = Table(), report["links"], report["phases"]
    quiet = next(i for i, phase in enumerate(phases) if phase["phase"] == "quiet")
    rounds = round(phases[quiet]["frames_down"].get("ping", [0])[0] / (links + min(PROBES, nodes)))
    wanted = paper(nodes, ranks, links, rounds)
    if abs(rounds - seconds) > 1:
        t.bad.append(f"{rounds} rounds of heartbeats in {seconds} s")
    print(f"\n{nodes:,} nodes x {ranks} ranks, {links:,} links{'measured':>32} {'paper':>16}")
    total = 0
    for before, phase in zip(phases, phases[1:]):
        name = phase["phase"]
        for way, handshake in (("up", HANDSHAKE_UP), ("down", HANDSHAKE_DOWN)):
            seen, frames, size = compare(phase, way, wanted[name][way == "down"])
            size += handshake * links * (name == "start")
            beat = links * (FRAME + BODY["pong"])  # may have left at the end of the phase before
            measured = phase[way] - before[way]
            total += measured
            merges = way == "up" and nodes > links
            # a few of each link in a round, of many bytes one in 256 KiB, and all of those nodes
            # that have none below them
            alone = max(links - -(-(nodes - links) // links), 0)
            few = links * max(8, 3 * rounds) + size / 2**18 + alone * sum(frames.values()) / nodes
            few += nodes * ranks if name == "end" else 0  # lines are not merged
            t.row(f"{name}, {way}: messages", sum(seen.values()),
                  few if merges else sum(frames.values()), 1 if merges else None)
            t.row(f"{name}, {way}: bytes", measured, size, 1 + beat / size)
            for kind in sorted(seen.keys() | frames.keys()) if not merges else ():
                if seen.get(kind, 0) != frames.get(kind, 0):
                    t.bad.append(f"{name}, {way}: {seen.get(kind, 0)} x {kind}, "
                                 f"not {frames.get(kind, 0)}")
        t.row(f"{name}: ms of CPU", (phase["cpu_ns"] - before["cpu_ns"]) / 1e6)
    t.row("one round of heartbeats: ms of CPU",
          (phases[quiet]["cpu_ns"] - phases[quiet - 1]["cpu_ns"]) / 1e6 / max(rounds, 1))
    t.row("whole launch, both ways: MiB", total / 2**20)
    tail = min(max(TAILS_KIB / (2 * nodes * ranks), 0.5), 4)
    memory = BASE_KIB + LINK_KIB * links + NODE_KIB * nodes + (RANK_KIB + tail) * nodes * ranks
    t.row("resident at the end: KiB", phases[-1]["rss_kib"], memory, 1)
    t.row("resident, the most: KiB", phases[-1]["peak_kib"])
    t.row("output that may be on its way: MiB", report["credit"] * nodes / 2**20, CREDIT_MIB, 1)
    t.row("  KiB per node above its start",
          (phases[-1]["rss_kib"] - phases[0]["rss_kib"]) / nodes)
    t.row("descriptors", max(phase["fds"] for phase in phases), BASE_FDS + links, 1)
    for what, at in (("first rank", report["first_ns"]), ("all ranks", phases[2]["at_ns"]),
                     ("through a barrier of all", phases[3]["at_ns"]), ("exit", report["ended"])):
        t.row(f"ms until {what}", (at - report["began"]) / 1e6)
    t.show()
    return t.bad


def networks():
    """A second network namespace, where all of 10.99.0.0/16 is local; the pid that holds it."""
    holder = subprocess.Popen(["unshare", "-n", "sleep", "1000"])
    there = ["nsenter", "-t", str(holder.pid), "-n"]
    while os.readlink(f"/proc/{holder.pid}/ns/net") == os.readlink("/proc/self/ns/net"):
        time.sleep(0.01)
    for line in ("ip link set lo up", f"ip link add s0 type veth peer name s1 netns {holder.pid}",
                 "ip addr add 10.98.0.1/16 dev s0", "ip link set s0 up",
                 "- ip link set lo up", "- ip addr add 10.98.0.2/16 dev s1", "- ip link set s1 up",
                 "- ip route add local 10.99.0.0/16 dev lo",
                 "ip route add 10.99.0.0/16 via 10.98.0.2"):
        words = line.split()
        subprocess.run(there + words[1:] if words[0] == "-" else words, check=True)
    return holder, there


def join_bare(there, nodes, ranks):
    load = BUILD / "bench/store/store-load"
    with subprocess.Popen([BUILD / "bench/store/store-echo", "10.98.0.1"],
                          stdout=subprocess.PIPE) as echo:
        port = echo.stdout.readline().strip()
        ran = subprocess.run(there + [load, "echo", "10.98.0.1", port, "connect", "--from",
                                      "10.99.0.2", "--clients", str((nodes - 1) * ranks), "--each",
                                      str(ranks), "--pid", str(echo.pid)],
                             stdout=subprocess.PIPE, check=True)
        echo.kill()
    return json.loads(ran.stdout)


def join(nodes, ranks, rounds):
    if "SCALE_INSIDE" not in os.environ:
        os.environ["SCALE_INSIDE"] = "1"
        os.execvp("unshare", ["unshare", "-n", sys.executable, *sys.argv])
    holder, there = networks()
    more = {"SCALE_NETNS": f"/proc/{holder.pid}/ns/net",
            "SCALE_AGENT": str(BUILD / "launcher/ddprun-agent"),
            "SCALE_LOAD": str(BUILD / "bench/store/store-load")}
    clients = (nodes - 1) * ranks
    print(f"{clients:,} clients of {nodes - 1:,} nodes join, each admitted by its node")
    try:
        for _ in range(rounds):
            bare = join_bare(there, nodes, ranks)
            report = simulate(nodes, ranks, 0, 0, 0, more)
            ours = report["joined"]
            before, after = [next(phase for phase in report["phases"] if phase["phase"] == name)
                             for name in ("launch", "join")]
            asked = sum(after[f"frames_{way}"].get(name, [0])[0]
                        for way, name in (("up", "vouched"), ("down", "vouch")))
            print(f"ms until all have joined: {ours['seconds'] * 1e3:.0f}, bare "
                  f"{bare['seconds'] * 1e3:.0f}, ratio {ours['seconds'] / bare['seconds']:.2f};  "
                  f"us of the server's CPU each: {ours['cpu_seconds'] / clients * 1e6:.1f}, bare "
                  f"{bare['cpu_seconds'] / clients * 1e6:.1f};  the launcher's: "
                  f"{(after['cpu_ns'] - before['cpu_ns']) / clients / 1e3:.1f};  {asked:,} messages")
    finally:  # also when ddprun could not start
        holder.kill()
        holder.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, nargs="+", default=[64, 256, 1000, 10000])
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--width", type=int, default=32, help="of the tree of agents; 0: flat")
    parser.add_argument("--seconds", type=int, default=5)
    parser.add_argument("--bytes", type=int, default=0, help="of each rank in the second fence")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--join", type=int, metavar="ROUNDS")
    opts = parser.parse_args()
    if opts.join:
        join(opts.nodes[0], opts.ranks, opts.join)
        return
    bad = []
    for nodes in opts.nodes:
        bad += [f"{nodes} nodes: {line}"
                for line in table(nodes, opts.ranks, opts.width, opts.seconds, opts.bytes)]
    if opts.check and bad:
        sys.exit("\n".join(["not as on paper:"] + bad))


if __name__ == "__main__":
    main()
