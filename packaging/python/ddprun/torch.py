"""ddprun/torch.py - libddpgroup as a backend of torch.distributed

    import ddprun.torch
    torch.distributed.init_process_group("ddp")

DistributedDataParallel, FSDP and every collective on CPU tensors then use shared memory
between the ranks of a host and TCP between hosts, under any launcher that PyTorch can be
started by (doc/torch.md).

An operation starts in the call. Whoever waits for one makes progress with all; a thread
does it for those that nobody waits for, and for futures. libddpgroup lets one thread at a
time use a group, hence the lock; waits are in slices, between which others get it.

Ranks of a host reduce in place what lies in the arena, the memory that they share. The
buckets of DistributedDataParallel are moved there: nobody but its reducer has seen them.
Other tensors are copied there and back, share(tensor) moves one.
"""
import atexit
import collections
import contextlib
import ctypes as c
import math
import sys
import threading
import time
import uuid
import weakref

import ddpgroup
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Backend as _Backend, Work as _Work

_lib, _Err = ddpgroup.library, ddpgroup.Err
_TYPES = {getattr(torch, name): code for name, code in ddpgroup.TYPES.items()}
_U8 = ddpgroup.TYPES["uint8"]
_RedOp = dist.ReduceOp.RedOpType
_OPS = {getattr(_RedOp, name.upper()): code for name, code in ddpgroup.OPS.items()}
# what True + True and the like are
_BOOL_OPS = {**_OPS, _RedOp.SUM: _OPS[_RedOp.BOR], _RedOp.PRODUCT: _OPS[_RedOp.BAND],
             _RedOp.MAX: _OPS[_RedOp.BOR], _RedOp.MIN: _OPS[_RedOp.BAND]}
_SLICE_MS = 20        # the longest time that a waiting thread keeps the group
_LEFT_ALONE_S = 0.001  # an operation that nobody drives for this long is the thread's
_IDLE_ROUNDS = 50
_BACKWARD = torch.autograd.graph._engine_run_backward.__code__
_DESTROYED = "ddp: the process group was destroyed"
_ARENA_BYTES = 1 << 30  # reserved, not used
_ARENA_LEAST, _ARENA_PIECE = 1 << 15, 1 << 16  # shorter ones are as fast without
_INLINE_S, _INLINE_BYTES_PER_S = 200e-6, 2e9

_P, _N, _I = c.c_void_p, c.c_size_t, c.c_int
for _name, _args in {
    "ibarrier": [], "ibroadcast": [_P, _N, _I, _I], "ireduce": [_P, _P, _N, _I, _I, _I],
    "iall_reduce": [_P, _N, _I, _I], "igather": [_P, _P, _N, _I, _I],
    "iscatter": [_P, _P, _N, _I, _I], "iall_gather": [_P, _P, _N, _I],
    "iall_gatherv": [_P, _P, _P, _I], "ireduce_scatter": [_P, _P, _N, _I, _I],
    "ireduce_scatterv": [_P, _P, _P, _I, _I], "iall_to_all": [_P, _P, _N, _I],
    "iall_to_allv": [_P, _P, _P, _P, _I], "isend": [_P, _N, _I, _I],
    "irecv": [_P, _N, _I, _I], "irecv_any": [_P, _N, _I, _P],
}.items():
    _function = getattr(_lib, "ddp_" + _name)
    _function.argtypes, _function.restype = [_P, *_args, _P], _P
_lib.ddp_wait_for.argtypes = [_P, c.c_int64, _P, _P]


def _code(tensor):
    """The library's element type, and bytes of an element where it has none."""
    code = _TYPES.get(tensor.dtype)
    return (code, 1) if code is not None else (_U8, tensor.element_size())


def _reduction(tensor, op):
    kind = op.op if hasattr(op, "op") else op
    code = _U8 if tensor.dtype == torch.bool else _TYPES.get(tensor.dtype)
    number = (_BOOL_OPS if tensor.dtype == torch.bool else _OPS).get(kind)
    if code is None or number is None or (tensor.dtype == torch.bool and kind == _RedOp.AVG):
        raise TypeError(f"ddp: no {kind} of {tensor.dtype}: "
                        f"{', '.join(map(str, _TYPES))} and torch.bool can be reduced")
    return code, number


