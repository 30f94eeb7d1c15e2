"""ddprun/torch/progress.py - a group of libddpgroup, and the thread that makes progress with it

libddpgroup lets one thread at a time use a group, hence the lock. Waits are in slices, so that
other threads get the lock between two of them.
"""
import collections
import contextlib
import ctypes as c
import math
import threading
import time
import uuid

import ddpgroup
import torch.distributed as dist

from . import arena
from .library import Err, lib

_SLICE_MS = 20  # the longest time that a waiting thread keeps the lock
_UNAWAITED_S = 0.001  # the thread takes over an operation that no call has waited for so long
_IDLE_ROUNDS = 3  # each wakes the thread, on the CPU of the training loop
_INLINE_S, _INLINE_BYTES_PER_S = 200e-6, 2e9


def _milliseconds(timeout):
    return max(1, int(timeout.total_seconds() * 1000))  # the library takes 0 for its default


def _meeting(store, rank, size, members, timeout):
    """Options of a group that meets in PyTorch's own store."""
    if rank == 0:
        store.set("ddprun", uuid.uuid4().hex)
    store.wait(["ddprun"], timeout)
    name = ("group/" if members else "ddp/") + store.get("ddprun").decode()  # worker/group/diagnose.c
    place = store
    while hasattr(place, "underlying_store"):
        place = place.underlying_store
    options = ddpgroup.Options(rank=rank, size=size, timeout_ms=_milliseconds(timeout),
                               name=name.encode(), arena_bytes=arena.BYTES)
    if members:
        options.world_ranks = (c.c_int * size)(*members)
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


class Group:
    def __init__(self, options):
        self.size = options.group_size
        self.members = list(options.global_ranks_in_group) or list(range(self.size))
        self._timeout = options.timeout
        self._make_locks()
        self._closed, self._why = False, "ddp: the process group was destroyed"
        self._pending = {}
        self._futures = collections.deque()
        self._done, self._err = c.c_int(), Err()
        self._at_done, self._at_err = c.addressof(self._done), c.addressof(self._err)
        try:
            meeting = _meeting(options.store, options.group_rank, self.size,
                               options.global_ranks_in_group, options.timeout)
        except dist.DistStoreError as error:
            raise self._failure("rank 0 of the group has not come within "
                                f"{options.timeout.total_seconds():g} s", joins=True) from error
        self._g = c.c_void_p(lib.ddp_group_init(c.byref(meeting), c.byref(self._err)))
        if not self._g:
            raise self._failure(joins=True)
        if options.group_rank == 0:  # all have read it; a next group in this store has its own
            options.store.delete_key("ddprun")
        self.arena = arena.Arena(self._g)
        self.local = lib.ddp_group_backend(self._g) == b"shm"

    def forget(self, rank):
        """In the child of a fork, which has none of the threads that may hold the locks, and gets none."""
        self._make_locks()
        self._closed, self._why = True, f"ddp: this is a fork of rank {rank}, and has no process groups"
        self._g = c.c_void_p()

    def _make_locks(self):
        self.lock, self._wanted = threading.Lock(), 0
        self._wake, self._urgent, self._awake = threading.Event(), threading.Event(), False
        self._thread = None

    def _failure(self, text=None, joins=False):
        text = text or self._err.text.decode(errors="replace")
        if joins and self.members != list(range(self.size)):
            text += f" (ranks of the group {self.members})"
        return dist.DistBackendError(f"ddp: {text}")

    def expired(self, seconds):
        """The error of a wait() of that long: the group's text."""
        with self.held():
            lib.ddp_explain_wait(self._g, seconds, self._at_err)
            return self._failure()

    def _take(self):
        if not self.lock.acquire(False):
            self._wanted += 1
            self.lock.acquire()
            self._wanted -= 1

    @contextlib.contextmanager
    def held(self):
        self._take()
        try:
            if not self._g:
                raise dist.DistBackendError(self._why)
            yield
        finally:
            self.lock.release()

    def set_timeout(self, timeout):
        """Returns the previous one."""
        with self.held():
            before, self._timeout = self._timeout, timeout
            lib.ddp_group_set_timeout(self._g, c.c_int64(_milliseconds(timeout)))
        return before

    def begin(self, work, function, args):
        with self.held():
            request = function(self._g, *args, self._at_err)
            if not request:
                raise self._failure()
            work.requests.append(request)

    def reduce_at_once(self, tensor, code, op):
        """Reduces a tensor in the arena. A request, if that takes too long."""
        with self.held():
            request = lib.ddp_iall_reduce(self._g, tensor.data_ptr(), tensor.numel(), code, op,
                                          self._at_err)
            patience = math.ceil(1e3 * self.patience(tensor.nbytes))
            if not request or lib.ddp_wait_for(request, patience, self._at_done, self._at_err) < 0:
                raise self._failure()
            return None if self._done.value else request

    def _advance(self, work, ms):
        """With the lock: wait that long for `work`."""
        while work.requests:
            if not self._g:
                work.end(dist.DistBackendError(self._why))
                break
            if lib.ddp_wait_for(work.requests[0], ms, self._at_done, self._at_err) < 0:
                work.end(self._failure())
                break
            if not self._done.value:
                return
            work.requests.popleft()
        else:
            work.end()
        self._pending.pop(work, None)
        if work.future is not None:
            self._futures.append(work)

    def drive(self, work, seconds):
        """Make progress until `work` is done, or for that long."""
        slice_ms, until = 0 if seconds == 0 else 1, time.monotonic() + seconds
        while not work.done:
            self._take()
            try:
                if not work.done:
                    self._advance(work, slice_ms)
            finally:
                self.lock.release()
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
                self._futures.popleft().complete()
            except IndexError:  # by another thread
                return

    def patience(self, nbytes):
        """Seconds to wait in a call that promises a future: the thread costs more than ranks
        of a host that come together, and takes a CPU from them."""
        return _INLINE_S + nbytes / _INLINE_BYTES_PER_S if self.local else 0

    def is_own_thread(self):
        return threading.current_thread() is self._thread

    def hand_over(self, work, urgent):
        """With the lock: the thread drives it, at once if `urgent`, else if no call waits for it."""
        if not work.done:
            self._pending[work] = True
        if self._thread is None and not self._closed:
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
            self._urgent.wait(_UNAWAITED_S)
            self._urgent.clear()
            works = tuple(self._pending)
            if works and (works[0] is first or works[0].future is not None):
                self.drive(works[0], math.inf)
            idle = 0 if works else idle + 1
            if idle > _IDLE_ROUNDS:
                with self.lock:
                    if not self._pending and not self._closed:
                        self._wake.clear()
                        self._awake = False
                idle = 0

    def close(self):
        self._closed = True
        self._take()
        if self._g:
            self.arena.close()
            lib.ddp_group_destroy(self._g)
        self._g = c.c_void_p()
        self.lock.release()
        self._wake.set()
        self._urgent.set()
        if self._thread is not None and not self.is_own_thread():
            self._thread.join()
