#!/usr/bin/env python3
"""resume.py STEPS [FILE]: a training loop that goes on where the last checkpoint was written

    ddprun -np 4 --max-restarts 10 --max-no-progress 3 python resume.py 10000

After a restart, of the job or of its ranks, and with any number of ranks: all that decides the next
step follows from the checkpoint. The ranks see FILE (default resume.pt) in a common file system.
"""
import os
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

if len(sys.argv) not in (2, 3) or not sys.argv[1].isdecimal():
    sys.exit("resume.py: expected the number of steps, and perhaps a file: resume.py STEPS [FILE]")
BATCH, EVERY = 64, 20  # samples of a step, of all ranks together; steps between two checkpoints
steps, place = int(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "resume.pt"

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(1)  # the first weights
model = DistributedDataParallel(
    torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1)))
optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
step = 0
if os.path.exists(place):
    saved = torch.load(place)
    model.module.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    step = saved["step"]
if rank == 0:
    print("ddprun.resumed", step, flush=True)  # with the line of each step: how many are done again


def save():
    with open(place + ".part", "wb") as file:
        state = {"step": step, "model": model.module.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(place + ".part", place)  # whatever crashes when: the old one is whole, or the new one
    print("ddprun.checkpoint", step, flush=True)  # progress, for --max-no-progress


while step < steps:
    torch.manual_seed(step)  # the step's data and random numbers, on whichever rank
    samples = torch.randn(BATCH, 16)[rank::size]
    errors = model(samples) - samples.sum(1, keepdim=True)
    loss = (errors**2).sum() * size / BATCH  # DDP takes the mean over the ranks
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    step += 1
    if rank == 0:
        print("ddprun.step", step, flush=True)
    if rank == 0 and (step % EVERY == 0 or step == steps):
        save()
dist.destroy_process_group()
