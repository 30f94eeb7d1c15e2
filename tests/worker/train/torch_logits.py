"""torch_logits.py PROGRAM SOURCE - a checkpoint of ddp-train, loaded in PyTorch, gives its logits

Needs torch and nothing else: the safetensors file is taken apart here, so that the test
holds the format against its description and not against our reader. Exit 0 when all agree.
"""
import gzip
import json
import os
import struct
import subprocess
import sys
import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F

TRAIN = os.path.abspath(sys.argv[1])
DIGITS = os.path.join(sys.argv[2], "worker", "data", "digits")


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(64, 512), nn.Linear(512, 512), nn.Linear(512, 10)

    def forward(self, x):
        return self.fc3(F.relu(self.fc2(F.relu(self.fc1(x.flatten(1))))))


class Cnn(nn.Module):
    """class Net of pytorch/examples' mnist, for 8x8 images."""

    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 32, 3), nn.Conv2d(32, 64, 3)
        self.dropout1, self.dropout2 = nn.Dropout(0.25), nn.Dropout(0.5)
        self.fc1, self.fc2 = nn.Linear(256, 128), nn.Linear(128, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv2(F.relu(self.conv1(x)))), 2)
        x = self.dropout1(x).flatten(1)
        return self.fc2(self.dropout2(F.relu(self.fc1(x))))


def load(path):
    """A safetensors file as (metadata, {name: tensor})."""
    with open(path, "rb") as f:
        (length,) = struct.unpack("<Q", f.read(8))
        header, data = json.loads(f.read(length)), bytearray(f.read())
    metadata = header.pop("__metadata__")
    tensors = {}
    for name, row in header.items():
        begin, end = row["data_offsets"]
        assert row["dtype"] == "F32"
        flat = torch.frombuffer(data[begin:end], dtype=torch.float32)
        tensors[name] = flat.reshape(row["shape"])
    return metadata, tensors


def test_images(metadata):
    with gzip.open(os.path.join(DIGITS, "t10k-images-idx3-ubyte.gz")) as f:
        raw = bytearray(f.read()[16:])
    pixels = torch.frombuffer(raw, dtype=torch.uint8).reshape(-1, 1, 8, 8).double() / 255
    scaled = (pixels - float(metadata["pixel_mean"])) / float(metadata["pixel_std"])
    return scaled.float()


def check(name, model, optimizer, states):
    subprocess.run([TRAIN, "--model", name, "--optimizer", optimizer, "--epochs", "2",
                    "--plot", "none", "--progress", "none", "--checkpoint", "c", "--logits",
                    "out"], check=True, stdout=subprocess.DEVNULL, timeout=120)
    metadata, tensors = load("c")
    weights = {k: v for k, v in tensors.items() if not k.startswith("optim.")}
    model.load_state_dict(weights)  # strict: exactly PyTorch's names and shapes
    assert list(weights) == list(model.state_dict()), "the names are in PyTorch's order"
    for state in states:
        for k, v in weights.items():
            assert tensors[f"optim.{state}.{k}"].shape == v.shape
    _, out = load("out")
    with torch.no_grad():
        theirs = model.eval()(test_images(metadata))
    worst = (theirs - out["logits"]).abs().max().item()
    print(f"{name}: {len(theirs)} images, worst difference of a logit {worst:.2e}")
    assert theirs.shape == (359, 10) and worst < 1e-3, worst
    assert (theirs.argmax(1) == out["logits"].argmax(1)).float().mean() > 0.995
    try:
        from safetensors.torch import load_file
    except ImportError:
        return
    again = load_file("c")
    assert all(torch.equal(again[k], tensors[k]) for k in tensors)
    print(f"{name}: the safetensors package reads the same")


torch.set_num_threads(1)
with tempfile.TemporaryDirectory() as folder:
    os.chdir(folder)
    check("cnn", Cnn(), "adadelta", ("square_avg", "acc_delta"))
    check("mlp", Mlp(), "adam", ("exp_avg", "exp_avg_sq"))
