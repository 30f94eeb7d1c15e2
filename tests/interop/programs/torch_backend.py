"""torch_backend.py collectives|training|dies|late|...: the backend "ddp" beside Gloo, in one job"""
import datetime
import os
import sys
import threading
import time

import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

import ddprun.torch  # noqa: F401
from ddprun.torch import ProcessGroup

torch.set_num_threads(1)
if "RANKS_OF_A_HOST" in os.environ:
    os.environ["DDP_HOST_ID"] = str(int(os.environ["RANK"]) // int(os.environ["RANKS_OF_A_HOST"]))
dist.init_process_group("ddp")
rank, size = dist.get_rank(), dist.get_world_size()
gloo = dist.new_group(backend="gloo")
assert isinstance(dist.group.WORLD, ProcessGroup) and dist.get_backend() == "ddp"

REDUCED = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64,
           torch.int8, torch.uint8]
MOVED = REDUCED + [torch.bool]
UNKNOWN_TO_GLOO = [torch.int16, torch.complex64, torch.float8_e5m2]
SHAPES = [(), (0,), (7, 3), (300, 1000)]
OPS = [ReduceOp.SUM, ReduceOp.PRODUCT, ReduceOp.MIN, ReduceOp.MAX]
BITS = [ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR]
compared = 0


def some(shape, dtype, of=rank):
    """Small integers, so that every sum and product is exact in every type."""
    made = torch.Generator().manual_seed(1000 * of + 7)
    values = torch.randint(0, 3, shape, generator=made)
    return values.bool() if dtype == torch.bool else values.to(dtype)


def strided(shape, dtype):
    """The same values; matrices in memory that is not contiguous."""
    return some(shape, dtype).t().contiguous().t() if len(shape) == 2 else some(shape, dtype)


def same(what, ours, theirs):
    global compared
    compared += 1
    for a, b in zip(ours, theirs, strict=True):
        assert a.dtype == b.dtype and torch.equal(a, b), f"rank {rank}: {what}: {a} and {b}"


def both(what, call, make):
    """call(tensors, group) in both groups; make() gives it fresh tensors each time."""
    results = []
    for group in (dist.group.WORLD, gloo):
        tensors = make()
        call(tensors, group)
        results.append(tensors)
    same(what, *results)


def reductions():
    for dtype in REDUCED:
        for op in OPS + (BITS if not dtype.is_floating_point else []):
            for make, shape in [(some, shape) for shape in SHAPES] + [(strided, (300, 1000))]:
                label = f"{op} of {shape} {dtype}"
                both("all_reduce " + label,
                     lambda t, g: dist.all_reduce(t[0], op, group=g), lambda: [make(shape, dtype)])
                results = []
                for group in (dist.group.WORLD, gloo):
                    tensor = make(shape, dtype)
                    dist.reduce(tensor, size - 1, op, group=group)
                    results.append([tensor] if rank == size - 1 else [])
                same("reduce " + label, *results)
        if dtype.is_floating_point:
            tensor = some((7, 3), dtype) * size
            dist.all_reduce(tensor, ReduceOp.AVG)
            same("average", [tensor], [sum(some((7, 3), dtype, r) for r in range(size))])
    shared = ddprun.torch.share(some((300, 1000), torch.float32))
    view = shared[7]
    dist.all_reduce(shared)
    total = sum(some((300, 1000), torch.float32, r) for r in range(size))
    same("a shared tensor", [shared, view], [total, total[7]])
    flags = some((9,), torch.bool)
    dist.all_reduce(flags)
    same("bool", [flags], [torch.stack([some((9,), torch.bool, r) for r in range(size)]).any(0)])


def scatters():
    for dtype in REDUCED:
        for op in OPS:
            both(f"reduce_scatter {dtype}", lambda t, g: dist.reduce_scatter(t[0], t[1:], op, group=g),
                 lambda: [torch.zeros(4, 5, dtype=dtype), *some((size, 4, 5), dtype).unbind()])
            both(f"reduce_scatter_tensor {dtype}",
                 lambda t, g: dist.reduce_scatter_tensor(t[0], t[1], op, group=g),
                 lambda: [torch.zeros(4, 5, dtype=dtype), some((size * 4, 5), dtype)])


