#!/usr/bin/env python3
"""scontrol.py PRINT_FRONT: host lists expand as Slurm's own scontrol expands them.

Random lists, the same ones every time. Without scontrol (Debian: slurm-client): skipped."""
import os
import random
import shutil
import subprocess
import sys
import tempfile

if not shutil.which("scontrol"):
    print("skipped: no scontrol; needs package slurm-client")
    sys.exit(77)


def numbers(r):
    lo = r.randint(0, 12)
    text = str(lo).zfill(r.choice([0, 0, 2, 3]))
    return text if r.random() < 0.4 else f"{text}-{lo + r.randint(0, 4)}"


def term(r):
    return "".join(r.choice(["n", "r", "ab-"]) + "[" +
                   ",".join(numbers(r) for _ in range(r.randint(1, 3))) + "]"
                   for _ in range(r.randint(0, 4))) or "login"


r = random.Random(7)
lists = [",".join(term(r) for _ in range(r.randint(1, 3))) for _ in range(60)]
ours = subprocess.run([sys.argv[1], "names", *lists], check=True, capture_output=True,
                      text=True, timeout=200).stdout.split("\n\n")
faults = int(len(ours) != len(lists) + 1)  # and nothing behind the last blank line
with tempfile.TemporaryDirectory() as folder:
    conf = os.path.join(folder, "slurm.conf")
    with open(conf, "w") as f:
        f.write("ClusterName=x\nSlurmctldHost=localhost\nNodeName=n\n"
                "PartitionName=p Nodes=ALL\n")
    env = dict(os.environ, SLURM_CONF=conf)
    for text, mine in zip(lists, ours):
        p = subprocess.run(["scontrol", "show", "hostnames", text], env=env, timeout=200,
                           capture_output=True, text=True)
        if p.returncode != 0 and not p.stdout:
            print(f"skipped: scontrol does not run: {p.stderr.strip()[:200]}; needs package slurm-client")
            sys.exit(77)
        if p.stdout.split() != mine.split():
            print(f"{text}\n  scontrol: {p.stdout.split()}\n  ours:     {mine.split()}")
            faults += 1
print(f"{len(lists)} lists, {faults} differ")
sys.exit(1 if faults else 0)
