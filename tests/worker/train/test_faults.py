"""test_faults.py BUILD - ddp-train stops, goes on, and fails on every rank with one line"""
import fcntl
import gzip
import os
import re
import resource
import shutil
import signal
import struct
import subprocess
import sys
import time

from files import put_array
from ranks import TRAIN, Ranks, losses, main, rows, run, run_ok, wait_until

DIGITS = os.path.join(os.path.abspath(sys.argv[2]), "worker", "data", "digits")
QUIET = ("--plot", "none", "--progress", "none")


def one_line(results, code, text):
    """All ranks ended with `code`; one of them said why, in one line."""
    assert [r.code for r in results] == [code] * len(results), results
    said = [r.err for r in results if r.err]
    assert len(said) == 1 and said[0].count("\n") == 1 and text in said[0], results


def wait_for(path):
    """Until the file has content."""
    wait_until(lambda: os.path.exists(path) and os.path.getsize(path))


def handled(pid):
    """No signal to the process is pending."""
    with open(f"/proc/{pid}/status", encoding="ascii") as status:
        return all(int(line.split()[1], 16) == 0 for line in status
                   if line.startswith(("SigPnd", "ShdPnd")))


# ---- stop and go on ----

def a_resumed_run_goes_on_to_the_bit():
    for optimizer in ("sgd", "adam", "adadelta"):
        common = (*QUIET, "--optimizer", optimizer)
        run_ok(2, *common, "--epochs", 4, "--logits", "whole", "--log",
               optimizer + ".whole")
        run_ok(2, *common, "--epochs", 2, "--checkpoint", "c")
        run_ok(2, *common, "--epochs", 4, "--resume", "c", "--logits", "half", "--log",
               optimizer + ".half")
        assert open("whole", "rb").read() == open("half", "rb").read(), optimizer
        assert losses(optimizer + ".whole")[-46:] == losses(optimizer + ".half"), optimizer


def a_resumed_run_goes_on_within_an_epoch():
    moved = ("--augment", "crop:1,flip")
    run_ok(2, *QUIET, *moved, "--epochs", 2, "--logits", "whole")
    run_ok(2, *QUIET, *moved, "--epochs", 2, "--checkpoint", "steps/", "--checkpoint-every", 10)
    kept = sorted(os.listdir("steps"))
    assert "step-00000030.safetensors" in kept, kept  # the 7th of the second epoch's 23
    run_ok(2, *QUIET, *moved, "--epochs", 2, "--resume", "steps/step-00000030.safetensors",
           "--logits", "half")
    assert open("whole", "rb").read() == open("half", "rb").read()


def another_number_of_ranks_can_go_on():
    run_ok(2, *QUIET, "--epochs", 1, "--checkpoint", "c")
    shown = run_ok(3, "--plot", "none", "--epochs", 2, "--checkpoint", "c", "--resume",
                   "--check-replicas").out
    assert "training goes on" in shown and "epoch   2/2" in shown, shown


def resume_starts_anew_where_there_is_nothing():
    shown = run_ok(1, "--plot", "none", "--epochs", 1, "--checkpoint", "c", "--resume").out
    assert "there is no 'c' yet" in shown, shown


def a_run_begins_with_the_weights_of_another():
    """Of other data, another optimizer; its own checkpoint, if there is one, is preferred."""
    run_ok(2, *QUIET, "--model", "mlp", "--epochs", 2, "--checkpoint", "c", "--logits", "a", "--log", "first")
    run_ok(1, *QUIET, "--model", "mlp", "--epochs", 0, "--init", "c", "--logits", "b")
    assert open("a", "rb").read() == open("b", "rb").read()
    os.mkdir("few")
    for part in ("train", "t10k"):
        for kind, head, size in (("images-idx3", 16, 64), ("labels-idx1", 8, 1)):
            with gzip.open(os.path.join(DIGITS, f"{part}-{kind}-ubyte.gz")) as f:
                head, data = f.read(head), f.read(20 * size)
            with open(f"few/{part}-{kind}-ubyte", "wb") as f:
                f.write(head[:4] + struct.pack(">I", 20) + head[8:] + data)
    new = ("--plot", "none", "--data", "few", "--model", "mlp", "--optimizer", "sgd",
           "--batch-size", 10, "--checkpoint", "d", "--log", "log", "--resume", "--init", "c")
    run_ok(1, *QUIET, "--model", "mlp", "--steps", 10, "--batch-size", 64, "--checkpoint", "within")
    one_line(run(2, *new[:-3], "--optimizer", "adam", "--resume", "within"), 1,
             "640 of an epoch, and these data have 20; --init takes the weights alone")
    shown = run_ok(2, *new, "--epochs", 1).out
    assert "weights     of c\n" in shown and [r["step"] for r in rows("log", "step")] == [1], shown
    assert losses("log")[0] < losses("first")[0] / 2, (losses("log"), losses("first"))
    shown = run_ok(2, *new, "--epochs", 2).out
    assert "resumed     d: training goes on after step 1\n" in shown and "weights  " not in shown, shown
    shown = run_ok(2, *new, "--epochs", 2).out
    assert "resumed     d: nothing is left to train after step 2\n" in shown, shown


