"""An ordinary PyTorch program: every check computes something whose outcome it knows.

    python check.py {env|tcp} CHECK...

Rank, size and the address of the store come from the environment, as under any launcher.
Each rank prints one line per check that held, and ends with a traceback at the first that
did not. The same file runs with PyTorch 1.13 and 2.x.
"""
import datetime
import os
import sys

import torch
import torch.distributed as dist

RANK = int(os.environ["RANK"])
SIZE = int(os.environ["WORLD_SIZE"])
TORCH = tuple(int("".join(filter(str.isdigit, n)) or 0)
              for n in torch.__version__.split("+")[0].split(".")[:2])
TIMEOUT = datetime.timedelta(seconds=90)


def same(got, want):
    if isinstance(got, torch.Tensor):
        want = torch.as_tensor(want)
        assert got.shape == want.shape, (got, want)
        assert torch.allclose(got.float(), want.float(), atol=1e-5), (got, want)
    else:
        assert got == want, (got, want)


def raises(kind, function, *args, **named):
    try:
        function(*args, **named)
    except kind:
        return
    raise AssertionError(f"{function} did not raise {kind}")


def mine(*numbers):
    """A tensor that differs from rank to rank."""
    return torch.tensor([float(n) + RANK for n in numbers])


def check_collectives():
    total = SIZE * (SIZE - 1) / 2
    t = mine(0, 10)
    dist.all_reduce(t)
    same(t, [total, 10 * SIZE + total])
    t = mine(1)
    dist.all_reduce(t, op=dist.ReduceOp.PRODUCT)
    product = 1.0
    for r in range(SIZE):
        product *= 1 + r
    same(t, [product])
    t = mine(5)
    dist.all_reduce(t, op=dist.ReduceOp.MAX)
    same(t, [5.0 + SIZE - 1])
    t = mine(5)
    dist.all_reduce(t, op=dist.ReduceOp.MIN)
    same(t, [5.0])
    t = torch.full((3,), RANK + 1, dtype=torch.int64)
    dist.all_reduce(t, async_op=True).wait()
    same(t, [int(total) + SIZE] * 3)

    last = SIZE - 1
    t = mine(7) if RANK == last else torch.zeros(1)
    dist.broadcast(t, src=last)
    same(t, [7.0 + last])
    t = mine(1)
    dist.reduce(t, dst=0)
    if RANK == 0:
        same(t, [total + SIZE])
    parts = [torch.zeros(2) for _ in range(SIZE)]
    dist.all_gather(parts, mine(0, 100))
    same(torch.stack(parts), [[r, 100.0 + r] for r in range(SIZE)])
    parts = [torch.zeros(1) for _ in range(SIZE)] if RANK == last else None
    dist.gather(mine(3), parts, dst=last)
    if RANK == last:
        same(torch.cat(parts), [3.0 + r for r in range(SIZE)])
    t = torch.zeros(1)
    dist.scatter(t, [torch.tensor([9.0 + r]) for r in range(SIZE)] if RANK == 0 else None)
    same(t, [9.0 + RANK])
    t = torch.zeros(SIZE)
    dist.all_to_all_single(t, torch.tensor([100.0 * RANK + r for r in range(SIZE)]))
    same(t, [100.0 * r + RANK for r in range(SIZE)])
    if TORCH >= (2, 1):
        t = torch.zeros(SIZE)
        dist.all_gather_into_tensor(t, mine(4))
        same(t, [4.0 + r for r in range(SIZE)])
        t = torch.zeros(1)
        dist.reduce_scatter_tensor(t, torch.arange(float(SIZE)) + RANK)
        same(t, [SIZE * RANK + total])


def check_point_to_point():
    if SIZE == 1:
        return
    right, left = (RANK + 1) % SIZE, (RANK - 1) % SIZE
    t = torch.zeros(1)
    if RANK % 2 == 0:
        dist.send(mine(1), right)
        dist.recv(t, left)
    else:
        dist.recv(t, left)
        dist.send(mine(1), right)
    same(t, [1.0 + left])
    requests = [dist.isend(mine(2), right, tag=4), dist.irecv(t, left, tag=4)]
    for request in requests:
        request.wait()
    same(t, [2.0 + left])


def check_objects():
    gathered = [None] * SIZE
    dist.all_gather_object(gathered, {"rank": RANK, "name": "x" * RANK})
    same(gathered, [{"rank": r, "name": "x" * r} for r in range(SIZE)])
    box = [("from", 0), None] if RANK == 0 else [None, None]
    dist.broadcast_object_list(box, src=0)
    same(box, [("from", 0), None])
    box = [None]
    dist.scatter_object_list(box, [f"part {r}" for r in range(SIZE)] if RANK == 0 else
                             [None] * SIZE)
    same(box, [f"part {RANK}"])
    box = [None] * SIZE if RANK == 0 else None
    dist.gather_object((RANK, b"\0\xff"), box, dst=0)
    if RANK == 0:
        same(box, [(r, b"\0\xff") for r in range(SIZE)])


def check_barriers():
    dist.barrier()
    dist.monitored_barrier(timeout=TIMEOUT)
    if SIZE > 1 and TORCH >= (2, 0):  # the missing rank is named
        group = dist.new_group(timeout=TIMEOUT)
        if RANK == 0:
            try:
                dist.monitored_barrier(group, datetime.timedelta(seconds=0.4), True)
            except RuntimeError as e:
                assert "1" in str(e) and "failed" in str(e), e
            else:
                raise AssertionError("monitored_barrier passed without rank 1")
        dist.barrier()


