"""ddprun/torch/work.py - what a call of a collective returns"""
import collections
import ctypes as c
import math
import sys

import torch
from torch._C._distributed_c10d import Work as _Work

from .arena import Arena
from .library import check_output, flat_of, lib, sizes

BACKWARD = torch.autograd.graph._engine_run_backward.__code__  # calls DistributedDataParallel's reducer
_LEAST = 1 << 15  # bytes; shorter tensors are as fast without the arena


class Work(_Work):
    """One call: its requests, in order, and what is left to do when they have ended.

    `group` is the progress.Group that makes progress with them."""

    def __init__(self, group, outputs):
        super().__init__()
        self._group, self.outputs = group, outputs
        self.requests = collections.deque()
        self._kept, self._after, self._blocks = [], [], []
        self._begun = 0  # so many of _after are of requests that have begun
        self.done, self._error, self.future = False, None, None
        self.source = c.c_int(-1)
        self.limit = None  # of a wait() without one of its own; negative: none
        self._nbytes = 0

    def out(self, tensor):
        """Where the library writes what is for `tensor`; it is copied there at the end."""
        check_output(tensor)
        flat = flat_of(tensor)
        if flat is not tensor:
            self._after.append(lambda: tensor.detach().copy_(flat))
        return flat

    def reduced(self, tensor, bucket):
        """The same for what is reduced in place: in the arena if that is faster. A bucket is
        moved there."""
        flat, group = flat_of(tensor), self._group
        if not group.local or flat.nbytes < _LEAST or group.size == 1:
            return self.out(tensor)
        with group.held():
            if group.arena.has(flat) or bucket and group.arena.move(flat):
                return flat
            block = group.arena.take(flat.nbytes)
        if block is None:
            return self.out(tensor)
        self._blocks.append(block)
        copy = torch.empty(0, dtype=flat.dtype).set_(Arena.storage(block, flat.nbytes), 0, flat.shape)
        copy.copy_(flat.detach())
        self._after.append(lambda: tensor.detach().copy_(copy))
        return copy

    def spread(self, flat, tensors):
        """Pieces of `flat` for `tensors`, at the end; before begin(), as it may refuse."""
        for tensor in tensors:
            check_output(tensor)

        def copy():
            for piece, tensor in zip(flat.split(sizes(tensors)), tensors):
                tensor.detach().copy_(piece.view(tensor.shape))
        self._after.append(copy)

    def begin(self, name, *args):
        """Starts one request; tensors become addresses, and live until it has ended."""
        self._kept += [a for a in args if isinstance(a, (torch.Tensor, c.Array))]
        self._nbytes += max((a.nbytes for a in args if isinstance(a, torch.Tensor)), default=0)
        plain = [a.data_ptr() if isinstance(a, torch.Tensor) else a for a in args]
        self._group.begin(self, getattr(lib, "ddp_" + name), plain)
        self._begun = len(self._after)

    def refused(self):
        """The last request has not begun: nothing is copied to its outputs."""
        del self._after[self._begun:]

    def end(self, error=None):
        """With the lock: all requests have ended, or one has failed."""
        self._error = error
        self.requests.clear()
        try:
            for copy in self._after if error is None else ():
                copy()
        except Exception as failed:  # of this operation, not of the thread that has ended it
            self._error = failed
        for block in self._blocks:
            self._group.arena.give(block)
        self._kept, self._after, self._blocks = [], [], []
        self.done = True

    def wait(self, timeout=None):
        timeout = timeout or self.limit
        seconds = timeout.total_seconds() if timeout else 0
        if not self.done:
            self._group.drive(self, seconds if seconds > 0 else math.inf)
        if not self.done:
            raise self._group.expired(seconds)
        if self._error is not None:
            raise self._error
        return True

    synchronize = wait

    def is_completed(self):
        if not self.done:
            self._group.drive(self, 0)
        return self.done

    def is_success(self):
        return self.is_completed() and self._error is None

    def exception(self):
        return self._error

    def result(self):
        return self.outputs

    def source_rank(self):
        return self.source.value

    _source_rank = source_rank

    def get_future(self):
        if not self.done:
            group = self._group
            # It must have ended if the group's thread asks, which alone would complete it, or a hook
            # of DistributedDataParallel: what that starts in then() has to come in the same order on all ranks
            hook = torch._C._current_graph_task_id() >= 0 and sys._getframe(1).f_code is not BACKWARD
            group.drive(self, math.inf if hook or group.is_own_thread() else group.patience(self._nbytes))
        with self._group.lock:
            if self.future is None:
                self._ended = torch.futures.Future()
                self.future = self._ended.then(self._outcome)
                if self.done:
                    self.complete()
                else:
                    self._group.hand_over(self, True)
        return self.future

    def complete(self):
        self._ended.set_result(None)

    def _outcome(self, _):
        """An error that is raised here is one for C++, too; set_exception() sets a result there."""
        if self._error is not None:
            raise self._error
        return self.outputs
