"""test_races.py BUILD SOURCE ENGINE - whole steps of training, looked at (emu_check.h)

ENGINE's kernels and products tell of each access to memory, and the first race, access out of
bounds or read of what was not written is the end of the program. What is learnt is compared
elsewhere (test_cuda.py). DDP_RACES=long: more models, precisions and orders.
"""
import os
import re
import sys

sys.path.insert(0, os.path.join(sys.argv[2], "tests", "worker", "train"))
from gpu import few_digits, narrow_resnet18, on_gpu  # noqa: E402
from ranks import main, run, run_ok  # noqa: E402

LONG = os.environ.get("DDP_RACES") == "long"
FEW = ("--data", "few", "--epochs", 1, "--plot", "none", "--progress", "none", "--seed", 3,
       "--engine", "cuda")


def looked_at(n, *args, **env):
    for seed in range(3 if LONG else 1):
        run_ok(n, *args, env=on_gpu(EMU_SEED=str(seed + 1), **env))


def one_rank():
    few_digits(train=50, test=24)
    looked_at(1, *FEW, "--model", "cnn", "--precision", "bf16", "--batch-size", 24, "--augment",
              "crop:2,flip", DDP_GPU_DATA="host")
    looked_at(1, *FEW, "--model", "mlp", "--precision", "fp16", "--batch-size", 13, "--accumulate", 2,
              "--optimizer", "adam", "--clip-norm", 0.5)
    looked_at(1, *FEW[2:], "--model", "linreg", "--optimizer", "sgd", "--momentum", 0.9)


def several_ranks():
    few_digits(train=50, test=24)
    # the last step has a rank without samples
    looked_at(2, *FEW, "--model", "cnn", "--batch-size", 16, "--bucket-mb", 0.5, "--check-replicas")
    looked_at(2, *FEW, "--model", "mlp", "--batch-size", 24, "--bucket-mb", 0.5, "--shard-optimizer",
              "--clip-norm", 0.5, "--trace", "t")


def two_stages():
    few_digits(train=50, test=24)
    looked_at(1, *FEW, "--model", "cnn", "--batch-size", 24, "--stages", 2, "--micro-batches", 3,
              "--precision", "fp16", EMU_DEVICES="2")


def a_language_model():
    with open("text", "w") as f:
        f.write("".join(f"{i} sheep and {i + 1} sheep\n" for i in range(20)))
    args = ("--data", "text", *FEW[2:], "--model", "gpt2:layers=1,heads=2,width=16,context=40,vocab=128")
    looked_at(1, *args, "--batch-size", 2, "--accumulate", 2, "--precision", "bf16")
    for peers in ("0", "1"):
        looked_at(1, *args, "--batch-size", 4, "--accumulate", 2, "--stages", 2, "--micro-batches", 2,
                  EMU_DEVICES="2", EMU_PEERS=peers)
    looked_at(2, *args, "--batch-size", 3, "--bucket-mb", 0.001)


def what_is_not_ordered_is_seen():
    few_digits(train=50, test=24)
    for n, more in ((2, ("--bucket-mb", 0.5)), (1, ("--stages", 2))):
        results = run(n, *FEW, "--model", "mlp", "--batch-size", 24, *more, env=on_gpu(EMU_FORGETS="1"))
        said = "".join(r.err for r in results)
        assert re.search("emulation: .*: race: (reads|writes) memory that another work has", said), results


def all_models_and_precisions():
    few_digits(train=30, test=24)
    for precision in ("fp32", "tf32", "bf16", "fp16"):
        for model in ("cnn", "mlp"):
            for ranks, more in ((1, ()), (3, ("--no-overlap",)), (2, ("--stages", 2)),
                                (2, ("--accumulate", 2, "--bucket-mb", 0.1))):
                looked_at(ranks, *FEW, "--model", model, "--batch-size", 11, "--precision", precision,
                          *more)
            looked_at(1, *FEW, "--model", model, "--batch-size", 8, "--precision", precision, "--tune=1")
        for model in ("linreg", "toy"):
            looked_at(2, *FEW[2:], "--model", model, "--precision", precision)


def a_residual_network():
    few_digits("tiny", 16, 8)
    args = ("--data", "tiny", *FEW[2:], "--model", narrow_resnet18(), "--lr", 0.001, "--bucket-mb", 25)
    run_ok(1, *args, "--batch-size", 8, "--precision", "bf16", env=on_gpu())
    run_ok(1, *args, "--batch-size", 8, "--stages", 2, "--micro-batches", 2, env=on_gpu())
    run_ok(2, *args, "--batch-size", 5, "--sync-batch-norm", env=on_gpu())


tests = [one_rank, several_ranks, two_stages, a_language_model, what_is_not_ordered_is_seen]
main(tests + [all_models_and_precisions, a_residual_network] if LONG else tests)
