#!/usr/bin/env python3
"""bench/data_parallel.py BUILD_DIR [--rounds N]: DataParallel beside distributed data parallel.

Two replicas of a model learn, as two threads of one process (torch.nn.DataParallel's way:
scatter, replicate, gather), and as two ranks under ddprun; in turn, a second each, with the
same engine and as many CPUs. Prints images/s of both replicas together, median and range, and
of the ratio of each pair. What is compared is the way, not PyTorch."""
import argparse
import statistics
import subprocess

CASES = [("mlp", 64), ("mlp", 16), ("cnn", 64), ("cnn", 16)]


def spread(values, form):
    low, high = form % min(values), form % max(values)
    return f"{form % statistics.median(values)} ({low}..{high})"


def rate(command):
    shown = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=120)
    return float(shown.stdout.split()[-1])  # behind the rank's label


def main():
    args = argparse.ArgumentParser()
    args.add_argument("build")
    args.add_argument("--rounds", type=int, default=5)
    args = args.parse_args()
    program = f"{args.build}/bench/bench-data_parallel"
    ddprun = [f"{args.build}/launcher/ddprun", "-np", "2"]
    for model, batch in CASES:
        one, each = [], []
        for _ in range(args.rounds):
            one.append(rate([program, model, str(batch), "1", "2"]))
            each.append(rate([*ddprun, program, model, str(batch), "1"]))
        ratios = [b / a for a, b in zip(one, each)]
        print(f"{model} B={batch:<3} one process {spread(one, '%.0f')}  a process each "
              f"{spread(each, '%.0f')}  ratio {spread(ratios, '%.2f')}", flush=True)


main()
