#!/usr/bin/env python3
"""From command to last exit of a small PyTorch program, and the memory of its ranks.

    bench/python_start.py [--build DIR] [--np 2,8] [--rounds 5]

Each rank imports torch, joins a Gloo group, sums its rank with all others' and ends; a
round counts only if every rank has told the right sum. The same with a training step before
the sum, which imports torch._dynamo, too. Then 8 ranks (the last of --np)
that have done so and sleep are looked at: proportional set size (PSS), where a page that
n processes share counts 1/n. At last rank 1 fails in the middle of its work, and what counts
is the time from there until all ranks have summed again (--max-restarts). Contenders take
turns: ddprun, ddprun --no-preload, and torchrun.
"""
import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time

from launch import SOURCE, Contender, children_of, cpu_of_children, parse, table, wait
from torch_python import torch_python

REDUCE = """\
import os
import sys
import time
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
t = torch.tensor([float(dist.get_rank())])
dist.all_reduce(t)
"""
STEP = """\
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.ones(1, 4)).sum().backward()
optimizer.step()
"""
SUM = """\
fd = os.open(os.environ["START_TOLD"], os.O_WRONLY | os.O_APPEND)
os.write(fd, b"%d %d\\n" % (os.getpid(), int(t)))
if sys.argv[1:] == ["stay"]:
    time.sleep(600)
dist.destroy_process_group()
"""
# t0 is when rank 1 fails: the clock is the machine's, the same for all processes
AGAIN = REDUCE + """\
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
if attempt > 0 or dist.get_rank() == 1:
    fd = os.open(os.environ["START_TOLD"], os.O_WRONLY | os.O_APPEND)
    os.write(fd, b"%d %d %f\\n" % (attempt, int(t), time.monotonic()))
if attempt == 0:
    dist.get_rank() == 1 and os._exit(3)
    time.sleep(600)
dist.destroy_process_group()
"""
LIMIT = 120.0


def contenders(build, torch, restarts=0):
    again = ["--max-restarts", str(restarts)]
    ddprun = [f"{build}/launcher/ddprun", "-np", "{n}", *again]
    return [
        Contender("ddprun", [*ddprun, torch]),
        Contender("ddprun --no-preload", [*ddprun, "--no-preload", torch]),
        Contender("torchrun", [torch, "-m", "torch.distributed.run", "--standalone", *again,
                               "--nproc-per-node", "{n}"]),
    ]


def start(c, n, words, told):
    os.truncate(told, 0)
    command = [word.replace("{n}", str(n)) for word in c.command] + words
    quiet = [(os.POSIX_SPAWN_OPEN, fd, "/dev/null", os.O_RDWR, 0) for fd in (0, 1, 2)]
    # torchrun's restarts fail over the keys of the dead, unless it makes a new store for each
    env = {**os.environ, "START_TOLD": told, "OMP_NUM_THREADS": "1",
           "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    return os.posix_spawnp(command[0], command, env, file_actions=quiet, setpgroup=0)


def ranks_told(told, n):
    """The pids, when all have told the right sum."""
    with open(told, encoding="ascii") as f:
        lines = [line.split() for line in f]
    return [int(pid) for pid, total in lines if int(total) == n * (n - 1) // 2]


def one_round(c, n, script, told):
    before, began = cpu_of_children(), time.perf_counter()
    status = wait(start(c, n, [script], told), LIMIT)
    ms = (time.perf_counter() - began) * 1000
    if status is None:
        c.hung += 1
    elif status != 0 or len(ranks_told(told, n)) != n:
        c.wrong += 1
    else:
        c.ms.append(ms)
        c.cpu_ms.append(1000 * (cpu_of_children() - before))


def one_restart(c, n, script, told):
    """From the failure of rank 1 to the last sum of the second attempt, in ms."""
    before = cpu_of_children()
    status = wait(start(c, n, [script], told), LIMIT)
    with open(told, encoding="ascii") as f:
        lines = [line.split() for line in f]
    failed = [float(at) for attempt, _, at in lines if attempt == "0"]
    back = [float(at) for attempt, total, at in lines
            if attempt == "1" and int(total) == n * (n - 1) // 2]
    if status is None:
        c.hung += 1
    elif status != 0 or len(failed) != 1 or len(back) != n:
        c.wrong += 1
    else:
        c.ms.append(1000 * (max(back) - failed[0]))
        c.cpu_ms.append(1000 * (cpu_of_children() - before))


def ratio(results, what):
    ours, theirs = results[0].ms, results[-1].ms
    if ours and len(ours) == len(theirs):
        faster = statistics.median(b / a for a, b in zip(ours, theirs))
        print(f"  ddprun is {faster:.2f} x as fast as torchrun{what}")


def pss_mib(pid):
    with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as f:
        return next(int(line.split()[1]) for line in f if line.startswith("Pss:")) / 1024


def memory(c, n, script, told):
    """MiB of n ranks that sleep; 0 where they did not come."""
    pid = start(c, n, [script, "stay"], told)
    end = time.monotonic() + LIMIT
    while len(ranks_told(told, n)) < n and time.monotonic() < end:
        time.sleep(0.05)
    time.sleep(0.2)
    pids = ranks_told(told, n)
    total = sum(map(pss_mib, pids)) if len(pids) == n else 0.0
    below = children_of(pid)
    for p in {pid} | below:
        try:
            os.kill(p, 9)
        except ProcessLookupError:
            pass
    os.waitpid(pid, 0)
    return total


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", default=f"{SOURCE}/build")
    parser.add_argument("--np", default="2,8")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--restarts", type=int, default=3, help="rounds with a failure; 0: none")
    args = parse(parser)
    torch = torch_python()
    counts = [int(n) for n in args.np.split(",")]
    with tempfile.TemporaryDirectory(prefix="ddprun-bench-") as folder:
        script, told = f"{folder}/start.py", f"{folder}/told"
        with open(script, "w", encoding="ascii") as f:
            f.write(REDUCE + SUM)
        with open(f"{folder}/train.py", "w", encoding="ascii") as f:
            f.write(REDUCE + STEP + SUM)
        open(told, "w", encoding="ascii").close()
        for what, path, n in [("all_reduce", script, n) for n in counts] + [
                ("all_reduce, one step of DDP", f"{folder}/train.py", n) for n in counts]:
            results = contenders(args.build, torch)
            for _ in range(args.rounds):
                for c in results:
                    one_round(c, n, path, told)
            table(f"{n} ranks: import torch, join, {what}, end; ms", results, "torchrun")
            ratio(results, "")
        with open(f"{folder}/again.py", "w", encoding="ascii") as f:
            f.write(AGAIN)
        for n in counts if args.restarts else ():
            results = contenders(args.build, torch, restarts=1)
            for _ in range(args.restarts):
                for c in results:
                    one_restart(c, n, f"{folder}/again.py", told)
            table(f"{n} ranks: from a rank's failure to the sum of all in the next attempt; ms",
                  results, "torchrun")
            ratio(results, " to be back")
        print(f"\n{counts[-1]} ranks that sleep: MiB of PSS, of all ranks together")
        found = {c.name: memory(c, counts[-1], script, told) for c in contenders(args.build, torch)}
        for name, mib in found.items():
            print(f"  {name:20} {mib:8.0f}   {mib / found['torchrun']:.2f} x torchrun")


if __name__ == "__main__":
    main()
