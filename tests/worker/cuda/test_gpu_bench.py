"""test_gpu_bench.py BUILD SOURCE ENGINE BARE - bench/gpu.py fills every row, on a GPU made of a CPU

What it says of speed is nonsense here; that it runs to its end, and where its figures go, is not.
"""
import os
import re
import subprocess
import sys
import tempfile

BUILD, SOURCE, ENGINE, BARE = map(os.path.abspath, sys.argv[1:5])
TEXT = "task = tokens\noptimizer = adamw\ncontext = 16\nvocabulary = 128\nwte embed outputs=8\nln layer_norm\n"
GPUS = "#!/bin/sh\nprintf 'GPU 0: a GPU made of a CPU\\nGPU 1: a GPU made of a CPU\\n'\n"


def bench(folder, *words, gpus=True, engine=ENGINE):
    """(exit code, rows of cells, all of it)"""
    with open("nvidia-smi", "w") as f:
        f.write(GPUS if gpus else "#!/bin/sh\nexit 9\n")
    os.chmod("nvidia-smi", 0o755)
    with open("text.model", "w") as f:
        f.write(TEXT)
    env = dict(os.environ, PATH=f"{folder}:{os.environ['PATH']}", DDP_ENGINE=engine, EMU_DEVICES="2",
               XDG_CACHE_HOME=f"{folder}/cache",
               LD_LIBRARY_PATH=":".join(filter(None, (os.path.dirname(ENGINE), os.environ.get("LD_LIBRARY_PATH")))))
    run = subprocess.run(
        [sys.executable, f"{SOURCE}/bench/gpu.py", BUILD, "--report", "report.md", "--keep", "kept.log", "--bare", BARE,
         "--data", "digits",
         "--python", "/nowhere/python3", "--seconds", "0.01", "--images", "8", "--seeds", "1",
         "--epochs", "1", "--cases", "mlp:16:fp32,cnn:2:bf16,./text.model:4:bf16", "--compiled", "mlp:16:fp32",
         "--graphed", "mlp:16:fp32", "--tuned", "cnn:2:bf16", "--tune", "1", "--hidden", "mlp:8:fp32", *words],
        env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=500)
    assert run.stderr == "", run.stderr
    assert not os.path.exists("cache"), "it has used the user's cache"
    with open("report.md") as f:
        assert f.read() == run.stdout
    rows, table = {}, ""
    lines = run.stdout.splitlines()
    for line, below in zip(lines, [*lines[1:], ""]):
        if line.startswith("| "):
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            if below.startswith("|---"):
                table = cells[0]
            elif table == "tuned" or table.startswith("beside "):
                cells[0] += f" {table}"
            rows.setdefault(cells[0], cells[1:])  # the first table has most
    every_line_says_something(rows, run.stdout)
    return run.returncode, rows, run.stdout


def every_line_says_something(rows, told):
    """A number, or the number of a reason that stands below."""
    for name, cells in rows.items():
        if cells[-1] == "why not":
            continue
        if "" in cells[:-1]:
            assert re.fullmatch(r"\(\d+\)( \(\d+\))*", cells[-1]), (name, cells)
        for number in re.findall(r"\d+", cells[-1]):
            assert re.search(rf"^\({number}\) \S", told, re.M), (name, cells)


def reason(cells, told):
    """What stands below for the last cell of a row."""
    return "; ".join(re.search(rf"^\({n}\) (.*)$", told, re.M)[1] for n in re.findall(r"\d+", cells[-1]))


def number(text):
    return float(text.replace(",", ""))


