"""slow_steps.py MINUTES: healthy steps of 0.2 to 6 s that differ among ranks and end in an all_reduce. Under
--hang-after 15s --stragglers neither may report anything. Rank 0 prints how many there were."""
import random
import sys
import time

import torch
import torch.distributed as dist

torch.set_num_threads(1)
dist.init_process_group("gloo")
end = time.time() + 60 * float(sys.argv[1])
length, own = random.Random(7), random.Random(dist.get_rank())
steps, over = 0, torch.zeros(1)
while over.item() == 0:
    time.sleep(length.uniform(0.3, 6) * own.uniform(0.7, 1))
    x = torch.randn(200, 200)
    for _ in range(own.randrange(20)):
        x = torch.tanh(x @ x)
    over[0] = time.time() > end
    dist.all_reduce(over)
    steps += 1
if dist.get_rank() == 0:
    print(steps, "steps", flush=True)
dist.destroy_process_group()
