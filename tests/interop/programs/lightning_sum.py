"""Lightning's Fabric takes the job from the environment."""
import os

import torch
from lightning.fabric import Fabric

fabric = Fabric(accelerator="cpu", devices=int(os.environ["LOCAL_WORLD_SIZE"]), strategy="ddp")
fabric.launch()
total = fabric.all_reduce(torch.ones(1) * (fabric.global_rank + 1), reduce_op="sum").item()
print(f"held: rank {fabric.global_rank} of {fabric.world_size} sum {total:.0f}", flush=True)
