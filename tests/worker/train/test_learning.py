"""test_learning.py BUILD - ddp-train learns, with one rank and with many, and shows it"""
import gzip
import json
import os
import random
import re
import struct
import subprocess
import sys
import xml.etree.ElementTree as xml

from files import arrays_of, put_array, put_png
from ranks import losses, main, rows, run, run_ok

DIGITS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "worker", "data", "digits")
MODELS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "nn")
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


def a_rank_may_have_no_sample_in_its_first_step():
    """Of one image: one rank has it, and the weights are those of a run of one rank."""
    os.mkdir("one")
    for part, n in (("train", 1), ("t10k", 10)):
        for kind, size in (("images-idx3", 64), ("labels-idx1", 1)):
            name = f"{part}-{kind}-ubyte"
            with gzip.open(os.path.join(DIGITS, name + ".gz")) as f:
                raw = f.read()
            head = 16 if size > 1 else 8
            with open(os.path.join("one", name), "wb") as f:
                f.write(raw[:4] + struct.pack(">I", n) + raw[8:head + n * size])
    for n in (1, 2):
        run_ok(n, *EXACT, "--data", "one", "--model", "mlp", "--check-replicas", "--checkpoint", f"of{n}.safetensors")
    (a, _), (b, metadata) = arrays_of("of1.safetensors"), arrays_of("of2.safetensors")
    with open("one/train-images-idx3-ubyte", "rb") as f:
        assert abs(float(metadata["pixel_mean"]) - sum(f.read()[16:]) / 64 / 255) < 1e-6, metadata
    assert metadata["train_samples"] == "1" and metadata["batch_size"] == "32", metadata
    assert metadata["ranks"] == "2" and float(metadata["pixel_std"]) > 0, metadata
    assert a.keys() == b.keys() and a, (a.keys(), b.keys())
    for name in a:
        assert all(abs(x - y) <= 1e-5 for x, y in zip(a[name], b[name])), name


def the_known_line_is_found():
    for n in (1, 3):
        shown = run_ok(n, "--model", "linreg", "--plot", "none").out
        y = re.search(r"learned +y = ([-0-9.]+) x ([-+] [0-9.]+), drawn from y = 2 x - 1;", shown)
        assert re.search("speed +[0-9,]+ samples/s;", shown), shown
        assert y and abs(float(y[1]) - 2) < 0.02 and abs(float(y[2].replace(" ", "")) + 1) < 0.02, shown
    with open("two.model", "w") as f:
        f.write("task = regress\noptimizer = sgd\nfc1 linear outputs=4 relu\nfc2 linear\n")
    shown = run_ok(1, "--model", "two.model", "--epochs", 2, "--plot", "none").out
    assert re.search(r"\nlearned +test loss 0\.[0-9]+\n", shown), shown


