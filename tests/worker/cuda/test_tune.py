"""test_tune.py BUILD SOURCE ENGINE - --tune takes the fastest algorithms that may be taken

ENGINE as test_cuda.py's. The GPU made of a CPU tells times that it makes up (EMU_TIMES) and offers
algorithms of which some must not be taken: emu_cudnn_graph.cc, emu_cudnn.cc, emu_cublaslt.cc.
"""
import glob
import os
import re
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor

sys.path.insert(0, os.path.join(sys.argv[2], "tests", "worker", "train"))
from gpu import CACHE, EMULATED, FEW, GPUS, as_on_cpu, few_digits, on_cpu, on_gpu, same  # noqa: E402
from ranks import losses, main, run_ok  # noqa: E402

TOLD = {"EMU_TIMES": "1"}
TUNE = "--tune=600"  # what is slow is the stand-in, on a busy machine
# 20 images: two whole steps, and one number of samples
ARGS = (*FEW[:2], *FEW[4:], "--model", "cnn", "--no-dropout", "--group-timeout", "25m", "--deterministic",
        "--batch-size", 10, "--engine", "cuda")


def tuned(shown):
    return re.findall(r"^tuned +(.*)$", shown, re.M)


def forget():
    """Runs from here on know nothing of those before."""
    shutil.rmtree(CACHE)


def choices():
    """(the file, {product: place in the library's list})"""
    (path,) = glob.glob(os.path.join(CACHE, "ddprun", "algorithms-*"))
    with open(path) as f:
        return path, dict(entry.split("=") for entry in f.read().splitlines())


def content(path):
    with open(path, "rb") as f:
        return f.read()


def the_fastest_right_ones_are_taken_and_kept():
    few_digits(train=20, test=8)
    on_cpu(1, "whole", *ARGS[:-2], "--epochs", 2)
    lines = tuned(as_on_cpu(1, "whole", *ARGS[:-2], "--epochs", 2, TUNE, "--checkpoint", "w",
                            tolerance=2e-4, **TOLD))
    assert re.match(r"\d+ of 11 products by another algorithm: [0-9.e+]+ us instead of [0-9.e+]+$",
                    lines[0]) and len(lines) == 1, lines
    path, made = choices()
    assert re.search(r"/algorithms-cuDNN-\d+-cuBLASLt-\d+-\w", path) and len(made) == 11, (path, made)
    if EMULATED:
        assert lines[0].startswith("11 of 11 products by another algorithm"), lines
        # of cuDNN's the first of two settings of an engine, but for filters; of cuBLASLt's the second
        for product, place in made.items():
            wanted = {"forward": "26", "image": "26", "filter": "28"}.get(product.split()[0], "1")
            assert place == wanted, (product, place)
    # stopped, and resumed where the times would tell something else: the same bits
    forget()
    run_ok(1, *ARGS, "--epochs", 1, TUNE, "--checkpoint", "c", "--log", "first", env=on_gpu(**TOLD))
    assert EMULATED is False or choices() == (path, made), choices()
    with open(path, "a") as f:  # of another model; and what another run has chosen at the same time
        f.write("forward of nothing=3\n" + "".join(product + "=0\n" for product in made))
    part = run_ok(1, *ARGS, "--epochs", 2, TUNE, "--resume", "c", "--checkpoint", "c", "--log", "then",
                  env=on_gpu()).out
    assert tuned(part) == ["as measured before"], part
    if EMULATED:  # elsewhere the two runs may have chosen otherwise
        assert losses("first") + losses("then") == losses("whole.fp32")
        assert content("c") == content("w")
    if EMULATED:  # on another GPU
        other = tuned(run_ok(1, *ARGS, "--epochs", 3, TUNE, "--resume", "c",
                             env=on_gpu(EMU_CHIP="NVIDIA L40:8.9", **TOLD)).out)
        assert other[0].startswith("11 of 11 products by another algorithm"), other
        os.unlink(glob.glob(os.path.join(CACHE, "ddprun", "algorithms-*L40*"))[0])
    over = run_ok(1, *ARGS, "--epochs", 2, TUNE, "--resume", "c", env=on_gpu()).out
    assert tuned(over) == ["nothing: no step is left to take"], over
    # the cache is for new runs
    new = run_ok(1, *ARGS, "--epochs", 2, TUNE, "--log", "new", env=on_gpu()).out
    assert tuned(new) == ["as measured before"], new
    assert not EMULATED or losses("new") == losses("whole.fp32")
    # and they are not the usual ones' bits, though nearly
    run_ok(1, *ARGS, "--epochs", 2, "--log", "usual", env=on_gpu())
    same(losses("usual"), losses("whole.fp32"), 2e-4)
    assert not EMULATED or losses("usual") != losses("whole.fp32")
    what_does_not_fit_is_not_taken(path, made)


def what_does_not_fit_is_not_taken(path, made):
    """Places that there are not, or whose algorithms must not be taken, and no file at all."""
    def write(place):
        with open(path, "w") as f:
            f.write("".join(f"{p}={place}\n" for p in made))
    def run(log, **env):
        return tuned(run_ok(1, *ARGS, "--epochs", 2, TUNE, "--log", log, env=on_gpu(**env)).out)
    write(1000)
    assert run("beyond") == ["as measured before"]
    assert losses("beyond") == losses("usual")
    if EMULATED:  # what cuDNN refuses when it is executed, near its list's end
        write(5)
        assert run("refused", EMU_CUDNN="choosy") == ["as measured before"]
        assert losses("refused") == losses("usual")
    open("file", "w").close()
    assert re.search("; not kept for later runs: 'file/ddprun/algorithms-.*': Not a directory$",
                     run("nowhere", XDG_CACHE_HOME="file")[0])