def check_groups():
    members = list(range(0, SIZE, 2))
    group = dist.new_group(members)
    if RANK in members:
        t = mine(1)
        dist.all_reduce(t, group=group)
        same(t, [sum(1.0 + r for r in members)])
    singles = [dist.new_group([r]) for r in range(SIZE)]
    t = mine(6)
    dist.all_reduce(t, group=singles[RANK])
    same(t, [6.0 + RANK])
    dist.barrier()


def check_store():
    """The store that the process group has made, used directly."""
    store = dist.distributed_c10d._get_default_store()
    store.set(f"who{RANK}", f"rank {RANK}")
    for r in range(SIZE):
        same(store.get(f"who{r}"), f"rank {r}".encode())
    store.add("count", RANK + 1)
    store.wait(["count"], TIMEOUT)
    dist.barrier()
    same(int(store.get("count")), SIZE * (SIZE + 1) // 2)
    same(store.compare_set(f"cas{RANK}", "", "new"), b"new")
    same(store.compare_set(f"cas{RANK}", "old", "newer"), b"new")
    raises(RuntimeError, store.wait, ["never"], datetime.timedelta(milliseconds=200))
    if TORCH >= (2, 5):  # older clients are out of step after a timeout
        same(store.check([f"who{RANK}", "never"]), False)
        store.append(f"log{RANK}", "a")
        store.append(f"log{RANK}", "b")
        store.multi_set([f"m{RANK}", f"n{RANK}"], ["1", "22"])
        same(store.multi_get([f"n{RANK}", f"log{RANK}", f"m{RANK}"]), [b"22", b"ab", b"1"])
        same(store.delete_key(f"m{RANK}"), True)
        same(store.delete_key(f"m{RANK}"), False)
    dist.barrier()


def train(model, optimizer, steps=4):
    """Every rank has its own half of the data; returns the loss on all of it."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(8 * SIZE, 4, generator=generator)
    y = x @ torch.tensor([[1.0], [-2.0], [3.0], [0.5]])
    own = slice(8 * RANK, 8 * RANK + 8)
    for _ in range(steps):
        optimizer.zero_grad()
        ((model(x[own]) - y[own]) ** 2).mean().backward()
        optimizer.step()
    return x, y


def net():
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.ReLU(),
                               torch.nn.Linear(16, 1))


def reference():
    """The same training on all the data in one process."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(8 * SIZE, 4, generator=generator)
    y = x @ torch.tensor([[1.0], [-2.0], [3.0], [0.5]])
    for _ in range(4):
        optimizer.zero_grad()
        ((model(x) - y) ** 2).mean().backward()
        optimizer.step()
    return model


def check_ddp():
    from torch.nn.parallel import DistributedDataParallel
    model = DistributedDataParallel(net())
    train(model, torch.optim.SGD(model.parameters(), lr=0.05))
    for got, want in zip(model.parameters(), reference().parameters()):
        same(got.detach(), want.detach())


def shared_dir():
    """A directory that all ranks of this job see, whichever host they are on."""
    box = [None]
    if RANK == 0:
        import tempfile
        box = [tempfile.mkdtemp(dir=os.environ.get("CHECK_DIR"))]
    dist.broadcast_object_list(box, src=0)
    return box[0]


def check_saving():
    """What programs do without the checkpoint package: rank 0 writes, all read."""
    where = os.path.join(shared_dir(), "model.pt")
    model = reference()
    if RANK == 0:
        torch.save(model.state_dict(), where)
    dist.barrier()
    other = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.ReLU(),
                                torch.nn.Linear(16, 1))
    other.load_state_dict(torch.load(where))
    for got, want in zip(other.parameters(), model.parameters()):
        same(got.detach(), want.detach())
    dist.barrier()


def check_fsdp():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    model = net()
    mesh = init_device_mesh("cpu", (SIZE,))
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    train(model, torch.optim.SGD(model.parameters(), lr=0.05))
    for got, want in zip(model.parameters(), reference().parameters()):
        assert got.to_local().numel() <= -(-want.shape[0] // SIZE) * want[0].numel()
        same(got.full_tensor().detach(), want.detach())
    return model


def check_checkpoint():
    import torch.distributed.checkpoint as dcp
    where = shared_dir()
    model = check_fsdp()
    want = [p.full_tensor().detach() for p in model.parameters()]
    dcp.save(model.state_dict(), checkpoint_id=where)
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
    state = model.state_dict()
    dcp.load(state, checkpoint_id=where)
    model.load_state_dict(state)
    for got, value in zip(model.parameters(), want):
        same(got.full_tensor().detach(), value)


def double(x, by):
    return 2 * x + by


def check_rpc():
    import torch.distributed.rpc as rpc
    rpc.init_rpc(f"worker{RANK}", rank=RANK, world_size=SIZE)
    peer = f"worker{(RANK + 1) % SIZE}"
    same(rpc.rpc_sync(peer, double, args=(torch.ones(2), RANK)), [2.0 + RANK] * 2)
    same(rpc.rpc_async(peer, double, args=(3, 4)).wait(), 10)
    remote = rpc.remote(peer, double, args=(torch.ones(1), 1))
    same(remote.to_here(), [3.0])
    rpc.shutdown()


def main():
    how, *names = sys.argv[1:]
    if how == "tcp":
        where = f"tcp://{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        dist.init_process_group("gloo", init_method=where, rank=RANK, world_size=SIZE,
                                timeout=TIMEOUT)
    else:
        dist.init_process_group("gloo", timeout=TIMEOUT)
    same((dist.get_rank(), dist.get_world_size()), (RANK, SIZE))
    for name in names:
        globals()["check_" + name]()
        sys.stdout.write(f"held: {name} on rank {RANK}\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
