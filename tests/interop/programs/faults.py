"""faults.py FOLDER SEED ROUNDS KINDS: a healthy job in which one rank is late, again and again.

In each round all ranks do some collectives. Before one of them a rank, drawn from SEED, commits a
fault: it writes its pid and host to FOLDER/at.ROUND and goes on when FOLDER/go.ROUND exists (gil: when
there is a byte in FOLDER/fifo; stop: by SIGCONT; file: when FOLDER/slow, a mounted file server, has
answered, which it tells by FOLDER/done.ROUND)."""
import ctypes
import multiprocessing
import os
import random
import signal
import sys
import threading
import time

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

folder, seed, rounds, kinds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4].split(",")


def go(number):
    return f"{folder}/go.{number}"


def fault_sleep(number):
    path = go(number)
    while not os.path.exists(path): time.sleep(0.05)  # line of sleep


def fault_loop(number):
    path = go(number)
    while not os.path.exists(path): pass  # line of loop


def fault_gil(number):
    fifo = os.open(f"{folder}/fifo", os.O_RDWR)
    ctypes.PyDLL(None).read(fifo, ctypes.create_string_buffer(1), 1)  # line of gil
    os.close(fifo)


def fault_stop(number):
    os.kill(os.getpid(), signal.SIGSTOP)


class Locked(Dataset):
    """Its worker process waits for a lock that the rank holds."""

    def __init__(self, number):
        self.lock = multiprocessing.Lock()
        self.lock.acquire()
        threading.Thread(target=self.release, args=(number,)).start()

    def release(self, number):
        wait_for(go(number))
        self.lock.release()

    def __len__(self):
        return 1

    def __getitem__(self, i):
        with self.lock:
            return i


def fault_loader(number):
    for _ in DataLoader(Locked(number), num_workers=1): pass  # line of loader


def fault_file(number):
    os.close(os.open(f"{folder}/slow/data", os.O_RDONLY))  # line of file
    with open(f"{folder}/done.{number}", "w", encoding="ascii"):
        pass
    wait_for(go(number))


def wait_for(path):
    while not os.path.exists(path):
        time.sleep(0.05)


def plan(draw, size):
    """(kind, rank, collectives before the fault, after it)"""
    return draw.choice(kinds), draw.randrange(size), draw.randrange(4), draw.randrange(3)


def collective(draw):
    x = torch.ones(draw.randrange(1, 2000))
    kind = draw.randrange(4)
    if kind == 0:
        dist.all_reduce(x)
    elif kind == 1:
        dist.broadcast(x, 0)
        dist.barrier()
    elif kind == 2:
        dist.all_gather([torch.empty_like(x) for _ in range(dist.get_world_size())], x)
    else:
        dist.barrier()


def main():
    dist.init_process_group("gloo")
    rank, size, draw = dist.get_rank(), dist.get_world_size(), random.Random(seed)
    for number in range(rounds):
        kind, culprit, before, after = plan(draw, size)
        for _ in range(before):
            collective(draw)
        if rank == culprit:
            with open(f"{folder}/at.{number}.tmp", "w", encoding="ascii") as f:
                f.write(f"{os.getpid()} {os.uname().nodename}")
            os.rename(f"{folder}/at.{number}.tmp", f"{folder}/at.{number}")
            globals()["fault_" + kind](number)
        dist.barrier()  # line of barrier
        for _ in range(after):
            collective(draw)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
