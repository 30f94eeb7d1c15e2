#!/usr/bin/env python3
"""recover.py [--fault rank|agent|reset|silent] [--ranks N] [--runs N] [--ddprun PATH] [--python PATH]

From a failure to work again. All ranks do an all_reduce by gloo, then something is broken. Measured: the time
to the last rank's first all_reduce in the next attempt, and for hosts the time until the loss is declared.

rank     a rank is killed by SIGKILL; --max-restarts beside torchrun's, in turns. The ratio is torchrun / ddprun
agent    the agent on a host is killed by SIGKILL; --spares 1. From here on in the lab (root; tests/lab): the
         ranks on two hosts, node002 and node003, in turns the broken one; the first has rank 0 and the store
reset    all processes of a host, whose connections are thus reset
silent   the host's link goes down; --node-timeout 2s, a time that counts in both figures
"""
import argparse
import datetime
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

from torch_python import torch_python

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "tests", "lab"))
TIMEOUT = "2s"
PROGRAM = """
import os, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
n = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
os.write(1, f"reduced {n} {os.environ['RANK']} {os.getpid()} {time.time()}\\n".encode())
if n == 0:
    time.sleep(120)
dist.destroy_process_group()
"""


def reduced(path, attempt):
    """{rank: (pid, time)} of the ranks that have reduced in this attempt."""
    with open(path, encoding="utf-8", errors="replace") as f:
        lines = re.findall(rf"reduced {attempt} (\d+) (\d+) ([\d.]+)", f.read())
    return {int(rank): (int(pid), float(at)) for rank, pid, at in lines}


def wait_for(path, attempt, ranks, seconds=120):
    end = time.monotonic() + seconds
    while len(found := reduced(path, attempt)) < ranks:
        if time.monotonic() > end:
            return None
        time.sleep(0.01)
    return found


def run(command, ranks, folder, damage):
    """Seconds from damage(), which returns when it was done, to the last first all_reduce; None: it did not come."""
    out = os.path.join(folder, "out")
    with open(out, "wb") as f:
        job = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=f, stderr=subprocess.STDOUT)
        first = wait_for(out, 0, ranks)
        if not first:
            job.terminate()
            job.wait()
            sys.exit(f"recover: {command[0]} does not start the ranks")
        time.sleep(0.5)
        began = damage(first)
        found = wait_for(out, 1, ranks, 40)
        if not found:
            job.terminate()
        job.wait()
    return began, max(at for _, at in found.values()) - began if found else None


def show(name, every, what):
    t = [x for x in every if x is not None]
    lost = f", {len(every) - len(t)} did not recover" if len(t) < len(every) else ""
    if t:
        print(f"{name:9} {statistics.median(t):.3f} s ({min(t):.3f} to {max(t):.3f}), {what}, {len(every)} runs{lost}")
    else:
        print(f"{name:9} {len(every)} runs{lost}")
    return statistics.median(t) if t else None


def rank_killed(args, folder, program):
    def damage(first):
        began = time.time()
        os.kill(first[args.ranks - 1][0], signal.SIGKILL)
        return began
    commands = {
        "ddprun": [args.ddprun, "-np", args.ranks, "-H", f"localhost:{args.ranks}", "--max-restarts",
                   1, args.python, program],
        "torchrun": [args.python, "-m", "torch.distributed.run", "--nproc_per_node", args.ranks,
                     "--max_restarts", 1, program],
    }
    times = {name: [] for name in commands}
    for _ in range(args.runs):
        for name, command in commands.items():
            times[name].append(run([str(word) for word in command], args.ranks, folder, damage)[1])
    middle = {name: show(name, every, f"{args.ranks} ranks") for name, every in times.items()}
    if all(middle.values()):
        print(f"torchrun / ddprun {middle['torchrun'] / middle['ddprun']:.1f}")


