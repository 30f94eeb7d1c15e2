"""One program, two worlds: MPI's, joined first, and PyTorch's over the same ranks."""

import os

from mpi4py import MPI
import torch
import torch.distributed as dist

world = MPI.COMM_WORLD
assert (world.rank, world.size) == (int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
dist.init_process_group("gloo")
for turn in range(3):
    ours = torch.full((1000,), float(dist.get_rank() + turn))
    dist.all_reduce(ours)
    theirs = world.allreduce(world.rank + turn)
    assert ours[0].item() == ours[-1].item() == theirs, (ours[0], theirs)
    assert world.bcast(turn, root=world.size - 1) == turn
dist.barrier()
world.Barrier()
dist.destroy_process_group()
print(f"rank {world.rank} of {world.size} in both", flush=True)
