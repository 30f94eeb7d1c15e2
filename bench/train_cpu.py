#!/usr/bin/env python3
"""bench/train_cpu.py BUILD_DIR [--rounds N] [--cpu K] [--compile]: training steps beside PyTorch.

Both sides do the same step (forward, backward, optimiser) on the same number of random
images, on one core, one second of CPU time each in turn, so that what else the machine does hits
both. PyTorch's is its MNIST example's network (and torchvision's residual one with CIFAR's stem) in
eager mode, or with torch.compile(), with one thread. Prints the
median and the range of images/s, and of the ratio of each pair. With bf16 PyTorch's side runs
under autocast. gpt2 is the one of 124 million parameters, llama SmolLM's of 135 million and an lm_head
of its own; both with AdamW, at 64 tokens a sample, and in tokens/s.

The Python is the one that tests/interop/torch-env.sh finds or makes."""
import argparse
import os
import statistics
import subprocess
import sys
import time

from torch_python import torch_python

CASES = [(model, batch, precision) for precision in ("fp32", "bf16")
         for model, batch in (("cnn", 64), ("mlp", 64), ("mlp", 256), ("resnet18", 32))]
CASES += [(model, 4, precision) for model in ("gpt2", "llama") for precision in ("fp32", "bf16")]
OURS = {"llama": "llama:kv_heads=3"}
VOCABULARY = {"gpt2": 50257, "llama": 49152}


def serve(model, batch, precision, how):
    """The PyTorch side: a line in, a second of steps, images/s out."""
    import torch
    import torch.nn as nn
    import torch.nn.functional as F

    torch.set_num_threads(1)
    torch.manual_seed(1)
    if model == "mlp":
        net = nn.Sequential(nn.Flatten(), nn.Linear(784, 512), nn.ReLU(),
                            nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
        opt = torch.optim.SGD(net.parameters(), 0.01, momentum=0.9)
    elif model in ("resnet18", *VOCABULARY):
        sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests",
                                        "worker", "nn"))
        import nets
        if model == "resnet18":
            net = nets.ResNet(3, 32, 32, 10)
            opt = torch.optim.SGD(net.parameters(), 0.01, momentum=0.9)
        else:
            net = (nets.Gpt2(12, 12, 768, 1024, 50257) if model == "gpt2" else
                   nets.Llama(30, 9, 3, 576, 1536, 49152))
            opt = torch.optim.AdamW(net.parameters(), 1e-4)
    else:
        net = nn.Sequential(nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(),
                            nn.MaxPool2d(2), nn.Dropout(0.25), nn.Flatten(),
                            nn.Linear(9216, 128), nn.ReLU(), nn.Dropout(0.5),
                            nn.Linear(128, 10))
        opt = torch.optim.Adadelta(net.parameters(), 1.0)
    shape = (3, 32, 32) if model == "resnet18" else (1, 28, 28)
    batches = [(torch.rand(batch, *shape), torch.randint(10, (batch,))) for _ in range(16)]
    if model in VOCABULARY:  # a sample is 64 tokens, and what follows each of them
        n = VOCABULARY[model]
        batches = [(torch.randint(n, (batch, 64)), torch.randint(n, (batch * 64,)))
                   for _ in range(16)]
    at = 0
    forward = torch.compile(net) if how == "compiled" else net

    def step():
        nonlocal at
        x, y = batches[at % len(batches)]
        at += 1
        opt.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            loss = F.cross_entropy(forward(x).reshape(len(y), -1), y)
        loss.backward()
        opt.step()

    for _ in range(3):
        step()
    print(torch.__version__, flush=True)
    for _ in sys.stdin:
        start, images = time.process_time(), 0
        while (took := time.process_time() - start) < 1:
            step()
            images += len(batches[0][1])
        print(images / took, flush=True)


def spread(values, form):
    low, high = form % min(values), form % max(values)
    return f"{form % statistics.median(values)} ({low}..{high})"


def measure(build, python, model, batch, precision, how, rounds, engine):
    engine = engine or ["bf16"] * (precision == "bf16")
    torch = subprocess.Popen([python, __file__, "--serve", model, str(batch), precision, how],
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    version = torch.stdout.readline().strip()
    ours, theirs = [], []
    for _ in range(rounds):
        run = subprocess.run([f"{build}/bench/bench-train_cpu", OURS.get(model, model), str(batch), "1",
                              *engine], check=True, stdout=subprocess.PIPE, text=True)
        ours.append(float(run.stdout))
        torch.stdin.write("\n")
        torch.stdin.flush()
        theirs.append(float(torch.stdout.readline()))
    torch.stdin.close()
    torch.wait()
    ratios = [a / b for a, b in zip(ours, theirs)]
    print(f"{model:8} B={batch:<4} {precision} ddp-train {spread(ours, '%.0f')}  "
          f"torch {version} {how} {spread(theirs, '%.0f')}  ratio {spread(ratios, '%.2f')}")


def main():
    if sys.argv[1:2] == ["--serve"]:
        serve(sys.argv[2], int(sys.argv[3]), *sys.argv[4:6])
        return
    args = argparse.ArgumentParser()
    args.add_argument("build")
    args.add_argument("--rounds", type=int, default=7)
    args.add_argument("--cpu", type=int, default=max(os.sched_getaffinity(0)))
    args.add_argument("--engine", nargs=1, default=[], help="avx512, avx2, simd, plain")
    args.add_argument("--model", choices=["cnn", "gpt2", "llama", "mlp", "resnet18"], help="only this one")
    args.add_argument("--precision", choices=["fp32", "bf16"], help="only this one")
    args.add_argument("--compile", action="store_true", help="PyTorch's side by torch.compile()")
    args = args.parse_args()
    python = torch_python()
    os.sched_setaffinity(0, {args.cpu})
    for model, batch, precision in CASES:
        if args.precision in (None, precision) and args.model in (None, model):
            measure(args.build, python, model, batch, precision, "compiled" if args.compile else "eager",
                    args.rounds, args.engine)


main()
