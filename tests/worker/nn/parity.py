"""parity.py PROGRAM: the same weights and batches give PyTorch's loss, gradients, weights
and outputs, for every model, optimiser and engine.

Exit 0 when they do, 1 when not. Needs torch only."""
import os
import subprocess
import sys
import tempfile

import torch
import torch.nn.functional as F

from nets import MODELS

STEPS = 10

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


def play(program, model, io, n, steps, optimiser, engine):
    """A training by our code: the names of the parameters, and what it wrote."""
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "run")
        text = subprocess.run(
            [program, model, *map(str, io), str(n), str(steps), optimiser, engine, path],
            check=True, stdout=subprocess.PIPE, text=True, timeout=300).stdout
        return [line.split()[0] for line in text.splitlines()], Reader(path)


def compare_deep(program, model, io, n, engine):
    """In the first step of a deep network PyTorch's own gradient in float is 1e-2 from that
    in double: a few of its many ReLUs go the other way. Ours may be as far."""
    names, r = play(program, model, io, n, 1, "sgd", engine)
    net = MODELS[model](*io)
    params = dict(net.named_parameters())
    assert names == list(params), f"{names} are not PyTorch's {list(params)}"
    net.load_state_dict({name: r.take(*p.shape) for name, p in params.items()}, strict=False)
    x, labels = r.take(n, *io[:3]), r.take(n).long()
    ours = torch.cat([r.take(p.numel()) for p in params.values()])
    theirs = []
    for image in (x, x.double()):
        net.to(image.dtype).zero_grad()
        F.cross_entropy(net(image), labels).backward()
        theirs.append(torch.cat([p.grad.flatten() for p in net.parameters()]))
    mine, rounding = apart(ours.double(), theirs[1]), apart(theirs[0].double(), theirs[1])
    good = mine < 4 * rounding
    print(f"{model} {engine}: from the gradient in double {mine:.1e}, PyTorch's {rounding:.1e}"
          + ("" if good else "  WRONG"))
    return good


def compare(program, model, io, n, optimiser, engine):
    names, r = play(program, model, io, n, STEPS, optimiser, engine)
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
                            stderr=subprocess.PIPE, text=True, timeout=200).stderr
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
    for model in ("resnet34", "resnet50"):
        good &= compare_deep(program, model, (3, 16, 16, 10), 16, engines[0])
    sys.exit(0 if good else 1)


main()
