"""test_cuda.py BUILD SOURCE ENGINE - the engine for GPUs learns what the CPU does

ENGINE is the real one, and this is skipped where there is no GPU; or it is the real one's
files on a GPU made of a CPU (emu.h), which runs work late, out of order where that is
allowed, keeps device memory from the host, and can be told to fail.
"""
import json
import os
import re
import signal
import struct
import sys

sys.path.insert(0, os.path.join(sys.argv[2], "tests", "worker", "train"))
from gpu import (  # noqa: E402
    EMULATED, ENGINE, FEW, GPUS, as_on_cpu, both, few_digits, narrow_resnet18, on_cpu, on_gpu, same)
from files import arrays_of, put_array  # noqa: E402
from ranks import Ranks, losses, main, rows, run, run_ok, wait_until  # noqa: E402

MODELS = os.path.join(sys.argv[2], "tests", "worker", "nn")


def check_trace(path, ranks, steps, *wanted):
    """It has these rows, and every part of a step lies within one."""
    with open(path) as f:
        events = json.load(f)["traceEvents"]
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    for rank in range(ranks):
        found = {}
        for e in events:
            if e["ph"] == "X" and e["pid"] == rank:
                found.setdefault(names[rank, e["tid"]], []).append(e)
        assert set(found) == {"steps", "data", "compute", *wanted}, found.keys()
        assert len(found["steps"]) == steps, found["steps"]
        told = {e["name"] for row in found if row.startswith("compute") for e in found[row]}
        assert {"conv1 forward", "fc2 backward", "conv1 backward", "loss", "optimizer"} <= told, told
        for row in ("data", "compute", "compute, second stage", "communication"):
            for e in found.get(row, ()):
                assert any(s["ts"] <= e["ts"] + 1 and e["ts"] + e["dur"] <= s["ts"] + s["dur"] + 1
                           for s in found["steps"]) and e["dur"] >= 0, (e, found["steps"])
        for row in ("communication", "data, to the GPU"):
            assert all(e["args"]["bytes"] > 0 for e in found.get(row, ())), found[row]


def one_rank_learns_the_same():
    few_digits()
    for model, optimizer in (("cnn", "adadelta"), ("mlp", "adam"), ("mlp", "adamw"), ("cnn", "sgd")):
        more = {"sgd": ("--momentum", 0.9, "--weight-decay", 0.1, "--decay-matrices-only"),
                "adamw": ("--beta2", 0.95, "--test-every", 3)}.get(optimizer, ())
        both(1, model + optimizer, *FEW, "--model", model, "--optimizer", optimizer,
             "--batch-size", 24, "--label-smoothing", 0.1, *more, tolerance=2e-4)
    shown = both(1, "line", "--model", "linreg", "--epochs", 1, "--plot", "none", "--optimizer", "adam")
    assert "fp32 without TF32" in shown, shown


def data_on_the_host_give_the_same():
    few_digits()
    shown = both(1, "host", *FEW, "--model", "cnn", "--batch-size", 40, "--trace", "t",
                 tolerance=2e-4, DDP_GPU_DATA="host")
    check_trace("t", 1, len(losses("host.fp32")), "data, on the host", "data, to the GPU")
    assert "with the data" not in shown, shown
    shown = both(1, "line", "--model", "linreg", "--epochs", 1, "--plot", "none",
                 "--batch-size", 256, DDP_GPU_DATA="host")


def ranks_learn_together():
    few_digits()
    for n, model, more in ((2, "cnn", ("--trace", "t")), (4, "mlp", ("--no-overlap",)),
                           (3, "cnn", ())):
        if n > GPUS:
            continue
        # 90 samples: the last step has some ranks without any
        shown = both(n, f"{model}{n}", *FEW, "--model", model, "--batch-size", 22 if n == 4 else 16,
                     "--check-replicas", *more, tolerance=2e-4, EMU_SEED=str(n))
        assert re.search(rf"replicas +{n} alike", shown) and "NCCL 2." in shown, shown
        if n == 2:
            check_trace("t", n, len(losses("cnn2.fp32")), "communication")
    # in the last step, one rank has as many samples as before, the other fewer: both record it anew
    if GPUS >= 2:
        few_digits("odd", 47, 12)
        both(2, "odd", "--data", "odd", *FEW[2:], "--model", "mlp", "--batch-size", 8, tolerance=2e-4)


def steps_that_cannot_be_recorded_are_put_one_by_one():
    few_digits()
    for stages in (1, 2):
        shown = both(1, f"by_hand{stages}", *FEW, "--model", "mlp", "--batch-size", 24, "--stages",
                     stages, tolerance=2e-4, EMU_CAPTURE="never")
        assert re.search(r"^engine .*, steps without a graph \(recording a step: ", shown, re.M), shown


