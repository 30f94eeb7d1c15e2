"""test_learning.py BUILD - ddp-train learns, with one rank and with many, and shows it"""
import json
import os
import random
import re
import xml.etree.ElementTree as xml

from ranks import losses, main, rows, run, run_ok

EXACT = ("--no-dropout", "--epochs", 2, "--plot", "none", "--seed", 3)


def close(a, b, tolerance):
    assert len(a) == len(b) and len(a) > 10, (len(a), len(b))
    for x, y in zip(a, b):
        assert abs(x - y) <= tolerance * max(1, abs(x)), (x, y)


def the_digits_are_learnt_to_97_percent():
    for n in (1, 2):
        shown = run_ok(n, "--check-replicas", "--log", f"log{n}").out
        found = re.search(r"accuracy +([0-9.]+) % of 359 test images", shown)
        assert found and float(found[1]) >= 97, shown
        assert re.search(r"speed +[0-9,]+ images/s", shown), shown
        assert re.search(rf"replicas +{n} alike", shown), shown
        picture = re.search(r"picture +(/.*\.svg)\n", shown)
        assert picture and xml.parse(picture[1]).getroot().tag.endswith("svg"), shown
        last = rows(f"log{n}", "epoch")[-1]
        assert f"{last['test_accuracy']:.2f}" == found[1], (last, shown)
        (end,) = rows(f"log{n}", "end")
        assert end["why"] == "target reached" and end["images"] == last["epoch"] * 1438, end


def bf16_learns_as_fp32_does():
    shown = run_ok(2, "--precision", "bf16", "--check-replicas", "--log", "bf16").out
    found = re.search(r"accuracy +([0-9.]+) % of 359 test images", shown)
    assert found and float(found[1]) >= 97, shown
    assert re.search(r"precision +bf16 \(.+\); weights, sums and optimizer in fp32", shown), shown
    (start,) = rows("bf16", "run")
    assert start["precision"] == "bf16", start
    for model, tolerance in (("mlp", 2e-2), ("cnn", 5e-2)):
        for precision in ("fp32", "bf16"):
            run_ok(1, *EXACT, "--model", model, "--optimizer", "sgd", "--precision", precision,
                   "--log", model + precision)
        close(losses(model + "fp32"), losses(model + "bf16"), tolerance)
        assert losses(model + "fp32") != losses(model + "bf16")


def the_known_line_is_found():
    for n in (1, 3):
        shown = run_ok(n, "--model", "linreg", "--plot", "none").out
        y = re.search(r"learned +y = ([-0-9.]+) x ([-+] [0-9.]+), drawn from y = 2 x - 1;", shown)
        assert y and abs(float(y[1]) - 2) < 0.02 and abs(float(y[2].replace(" ", "")) + 1) < 0.02, shown


def one_rank_of_64_is_two_of_32_is_four_of_16():
    for model, optimizer, tolerance in (("mlp", "sgd", 1e-5), ("cnn", "sgd", 1e-4),
                                        ("linreg", "adam", 1e-5)):
        for n in (1, 2, 4):
            run_ok(n, *EXACT, "--model", model, "--optimizer", optimizer, "--batch-size",
                   64 // n, "--log", f"{model}{n}")
        for n in (2, 4):
            close(losses(f"{model}1"), losses(f"{model}{n}"), tolerance)


def a_residual_network_learns_and_goes_on():
    """CIFAR's records, and PyTorch's names in the checkpoint."""
    random.seed(4)
    for name, n in (("data_batch_1.bin", 40), ("test_batch.bin", 12)):
        with open(name, "wb") as f:
            for i in range(n):  # three classes: which colour is bright
                pixels = [min(255, max(0, int(random.gauss(200 if p // 1024 == i % 3 else 60, 40))))
                          for p in range(3072)]
                f.write(bytes([i % 3] + pixels))
    common = ("--model", "resnet18", "--data", ".", "--batch-size", 4, "--lr", 0.01, "--plot",
              "none", "--check-replicas")
    run_ok(2, *common, "--epochs", 3, "--log", "whole", "--logits", "a", "--checkpoint", "w")
    assert rows("whole", "epoch")[-1]["test_accuracy"] > 90, rows("whole", "epoch")
    run_ok(2, *common, "--epochs", 2, "--checkpoint", "c")
    run_ok(2, *common, "--epochs", 3, "--resume", "c", "--logits", "b", "--log", "half")
    assert open("a", "rb").read() == open("b", "rb").read()
    assert losses("whole")[-5:] == losses("half")
    with open("w", "rb") as f:
        table = json.loads(f.read(int.from_bytes(f.read(8), "little")))
    shapes = {k: v["shape"] for k, v in table.items() if k != "__metadata__"}
    learnt = {k: v for k, v in shapes.items() if not k.startswith("optim.")}
    assert len(learnt) == 122, len(learnt)  # as torchvision.models.resnet18().state_dict()
    for name, shape in (("conv1.weight", [64, 3, 3, 3]), ("bn1.running_var", [64]),
                        ("layer2.0.downsample.0.weight", [128, 64, 1, 1]),
                        ("layer4.1.bn2.num_batches_tracked", []), ("fc.bias", [10])):
        assert learnt[name] == shape, (name, learnt.get(name))


def a_run_repeats_to_the_bit():
    for i in (1, 2):
        run_ok(2, "--epochs", 2, "--plot", "none", "--log", f"log{i}", "--logits", f"out{i}")
    assert losses("log1") == losses("log2")
    assert open("out1", "rb").read() == open("out2", "rb").read()


def buckets_and_backends_change_when_and_not_what():
    # two ranks: a sum of two is the same in any order, so the bits must be the same
    variants = ((), ("--no-overlap",), ("--bucket-mb", "0.01"), ("--backend", "tcp"))
    for i, options in enumerate(variants):
        run_ok(2, "--epochs", 1, "--plot", "none", "--log", f"log{i}", *options)
    assert losses("log0") == losses("log1") == losses("log2") == losses("log3")


def ranks_without_a_sample_take_part():
    # 1,438 samples in steps of 6 x 239 leave 4 for the last step: two ranks have none
    run_ok(6, "--epochs", 1, "--batch-size", 239, "--check-replicas", "--plot", "none",
           "--no-dropout", "--log", "six")
    run_ok(1, "--epochs", 1, "--batch-size", 6 * 239, "--plot", "none", "--no-dropout",
           "--log", "one")
    a, b = losses("six"), losses("one")
    assert len(a) == len(b) == 2
    assert all(abs(x - y) < 1e-3 for x, y in zip(a, b)), (a, b)


def a_target_out_of_reach_is_exit_code_3():
    results = run(2, "--epochs", 1, "--target-accuracy", 100, "--plot", "none")
    assert [r.code for r in results] == [3, 3], results
    assert "target not reached" in results[0].out, results[0]


def nothing_is_left_in_the_way():
    run_ok(1, "--epochs", 1, "--plot", "none")
    assert os.listdir(".") == [], os.listdir(".")


main([a_residual_network_learns_and_goes_on, the_digits_are_learnt_to_97_percent, bf16_learns_as_fp32_does, the_known_line_is_found,
      one_rank_of_64_is_two_of_32_is_four_of_16, a_run_repeats_to_the_bit,
      buckets_and_backends_change_when_and_not_what, ranks_without_a_sample_take_part,
      a_target_out_of_reach_is_exit_code_3, nothing_is_left_in_the_way])
