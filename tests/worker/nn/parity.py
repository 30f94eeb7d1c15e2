"""parity.py PROGRAM: the same weights and batches give PyTorch's loss, gradients, weights
and outputs, for every model, optimiser and engine.

Exit 0 when they do, 1 when not. Needs torch only."""
import os
import subprocess
import sys
import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F

STEPS = 10


class Linreg(nn.Module):
    def __init__(self, c, h, w, outputs):
        super().__init__()
        self.linear = nn.Linear(c * h * w, outputs)

    def forward(self, x):
        return self.linear(x.flatten(1))


class Mlp(nn.Module):
    def __init__(self, c, h, w, outputs):
        super().__init__()
        self.fc1 = nn.Linear(c * h * w, 512)
        self.fc2 = nn.Linear(512, 512)
        self.fc3 = nn.Linear(512, outputs)

    def forward(self, x):
        return self.fc3(F.relu(self.fc2(F.relu(self.fc1(x.flatten(1))))))


class Cnn(nn.Module):
    """Net of pytorch/examples/mnist, without its dropout."""

    def __init__(self, c, h, w, outputs):
        super().__init__()
        self.conv1 = nn.Conv2d(c, 32, 3)
        self.conv2 = nn.Conv2d(32, 64, 3)
        self.fc1 = nn.Linear(64 * ((h - 4) // 2) * ((w - 4) // 2), 128)
        self.fc2 = nn.Linear(128, outputs)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv2(F.relu(self.conv1(x)))), 2)
        return self.fc2(F.relu(self.fc1(x.flatten(1))))


class Toy(nn.Module):
    def __init__(self, c, h, w, outputs):
        super().__init__()
        self.net1 = nn.Linear(c * h * w, 10)
        self.net2 = nn.Linear(10, outputs)

    def forward(self, x):
        return self.net2(F.relu(self.net1(x.flatten(1))))


