#!/usr/bin/env python3
"""bench/gpu.py BUILD_DIR [--budget S] [--report FILE] [--data DIR] [--python PY]: steps on a GPU.

For each model, batch and precision, on the same random images (28x28, or 32x32 in colours for
resnet18) that lie in the GPU's memory, or on random tokens, 1,024 to a sample (gpt2, the one of 124
million parameters; PyTorch's attention is its scaled_dot_product_attention()):

  ddp-train    images/s of the whole loop, with its share of the GPU's peak and its memory
  bare         the step's products by cuDNN and cuBLASLt alone, played as one graph
               (bench-gpu_bare): no step with these algorithms is faster
  tuned        both once more with --tune, the algorithms that are measured to be the fastest
  eager        PyTorch; its bf16 and fp16 under autocast, convolutions with channels last
  graph        PyTorch's eager step, whole, as one CUDA graph: batch, forward, backward, optimiser
  compiled     the same as eager, torch.compile(mode="reduce-overhead"), which plays graphs

Then how long the loop takes to 99 % on handwritten digits, or to its own ceiling: MNIST's four
files in --data (tests/data/mnist10k), or with `--data digits` those that ddp-train carries. With two
GPUs, how much of the communication is hidden behind backward. Where a step takes more than 1.10 x
the bare one, what each of its layers adds.

All of it within --budget seconds: what would not fit is left out, compiled ones first. A row
without some figure ends with a number, such as (2): the reason stands below the tables. Without a
GPU no row has any, and the exit code is 77; 1 when something failed.
Python is the one given, else tests/interop/torch-env.sh's, else python3."""
import argparse
import ctypes
import json
import os
import re
import subprocess
import sys
import tempfile
import time

from gpu_programs import Failed, Torch, Trainer, random_colours, random_images, random_tokens

HERE = os.path.dirname(os.path.abspath(__file__))
# in the order in which they are measured: what is dear and says least stands last
CASES = ("cnn:64:fp32", "cnn:256:fp32", "cnn:256:bf16", "resnet18:256:bf16", "mlp:64:fp32",
         "gpt2:8:bf16", "cnn:256:tf32", "resnet18:256:tf32", "mlp:256:bf16", "cnn:64:bf16", "resnet18:256:fp32",
         "cnn:256:fp16", "resnet18:256:fp16", "gpt2:4:fp32")
GRAPHED = ("resnet18:256:bf16", "gpt2:8:bf16", "cnn:64:fp32", "mlp:64:fp32", "cnn:256:bf16", "resnet18:256:tf32",
           "mlp:256:bf16", "cnn:256:fp32", "resnet18:256:fp32")
COMPILED = ("cnn:64:fp32", "cnn:256:bf16", "resnet18:256:bf16", "gpt2:8:bf16", "cnn:256:fp32", "cnn:64:bf16",
            "resnet18:256:tf32")
IMAGES = {"cnn": 60000, "mlp": 60000, "resnet18": 20000, "gpt2": 400}
# seconds that a row is thought to take, before it is begun: a process's start, and CUDA's, in it
COSTS = {"ours": 6, "eager": 6, "graph": 7, "compiled": 45, "digits": 4, "layers": 4, "hidden": 15, "tuned": 9}


# ---- what there is ----

def list_gpus():
    """Their names, by nvidia-smi, else by the driver itself."""
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], stdout=subprocess.PIPE,
                                stderr=subprocess.DEVNULL, text=True, timeout=60).stdout
        found = [line for line in listed.splitlines() if line.startswith("GPU ")]
        if found:
            return found
    except (OSError, subprocess.TimeoutExpired):
        pass
    n = ctypes.c_int(0)
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return []
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(n)) != 0:
        return []
    name = ctypes.create_string_buffer(100)
    return [f"GPU {i}: {name.value.decode()}" for i in range(n.value)
            if driver.cuDeviceGetName(name, 100, i) == 0]


