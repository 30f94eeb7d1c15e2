"""A bad cable: frames between two interfaces are late, lost, or few.

    lab_wire.py lab-wire STATE HOST PORT BRIDGE SETTINGS

PORT is the host's end of the cable, BRIDGE the other; SETTINGS is JSON: delay and jitter in ms,
loss in percent, rate in Mbit/s, drop "in" (to the host), "out" (from it) or "both", mtu "BYTES MAC":
larger packets of that sender are lost. Frames keep their virtio-net header, so checksums half done and
segments of 64 kB stay right.
"""
import heapq
import json
import random
import select
import socket
import sys
import time

SOL_PACKET, PACKET_VNET_HDR, PACKET_IGNORE_OUTGOING, SO_RCVBUFFORCE, ETH_P_ALL = 263, 15, 23, 33, 3
QUEUED = 0.2  # seconds of traffic that wait for a slow cable; the rest is lost


def port(name):
    s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    s.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
    s.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
    s.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 8 << 20)
    s.bind((name, ETH_P_ALL))
    s.setblocking(False)
    return s


class Direction:
    def __init__(self, source, target, name, settings):
        self.source, self.target = source, target
        self.dropped = settings.get("drop") in (name, "both")
        self.loss = float(settings.get("loss", 0)) / 100
        self.delay, self.jitter = (float(settings.get(k, 0)) / 1e3 for k in ("delay", "jitter"))
        self.rate = float(settings.get("rate", 0)) * 1e6 / 8
        self.mtu, _, sender = settings.get("mtu", "1000000 ").partition(" ")
        self.sender = bytes.fromhex(sender.replace(":", ""))
        self.free = self.last = 0.0

    def too_large(self, frame):
        """One whose header has the size of its segments (gso_size) is sent as several."""
        size = int.from_bytes(frame[4:6], sys.byteorder) or len(frame) - 10
        return size > int(self.mtu) and frame[16:22] == self.sender

    def due(self, frame):
        """When to send a frame that has just arrived; None: drop it. Frames stay in order."""
        now, size = time.monotonic(), len(frame)
        if self.dropped or self.too_large(frame) or random.random() < self.loss:
            return None
        if self.rate:
            if self.free > now + QUEUED:
                return None
            self.free = max(self.free, now) + size / self.rate
        self.last = max(self.last, max(self.free, now) + self.delay
                        + random.uniform(-self.jitter, self.jitter))
        return self.last


def carry(directions):
    poll, queue, number = select.poll(), [], 0
    for fd in directions:
        poll.register(fd, select.POLLIN)
    while True:
        wait = max(0, (queue[0][0] - time.monotonic()) * 1e3) if queue else None
        for fd, _ in poll.poll(wait):
            way = directions[fd]
            for _ in range(64):
                try:
                    frame = way.source.recv(1 << 17)
                except OSError:
                    break  # nothing more, or the interface is down
                due = way.due(frame)
                if due is not None:
                    number += 1
                    heapq.heappush(queue, (due, number, way.target, frame))
        while queue and queue[0][0] <= time.monotonic():
            _, _, target, frame = heapq.heappop(queue)
            try:
                target.send(frame)
            except OSError:
                pass  # the interface behind is down: lost


def main():
    a, b = port(sys.argv[4]), port(sys.argv[5])
    settings = json.loads(sys.argv[6])
    print("up", flush=True)
    carry({a.fileno(): Direction(a, b, "out", settings), b.fileno(): Direction(b, a, "in", settings)})


main()
