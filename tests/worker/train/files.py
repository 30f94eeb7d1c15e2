"""files.py - files that ddp-train reads and writes, without NumPy and other libraries"""
import json
import struct


def arrays_of(path):
    """The arrays of a safetensors file, by name, and its metadata."""
    with open(path, "rb") as f:
        header, data = json.loads(f.read(int.from_bytes(f.read(8), "little"))), f.read()
    metadata = header.pop("__metadata__", None)
    return {name: struct.unpack(f"<{(a['data_offsets'][1] - a['data_offsets'][0]) // 4}f",
                                data[slice(*a["data_offsets"])])
            for name, a in header.items()}, metadata
