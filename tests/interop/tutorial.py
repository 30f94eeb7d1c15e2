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
    for program in programs:
        name, size = os.path.basename(program), "4" if "sgd" in program else "3"
        ours = lines([ddprun, "-np", size, program])
        theirs = lines([ddprun, "-np", size, env.stdout.strip(),
                        os.path.join(HERE, "programs/tutorial.py"), name])
        same = ours == theirs and ours
        failed |= not same
        print(f"{name}: {'the same' if same else f'{ours} and {theirs}'}")
    return failed


sys.exit(main())