def a_target_that_was_reached_is_seen_when_the_job_is_resumed():
    again = ("--plot", "none", "--model", "mlp", "--log", "log", "--checkpoint", "c", "--resume", "--epochs", 9,
             "--target-accuracy")
    run_ok(2, *again, 60)
    epochs, kept = rows("log", "epoch"), open("c", "rb").read()
    assert epochs[-1]["epoch"] < 9, epochs
    shown = run_ok(2, *again, 60).out
    assert f"ended       target reached after step {epochs[-1]['step']}\n" in shown, shown
    assert f"{epochs[-1]['test_accuracy']:.2f} % of 359 test images after {epochs[-1]['epoch']} epoch" in shown, shown
    assert rows("log", "epoch") == epochs and open("c", "rb").read() == kept
    assert [r.code for r in run(2, *again, 100)] == [93, 93]
    assert rows("log", "epoch")[-1]["epoch"] == 9


def a_link_in_the_place_of_a_checkpoint_is_followed_and_stays():
    os.mkdir("far")
    os.symlink("far/c", "link")
    os.symlink("link", "latest")
    common = (*QUIET, "--model", "mlp", "--checkpoint", "latest", "--resume")
    for epochs, most_mib in ((1, 1024), (2, 0)):  # one file, and parts
        run_ok(2, *common, "--epochs", epochs, "--checkpoint-shard-mb", most_mib, "--logits", f"logits{epochs}")
    assert (os.readlink("latest"), os.readlink("link")) == ("link", "far/c"), os.listdir(".")
    assert len(os.listdir("far")) == 3, os.listdir("far")
    os.symlink("far/logits", "again")
    run_ok(1, *common, "--epochs", 2, "--logits", "again")
    assert open("far/logits", "rb").read() == open("logits2", "rb").read() and os.path.islink("again")
    if os.geteuid() != 0:
        return
    os.mkdir("open")
    os.chmod("open", 0o1777)
    os.symlink(os.path.abspath("far/c"), "open/c")
    os.lchown("open/c", 1, 1)
    one_line(run(2, *QUIET, "--checkpoint", "open/c"), 1,
             "cannot write checkpoints to 'open/c': it is a link of another user in a folder where all may write")


def sigterm_to_one_rank_stops_all_after_the_step():
    job = Ranks(2, "--epochs", 100000, "--plot", "none", "--checkpoint", "c", "--threads", 4)
    wait_for("c")
    threads = [len(os.listdir(f"/proc/{p.pid}/task")) for p in job.ranks]
    job.signal(signal.SIGTERM, rank=1)
    results = job.wait()
    assert [r.code for r in results] == [75, 75] and min(threads) >= 4, (threads, results)
    assert "stopped by a signal" in results[0].out and not results[0].err, results
    shown = run_ok(2, "--epochs", 1, "--plot", "none", "--resume", "c").out
    assert "nothing is left to train" in shown, shown


def a_second_sigterm_at_once_is_the_same_request():
    for second, codes in ((signal.SIGTERM, [75, 75]), (signal.SIGINT, None)):
        job = Ranks(2, "--epochs", 100000, "--plot", "none", "--checkpoint", f"c{second}")
        wait_for(f"c{second}")
        job.signal(signal.SIGSTOP, rank=0)  # so that rank 1 cannot finish its step
        for which in (signal.SIGTERM, second):
            job.signal(which, rank=1)
            wait_until(lambda pid=job.ranks[1].pid: handled(pid))
        if codes is None:
            assert job.ranks[1].wait(60) == 130, "the user's Ctrl-C is another request"
            job.signal(signal.SIGKILL, rank=0)
        job.signal(signal.SIGCONT, rank=0)
        results = job.wait()
        assert codes is None or [r.code for r in results] == codes, results


