"""test_tune.py BUILD SOURCE ENGINE - --tune takes the fastest algorithms whose answers are right

ENGINE as test_cuda.py's. The GPU made of a CPU tells times that it makes up (EMU_TIMES) and offers
algorithms of which some must not be taken: emu_cudnn_graph.cc, emu_cudnn.cc, emu_cublaslt.cc.
"""
import json
import os
import re
import struct
import sys

sys.path.insert(0, os.path.join(sys.argv[2], "tests", "worker", "train"))
from gpu import EMULATED, FEW, GPUS, as_on_cpu, few_digits, on_cpu, on_gpu, same  # noqa: E402
from ranks import losses, main, run_ok  # noqa: E402

TOLD = {"EMU_TIMES": "1"}
TUNE = "--tune=600"  # what is slow is the stand-in, on a busy machine
# 20 images: two whole steps, and one number of samples
ARGS = (*FEW[:2], *FEW[4:], "--model", "cnn", "--no-dropout", "--group-timeout", "25m",
        "--batch-size", 10, "--engine", "cuda")


def tuned(shown):
    return re.findall(r"^tuned +(.*)$", shown, re.M)


def checkpoint(path):
    with open(path, "rb") as f:
        raw = f.read()
    size = struct.unpack("<Q", raw[:8])[0]
    return json.loads(raw[8:8 + size]), raw[8 + size:]


def choice_in(path):
    """(header, {product: algorithm})"""
    header, *entries = checkpoint(path)[0]["__metadata__"]["algorithms"].split(";")
    return header, dict(entry.split("=") for entry in entries)


def rewrite(path, choice):
    header, data = checkpoint(path)
    header["__metadata__"]["algorithms"] = choice
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


def the_fastest_right_ones_are_taken_and_kept():
    few_digits(train=20, test=8)
    on_cpu(1, "whole", *ARGS[:-2], "--epochs", 2)
    lines = tuned(as_on_cpu(1, "whole", *ARGS[:-2], "--epochs", 2, TUNE, "--checkpoint", "w",
                            tolerance=2e-4, **TOLD))
    assert re.match(r"\d+ of 11 products by another algorithm: [0-9.e+]+ us instead of [0-9.e+]+; "
                    r"measured in [0-9.]+ of 600.0 s$", lines[0]), lines
    header, made = choice_in("w")
    assert re.match(r"1 cuDNN \d+, cuBLASLt \d+, \w", header) and len(made) == 11, (header, made)
    if EMULATED:
        assert lines[0].startswith("11 of 11 products by another algorithm"), lines
        for product, name in made.items():
            # of cuDNN's an engine with its knobs, but for filters; of cuBLASLt's the second
            wanted = {"forward": r"g4,17:2,24:1$", "image": r"g4,17:2,24:1$", "filter": "g10$"}.get(
                product.split()[0], r"be31a1e0,.*,1\d{8},0,0,0,0$")
            assert re.match(wanted, name), (product, name)
        # what would have been faster, but is wrong
        assert len(lines) == 9 and lines[-1] == "and 4 more like these", lines
        assert lines[1] == "'conv1', forward: cuDNN's engine 2 is left out: relative error 0.02"
        assert any(re.match(r"'fc1', gradient of weights: cuBLASLt's algorithm \w+", line)
                   for line in lines), lines
    # stopped, and resumed where the times would tell something else: the same bits
    run_ok(1, *ARGS, "--epochs", 1, TUNE, "--checkpoint", "c", "--log", "first", env=on_gpu(**TOLD))
    assert EMULATED is False or choice_in("c") == (header, made), choice_in("c")
    part = run_ok(1, *ARGS, "--epochs", 2, TUNE, "--resume", "c", "--checkpoint", "c", "--log", "then",
                  env=on_gpu()).out
    assert tuned(part) == ["as the checkpoint says: 11 products"], part
    if EMULATED:  # elsewhere the two runs may have chosen otherwise
        assert losses("first") + losses("then") == losses("whole.fp32")
        assert checkpoint("c") == checkpoint("w")
    # and they are not the usual ones' bits, though nearly
    run_ok(1, *ARGS, "--epochs", 2, "--log", "usual", env=on_gpu())
    same(losses("usual"), losses("whole.fp32"), 2e-4)
    assert not EMULATED or losses("usual") != losses("whole.fp32")
    a_foreign_choice_is_told_and_not_taken(made)


def a_foreign_choice_is_told_and_not_taken(made):
    other = "1 cuDNN 1, cuBLASLt 2, another GPU;" + ";".join(f"{k}={v}" for k, v in made.items())
    for choice, line in ((other, "the checkpoint's choice was made for cuDNN 1, cuBLASLt 2, another GPU: "
                                 "not taken"),
                         ("1 cuDNN;nonsense", "the checkpoint's choice cannot be read: not taken")):
        rewrite("c", choice)
        shown = run_ok(1, *ARGS, "--epochs", 2, TUNE, "--resume", "c", env=on_gpu()).out
        assert tuned(shown) == ["nothing: no step is left to take", line], shown


def ranks_take_what_all_of_them_have():
    if GPUS < 2:
        return
    few_digits(train=20, test=8)
    # two numbers of samples, the last step's and the others'; the second GPU lacks an engine
    args = (*ARGS[:-4], "--batch-size", 4, "--epochs", 1)
    on_cpu(2, "two", *args)
    lines = tuned(as_on_cpu(2, "two", *args, TUNE, "--check-replicas", "--checkpoint", "c",
                            tolerance=2e-4, EMU_POOR="1", **TOLD))
    made = choice_in("c")[1]
    if EMULATED:
        assert re.match("16 of 22 products by another algorithm: .* s; 6 others not to be had on all ranks$",
                        lines[0]), lines
        assert {name[0] for product, name in made.items()
                if product.split()[0] in ("forward", "image")} == {"-"}, made
        assert sum(name[0] == "b" for name in made.values()) == 12, made


def stages_and_half_precision_are_tuned_too():
    few_digits(train=20, test=8)
    args = (*ARGS[:-2], "--epochs", 1, "--optimizer", "sgd", "--lr", 0.1)
    on_cpu(1, "half", *args)
    lines = tuned(as_on_cpu(1, "half", *args, TUNE, "--stages", 2, "--micro-batches", 2,
                            "--checkpoint", "c", tolerance=2e-2, precision="bf16", **TOLD))
    made = choice_in("c")[1]
    assert len(made) == 11 and all(" 5 " in product for product in made), made
    if EMULATED:  # tensor cores are what is wanted then
        assert sorted(name for name in made.values() if name[0] == "g") == ["g10"] * 2 + ["g5"] * 3, made
        assert lines[0].startswith("11 of 11"), lines


def without_time_it_goes_on():
    few_digits(train=20, test=8)
    run_ok(1, *ARGS, "--epochs", 1, "--log", "usual", env=on_gpu())
    shown = run_ok(1, *ARGS, "--epochs", 1, "--tune=0.000001", "--log", "none", env=on_gpu()).out
    assert "0 of 11 products" in tuned(shown)[0] and "too little for 11" in tuned(shown)[0], shown
    assert losses("none") == losses("usual")
    shown = run_ok(1, *ARGS[:-2], "--epochs", 0, "--engine", "cpu", "--tune").out
    assert tuned(shown) == ["nothing: the engine 'cpu' has no choice"], shown


if GPUS == 0:
    print("skipped: the driver finds no GPU; needs gpu")
    sys.exit(77)
main([the_fastest_right_ones_are_taken_and_kept, ranks_take_what_all_of_them_have,
      stages_and_half_precision_are_tuned_too, without_time_it_goes_on])