def every_row_is_filled(folder):
    code, rows, told = bench(folder, "--budget", "1000")
    assert code == 0, told
    assert "Measured on: a GPU made of a CPU." in told, told
    for case in ("mlp 16 fp32", "cnn 2 bf16", "./text.model 4 bf16"):
        rate, us, bare, times, peak, mib, *pytorch, why = rows[case]
        assert abs(number(rate) * number(us) / 1e6 / int(case.split()[1]) - 1) < 0.1, rows[case]
        assert abs(number(us) / number(bare) - number(times)) < 0.1 + number(times) / 10, rows[case]
        assert number(peak) >= 0 and number(mib) > 0 and pytorch == ["", "", ""], rows[case]
        assert why == "(1)", rows[case]
    rate, before, us, bare, usual, times, eager, _ = rows["cnn 2 bf16 tuned"]
    assert number(before) == number(rows["cnn 2 bf16"][0]) and number(rate) > 0, rows
    assert number(bare) > 0 and number(usual) > 0 and eager == "", rows
    assert abs(number(us) / number(bare) - number(times)) < 0.1 + number(times) / 10, rows
    assert re.search(r"^\* cnn:2:bf16, tuned: \d+ of \d+ products by another algorithm", told, re.M), told
    name, digits = next((k, v) for k, v in rows.items() if "1,438 digits" in k)
    assert digits[0] == "1" and 30 < number(digits[1]) < 99 and number(digits[2]) > 0, digits
    for how in ("graph", "compiled"):
        mine, theirs, times, tuned, _ = rows[f"mlp 16 fp32 beside {how}"]
        assert number(mine) > 0 and (theirs, times, tuned) == ("", "", "-"), rows
        assert reason(rows[f"mlp 16 fp32 beside {how}"], told).startswith("no PyTorch"), told
    goals = {k: v for k, v in rows.items() if len(v) == 6 and v[2] in ("-", "met", "missed")}
    assert len(goals) >= 7, goals
    (step,) = [v for k, v in goals.items() if k.startswith("step, x the bare one")]
    (part,) = [v for k, v in goals.items() if k.startswith("communication hidden")]
    assert step[2] in ("met", "missed") and step[4] in ("met", "missed") and 0 <= number(part[1]) <= 1, goals
    assert all(v[1:5] == ["", "-", "", "-"] and v[5] for k, v in goals.items()
               if any(how in k for how in ("eager", "compiled", "graph"))), goals
    assert re.search(r"^\(1\) no PyTorch: ", told, re.M), told
    if step[2] == "missed":  # then it is told where the time goes
        assert "optimizer" in rows and number(rows["optimizer"][0]) > 0, told


def what_does_not_fit_is_named(folder):
    code, rows, told = bench(folder, "--budget", "0")
    assert code == 0, told
    assert set(rows["mlp 16 fp32"]) == {"", "(1)"}, rows
    assert reason(rows["mlp 16 fp32"], told) == "no time was left", told


def what_fails_does_not_take_the_rest_with_it(folder):
    code, rows, told = bench(folder, "--budget", "1000", "--cases", "mlp:16:fp32",
                             engine="/nowhere.so")
    assert code == 1 and re.search(r"^\(\d\) .*DDP_ENGINE: /nowhere.so", told, re.M), told
    assert rows["mlp 16 fp32"][0] == "" and number(rows["mlp 16 fp32"][2]) > 0, told
    with open("kept.log") as f:
        kept = f.read()
    assert "mlp\n" in kept and "DDP_ENGINE: /nowhere.so" in kept, kept


def without_a_gpu_it_says_so(folder):
    code, rows, told = bench(folder, gpus=False)
    assert code == 77 and told.startswith("no GPU here"), told
    assert set(rows["cnn 2 bf16"]) == {"", "(1)"} and "needs two GPUs" in told, told
    assert reason(rows["cnn 2 bf16"], told) == "no GPU here", told


with tempfile.TemporaryDirectory(prefix="ddp-test-") as scratch:
    os.chdir(scratch)
    for test in (every_row_is_filled, what_does_not_fit_is_named,
                 what_fails_does_not_take_the_rest_with_it, without_a_gpu_it_says_so):
        test(scratch)
        print("passed:", test.__name__)
