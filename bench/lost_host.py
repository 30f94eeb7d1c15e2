#!/usr/bin/env python3
"""lost_host.py [--runs N] [--only WHAT] [--build PATH]: what a lost rank, host or launcher costs ddp-train

Hosts of tests/lab (as root): four with two ranks each and a spare; gpt2 with 1.7 million parameters.
For each loss: seconds from it to the first step of the next attempt, and steps that are done again; a
lost launcher is started again by hand at once, with --resume. Then what --peer-checkpoint costs while
nothing is lost: seconds a step with it and without it, in turns.
"""
import argparse
import json
import os
import re
import signal
import statistics
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
MODEL = "gpt2:layers=2,heads=4,width=256,context=64,vocab=256"


def rows(path, *kinds):
    found = []
    if os.path.exists(path):
        with open(path, encoding="ascii", errors="replace") as f:
            for line in f:
                if line.endswith("\n"):
                    found.append(json.loads(line))
    return [row for row in found if row["kind"] in kinds]


def train(lab, folder, steps, *options, launcher=()):
    log = os.path.join(folder, "log")
    command = ("-H", lab.hosts(1, 2, 3, 4, 5, slots=2), "--spares", 1, "--grace", "1s", *launcher,
               os.path.join(hosts.LAB_HOSTS.bin, "ddp-train"), "--plot", "none", "--progress", "none",
               "--model", MODEL, "--data", os.path.join(HERE, "README.md"), "--batch-size", 1, "--steps", steps,
               "--log", log, *options)
    return lab.start(*command), log


def until(condition, seconds=200):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            sys.exit("lost_host: it does not go on")
        time.sleep(0.005)
    return time.monotonic()


def lose(lab, what, run, options, launcher=()):
    """(seconds, steps): to the first step again, and those that are done again."""
    with tempfile.TemporaryDirectory(prefix="ddprun-bench-") as folder:
        os.chmod(folder, 0o777)
        place = ("--checkpoint", os.path.join(folder, "c"), "--checkpoint-every", 20, "--resume")
        options = place if what == "launcher" else options
        launch, log = train(lab, folder, 100000, *options, launcher=launcher)
        until(lambda: len(rows(log, "step")) >= 43 + run)
        began = time.monotonic()
        if what == "host":
            hosts.LAB_HOSTS("fault", hosts.node(2), "kill")
        elif what == "rank":
            os.kill(next(pid for pid, line in hosts.launch.marked(launch.mark).items()
                         if line.startswith(hosts.LAB_HOSTS.bin + "/ddp-train")), signal.SIGKILL)
        else:
            launch.end()
            launch, log = train(lab, folder, 100000, *options)
        # of each attempt the step that it begins after, and then its steps
        runs = lambda: [i for i, row in enumerate(rows(log, "run", "step")) if row["kind"] == "run"]
        first = until(lambda: len(runs()) > 1 and len(rows(log, "run", "step")) > runs()[1] + 1)
        told, again = rows(log, "run", "step"), runs()[1]
        launch.end()
        if what == "host":
            lab.heal(2)
        return first - began, told[again - 1]["step"] - told[again]["step"]


def step_seconds(lab, *options):
    with tempfile.TemporaryDirectory(prefix="ddprun-bench-") as folder:
        os.chmod(folder, 0o777)
        launch, log = train(lab, folder, 100, *options)
        launch.wait(300)
        end, = rows(log, "end")
        return end["train_seconds"] / 100, re.search(r"kept .*", launch.out)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--runs", type=int, default=5)
    p.add_argument("--only", choices=("rank", "host", "launcher", "step"))
    p.add_argument("--build", default="build")
    args = p.parse_args()
    build = os.path.abspath(args.build)
    for name, path in (("DDPRUN", "launcher/ddprun"), ("DDPRUN_AGENT", "launcher/ddprun-agent"),
                       ("DDP_TRAIN", "worker/ddp-train")):
        os.environ[name] = os.path.join(build, path)
    for folder in ("lab", "system"):
        sys.path.insert(0, os.path.join(HERE, "..", "tests", folder))
    global hosts
    import hosts
    hosts.set_up()
    lab = hosts.LabTest()
    lab.setUp()
    try:
        for what, options, launcher in (("rank", ("--peer-checkpoint",), ("--max-restarts", 1)),
                                        ("host", ("--peer-checkpoint",), ()), ("launcher", (), ())):
            if args.only not in (None, what):
                continue
            got = [lose(lab, what, run, options, launcher) for run in range(args.runs)]
            print(f"{what:9}{statistics.median(s for s, _ in got):6.2f} s to the next step "
                  f"({', '.join(f'{s:.2f}' for s, _ in got)}); steps again {', '.join(str(n) for _, n in got)}",
                  flush=True)
        if args.only not in (None, "step"):
            return
        pairs = [(step_seconds(lab)[0], *step_seconds(lab, "--peer-checkpoint")) for _ in range(args.runs)]
        print(f"a step   {1e3 * statistics.median(a for a, _, _ in pairs):.2f} ms, with --peer-checkpoint "
              f"{1e3 * statistics.median(b for _, b, _ in pairs):.2f} ms, ratio "
              f"{statistics.median(b / a for a, b, _ in pairs):.3f}")
        print(pairs[-1][2][0])
    finally:
        for launch in lab.launches:
            launch.end()
        lab.doCleanups()
        hosts.tear_down()


main()