def _flat(tensor):
    """Its elements in a row: itself, or a copy."""
    if tensor.device.type != "cpu":
        raise ValueError(f"ddp: a tensor on {tensor.device}: this backend moves CPU tensors; "
                         "use \"nccl\" for GPUs, or copy it with .cpu() first")
    if tensor.layout != torch.strided:
        raise ValueError(f"ddp: a tensor of layout {tensor.layout}: call .to_dense() first")
    return tensor if tensor.is_contiguous() else tensor.detach().contiguous()


def _joined(tensors):
    return torch.cat([_flat(t).detach().reshape(-1) for t in tensors])


def _sizes(tensors):
    return [t.numel() for t in tensors]


def _array(counts, scale):
    return (_N * len(counts))(*(n * scale for n in counts))


class _Arena:
    """Blocks of the memory that the ranks of a host share, for the storages of tensors.

    Its owner holds the group's lock in every call."""

    def __init__(self, group):
        self._group = group
        self._free = []  # (bytes, address)
        self._moved = {}  # by the storage's address: storage, block

    def take(self, nbytes):
        """A block (bytes, address), or None."""
        for block in self._free:
            if nbytes <= block[0] <= 2 * nbytes + _ARENA_PIECE:
                self._free.remove(block)
                return block
        room = -(-nbytes // _ARENA_PIECE) * _ARENA_PIECE
        address = _lib.ddp_arena_alloc(self._group, _N(room), c.byref(_Err()))
        return (room, address) if address else None

    def give(self, block):
        self._free.append(block)

    @staticmethod
    def storage(block, nbytes):
        return torch._C._construct_storage_from_data_pointer(block[1], torch.device("cpu"), nbytes)

    def move(self, tensor):
        """Its whole storage, with all that are views of it, whoever has them."""
        storage = tensor.untyped_storage()
        if storage._cdata in self._moved:
            return True
        for key, (other, block) in list(self._moved.items()):
            if torch._C._storage_Use_Count(other._cdata) == 1:  # ours: its tensors have gone
                self._out(other)
                del self._moved[key]
                self.give(block)
        # a storage of somebody else's memory (numpy's, a file's) cannot be resized
        block = self.take(storage.nbytes()) if storage.resizable() else None
        if block is None:
            return False
        inside = self.storage(block, storage.nbytes())
        inside.copy_(storage)
        storage._swap_data_ptr_(inside)
        self._moved[storage._cdata] = storage, block
        return True

    @staticmethod
    def _out(storage):
        outside = torch.UntypedStorage(storage.nbytes())
        outside.copy_(storage)
        storage._swap_data_ptr_(outside)

    def close(self):
        for storage, _ in self._moved.values():
            self._out(storage)
        self._moved.clear()


class Work(_Work):
    """One call: its requests, in order, and what is left to do when they have ended."""

    def __init__(self, group, outputs):
        super().__init__()
        self._group, self._outputs = group, outputs
        self._requests = collections.deque()
        self._kept, self._after, self._blocks = [], [], []
        self._done, self._error, self._future = False, None, None
        self._source = _I(-1)
        self._nbytes = 0

    def out(self, tensor):
        """Where the library writes what is for `tensor`; it is copied there at the end."""
        flat = _flat(tensor)
        if flat is not tensor:
            self._after.append(lambda: tensor.detach().copy_(flat))
        return flat

    def reduced(self, tensor):
        """The same for what is reduced in place: in the arena if that is faster."""
        flat, group = _flat(tensor), self._group
        if not group._local or flat.nbytes < _ARENA_LEAST or group.size() == 1:
            return self.out(tensor)
        in_backward = sys._getframe(4).f_code is _BACKWARD  # who called allreduce()
        with group._held():
            storage = flat.untyped_storage()
            if storage._cdata in group._arena._moved or in_backward and group._arena.move(flat):
                return flat
            block = group._arena.take(flat.nbytes)
        if block is None:
            return self.out(tensor)
        self._blocks.append(block)
        copy = torch.empty(0, dtype=flat.dtype).set_(_Arena.storage(block, flat.nbytes), 0, flat.shape)
        copy.copy_(flat.detach())
        self._after.append(lambda: tensor.detach().copy_(copy))
        return copy

    def spread(self, flat, tensors):
        def copy():
            for piece, tensor in zip(flat.split(_sizes(tensors)), tensors):
                tensor.detach().copy_(piece.view(tensor.shape))
        self._after.append(copy)

    def begin(self, name, *args):
        """Starts one request; tensors become addresses, and live until it has ended."""
        self._kept += [a for a in args if isinstance(a, (torch.Tensor, c.Array))]
        self._nbytes += max((a.nbytes for a in args if isinstance(a, torch.Tensor)), default=0)
        plain = [a.data_ptr() if isinstance(a, torch.Tensor) else a for a in args]
        self._group._begin(self, getattr(_lib, "ddp_" + name), plain)

    def _end(self, error=None):
        """With the lock: all requests have ended, or one has failed."""
        self._error = error
        self._requests.clear()
        if error is None:
            for copy in self._after:
                copy()
        for block in self._blocks:
            self._group._arena.give(block)
        self._kept, self._after, self._blocks = [], [], []
        self._done = True

    def wait(self, timeout=None):
        seconds = timeout.total_seconds() if timeout else 0
        if not self._done:
            self._group._drive(self, seconds if seconds > 0 else math.inf)
        if not self._done:
            raise dist.DistBackendError(f"ddp: not done within the {seconds:g} s of wait()")
        if self._error is not None:
            raise self._error
        return True

    synchronize = wait

    def is_completed(self):
        if not self._done:
            self._group._drive(self, 0)
        return self._done

    def is_success(self):
        return self.is_completed() and self._error is None

    def exception(self):
        return self._error

    def result(self):
        return self._outputs

    def source_rank(self):
        return self._source.value

    _source_rank = source_rank

    def get_future(self):
        if not self._done:
            self._group._drive(self, self._group._patience(self._nbytes))
        with self._group._lock:
            if self._future is None:
                self._future = torch.futures.Future()
                if self._done:
                    self._complete()
                else:
                    self._group._hand_over(self, True)
        return self._future

    def _complete(self):
        if self._error is not None:
            self._future.set_exception(self._error)
        else:
            self._future.set_result(self._outputs)


def _meeting(store, rank, size, timeout_ms):
    """Options of a group that meets in PyTorch's own store."""
    if rank == 0:
        store.set("ddprun", uuid.uuid4().hex)
    name = "ddp/" + store.get("ddprun").decode()
    place = store
    while hasattr(place, "underlying_store"):
        place = place.underlying_store
    options = ddpgroup.Options(rank=rank, size=size, timeout_ms=timeout_ms, name=name.encode(),
                               arena_bytes=_ARENA_BYTES)
    if size == 1:
        return options
    if isinstance(place, dist.TCPStore):
        options.master_addr, options.master_port = place.host.encode(), place.port
        options.meeting = b"env://"
    elif isinstance(place, dist.FileStore):
        options.meeting = f"file://{place.path}.{name.replace('/', '-')}".encode()
    else:
        raise ValueError(f"ddp: no ranks can meet in a {type(place).__name__}: use env://, "
                         "tcp:// or file:// in init_process_group()")
    return options


class _Registered(_Backend):
    """What PyTorch finds when it asks a group for the backend of a device."""

    def getBackendName(self):
        return "ddp"

    name = getBackendName
    # PyTorch 2.15 asks for these without end where a class in Python does not have them
    supports_coalescing = supports_splitting = supports_shrinking = False
    supports_reconfigure = supports_window = _supports_time_estimate = False


class ProcessGroup(dist.ProcessGroup):
    def __init__(self, options):
        rank, size = options.group_rank, options.group_size
        super().__init__(options.store, rank, size)
        self._timeout_ms = max(1, int(options.timeout.total_seconds() * 1000))
        self._members = list(options.global_ranks_in_group)
        self._lock, self._wanted = threading.Lock(), 0
        self._wake, self._urgent, self._awake = threading.Event(), threading.Event(), False
        self._thread, self._closed = None, False
        self._pending = {}
        self._futures = collections.deque()
        self._together = None
        self._done, self._err = _I(), _Err()
        self._at_done, self._at_err = c.addressof(self._done), c.addressof(self._err)
        meeting = _meeting(options.store, rank, size, self._timeout_ms)
        self._g = c.c_void_p(_lib.ddp_group_init(c.byref(meeting), c.byref(self._err)))
        if not self._g:
            raise self._failure()
        self._arena = _Arena(self._g)
        self._local = _lib.ddp_group_backend(self._g) == b"shm"
        self._set_default_backend(dist.ProcessGroup.BackendType.CUSTOM)
        self._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.CUSTOM,
                               _Registered(rank, size))
        _groups.add(self)

    def _failure(self):
        text = self._err.text.decode(errors="replace")
        if self._members and self._members != list(range(len(self._members))):
            text += f" (ranks of the group {self._members})"
        return dist.DistBackendError(f"ddp: {text}")

    # ---- progress ----

    def _take(self):
        if not self._lock.acquire(False):
            self._wanted += 1
            self._lock.acquire()
            self._wanted -= 1

    @contextlib.contextmanager
    def _held(self):
        self._take()
        try:
            if not self._g:
                raise dist.DistBackendError(_DESTROYED)
            yield
        finally:
            self._lock.release()

    def _begin(self, work, function, args):
        with self._held():
            request = function(self._g, *args, self._at_err)
            if not request:
                raise self._failure()
            work._requests.append(request)

    def _started(self, work, soon=False):
        """Every request of the call has been started. `soon`: the caller waits next."""
        if not soon and work is not self._together:
            with self._lock:
                self._hand_over(work, False)
        return work

    def _advance(self, work, ms):
        """With the lock: wait that long for `work`."""
        while work._requests:
            if not self._g:
                work._end(dist.DistBackendError(_DESTROYED))
                break
            if _lib.ddp_wait_for(work._requests[0], ms, self._at_done, self._at_err) < 0:
                work._end(self._failure())
                break
            if not self._done.value:
                return
            work._requests.popleft()
        else:
            work._end()
        self._pending.pop(work, None)
        if work._future is not None:
            self._futures.append(work)

    def _drive(self, work, seconds):
        """Until it is done, or that long."""
        slice_ms, until = 0 if seconds == 0 else 1, time.monotonic() + seconds
        while not work._done:
            self._take()
            try:
                if not work._done:
                    self._advance(work, slice_ms)
            finally:
                self._lock.release()
            self._complete_futures()
            if time.monotonic() >= until:
                return
            if self._wanted:
                time.sleep(20e-6)
            slice_ms = min(2 * slice_ms, _SLICE_MS)

    def _complete_futures(self):
        """Without the lock: what waits for a future may start further operations."""
        while self._futures:
            try:
                self._futures.popleft()._complete()
            except IndexError:  # by another thread
                return

    def _patience(self, nbytes):
        """Seconds to wait in a call that promises a future: the thread costs more than ranks
        of a host that come together, and takes a CPU from them."""
        return _INLINE_S + nbytes / _INLINE_BYTES_PER_S if self._local else 0

    def _hand_over(self, work, urgent):
        """With the lock: the thread drives it, now or when nobody else does."""
        if not work._done:
            self._pending[work] = True
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch, name="ddprun.torch", daemon=True)
            self._thread.start()
        if not self._awake:
            self._awake = True
            self._wake.set()
        if urgent:
            self._urgent.set()

    def _watch(self):
        idle = 0
        while not self._closed:
            self._wake.wait()
            first = next(iter(tuple(self._pending)), None)
            self._urgent.wait(_LEFT_ALONE_S)
            self._urgent.clear()
            works = tuple(self._pending)
            if works and (works[0] is first or works[0]._future is not None):
                self._drive(works[0], math.inf)
            idle = 0 if works else idle + 1
            if idle > _IDLE_ROUNDS:
                with self._lock:
                    if not self._pending and not self._closed:
                        self._wake.clear()
                        self._awake = False
                idle = 0

    # ---- what PyTorch asks of a group ----

    def getBackendName(self):
        return "ddp"

    name = getBackendName

    def set_timeout(self, timeout):
        with self._held():
            _lib.ddp_group_set_timeout(self._g, c.c_int64(int(timeout.total_seconds() * 1000)))

    def shutdown(self):
        self._closed = True
        self._take()
        if self._g:
            self._arena.close()
            _lib.ddp_group_destroy(self._g)
        self._g = c.c_void_p()
        self._lock.release()
        self._wake.set()
        self._urgent.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        _groups.discard(self)

    abort = shutdown

    def start_coalescing(self, device=None):
        self._together = Work(self, [])

    def end_coalescing(self, device=None):
        work, self._together = self._together, None
        return self._started(work)

    _start_coalescing, _end_coalescing = start_coalescing, end_coalescing

    # ---- collectives ----

    def _work(self, outputs):
        if self._together is None:
            return Work(self, outputs)
        self._together._outputs += outputs
        return self._together

    def _collective(self, outputs, opts, start):
        work = self._work(outputs)
        start(work)
        return self._started(work, not getattr(opts, "asyncOp", True))

    def allreduce(self, tensors, opts=None):
        opts = opts or dist.AllreduceOptions()

        def start(work):
            for tensor in tensors:
                flat = work.reduced(tensor)
                work.begin("iall_reduce", flat, flat.numel(), *_reduction(flat, opts.reduceOp))
        return self._collective(tensors, opts, start)

    allreduce_coalesced = allreduce

    def broadcast(self, tensors, opts):
        def start(work):
            for tensor in tensors:
                flat = work.out(tensor)
                code, scale = _code(flat)
                work.begin("ibroadcast", flat, flat.numel() * scale, code, opts.rootRank)
        return self._collective(tensors, opts, start)

    def reduce(self, tensors, opts):
        def start(work):
            for tensor in tensors:
                flat = work.out(tensor) if self.rank() == opts.rootRank else _flat(tensor)
                work.begin("ireduce", flat, flat if self.rank() == opts.rootRank else None,
                           flat.numel(), *_reduction(flat, opts.reduceOp), opts.rootRank)
        return self._collective(tensors, opts, start)

    def barrier(self, opts=None):
        return self._collective([], opts, lambda work: work.begin("ibarrier"))

    def _gather_all(self, work, flat, source):
        if flat.dtype != source.dtype or flat.numel() != source.numel() * self.size():
            raise ValueError(f"ddp: the output has {flat.numel()} {flat.dtype}, and {self.size()} "
                             f"ranks give {source.numel()} {source.dtype} each")
        code, scale = _code(flat)
        work.begin("iall_gather", source, flat, source.numel() * scale, code)

    def all_gather_single_coalesced(self, outputs, inputs, opts):
        def start(work):
            for output, source in zip(outputs, inputs):
                self._gather_all(work, work.out(output), _flat(source))
        return self._collective(outputs, opts, start)

    def all_gather_single(self, output, source, opts):
        return self.all_gather_single_coalesced([output], [source], opts)

    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def allgather(self, outputs, inputs, opts):
        def start(work):
            for parts, tensor in zip(outputs, inputs):
                source = _flat(tensor)
                if len(parts) != self.size() or parts[self.rank()].numel() != source.numel() or \
                        any(part.dtype != source.dtype for part in parts):
                    raise ValueError("ddp: the outputs do not have the input's sizes and types")
                counts = _sizes(parts)
                flat = torch.empty(sum(counts), dtype=source.dtype)
                if len(set(counts)) == 1:
                    self._gather_all(work, flat, source)
                else:
                    code, scale = _code(flat)
                    work.begin("iall_gatherv", source, flat, _array(counts, scale), code)
                work.spread(flat, parts)
        return self._collective(outputs, opts, start)

    def allgather_coalesced(self, output_lists, inputs, opts):
        parts = [[outputs[i] for outputs in output_lists] for i in range(len(inputs))]
        return self.allgather(parts, inputs, opts)

    def reduce_scatter_single_coalesced(self, outputs, inputs, opts):
        def start(work):
            for output, source in zip(outputs, inputs):
                flat, source = work.out(output), _flat(source)
                if flat.dtype != source.dtype or flat.numel() * self.size() != source.numel():
                    raise ValueError(f"ddp: the input has {source.numel()} {source.dtype}, and "
                                     f"{self.size()} ranks take {flat.numel()} {flat.dtype} each")
                work.begin("ireduce_scatter", source, flat, flat.numel(),
                           *_reduction(flat, opts.reduceOp))
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
                flat, source = work.out(output), _joined(parts)
                work.begin("ireduce_scatterv", source, flat, _array(_sizes(parts), 1),
                           *_reduction(source, opts.reduceOp))
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
            flat, given = work.out(output), _flat(source)
            code, scale = _code(given)
            work.begin("iall_to_allv", given, _array(self._rows(given, input_splits), scale), flat,
                       _array(self._rows(flat, output_splits), scale), code)
        return self._collective([output], opts, start)

    alltoall_base = all_to_all_single

    def alltoall(self, outputs, inputs, opts):
        def start(work):
            given = _joined(inputs)
            flat = torch.empty(sum(_sizes(outputs)), dtype=given.dtype)
            code, scale = _code(given)
            work.begin("iall_to_allv", given, _array(_sizes(inputs), scale), flat,
                       _array(_sizes(outputs), scale), code)
            work.spread(flat, outputs)
        return self._collective(outputs, opts, start)

    def gather(self, outputs, inputs, opts):
        def start(work):
            source, root = _flat(inputs[0]), self.rank() == opts.rootRank
            code, scale = _code(source)
            flat = None
            if root:
                if _sizes(outputs[0]) != [source.numel()] * self.size():
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
            code, scale = _code(flat)
            if self.rank() == opts.rootRank:
                if _sizes(inputs[0]) != [flat.numel()] * self.size():
                    raise ValueError("ddp: the inputs do not have the output's size")
                source = _joined(inputs[0])
            work.begin("iscatter", source, flat, flat.numel() * scale, code, opts.rootRank)
        return self._collective(outputs, opts, start)

    # ---- messages ----

    def send(self, tensors, dst, tag=0):
        work = self._work(tensors)
        for tensor in tensors:
            flat = _flat(tensor)
            work.begin("isend", flat, flat.nbytes, dst, tag)
        return self._started(work)

    def recv(self, tensors, src, tag=0):
        work = self._work(tensors)
        work._source.value = src
        for tensor in tensors:
            flat = work.out(tensor)
            work.begin("irecv", flat, flat.nbytes, src, tag)
        return self._started(work)

    def recv_anysource(self, tensors, tag=0):
        work = self._work(tensors)
        flat = work.out(tensors[0])
        work.begin("irecv_any", flat, flat.nbytes, tag, c.addressof(work._source))
        return self._started(work)

    recvAnysource = recv_anysource


def share(tensor, group=None):
    """Moves a tensor, and all that share its storage, to the memory that the ranks of the
    host share; returns it. It is reduced in place there, if all of them have shared theirs.
    Not if numpy has seen it: that looks at the old memory."""
    group = group or dist.group.WORLD
    with group._held():
        if not group._arena.move(_flat(tensor)):
            raise ValueError(f"ddp: no room for {tensor.untyped_storage().nbytes()} bytes, or memory "
                             "that is not PyTorch's own")
    return tensor


_groups = weakref.WeakSet()


@atexit.register
def _leave():
    """A rank that ends has left its groups; one that is killed has died."""
    for group in tuple(_groups):
        group.shutdown()


def _create(options, _):
    return ProcessGroup(options)


dist.Backend.register_backend("ddp", _create, extended_api=True, devices=["cpu"])