def steps_of_many_batches_and_clipping_are_the_same():
    few_digits()
    for n, more in ((1, ("--accumulate", 3, "--batch-size", 10)),
                    (2, ("--accumulate", 2, "--batch-size", 14, "--clip-norm", 0.5))):
        if n <= GPUS:
            both(n, f"many{n}", *FEW, "--model", "cnn", "--optimizer", "sgd", *more,
                 tolerance=2e-4)


def a_bad_step_is_skipped_on_both():
    few_digits()
    args = (*FEW[:4], *FEW[4:], "--model", "mlp", "--optimizer", "sgd", "--lr", 1e6,
            "--batch-size", 24, "--on-nan", "skip", "--progress", "lines")
    told = []
    for engine in ("cpu", "cuda"):
        shown = run(1, *args, "--engine", engine, env=on_gpu())[0].out
        told.append(re.findall(r"step [0-9]+ skipped", shown))
    assert told[0] == told[1] and len(told[0]) > 1, told


def a_run_moves_from_one_to_the_other():
    few_digits()
    common = (*FEW[:2], *FEW[4:], "--model", "cnn", "--no-dropout", "--batch-size", 50)
    run_ok(1, *common, "--epochs", 4, "--engine", "cpu", "--log", "whole")
    run_ok(1, *common, "--epochs", 2, "--engine", "cuda", "--checkpoint", "c", env=on_gpu())
    run_ok(1, *common, "--epochs", 3, "--engine", "cpu", "--resume", "c", "--checkpoint", "c",
           "--log", "then")
    run_ok(1, *common, "--epochs", 4, "--engine", "cuda", "--resume", "c", "--log", "last",
           "--stages", 2, env=on_gpu())
    same(losses("whole")[4:], losses("then") + losses("last"), 2e-4)


def other_precisions_stay_near():
    few_digits()
    args = (*FEW[:2], *FEW[4:], "--epochs", 1, "--model", "cnn", "--batch-size", 24, "--optimizer",
            "sgd", "--lr", 0.1)
    on_cpu(1, "near", *args)
    # the last: TFLOP/s of the emulation's device, which has an H200's numbers
    for precision, words, tolerance, peak in (
            ("tf32", "fp32 with TF32", 3e-3, 535),
            ("bf16", "bf16 with fp32 master weights", 2e-2, 1070),
            ("fp16", "fp16 with fp32 master weights and a scaled", 5e-3, 1070)):
        shown = as_on_cpu(1, "near", *args, tolerance=tolerance, precision=precision)
        assert words in shown, shown
        (began,), (end,) = rows("near." + precision, "run"), rows("near." + precision, "end")
        share = 100 * began["flop_per_sample"] * end["images"] / end["train_seconds"]
        if EMULATED:
            assert int(began["peak_flops"] / 1e12) == peak, began
        if began["peak_flops"]:
            assert abs(share / began["peak_flops"] / end["peak_percent"] - 1) < 1e-3, (began, end)
        assert end["device_bytes"] > 1 << 20, end
        assert losses("near.cpu") != losses("near." + precision), precision
    if EMULATED: # a product that half as much may be asked of, and one of which nothing is known
        for chip, peak in (("NVIDIA L40:8.9", 132 * 1980e6 * 512), ("NVIDIA L99:8.9", None)):
            shown = as_on_cpu(1, "near", *args, tolerance=2e-2, precision="bf16", EMU_CHIP=chip)
            (began,), (end,) = rows("near.bf16", "run"), rows("near.bf16", "end")
            assert began["peak_flops"] == peak and (end["peak_percent"] is None) == (peak is None), began
            assert ("what the GPU could is unknown" in shown) == (peak is None), shown
    # where cuDNN refuses what it recommends, and where all that it has needs a large workspace
    for precision, tolerance in (("bf16", 2e-2), ("fp32", 2e-4)):
        for of_cudnn, *more in (("refused",), ("refused", "--tune=0.000001"), ("large",)) if EMULATED else ():
            as_on_cpu(1, "near", *args, *more, tolerance=tolerance, precision=precision,
                      EMU_CUDNN=of_cudnn)
    if EMULATED:
        as_on_cpu(1, "near", *args, tolerance=2e-2, precision="bf16", EMU_CUDNN="loose")
        fails(1, "'conv1': cuDNN has no deterministic engine for it that needs at most [0-9]+ MiB", *args,
              "--deterministic", EMU_CUDNN="loose")


