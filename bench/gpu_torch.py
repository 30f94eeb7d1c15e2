#!/usr/bin/env python3
"""bench/gpu_torch.py [cpu]: PyTorch's side of gpu.py, one process for all of its rows.

A line "MODEL BATCH PRECISION eager|compiled|graph SECONDS IMAGES" in, a line of JSON out: images/s of
so many seconds of steps behind a warm-up, and the most memory that PyTorch had for it; or the error.
Before that one line with PyTorch's version and the device's name.

"graph" is the eager step as one CUDA graph: batch, forward, backward and optimiser, one launch a
step."""
import json
import os
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

HERE = os.path.dirname(os.path.abspath(__file__))
DEVICE = sys.argv[1] if len(sys.argv) > 1 else "cuda"
WARM_UP = 12  # steps: a compiled one is traced, tried, recorded and only then played
FAST = {"fused": True, "capturable": True} if DEVICE == "cuda" else {}


def network(model):
    if model == "mlp":
        net = nn.Sequential(nn.Flatten(), nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512),
                            nn.ReLU(), nn.Linear(512, 10)).to(DEVICE)
        return net, torch.optim.Adam(net.parameters(), **FAST)
    if model == "gpt2":
        sys.path.insert(0, os.path.join(HERE, "..", "tests", "worker", "nn"))
        from nets import Gpt2
        net = Gpt2(12, 12, 768, 1024, 50257).to(DEVICE)
        return net, torch.optim.AdamW(net.parameters(), 1e-6, **FAST)
    if model == "resnet18":
        sys.path.insert(0, os.path.join(HERE, "..", "tests", "worker", "nn"))
        from nets import ResNet
        net = ResNet(3, 32, 32, 10).to(DEVICE)
        return net, torch.optim.SGD(net.parameters(), 0.01, fused=DEVICE == "cuda")
    net = nn.Sequential(nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(),
                        nn.MaxPool2d(2), nn.Dropout(0.25), nn.Flatten(), nn.Linear(9216, 128),
                        nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 10)).to(DEVICE)
    return net, torch.optim.Adadelta(net.parameters(), 1.0, capturable=DEVICE == "cuda")


def wait():
    if DEVICE == "cuda":
        torch.cuda.synchronize()


class Steps:
    def __init__(self, model, batch, precision, how, n):
        torch.manual_seed(1)
        allow = precision == "tf32"
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = allow
        self.batch, self.n = batch, n
        self.narrow = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision)
        self.net, self.opt = network(model)
        self.scaler = torch.amp.GradScaler(DEVICE, enabled=precision == "fp16")
        shape = (3, 32, 32) if model == "resnet18" else (1, 28, 28)
        self.images = torch.rand(n, *shape, device=DEVICE)
        self.labels = torch.randint(10, (n,), device=DEVICE)
        if model == "gpt2":
            self.images, self.labels = torch.randint(50257, (2, n, 1024), device=DEVICE)
        if self.narrow and model in ("cnn", "resnet18"):
            self.net = self.net.to(memory_format=torch.channels_last)
            self.images = self.images.to(memory_format=torch.channels_last)
        self.order = torch.arange(n, device=DEVICE)
        self.position = torch.zeros(1, dtype=torch.long, device=DEVICE)
        self.within = torch.arange(batch, device=DEVICE)
        self.graph = None
        if how == "compiled":
            self.net = torch.compile(self.net, mode="reduce-overhead")
        for _ in range(WARM_UP if how != "graph" else 0):
            self.one(self.within)
        if how == "graph":
            self.capture()

    def one(self, which):
        self.opt.zero_grad()
        with torch.autocast(DEVICE, self.narrow or torch.bfloat16, enabled=self.narrow is not None,
                            cache_enabled=False):  # what a graph may not keep, and no weight needs
            told = self.net(self.images[which])
            loss = F.cross_entropy(told.flatten(0, -2), self.labels[which].flatten())
        self.scaler.scale(loss).backward()
        self.scaler.step(self.opt)
        self.scaler.update()

    def next(self):
        """The batch at `position` of `order`, both in the device's memory."""
        self.one(self.order[self.position + self.within])
        self.position += self.batch

    def capture(self):
        """A step as a graph, as PyTorch's notes on CUDA graphs have it: some steps on another
        stream, gradients that the graph allocates, an optimiser that never asks the host."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP):
                self.position.zero_()
                self.next()
        torch.cuda.current_stream().wait_stream(stream)
        self.opt.zero_grad(set_to_none=True)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.next()

    def epoch(self, until):
        """The images of an epoch, or of what there is time for."""
        self.order.copy_(torch.randperm(self.n, device=DEVICE))
        self.position.zero_()
        for i in range(0, self.n - self.batch + 1, self.batch):
            if self.graph:
                self.graph.replay()
            else:
                self.one(self.order[i:i + self.batch])
            if i % (self.batch * 20) == 0 and time.perf_counter() > until:
                return i + self.batch
        return self.n // self.batch * self.batch

    def rate(self, seconds):
        wait()
        start, done = time.perf_counter(), 0
        while time.perf_counter() < start + seconds:
            done += self.epoch(start + seconds)
        wait()
        return done / (time.perf_counter() - start)


def answer(words):
    model, batch, precision, how, seconds, n = words
    torch.compiler.reset()
    if DEVICE == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    steps = Steps(model, int(batch), precision, how, int(n))
    steps.rate(float(seconds) / 3)
    told = {"rate": steps.rate(float(seconds))}
    if DEVICE == "cuda":
        told["mib"] = torch.cuda.max_memory_allocated() / 2**20
    return told


def main():
    name = torch.cuda.get_device_name() if DEVICE == "cuda" else "cpu"
    print(json.dumps({"version": torch.__version__, "device": name}), flush=True)
    for line in sys.stdin:
        try:
            told = answer(line.split())
        except Exception as error:  # the row stays empty, and says why
            told = {"error": f"{type(error).__name__}: {error}".splitlines()[0][:200]}
        print(json.dumps(told), flush=True)


main()
