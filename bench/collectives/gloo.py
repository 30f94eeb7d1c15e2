"""bench/collectives/gloo.py - torch.distributed.all_reduce over Gloo, as contest.h does it"""
import os
import sys
import time

import torch
import torch.distributed as dist


def timed(x, times):
    dist.barrier()
    began = time.perf_counter()
    for _ in range(times):
        dist.all_reduce(x)
    return (time.perf_counter() - began) / times * 1e6


def main():
    rank = int(os.environ["RANK"])
    cpus = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cpus[rank % len(cpus)]})
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    size = dist.get_world_size()
    for text in sys.argv[1:]:
        count = int(text) // 4
        step = torch.arange(count) % 7
        x = (step + rank + 1).float()
        dist.all_reduce(x)
        if not torch.equal(x, (step * size + size * (size + 1) // 2).float()):
            sys.exit("the sum is wrong")
        x.zero_()
        times = 8 if int(text) < 2_000_000 else 2
        best = min(timed(x, times) for _ in range(12))
        if rank == 0:
            print(text, best, flush=True)
    dist.destroy_process_group()


main()