def header_of(path):
    with open(path, "rb") as f:
        raw = f.read()
    size = struct.unpack("<Q", raw[:8])[0]
    return json.loads(raw[8:8 + size]), raw[8 + size:]


def fp16_scales_its_loss_and_remembers_by_how_much():
    few_digits()
    common = (*FEW[:2], *FEW[4:], "--model", "mlp", "--batch-size", 24, "--engine", "cuda",
              "--precision", "fp16", "--checkpoint", "c", "--progress", "lines")
    run_ok(1, *common, "--epochs", 1, env=on_gpu())
    header, data = header_of("c")
    told = header["__metadata__"]
    assert (told["loss_scale"], told["good_steps"], told["updates"]) == ("65536", "4", "4"), told
    # more than gradients can bear: it comes down, and those steps are left out
    told["loss_scale"] = "4194304"
    text = json.dumps(header).encode()
    with open("c", "wb") as f:
        f.write(struct.pack("<Q", len(text) + -len(text) % 8) + text + b" " * (-len(text) % 8) + data)
    shown = run_ok(1, *common, "--epochs", 2, "--resume", "c", env=on_gpu()).out
    over = re.findall(r"step [0-9]+ skipped: its gradients are not finite; the loss is now scaled by "
                      r"([0-9.e+]+)", shown)
    assert over and float(over[0]) == 2**21, shown
    told = header_of("c")[0]["__metadata__"]
    assert int(told["updates"]) == 8 - len(over) and told["step"] == "8", told
    assert float(told["loss_scale"]) == 2**(22 - len(over)), told


def a_residual_network_learns_the_same():
    few_digits("tiny", 24, 8)
    # small steps: with few pixels to a channel, larger ones let rounding decide
    args = ("--data", "tiny", "--seed", 3, "--plot", "none", "--model", narrow_resnet18(), "--momentum", 0.9,
            "--lr", 0.001)
    first = (*args, "--epochs", 1, "--batch-size", 12)
    on_cpu(1, "one", *first)
    as_on_cpu(1, "one", *first, "--checkpoint", "c", tolerance=1e-4)
    as_on_cpu(1, "one", *first, tolerance=3e-2, precision="bf16")
    # both engines, and two ranks, go on from what the GPU has learnt and seen
    n = min(GPUS, 2)
    both(n, "on", *args, "--epochs", 2, "--batch-size", 12 // n, "--resume", "c", "--check-replicas",
         tolerance=1e-3)


def a_plan_of_buckets_is_not_kept_by_an_engine_that_has_none():
    few_digits()
    args = (*FEW, "--model", "mlp", "--checkpoint", "c", "--batch-size", 45)
    run_ok(2, *args, "--backend", "tcp", "--bucket-mb", 25, "--engine", "cpu")
    assert header_of("c")[0]["__metadata__"]["buckets"]
    run_ok(1, *args, "--resume", "c", "--epochs", 3, "--engine", "cuda", env=on_gpu())
    assert "buckets" not in header_of("c")[0]["__metadata__"], header_of("c")[0]["__metadata__"]


def models_of_the_users_own_learn_the_same():
    few_digits()
    for model in ("chain", "branches", "bottleneck"):
        both(1, model, *FEW, "--model", os.path.join(MODELS, f"{model}.model"), "--lr", 0.01, "--batch-size", 24,
             tolerance=1e-3)
    with open("deep.model", "w") as f:  # as many layers as one likes
        f.write("task = classify\noptimizer = sgd\n\n")
        f.write("".join(f"f{i}\tlinear\toutputs=8\n" for i in range(450)) + "last\tlinear\n")
    both(1, "deep", *FEW, "--model", "./deep.model", "--lr", 0.01, "--batch-size", 45, tolerance=1e-3)


