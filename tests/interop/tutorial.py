#!/usr/bin/env python3
"""tutorial.py DDPRUN PROGRAM...: the examples in C say what their twins in PyTorch say"""
import os
import re
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))


def lines(command):
    got = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if got.returncode != 0:
        sys.exit(f"{command} ended with {got.returncode}:\n{got.stdout}{got.stderr}")
    return [re.sub(r" \((shm|tcp)[^)]*\)", "", x) for x in got.stdout.splitlines()]


def main():
    ddprun, programs = sys.argv[1], sys.argv[2:]
    env = subprocess.run(["sh", os.path.join(HERE, "torch-env.sh")],
                         capture_output=True, text=True)
    if env.returncode != 0:
        print(env.stderr.strip())
        return 77
    failed = False
    for size in "3", "4":
        these = [p for p in programs if ("sgd" in p) == (size == "4")]
        # without what an optimizer imports, which sgd alone has
        less = ["--preload", "torch"] if size == "3" else []
        theirs = lines([ddprun, "-np", size, *less, env.stdout.strip(), os.path.join(HERE, "programs/tutorial.py"),
                        *map(os.path.basename, these)])
        ours = [line for program in these for line in lines([ddprun, "-np", size, program])]
        same = ours == theirs and ours
        failed |= not same
        print(f"{size} ranks: {'the same' if same else f'{ours} and {theirs}'}")
    return failed


sys.exit(main())