def moves():
    for dtype in MOVED:
        for shape in SHAPES:
            label = f"{shape} {dtype}"
            for root in (0, size - 1):
                both("broadcast " + label, lambda t, g: dist.broadcast(t[0], root, group=g),
                     lambda: [strided(shape, dtype)])
                both("scatter " + label, lambda t, g: dist.scatter(
                        t[0], t[1:] if rank == root else None, root, group=g),
                     lambda: [torch.zeros(shape, dtype=dtype), *some((size, *shape), dtype).unbind()])
                both("gather " + label, lambda t, g: dist.gather(
                        t[0], t[1:] if rank == root else None, root, group=g),
                     lambda: [strided(shape, dtype), *torch.zeros((size, *shape), dtype=dtype).unbind()])
            both("all_gather " + label, lambda t, g: dist.all_gather(t[1:], t[0], group=g),
                 lambda: [strided(shape, dtype), *torch.zeros((size, *shape), dtype=dtype).unbind()])
            both("all_to_all " + label,
                 lambda t, g: dist.all_to_all(t[size:], t[:size], group=g),
                 lambda: [*some((size, *shape), dtype).unbind(),
                          *torch.zeros((size, *shape), dtype=dtype).unbind()])
        both(f"all_gather_into_tensor {dtype}",
             lambda t, g: dist.all_gather_into_tensor(t[0], t[1], group=g),
             lambda: [torch.zeros(size * 7, 3, dtype=dtype), strided((7, 3), dtype)])
        both(f"all_to_all_single {dtype}", lambda t, g: dist.all_to_all_single(t[0], t[1], group=g),
             lambda: [torch.zeros(size * 2, 3, dtype=dtype), some((size * 2, 3), dtype)])
        splits = [r + rank for r in range(size)]
        both(f"all_to_all_single in parts {dtype}",
             lambda t, g: dist.all_to_all_single(t[0], t[1], splits, splits, group=g),
             lambda: [torch.zeros(sum(splits), 3, dtype=dtype), some((sum(splits), 3), dtype)])
    sizes = [r + 1 for r in range(size)]  # Gloo wants equal ones
    parts = [torch.zeros(n) for n in sizes]
    dist.all_gather(parts, torch.full((sizes[rank],), float(rank)))
    same("all_gather of uneven parts", parts, [torch.full((n,), float(r)) for r, n in enumerate(sizes)])
    for dtype in UNKNOWN_TO_GLOO:
        parts = [torch.zeros(7, 3).to(dtype) for _ in range(size)]
        dist.all_gather(parts, some((7, 3), dtype))
        same(f"all_gather {dtype}", parts, [some((7, 3), dtype, r) for r in range(size)])


def objects():
    for group in (dist.group.WORLD, gloo):
        got = [None] * size
        dist.all_gather_object(got, {"rank": rank, "text": "x" * 100 * rank}, group=group)
        assert [g["rank"] for g in got] == list(range(size)), got
        box = [("from", rank)]
        dist.broadcast_object_list(box, 1, group=group)
        assert box == [("from", 1)], box


def messages():
    """Each rank sends to all others before any receives, short and long."""
    for n in (1, 100000):
        sent = [dist.isend(torch.full((n,), float(100 * rank + r)), r, tag=5) for r in range(size) if r != rank]
        others = [r for r in range(size) if r != rank]
        for r in others:
            got = torch.zeros(n)
            dist.recv(got, r, tag=5)
            assert got.eq(100 * r + rank).all()
        for work in sent:
            work.wait()
    if rank == 0:
        seen = set()
        for _ in range(size - 1):
            got = torch.zeros(3)
            source = dist.recv(got)
            assert got.eq(source).all(), (got, source)
            seen.add(source)
        assert seen == set(range(1, size)), seen
    else:
        dist.send(torch.full((3,), float(rank)), 0)
    dist.barrier()
    right, left = (rank + 1) % size, (rank - 1) % size
    got = torch.zeros(5)
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, torch.full((5,), float(rank)), right),
                                        dist.P2POp(dist.irecv, got, left)]):
        work.wait()
    assert got.eq(left).all()


