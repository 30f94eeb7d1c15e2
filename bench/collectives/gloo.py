"""bench/collectives/gloo.py - torch.distributed.all_reduce over Gloo, as contest.h does it

Arguments: the network namespaces' files of both ranks, or - -; all_reduce; how often to
measure; sizes. The interpreter imports torch once and forks both ranks.
"""
import ctypes
import os
import sys
import time

import torch
import torch.distributed as dist

CLONE_NEWNET = 0x40000000


def enter(netns):
    if netns == "-":
        return
    with open(netns) as f:
        if ctypes.CDLL(None, use_errno=True).setns(f.fileno(), CLONE_NEWNET) != 0:
            sys.exit(f"{netns}: {os.strerror(ctypes.get_errno())}")


def timed(x, times):
    dist.barrier()
    began = time.perf_counter()
    for _ in range(times):
        dist.all_reduce(x)
    return (time.perf_counter() - began) / times * 1e6


def play(rank, netns, blocks, sizes):
    enter(netns)
    cpus = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cpus[rank % len(cpus)]})
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    for nbytes in sizes:
        count = nbytes // 4
        step = torch.arange(count) % 7
        x = (step + rank + 1).float()
        dist.all_reduce(x)
        if not torch.equal(x, (step * 2 + 3).float()):
            sys.exit("the sum is wrong")
        x.zero_()
        times = 8 if nbytes < 2_000_000 else 2
        best = min(timed(x, times) for _ in range(blocks))
        if rank == 0:
            print(nbytes, best, flush=True)
    dist.destroy_process_group()


def main():
    both, task, blocks, sizes = sys.argv[1:3], sys.argv[3], sys.argv[4], sys.argv[5:]
    if task != "all_reduce":
        sys.exit(f"no such task: '{task}'")
    other = os.fork()
    rank = 0 if other else 1
    play(rank, both[rank], int(blocks), [int(s) for s in sizes])
    if other:
        sys.exit(os.waitpid(other, 0)[1] != 0)


main()