def a_schedulers_warning_is_a_checkpoint_and_a_code_to_go_on():
    job = Ranks(2, "--epochs", 100000, "--plot", "none", "--checkpoint", "c", "--log", "log")
    wait_for("c")
    job.signal(signal.SIGUSR1, rank=0)
    results = job.wait()
    assert [r.code for r in results] == [75, 75], results
    (end,) = rows("log", "end")
    assert f"step {end['step']}" in results[0].out, results
    shown = run_ok(2, "--epochs", 1, "--plot", "none", "--resume", "c").out
    assert "nothing is left to train" in shown, shown
    for which, code in ((signal.SIGUSR1, 138), (signal.SIGTERM, 143)):
        job = Ranks(1, "--epochs", 100000, *QUIET, "--log", f"log{code}")
        wait_for(f"log{code}")
        job.signal(which)
        assert [r.code for r in job.wait()] == [code], "nothing to go on from"


def a_signal_breaks_off_tests_and_samples():
    """Both may take longer than a scheduler leaves for saving."""
    with open("text", "w") as f:
        f.write("".join(f"{i} sheep\n" for i in range(250000)))
    net = ("--data", "text", "--model", "gpt2:layers=4,heads=2,width=256,context=256,vocab=128", "--batch-size", 4,
           "--plot", "none", "--checkpoint", "c", "--log", "log")
    # rank 0, which gets no signal, has not the time to test its share
    job = Ranks(2, *net, "--steps", 1, limit=lambda: resource.setrlimit(resource.RLIMIT_CPU, (10, 10)))
    wait_until(lambda: os.path.exists("log") and rows("log", "step"))
    job.signal(signal.SIGTERM, rank=1)
    results = job.wait()
    assert [r.code for r in results] == [75, 75] and not rows("log", "epoch"), results
    job = Ranks(1, *net, "--steps", 1, "--resume", "c")
    wait_until(lambda: len(rows("log", "run")) == 2)
    job.signal(signal.SIGINT)
    (result,) = job.wait()
    assert result.code == 130 and "not measured" in result.out, result
    job = Ranks(2, *net[:-1], "within")
    wait_until(lambda: os.path.exists("within") and rows("within", "step"))
    job.signal(signal.SIGTERM, rank=1)
    results = job.wait()
    assert [r.code for r in results] == [75, 75] and rows("within", "end")[0]["step"] < 1000, results
    with open("text", "w") as f:
        f.write("sheep " * 100)
    job = Ranks(1, *net, "--epochs", 0, "--sample", 1 << 20)
    while not job.ranks[0].stdout.readline().startswith("sample "):
        assert job.ranks[0].poll() is None
    job.signal(signal.SIGINT)
    (result,) = job.wait()
    assert result.code == 130 and len(result.out) < 1 << 20, result


def sigint_to_one_rank_is_the_code_of_all():
    job = Ranks(3, "--epochs", 100000, *QUIET, "--checkpoint", "c")
    wait_for("c")
    job.signal(signal.SIGINT, rank=2)
    assert [r.code for r in job.wait()] == [130, 130, 130]


def places_that_cannot_be_written_are_said_before_training():
    for option in ("--plot", "--logits"):
        results = run(2, "--epochs", 100000, option, "none/such")
        assert "epoch   1" not in results[0].out, results
        one_line(results, 1, "'none/such': No such file or directory")
    os.mkfifo("pipe")
    with open("book.txt", "w") as f:
        f.write("It was a dark and stormy night.\n" * 9)
    for option, place, text in (("--checkpoint", "book.txt", "it is a file, and no checkpoint"),
                                ("--logits", "pipe", "it is no file, and would be replaced"),
                                ("--checkpoint", "pipe", "it is no file, and would be replaced"),
                                ("--logits", ".", "Is a directory"),
                                ("--plot", ".", "Is a directory"),
                                ("--trace", "pipe/t", "Not a directory")):
        (result,) = run(1, *QUIET, "--epochs", 100000, option, place)
        one_line([result], 1, f"'{place}': {text}")
    assert sorted(os.listdir(".")) == ["book.txt", "pipe"] and os.path.getsize("book.txt") == 288, os.listdir(".")