class BasicBlock(nn.Module):
    """As in torchvision.models.resnet, names and all."""

    def __init__(self, inplanes, planes, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inplanes, planes, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.downsample = None
        if stride != 1:
            self.downsample = nn.Sequential(nn.Conv2d(inplanes, planes, 1, stride, bias=False),
                                            nn.BatchNorm2d(planes))

    def forward(self, x):
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(y + (self.downsample(x) if self.downsample else x))


class ResNet18(nn.Module):
    """torchvision.models.resnet18(num_classes=outputs) with conv1 = Conv2d(c, 64, 3, 1, 1,
    bias=False) and maxpool = Identity()."""

    def __init__(self, c, h, w, outputs):
        super().__init__()
        self.conv1 = nn.Conv2d(c, 64, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        widths = (64, 64, 128, 256, 512)
        for i in range(1, 5):
            setattr(self, f"layer{i}", nn.Sequential(
                BasicBlock(widths[i - 1], widths[i], 1 if i == 1 else 2),
                BasicBlock(widths[i], widths[i], 1)))
        self.fc = nn.Linear(512, outputs)

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(x.mean((2, 3)))


MODELS = {"toy": Toy, "resnet18": ResNet18, "linreg": Linreg, "mlp": Mlp, "cnn": Cnn}
OPTIMISERS = {
    "sgd": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, weight_decay=1e-3),
    "slow sgd": lambda p: torch.optim.SGD(p, 1e-3, momentum=0.9, weight_decay=1e-3),
    "adam": lambda p: torch.optim.Adam(p, 1e-3, weight_decay=1e-3),
    "adadelta": lambda p: torch.optim.Adadelta(p, 1.0, rho=0.9, eps=1e-6, weight_decay=1e-3),
}


class Reader:
    def __init__(self, path):
        with open(path, "rb") as f:
            self.data = torch.frombuffer(bytearray(f.read()), dtype=torch.float32)

    def take(self, *shape):
        n = int(torch.Size(shape).numel())
        head, self.data = self.data[:n], self.data[n:]
        return head.reshape(shape).clone()


def off(got, want):
    """The largest difference, against the size of what is compared."""
    return ((got - want).abs().max() / (want.abs().max() + 1e-12)).item()


def apart(got, want):
    """The distance, against the length: Adam's first step is the sign of a gradient, so
    that a single weight whose gradient is about nothing may go either way."""
    return ((got - want).norm() / (want.norm() + 1e-12)).item()


def compare(program, model, io, n, optimiser, engine):
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "run")
        text = subprocess.run(
            [program, model, *map(str, io), str(n), str(STEPS), optimiser, engine, path],
            check=True, stdout=subprocess.PIPE, text=True, timeout=300).stdout
        r = Reader(path)
    names = [line.split()[0] for line in text.splitlines()]
    net = MODELS[model](*io)
    params = dict(net.named_parameters())
    assert names == list(params), f"{names} are not PyTorch's {list(params)}"
    count = sum(p.numel() for p in params.values())

    def block():
        flat = Reader.__new__(Reader)
        flat.data = r.take(count)
        return {name: flat.take(*p.shape) for name, p in params.items()}

    net.load_state_dict(block(), strict=False)  # running means begin as they are
    x = r.take(STEPS, n, *io[:3])
    targets = r.take(STEPS, n, io[3]) if model == "linreg" else r.take(STEPS, n).long()
    loss_of = F.mse_loss if model == "linreg" else F.cross_entropy
    opt = OPTIMISERS[optimiser](net.parameters())
    losses, worst = [], {"gradient": 0.0}
    for step in range(STEPS):
        opt.zero_grad()
        loss = loss_of(net(x[step]), targets[step])
        loss.backward()
        losses.append(loss.item())
        if step == 0:
            for name, g in block().items():
                measure = apart if model == "resnet18" else off
                worst["gradient"] = max(worst["gradient"], measure(g, params[name].grad))
        opt.step()
    weights = block()
    if model == "resnet18":  # the biases of its norms are next to nothing: all in one
        worst["weight"] = apart(torch.cat([w.flatten() for w in weights.values()]),
                                torch.cat([p.detach().flatten() for p in params.values()]))
    else:
        worst["weight"] = max(apart(w, params[name].detach()) for name, w in weights.items())
    net.eval()
    with torch.no_grad():
        worst["output"] = off(r.take(n, io[3]), net(x[0]))
    worst["loss"] = off(r.take(STEPS), torch.tensor(losses))
    # one step differs by rounding only; in ten, differences grow, since a ReLU or a maximum
    # near a tie may go either way, too
    limits = {"gradient": 2e-5, "loss": 5e-4, "weight": 5e-3, "output": 1e-2}
    if model == "resnet18":  # a million ReLUs: a few of them go the other way at the first step
        limits = {"gradient": 1e-2, "loss": 5e-3, "weight": 1e-3, "output": 5e-2}
    good = all(worst[what] <= limits[what] for what in limits)
    print(f"{model:8} {'x'.join(map(str, io)):10} {optimiser:8} {engine:6} "
          + " ".join(f"{what} {worst[what]:.1e}" for what in limits)
          + f" loss {losses[0]:.4f} -> {losses[-1]:.4f}" + ("" if good else "  WRONG"))
    return good


def main():
    program = sys.argv[1]
    torch.set_num_threads(1)
    engines = ["avx512", "avx2", "simd"]
    listed = subprocess.run([program, "linreg", "1", "1", "1", "1", "1", "1", "sgd", "?", "/dev/null"],
                            stderr=subprocess.PIPE, text=True, timeout=60).stderr
    engines = [e for e in engines if e in listed]
    good = bool(engines)
    for engine in engines:
        for optimiser in ("sgd", "adam", "adadelta"):
            good &= compare(program, "linreg", (1, 1, 13, 2), 16, optimiser, engine)
            good &= compare(program, "mlp", (1, 28, 28, 10), 32, optimiser, engine)
            good &= compare(program, "cnn", (1, 8, 8, 10), 16, optimiser, engine)
            good &= compare(program, "toy", (1, 8, 8, 10), 16, optimiser, engine)
        good &= compare(program, "cnn", (1, 28, 28, 10), 8, "adadelta", engine)
        good &= compare(program, "cnn", (3, 15, 12, 7), 4, "sgd", engine)
    good &= compare(program, "resnet18", (3, 16, 16, 10), 16, "slow sgd", engines[0])
    sys.exit(0 if good else 1)


main()
