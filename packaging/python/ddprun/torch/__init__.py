"""ddprun.torch - libddpgroup as a backend of torch.distributed

    import ddprun.torch
    torch.distributed.init_process_group("ddp")

DistributedDataParallel, FSDP and every collective on CPU tensors then use shared memory
between the ranks of a host and TCP between hosts, under any launcher that PyTorch can be
started by (doc/torch.md).

An operation starts in the call. A wait() makes progress with all operations; a thread does it
while no call waits, and for futures (progress.py).

Ranks of a host reduce tensors in place that lie in the arena, the memory that they share. The
buckets of DistributedDataParallel are moved there, as only its reducer refers to them. Other
tensors are copied there and back; share(tensor) moves one (arena.py).
"""
import atexit
import ctypes as c
import os
import sys
import weakref
from types import SimpleNamespace

import torch

if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 14):
    raise ImportError(f"ddprun.torch needs PyTorch 2.14 or newer, this is {torch.__version__}")

import torch.distributed as dist
from torch._C._distributed_c10d import Backend as _Backend, _create_work_from_future

from .library import array, code_of, flat_of, joined, reduction, sizes
from .progress import Group
from .work import BACKWARD, Work


class _Registered(_Backend):
    """What PyTorch finds when it asks a group for the backend of a device."""

    def getBackendName(self):
        return "ddp"

    name = getBackendName
    # PyTorch 2.15 asks for these without end where a class in Python does not have them
    supports_coalescing = supports_shrinking = False
    supports_splitting, options = True, None  # options: until __init__() sets them
    supports_reconfigure = supports_window = _supports_time_estimate = False

    def __init__(self, rank, size, timeout):
        super().__init__(rank, size)
        self.options = _Backend.Options("ddp", timeout)