def a_file_has_one_use():
    """No report takes the place of the data, the model, weights, or another report."""
    text, model = "to be or not to be " * 99, "optimizer = sgd\nfc linear\n"
    for name, content in (("book.txt", text), ("net.model", model)):
        with open(name, "w") as f:
            f.write(content)
    os.symlink("book.txt", "link")
    book = ("--model", "gpt2:layers=1,heads=1,width=8,context=8,vocab=256", "--data", "book.txt")
    net = ("--model", "./net.model")
    run_ok(1, *QUIET, *net, "--steps", 1, "--checkpoint", "weights")
    kept = {name: open(name, "rb").read() for name in ("book.txt", "net.model", "weights")}
    for words, text in (((*book, "--log", "link"), "--log and --data are one file, 'link': give --log another"),
                        ((*book, "--trace", "./book.txt"), "--trace and --data are one file"),
                        ((*net, "--trace", "net.model"), "--trace and --model are one file"),
                        ((*net, "--init", "weights", "--logits", "weights"), "--logits and --init are one"),
                        ((*net, "--resume", "weights", "--log", "weights"), "--log and --resume are one"),
                        ((*net, "--log", "new", "--trace", "new"), "--log and --trace are one file, 'new'"),
                        ((*net, "--log", "new", "--checkpoint", "new"), "--log and --checkpoint are one")):
        (result,) = run(1, "--plot", "none", "--steps", 1, *words)
        one_line([result], 1, text)
        assert sorted(os.listdir(".")) == ["book.txt", "link", "net.model", "weights"], (words, os.listdir("."))
        assert all(open(name, "rb").read() == content for name, content in kept.items()), words
    (result,) = run(1, "--plot", "weights", *net, "--resume", "weights", "--steps", 1)
    one_line([result], 1, "--plot and --resume are one file")
    run_ok(1, "--plot", "none", "--steps", 1, *net, "--log", "digits")
    run_ok(1, "--plot", "none", "--steps", 1, *net, "--log", "/dev/null", "--trace", "/dev/null")


def the_picture_of_an_earlier_run_stays():
    for name in ("ddp-train.svg", "ddp-train.2.svg", "ddp-train.3.svg"):
        shown = run_ok(1, "--epochs", 1, "--progress", "lines").out
        assert os.path.exists(name) and f"/{name}" in shown, (name, shown)
    before = os.stat("ddp-train.svg").st_mtime_ns
    run_ok(1, "--epochs", 1, "--progress", "none", "--plot", "ddp-train.svg")
    assert os.stat("ddp-train.svg").st_mtime_ns > before
    assert len(os.listdir(".")) == 3, os.listdir(".")


def a_full_disk_below_stdout_is_an_error_and_a_reader_that_left_is_none():
    words = [TRAIN, "--epochs", "0", "--plot", "none"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, timeout=200)
    assert done.returncode == 1, done
    assert done.stderr == "ddp-train: cannot write to stdout: No space left on device\n", done
    reader, writer = os.pipe()
    os.close(reader)
    for more in (), ("--model", "gpt2:layers=2,heads=2,width=128,context=128,vocab=128", "--sample", "1000000",
                     "--prompt", "it ends at once"):
        done = subprocess.run([*words, *more], stdout=writer, stderr=subprocess.PIPE, text=True, timeout=200)
        assert done.returncode == 0 and not done.stderr, done
    os.close(writer)


def a_dead_rank_is_noticed():
    job = Ranks(2, "--epochs", 100000, *QUIET, "--log", "log")
    wait_for("log")
    job.signal(signal.SIGKILL, rank=1)
    first, second = job.wait()
    assert second.code == -signal.SIGKILL
    assert first.code == 1 and first.err.count("\n") == 1 and "rank 1" in first.err, first


# ---- checkpoints in parts ----

def a_large_checkpoint_is_written_by_all_ranks_and_resumed_by_any_number():
    common = (*QUIET, "--optimizer", "adam", "--model", "mlp", "--seed", 7)
    parts = ("--checkpoint-shard-mb", 0)
    os.mkdir("run[1]")  # a name, not a pattern
    os.chdir("run[1]")
    run_ok(3, *common, "--epochs", 3, "--logits", "whole", "--log", "log.whole")
    run_ok(3, *common, "--epochs", 2, "--checkpoint", "c", *parts)
    files = sorted(os.listdir("."))
    assert re.fullmatch(r"c (c\.00000030-\d+)\.1-of-3 \1\.2-of-3 \1\.3-of-3 log.whole whole",
                        " ".join(files)), files
    sizes = [os.path.getsize(part) for part in files[1:4]]
    assert max(sizes) < 3 * min(sizes) and os.path.getsize("c") < 2000, sizes
    for optimizer in ((), ("--shard-optimizer", "--bucket-mb", 1)):
        run_ok(3, *common, *optimizer, "--epochs", 3, "--resume", "c", "--logits", "half")
        assert open("whole", "rb").read() == open("half", "rb").read() or optimizer
    shown = run_ok(2, *common, "--epochs", 4, "--checkpoint", os.path.abspath("c"), "--resume",
                   *parts, "--check-replicas").out
    assert "training goes on" in shown, shown
    assert len([f for f in os.listdir(".") if "-of-" in f]) == 2, os.listdir(".")
    run_ok(2, *common, "--shard-optimizer", "--epochs", 5, "--checkpoint", "one", "--resume", "c")
    shown = run_ok(1, *common, "--epochs", 6, "--resume", "one").out
    assert "training goes on" in shown, shown
    (part,) = (f for f in os.listdir(".") if f.endswith("2-of-2"))
    os.remove(part)
    one_line(run(2, *common, "--resume", "c"), 1, f"--resume: a part of 'c': cannot open '{part}'")