def one_rank_of_64_is_two_of_32_is_four_of_16():
    for model, optimizer, tolerance in (("mlp", "sgd", 1e-5), ("cnn", "sgd", 1e-4),
                                        ("linreg", "adam", 1e-5)):
        for n in (1, 2, 4):
            run_ok(n, *EXACT, "--model", model, "--optimizer", optimizer, "--batch-size",
                   64 // n, "--log", f"{model}{n}")
        for n in (2, 4):
            close(losses(f"{model}1"), losses(f"{model}{n}"), tolerance)


def coloured_images():
    """CIFAR's records of three classes: which colour is bright."""
    random.seed(4)
    for name, which in (*((f"data_batch_{b + 1}.bin", range(8 * b, 8 * b + 8)) for b in range(5)),
                        ("test_batch.bin", range(12))):
        with open(name, "wb") as f:
            for i in which:
                pixels = [min(255, max(0, int(random.gauss(200 if p // 1024 == i % 3 else 60, 40))))
                          for p in range(3072)]
                f.write(bytes([i % 3] + pixels))


def a_residual_network_learns_and_goes_on():
    """PyTorch's names in the checkpoint."""
    coloured_images()
    common = ("--model", "resnet18", "--data", ".", "--batch-size", 4, "--lr", 0.01, "--plot",
              "none", "--check-replicas")
    run_ok(2, *common, "--epochs", 3, "--log", "whole", "--logits", "a", "--checkpoint", "w")
    epochs = rows("whole", "epoch")  # 15 steps: how far they lead hangs on the engine's rounding
    assert epochs[-1]["loss"] < 0.8 * epochs[0]["loss"], epochs
    assert max(e["test_accuracy"] for e in epochs) > 60, epochs
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


def ranks_can_normalise_together():
    """40 samples of 3 ranks in batches of 13: for the last one the others have no sample."""
    coloured_images()
    common = ("--model", "resnet18", "--data", ".", "--accumulate", 2, "--epochs", 1, "--lr", 0.001,
              "--plot", "none", "--sync-batch-norm", "--seed", 2)
    run_ok(1, *common, "--batch-size", 39, "--log", "one")
    run_ok(3, *common, "--batch-size", 13, "--check-replicas", "--log", "three")
    close(losses("one") * 11, losses("three") * 11, 1e-5)
    one, three = (rows(name, "epoch")[0] for name in ("one", "three"))
    assert abs(one["test_loss"] - three["test_loss"]) < 1e-2 * one["test_loss"], (one, three)


def a_model_of_the_users_own_learns():
    """Two ranks as one, also in two stages; the checkpoint has its names, and goes on."""
    model = os.path.join(MODELS, "chain.model")
    common = ("--model", model, "--seed", 3, "--plot", "none", "--check-replicas", "--optimizer", "adadelta",
              "--no-dropout")
    run_ok(1, *common, "--epochs", 2, "--batch-size", 32, "--log", "one")
    run_ok(2, *common, "--epochs", 2, "--batch-size", 16, "--log", "two", "--checkpoint", "c")
    run_ok(1, *common, "--epochs", 2, "--batch-size", 32, "--log", "staged", "--stages", 2)
    close(losses("one"), losses("two"), 1e-4)
    close(losses("one"), losses("staged"), 1e-4)
    assert losses("one")[-1] < 0.8 * losses("one")[0], losses("one")
    with open("c", "rb") as f:
        table = json.loads(f.read(int.from_bytes(f.read(8), "little")))
    assert table["c2.weight"]["shape"] == [9, 6, 2, 2], table
    run_ok(2, *common, "--epochs", 3, "--batch-size", 16, "--resume", "c")


def batches_can_be_added_up():
    for model, tolerance in (("mlp", 1e-5), ("cnn", 1e-4)):
        common = (*EXACT, "--model", model, "--optimizer", "sgd")
        run_ok(1, *common, "--batch-size", 64, "--log", "whole")
        run_ok(1, *common, "--batch-size", 16, "--accumulate", 4, "--log", "four")
        run_ok(2, *common, "--batch-size", 16, "--accumulate", 2, "--log", "two")
        close(losses("whole"), losses("four"), tolerance)
        close(losses("whole"), losses("two"), tolerance)


def two_stages_learn_as_one():
    for model, tolerance in (("mlp", 1e-5), ("cnn", 1e-4)):
        common = (*EXACT, "--model", model, "--optimizer", "sgd")
        run_ok(1, *common, "--batch-size", 64, "--log", "one")
        shown = run_ok(1, *common, "--batch-size", 64, "--stages", 2, "--log", "stages").out
        assert re.search(r"engine .*, stages \w+ to \w+ \| \w+ to \w+", shown), shown
        run_ok(2, *common, "--batch-size", 16, "--accumulate", 2, "--stages", 2,
               "--micro-batches", 3, "--threads", 2, "--check-replicas", "--log", "both")
        close(losses("one"), losses("stages"), tolerance)
        close(losses("one"), losses("both"), tolerance)
    with open("sheep", "w") as f:
        f.write("".join(f"{i} sheep and {i + 1} sheep make {2 * i + 1} sheep.\n" for i in range(40)))
    # the logits' weight is the embedding's, at the other stage, or their own
    for name in ("gpt2:layers=2,heads=2,width=32", "llama:layers=2,heads=4,kv_heads=2,width=24,untied=0",
                 "llama:layers=1,heads=2,width=16,factor=2"):
        common = ("--model", f"{name},context=16,vocab=128", "--data", "sheep", "--seed", 3, "--steps", 12, "--plot",
                  "none", "--optimizer", "sgd", "--lr", 0.2)
        run_ok(1, *common, "--batch-size", 22, "--log", "one")
        run_ok(1, *common, "--batch-size", 22, "--stages", 2, "--log", "stages", "--trace", "t")
        run_ok(1, *common, "--batch-size", 11, "--accumulate", 2, "--log", "sum")
        run_ok(2, *common, "--batch-size", 6, "--accumulate", 2, "--stages", 2, "--micro-batches", 3, "--threads", 2,
               "--check-replicas", "--log", "both")
        run_ok(1, *common, "--batch-size", 24, "--log", "24")
        for a, b in (("one", "stages"), ("one", "sum"), ("24", "both")):
            close(losses(a), losses(b), 1e-5)
        assert losses("one")[-1] < 0.9 * losses("one")[0], losses("one")
    with open("t") as f:
        named = {e["args"]["name"] if e["ph"] == "M" else e["name"] for e in json.load(f)["traceEvents"]}
    assert named >= {"model.layers.0.post_attention_layernorm backward", "compute, second stage"}, named
    run_ok(2, "--epochs", 1, "--plot", "none", "--stages", 2, "--logits", "a")
    run_ok(2, "--epochs", 1, "--plot", "none", "--stages", 2, "--logits", "b")
    assert open("a", "rb").read() == open("b", "rb").read()


def ranks_can_share_out_the_optimizer():
    for optimizer in ("adam", "sgd"):
        more = ("--momentum", 0.9) if optimizer == "sgd" else ("--weight-decay", 0.5, "--decay-matrices-only")
        common = (*EXACT, "--model", "mlp", "--optimizer", optimizer, *more, "--clip-norm", 0.5,
                  "--check-replicas")
        for n in (2, 3):
            run_ok(n, *common, "--bucket-mb", 25, "--log", f"all{n}")
            run_ok(n, *common, "--bucket-mb", 25, "--shard-optimizer", "--log", f"shard{n}")
            shown = run_ok(n, *common, "--threads", 2, "--log", f"direct{n}").out
            assert f"ranks       {n} over shm, each updates its part" in shown, shown
            close(losses(f"all{n}"), losses(f"shard{n}"), 1e-5)
            close(losses(f"all{n}"), losses(f"direct{n}"), 1e-5)
    run_ok(2, *EXACT, "--model", "mlp", "--optimizer", "sgd", "--momentum", 0.9, "--log", "free")
    assert losses("free")[1:] != losses("all2")[1:], "clipping changes steps"


def weights_of_the_average(path, to):
    """The file with other names: the average has those of the weights."""
    with open(path, "rb") as f:
        header, data = json.loads(f.read(int.from_bytes(f.read(8), "little"))), f.read()
    text = json.dumps({name[len("optim.ema."):] if name.startswith("optim.ema.") else "not." + name: row
                       for name, row in header.items() if name != "__metadata__"}).encode()
    text += b" " * (-len(text) % 8)
    with open(to, "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text + data)


def the_weights_average_is_kept_tested_and_goes_on():
    """e = 0.8 e + 0.2 w after each step but the first; tests and outputs are of e."""
    common = ("--model", "toy", "--epochs", 1, "--plot", "none", "--seed", 3, "--lr", 0.01, "--ema", 0.8)
    for n, more in ((1, ()), (2, ("--bucket-mb", 1)), (2, ("--shard-optimizer",)),
                    (4, ("--optimizer", "sgd", "--backend", "tcp", "--shard-optimizer"))):
        same = (*common, *more, "--batch-size", 64 // n)
        folder = f"{n}{''.join(map(str, more))}"
        shown = run_ok(n, *same, "--steps", 4, "--checkpoint", folder + "/", "--checkpoint-every", 1, "--log",
                       f"log{folder}", "--logits", "l", "--check-replicas").out
        steps = [arrays_of(f"{folder}/step-{i:08}.safetensors")[0] for i in range(1, 5)]
        for name in [k for k in steps[0] if not k.startswith("optim.")]:
            e = steps[0][name]
            for step in steps:
                e = [0.8 * a + 0.2 * b for a, b in zip(e, step[name])]
                worst = max(abs(a - b) for a, b in zip(e, step["optim.ema." + name]))
                assert worst < 1e-6, (folder, name, worst)
        # the same goes on from a checkpoint, to the bit
        run_ok(n, *same, "--steps", 4, "--resume", f"{folder}/step-00000002.safetensors", "--checkpoint", "c")
        assert arrays_of("c")[0] == steps[-1], folder
        # a run that has these weights is tested alike
        weights_of_the_average(f"{folder}/step-00000004.safetensors", "e")
        plain = [a for a in common if a not in ("--ema", 0.8, "--epochs", 1)]
        again = run_ok(1, *plain, "--epochs", 0, "--resume", "e", "--logits", "of_e").out
        assert re.search("accuracy .* test images", again)[0] in shown, (shown, again)
        assert open("l", "rb").read() == open("of_e", "rb").read()
    close([r["test_loss"] for r in rows("log1", "epoch")] * 11,
          [r["test_loss"] for r in rows("log2--shard-optimizer", "epoch")] * 11, 1e-5)
    # a checkpoint without one: it begins with its weights
    run_ok(1, *plain, "--epochs", 1, "--checkpoint", "c")
    run_ok(1, *common[:2], *common[4:], "--epochs", 2, "--steps", 46, "--resume", "c", "--checkpoint", "d")
    before, after = arrays_of("c")[0]["net1.weight"], arrays_of("d")[0]
    for w, then, e in zip(before, after["net1.weight"], after["optim.ema.net1.weight"]):
        assert abs(0.8 * w + 0.2 * then - e) < 1e-6, (w, then, e)


def arrays_of_numpy_are_learnt():
    """The digits as bytes and as floats are learnt to the bit as from their own files, and with
    labels that need 16 bits."""
    for part, name in (("train", "train"), ("t10k", "test")):
        images, labels = (gzip.open(os.path.join(DIGITS, f"{part}-{kind}-ubyte.gz")).read()
                          for kind in ("images-idx3", "labels-idx1"))
        images, labels = images[16:], labels[8:]
        n, floats = len(labels), struct.pack(f"<{len(images)}f", *(p / 255 for p in images))
        for folder, kind, shape, pixels, factor in (("bytes", "|u1", (n, 8, 8), images, 1),
                                                    ("floats", "<f4", (n, 1, 8, 8), floats, 1),
                                                    ("wide", "<f4", (n, 1, 8, 8), floats, 31)):
            os.makedirs(folder, exist_ok=True)
            put_array(f"{folder}/{name}-images.npy", kind, shape, pixels)
            put_array(f"{folder}/{name}-labels.npy", "<i8", (n,),
                      struct.pack(f"<{n}q", *(factor * label for label in labels)))
    common = ("--model", "mlp", "--epochs", 1, "--plot", "none", "--augment", "crop:1,flip")
    for data, more in (("digits", ("--normalize", "none")), ("bytes", ("--normalize", "none")), ("floats", ())):
        run_ok(2, *common, *more, "--data", data, "--log", data + ".log")
        assert losses("digits.log") == losses(data + ".log"), data
    shown = run_ok(2, *common, "--data", "wide", "--log", "wide.log", "--checkpoint", "c").out
    assert "1,438 training and 359 test images, 8x8, 280 classes, crop:1,flip\n" in shown, shown
    assert re.search("\n            only 10 classes have training images; the largest label is 279, of image [0-9]+\n",
                     shown), shown
    arrays, metadata = arrays_of("c")
    assert len(arrays["fc3.bias"]) == 280 and "pixel_mean" not in metadata, metadata
    assert losses("wide.log")[-1] < losses("wide.log")[0] - 2, losses("wide.log")


def pictures_in_folders_are_learnt():
    """To the bit as the same pixels in arrays; classes are numbered as their names are sorted."""
    random.seed(6)
    for part, n in (("train", 30), ("test", 6)):
        planes = [bytes(random.randrange(256) // (1 + (i + p // 80) % 3) for p in range(240)) for i in range(n)]
        order = sorted(range(n), key=lambda i: (i % 3, f"{i}.png"))  # as they are read
        for i in range(n):
            os.makedirs(f"p/{part}/{'CaB'[i % 3]}", exist_ok=True)
            put_png(f"p/{part}/{'CaB'[i % 3]}/{i}.png", 10, 8, planes[i])
        order.sort(key=lambda i: "BCa".index("CaB"[i % 3]))
        os.makedirs("a", exist_ok=True)
        put_array(f"a/{part}-images.npy", "|u1", (n, 3, 8, 10), b"".join(planes[i] for i in order))
        put_array(f"a/{part}-labels.npy", "|u1", (n,), bytes("BCa".index("CaB"[i % 3]) for i in order))
    common = ("--model", "mlp", "--epochs", 2, "--batch-size", 4, "--plot", "none")
    found = run(2, *common, "--data", "p", "--log", "p.log")
    if "was built without" in found[0].err:
        print("skipped: pictures; needs package libpng-dev")
        return
    assert found[0].code == 0 and "30 training and 6 test images, 10x8, 3 classes" in found[0].out, found
    run_ok(2, *common, "--data", "a", "--log", "a.log")
    assert losses("p.log") == losses("a.log")


def a_trace_shows_every_rank_at_work():
    run_ok(2, "--epochs", 1, "--plot", "none", "--stages", 2, "--trace", "t", "--log", "log")
    with open("t") as f:
        events = json.load(f)["traceEvents"]
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    spans = [dict(e, row=names[e["pid"], e["tid"]]) for e in events if e["ph"] == "X"]
    steps = len(rows("log", "step"))
    for rank in (0, 1):
        mine = [e for e in spans if e["pid"] == rank]
        told = {e["name"] for e in mine}
        assert len([e for e in mine if e["row"] == "steps"]) == steps
        assert len([e for e in mine if e["row"] == "data"]) == steps
        assert {"conv1 forward", "conv1 backward", "fc2 backward", "optimizer"} <= told, told
        talk = [e for e in mine if e["row"] == "communication"]
        assert len(talk) >= steps and all(e["args"]["bytes"] > 0 for e in talk)
        assert {e["row"] for e in mine if e["name"] == "fc2 forward"} == {"compute, second stage"}
        assert all(e["dur"] >= 0 for e in mine)
    with open("long.model", "wb") as f:  # a span's name has 63 bytes
        f.write(b"optimizer = sgd\n" + b"\xc3\xa9" * 40 + b" linear\n")
    run_ok(1, "--model", "./long.model", "--steps", 1, "--plot", "none", "--trace", "t")
    with open("t", encoding="utf-8") as f:
        assert "\xe9" * 31 in {e["name"] for e in json.load(f)["traceEvents"]}


def a_schedule_ends_with_what_ends_the_run():
    for limits in (("--epochs", 2, "--steps", 100000), ("--epochs", 1000, "--steps", 30)):
        os.path.exists("log") and os.remove("log")
        run_ok(1, "--plot", "none", "--schedule", "linear", "--log", "log", *limits)
        rates = [step["lr"] for step in rows("log", "step")]
        assert rates[-1] < rates[0] / 10, (limits, rates[0], rates[-1])


def a_language_model_goes_on_with_a_prompt():
    def written(vocab, prompt, *more):
        return run(1, "--model", f"gpt2:layers=1,heads=1,width=16,context=8,vocab={vocab}", "--epochs", 0,
                   "--sample", 12, "--prompt", prompt, *more)[0]

    with open("t.txt", "w") as f:
        f.write("one two three four five six")
    out = written(128, "ab, a text beyond the context", "--check-replicas").out
    assert "batch       1 per rank" in out and "replicas" not in out, out  # there was no epoch
    assert "data  " not in out and "learned" not in out and "sample      of 41 tokens:\nab, a text be" in out, out
    assert len(out[out.index("ab, a"):]) == 42, out
    with_data = written(128, "ab, a text beyond the context", "--data", "t.txt").out
    assert "learned" in with_data and with_data[with_data.index("ab, a"):] == out[out.index("ab, a"):], with_data
    numbers = written(300, "7 299  1").out
    assert re.search(r"of 15 tokens:\n7 299 1( \d+){12}\n", numbers), numbers
    for prompt, error in (("7 300", "there is a token 300, and the model has a vocabulary of 300"),
                          ("7 -1", "'-1' is not the number of a token; examples/python/tokens.py --print "
                                   "makes a text's"),
                          ("Once", "'Once' is not the number of a token; examples/python/tokens.py --print "
                                   "makes a text's")):
        refused = written(300, prompt)
        assert refused.code == 1 and f"--prompt: {error}\n" in refused.err, refused
    tokens_py = os.path.join(sys.argv[2], "examples", "python", "tokens.py")
    printed = subprocess.run([sys.executable, tokens_py, "--bytes", "--print", "t.txt"], check=True,
                             capture_output=True, text=True).stdout
    assert printed.startswith("111 110 101 32 "), printed


def a_language_model_learns_writes_and_goes_on():
    text = "".join(f"{i} sheep and {i + 1} sheep make {2 * i + 1} sheep.\n" for i in range(900))
    with open("sheep.txt", "w") as f:
        f.write(text)
    common = ("--model", "gpt2:layers=2,heads=2,width=32,context=32,vocab=128", "--data",
              "sheep.txt", "--batch-size", 8, "--lr", 5e-3, "--warmup", 5, "--plot", "none")
    out = run_ok(2, *common, "--steps", 60, "--log", "whole", "--sample", 80).out
    assert re.search("data +sheep.txt: .* test samples of 32 bytes\n", out), out
    (end,) = rows("whole", "end")
    speed = float(re.search("speed +([0-9,]+) tokens/s;", out)[1].replace(",", ""))
    assert abs(speed / (32 * end["images"] / end["train_seconds"]) - 1) < 0.01, (speed, end)
    sample = out[out.index("sample      of 96 tokens:\n") + 26:]
    assert len(sample) > 90 and sample[:16] in text and "hee" in sample[16:], sample
    run_ok(2, *common, "--model", "gpt2:layers=1,heads=1,width=16,context=32,vocab=128",
           "--steps", 2, "--group-timeout", "1s", "--sample", 300000)  # nobody waits for it
    far = losses("whole")
    assert len(far) == 60 and far[0] > 4.5 and far[-1] < 1.5, far
    run_ok(2, *common, "--steps", 25, "--checkpoint", "c", "--log", "parts")
    run_ok(2, *common, "--steps", 60, "--resume", "c", "--log", "parts")
    assert losses("parts") == far

    def same(path, unit):
        shown = run_ok(2, *common, "--data", path, "--steps", 8, "--log", "again").out
        assert losses("again") == far[:8] and f"samples of 32 {unit}\n" in shown, shown
        os.remove("again")

    # in numbers of 16 bits, with a header or without: the same tokens
    tokens_py = os.path.join(sys.argv[2], "examples", "python", "tokens.py")
    for options, cut in (((), 0), ((), 1024), (("--wide",), 0)):
        subprocess.run([sys.executable, tokens_py, "--bytes", *options, "sheep.txt"], check=True,
                       stdout=subprocess.DEVNULL)
        with open("tokens.bin", "rb") as f:
            data = f.read()[cut:]
        with open("tokens.bin", "wb") as f:
            f.write(data)
        same("tokens.bin", f"tokens of {32 if options else 16} bits")
    put_array("tokens.npy", "<u2", f"({len(text)},)", b"".join(struct.pack("<H", c) for c in text.encode()))
    same("tokens.npy", "tokens of 16 bits")
    put_array("tokens.npy", "<f4", f"({len(text)},)", bytes(4 * len(text)))
    (refused,) = run(1, *common, "--data", "tokens.npy")
    assert refused.code == 1 and "'tokens.npy' is no array of tokens of 16 or 32 bits" in refused.err, refused
    out = run_ok(1, *common, "--model", "gpt2:layers=1,heads=1,width=16,context=32,vocab=257", "--steps", 1).out
    assert "samples of 32 bytes; examples/python/tokens.py makes a text's tokens\n" in out, out


def a_run_repeats_to_the_bit():
    for i in (1, 2):
        run_ok(2, "--epochs", 2, "--plot", "none", "--log", f"log{i}", "--logits", f"out{i}")
    assert losses("log1") == losses("log2")
    assert open("out1", "rb").read() == open("out2", "rb").read()


def buckets_and_backends_change_when_and_not_what():
    # two ranks: a sum of two is the same in any order, so the bits must be the same
    variants = ((), ("--no-overlap",), ("--bucket-mb", "0.01"), ("--backend", "tcp"),
                ("--shard-optimizer",), ("--on-nan", "skip"))
    for i, options in enumerate(variants):
        run_ok(2, "--epochs", 1, "--plot", "none", "--log", f"log{i}", *options)
        assert losses("log0") == losses(f"log{i}"), options


def without_chance_buckets_are_planned_by_size():
    plans = []
    for options in ((), ("--bucket-mb", 25), ("--deterministic",)):  # too few steps to plan by time
        run_ok(2, "--backend", "tcp", "--epochs", 1, "--batch-size", 239, "--plot", "none", "--checkpoint", "c",
               *options)
        with open("c", "rb") as f:
            plans += re.findall(rb'"buckets":"([0-9,]+)"', f.read()) or [None]
        os.unlink("c")
    assert plans[0] is None and plans[1] and plans[1] == plans[2], plans


def ranks_without_a_sample_take_part():
    # 1,438 samples in steps of 6 x 239, or of 4 x 1, leave 4 or 2 for the last step: two ranks
    # have none. So small batches are summed by their factors.
    for n, batch, *more in (6, 239), (4, 1, "--model", "mlp", "--optimizer", "sgd"):
        common = (*more, "--epochs", 1, "--plot", "none", "--no-dropout")
        run_ok(n, *common, "--batch-size", batch, "--check-replicas", "--log", "many")
        run_ok(1, *common, "--batch-size", n * batch, "--log", "one")
        a, b = losses("many"), losses("one")
        assert len(a) == len(b) == -(-1438 // (n * batch)), (len(a), len(b))
        assert all(abs(x - y) < 1e-3 for x, y in zip(a, b)), (a, b)


def a_target_out_of_reach_is_exit_code_93():
    results = run(2, "--epochs", 1, "--target-accuracy", 100, "--plot", "none")
    assert [r.code for r in results] == [93, 93], results
    assert "target not reached" in results[0].out, results[0]


def a_run_is_tested_between_steps():
    """With what a run that ends there finds, and without an effect on the steps."""
    common = ("--model", "toy", "--plot", "none", "--ema", 0.5, "--batch-size", 16)
    out = run_ok(2, *common, "--epochs", 2, "--steps", 65, "--test-every", 15, "--log", "log").out
    run_ok(2, *common, "--epochs", 2, "--steps", 65, "--log", "plain")
    run_ok(1, *common[:-1], 32, "--epochs", 1, "--steps", 30, "--log", "short")
    assert losses("log") == losses("plain")
    tests = rows("log", "test")
    assert [t["step"] for t in tests] == [15, 30, 60], tests  # 45 is the first epoch's last
    (last,) = rows("short", "epoch")
    assert abs(tests[1]["test_loss"] - last["test_loss"]) < 1e-5, (tests, last)
    assert f"step 30  test loss {tests[1]['test_loss']:.4f}  test accuracy " in out, out


def the_limits_of_a_run_are_those_given():
    for options, until, why, code in (
            (("--steps", 3), "step 3", "all steps done", 0),
            (("--steps", 300, "--epochs", 1), "step 300, or 1 epoch", "all epochs done", 0),
            (("--steps", 3, "--target-accuracy", 100), "100 % test accuracy, or step 3",
             "target not reached", 93)):
        (done,) = run(1, "--plot", "none", "--log", "log", *options)
        assert done.code == code and f"until       {until}\n" in done.out, done
        (end,) = rows("log", "end")
        assert end["why"] == why and 0 < end["train_seconds"] < end["seconds"] < 3600, end


def nothing_is_left_in_the_way():
    run_ok(1, "--epochs", 1, "--plot", "none")
    assert os.listdir(".") == [], os.listdir(".")


main([a_residual_network_learns_and_goes_on, a_model_of_the_users_own_learns,
      ranks_can_normalise_together,
      the_digits_are_learnt_to_97_percent, bf16_learns_as_fp32_does, the_known_line_is_found,
      one_rank_of_64_is_two_of_32_is_four_of_16, batches_can_be_added_up,
      two_stages_learn_as_one, ranks_can_share_out_the_optimizer, the_weights_average_is_kept_tested_and_goes_on,
      arrays_of_numpy_are_learnt, pictures_in_folders_are_learnt,
      without_chance_buckets_are_planned_by_size, a_trace_shows_every_rank_at_work, a_schedule_ends_with_what_ends_the_run,
      a_language_model_goes_on_with_a_prompt, a_language_model_learns_writes_and_goes_on, a_run_repeats_to_the_bit,
      buckets_and_backends_change_when_and_not_what, ranks_without_a_sample_take_part,
      a_rank_may_have_no_sample_in_its_first_step,
      a_target_out_of_reach_is_exit_code_93, a_run_is_tested_between_steps,
      the_limits_of_a_run_are_those_given, nothing_is_left_in_the_way])
