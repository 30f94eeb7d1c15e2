#!/usr/bin/env python3
"""What training together costs: two ranks beside two runs that know nothing of each other.

    bench/ddp_efficiency.py [--build DIR] [--rounds 7] [--epochs 3] [--model cnn]
                            [--batch-size 64] [--data DIR] [-- ddp-train's own options]

Each round runs, one after the other: one rank alone on CPU 0; two independent runs at
once, on CPU 0 and CPU 1; two ranks under ddprun, bound the same way. Printed are images/s
(each run's best epoch, so that a disturbance of one epoch does not count) and CPU seconds
for each 1,000 images, as medians over the rounds, and the ratio of two ranks to two
independent runs, which is taken within each round; and to twice the slower of these, since
ranks that wait for each other in each step cannot be faster than that. Where something else slows
single steps on one CPU, both ranks wait; "by fast steps" compares the step times that a tenth of
the steps stay below.

--data is a folder in MNIST's format (default: tests/data/mnist10k), or `digits`, those inside
the program (small images: the hardest case, since a step takes a millisecond).
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

SOURCE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
DEADLINE_S = 600


def read_log(path):
    """Best images/s of an epoch, the images of all of them, and images/s at the step time that a
    tenth of the steps stay below."""
    with open(path) as f:
        rows = [json.loads(line) for line in f]
    epochs = [row for row in rows if row["kind"] == "epoch"]
    assert epochs, f"{path} has no epoch"
    steps = [row for row in rows if row["kind"] == "step"]
    times = sorted(b["seconds"] - a["seconds"] for a, b in zip(steps, steps[1:])
                   if a["epoch"] == b["epoch"])
    return (max(row["images_per_s"] for row in epochs),
            len(epochs) * rows[0]["train_samples"],
            rows[0]["ranks"] * rows[0]["batch_size"] / times[len(times) // 10])


def run_all(commands, logs):
    """Runs the commands at once. The sum of their images/s, CPU seconds for each 1,000
    images, what they would reach if all were as slow as the slowest, and the sum of their
    images/s at the step time that a tenth of the steps stay below."""
    running = [subprocess.Popen(c, stdout=subprocess.DEVNULL) for c in commands]
    cpu = 0.0
    for p in running:
        _, status, usage = os.wait4(p.pid, 0)
        p.returncode = os.waitstatus_to_exitcode(status)
        cpu += usage.ru_utime + usage.ru_stime
    for p in running:
        if p.returncode != 0:
            sys.exit(f"{' '.join(p.args)}: exit {p.returncode}")
    found = [read_log(log) for log in logs]
    rates = [rate for rate, _, _ in found]
    return (sum(rates), 1000 * cpu / sum(n for _, n, _ in found), len(rates) * min(rates),
            sum(fastest for _, _, fastest in found))


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--build", default=os.path.join(SOURCE, "build"))
    p.add_argument("--rounds", type=int, default=7)
    p.add_argument("--epochs", type=int, default=3)
    p.add_argument("--model", default="cnn")
    p.add_argument("--batch-size", type=int, default=64)
    p.add_argument("--data", default=f"{SOURCE}/tests/data/mnist10k")
    p.add_argument("rest", nargs="*")
    a = p.parse_args()
    train = os.path.join(a.build, "worker", "ddp-train")
    ddprun = os.path.join(a.build, "launcher", "ddprun")
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        logs = [os.path.join(folder, name) for name in ("a", "b")]
        options = ["timeout", str(DEADLINE_S), train, "--model", a.model, "--data", a.data,
                   "--epochs", str(a.epochs), "--batch-size", str(a.batch_size), "--plot",
                   "none", "--progress", "none", "--threads", "1", *a.rest, "--log"]
        alone = [["taskset", "-c", str(i), *options, logs[i]] for i in (0, 1)]
        kinds = {
            "1 rank": ([alone[0]], logs[:1]),
            "2 independent": (alone, logs),
            "2 ranks": ([[ddprun, "-np", "2", *options, logs[0]]], logs[:1]),
        }
        found = {name: [] for name in kinds}
        for _ in range(a.rounds):
            for name, (commands, where) in kinds.items():
                found[name].append(run_all(commands, where))
    print(f"{a.model} on {os.path.basename(a.data)}, batch {a.batch_size} per rank, "
          f"{a.rounds} rounds")
    for name, rounds in found.items():
        print(f"{name:14} {statistics.median(r[0] for r in rounds):10.0f} images/s "
              f"{statistics.median(r[1] for r in rounds):8.3f} CPU s for 1,000 images")
    for what, mine, column in (("2 independent", 0, 0), ("twice the slower of them", 0, 2),
                               ("2 independent, by fast steps", 3, 3)):
        both = zip(found["2 ranks"], found["2 independent"])
        ratios = sorted(100 * ours[mine] / theirs[column] for ours, theirs in both)
        print(f"2 ranks / {what}: {statistics.median(ratios):.1f} % "
              f"({ratios[0]:.1f} to {ratios[-1]:.1f})")


main()
