#!/usr/bin/env python3
"""recover.py [--ranks N] [--runs N] [--ddprun PATH] [--python PATH]: from a killed rank to work again

All ranks do an all_reduce by gloo, then one of them is killed by SIGKILL. Measured: the time to the last
rank's first all_reduce in the next attempt, with ddprun --max-restarts and with torchrun --max-restarts,
in turns. The ratio is torchrun / ddprun.
"""
import argparse
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time

PROGRAM = """
import os, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
n = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
os.write(1, f"reduced {n} {os.environ['RANK']} {os.getpid()} {time.time()}\\n".encode())
if n == 0:
    time.sleep(120)
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


def run(command, ranks, folder):
    out = os.path.join(folder, "out")
    with open(out, "wb") as f:
        job = subprocess.Popen(command, stdout=f, stderr=subprocess.STDOUT)
        first = wait_for(out, 0, ranks) or sys.exit(f"recover: {command[0]} does not start the ranks")
        time.sleep(0.5)
        killed = time.time()
        os.kill(first[ranks - 1][0], signal.SIGKILL)
        found = wait_for(out, 1, ranks, 40)
        if not found:
            job.terminate()
        job.wait()
    return max(at for _, at in found.values()) - killed if found else None


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--ranks", type=int, default=8)
    p.add_argument("--runs", type=int, default=5)
    p.add_argument("--ddprun", default="build/launcher/ddprun")
    p.add_argument("--python", default=sys.executable, help="one with PyTorch")
    args = p.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        program = os.path.join(folder, "program.py")
        with open(program, "w", encoding="utf-8") as f:
            f.write(PROGRAM)
        commands = {
            "ddprun": [args.ddprun, "-np", args.ranks, "-H", f"localhost:{args.ranks}", "--max-restarts",
                       1, args.python, program],
            "torchrun": [args.python, "-m", "torch.distributed.run", "--nproc_per_node", args.ranks,
                         "--max_restarts", 1, program],
        }
        times = {name: [] for name in commands}
        for _ in range(args.runs):
            for name, command in commands.items():
                times[name].append(run([str(word) for word in command], args.ranks, folder))
    middle = {}
    for name, every in times.items():
        t = [x for x in every if x is not None]
        lost = f", {len(every) - len(t)} did not recover" if len(t) < len(every) else ""
        if t:
            middle[name] = statistics.median(t)
            print(f"{name:9} {middle[name]:.3f} s ({min(t):.3f} to {max(t):.3f}), {args.ranks} ranks, "
                  f"{len(every)} runs{lost}")
        else:
            print(f"{name:9} {len(every)} runs{lost}")
    if len(middle) == 2:
        print(f"torchrun / ddprun {middle['torchrun'] / middle['ddprun']:.1f}")


if __name__ == "__main__":
    main()