def a_language_model_learns_the_same():
    with open("sheep", "w") as f:
        f.write("".join(f"{i} sheep and {i + 1} sheep make {2 * i + 1} sheep.\n" for i in range(40)))
    args = ("--data", "sheep", "--seed", 3, "--plot", "none", "--lr", 5e-3, "--model")
    # no size is a multiple of what is done at once; 72 tokens are more than a block's queries, and in the
    # emulated engine the logits of 216 come in pieces (LOGITS_AT_ONCE)
    odd = (*args, "gpt2:layers=1,heads=3,width=15,context=7,vocab=131", "--batch-size", 5)
    far = (*args, "gpt2:layers=2,heads=2,width=16,context=72,vocab=128", "--batch-size", 3)
    both(1, "odd", *odd, "--steps", 5, "--accumulate", 3, "--clip-norm", 0.5, "--label-smoothing", 0.1,
         "--checkpoint", "c")
    # samples are written by the host's copy of what was learnt
    both(1, "on", *odd, "--steps", 8, "--resume", "c", "--sample", 8)
    both(1, "far", *far, "--epochs", 2, "--optimizer", "sgd", "--momentum", 0.9, "--tune=1", "--trace", "t")
    for precision, tolerance in (("tf32", 1e-3), ("bf16", 1e-2), ("fp16", 2e-3)):
        both(1, precision, *far, "--epochs", 1, "--accumulate", 2, tolerance=tolerance, precision=precision)
    llama = (*args, "llama:layers=2,heads=4,kv_heads=2,width=24,hidden=20,context=70,vocab=131,"
             "base=500,eps=1e-2,dropout=0.2,factor=8,original=40",
             "--batch-size", 3)
    both(1, "llama", *llama, "--steps", 5, "--accumulate", 2)
    both(1, "llama16", *llama, "--steps", 5, tolerance=1e-2, precision="bf16")
    # heads of 8 numbers, that share keys: by cuDNN
    shared = (*args, "llama:layers=2,heads=4,kv_heads=2,width=32,hidden=20,context=21,vocab=131", "--batch-size", 3)
    for precision, tolerance in (("bf16", 1e-2), ("fp16", 2e-3)):
        both(1, "shared" + precision, *shared, "--steps", 5, tolerance=tolerance, precision=precision)
    both(1, "tied", *args, "llama:layers=1,heads=2,width=16,hidden=24,context=8,vocab=128,untied=0",
         "--batch-size", 3, "--steps", 5)
    both(1, "drops", *args, "gpt2:layers=1,heads=3,width=15,context=7,vocab=131,dropout=0.2",
         "--batch-size", 5, "--steps", 5)
    # at last one of the ranks has no sample
    for name, more in (("time", ()), ("shard", ("--shard-optimizer", "--clip-norm", 0.5, "--bucket-mb", 0.01))):
        if GPUS >= 2:
            both(2, name, *far, "--epochs", 2, "--check-replicas", *more, EMU_SEED="2")
    said = fails(1, "the loss is .* at step [0-9]+, epoch 1; first bad: ", *odd, "--optimizer", "sgd", "--lr", 1e6)
    (cpu,) = run(1, *odd, "--optimizer", "sgd", "--lr", 1e6, "--engine", "cpu", "--progress", "none")
    assert cpu.err.replace("-nan", "nan") == said.replace("-nan", "nan"), (cpu, said)
    fails(1, r"'h\.0\.attn' has heads of 129 numbers, the cuda engine takes 128 at most: try more heads",
          *args, "gpt2:layers=1,heads=1,width=129,context=4,vocab=128")


def same_checkpoint(a, b, tolerance):
    one, other = arrays_of(a)[0], arrays_of(b)[0]
    assert set(one) == set(other), (set(one), set(other))
    for name in one:
        worst = max(abs(x - y) for x, y in zip(one[name], other[name]))
        assert worst <= tolerance * max(1, *map(abs, one[name])), (name, worst)


