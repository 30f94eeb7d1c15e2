#!/usr/bin/env python3
"""to_idx.py digits.csv.gz DIR: scikit-learn's digits as IDX files under MNIST's names.

A line of the input is 64 pixels (0 to 16) and the label. Every fifth image, counting from
the fifth, goes to the test set; order and values are kept.
"""
import gzip
import struct
import sys

source, folder = sys.argv[1:]
with gzip.open(source, "rt") as f:
    rows = [[int(field) for field in line.split(",")] for line in f]
assert all(len(r) == 65 and max(r[:64]) <= 16 and r[64] <= 9 for r in rows)

for name, part in (("train", [r for i, r in enumerate(rows) if i % 5 != 4]),
                   ("t10k", rows[4::5])):
    pixels = b"".join(bytes(r[:64]) for r in part)
    labels = bytes(r[64] for r in part)
    for kind, head, data in (
            ("images-idx3", struct.pack(">4I", 0x803, len(part), 8, 8), pixels),
            ("labels-idx1", struct.pack(">2I", 0x801, len(part)), labels)):
        with open(f"{folder}/{name}-{kind}-ubyte.gz", "wb") as f:
            f.write(gzip.compress(head + data, 9, mtime=0))
    print(f"{name}: {len(part)} images")