def asynchronous():
    tensors = [torch.full((n,), float(rank + 1)) for n in (1, 5, 100000, 3)]
    works = [dist.all_reduce(t, async_op=True) for t in tensors]
    futures = [work.get_future() for work in works]
    for future, tensor in zip(reversed(futures), reversed(tensors)):
        assert future.wait()[0] is tensor or torch.equal(future.value()[0], tensor)
        assert tensor.eq(size * (size + 1) / 2).all()
    assert all(work.is_completed() and work.is_success() for work in works)
    chained = torch.ones(4)
    after = dist.all_reduce(chained, async_op=True).get_future().then(lambda f: f.value()[0] * 2)
    assert after.wait().eq(2 * size).all()
    # what a then() starts is waited for by the thread that would complete it
    start = time.monotonic()

    def second(_):
        while rank and time.monotonic() < start + 0.2:
            time.sleep(0.01)
        return dist.all_reduce(torch.ones(100000), async_op=True).get_future().wait()[0]
    first = dist.all_reduce(torch.ones(100000), async_op=True).get_future().then(second)
    assert first.wait().eq(size).all()
    # the message is sent although no rank waits for it: its sender is in the store
    store = dist.distributed_c10d._get_default_store()
    if rank == 0:
        work = dist.isend(torch.ones(1 << 20), 1)
        store.wait(["taken"], datetime.timedelta(seconds=100))
        work.wait()
    elif rank == 1:
        got = torch.zeros(1 << 20)
        dist.recv(got, 0)
        assert got.eq(1).all()
        store.set("taken", "yes")
    # not waited for, while others of the group go on
    first = dist.all_reduce(torch.ones(1000), async_op=True)
    dist.barrier()
    assert first.wait()


