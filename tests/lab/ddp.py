"""A PyTorch program as people write it: nothing in it knows of ddprun."""
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())  # DDP itself makes the replicas alike
torch.set_num_threads(1)
model = DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
truth = torch.arange(8.0).unsqueeze(1)
for step in range(60):
    x = torch.randn(32, 8)
    loss = (model(x) - x @ truth).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
weights = model.module.weight.detach()
largest, smallest = weights.clone(), weights.clone()
dist.all_reduce(largest, dist.ReduceOp.MAX)
dist.all_reduce(smallest, dist.ReduceOp.MIN)
assert torch.equal(largest, smallest), "replicas differ"
assert loss < 0.5, loss
if dist.get_rank() == 0:
    print(f"trained with {dist.get_world_size()} ranks, loss {loss.item():.4f}")
