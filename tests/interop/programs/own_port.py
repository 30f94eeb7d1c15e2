"""Ranks of a launcher, at a port of the program's own: own_port.py [PORT]; then at the launcher's. Without PORT
a shell has put it into MASTER_PORT, and GIVEN_PORT is the launcher's."""
import os
import sys

import torch
import torch.distributed as dist


def add(**how):
    dist.init_process_group("gloo", **how)
    total = torch.ones(1)
    dist.all_reduce(total)
    good = total.item() == dist.get_world_size()
    dist.destroy_process_group()
    return good


rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
given = os.environ.get("GIVEN_PORT", os.environ["MASTER_PORT"])
if sys.argv[1:]:
    os.environ["MASTER_PORT"] = sys.argv[1]
here = add(rank=rank, world_size=size)
os.environ["MASTER_PORT"] = given
if here and add():
    print(f"held: sum on rank {rank}\n", end="", flush=True)
