"""mismatch.py FAULT: three ranks that do not agree on what comes next, and wait for ever."""
import os
import sys
import time

import torch
import torch.distributed as dist


def main():
    fault = sys.argv[1]
    if fault == "start" and os.environ["RANK"] == "1":
        time.sleep(600)
    dist.init_process_group("gloo")
    rank, x = dist.get_rank(), torch.ones(1000)
    left, right = (dist.new_group([0, 1], group_desc=name) for name in ("left", "right"))
    for _ in range(3):
        dist.all_reduce(x)
    if fault == "operation":
        dist.all_gather([x] * 3, x) if rank == 1 else dist.barrier()
    elif fault == "skip":
        if rank != 1:
            dist.all_reduce(x)
        dist.barrier()
    elif fault == "cycle" and rank < 2:
        for group in (left, right) if rank else (right, left):
            dist.all_reduce(x, group=group)
    elif fault == "order":
        for ranks in ([1, 2], [0, 1]) if rank == 1 else ([0, 1], [1, 2]):
            dist.new_group(ranks)
    elif fault == "message":
        if rank == 0:
            dist.recv(x, 1)
        if rank == 1:
            time.sleep(600)
    elif fault == "root":
        if rank == 1:
            time.sleep(600)
        dist.broadcast(x, 0)
    dist.barrier()


main()