def two_stages_learn_what_they_do_on_cpus():
    few_digits()
    args = (*FEW, "--stages", 2)
    # ranks, their GPUs, and what else
    for n, gpus, name, more, env in (
            (1, 1, "one", ("--model", "mlp", "--batch-size", 24, "--micro-batches", 1), {}),
            (1, 2, "two", ("--model", "cnn", "--batch-size", 25, "--micro-batches", 3, "--accumulate",
                           2, "--optimizer", "adam", "--clip-norm", 0.5, "--trace", "t"),
             {"DDP_GPU_DATA": "host"}),
            (2, 4, "four", ("--model", "cnn", "--batch-size", 16, "--check-replicas"),
             {"EMU_PEERS": "1"}),
            (2, 2, "each", ("--model", "mlp", "--batch-size", 16, "--micro-batches", 2,
                            "--shard-optimizer", "--check-replicas"), {})):
        if gpus > GPUS:
            continue
        on_cpu(n, name, *args, *more, "--checkpoint", "cpu")
        shown = as_on_cpu(n, name, *args, *more, "--checkpoint", "gpu", tolerance=2e-4,
                          EMU_DEVICES=str(gpus), EMU_SEED=str(n), **env)
        where = ("two streams of a GPU" if gpus == n else r"GPUs 0 and 1 \(" if env.get("EMU_PEERS") else
                 "GPUs 0 and 1 by way of the host" if EMULATED else "GPUs 0 and 1")
        assert re.search(r"engine .*, stages \w+ to \w+ \| \w+ to \w+ on " + where, shown), shown
        same_checkpoint("cpu", "gpu", 1e-3)
        if name == "two":
            check_trace("t", n, len(losses("two.fp32")), "compute, second stage", "data, on the host",
                        "data, to the GPU")
    # both stages know what the loss is multiplied by
    half = (*args, "--model", "cnn", "--batch-size", 24, "--optimizer", "sgd", "--lr", 0.1)
    on_cpu(1, "half", *half)
    as_on_cpu(1, "half", *half, tolerance=5e-3, precision="fp16")
    as_on_cpu(1, "half", *half, tolerance=2e-2, precision="bf16")
    # the norms of a residual network see a micro-batch; the cut is within a block
    few_digits("tiny", 24, 4)
    both(1, "cut", "--data", "tiny", "--seed", 3, "--plot", "none", "--model", narrow_resnet18(), "--lr", 0.001,
         "--epochs", 1, "--batch-size", 12, "--micro-batches", 2, "--stages", 2, tolerance=1e-3)
    said = fails(1, "the loss is .* at step [0-9]+, epoch 1; first bad: .*'fc[123]", *args, "--model",
                 "mlp", "--optimizer", "sgd", "--lr", 1e6)
    (cpu,) = run(1, *args, "--model", "mlp", "--optimizer", "sgd", "--lr", 1e6, "--engine", "cpu",
                 "--progress", "none")
    assert cpu.err.replace("-nan", "nan") == said.replace("-nan", "nan"), (cpu, said)
    with open("sheep", "w") as f:
        f.write("".join(f"{i} sheep and {i + 1} sheep make {2 * i + 1} sheep.\n" for i in range(20)))
    words = ("--data", "sheep", "--seed", 3, "--plot", "none", "--stages", 2, "--epochs", 1, "--model")
    llama = (*words, "llama:layers=2,heads=4,kv_heads=2,width=24,hidden=20,context=16,vocab=131,base=500,dropout=0.2")
    both(1, "words", *llama, "--batch-size", 5, "--micro-batches", 2, EMU_DEVICES="2")
    both(2, "wide", *llama, "--batch-size", 4, "--accumulate", 2, "--check-replicas", EMU_DEVICES="4", EMU_PEERS="1")
    both(1, "narrow", *llama, "--batch-size", 5, tolerance=1e-2, precision="bf16", EMU_DEVICES="1")
    fails(1, "--stages 2: model 'linreg' has 1 layer", "--model", "linreg", "--stages", 2)


def stages_share_the_weight_of_embedding_and_logits():
    with open("sheep", "w") as f:
        f.write("".join(f"{i} sheep and {i + 1} sheep make {2 * i + 1} sheep.\n" for i in range(12)) + "That is all.\n")
    # 25 samples: at last one of two ranks has none; logits come in pieces in the emulated engine
    args = ("--data", "sheep", "--seed", 3, "--plot", "none", "--lr", 0.01, "--epochs", 1,
            "--model", "gpt2:layers=2,heads=2,width=16,context=16,vocab=257", "--weight-decay", 2,
            "--decay-matrices-only")
    # ranks, their GPUs, and what else
    for n, gpus, name, more, env in (
            (1, 2, "two", ("--batch-size", 15, "--micro-batches", 3, "--accumulate", 2, "--clip-norm", 0.5,
                           "--epochs", 3), {}),
            (1, 1, "one", ("--batch-size", 5, "--micro-batches", 1), {}),
            (2, 4, "four", ("--batch-size", 4, "--shard-optimizer", "--check-replicas"), {"EMU_PEERS": "1"}),
            (2, 2, "each", ("--batch-size", 3, "--accumulate", 2, "--check-replicas"), {})):
        if gpus > GPUS:
            continue
        on_cpu(n, name, *args, *more, "--checkpoint", "cpu")
        for stages in (1, 2) if name == "two" else (2,):
            as_on_cpu(n, name, *args, *more, "--stages", stages, "--checkpoint", "gpu", tolerance=2e-4,
                      EMU_DEVICES=str(gpus), EMU_SEED=str(n), **env)
            same_checkpoint("cpu", "gpu", 1e-3)
    for precision, tolerance in (("bf16", 1e-2), ("fp16", 2e-3)):
        as_on_cpu(1, "one", *args, "--batch-size", 5, "--stages", 2, tolerance=tolerance, precision=precision,
                  EMU_DEVICES="2")


