"""torch_runs.py BUILD SOURCE - whole runs of ddp-train beside PyTorch's, step by step

Both begin with weights that PyTorch has drawn, which reach ddp-train as a safetensors file.
The order of samples, the moves of training images and the safetensors format are done here
again, from what the headers say of them (worker/data/sampler.h, worker/kernels/rng.h and
augment.h), and pixels become numbers by torchvision's formulas. Then the losses that ddp-train
logs have to be PyTorch's, whether 1, 2 or 4 ranks share the batch; and the checkpoint it leaves
gives PyTorch the logits that ddp-train has written.

Needs torch and nothing else. Exit 0 when all agree.
"""
import functools
import gzip
import json
import math
import os
import random
import struct
import sys

import torch
import torch.nn.functional as F

from nets import Gpt2, Llama, MODELS
from ranks import losses, main, rows, run_ok

DIGITS = os.path.join(sys.argv[2], "worker", "data", "digits")
SEED = 7
QUIET = ("--plot", "none", "--progress", "none", "--seed", SEED)

# ---- numbers of (seed, stream, index) ----

ALL64 = (1 << 64) - 1
WEYL = 0x9E3779B97F4A7C15
ORDER, AUGMENT = (1 << 20) + 2, 1 << 62  # streams; an epoch's number is added


def mix(z):
    z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & ALL64
    z = ((z ^ z >> 27) * 0x94D049BB133111EB) & ALL64
    return z ^ z >> 31


def key(seed, stream):
    return mix(mix(seed + WEYL & ALL64) ^ stream * WEYL & ALL64)


def word(k, index):
    return mix(k + (index + 1) * WEYL & ALL64)


def order(n, epoch):
    k, drawn, at = key(SEED, ORDER + epoch), 0, list(range(n))
    for i in range(n - 1, 0, -1):
        while True:
            m = (word(k, drawn) >> 32) * (i + 1)
            drawn += 1
            if m & 0xFFFFFFFF >= (1 << 32) % (i + 1):
                break
        j = m >> 32
        at[i], at[j] = at[j], at[i]
    return at


def moved(image, epoch, sample, pad):
    """RandomCrop(padding=pad) and RandomHorizontalFlip() of bytes [C, H, W]."""
    w = word(key(SEED, AUGMENT + epoch), sample)
    top, left = (w >> 48) * (2 * pad + 1) >> 16, (w >> 32 & 0xFFFF) * (2 * pad + 1) >> 16
    image = F.pad(image, (pad, pad, pad, pad))[:, top:top + image.shape[1], left:left + image.shape[2]]
    return image.flip(2) if w & 1 else image


# ---- files ----


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
        tensors[name] = torch.frombuffer(data[begin:end], dtype=torch.float32).reshape(row["shape"])
    return metadata, tensors


def save(path, tensors, dtype=torch.float32):
    header, data = {}, b""
    kinds = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
    for name, t in tensors.items():
        more = bytes(t.to(dtype).reshape(-1).view(torch.uint8).tolist())
        header[name] = {"dtype": kinds[dtype], "shape": list(t.shape),
                        "data_offsets": [len(data), len(data) + len(more)]}
        data += more
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


def digits(part):
    with gzip.open(os.path.join(DIGITS, f"{part}-images-idx3-ubyte.gz")) as f:
        images = torch.frombuffer(bytearray(f.read()[16:]), dtype=torch.uint8)
    with gzip.open(os.path.join(DIGITS, f"{part}-labels-idx1-ubyte.gz")) as f:
        labels = torch.frombuffer(bytearray(f.read()[8:]), dtype=torch.uint8)
    return images.reshape(-1, 1, 8, 8), labels.long()


