#!/usr/bin/env python3
"""bench/gpu.py BUILD_DIR [--seconds S] [--report FILE] [--python PY] [--data DIR]: steps on a GPU.

Both sides train the same model with the same batch and precision on the same random images
(28x28, or 32x32 in colours for resnet18), which lie in the GPU's memory: ddp-train's engine,
then PyTorch in eager mode, then, where the table says so, compiled with graphs
(mode="reduce-overhead"), each for S seconds of steps after its warm-up. PyTorch's bf16 and fp16
run under autocast, fp16 with a GradScaler, convolutions with channels last.

With two GPUs: how much of the communication is hidden behind backward, out of a trace. With
--data, a folder with MNIST's four files: how long the loop takes to 99 % on the test images, or
to its own ceiling.

Writes a table, to the terminal and into the report. A line that could not be had is empty: all
of them where there is no GPU (and the exit code is 77), PyTorch's where there is no PyTorch.
Python is the one given, else tests/interop/torch-env.sh's, else python3."""
import argparse
import json
import os
import struct
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
# model, batch, precision, compare with the compiled one, too (half a minute each)
CASES = (("cnn", 64, "fp32", True), ("cnn", 256, "fp32", True), ("cnn", 256, "tf32", False),
         ("cnn", 256, "bf16", True), ("cnn", 256, "fp16", False), ("mlp", 64, "fp32", True),
         ("mlp", 256, "bf16", False), ("resnet18", 256, "fp32", False),
         ("resnet18", 256, "tf32", False), ("resnet18", 256, "bf16", True),
         ("resnet18", 256, "fp16", False))
IMAGES = {"cnn": 60000, "mlp": 60000, "resnet18": 20000}
COLUMNS = ("what", "ddp-train", "eager", "compiled", "to eager", "to compiled")


# ---- the PyTorch side ----

def network(model):
    import torch
    import torch.nn as nn

    if model == "mlp":
        net = nn.Sequential(nn.Flatten(), nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512),
                            nn.ReLU(), nn.Linear(512, 10)).cuda()
        return net, torch.optim.Adam(net.parameters(), fused=True, capturable=True)
    if model == "resnet18":
        sys.path.insert(0, os.path.join(HERE, "..", "tests", "worker", "nn"))
        from nets import ResNet18
        net = ResNet18(3, 32, 32, 10).cuda()
        return net, torch.optim.SGD(net.parameters(), 0.01, fused=True)
    net = nn.Sequential(nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(),
                        nn.MaxPool2d(2), nn.Dropout(0.25), nn.Flatten(), nn.Linear(9216, 128),
                        nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 10)).cuda()
    return net, torch.optim.Adadelta(net.parameters(), 1.0, capturable=True)


def serve(model, batch, precision, how):
    """Seconds in, images/s out, a line each."""
    import torch
    import torch.nn.functional as F

    allow = precision == "tf32"
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = allow
    torch.manual_seed(1)
    narrow = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision)
    net, opt = network(model)
    scaler = torch.amp.GradScaler("cuda", enabled=precision == "fp16")
    shape = (3, 32, 32) if model == "resnet18" else (1, 28, 28)
    n = IMAGES[model]
    images = torch.rand(n, *shape, device="cuda")
    labels = torch.randint(10, (n,), device="cuda")
    if narrow and model != "mlp":
        net = net.to(memory_format=torch.channels_last)
        images = images.to(memory_format=torch.channels_last)
    if how == "compiled":
        net = torch.compile(net, mode="reduce-overhead")

    def epoch(until):
        done = 0
        order = torch.randperm(n, device="cuda")
        for i in range(0, n - batch + 1, batch):
            which = order[i:i + batch]
            opt.zero_grad()
            with torch.autocast("cuda", narrow or torch.bfloat16, enabled=narrow is not None):
                loss = F.cross_entropy(net(images[which]), labels[which])
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()
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
    def __init__(self, python):
        self.python, self.version = python, ""

    def measure(self, case, how, seconds):
        """images/s, or None: there is no PyTorch, or it cannot."""
        run = subprocess.run([self.python, __file__, "--serve", *map(str, case[:3]), how],
                             input=f"{seconds}\n", stdout=subprocess.PIPE,
                             stderr=subprocess.DEVNULL, text=True)
        lines = run.stdout.split()
        if len(lines) < 2:
            return None
        self.version = lines[0]
        return float(lines[1])


