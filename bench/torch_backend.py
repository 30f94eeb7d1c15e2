#!/usr/bin/env python3
"""bench/torch_backend.py BUILD [--rounds N]: the backend "ddp" beside Gloo, in PyTorch

Two ranks, each bound to a CPU and with one thread. all_reduce of a tensor of 4.8 MB: `ddp` as it
comes, `shared` after ddprun.torch.share(), as DistributedDataParallel's buckets are. Then the
images/s of the mlp of bench/train_cpu.py at batch 64: DistributedDataParallel with each backend
and with a communication hook that communicates nothing (`nothing`: what it costs itself, so the
bound of every backend), and two processes that know nothing of each other (`alone`: the same two,
without DDP). In each round all take their turn, so that what else the machine does meets them alike;
ratios are taken within a round. Printed: medians, and the range of the ratios."""
import argparse
import os
import statistics
import subprocess
import sys

from torch_python import torch_python

HERE = os.path.dirname(os.path.abspath(__file__))
FLOATS, CALLS, BATCH, STEPS = 1200000, 10, 64, 20


def spread(values, form="%.2f"):
    return f"{form % statistics.median(values)} ({form % min(values)}..{form % max(values)})"


class Rank:
    """One of the two; imports what only it needs."""

    def __init__(self):
        import torch
        import torch.distributed as dist
        import ddprun.torch
        self.torch, self.dist, self.share = torch, dist, ddprun.torch.share
        cpus = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cpus[int(os.environ["LOCAL_RANK"]) % len(cpus)]})
        torch.set_num_threads(1)
        dist.init_process_group("ddp")
        self.gloo = dist.new_group(backend="gloo")

    def timed(self, work):
        """Seconds, the longer of the two ranks'."""
        import time
        self.dist.barrier()
        began = time.perf_counter()
        work()
        took = self.torch.tensor(time.perf_counter() - began)
        self.dist.all_reduce(took, self.dist.ReduceOp.MAX)
        return took.item()

    def reductions(self, rounds):
        torch, dist = self.torch, self.dist
        ways = {"ddp": (torch.zeros(FLOATS), None), "shared": (self.share(torch.zeros(FLOATS)), None),
                "gloo": (torch.zeros(FLOATS), self.gloo)}
        took = {name: [] for name in ways}
        for _ in range(rounds):
            for name, (tensor, group) in ways.items():
                took[name].append(min(self.timed(lambda: dist.all_reduce(tensor, group=group))
                                      for _ in range(CALLS)))
        return took

    def model(self):
        nn = self.torch.nn
        self.torch.manual_seed(1)
        return nn.Sequential(nn.Flatten(), nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512),
                             nn.ReLU(), nn.Linear(512, 10))

    def training(self, rounds):
        torch = self.torch
        parallel = torch.nn.parallel.DistributedDataParallel
        nets = {"alone": self.model(), "nothing": parallel(self.model()),
                "ddp": parallel(self.model()), "gloo": parallel(self.model(), process_group=self.gloo)}

        def at_once(state, bucket):
            future = torch.futures.Future()
            future.set_result(bucket.buffer())
            return future
        nets["nothing"].register_comm_hook(None, at_once)
        optimisers = {name: torch.optim.SGD(net.parameters(), lr=0.01) for name, net in nets.items()}
        x, y = torch.rand(BATCH, 784), torch.randint(0, 10, (BATCH,))
        loss_of = torch.nn.CrossEntropyLoss()

        def steps(name, n):
            for _ in range(n):
                optimisers[name].zero_grad()
                loss_of(nets[name](x), y).backward()
                optimisers[name].step()
        for name in nets:
            steps(name, 10)
        rates = {name: [] for name in nets}
        for _ in range(rounds):
            for name in nets:
                best = min(self.timed(lambda: steps(name, STEPS)) for _ in range(3))
                rates[name].append(2 * STEPS * BATCH / best)
        return rates


def rank_main(rounds):
    rank = Rank()
    took, rates = rank.reductions(rounds), rank.training(rounds)
    if rank.dist.get_rank() == 0:
        for name, values in took.items():
            print(f"all_reduce of 4.8 MB, {name}: {statistics.median(values) * 1e6:.0f} us")
        for name in ("ddp", "shared"):
            print(f"  gloo / {name}: {spread([g / o for g, o in zip(took['gloo'], took[name])])}")
        for name, values in rates.items():
            print(f"mlp, batch {BATCH}, {name}: {statistics.median(values):.0f} images/s")
        for name, base in (("nothing", "alone"), ("ddp", "alone"), ("gloo", "alone"), ("ddp", "nothing")):
            print(f"  {name} / {base}: {spread([o / a for o, a in zip(rates[name], rates[base])])}")
    rank.dist.destroy_process_group()


def main():
    args = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    args.add_argument("build")
    args.add_argument("--rounds", type=int, default=7)
    args.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    options = args.parse_args()
    if options.rank:
        return rank_main(options.rounds)
    python = torch_python()
    build = os.path.abspath(options.build)
    env = {**os.environ, "PYTHONPATH": os.path.join(HERE, "../packaging/python"),
           "DDPGROUP_LIBRARY": f"{build}/worker/group/libddpgroup.so"}
    return subprocess.run([f"{build}/launcher/ddprun", "-np", "2", "--tag-output=off", python,
                           os.path.abspath(__file__), build, "--rank", "--rounds", str(options.rounds)],
                          env=env, timeout=1200, check=False).returncode


sys.exit(main())