class ProcessGroup(dist.ProcessGroup):
    def __init__(self, options):
        rank, size = options.group_rank, options.group_size
        super().__init__(options.store, rank, size)
        self._group = Group(options)
        self._together = None
        self._set_default_backend(dist.ProcessGroup.BackendType.CUSTOM)
        self._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.CUSTOM,
                               _Registered(rank, size, options.timeout))
        _groups.add(self)

    def getBackendName(self):
        return "ddp"

    name = getBackendName

    def set_timeout(self, timeout):
        self._group.set_timeout(timeout)

    def split_group(self, new_ranks, timeout, opts=None, group_name=None, group_desc=None,
                    device_types=None):
        if self.rank() not in new_ranks:
            return None
        child = ProcessGroup(SimpleNamespace(
            store=dist.PrefixStore(group_name, self.get_group_store()), timeout=timeout,
            group_rank=new_ranks.index(self.rank()), group_size=len(new_ranks),
            global_ranks_in_group=[self._group.members[r] for r in new_ranks]))
        child._set_group_name(group_name)
        child._set_group_desc(group_desc or "undefined")  # PyTorch's own word for none
        return child

    def shutdown(self):
        self._group.close()
        _groups.discard(self)

    abort = shutdown

    def start_coalescing(self, device=None):
        self._together = Work(self._group, [])

    def end_coalescing(self, device=None):
        work, self._together = self._together, None
        return self._started(work)

    _start_coalescing, _end_coalescing = start_coalescing, end_coalescing

    def _started(self, work, soon=False):
        """Every request of the call has been started. `soon`: the caller waits next."""
        if not soon and work is not self._together:
            with self._group.lock:
                self._group.hand_over(work, False)
        return work

    # ---- collectives ----

    def _work(self, outputs):
        if self._together is None:
            return Work(self._group, outputs)
        self._together.outputs += outputs
        return self._together

    def _collective(self, outputs, opts, start):
        work = self._work(outputs)
        try:
            start(work)
        except Exception:
            work.refused()
            self._started(work)  # it keeps the tensors of requests that have begun
            raise
        return self._started(work, not getattr(opts, "asyncOp", True))

    def allreduce(self, tensors, opts=None):
        opts = opts or dist.AllreduceOptions()
        if tensors[0].layout == torch.sparse_coo:
            for tensor in tensors:
                self._add_sparse(tensor, opts.reduceOp)
            return self._started(self._work(tensors))
        bucket = sys._getframe(1).f_code is BACKWARD  # who calls: its reducer
        if bucket and len(tensors) == 1 and tensors[0].is_contiguous() and \
                self._group.arena.has(tensors[0]):
            return self._reduce_bucket(tensors, opts)

        def start(work):
            for tensor in tensors:
                flat = work.reduced(tensor, bucket)
                work.begin("iall_reduce", flat, flat.numel(), *reduction(flat, opts.reduceOp))
        return self._collective(tensors, opts, start)

    allreduce_coalesced = allreduce

    def _reduce_bucket(self, tensors, opts):
        """A tensor in the arena, whose future is asked for next. It is nearly always reduced in
        this call; then little of Python runs, whose code the products have driven from the caches."""
        request = self._group.reduce_at_once(tensors[0], *reduction(tensors[0], opts.reduceOp))
        if request is None:
            future = torch.futures.Future()
            future.set_result(tensors)
            return _create_work_from_future(future)
        work = Work(self._group, tensors)
        work.requests.append(request)
        return self._started(work)

    def _add_sparse(self, tensor, op):
        """Gathers the elements of all ranks, in this call: their number has to be known first."""
        if op != dist.ReduceOp.SUM or self._together is not None:
            raise TypeError("ddp: sparse tensors can only be added, and not coalesced with other calls")
        own, counts = tensor.coalesce(), torch.empty(self.size(), dtype=torch.int64)
        self.all_gather_single(counts, torch.tensor([own._nnz()]), None).wait()

        def gathered(part):
            parts = [part.new_empty(n, *part.shape[1:]) for n in counts.tolist()]
            self.allgather([parts], [part], None).wait()
            return torch.cat(parts)
        with torch.no_grad():
            tensor.copy_(torch.sparse_coo_tensor(gathered(own.indices().t()).t(), gathered(own.values()),
                                                 tensor.shape, check_invariants=False).coalesce())

    def broadcast(self, tensors, opts):
        def start(work):
            for tensor in tensors:
                flat = work.out(tensor)
                code, scale = code_of(flat)
                work.begin("ibroadcast", flat, flat.numel() * scale, code, opts.rootRank)
        return self._collective(tensors, opts, start)

    def reduce(self, tensors, opts):
        def start(work):
            for tensor in tensors:
                flat = work.out(tensor) if self.rank() == opts.rootRank else flat_of(tensor)
                work.begin("ireduce", flat, flat if self.rank() == opts.rootRank else None,
                           flat.numel(), *reduction(flat, opts.reduceOp), opts.rootRank)
        return self._collective(tensors, opts, start)

    def barrier(self, opts=None):
        work = self._collective([], opts, lambda work: work.begin("ibarrier"))
        work.limit = getattr(opts, "timeout", None)
        return work

    def monitored_barrier(self, timeout, wait_all_ranks=False):
        """As any barrier's, the error names all missing ranks."""
        before = self._group.set_timeout(timeout)
        try:
            self.barrier().wait()
        finally:
            self._group.set_timeout(before)

    def _gather_all(self, work, flat, source):
        if flat.dtype != source.dtype or flat.numel() != source.numel() * self.size():
            raise ValueError(f"ddp: the output has {flat.numel()} {flat.dtype}, and {self.size()} "
                             f"ranks give {source.numel()} {source.dtype} each")
        code, scale = code_of(flat)
        work.begin("iall_gather", source, flat, source.numel() * scale, code)

    def all_gather_single_coalesced(self, outputs, inputs, opts):
        def start(work):
            for output, source in zip(outputs, inputs):
                self._gather_all(work, work.out(output), flat_of(source))
        return self._collective(outputs, opts, start)

    def all_gather_single(self, output, source, opts):
        return self.all_gather_single_coalesced([output], [source], opts)

    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def allgather(self, outputs, inputs, opts):
        def start(work):
            for parts, tensor in zip(outputs, inputs):
                source = flat_of(tensor)
                if len(parts) != self.size() or parts[self.rank()].numel() != source.numel() or \
                        any(part.dtype != source.dtype for part in parts):
                    raise ValueError("ddp: the outputs do not have the input's sizes and types")
                counts = sizes(parts)
                flat = torch.empty(sum(counts), dtype=source.dtype)
                work.spread(flat, parts)
                if len(set(counts)) == 1:
                    self._gather_all(work, flat, source)
                else:
                    code, scale = code_of(flat)
                    work.begin("iall_gatherv", source, flat, array(counts, scale), code)
        return self._collective(outputs, opts, start)

    def allgather_coalesced(self, output_lists, inputs, opts):
        parts = [[outputs[i] for outputs in output_lists] for i in range(len(inputs))]
        return self.allgather(parts, inputs, opts)

    def reduce_scatter_single_coalesced(self, outputs, inputs, opts):
        def start(work):
            for output, source in zip(outputs, inputs):
                flat, source = work.out(output), flat_of(source)
                if flat.dtype != source.dtype or flat.numel() * self.size() != source.numel():
                    raise ValueError(f"ddp: the input has {source.numel()} {source.dtype}, and "
                                     f"{self.size()} ranks take {flat.numel()} {flat.dtype} each")
                work.begin("ireduce_scatter", source, flat, flat.numel(),
                           *reduction(flat, opts.reduceOp))
        return self._collective(outputs, opts, start)

    def reduce_scatter_single(self, output, source, opts):
        return self.reduce_scatter_single_coalesced([output], [source], opts)

    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def reduce_scatter(self, outputs, inputs, opts):
        def start(work):
            for output, parts in zip(outputs, inputs):
                if len(parts) != self.size() or parts[self.rank()].numel() != output.numel():
                    raise ValueError("ddp: the inputs do not have the output's sizes")
                flat, source = work.out(output), joined(parts)
                work.begin("ireduce_scatterv", source, flat, array(sizes(parts), 1),
                           *reduction(source, opts.reduceOp))
        return self._collective(outputs, opts, start)

    def _rows(self, tensor, splits):
        """Elements for each rank."""
        rows = tensor.shape[0] if tensor.dim() else 0
        if not splits and rows % self.size():
            raise ValueError(f"ddp: {rows} rows cannot be split evenly among {self.size()} ranks")
        if splits and (len(splits) != self.size() or sum(splits) != rows):
            raise ValueError(f"ddp: the splits {list(splits)} are not {self.size()} parts of "
                             f"{rows} rows")
        width = tensor.numel() // rows if rows else 0
        return [n * width for n in splits or [rows // self.size()] * self.size()]

    def all_to_all_single(self, output, source, output_splits, input_splits, opts):
        def start(work):
            flat, given = work.out(output), flat_of(source)
            code, scale = code_of(given)
            work.begin("iall_to_allv", given, array(self._rows(given, input_splits), scale), flat,
                       array(self._rows(flat, output_splits), scale), code)
        return self._collective([output], opts, start)

    alltoall_base = all_to_all_single

    def alltoall(self, outputs, inputs, opts):
        def start(work):
            given = joined(inputs)
            flat = torch.empty(sum(sizes(outputs)), dtype=given.dtype)
            code, scale = code_of(given)
            work.spread(flat, outputs)
            work.begin("iall_to_allv", given, array(sizes(inputs), scale), flat,
                       array(sizes(outputs), scale), code)
        return self._collective(outputs, opts, start)

    def gather(self, outputs, inputs, opts):
        def start(work):
            source, root = flat_of(inputs[0]), self.rank() == opts.rootRank
            code, scale = code_of(source)
            flat = None
            if root:
                if sizes(outputs[0]) != [source.numel()] * self.size():
                    raise ValueError("ddp: the outputs do not have the input's size")
                flat = torch.empty(source.numel() * self.size(), dtype=source.dtype)
                work.spread(flat, outputs[0])
            work.begin("igather", source, flat, source.numel() * scale, code, opts.rootRank)
        return self._collective(outputs[0] if outputs else [], opts, start)

    def gather_single(self, output, source, opts):
        root = self.rank() == opts.rootRank
        return self.gather([list(output.chunk(self.size()))] if root else [], [source], opts)

    gather_into_tensor = gather_single

    def scatter(self, outputs, inputs, opts):
        def start(work):
            flat, source = work.out(outputs[0]), None
            code, scale = code_of(flat)
            if self.rank() == opts.rootRank:
                if sizes(inputs[0]) != [flat.numel()] * self.size():
                    raise ValueError("ddp: the inputs do not have the output's size")
                source = joined(inputs[0])
            work.begin("iscatter", source, flat, flat.numel() * scale, code, opts.rootRank)
        return self._collective(outputs, opts, start)

    # ---- messages ----

    def send(self, tensors, dst, tag=0):
        work = self._work(tensors)
        for tensor in tensors:
            flat = flat_of(tensor)
            work.begin("isend", flat, flat.nbytes, dst, tag)
        return self._started(work)

    def recv(self, tensors, src, tag=0):
        work = self._work(tensors)
        work.source.value = src
        for tensor in tensors:
            flat = work.out(tensor)
            work.begin("irecv", flat, flat.nbytes, src, tag)
        return self._started(work)

    def recv_anysource(self, tensors, tag=0):
        work = self._work(tensors)
        flat = work.out(tensors[0])
        work.begin("irecv_any", flat, flat.nbytes, tag, c.addressof(work.source))
        return self._started(work)

    recvAnysource = recv_anysource

def share(tensor, group=None):
    """Moves a tensor, and all that share its storage, to the memory that the ranks of the
    host share; returns it. It is reduced in place there, if all of them have shared theirs.
    Not if numpy has seen it: that looks at the old memory."""
    group = (group or dist.group.WORLD)._group
    with group.held():
        if not group.arena.move(flat_of(tensor)):
            raise ValueError(f"ddp: no room for {tensor.untyped_storage().nbytes()} bytes, or memory "
                             "that is not PyTorch's own")
    return tensor


def _skip(*classes):
    """torch.compile() shall neither compile the methods nor what they call; this does not import torch._dynamo."""
    frames = torch._C._dynamo.eval_frame
    strategy = frames._FrameExecStrategy(frames._FrameAction.SKIP, frames._FrameAction.SKIP)
    for method in (m for kind in classes for m in vars(kind).values() if hasattr(m, "__code__")):
        frames.set_code_exec_strategy(method.__code__, strategy)


_skip(ProcessGroup, Work)
_groups = weakref.WeakSet()


@atexit.register
def _leave():
    """A rank that ends has left its groups; one that is killed has died."""
    for group in tuple(_groups):
        group.shutdown()


def _forget():
    """In the child of a fork, which has no groups: it must neither wait for a lock nor leave."""
    for group in tuple(_groups):
        group._group.forget(group.rank())
    _groups.clear()


os.register_at_fork(after_in_child=_forget)


def _create(options, _):
    return ProcessGroup(options)


dist.Backend.register_backend("ddp", _create, extended_api=True, devices=["cpu"])