# ---- bad data ----

def spoil(name, change):
    """A folder of the digits in which one file's content is change(content)."""
    shutil.rmtree("data", ignore_errors=True)
    shutil.copytree(DIGITS, "data")
    path = os.path.join("data", name + ".gz")
    with gzip.open(path) as f:
        content = f.read()
    os.remove(path)
    with open(os.path.join("data", name), "wb") as f:
        f.write(change(content))


def spoilt_data_end_all_ranks():
    labels, images = "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte"
    for name, change, text in (
            (labels, lambda b: b[:-5], f"'data/{labels}' is cut short: 1438 bytes of "
             "elements expected, 1433 found"),
            (images, lambda b: b"\0\0\x0d\x03" + b[4:], f"'data/{images}' is not an IDX file"),
            (labels, lambda b: b[:4] + b"\0\0\0\x07" + b[8:15],
             "'data': 1438 train images but 7 labels"),
            ("t10k-labels-idx1-ubyte", lambda b: b[:-1] + b"\x0b", "label 11 of image 358 is not between")):
        spoil(name, change)
        one_line(run(2, *QUIET, "--data", "data", "--epochs", 1), 1, text)
    one_line(run(2, *QUIET, "--data", "nowhere"), 1,
             "no data in 'nowhere' ('ddprun --fetch-data mnist' brings")
    os.mkdir("hollow")
    for where, text in (("hollow", "no data in 'hollow': neither train-images-idx3-ubyte (or .gz) nor"),
                        (__file__, "is a file, and images lie in folders ('ddprun --fetch-data mnist' brings"),
                        (__file__, "for a text or tokens say --model gpt2:vocab=256 or llama")):
        one_line(run(1, *QUIET, "--data", where), 1, text)


def spoilt_data_on_one_rank_end_all():
    spoil("train-labels-idx1-ubyte", lambda b: b[:-5])
    results = run(2, *QUIET, "--epochs", 1,
                  each=lambda r: ("--data", "data" if r else "digits"))
    one_line(results, 1, "is cut short")
    assert results[1].err, "the rank that has the error tells it"


def ranks_that_disagree_are_told():
    for options, text in (
            (("--batch-size", 33), "rank 1 has 33 for --batch-size, rank 0 has 32"),
            (("--normalize", "0.5/0.25"),
             "rank 1 has 0.5/0.25 for --normalize, rank 0 has data"),
            (("--precision", "bf16"), "rank 1 has bf16 for --precision, rank 0 has fp32"),
            (("--lr", 0.5), "rank 1 has 0.5 for --lr, rank 0 has nothing"),
            (("--augment", "crop:1"), "rank 1 has crop:1 for --augment, rank 0 has none"),
            (("--trace", "t"), "rank 1 has on for --trace, rank 0 has off"),
            (("--tune",), "rank 1 has 5 for --tune, rank 0 has 0"),
            (("--deterministic",), "rank 1 has on for --deterministic, rank 0 has off"),
            (("--stages", 2), "rank 1 has 2 for --stages, rank 0 has 1"),
            (("--bucket-mb", 1.5), "rank 1 has 1.5 for --bucket-mb, rank 0 has nothing"),
            (("--model", "mlp", "--optimizer", "sgd", "--lr", 1),
             "rank 1 has mlp for --model, rank 0 has cnn")):
        one_line(run(2, *QUIET, "--epochs", 1, each=lambda r: options if r else ()), 1, text)
    for rank in range(2):
        os.mkdir(f"{rank}")
        with open(f"{rank}/net.model", "w", encoding="ascii") as f:
            f.write(f"optimizer = sgd\na linear outputs={8 + rank} relu\nb linear\n")
    one_line(run(2, *QUIET, "--epochs", 1, each=lambda r: ("--model", f"{r}/net.model")), 1,
             " as checksum of --model, rank 0 has ")
    one_line(run(3, *QUIET, each=lambda r: ("--seed", 7 + (r == 2), "--no-dropout")), 1,
             "rank 2 has 8 for --seed, rank 0 has 7")
    spoil("train-images-idx3-ubyte",
          lambda b: b[:4] + b"\0\0\x05\x9d" + b[8:-64])
    labels = os.path.join("data", "train-labels-idx1-ubyte")
    with gzip.open(labels + ".gz") as f:
        content = f.read()
    os.remove(labels + ".gz")
    with open(labels, "wb") as f:
        f.write(content[:4] + b"\0\0\x05\x9d" + content[8:-1])
    one_line(run(2, *QUIET, each=lambda r: ("--data", "data" if r else "digits")), 1,
             "rank 1 has 1437 training samples, rank 0 has 1438")


