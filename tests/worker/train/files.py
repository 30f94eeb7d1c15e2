"""files.py - files that ddp-train reads and writes, without NumPy and other libraries"""
import json
import struct
import zlib


def arrays_of(path):
    """The arrays of a safetensors file, by name, and its metadata."""
    with open(path, "rb") as f:
        header, data = json.loads(f.read(int.from_bytes(f.read(8), "little"))), f.read()
    metadata = header.pop("__metadata__", None)
    return {name: struct.unpack(f"<{(a['data_offsets'][1] - a['data_offsets'][0]) // 4}f",
                                data[slice(*a["data_offsets"])])
            for name, a in header.items()}, metadata


def put_array(path, kind, shape, data):
    """As numpy.save() does; kind: "<f4" and the like."""
    header = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}"
    header += " " * (-(10 + len(header)) % 64)
    with open(path, "wb") as f:
        f.write(b"\x93NUMPY\1\0" + struct.pack("<H", len(header)) + header.encode() + data)


def put_png(path, width, height, planes):
    """Of three planes, red, green and blue."""
    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    rows = b"".join(b"\0" + bytes(planes[c * width * height + y * width + x] for x in range(width) for c in range(3))
                    for y in range(height))
    with open(path, "wb") as f:
        f.write(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">2I5B", width, height, 8, 2, 0, 0, 0))
                + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))