class Hosts:
    """node001 with the launcher, node002 and node003 with ranks, and node004 as the spare."""

    def __init__(self, args, folder):
        import hosts  # pylint: disable=import-outside-toplevel
        self.script, self.folder = hosts.LAB, folder
        self.env = {**os.environ, "LAB_STATE": f"{folder}/state", "LAB_OWNER": str(os.getpid())}
        self.bin = f"{folder}/bin"
        launcher = os.path.dirname(os.path.abspath(args.ddprun))
        os.mkdir(self.bin)
        for name in ("ddprun", "ddprun-agent", "ddprun-topo"):
            shutil.copy(f"{launcher}/{name}", self.bin)
        shutil.copytree(f"{launcher}/preload", f"{self.bin}/preload")
        shutil.copy(os.path.join(HERE, "..", "launcher", "transport", "ssh_config"), self.bin)

    def __call__(self, *words):
        subprocess.run([self.script, *words], env=self.env, check=True, stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL)

    def first_process(self, host):
        with open(f"{self.folder}/state/hosts/{host}/pid", encoding="ascii") as f:
            return int(f.read().split()[0])

    def agent(self, host):
        """As seen from here."""
        inside = os.readlink(f"/proc/{self.first_process(host)}/ns/pid")
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/comm", encoding="ascii") as f:
                    if f.read() == "ddprun-agent\n" and os.readlink(f"/proc/{pid}/ns/pid") == inside:
                        return int(pid)
            except OSError:
                pass
        return sys.exit(f"recover: no agent on {host}")

    def damage(self, fault, host):
        pid = {"agent": self.agent, "reset": self.first_process, "silent": lambda _: None}[fault](host)
        began = time.time()
        if pid:
            os.kill(pid, signal.SIGKILL)
        else:
            self("fault", host, "link-down")
        return began


def declared(path):
    """When ddprun has declared the host lost, or None."""
    with open(path, encoding="utf-8") as f:
        events = [json.loads(line) for line in f]
    at = [e["time"] for e in events if e["event"] == "host_lost"]
    if not at:
        return None
    return datetime.datetime.fromisoformat(at[0].replace("Z", "+00:00")).timestamp()


def host_lost(args, folder, program):
    lab, lost, back = Hosts(args, folder), [], []
    per_host = max(1, args.ranks // 2)
    try:
        for n in range(args.runs):
            lab("up", "4")
            host, events = f"node{2 + n % 2:03}", f"{folder}/events"
            open(events, "w", encoding="ascii").close()
            command = [lab.script, "exec", "node001", f"{lab.bin}/ddprun", "-H",
                       ",".join(f"node{i:03}:{per_host}" for i in (2, 3, 4)), "--spares", "1", "--grace", "2s",
                       "--events", events, "--node-timeout", TIMEOUT if args.fault == "silent" else "60s",
                       args.python, program]
            os.environ.update(lab.env)
            began, took = run(command, 2 * per_host, folder, lambda _, host=host: lab.damage(args.fault, host))
            at = declared(events)
            lost.append(at and at - began)
            back.append(took)
            if args.fault == "silent":
                lab("fault", host, "link-up")
    finally:
        lab("down")
    show("declared", lost, args.fault)
    show("all back", back, f"{2 * per_host} ranks")
    return 0 if all(back) and all(lost) else 1


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--fault", choices=("rank", "agent", "reset", "silent"), default="rank")
    p.add_argument("--ranks", type=int, default=8)
    p.add_argument("--runs", type=int, default=5)
    p.add_argument("--ddprun", default="build/launcher/ddprun")
    p.add_argument("--python", help="one with PyTorch")
    args = p.parse_args()
    args.python = args.python or torch_python()
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        program = os.path.join(folder, "program.py")
        with open(program, "w", encoding="utf-8") as f:
            f.write(PROGRAM)
        return (rank_killed if args.fault == "rank" else host_lost)(args, folder, program)


if __name__ == "__main__":
    sys.exit(main())