# ---- bad checkpoints ----

def bad_checkpoints_end_all_ranks():
    run_ok(1, *QUIET, "--epochs", 1, "--checkpoint", "c", "--model", "mlp")
    size = os.path.getsize("c")
    with open("c", "rb") as f, open("cut", "wb") as g:
        g.write(f.read(size - 100))
    for options, text in (
            (("--resume", "c"), "--resume: 'c': it is of model 'mlp', not 'cnn'"),
            (("--resume", "cut", "--model", "mlp"), "--resume: 'cut': it is cut short"),
            (("--resume", "none"), "--resume: cannot open 'none': No such file"),
            (("--init", "c"), "--init: 'c': it is of model 'mlp', not 'cnn'"),
            (("--resume", "c", "--model", "mlp", "--seed", 5),
             "it was begun with --seed 1, not 5"),
            (("--checkpoint", "no/c"), "cannot write checkpoints to 'no/c'"),
            (("--log", "no/log"), "cannot write the log 'no/log'")):
        one_line(run(2, *QUIET, *options), 1, text)


def two_runs_do_not_save_to_one_place():
    os.mkdir("steps")
    for place in ("c", "steps"):
        first = Ranks(2, "--epochs", 100000, *QUIET, "--checkpoint", place, "--log", f"log.{place}",
                      "--checkpoint-every", 5)
        wait_for("c" if place == "c" else "steps/step-00000005.safetensors")
        one_line(run(2, *QUIET, "--epochs", 1, "--checkpoint", place), 1,
                 f"another run saves to '{place}': end it, or give this one another place for its checkpoints")
        first.signal(signal.SIGKILL, 0)
        first.wait()
        run_ok(2, *QUIET, "--epochs", 1, "--checkpoint", place)  # nothing is left of it
    # both begin before the file is there, unless one is slow, and one of them writes it
    both = [Ranks(1, "--epochs", 100000, *QUIET, "--checkpoint", "late", "--seed", seed)
            for seed in (1, 2)]
    wait_until(lambda: any(job.ranks[0].poll() is not None for job in both))
    for job in both:
        job.signal(signal.SIGTERM)
    ended = sorted((job.wait()[0] for job in both), key=lambda result: result.code)
    assert [result.code for result in ended] == [1, 75], ended
    assert re.match("ddp-train: (no checkpoint: )?another (run saves to 'late'|process is writing "
                    "'late.part'): .*\n$", ended[0].err), ended
    assert [f for f in os.listdir(".") if f.startswith("late")] == ["late"], os.listdir(".")


def a_log_that_cannot_be_written_is_told_at_once_and_a_pipe_is_not_awaited():
    (result,) = run(1, "--plot", "none", "--epochs", 1, "--log", "/dev/full")
    assert "from step 1 on '/dev/full' has nothing: No space left on device" in result.out, result
    one_line([result], 1, "the log '/dev/full' is not complete: No space left on device")
    os.mkfifo("pipe")
    for option in ("--log", "--trace", "--plot"):
        (result,) = run(1, "--progress", "none", "--epochs", 1, *(() if option == "--plot" else
                                                                QUIET[:2]), option, "pipe")
        one_line([result], 1, "'pipe': no process reads from this pipe")