# ---- ours ----

def random_images(folder):
    for part, n in (("train", IMAGES["cnn"]), ("t10k", 256)):
        with open(f"{folder}/{part}-images-idx3-ubyte", "wb") as f:
            f.write(struct.pack(">IIII", 0x803, n, 28, 28) + os.urandom(n * 784))
        with open(f"{folder}/{part}-labels-idx1-ubyte", "wb") as f:
            f.write(struct.pack(">II", 0x801, n) + bytes(b % 10 for b in os.urandom(n)))


def random_colours(folder):
    for i in range(1, 7):
        name = "test_batch.bin" if i == 6 else f"data_batch_{i}.bin"
        with open(f"{folder}/{name}", "wb") as f:
            for k in range(256 if i == 6 else IMAGES["resnet18"] // 5):
                f.write(bytes([k % 10]) + os.urandom(3072))


def train(build, *words, ranks=1):
    """Runs ddp-train on the GPU; returns its log's rows."""
    start = [f"{build}/launcher/ddprun", "-np", str(ranks)] if ranks > 1 else []
    with tempfile.NamedTemporaryFile("r", suffix=".jsonl") as log:
        run = subprocess.run(
            [*start, f"{build}/worker/ddp-train", "--engine", "cuda", "--progress", "none",
             "--plot", "none", "--log", log.name, *map(str, words)], text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        if run.returncode not in (0, 3):
            sys.exit(run.stderr.strip())
        return [json.loads(line) for line in log]


def ours(build, folders, case, seconds):
    """Images/s, the median of about `seconds` of epochs but the first."""
    model, batch, precision, _ = case
    epochs = 1
    while True:
        rows = train(build, "--model", model, "--data", folders[model], "--batch-size", batch,
                     "--precision", precision, "--epochs", epochs + 1)
        (end,) = [row for row in rows if row["kind"] == "end"]
        if end["train_seconds"] > seconds or epochs > 200:
            rates = [row["images_per_s"] for row in rows if row["kind"] == "epoch"][1:]
            return sorted(rates)[len(rates) // 2]
        epochs *= 4


def overlap(a, spans):
    return sum(max(0, min(a["ts"] + a["dur"], b["ts"] + b["dur"]) - max(a["ts"], b["ts"]))
               for b in spans)


def hidden(build, folder, scratch):
    """Of the ranks' communication, or of backward where that is less: the part that is hidden."""
    path = os.path.join(scratch, "trace.json")
    train(build, "--model", "resnet18", "--data", folder, "--batch-size", 128, "--epochs", 1,
          "--trace", path, ranks=2)
    with open(path) as f:
        events = json.load(f)["traceEvents"]
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    spans = [e for e in events if e["ph"] == "X" and e["pid"] == 0]
    steps = [e for e in spans if names[0, e["tid"]] == "steps"][20:60]
    parts = []
    for step in steps:
        inside = [e for e in spans if step["ts"] <= e["ts"] < step["ts"] + step["dur"]]
        talk = [e for e in inside if e["name"].startswith("bucket ")]
        back = [e for e in inside if e["name"].endswith(" backward")]
        least = min(sum(e["dur"] for e in talk), sum(e["dur"] for e in back))
        parts.append(sum(overlap(e, back) for e in talk) / least if least else 0)
    return sorted(parts)[len(parts) // 2]


def to_99(build, data):
    rows = train(build, "--model", "cnn", "--data", data, "--epochs", 10, "--target-accuracy", 99,
                 "--batch-size", 256, "--optimizer", "adam", "--lr", 0.002, "--schedule", "cosine")
    best = max(row["test_accuracy"] for row in rows if row["kind"] == "epoch")
    (end,) = [row for row in rows if row["kind"] == "end"]
    return f"{best:.2f} % after {end['train_seconds']:.3f} s, {end['images']} images"


# ---- the report ----

class Report:
    def __init__(self, path):
        self.file = open(path, "w") if path else None

    def line(self, text):
        print(text, flush=True)
        if self.file:
            print(text, file=self.file, flush=True)

    def row(self, *cells):
        cells = [*cells, *[""] * (len(COLUMNS) - len(cells))]
        self.line("| " + " | ".join(f"{c:<24}" if i == 0 else f"{c:>12}"
                                    for i, c in enumerate(cells)) + " |")


def torch_python(given):
    if given:
        return given
    finder = subprocess.run([f"{HERE}/../tests/interop/torch-env.sh", "--no-make"],
                            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return finder.stdout.strip() if finder.returncode == 0 else "python3"


def list_gpus():
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], check=True, stdout=subprocess.PIPE, text=True)
    except (OSError, subprocess.CalledProcessError):
        return []
    return [line for line in listed.stdout.splitlines() if line.startswith("GPU ")]


def compare(report, build, folders, torch, seconds, here):
    def rate(x):
        return f"{x:,.0f}" if x else ""

    for case in CASES:
        us = eager = compiled = None
        if here:
            us = ours(build, folders, case, seconds)
            eager = torch.measure(case, "eager", seconds)
            compiled = torch.measure(case, "compiled", seconds) if case[3] and eager else None
        report.row(f"{case[0]} B={case[1]} {case[2]}", rate(us), rate(eager), rate(compiled),
                   f"{us / eager:.2f}" if eager else "", f"{us / compiled:.2f}" if compiled else "")


def main():
    if sys.argv[1:2] == ["--serve"]:
        serve(sys.argv[2], int(sys.argv[3]), sys.argv[4], sys.argv[5])
        return
    args = argparse.ArgumentParser()
    args.add_argument("build")
    args.add_argument("--seconds", type=float, default=2)
    args.add_argument("--report", metavar="FILE", help="where the table goes besides the terminal")
    args.add_argument("--python")
    args.add_argument("--data")
    args = args.parse_args()
    report, gpus, began = Report(args.report), list_gpus(), time.monotonic()
    torch = Torch(torch_python(args.python))
    report.line("\n".join(gpus) or "no GPU here (nvidia-smi finds none): these lines are still empty")
    report.line("")
    report.line("Images/s, higher is better, and the ratio of ours to PyTorch's.")
    report.line("")
    report.row(*COLUMNS)
    report.line("|" + "---|" * len(COLUMNS))
    with tempfile.TemporaryDirectory(prefix="ddp-gpu-") as scratch:
        folders = {}
        if gpus:
            for name, fill in (("images", random_images), ("colours", random_colours)):
                folders[name] = os.path.join(scratch, name)
                os.mkdir(folders[name])
                fill(folders[name])
            folders.update(cnn=folders["images"], mlp=folders["images"],
                           resnet18=folders["colours"])
        compare(report, args.build, folders, torch, args.seconds, bool(gpus))
        report.row("communication hidden", f"{hidden(args.build, folders['resnet18'], scratch):.0%}"
                   if len(gpus) > 1 else "")
        report.row("MNIST to 99 %", to_99(args.build, args.data) if gpus and args.data else "")
    if gpus:
        report.line("")
        report.line(f"PyTorch {torch.version or '(none here)'}; all of it took "
                    f"{time.monotonic() - began:.0f} s")
    sys.exit(0 if gpus else 77)


main()