def coalesced():
    manager = dist.distributed_c10d._coalescing_manager
    tensors = [torch.full((n,), float(rank)) for n in (3, 1000, 1)]
    with manager():
        for tensor in tensors:
            dist.all_reduce(tensor)
    assert all(t.eq(sum(range(size))).all() for t in tensors)
    outs = [torch.zeros(size * 2), torch.zeros(size * 30)]
    with manager(async_ops=True) as cm:
        for out in outs:
            dist.all_gather_into_tensor(out, torch.full((out.numel() // size,), float(rank)))
    cm.wait()
    for out in outs:
        assert torch.equal(out, torch.arange(size).float().repeat_interleave(out.numel() // size))
    ins = [torch.arange(size * 2).float(), torch.arange(size * 30).float()]
    outs = [torch.zeros(2), torch.zeros(30)]
    with manager():
        for out, given in zip(outs, ins):
            dist.reduce_scatter_tensor(out, given)
    for out, given in zip(outs, ins):
        assert torch.equal(out, size * given.chunk(size)[rank])


def subgroups():
    for ranks in ([0], [0, 1], [1, size - 1] if size > 2 else [1], list(range(size))):
        group = dist.new_group(ranks, backend="ddp")
        if rank in ranks:
            tensor = torch.tensor([rank + 1])
            dist.all_reduce(tensor, group=group)
            assert tensor.item() == sum(ranks) + len(ranks), (ranks, tensor)
            dist.destroy_process_group(group)
        dist.barrier()
    group = dist.new_group([size - 1, 0], backend="ddp", sort_ranks=False)
    if rank in (0, size - 1):
        dist.monitored_barrier(group)
        for parts, members in ([[1, 0]], [0, size - 1]), ([[0], [1]], [rank]):
            part = dist.split_group(group, parts)
            assert dist.get_process_group_ranks(part) == members
            limit = part._get_backend(torch.device("cpu")).options._timeout  # pipelines ask for it
            assert limit == dist.default_pg_timeout, limit
            dist.all_reduce(tensor := torch.tensor([rank + 1]), group=part)
            assert tensor.item() == sum(members) + len(members), tensor
            dist.destroy_process_group(part)
        dist.destroy_process_group(group)
    dist.barrier()


def refused():
    for call, said in (
            (lambda: dist.all_reduce(torch.ones(2, dtype=torch.int16)), "int16"),
            (lambda: dist.all_reduce(torch.ones(2, device="meta")), "meta"),
            (lambda: dist.all_reduce(torch.ones(2), ReduceOp.BAND), "band"),
            (lambda: dist.all_to_all_single(torch.ones(size + 1), torch.ones(size + 1)), "split evenly"),
            (lambda: dist.all_reduce(torch.ones(1).expand(4)), "share memory"),
            (lambda: dist.all_gather([torch.ones(1).expand(4)] * size, torch.ones(4)), "share memory")):
        try:
            call()
        except (RuntimeError, TypeError, ValueError) as error:
            assert said in str(error), error
        else:
            raise AssertionError(f"'{said}' was accepted")
    # what had begun before the refusal goes on
    begun = torch.ones(2, 3).t()
    try:
        dist.group.WORLD.allreduce([begun, torch.ones(2, dtype=torch.int16)])
    except TypeError:
        pass
    await_thread(lambda: begun.eq(size).all())
    # nothing is written to the outputs of what was refused, not even later
    group = dist.group.WORLD
    for together in (False, True):
        kept, reduced = torch.zeros(2, 3, dtype=torch.int16).t(), torch.ones(2, 3).t()
        if together:
            group.start_coalescing()
        try:
            group.allreduce([kept])
        except TypeError:
            kept.fill_(5)
        if together:
            group.allreduce([reduced])
            assert group.end_coalescing().wait() and reduced.eq(size).all()
        await_thread(lambda: not group._group._pending)
        assert kept.eq(5).all(), kept
    dist.barrier()  # the group is whole


def await_thread(done):
    """The group's thread makes it true."""
    until = time.monotonic() + 60
    while not done():
        assert time.monotonic() < until, "no thread drives the group"
        time.sleep(0.01)


def changed():
    """A result that does not fit its tensor any more is an error of that call alone."""
    tensor = torch.ones(2, 3).t()
    work = dist.all_reduce(tensor, async_op=True)
    tensor.resize_(5)
    await_thread(lambda: work.done)
    try:
        work.wait()
    except RuntimeError as error:
        assert "size" in str(error), error
    else:
        raise AssertionError("a result of 6 elements was copied to 5")
    assert not work.is_success()
    future = dist.all_reduce(torch.ones(4), async_op=True).get_future()
    await_thread(future.done)
    assert future.value()[0].eq(size).all()


def views():
    """Views whose numbers are the negative of those in memory, which Gloo reads."""
    for n in (3, 30000):
        negative = [torch._neg_view(torch.full((n,), r + 1.0)) for r in range(size)]
        parts = torch.zeros(size, n)
        dist.all_gather_into_tensor(parts.view(-1), negative[rank])
        same("all_gather of a negative view", parts.unbind(), [v.clone() for v in negative])
        largest = torch._neg_view(torch.full((n,), rank + 1.0))
        dist.all_reduce(largest, ReduceOp.MAX)
        same("largest of negative views", [largest.clone()], [torch.full((n,), -1.0)])


def forks():
    """A child of a fork ends, also if another thread held the lock, and has no groups. It starts no
    thread: Python ends those at any line of theirs, which aborts the child or hangs it."""
    with dist.group.WORLD._group.lock:
        child = os.fork()
        if child == 0:
            try:
                dist.all_reduce(torch.ones(3))
            except dist.DistBackendError as error:
                if "this is a fork of rank" in str(error):
                    sys.exit(2 if [t for t in threading.enumerate() if t.name == "ddprun.torch"] else 0)
            sys.exit(1)
        until, ended = time.monotonic() + 60, 0
        while ended == 0:
            assert time.monotonic() < until, "the child of a fork hangs"
            ended, status = os.waitpid(child, os.WNOHANG)
            time.sleep(0.01)
    assert status == 0, status
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    assert tensor.eq(size).all()


def collectives():
    for part in (reductions, scatters, moves, objects, messages, asynchronous, coalesced, subgroups,
                 refused, changed, views, forks):
        part()
    if rank == 0:
        print(f"{compared} results are Gloo's", flush=True)


# ---- training ----

def model():
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(40, 300), torch.nn.ReLU(), torch.nn.Linear(300, 300),
                               torch.nn.ReLU(), torch.nn.Linear(300, 300), torch.nn.Linear(300, 10))


class Words(torch.nn.Module):
    """The gradients of its table are sparse."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.table = torch.nn.EmbeddingBag(50, 10, sparse=True)

    def forward(self, x):
        return self.table((x.abs() * 20).long().clamp(max=49))


def losses(net):
    optimiser = torch.optim.SGD(net.parameters(), lr=0.1)
    made = torch.Generator().manual_seed(rank)
    x, y = torch.randn(16, 40, generator=made), torch.randint(0, 10, (16,), generator=made)
    found = []
    for _ in range(12):
        optimiser.zero_grad()
        loss = torch.nn.functional.cross_entropy(net(x), y)
        loss.backward()
        optimiser.step()
        dist.all_reduce(shared := loss.detach().clone(), group=gloo)
        found.append(shared.item() / size)
    return found


def close(what, ours, theirs):
    assert ours[-1] < ours[0] and all(abs(a - b) < 1e-5 for a, b in zip(ours, theirs)), (what, ours, theirs)
    if rank == 0:
        print(f"{what}: Gloo's losses, {ours[0]:.4f} to {ours[-1]:.4f}", flush=True)


def two_stages(_, bucket):
    """As PowerSGD's hook, it starts a second collective when the first has ended."""
    one, two = bucket.buffer().div_(size).tensor_split([1000])

    def second(_):
        dist.all_reduce(two, async_op=True).get_future().wait()
        return bucket.buffer()
    time.sleep(0.003 * rank)
    return dist.all_reduce(one, async_op=True).get_future().then(second)


def training():
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
    from torch.nn.parallel import DistributedDataParallel
    for options in ({}, {"bucket_cap_mb": 0.2}, {"gradient_as_bucket_view": True}, {"static_graph": True}):
        close(f"DDP {options}", *(losses(DistributedDataParallel(model(), process_group=g, **options))
                                  for g in (dist.group.WORLD, gloo)))
    close("DDP of sparse gradients", *(losses(DistributedDataParallel(Words(), process_group=g))
                                       for g in (dist.group.WORLD, gloo)))
    stages = DistributedDataParallel(model(), bucket_cap_mb=0.2)
    stages.register_comm_hook(None, two_stages)
    close("a hook of two stages", losses(stages),
          losses(DistributedDataParallel(model(), process_group=gloo)))
    assert not dist.group.WORLD._group.local or dist.group.WORLD._group.arena._moved, "no bucket is in the arena"
    cpu = torch.device("cpu")
    close("FSDP", *(losses(FullyShardedDataParallel(model(), process_group=g, device_id=cpu))
                    for g in (dist.group.WORLD, gloo)))

    def sharded(group):
        net = model()
        fully_shard(net, mesh=DeviceMesh.from_group(group, "cpu"))
        return net
    close("fully_shard", *(losses(sharded(g)) for g in (dist.group.WORLD, gloo)))


def dies():
    """The last rank ends without a word; the others say who it was."""
    dist.barrier()
    if rank == size - 1:
        os._exit(0)
    try:
        dist.all_reduce(torch.ones(10))
    except dist.DistBackendError as error:
        print(f"rank {rank}: {error}", flush=True)
        os._exit(0)
    raise AssertionError("no error")


def backward():
    """The last rank ends while the others are in backward, which then raises."""
    from torch.nn.parallel import DistributedDataParallel
    net = DistributedDataParallel(model(), bucket_cap_mb=0.01)  # it ends with its last reference
    output = net(torch.ones(4, 40))
    if rank == size - 1:
        time.sleep(1)
        os._exit(0)
    try:
        output.sum().backward()
    except RuntimeError as error:
        print(f"rank {rank}: {error}", flush=True)
        os._exit(0)
    raise AssertionError("no error")


def compiled():
    """torch.compile() compiles the model, and no code of the backend."""
    from torch.nn.parallel import DistributedDataParallel
    close("a compiled DDP", *(losses(torch.compile(DistributedDataParallel(model(), process_group=g),
                                                   backend="eager")) for g in (dist.group.WORLD, gloo)))


def again():
    """No rank meets under the name that the group before had in the same store."""
    for _ in range(30):
        dist.destroy_process_group()
        dist.init_process_group("ddp", timeout=datetime.timedelta(seconds=60))
        tensor = torch.ones(3)
        dist.all_reduce(tensor)
        assert tensor.eq(size).all()
    print(f"rank {rank}: 30 groups", flush=True)


def late():
    """One rank does not come: the error names it, at the group's deadline."""
    group = dist.new_group(backend="ddp", timeout=datetime.timedelta(seconds=10))
    store = dist.distributed_c10d._get_default_store()
    if rank == size - 1:
        store.wait(["late"] if size < 2 else [f"late{r}" for r in range(size - 1)],
                   datetime.timedelta(seconds=200))
        return
    try:
        dist.all_reduce(torch.ones(10), group=group)
    except dist.DistBackendError as error:
        print(f"rank {rank}: {error}", flush=True)
        store.set(f"late{rank}", "x")
        return
    raise AssertionError("no error")


def tardy():
    """The last rank comes to a new group when the others have given up."""
    store, soon = dist.distributed_c10d._get_default_store(), datetime.timedelta(seconds=2)
    if rank == size - 1:
        store.wait([f"up{r}" for r in range(size - 1)])
    try:
        dist.new_group(backend="ddp", timeout=soon)
    except dist.DistBackendError as error:
        print(f"rank {rank}: {error}", flush=True)
    store.set(f"up{rank}", "x")
    store.wait([f"up{r}" for r in range(size)])
    os._exit(0)


def absent():
    """Rank 0 does not come to a barrier, or to a new group: an error at the call's own deadline."""
    group, other, third, fourth = (dist.new_group(backend="ddp") for _ in "1234")
    soon, at_once = datetime.timedelta(seconds=2), datetime.timedelta(0)
    store = dist.distributed_c10d._get_default_store()
    others = [f"told{r}" for r in range(1, size)]
    if rank == 0:
        store.wait(others)
    for call in (lambda: dist.all_reduce(torch.ones(3), group=other, async_op=True).wait(soon),
                 lambda: dist.monitored_barrier(group, soon),
                 lambda: dist.barrier(third, timeout=soon),
                 lambda: dist.monitored_barrier(fourth, at_once),
                 lambda: dist.new_group(backend="ddp", timeout=soon)) if rank else ():
        try:
            call()
        except dist.DistBackendError as error:
            print(f"rank {rank}: {error}", flush=True)
    store.set(f"told{rank}", "x")
    store.wait(others)
    os._exit(0)


def hang_sum():
    """Of a group whose ranks are not numbered as in the job."""
    half = dist.new_group([0, 2])
    if rank == 2:
        time.sleep(600)
    dist.all_reduce(torch.ones(4), group=half)


def hang_all():
    """Of a second group of all ranks."""
    every = dist.new_group(list(range(size)))
    if rank != 2:
        dist.all_reduce(torch.ones(4), group=every)
    time.sleep(600)


def hang_recv():
    dist.recv(torch.ones(4), (rank + 1) % size, tag=3)



{"collectives": collectives, "training": training, "dies": dies, "late": late,
 "absent": absent, "tardy": tardy,
 "backward": backward, "compiled": compiled, "again": again, "hang_sum": hang_sum, "hang_all": hang_all,
 "hang_recv": hang_recv}[sys.argv[1]]()
dist.destroy_process_group()
