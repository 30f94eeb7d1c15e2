import torch
from accelerate import Accelerator

accelerator = Accelerator(cpu=True)
rank = accelerator.process_index
total = accelerator.reduce(torch.ones(1) * (rank + 1), "sum").item()
print(f"held: rank {rank} of {accelerator.num_processes} sum {total:.0f}", flush=True)