def ranks_normalise_together():
    if GPUS < 2:
        return
    few_digits("tiny", 5, 4)
    args = ("--data", "tiny", "--seed", 3, "--plot", "none", "--model", narrow_resnet18(), "--lr", 0.001,
            "--sync-batch-norm", "--bucket-mb", 25)
    # two ranks learn what one does that has all; at last one of them has no sample
    on_cpu(1, "tiny", *args, "--epochs", 1, "--batch-size", 4)
    as_on_cpu(2, "tiny", *args, "--epochs", 1, "--batch-size", 2, "--check-replicas", tolerance=1e-3)
    # and here it has no second batch, while the other one has
    args = (*args, "--epochs", 2, "--accumulate", 2, "--batch-size", 2)
    both(2, "more", *args, tolerance=1e-3)
    # every rank has it at the next norm; one of them had it first: pixels over nearly nothing are
    # infinite, but for black ones
    few_digits("black", 5, 4, black=True)
    results = run(2, *args, "--engine", "cuda", "--progress", "none", "--normalize", "0/1e-40",
                  env=on_gpu(), each=lambda r: ("--data", "tiny" if r else "black"))
    assert [r.code for r in results] == [1, 1] and results[0].err == "", results
    assert re.match(r"ddp-train: rank 1: the loss is .* at step 1, epoch 1; first bad: the data: try",
                    results[1].err), results


def ranks_share_an_optimiser_out():
    few_digits()
    for n, model, more in ((3, "cnn", ("--optimizer", "adam", "--clip-norm", 0.5)),
                           (2, "mlp", ("--optimizer", "sgd", "--momentum", 0.9, "--no-overlap"))):
        if n > GPUS:
            continue
        args = (*FEW[:2], *FEW[4:], "--model", model, "--batch-size", 14, *more, "--no-dropout")
        both(n, model, *args, "--epochs", 1, "--shard-optimizer", "--check-replicas", "--checkpoint",
             model + ".c", tolerance=2e-4)
        # what the ranks remember is put together again: one rank goes on as from a whole one
        run_ok(n, *args, "--epochs", 1, "--checkpoint", model + ".w", "--engine", "cuda", env=on_gpu())
        for kind in "cw":
            run_ok(1, *args, "--epochs", 2, "--resume", f"{model}.{kind}", "--engine", "cuda", "--log",
                   f"{model}.{kind}.on", env=on_gpu())
        same(losses(model + ".c.on"), losses(model + ".w.on"), 1e-4)