def what_varies_is_taken_unless_it_must_not_be():
    few_digits(train=20, test=8)
    args = tuple(a for a in ARGS if a != "--deterministic")
    lines = tuned(run_ok(1, *args, "--epochs", 1, TUNE, env=on_gpu(**TOLD)).out)
    path, made = choices()
    assert len(made) == 11 and not any(product.endswith("deterministic") for product in made), made
    if EMULATED:  # the first in the list, which is the fastest
        assert [place for product, place in made.items() if product[0] in "fi" and "/" in product.split()[3]] \
            == ["0"] * 5, made
        assert lines[0].startswith("6 of 11 products by another algorithm"), lines
    # and these choices are not those of runs that must not vary
    lines = tuned(run_ok(1, *ARGS, "--epochs", 1, TUNE, env=on_gpu(**TOLD)).out)
    assert not EMULATED or lines[0].startswith("5 of 5 products by another algorithm"), lines
    assert len(choices()[1]) == 16, choices()


def ranks_with_another_gpu_take_the_default():
    if GPUS < 2:
        return
    few_digits(train=20, test=8)
    # two numbers of samples, the last step's and the others'
    args = (*ARGS[:-4], "--batch-size", 4, "--epochs", 1)
    on_cpu(2, "two", *args)
    lines = tuned(as_on_cpu(2, "two", *args, TUNE, "--check-replicas", tolerance=2e-4, **TOLD))
    assert not EMULATED or lines[0].startswith("22 of 22 products by another algorithm"), lines
    if EMULATED:
        lines = tuned(as_on_cpu(2, "two", *args, TUNE, "--check-replicas", tolerance=2e-4, EMU_OTHER="1", **TOLD))
        assert lines == ["nothing: the ranks have different GPUs or libraries"], lines


def stages_and_half_precision_are_tuned_too():
    few_digits(train=20, test=8)
    args = (*ARGS[:-2], "--epochs", 1, "--optimizer", "sgd", "--lr", 0.1)
    on_cpu(1, "half", *args)
    lines = tuned(as_on_cpu(1, "half", *args, TUNE, "--stages", 2, "--micro-batches", 2,
                            tolerance=2e-2, precision="bf16", **TOLD))
    made = choices()[1]
    assert len(made) == 11 and all(" 5 " in product for product in made), made
    if EMULATED:  # tensor cores are what is wanted then
        assert sorted(place for product, place in made.items() if product.split()[0] in
                      ("forward", "filter", "image")) == ["28"] * 2 + ["29"] * 3, made
        assert lines[0].startswith("11 of 11"), lines


def two_runs_at_once_both_keep_what_they_measure():
    few_digits(train=20, test=8)
    def measure(batch):  # 8: the last step has 4
        run_ok(1, *ARGS[:-4], "--engine", "cuda", "--batch-size", batch, "--epochs", 1, TUNE, env=on_gpu(**TOLD))
    with ThreadPoolExecutor() as pool:
        list(pool.map(measure, (8, 10)))
    assert len(choices()[1]) == 33, choices()


def runs_that_measure_the_same_at_once_choose_alike():
    few_digits(train=20, test=8)
    def measure(log, **env):
        run_ok(1, *ARGS, "--epochs", 1, TUNE, "--log", log, env=on_gpu(**env))
    with ThreadPoolExecutor() as pool:
        runs = [pool.submit(measure, "told", **TOLD), pool.submit(measure, "timed")]
        for run in runs:
            run.result()
    measure("later")  # and so would those two, resumed
    assert losses("told") == losses("timed") == losses("later")


def a_file_that_cannot_be_read_is_told():
    few_digits(train=20, test=8)
    def run():
        return tuned(run_ok(1, *ARGS, "--epochs", 1, TUNE, env=on_gpu(**TOLD)).out)[0]
    run()
    path, made = choices()
    with open(path, "ab") as f:  # as a host that lost its power may leave it
        f.write(bytes(512))
    told = run()
    assert re.search(f"; not kept for later runs: the cache file '{path}' has a zero byte: it is no text$", told), told


def without_time_it_goes_on():
    few_digits(train=20, test=8)
    run_ok(1, *ARGS, "--epochs", 1, "--log", "usual", env=on_gpu())
    shown = run_ok(1, *ARGS, "--epochs", 1, "--tune=0.000000001", "--checkpoint", "c", "--log", "none",
                   env=on_gpu(**TOLD)).out
    assert re.match(r"[01] of 1 product by another algorithm.*; 10 not measured for lack of time: remove "
                    r"cache/ddprun/algorithms-.*, and give --tune more$", tuned(shown)[0]), shown
    same(losses("usual"), losses("none"), 2e-4)
    # and so does the run that is resumed from it, whatever its time
    made = choices()
    shown = run_ok(1, *ARGS, "--epochs", 2, TUNE, "--resume", "c", env=on_gpu(**TOLD)).out
    assert tuned(shown) == ["as measured before"] and choices() == made, shown
    shown = run_ok(1, *ARGS[:-2], "--epochs", 0, "--engine", "cpu", "--tune").out
    assert tuned(shown) == ["nothing: the engine 'cpu' has no choice"], shown


if GPUS == 0:
    print("skipped: the driver finds no GPU; needs gpu")
    sys.exit(77)
main([the_fastest_right_ones_are_taken_and_kept, what_varies_is_taken_unless_it_must_not_be,
      ranks_with_another_gpu_take_the_default,
      stages_and_half_precision_are_tuned_too, two_runs_at_once_both_keep_what_they_measure,
      runs_that_measure_the_same_at_once_choose_alike, a_file_that_cannot_be_read_is_told, without_time_it_goes_on])
