"""late.py STEPS STEP_MS LATE_MS [RANK]: steps of DistributedDataParallel over gloo, of a sleep, a
forward and a backward pass; one rank (2) sleeps LATE_MS longer in each. Rank 0 prints the steps."""
import sys
import time

import torch
import torch._dynamo  # the optimizer would, in each rank: a second and a half of CPU time
import torch.distributed as dist

steps, step_ms, late_ms = int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
late = int(sys.argv[4]) if len(sys.argv) > 4 else 2
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
layers = [torch.nn.Linear(300, 300) for _ in range(4)]
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=0.5)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(1, steps + 1):
    time.sleep((step_ms + late_ms * (rank == late)) / 1000)
    optimizer.zero_grad()
    model(torch.randn(4, 300)).sum().backward()
    optimizer.step()
    if rank == 0:
        print("step", step, flush=True)
dist.destroy_process_group()
