"""A host's own name server, on 127.0.0.1.      lab_dns.py HOSTS [silent]

Knows the names in the file HOSTS (as /etc/hosts); silent, it takes questions and answers none.
"""
import os
import socket
import struct
import sys

A, NXDOMAIN = 1, 3


def names(path):
    with open(path, encoding="ascii") as f:
        rows = [line.split() for line in f]
    return {name: row[0] for row in rows for name in row[1:] if ":" not in row[0]}


def answer(question, known):
    """The reply to a query of type A or AAAA."""
    labels, at = [], 12
    while question[at]:
        labels.append(question[at + 1:at + 1 + question[at]].decode("ascii", "replace").lower())
        at += 1 + question[at]
    kind, end = struct.unpack_from(">H", question, at + 1)[0], at + 5
    address = known.get(".".join(labels))
    there = address is not None and kind == A
    head = question[:2] + struct.pack(">5H", 0x8580 | (0 if address else NXDOMAIN), 1, there, 0, 0)
    reply = head + question[12:end]
    if there:
        reply += struct.pack(">3HIH", 0xC00C, A, 1, 0, 4) + socket.inet_aton(address)
    return reply


def main():
    known = {} if "silent" in sys.argv else names(sys.argv[1])
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.bind(("127.0.0.1", 53))
    pid = os.fork()
    if pid:  # bound: the parent returns
        print(pid)
        return
    null = os.open("/dev/null", os.O_RDWR)
    for fd in range(3):
        os.dup2(null, fd)
    while True:
        question, peer = s.recvfrom(512)
        if known:
            s.sendto(answer(question, known), peer)


main()