def a_model_larger_than_the_host_is_refused_before_it_is_allocated():
    with open("a.txt", "w") as f:
        f.write("to be or not to be " * 1000)
    sizes = "gpt2:vocab=256,heads=1,width=4000000,context=64"
    for batch in (1, 65536):
        results = run(2, *QUIET, "--data", "a.txt", "--model", sizes, "--batch-size", batch)
        one_line(results[:1], 1, f"'{sizes}' needs ")
        assert re.search(r"[0-9]{8}\.[0-9] GB of memory, and [0-9.]+ GB are left: each of 2 ranks here takes "
                         r"[0-9]{8}\.[0-9] for weights and gradients, .*; try .*fewer ranks", results[0].err), results
        # two states of adamw, of which each rank has its part
        weights, states = re.search(r"takes ([0-9.]+) for weights and gradients, ([0-9.]+) for adamw",
                                    results[0].err).groups()
        assert abs(float(weights) / float(states) - 2) < 0.01, results
        assert [r.code for r in results] == [1, 1], results
    with open("wide.model", "w") as f:
        f.write("optimizer = sgd\nwide conv outputs=16777216 size=3 pad=1 bias relu\n"
                "wider conv outputs=16777216 size=10000 pad=9999 bias relu\nfc linear\n")
    one_line(run(1, *QUIET, "--model", "./wide.model"), 1, "'wider' is larger than a layer can be")


def a_model_that_memory_does_not_suffice_for_says_how_much_is_missing():
    def limit():
        resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    (result,) = run(1, *QUIET, "--model", "resnet18", "--batch-size", 4096, limit=limit)
    assert result.code == -signal.SIGABRT, result
    assert re.match(r"ddp-train: out of memory: cannot allocate [0-9]+\.[0-9] MiB\n$", result.err), result


def the_rank_that_has_the_error_ends_first():
    """A launcher reports that one. Here it cannot end, since its output is not read."""
    reader, writer = os.pipe()
    os.write(writer, b"x" * fcntl.fcntl(writer, fcntl.F_GETPIPE_SZ))
    job = Ranks(2, *QUIET, "--resume", "none", err0=writer)
    os.close(writer)
    time.sleep(1)  # more than the other one needs, if it does not wait
    assert job.ranks[1].poll() is None, "it has ended before"
    with open(reader, "rb") as f:
        said = f.read().lstrip(b"x").decode()
    assert said.count("\n") == 1 and "--resume: " in said, said
    assert [r.code for r in job.wait()] == [1, 1]


def a_full_disk_ends_all_ranks_and_keeps_the_old_checkpoint():
    job = Ranks(2, "--epochs", 100000, *QUIET, "--checkpoint", "c")
    wait_for("c")
    # from here on no file of rank 0 may grow beyond this
    resource.prlimit(job.ranks[0].pid, resource.RLIMIT_FSIZE, (100000, 100000))
    one_line(job.wait(), 1, "no checkpoint: cannot write 'c.part': File too large")
    assert os.listdir(".") == ["c"], os.listdir(".")
    shown = run_ok(2, "--epochs", 1, "--plot", "none", "--resume", "c").out
    assert "nothing is left to train" in shown, shown


def a_file_that_cannot_be_written_at_the_end_costs_no_other():
    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (100000, 100000))
    common = ("--model", "mlp", "--epochs", 1, "--plot", "plot", "--logits", "logits", "--log", "log")
    one = run(1, *common, "--checkpoint", "c", limit=limit)
    one_line(one, 1, "no checkpoint: cannot write 'c.part': File too large")
    two = run(2, *common, "--trace", "/dev/full")
    one_line(two, 1, "cannot write the trace '/dev/full'")
    for shown in (one[0].out, two[0].out):
        assert "of 359 test images after 1 epoch" in shown and "picture " in shown, shown
    assert sorted(os.listdir(".")) == ["log", "logits", "plot"] and len(rows("log", "end")) == 1, os.listdir(".")


# ---- bad numbers ----

def a_loss_that_is_no_number_ends_all_ranks():
    results = run(2, *QUIET, "--lr", 1e6, "--optimizer", "sgd", "--momentum", 0.9)
    assert [r.code for r in results] == [1, 1], results
    said = "".join(r.err for r in results)
    assert said.count("\n") == 1 and "the loss is" in said and "at step" in said, results
    assert "epoch" in said and "rank" in said and "lower --lr" in said, results
    assert re.search(r"first bad: (the output of )?'\w+(\.\w+)?'", said), results


