"""A training without any package: each rank has a share of the points of y = 2 x - 1, and the
ranks average their gradients through rank 0. Run by tests/release/check."""
import os
import pickle
import socket
import struct

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
assert os.environ["LOCAL_RANK"] == str(rank) and os.environ["MASTER_ADDR"]

MEETING = "\0train-" + os.environ["TORCHELASTIC_RUN_ID"]


def send(s, what):
    data = pickle.dumps(what)
    s.sendall(struct.pack("<Q", len(data)) + data)


def receive(s):
    (n,) = struct.unpack("<Q", s.recv(8, socket.MSG_WAITALL))
    return pickle.loads(s.recv(n, socket.MSG_WAITALL))


def connect():
    while True:
        s = socket.socket(socket.AF_UNIX)
        try:
            s.connect(MEETING)
            return s
        except ConnectionRefusedError:
            s.close()


if rank == 0:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(MEETING)
    listener.listen(size)
    peers = [listener.accept()[0] for _ in range(size - 1)]
else:
    leader = connect()


def average(gradient):
    if rank > 0:
        send(leader, gradient)
        return receive(leader)
    shares = [gradient] + [receive(p) for p in peers]
    mean = [sum(g) / size for g in zip(*shares)]
    for p in peers:
        send(p, mean)
    return mean


points = [(x / 50 - 1, 2 * (x / 50 - 1) - 1) for x in range(100)][rank::size]
a = b = 0.0
for step in range(200):
    errors = [(a * x + b - y, x) for x, y in points]
    da, db = average([sum(2 * e * x for e, x in errors) / len(points),
                      sum(2 * e for e, _ in errors) / len(points)])
    a, b = a - 0.3 * da, b - 0.3 * db
assert abs(a - 2) < 1e-3 and abs(b + 1) < 1e-3, (a, b)
print(f"rank {rank} of {size} learnt y = {a:.3f} x {b:+.3f}")
