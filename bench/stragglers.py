#!/usr/bin/env python3
"""stragglers.py DDPRUN PROGRAM ARGS...: what --stragglers costs: the CPU time of a job with and without
it, in turn.

    bench/stragglers.py build/launcher/ddprun build/tests/system/straggler_group all 200 100 0
    bench/stragglers.py build/launcher/ddprun PYTHON tests/interop/programs/late.py 200 100 0

CPU time, of all processes of the job, is less disturbed by others than the time of a step."""
import os
import statistics
import subprocess
import sys

NP, ROUNDS = 4, int(os.environ.get("ROUNDS", "5"))


def cpu_s(*options):
    before = os.times()
    subprocess.run([sys.argv[1], "-np", str(NP), "--no-preload", *options, *sys.argv[2:]], check=True,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    after = os.times()
    return sum(after[2:4]) - sum(before[2:4]), after[4] - before[4]


def main():
    off, on, walls = [], [], []
    for _ in range(ROUNDS):
        off.append(cpu_s()[0])
        used, wall = cpu_s("--stragglers")
        on.append(used)
        walls.append(wall)
    more, wall = statistics.median(on) - statistics.median(off), statistics.median(walls)
    print(f"CPU time without {statistics.median(off):.2f} s, with {statistics.median(on):.2f} s: "
          f"{1000 * more / wall:.2f} ms more per second, {100 * more / wall / NP:.3f} % of each of "
          f"{NP} ranks; without: {' '.join(f'{s:.2f}' for s in off)}, with: "
          f"{' '.join(f'{s:.2f}' for s in on)}")


if __name__ == "__main__":
    main()
