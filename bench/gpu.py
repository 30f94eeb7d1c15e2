#!/usr/bin/env python3
"""bench/gpu.py BUILD_DIR [--seconds S] [--python PY] [--data DIR]: training steps on a GPU.

Both sides train the same model with the same batch in fp32 (no TF32) on the same random
28x28 images, which lie in the GPU's memory: ddp-train's engine, then PyTorch in eager mode,
then compiled with graphs (mode="reduce-overhead"), in turn, each for S seconds of steps
after its warm-up. Prints images/s and the ratios. With --data, a folder with MNIST's four
files, also how long the loop takes to 99 % on the test images, or to its own ceiling.

Python is the one given, else tests/interop/torch-env.sh's, else python3; without PyTorch our
side is measured alone, and that is said. Exit 77: no GPU."""
import argparse
import json
import os
import struct
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
CASES = [(model, batch) for model in ("cnn", "mlp") for batch in (64, 256, 1024)]
IMAGES = 60000


def serve(model, batch, compiled):
    """The PyTorch side: seconds in, images/s out, a line each."""
    import time

    import torch
    import torch.nn as nn
    import torch.nn.functional as F

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.manual_seed(1)
    if model == "mlp":
        net = nn.Sequential(nn.Flatten(), nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512),
                            nn.ReLU(), nn.Linear(512, 10)).cuda()
        opt = torch.optim.Adam(net.parameters(), fused=True, capturable=True)
    else:
        net = nn.Sequential(nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(),
                            nn.MaxPool2d(2), nn.Dropout(0.25), nn.Flatten(),
                            nn.Linear(9216, 128), nn.ReLU(), nn.Dropout(0.5),
                            nn.Linear(128, 10)).cuda()
        opt = torch.optim.Adadelta(net.parameters(), 1.0, capturable=True)
    images = torch.rand(IMAGES, 1, 28, 28, device="cuda")
    labels = torch.randint(10, (IMAGES,), device="cuda")
    if compiled:
        net = torch.compile(net, mode="reduce-overhead")

    def epoch(until):
        done = 0
        order = torch.randperm(IMAGES, device="cuda")
        for i in range(0, IMAGES - batch + 1, batch):
            which = order[i:i + batch]
            opt.zero_grad()
            F.cross_entropy(net(images[which]), labels[which]).backward()
            opt.step()
            done += batch
            if done % (batch * 20) == 0 and time.perf_counter() > until:
                break
        return done

    epoch(time.perf_counter() + 2)
    torch.cuda.synchronize()
    print(torch.__version__, flush=True)
    for line in sys.stdin:
        start, done = time.perf_counter(), 0
        until = start + float(line)
        while time.perf_counter() < until:
            done += epoch(until)
        torch.cuda.synchronize()
        print(done / (time.perf_counter() - start), flush=True)


class Torch:
    def __init__(self, python, model, batch, how):
        self.process = subprocess.Popen(
            [python, __file__, "--serve", model, str(batch), how], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.version = self.process.stdout.readline().strip()

    def measure(self, seconds):
        if not self.version:
            return None
        self.process.stdin.write(f"{seconds}\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        return float(line) if line else None

    def end(self):
        self.process.stdin.close()
        self.process.wait()


def random_images(folder):
    for part, n in (("train", IMAGES), ("t10k", 256)):
        with open(f"{folder}/{part}-images-idx3-ubyte", "wb") as f:
            f.write(struct.pack(">IIII", 0x803, n, 28, 28) + os.urandom(n * 784))
        with open(f"{folder}/{part}-labels-idx1-ubyte", "wb") as f:
            f.write(struct.pack(">II", 0x801, n) + bytes(b % 10 for b in os.urandom(n)))


def train(build, *words):
    """Runs ddp-train on the GPU; returns its log's rows."""
    with tempfile.NamedTemporaryFile("r", suffix=".jsonl") as log:
        run = subprocess.run(
            [f"{build}/worker/ddp-train", "--engine", "cuda", "--progress", "none", "--plot",
             "none", "--log", log.name, *map(str, words)], text=True, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE)
        if run.returncode not in (0, 3):
            sys.exit(run.stderr.strip())
        return run.stdout, [json.loads(line) for line in log]


def ours(build, folder, model, batch, seconds):
    """Images/s of the last of some epochs: about `seconds` of them."""
    epochs = 1
    while True:
        shown, rows = train(build, "--model", model, "--data", folder, "--batch-size", batch,
                            "--epochs", epochs + 1)
        (end,) = [row for row in rows if row["kind"] == "end"]
        if end["train_seconds"] > seconds or epochs > 200:
            rates = [row["images_per_s"] for row in rows if row["kind"] == "epoch"][1:]
            return shown, sorted(rates)[len(rates) // 2]
        epochs *= 4


def to_99(build, data):
    for model, words in (("cnn", ("--batch-size", 256, "--optimizer", "adam", "--lr", 0.002,
                                  "--schedule", "cosine")),):
        _, rows = train(build, "--model", model, "--data", data, "--epochs", 10,
                        "--target-accuracy", 99, *words)
        best = max(row["test_accuracy"] for row in rows if row["kind"] == "epoch")
        (end,) = [row for row in rows if row["kind"] == "end"]
        print(f"to 99 %: {model} reached {best:.2f} % after {end['train_seconds']:.3f} s of "
              f"training, {end['images']} images")


def torch_python(given):
    if given:
        return given
    finder = subprocess.run([f"{HERE}/../tests/interop/torch-env.sh", "--no-make"],
                            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return finder.stdout.strip() if finder.returncode == 0 else "python3"


def main():
    if sys.argv[1:2] == ["--serve"]:
        serve(sys.argv[2], int(sys.argv[3]), sys.argv[4] == "compiled")
        return
    args = argparse.ArgumentParser()
    args.add_argument("build")
    args.add_argument("--seconds", type=float, default=3)
    args.add_argument("--python")
    args.add_argument("--data")
    args = args.parse_args()
    python = torch_python(args.python)
    try:
        print(subprocess.run(["nvidia-smi", "-L"], check=True, stdout=subprocess.PIPE,
                             text=True).stdout.strip())
    except (OSError, subprocess.CalledProcessError):
        print("no GPU here (nvidia-smi finds none)")
        sys.exit(77)
    with tempfile.TemporaryDirectory(prefix="ddp-gpu-") as folder:
        random_images(folder)
        for model, batch in CASES:
            _, us = ours(args.build, folder, model, batch, args.seconds)
            line = f"{model:4} B={batch:<5} ddp-train {us:12,.0f} images/s"
            for how in ("eager", "compiled"):
                torch = Torch(python, model, batch, how)
                them = torch.measure(args.seconds)
                line += (f"   torch {torch.version} {how} {them:10,.0f}, ratio {us / them:.2f}"
                         if them else f"   no torch to compare with ({how})")
                torch.end()
            print(line, flush=True)
    if args.data:
        to_99(args.build, args.data)


main()