def averages_of_the_weights_are_the_same():
    few_digits()
    args = (*FEW[:2], *FEW[4:], "--model", "mlp", "--ema", 0.7, "--no-dropout", "--checkpoint", "c")
    for n, more in ((1, ("--stages", 2)), (min(GPUS, 2), ("--shard-optimizer",))):
        few = (*args, "--batch-size", 24 // n)
        on_cpu(n, "ema", *few, *more, "--epochs", 2, "--logits", "l")
        os.rename("c", "cpu.c"), os.rename("l", "cpu.l")
        # half of it there, and half of it here
        run_ok(n, *few, *more, "--epochs", 1, "--engine", "cuda", env=on_gpu())
        os.remove("ema.fp32") if os.path.exists("ema.fp32") else None
        run_ok(n, *few, *more, "--epochs", 2, "--engine", "cuda", "--resume", "c", "--logits", "l",
               "--log", "ema.fp32", env=on_gpu())
        same_checkpoint("cpu.c", "c", 1e-4)
        same_checkpoint("cpu.l", "l", 1e-4)
        a, b = rows("ema.cpu", "epoch")[-1], rows("ema.fp32", "epoch")[-1]
        assert abs(a["test_loss"] - b["test_loss"]) < 1e-4 * a["test_loss"], (a, b)
        os.remove("ema.cpu")


def floats_of_many_classes_are_the_same():
    """Images of two channels, as floats; labels of more than 8 bits; also from the host's memory."""
    os.mkdir("many")
    for part, n in (("train", 50), ("test", 12)):
        pixels = [(i * 7919 % 2001 - 1000) / 500 for i in range(n * 2 * 6 * 5)]
        put_array(f"many/{part}-images.npy", "<f4", (n, 2, 6, 5), struct.pack(f"<{len(pixels)}f", *pixels))
        put_array(f"many/{part}-labels.npy", "<u2", (n,), struct.pack(f"<{n}H", *(i * 37 % 300 for i in range(n))))
    args = ("--data", "many", "--model", "./net.model", "--epochs", 2, "--batch-size", 12, "--plot", "none",
            "--augment", "crop:1,flip", "--lr", 0.01)
    with open("net.model", "w") as f:
        f.write("task = classify\noptimizer = adam\nc conv outputs=4 size=3 pad=1 bias relu\nfc linear\n")
    both(1, "many", *args, tolerance=2e-4)
    both(1, "host", *args, tolerance=2e-4, DDP_GPU_DATA="host")


def images_are_moved_and_mirrored_alike():
    few_digits()
    args = (*FEW, "--model", "cnn", "--augment", "crop:2,flip", "--batch-size", 24)
    both(1, "plain", *args, tolerance=2e-4)
    profiler = os.path.join(os.path.dirname(ENGINE), "emu_nvtx.so")
    looks = EMULATED and os.path.exists(profiler)
    args += ("--accumulate", 2)
    on_cpu(1, "host", *args)
    as_on_cpu(1, "host", *args, tolerance=2e-4,
              DDP_GPU_DATA="host", NVTX_INJECTION64_PATH=profiler if looks else "", EMU_RANGES="ranges")
    if looks:  # two epochs of two steps, and the host a step ahead
        with open("ranges") as f:
            told = f.read().splitlines()
        assert told == ["record", "record", "step 1", "step 2", "wait for step 1",
                        "wait for step 2", "evaluate", "step 3", "step 4", "wait for step 3",
                        "wait for step 4", "evaluate", "pull"], told


# ---- what goes wrong ----

def fails(n, text, *args, **env):
    results = run(n, "--engine", "cuda", "--progress", "none", "--plot", "none", *args,
                  env=on_gpu(**env))
    assert [r.code for r in results] == [1] * n, results
    said = [r.err for r in results if r.err]
    assert said and all(line.count("\n") == 1 for line in said), said
    assert re.search(text, said[0]), said
    return said[0]


def without_a_gpu_the_cpu_is_taken_and_it_is_said():
    shown = run_ok(1, "--epochs", 0, env=on_gpu(EMU_DEVICES="0")).out
    assert re.search(r"engine +cpu: .*\(no GPU: no CUDA-capable device is detected\)", shown), shown
    shown = run_ok(2, "--epochs", 0, env=on_gpu()).out
    assert re.search(r"engine +cuda: a GPU made .*\(every rank has a GPU\)", shown), shown
    fails(1, "no engine 'cuda': no GPU: no CUDA-capable device", EMU_DEVICES="0")


def what_does_not_fit_is_listed():
    said = fails(1, r"no memory on GPU 0 for [0-9.]+ MiB of [a-z ]+: of 100\.0 MiB [0-9.]+ are free and "
                    r"0\.0 taken by CUDA and other programs, beside our weights .* activations "
                    r".*; --batch-size [0-9]+ fits",
                 "--model", "mlp", "--batch-size", 16384, EMU_MEMORY_MB="100")
    run_ok(1, "--model", "mlp", "--batch-size", re.search("([0-9]+) fits", said)[1], "--epochs", 0,
           "--engine", "cuda", env=on_gpu(EMU_MEMORY_MB="100"))
    fails(1, "; not even --batch-size 1 fits", "--model", "mlp", EMU_MEMORY_MB="20")
    # of a rank's two it says which
    for sizes, which in (("200,2", "1 for .*: of 2.0"), ("2,200", "0 for .*: of 2.0")):
        fails(1, "no memory on GPU " + which, "--model", "mlp", "--stages", 2, EMU_DEVICES="2",
              EMU_MEMORY_MB=sizes)


def a_kernel_that_is_refused_is_named():
    few_digits()
    why = "GPU {}: invalid configuration argument"
    for stages, refused, text in (
            (1, "bias_relu:1", "'conv1' forward: kernel 'bias_relu' on " + why.format(0)),
            (2, "class_loss:1", "the loss, stage 2: kernel 'class_loss' on " + why.format(1)),
            (2, "finish:1", "a step, stage 1: kernel 'finish' on " + why.format(0)),
            (2, "finish:2", "a step, stage 2: kernel 'finish' on " + why.format(1))):
        fails(1, text, "--data", "few", "--stages", stages, EMU_DEVICES="2", EMU_REFUSED=refused)


def an_engine_of_another_build_is_refused():
    fails(1, r"the engine for GPUs \(unknown\) is of another build than this program \([0-9.]+-[0-9a-f]{8}\)",
          DDP_ENGINE="libm.so.6")


def a_gpu_that_cannot_be_used_says_why():
    fails(1, r"no engine 'cuda': the NVIDIA driver supports CUDA up to 11\.8, but this engine was built with",
          EMU_DRIVER="11080")
    fails(1, r"GPU 0 \(0000:01:00\.0\) is in use, and its compute mode allows one process", EMU_TAKEN="3")
    fails(1, r"GPU 0 \(0000:01:00\.0\) is in compute mode Prohibited", EMU_TAKEN="2")
    # one of two: the one that has it tells
    fails(2, r"GPU 0 \(0000:01:00\.0\): all CUDA-capable devices are busy", EMU_TAKEN="0")


def two_ranks_on_one_gpu_are_refused():
    fails(2, r"ranks 0 and 1 are both on GPU 0000:01:00.0 of ", EMU_DEVICES="1")


def nccl_says_what_went_wrong():
    fails(2, r"NCCL 2\.17\.5: 2\.18 or newer is needed", EMU_NCCL="old")
    fails(2, r"NCCL 2\.28\.9, step [0-9]+: remote process exited", EMU_NCCL="async:0")
    fails(2, r"NCCL 2\.28\.9, reduce_scatter #[0-9]+ of [0-9]+ numbers: unhandled system error", "--shard-optimizer",
          EMU_NCCL="grouped:0")
    # three hear why, one after the other, inside of a call that would never end
    fails(4, r"rank 2 on \S+: NCCL 2\.28\.9, ncclCommInitRank: unhandled system error", EMU_NCCL="init:2")


def waits_in_vain(n, text, **env):
    """A deadline that the ranks keep until they are where they wait: a busy machine may need a
    longer one for that."""
    for seconds in (2, 8, 32):
        results = run(n, "--engine", "cuda", "--progress", "none", "--plot", "none",
                      "--group-timeout", f"{seconds}s", env=on_gpu(**env))
        assert [r.code for r in results] == [1] * n, results
        if re.search(text.format(seconds), "".join(r.err for r in results)):
            return
    raise AssertionError(results)


def a_step_under_way_is_broken_off_when_the_run_ends():
    # two sums before the steps and two in each: the second step waits for rank 1 for ever, the third is
    # refused, and no rank waits for the second
    few_digits()
    fails(2, "a step: invalid configuration argument", *FEW, "--model", "mlp", "--bucket-mb", 25,
          "--batch-size", 8, EMU_NCCL="late:1:5", EMU_REFUSED="graph:3")


def ranks_that_do_not_meet_are_not_awaited_for_ever():
    waits_in_vain(3, r"NCCL 2\.28\.9, ncclCommInitRank: the 3 ranks have not met within {} s",
                  EMU_NCCL="absent:1")


def a_rank_whose_gpu_never_ends_is_not_awaited_for_ever():
    waits_in_vain(2, r"step [0-9]+: rank [01] has waited {} s for its GPU", EMU_NCCL="late:1")


def a_killed_rank_is_named_in_seconds():
    ranks = Ranks(2, "--engine", "cuda", "--epochs", 500, "--progress", "none", "--plot", "none",
                  "--log", "log", env=on_gpu())
    wait_until(lambda: os.path.exists("log") and os.path.getsize("log") > 2000)
    ranks.signal(signal.SIGKILL, 1)
    first, second = ranks.wait()
    assert second.code == -signal.SIGKILL and first.code == 1, (first, second)
    assert re.match(r"ddp-train: step [0-9]+: rank 1 on .* gone", first.err), first


if GPUS == 0:
    print("skipped: the driver finds no GPU; needs gpu")
    sys.exit(77)
tests = [one_rank_learns_the_same, data_on_the_host_give_the_same, ranks_learn_together,
         steps_of_many_batches_and_clipping_are_the_same, a_bad_step_is_skipped_on_both,
         a_run_moves_from_one_to_the_other, other_precisions_stay_near,
         fp16_scales_its_loss_and_remembers_by_how_much, a_residual_network_learns_the_same,
         a_plan_of_buckets_is_not_kept_by_an_engine_that_has_none,
         models_of_the_users_own_learn_the_same, a_language_model_learns_the_same,
         two_stages_learn_what_they_do_on_cpus, stages_share_the_weight_of_embedding_and_logits,
         ranks_normalise_together, ranks_share_an_optimiser_out,
      averages_of_the_weights_are_the_same,
      floats_of_many_classes_are_the_same, images_are_moved_and_mirrored_alike]
if GPUS >= 2:
    tests.append(a_killed_rank_is_named_in_seconds)
if EMULATED:
    tests += [steps_that_cannot_be_recorded_are_put_one_by_one,
              without_a_gpu_the_cpu_is_taken_and_it_is_said, what_does_not_fit_is_listed,
              a_kernel_that_is_refused_is_named,
              an_engine_of_another_build_is_refused, a_gpu_that_cannot_be_used_says_why,
              two_ranks_on_one_gpu_are_refused, nccl_says_what_went_wrong,
              a_step_under_way_is_broken_off_when_the_run_ends,
              ranks_that_do_not_meet_are_not_awaited_for_ever,
              a_rank_whose_gpu_never_ends_is_not_awaited_for_ever]
main(tests)