def a_bad_number_that_spreads_is_told_by_whose_it_was():
    """Norms over all ranks make rank 1's data a bad loss of rank 0, too. The deviation makes
    every pixel infinite that is not black, and those of rank 0 are."""
    spoil("train-images-idx3-ubyte", lambda b: b[:16] + bytes(len(b) - 16))
    results = run(2, *QUIET, "--model", "resnet18", "--batch-size", 4, "--sync-batch-norm",
                  "--normalize", "0/1e-40", "--epochs", 1,
                  each=lambda r: ("--data", "digits" if r else "data"))
    one_line(results, 1, "rank 1: the loss is")
    assert "at step 1, epoch 1; first bad: the data: try data without" in results[1].err, results


def bad_steps_can_be_left_out():
    results = run(2, "--plot", "none", "--lr", 1e6, "--optimizer", "sgd", "--momentum", 0.9,
                  "--epochs", 1, "--on-nan", "skip", "--log", "log")
    assert "skipped: its loss is not finite" in results[0].out, results
    assert len(rows("log", "step")) == 23, "it goes on"
    one_line(results, 1, "the test loss is")


def bad_test_data_do_not_blame_the_learning_rate():
    for folder, part, pixel in (("nan", "train", 0.5), ("nan", "test", float("nan")),
                                ("good", "train", 0.5), ("good", "test", 0.5)):
        os.makedirs(folder, exist_ok=True)
        put_array(f"{folder}/{part}-images.npy", "<f4", "(4, 28, 28)", struct.pack("<f", pixel) * 4 * 28 * 28)
        put_array(f"{folder}/{part}-labels.npy", "|u1", "(4,)", bytes([0, 1, 2, 9]))
    common = (*QUIET, "--model", "mlp", "--epochs", 2, "--data")
    text = "the test loss is nan after step 1: try test data without NaN and infinity"
    one_line(run(2, *common, "nan"), 1, text + "\n")
    for more in (), ("--ema", 0.5):
        for way in (), ("--resume",):  # the epoch that was trained is saved
            one_line(run(2, *common, "nan", *more, "--checkpoint", "half", *way), 1, text + ", and --resume\n")
        run_ok(2, *common, "good", *more, "--checkpoint", "half", "--resume")
        run_ok(2, *common, "good", *more, "--checkpoint", "whole")
        assert open("whole", "rb").read() == open("half", "rb").read(), more
        os.remove("half")


def wrong_options_are_exit_code_2():
    (result,) = run(1, "--batch-size", "many")
    assert result.code == 2 and result.out == "", result
    assert result.err == ("ddp-train: --batch-size: 'many' is not a whole number from 1 to "
                          "65536\n"), result


main([a_resumed_run_goes_on_to_the_bit, a_resumed_run_goes_on_within_an_epoch,
      another_number_of_ranks_can_go_on, resume_starts_anew_where_there_is_nothing,
      a_run_begins_with_the_weights_of_another, a_target_that_was_reached_is_seen_when_the_job_is_resumed,
      a_link_in_the_place_of_a_checkpoint_is_followed_and_stays,
      sigterm_to_one_rank_stops_all_after_the_step,
      a_second_sigterm_at_once_is_the_same_request, a_dead_rank_is_noticed,
      spoilt_data_end_all_ranks, spoilt_data_on_one_rank_end_all,
      ranks_that_disagree_are_told, bad_checkpoints_end_all_ranks,
      sigint_to_one_rank_is_the_code_of_all, a_signal_breaks_off_tests_and_samples,
      places_that_cannot_be_written_are_said_before_training,
      a_full_disk_below_stdout_is_an_error_and_a_reader_that_left_is_none,
      the_rank_that_has_the_error_ends_first,
      a_model_larger_than_the_host_is_refused_before_it_is_allocated,
      a_model_that_memory_does_not_suffice_for_says_how_much_is_missing, two_runs_do_not_save_to_one_place,
      a_log_that_cannot_be_written_is_told_at_once_and_a_pipe_is_not_awaited,
      a_full_disk_ends_all_ranks_and_keeps_the_old_checkpoint,
      a_file_that_cannot_be_written_at_the_end_costs_no_other,
      a_loss_that_is_no_number_ends_all_ranks,
      a_bad_number_that_spreads_is_told_by_whose_it_was, bad_steps_can_be_left_out,
      bad_test_data_do_not_blame_the_learning_rate,
      a_schedulers_warning_is_a_checkpoint_and_a_code_to_go_on,
      a_large_checkpoint_is_written_by_all_ranks_and_resumed_by_any_number, wrong_options_are_exit_code_2,
      the_picture_of_an_earlier_run_stays, a_file_has_one_use])
