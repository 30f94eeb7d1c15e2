"""Horovod, INITS times: every rank finds the others, and sums over all and over some of them."""
import os

import horovod.torch as hvd
import torch

for i in range(int(os.environ.get("INITS", "1"))):
    hvd.init()
    total = hvd.allreduce(torch.ones(2) * (hvd.rank() + 1), op=hvd.Sum, name=f"s{i}")[0].item()
    local = f"{hvd.local_rank()} of {hvd.local_size()}, {hvd.cross_rank()} of {hvd.cross_size()}"
    print(f"held {i}: rank {hvd.rank()} of {hvd.size()} ({local}) sum {total:.0f}", flush=True)
    hvd.shutdown()
