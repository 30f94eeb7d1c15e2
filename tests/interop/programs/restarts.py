"""A job whose rank 1 fails twice, in the middle of its work, and is started again."""
import os
import sys

import torch
import torch.distributed as dist

ATTEMPT = int(os.environ["TORCHELASTIC_RESTART_COUNT"])

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
t = torch.tensor([float(rank)])
dist.all_reduce(t)
assert t.item() == size * (size - 1) / 2, t
if ATTEMPT < 2 and rank == 1:
    sys.exit(3 + ATTEMPT)
dist.barrier()  # the others learn it here
print(f"held: attempt {ATTEMPT} on rank {rank}", flush=True)
dist.destroy_process_group()
