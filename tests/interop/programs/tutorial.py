"""tutorial.py NAME...: the programs examples/NAME.c, in PyTorch over Gloo; the same lines"""
import os
import sys

import torch
import torch.distributed as dist

COUNT = 1 << 20


def point_to_point(rank, size):
    token = torch.tensor([1], dtype=torch.int32)
    if rank > 0:
        dist.recv(token, rank - 1)
        token += 1
    dist.send(token, (rank + 1) % size)
    if rank == 0:
        dist.recv(token, size - 1)
        print(f"the token has been with {token.item()} of {size} ranks")


def groups(rank, size):
    halves = [dist.new_group(list(range(k, size, 2))) for k in range(2)]
    sums = torch.tensor([rank, 1], dtype=torch.int32)
    dist.all_reduce(sums, group=halves[rank % 2])
    table = [torch.empty(2, dtype=torch.int32) for _ in range(size)] if rank == 0 else None
    dist.gather(sums, table, 0)
    for r, (total, n) in enumerate(table or []):
        print(f"rank {r}: the {'odd' if r % 2 else 'even'} ranks are {n} and add up to "
              f"{total}")


def scatter_gather(rank, size):
    # PyTorch's own scatter and gather want equal blocks: messages, then
    counts = [10 // size + (r < 10 % size) for r in range(size)]
    numbers = torch.arange(1, 11, dtype=torch.float64)
    parts = list(numbers.split(counts))
    mine = torch.empty(counts[rank], dtype=torch.float64)
    if rank == 0:
        for r in range(1, size):
            dist.send(parts[r], r)
        mine = parts[0].clone()
    else:
        dist.recv(mine, 0)
    mine *= mine
    total = mine.sum().reshape(1)
    if rank == 0:
        parts[0] = mine
        for r in range(1, size):
            dist.recv(parts[r], r)
    else:
        dist.send(mine, 0)
    dist.reduce(total, 0)
    if rank == 0:
        print("squares: " + " ".join(f"{x:g}" for x in torch.cat(parts).tolist()))
        print(f"their sum: {total.item():g}")


def sgd(rank, size):
    seed, points = 42, []
    for _ in range(64):
        pair = []
        for _ in range(2):
            seed = (seed * 1664525 + 1013904223) % 2**32
            pair.append((seed >> 8) / (1 << 24))
        x = pair[0] * 2 - 1
        points.append((x, 3 * x - 2 + (pair[1] - 0.5) * 0.1))
    data = torch.tensor(points, dtype=torch.float64)
    model = torch.nn.Linear(1, 1, dtype=torch.float64)
    torch.nn.init.zeros_(model.weight)
    torch.nn.init.zeros_(model.bias)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.3)
    share = 16 // size
    for epoch in range(20):
        total = 0.0
        for at in range(0, 64, 16):
            mine = data[at + rank * share:at + (rank + 1) * share]
            optimiser.zero_grad()
            loss = torch.nn.functional.mse_loss(model(mine[:, :1]), mine[:, 1:])
            loss.backward()
            for x in [p.grad for p in model.parameters()] + [loss.detach_()]:
                dist.all_reduce(x)
                x /= size
            optimiser.step()
            total += loss.item() * 16 / 64
        if rank == 0 and epoch % 5 == 4:
            print(f"epoch {epoch + 1}: loss {total:.6f}, w {model.weight.item():.6f}, "
                  f"b {model.bias.item():.6f}")


def ring_allreduce(rank, size):
    x = (rank + torch.arange(COUNT) % 10).float()
    come = torch.empty(COUNT // size + 1)
    bounds = [i * COUNT // size for i in range(size + 1)]
    for step in range(2 * (size - 1)):
        out, inn = (rank - step) % size, (rank - step - 1) % size
        sent = dist.isend(x[bounds[out]:bounds[out + 1]].clone(), (rank + 1) % size)
        part = x[bounds[inn]:bounds[inn + 1]]
        got = come[:part.numel()]
        dist.recv(got, (rank - 1) % size)
        sent.wait()
        part.copy_(part + got if step < size - 1 else got)
    if rank == 0:
        print(f"{size} ranks agree on {COUNT} sums; the last is {x[-1].item():g}")


dist.init_process_group("gloo")
for name in sys.argv[1:]:
    globals()[name](int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
sys.stdout.flush()
dist.destroy_process_group()
