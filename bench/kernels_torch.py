#!/usr/bin/env python3
"""bench/kernels_torch.py BUILD_DIR [--rounds N] [--cpu K]: our layers beside those of PyTorch's oneDNN.

For each layer of bench-kernels, on one core: its GFLOP/s with the engine that ddp-train chooses here, and
those of PyTorch's own layer, whose convolutions are oneDNN's (3.x, in its wheel) and whose products of
matrices are oneDNN's or MKL's. PyTorch's is the best of plain tensors, channels last, and oneDNN's own
layout, and is spared what ours includes: bias, ReLU and pooling of a layer, and weights that change with
every step. Turns of a fifth of a second of CPU time; the best of the rounds. A ratio below 1 is a pass in which
oneDNN is faster on this CPU; the last column is both passes of a layer.

The Python is the one that tests/interop/torch-env.sh finds or makes."""
import argparse
import os
import re
import subprocess
import sys
import time

from torch_python import torch_python

# as in bench/kernels.c: name, batch, (C, size, K, R, stride, pad) or (C, K)
LAYERS = [("conv1 1x28x28 -> 32, 3x3", 64, (1, 28, 32, 3, 1, 0)),
          ("conv2 32x26x26 -> 64, pool", 64, (32, 26, 64, 3, 1, 0)),
          ("cnn fc1 9216 -> 128", 64, (9216, 128)),
          ("mlp fc1 784 -> 512", 64, (784, 512)),
          ("mlp fc2 512 -> 512", 64, (512, 512)),
          ("mlp fc3 512 -> 10", 64, (512, 10)),
          ("resnet 64x32x32", 32, (64, 32, 64, 3, 1, 1)),
          ("resnet 128x16x16", 32, (128, 16, 128, 3, 1, 1)),
          ("resnet 256x8x8", 32, (256, 8, 256, 3, 1, 1)),
          ("resnet 512x4x4", 32, (512, 4, 512, 3, 1, 1)),
          ("resnet 256x8x8 -> 512x4x4", 32, (256, 8, 512, 3, 2, 1))]
TURN = 0.2  # seconds of CPU time


def serve():
    """The PyTorch side: a layer's number in, the seconds of its forward and backward out."""
    import torch
    import torch.nn.functional as F

    torch.set_num_threads(1)

    def rate(call):
        call()
        start, calls = time.process_time(), 0
        while (took := time.process_time() - start) < TURN:
            call()
            calls += 1
        return took / calls

    def conv(batch, shape, layout):
        c, size, k, r, stride, pad = shape
        x = torch.rand(batch, c, size, size).to(memory_format=layout).requires_grad_(c > 1)
        w = (torch.rand(k, c, r, r) - 0.5).to(memory_format=layout).requires_grad_()
        return lambda: F.conv2d(x, w, stride=stride, padding=pad), [w] + [x] * (c > 1)

    def linear(batch, shape):
        x = torch.rand(batch, shape[0]).requires_grad_()
        w = (torch.rand(shape[1], shape[0]) - 0.5).requires_grad_()
        return lambda: F.linear(x, w), [w, x]

    def measure(forward, inputs):
        with torch.no_grad():
            there = rate(forward)
        y = forward()
        dy = torch.rand_like(y)
        return there, rate(lambda: torch.autograd.grad(y, inputs, dy, retain_graph=True))

    def of_onednn(batch, shape):  # of linear layers: x in oneDNN's layout
        x, dy = torch.rand(batch, shape[0]).to_mkldnn(), torch.rand(batch, shape[1]).to_mkldnn()
        w = torch.rand(shape[1], shape[0])
        back = torch.ops.aten.mkldnn_linear_backward
        with torch.no_grad():
            return (rate(lambda: torch._C._nn.mkldnn_linear(x, w, None)),
                    rate(lambda: back(x, dy, w, [True, True, False])))

    print(torch.__version__, torch.__config__.show().split("DNN ")[-1].split(" ")[0].split("\n")[0],
          flush=True)
    for line in sys.stdin:
        _, batch, shape = LAYERS[int(line)]
        if len(shape) == 2:
            ways = [measure(*linear(batch, shape)), of_onednn(batch, shape)]
        else:
            ways = [measure(*conv(batch, shape, layout))
                    for layout in (torch.contiguous_format, torch.channels_last)]
        print(*(min(way) for way in zip(*ways)), flush=True)


def work(batch, shape, back):
    if len(shape) == 2:
        return 2 * batch * shape[0] * shape[1] * (1 + back)
    c, size, k, r, stride, pad = shape
    out = (size + 2 * pad - r) // stride + 1
    return 2 * batch * c * k * r * r * out * out * (1 + (back and c > 1))


def main():
    if sys.argv[1:2] == ["--serve"]:
        serve()
        return
    args = argparse.ArgumentParser()
    args.add_argument("build")
    args.add_argument("--rounds", type=int, default=3)
    args.add_argument("--cpu", type=int, default=max(os.sched_getaffinity(0)))
    args.add_argument("--engine", default=None, help="avx512, avx2, simd; default: the best here")
    args = args.parse_args()
    python = torch_python()
    os.sched_setaffinity(0, {args.cpu})
    torch = subprocess.Popen([python, __file__, "--serve"], stdin=subprocess.PIPE,
                             stdout=subprocess.PIPE, text=True)
    print("PyTorch", torch.stdout.readline().strip())
    best = {}
    for _ in range(args.rounds):
        ours = subprocess.run([f"{args.build}/bench/bench-kernels", "3", *([args.engine] if args.engine else [])],
                              check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
        for i, (name, batch, shape) in enumerate(LAYERS):
            torch.stdin.write(f"{i}\n")
            torch.stdin.flush()
            theirs = [float(t) for t in torch.stdout.readline().split()]
            at = next(n for n, line in enumerate(ours) if line.startswith(name))
            for back in (False, True):
                mine = float(re.findall(r"ward +([\d.]+)", ours[at + back])[0])
                there = work(batch, shape, back) / theirs[back] / 1e9
                a, b = best.get((i, back), (0, 0))
                best[i, back] = max(a, mine), max(b, there)
    print(f"{'GFLOP/s':37} {'ours':>8} {'PyTorch':>8} {'ratio':>6} {'both':>6}")
    for i, (name, batch, shape) in enumerate(LAYERS):
        ours, theirs = (sum(work(batch, shape, back) / best[i, back][side] for back in (False, True))
                        for side in (0, 1))
        for back, (mine, there) in enumerate((best[i, False], best[i, True])):
            print(f"{'' if back else name:28}{'backward' if back else 'forward':9}{mine:8.1f} {there:8.1f} "
                  f"{mine / there:6.2f}" + (f" {theirs / ours:6.2f}" if back else ""))


main()
