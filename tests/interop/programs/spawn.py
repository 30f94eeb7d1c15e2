"""Processes of its own, and an address of its own, as PyTorch's tutorial has them: spawn.py PORT"""
import os
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def train(rank, size):
    os.environ["MASTER_ADDR"] = "localhost"
    os.environ["MASTER_PORT"] = sys.argv[1]
    dist.init_process_group("gloo", rank=rank, world_size=size)
    total = torch.ones(1)
    dist.all_reduce(total)
    if total.item() == size:
        print(f"held: sum on rank {rank}\n", end="", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(train, args=(2,), nprocs=2)