def some_digits(n):
    """The first n digits as a folder of plain files."""
    for part, count in (("train", n), ("t10k", 32)):
        images, labels = digits(part)
        for name, head, array in (("images-idx3", (3, count, 8, 8), images),
                                  ("labels-idx1", (1, count), labels.byte())):
            with open(f"{part}-{name}-ubyte", "wb") as f:
                f.write(struct.pack(f">I{len(head) - 1}I", 0x800 + head[0], *head[1:])
                        + array[:count].numpy().tobytes())
    images, labels = digits("train")
    return images[:n], labels[:n]


def coloured(n):
    """Images with a colour for each class, as CIFAR's records; in each channel others."""
    random.seed(5)
    batches = [(f"data_batch_{b + 1}.bin", range(b * n // 5, (b + 1) * n // 5)) for b in range(5)]
    for name, which in (*batches, ("test_batch.bin", range(8))):
        with open(name, "wb") as f:
            for i in which:
                f.write(bytes([i % 10]) + bytes(
                    min(255, max(0, int(random.gauss(60 + 60 * c + 9 * (i % 10) + y, 30))))
                    for c in range(3) for y in range(32) for _ in range(32)))
    content = b"".join(open(name, "rb").read() for name, _ in batches)
    rows = torch.frombuffer(bytearray(content), dtype=torch.uint8).reshape(n, 3073)
    return rows[:, 1:].reshape(n, 3, 32, 32), rows[:, 0].long()


# ---- PyTorch's run ----


def normalised(images, mean, std):
    """ToTensor() and Normalize(mean, std)."""
    x = images.float().div(255)
    each = (1, -1, 1, 1)
    return x.sub_(torch.tensor(mean).reshape(each)).div_(torch.tensor(std).reshape(each))


def of_the_data(images):
    x = images.double() / 255
    return x.mean((0, 2, 3)).float().tolist(), x.std((0, 2, 3), correction=0).float().tolist()


def their_run(net, opt, data, batch, epochs, normal, pad=0, parts=1, smooth=0.0):
    """Losses of all steps; with `parts` the batch is cut as that many ranks would have it,
    and a norm sees one part at a time."""
    images, labels = data
    found = []
    for epoch in range(1, epochs + 1):
        dealt = order(len(images), epoch)
        for i in range(0, len(dealt), batch):
            which = dealt[i:i + batch]
            x = torch.stack([moved(images[s], epoch, s, pad) if pad else images[s] for s in which])
            x, y = normalised(x, *normal), labels[which]
            opt.zero_grad()
            total = 0.0
            for r in range(parts):
                part = x[r::parts]
                loss = (F.cross_entropy(net(part), y[r::parts], label_smoothing=smooth)
                        * len(part) / len(x))
                loss.backward()
                total += loss.item()
            opt.step()
            found.append(total)
    return found


MATRICES = ("--decay-matrices-only",)


def matrices_decay(net, decay):
    """Two groups of parameters."""
    return [{"params": [p for p in net.parameters() if (p.ndim > 1) == large],
             "weight_decay": decay if large else 0} for large in (True, False)]


def our_runs(net, ranks, batch, *options):
    """From net's weights: the losses of 1, 2 or 4 ranks that share the batch."""
    save("first", net.state_dict())
    for n in ranks:
        if os.path.exists(f"log{n}"):
            os.remove(f"log{n}")  # a resumed run adds to its log
        run_ok(n, *QUIET, *options, "--no-dropout", "--batch-size", batch // n, "--resume",
               "first", "--log", f"log{n}", "--check-replicas")
    return {n: losses(f"log{n}") for n in ranks}


def apart(a, b):
    assert len(a) == len(b) >= 16, (len(a), len(b))
    return [abs(x - y) / max(1, abs(y)) for x, y in zip(a, b)]


def beside(name, runs, theirs, limit):
    for n, ours in runs.items():
        worst = max(apart(ours, theirs))
        print(f"  {name}, {n} rank{'s' * (n > 1)}, {len(ours)} steps: loss {theirs[0]:.4f} to "
              f"{theirs[-1]:.4f}, worst difference {worst:.1e}")
        assert worst <= limit, (worst, ours, theirs)


def beside_at_first(name, runs, theirs):
    """The first steps agree to rounding. Later a ReLU or a maximum near a tie may go the other way, as it
    does in PyTorch when other code convolves, and Adadelta, or batch normalisation over few values, makes
    much of it."""
    beside(name, runs, theirs, 1e-1)
    for ours in runs.values():
        far = apart(ours, theirs)
        assert far[0] < 1e-5 and far[1] < 1e-3 and sum(far) / len(far) < 3e-2, far


def beside_through_ties(name, runs, theirs):
    """Of layers and an optimiser for which a tie that goes the other way changes little."""
    beside(name, runs, theirs, 1e-3)
    for ours in runs.values():
        far = apart(ours, theirs)
        assert max(far[:5]) < 1e-6, far


def mlp_learns_as_in_pytorch():
    data = digits("train")
    net = MODELS["mlp"](1, 8, 8, 10)
    opt = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9, weight_decay=0.01)
    runs = our_runs(net, (1, 2, 4), 64, "--model", "mlp", "--optimizer", "sgd", "--lr", 0.05,
                    "--momentum", 0.9, "--weight-decay", 0.01, "--epochs", 2, "--label-smoothing", 0.1)
    beside_through_ties("mlp", runs, their_run(net, opt, data, 64, 2, of_the_data(data[0]), smooth=0.1))


def weights_are_averaged_as_in_pytorch():
    """By AveragedModel, whose average then gives the losses of the tests."""
    data, tests = digits("train"), digits("t10k")
    net, normal = MODELS["mlp"](1, 8, 8, 10), of_the_data(digits("train")[0])
    opt = torch.optim.SGD(net.parameters(), 0.05)
    runs = our_runs(net, (1, 2, 4), 64, "--model", "mlp", "--optimizer", "sgd", "--lr", 0.05, "--epochs", 1,
                    "--ema", 0.9, "--shard-optimizer", "--checkpoint", "c")
    average = torch.optim.swa_utils.AveragedModel(net, avg_fn=lambda e, w, n: 0.9 * e + (1 - 0.9) * w)
    opt.register_step_post_hook(lambda *of: average.update_parameters(net))
    beside_through_ties("mlp, averaged", runs, their_run(net, opt, data, 64, 1, normal))
    with torch.no_grad():
        test = F.cross_entropy(average(normalised(tests[0], *normal)), tests[1]).item()
    for n in runs:
        (told,) = [r["test_loss"] for r in rows(f"log{n}", "epoch")]
        assert abs(told - test) < 1e-4 * test, (n, told, test)
    ours = load("c")[1]
    for name, e in average.module.state_dict().items():
        assert (ours["optim.ema." + name] - e).abs().max() < 1e-4, name


def cnn_learns_from_moved_colours_as_in_pytorch():
    data = coloured(128)
    net = MODELS["cnn"](3, 32, 32, 10)
    opt = torch.optim.Adadelta(net.parameters(), 0.2)
    runs = our_runs(net, (1, 2, 4), 16, "--model", "cnn", "--data", ".", "--augment",
                    "crop,flip", "--epochs", 2, "--lr", 0.2)
    beside_at_first("cnn", runs, their_run(net, opt, data, 16, 2, of_the_data(data[0]), pad=4))


def resnet18_learns_as_in_pytorch():
    data = some_digits(128)  # and a small learning rate, which keeps differences at a few per cent
    for parts, ranks, decay, options in ((2, (2,), 0, ()), (1, (1, 2, 4), 1000, ("--sync-batch-norm", *MATRICES))):
        net = MODELS["resnet18"](1, 8, 8, 10)
        runs = our_runs(net, ranks, 16, "--model", "resnet18", "--data", ".", "--normalize",
                        "mnist", "--lr", 1e-4, "--epochs", 2, "--weight-decay", decay, *options)
        opt = torch.optim.SGD(matrices_decay(net, decay), 1e-4)
        theirs = their_run(net, opt, data, 16, 2, ([0.1307], [0.3081]), parts=parts)
        beside_at_first(" ".join(("resnet18", *options)), runs, theirs)


def tokens_are_learned_as_in_pytorch(name, net, context, vocab, decay, groups, *options):
    """100 steps: tokens of 16 bits from llm.c's header on, AdamW, clipping, warm-up."""
    random.seed(3)
    tokens = [min(vocab - 1, int(random.expovariate(0.05)) * 7 % vocab) for _ in range(20 * 71)]
    with open("tokens.bin", "wb") as f:
        f.write(struct.pack("<256i", 20240520, 1, len(tokens), *[0] * 253))
        f.write(struct.pack(f"<{len(tokens)}H", *tokens))
    samples = [torch.tensor(tokens[i * context:(i + 1) * context + 1])
               for i in range((len(tokens) - 1) // context)]
    samples = samples[:len(samples) - len(samples) // 10]
    # not the same bits: libraries choose other kernels for other lengths on some CPUs
    start, longer = net(samples[0][None, :5]), net(samples[0][None, :9])[:, :5]
    assert torch.allclose(start, longer, rtol=0, atol=1e-5), "causal"
    runs = our_runs(net, (1, 2, 4), 8, "--model", f"{name},context={context},vocab={vocab}",
                    "--data", "tokens.bin", "--steps", 100, "--lr", 2e-3,
                    "--warmup", 10, "--schedule", "cosine:0.1", "--clip-norm", 1, "--beta2", 0.95,
                    "--label-smoothing", 0.2, "--weight-decay", decay, *options)
    opt = torch.optim.AdamW(groups, 2e-3, betas=(0.9, 0.95), weight_decay=decay)
    theirs, epoch = [], 0
    while len(theirs) < 100:
        epoch += 1
        dealt = order(len(samples), epoch)
        for i in range(0, len(dealt), 8):
            x = torch.stack([samples[s] for s in dealt[i:i + 8]])
            step = len(theirs)
            for group in opt.param_groups:
                group["lr"] = 2e-3 * min(1, (step + 1) / 10) * (0.1 + 0.45 * (1 + math.cos(math.pi * step / 100)))
            opt.zero_grad()
            loss = F.cross_entropy(net(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten(),
                                   label_smoothing=0.2)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1)
            opt.step()
            theirs.append(loss.item())
            if len(theirs) == 100:
                break
    beside(name.split(":")[0], runs, theirs, 1e-4)


def gpt2_learns_as_in_pytorch():
    net = Gpt2(2, 3, 48, 20, 301)
    tokens_are_learned_as_in_pytorch("gpt2:layers=2,heads=3,width=48", net, 20, 301, 1, matrices_decay(net, 1),
                                     *MATRICES)


def llama_learns_as_in_pytorch():
    for sizes in ({}, {"factor": 7.5, "low": 1.5, "high": 5, "original": 64}):
        sizes.update(base=500, eps=1e-2)
        name = ",".join(("llama:layers=2,heads=4,kv_heads=2,width=48,hidden=80",
                         *(f"{k}={v}" for k, v in sizes.items())))
        net = Llama(2, 4, 2, 48, 80, 301, **sizes)
        tokens_are_learned_as_in_pytorch(name, net, 20, 301, 0.01, net.parameters())


def files_are_exchanged(name, net, beside):
    """What Hugging Face's file has beside the weights is not asked for; 16 bits are read."""
    common = ("--model", f"{name},context=8,vocab=256", "--data", "text",
              "--batch-size", 32, "--lr", 1e-3)
    text = bytes(random.choices(range(1, 256), k=8 * 80 + 1))
    with open("text", "wb") as f:
        f.write(text)
    x = torch.stack([torch.tensor(list(text[8 * i:8 * i + 9])) for i in range(80)])

    def loss(which):
        return F.cross_entropy(net(which[:, :-1]).flatten(0, 1), which[:, 1:].flatten())

    for dtype in (torch.float16, torch.bfloat16):
        weights = {k: v.to(dtype) for k, v in net.state_dict().items()}
        save("given", {**weights, **beside}, dtype)
        run_ok(2, *QUIET, *common, "--resume", "given", "--steps", 3, "--log", str(dtype),
               "--checkpoint", "c")
        net.load_state_dict(weights)
        first = loss(x[order(72, 1)[:64]]).item()
        assert abs(losses(str(dtype))[0] - first) < 1e-5 * first, (losses(str(dtype)), first)
        metadata, tensors = load("c")
        back = {k: v for k, v in tensors.items() if not k.startswith("optim.")}
        assert list(back) == list(net.state_dict()), "the names are in PyTorch's order"
        net.load_state_dict(back)
        with torch.no_grad():
            test = loss(x[72:]).item()
        with open(str(dtype)) as f:
            told = [r for r in map(json.loads, f) if r["kind"] == "epoch"][-1]["test_loss"]
        assert abs(told - test) < 1e-5 * test, (told, test)


def gpt2_files_are_exchanged():
    masks = {f"h.{i}.attn.bias": torch.ones(1, 1, 8, 8).tril() for i in range(2)}
    files_are_exchanged("gpt2:layers=2,heads=2,width=16", Gpt2(2, 2, 16, 8, 256), masks)


def llama_files_are_exchanged():
    files_are_exchanged("llama:layers=2,heads=4,kv_heads=1,width=16,hidden=24",
                        Llama(2, 4, 1, 16, 24, 256), {"rotary.inv_freq": torch.ones(2)})


def logits_of_a_checkpoint_are_pytorchs():
    for name, optimizer, states in (("cnn", "adadelta", ("square_avg", "acc_delta")),
                                    ("mlp", "adam", ("exp_avg", "exp_avg_sq"))):
        run_ok(1, *QUIET, "--model", name, "--optimizer", optimizer, "--epochs", 2,
               "--checkpoint", "c", "--logits", "out")
        metadata, tensors = load("c")
        weights = {k: v for k, v in tensors.items() if not k.startswith("optim.")}
        net = MODELS[name](1, 8, 8, 10)
        net.load_state_dict(weights)  # strict: exactly PyTorch's names and shapes
        assert list(weights) == list(net.state_dict()), "the names are in PyTorch's order"
        for state in states:
            for k, v in weights.items():
                assert tensors[f"optim.{state}.{k}"].shape == v.shape
        out = load("out")[1]["logits"]
        x = normalised(digits("t10k")[0], [float(metadata["pixel_mean"])],
                       [float(metadata["pixel_std"])])
        with torch.no_grad():
            theirs = net.eval()(x)
        worst = (theirs - out).abs().max().item()
        print(f"  {name}: {len(theirs)} images, worst difference of a logit {worst:.1e}")
        assert theirs.shape == (359, 10) and worst < 1e-3, worst
        assert (theirs.argmax(1) == out.argmax(1)).float().mean() > 0.995
        try:
            from safetensors.torch import load_file
        except ImportError:
            continue
        again = load_file("c")
        assert all(torch.equal(again[k], tensors[k]) for k in tensors)


def seeded(test):
    """Its numbers do not depend on the tests before it."""
    @functools.wraps(test)
    def run():
        torch.manual_seed(2)
        test()
    return run


torch.set_num_threads(1)
main(map(seeded, [mlp_learns_as_in_pytorch, weights_are_averaged_as_in_pytorch, cnn_learns_from_moved_colours_as_in_pytorch,
                  resnet18_learns_as_in_pytorch, logits_of_a_checkpoint_are_pytorchs,
                  gpt2_learns_as_in_pytorch, llama_learns_as_in_pytorch, gpt2_files_are_exchanged,
                  llama_files_are_exchanged]))
