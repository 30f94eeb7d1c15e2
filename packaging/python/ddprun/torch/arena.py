"""ddprun/torch/arena.py - tensors in the memory that the ranks of a host share"""
import ctypes as c

import torch

from .library import Err, lib

BYTES = 1 << 30  # reserved, not used
_PIECE = 1 << 16


class Arena:
    """Blocks of the memory that the ranks of a host share, for the storages of tensors.

    Its owner holds the group's lock in every call."""

    def __init__(self, group):
        self._group = group
        self._free = []  # (bytes, address)
        self._moved = {}  # by the storage's address: storage, block

    def take(self, nbytes):
        """A block (bytes, address), or None."""
        for block in self._free:
            if nbytes <= block[0] <= 2 * nbytes + _PIECE:
                self._free.remove(block)
                return block
        room = -(-nbytes // _PIECE) * _PIECE
        address = lib.ddp_arena_alloc(self._group, c.c_size_t(room), c.byref(Err()))
        return (room, address) if address else None

    def has(self, tensor):
        return tensor.untyped_storage()._cdata in self._moved

    def give(self, block):
        self._free.append(block)

    @staticmethod
    def storage(block, nbytes):
        return torch._C._construct_storage_from_data_pointer(block[1], torch.device("cpu"), nbytes)

    def move(self, tensor):
        """Move the whole storage of `tensor`, and so all views of it. False: there is no room."""
        storage = tensor.untyped_storage()
        if self.has(tensor):
            return True
        for key, (other, block) in list(self._moved.items()):
            if torch._C._storage_Use_Count(other._cdata) == 1:  # this one: its tensors have gone
                self._out(other)
                del self._moved[key]
                self.give(block)
        # a storage in memory of numpy or of a file cannot be resized
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