def torch_python(given):
    if given:
        return given
    finder = subprocess.run([f"{HERE}/../tests/interop/torch-env.sh"],
                            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return finder.stdout.strip() if finder.returncode == 0 else "python3"


def digits_folder(given):
    """Where the images are; None: those that ddp-train carries."""
    return None if given == "digits" else os.path.abspath(given)


def of_kind(rows, kind):
    return [row for row in rows if row["kind"] == kind]


def middle(values):
    return sorted(values)[len(values) // 2]


def words_of(case, folders):
    model, batch, precision = case.split(":")
    return ("--model", model, "--data", folders.get(model, folders["text"]), "--batch-size", batch,
            "--precision", precision)


def ours(trainer, folders, case, seconds, *more):
    # nothing can be learnt of these images: weights stay where they are
    rows, out = trainer.epochs(seconds, *words_of(case, folders), "--lr", 1e-6, *more)
    epochs, (end,) = of_kind(rows, "epoch")[1:], of_kind(rows, "end")
    if not epochs:
        raise Failed(f"{case}: one epoch took all the time there was")
    device = re.search(r"^engine +cuda: (.*)$", out, re.M)
    return {"rate": middle([row["images_per_s"] for row in epochs]),
            "peak": middle([row["peak_percent"] or 0 for row in epochs]),
            "mib": (end["device_bytes"] or 0) / 2**20, "engine": device[1] if device else "",
            "notes": re.findall(r"^tuned +(.*)$", out, re.M)}


def bare(program, case, seconds, *more):
    model, batch, precision = case.split(":")
    try:
        run = subprocess.run([program, model, batch, precision, str(seconds), *map(str, more)],
                             text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=200)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Failed(f"bench-gpu_bare: {error}") from None
    if run.returncode != 0:
        raise Failed(run.stderr.strip() or f"bench-gpu_bare ended with {run.returncode}")
    return json.loads(run.stdout)


# ---- out of a trace ----

def spans_of_steps(path, skip):
    """Rank 0's spans, a list for each step but the first `skip`, and the names of their rows."""
    with open(path) as f:
        events = json.load(f)["traceEvents"]
    names = {e["tid"]: e["args"]["name"] for e in events
             if e["name"] == "thread_name" and e["pid"] == 0}
    spans = [e for e in events if e["ph"] == "X" and e["pid"] == 0]
    steps = [e for e in spans if names[e["tid"]] == "steps"]
    return [[e for e in spans if step["ts"] <= e["ts"] < step["ts"] + step["dur"] and e is not step]
            for step in steps[min(skip, len(steps) // 2):][:40]]


def overlap(a, spans):
    return sum(max(0, min(a["ts"] + a["dur"], b["ts"] + b["dur"]) - max(a["ts"], b["ts"]))
               for b in spans)


def hidden(trainer, case, folders):
    """Of the ranks' communication, or of backward where that is less: the part that is hidden."""
    path = os.path.join(trainer.scratch, "trace.json")
    trainer.run(*words_of(case, folders), "--epochs", 1, "--trace", path, ranks=2)
    parts = []
    for inside in spans_of_steps(path, 20):
        talk = [e for e in inside if e["name"].startswith("bucket ")]
        back = [e for e in inside if e["name"].endswith(" backward")]
        least = min(sum(e["dur"] for e in talk), sum(e["dur"] for e in back))
        if least > 0:
            parts.append(sum(overlap(e, back) for e in talk) / least)
    if not parts:
        raise Failed("the trace shows no communication")
    return middle(parts)


def layers(trainer, case, folders):
    """Microseconds of each part of a step, by name."""
    path = os.path.join(trainer.scratch, "trace.json")
    trainer.run(*words_of(case, folders), "--epochs", 1, "--trace", path)
    took = {}
    for inside in spans_of_steps(path, 20):
        for e in inside:
            took.setdefault(e["name"], []).append(e["dur"])
    return {name: middle(all_of) for name, all_of in took.items()}


# ---- to 99 % ----

def to_target(trainer, folder, epochs, seed, *more):
    """Seconds of the loop to 99 % (None: never), the best accuracy, seconds to it."""
    data = ("--data", folder, "--augment", "crop:2") if folder else ()
    rows, _ = trainer.run("--model", "cnn", *data, "--precision", "bf16", "--batch-size", 256,
                          "--optimizer", "adam", "--lr", 0.004, "--schedule", "linear",
                          "--epochs", epochs, "--seed", seed, *more)
    n = of_kind(rows, "run")[0]["train_samples"]
    spent, best, at, reached = 0, 0, 0, None
    for row in of_kind(rows, "epoch"):
        spent += n / row["images_per_s"]
        if row["test_accuracy"] > best:
            best, at = row["test_accuracy"], spent
        if row["test_accuracy"] >= 99 and reached is None:
            reached = spent
    return reached, best, at


# ---- the report ----

class Report:
    """Tables of figures. What could not be had is explained at the end of its row, by number."""

    def __init__(self, path, budget, append, gpus):
        self.file = open(path, "a" if append else "w") if path else None
        self.began, self.budget, self.gpus = time.monotonic(), budget, gpus
        self.notes, self.failed = [], 0
        self.reasons, self.row_reasons = [], []

    def line(self, text=""):
        print(text, flush=True)
        if self.file:
            print(text, file=self.file, flush=True)

    def cells(self, *cells):
        self.line("| " + " | ".join(f"{c:<20}" if i == 0 else f"{c:>10}"
                                    for i, c in enumerate(cells)) + " |")

    def head(self, *cells):
        self.line()
        self.cells(*cells, "why not")
        self.line("|" + "---|" * (len(cells) + 1))

    def row(self, *cells):
        """Returns the reasons of this row."""
        if "" not in cells:
            self.row_reasons = []
        elif not self.row_reasons:
            self.because("nothing that it is made of was measured")
        told, self.row_reasons = self.row_reasons, []
        self.cells(*cells, " ".join(f"({n})" for n in sorted(told)))
        return [self.reasons[n - 1] for n in told]

    def because(self, text):
        """Why the next row has no figure somewhere."""
        text = text.strip()
        if text not in self.reasons:
            self.reasons.append(text)
        number = self.reasons.index(text) + 1
        if number not in self.row_reasons:
            self.row_reasons.append(number)

    def left(self):
        return self.budget - (time.monotonic() - self.began)

    def get(self, what, cost, call, *args):
        """call(*args), or None: there is no GPU, no time for it, or it failed."""
        if not self.gpus:
            self.because("no GPU here")
        elif self.left() < cost:
            self.because("no time was left")
        else:
            try:
                return call(*args)
            except Failed as error:
                self.because(str(error))
                self.failed += not str(error).startswith("no PyTorch")
            except Exception as error:  # a row may not take the others with it
                self.because(f"{what}: {type(error).__name__}: {error}")
                self.failed += 1
        return None


def shown(x, form=None):
    """Empty when there is none; small ones with what is behind the point."""
    if not isinstance(x, (int, float)):
        return ""
    return (form or ("{:,.0f}" if x >= 1000 else "{:,.2f}")).format(x)


def ratio(a, b):
    return a / b if a and b else None


class Bench:
    def __init__(self, args, report, gpus, scratch):
        self.args, self.report, self.gpus, self.scratch = args, report, gpus, scratch
        keep = open(args.keep or os.devnull, "a")
        self.torch = Torch(torch_python(args.python), args.torch_device, keep)
        self.trainer = Trainer(os.path.abspath(args.build), scratch, report.left, keep)
        self.bare = args.bare or f"{args.build}/bench/bench-gpu_bare"
        self.images = {m: min(n, args.images) for m, n in IMAGES.items()}
        self.folders, self.found, self.tuned = {}, {}, {}
        self.compared, self.goals, self.tuned_digits = {}, [], None

    def prepare(self):
        for name, fill, models in (("images", random_images, ("cnn", "mlp")),
                                   ("colours", random_colours, ("resnet18",))):
            folder = os.path.join(self.scratch, name)
            os.mkdir(folder)
            fill(folder, max(self.images[m] for m in models))
            self.folders.update(dict.fromkeys(models, folder))
        random_tokens(self.scratch, self.images["gpt2"])
        self.folders.update(gpt2=f"{self.scratch}/tokens.bin", text=f"{self.scratch}/text")

    def ask_torch(self, case, how):
        cost = COSTS[how]
        return self.report.get(f"{case} {how}", cost, self.torch.ask, case, how, self.args.seconds,
                               self.images.get(case.split(":")[0], 0), min(self.report.left(), 24 + 2 * cost))

    def measure(self, case):
        r, seconds = self.report, self.args.seconds
        us = r.get(case, COSTS["ours"], ours, self.trainer, self.folders, case, seconds)
        limit = r.get(f"{case} bare", COSTS["layers"], bare, self.bare, case, seconds / 3)
        eager = self.ask_torch(case, "eager")
        us = us or {"rate": None, "peak": None, "mib": None}
        us["step"] = int(case.split(":")[1]) * 1e6 / us["rate"] if us["rate"] else None
        us["bare"], us["limit"] = limit, ratio(us["step"], limit and limit["us"])
        us["eager"], eager_mib = eager or (None, None)
        self.found[case] = us
        us["why"] = r.row(case.replace(":", " "), shown(us["rate"]), shown(us["step"], "{:,.1f}"),
              shown(limit and limit["us"], "{:,.1f}"), shown(us["limit"], "{:.2f}"),
              shown(us["peak"], "{:.1f}"), shown(us["mib"], "{:,.0f}"), shown(us["eager"]),
              shown(eager_mib, "{:,.0f}"),
              shown(ratio(us["rate"], us["eager"]), "{:.2f}"))

    def steps(self):
        self.report.head("model, batch", "images/s", "us a step", "bare us", "x bare", "% of peak",
                         "GPU MiB", "eager/s", "eager MiB", "x eager")
        for case in self.args.cases:
            self.measure(case)
        engines = {us["engine"] for us in self.found.values() if us.get("engine")}
        names = {text.split(",")[0] for text in engines}
        self.report.notes += sorted(found[0] for found in (
            re.search(r"steps without a graph.*", text) for text in engines) if found)
        if names:
            self.report.line()
            self.report.line(f"Measured on: {', '.join(sorted(names))}.")

    def tune(self):
        """The same with --tune; digits, too, if there is time."""
        r, seconds = self.report, self.args.seconds
        r.head("tuned", "images/s", "untuned", "us a step", "bare us", "untuned", "x bare", "x eager")
        for case in self.args.tuned or self.args.compiled:
            usual, wish = self.found.get(case, {}), self.args.tune
            us = r.get(f"{case} tuned", COSTS["tuned"], ours, self.trainer, self.folders, case,
                       seconds, f"--tune={wish}")
            limit = r.get(f"{case} bare, tuned", COSTS["tuned"], bare, self.bare, case,
                          seconds / 3, wish)
            if not usual.get("eager"):
                for why in usual.get("why", ()):
                    r.because(why)
            rate = us and us["rate"]
            step = int(case.split(":")[1]) * 1e6 / rate if rate else None
            alone = limit and limit["tuned"]["us"]
            self.tuned[case] = {"rate": rate, "limit": ratio(step, alone),
                                "eager": ratio(rate, usual.get("eager"))}
            r.row(case.replace(":", " "), shown(rate), shown(usual.get("rate")),
                  shown(step, "{:,.1f}"), shown(alone, "{:,.1f}"), shown(limit and limit["us"], "{:,.1f}"),
                  shown(ratio(step, alone), "{:.2f}"), shown(self.tuned[case]["eager"], "{:.2f}"))
            for line in us["notes"] if us else ():
                r.notes.append(f"{case}, tuned: {line}")

    def compare(self, how, cases):
        """With PyTorch's other ways to take a step."""
        self.report.head(f"beside {how}", "images/s", f"{how}/s", f"x {how}", "x, tuned")
        for case in cases:
            usual = self.found.get(case, {})
            told = self.ask_torch(case, how)
            mine, faster = usual.get("rate"), self.tuned.get(case, {}).get("rate")
            theirs = told and told[0]
            ratios = ratio(mine, theirs), ratio(faster, theirs)
            for why in () if mine else usual.get("why", ()):
                self.report.because(why)
            untuned = "-" if case not in self.tuned else ""
            why = self.report.row(case.replace(":", " "), shown(mine), shown(theirs),
                                  shown(ratios[0], "{:.2f}"),
                                  shown(ratios[1], "{:.2f}") or untuned)
            self.compared[how, case] = (*ratios, why)

    def digits(self):
        folder = digits_folder(self.args.data)
        name = os.path.basename(folder) if folder else "the 1,438 digits that ddp-train carries"
        runs = []
        for seed in range(1, self.args.seeds + 1):
            runs.append(self.report.get(f"digits, seed {seed}", COSTS["digits"], to_target,
                                        self.trainer, folder, self.args.epochs, seed))
        runs = [run for run in runs if run]
        self.report.head("digits", "runs", "best %", "s to it", "at 99 %", "s to 99 %")
        reached = [run[0] for run in runs if run[0] is not None]
        mean = sum(reached) / len(reached) if reached else None
        why = self.report.row(
            name, len(runs), shown(runs and middle([r[1] for r in runs]), "{:.2f}"),
            shown(runs and middle([r[2] for r in runs]), "{:.3f}"),
            f"{len(reached)} of {len(runs)}", shown(mean, "{:.3f}") or ("-" if runs else ""))
        if reached:
            again = self.report.get("digits, tuned", COSTS["tuned"], to_target, self.trainer, folder,
                                    self.args.epochs, 1, f"--tune={self.args.tune}")
            self.tuned_digits = again and again[0]
        self.goals.append(("99 % on digits: s of loop, at most", 0.10, mean, self.tuned_digits, False,
                           why if reached or not runs else
                           [f"these images do not get there: {name} ends at "
                            f"{middle([r[1] for r in runs]):.2f} % after "
                            f"{middle([r[2] for r in runs]):.3f} s"]))

    def hide(self):
        part, r = None, self.report
        if len(self.gpus) > 1:
            part = r.get("communication hidden", COSTS["hidden"], hidden, self.trainer,
                         self.args.hidden, self.folders)
        else:
            r.because("needs two GPUs: NCCL takes one rank on each, and a rank alone has nothing to "
                      "hide")
        why, r.row_reasons = [r.reasons[n - 1] for n in r.row_reasons], []
        self.goals.append(("communication hidden: part, at least", 0.90, part, "-", True, why))

    def judge(self):
        def collect(what, goal, least, rows):
            """The worst of what is, and of the same with --tune; rows: (is, tuned, why not)."""
            worst = []
            for values in zip(*(row[:2] for row in rows)):
                values = [v for v in values if v]
                worst.append((min if least else max)(values) if values else None)
            reasons = [why for row in rows for why in row[2] if not row[0] or not row[1]]
            self.goals.append((what, goal, *(worst or (None, None)), least, reasons))

        def verdict(value, goal, least):
            return "-" if not isinstance(value, (int, float)) else \
                "met" if (value >= goal if least else value <= goal) else "missed"

        tuned = {case: self.tuned.get(case, {}) for case in self.found}
        collect("step, x the bare one, at most (the worst)", 1.10, False,
                [(us["limit"], tuned[case].get("limit"), us["why"])
                 for case, us in self.found.items()])
        collect("cnn, x eager, at least (the worst)", 4, True,
                [(ratio(us["rate"], us["eager"]), tuned[case].get("eager"), us["why"])
                 for case, us in self.found.items() if case.startswith("cnn")])
        for model, how, goal in (("cnn", "compiled", 1.3), ("resnet18", "compiled", 1.0),
                                 ("resnet18", "graph", 1.0)):
            collect(f"{model}, x {how}, at least (the worst)", goal, True,
                    [row for (beside, case), row in self.compared.items()
                     if beside == how and case.startswith(model)])
        self.report.head("goal", "wanted", "is", "", "tuned", "")
        for what, goal, value, other, least, why in self.goals:
            for reason in why if value is None or other is None else ():
                self.report.because(reason)
            self.report.row(what, f"{goal:g}", shown(value, "{:.3g}"), verdict(value, goal, least),
                            other if other == "-" else shown(other, "{:.3g}"),
                            verdict(other, goal, least))

    def profile(self, case):
        """What each part of a step takes beside the bare one's."""
        took = self.report.get(f"{case}, layer by layer", COSTS["layers"], layers, self.trainer,
                               case, self.folders)
        if not took:
            return
        alone = self.found[case]["bare"]["layers"]
        self.report.head(f"{case.replace(':', ' ')}", "us", "bare us", "more")
        more = {name: us - alone.get(name, 0) for name, us in took.items()}
        for name in sorted(more, key=more.get, reverse=True)[:8]:
            self.report.row(name, f"{took[name]:.1f}", shown(alone.get(name), "{:.1f}") or "-",
                            f"{more[name]:.1f}")

    def explain(self):
        for case in sorted((c for c in self.found if (self.found[c]["limit"] or 0) > 1.10),
                           key=lambda c: self.args.cases.index(c))[:4]:
            self.profile(case)

    def close(self):
        self.torch.close()


def parse():
    args = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    args.add_argument("build")
    args.add_argument("--budget", type=float, default=330, metavar="S")
    args.add_argument("--seconds", type=float, default=1.2, help="of steps, for each figure")
    args.add_argument("--report", metavar="FILE", help="where it goes besides the terminal")
    args.add_argument("--append", action="store_true", help="to what is in FILE")
    args.add_argument("--keep", metavar="FILE", help="for all that failed programs said")
    args.add_argument("--python")
    args.add_argument("--data", metavar="DIR", default=f"{HERE}/../tests/data/mnist10k",
                      help="digits: those that ddp-train carries")
    args.add_argument("--seeds", type=int, default=5, help="runs to 99 %%")
    args.add_argument("--epochs", type=int, default=16, help="of each of them")
    # for trying it out where there is no GPU
    args.add_argument("--cases", type=lambda text: text.split(","), default=CASES)
    args.add_argument("--graphed", type=lambda text: text.split(","), default=GRAPHED)
    args.add_argument("--compiled", type=lambda text: text.split(","), default=COMPILED)
    args.add_argument("--tuned", type=lambda text: text.split(","), help="cases; else --compiled's")
    args.add_argument("--tune", type=float, default=5, metavar="S", help="to measure in")
    args.add_argument("--hidden", default="resnet18:128:bf16", metavar="CASE")
    args.add_argument("--images", type=int, default=60000)
    args.add_argument("--bare", metavar="PROGRAM")
    args.add_argument("--torch-device", default="cuda")
    return args.parse_args()


def main():
    args = parse()
    gpus = list_gpus()
    report = Report(args.report, args.budget, args.append, gpus)
    report.line("\n".join(gpus) or "no GPU here: these lines are still empty")
    with tempfile.TemporaryDirectory(prefix="ddp-gpu-") as scratch:
        bench = Bench(args, report, gpus, scratch)
        try:
            if gpus:
                bench.prepare()
            bench.steps()
            bench.digits()
            bench.hide()
            bench.tune()
            bench.explain()
            bench.compare("graph", args.graphed)
            bench.compare("compiled", args.compiled)
            bench.judge()
        finally:
            bench.close()
    for text in [f"({n}) {reason}" for n, reason in enumerate(report.reasons, 1)] + \
            [f"* {note}" for note in report.notes]:
        report.line()
        report.line(text)
    report.line()
    report.line(f"PyTorch {bench.torch.version or '(none)'}; all of it took "
                f"{time.monotonic() - report.began:.0f} of {args.budget:.0f} s")
    sys.exit(77 if not gpus else 1 if report.failed else 0)


main()
