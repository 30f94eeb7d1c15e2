"""Build and run the tests that fit some patterns, and print a table of the results.

    tests/run.py needs BUILD=PATTERN,...     the package groups these tests need (tools/need.sh)
    tests/run.py run [--strict] [--twice] [--once] BUILD=PATTERN,...
                                             build what the tests need, run them, print

A pattern is a suite, a test, or a glob over tests; "!" in front excludes. Several BUILDs are run one
after the other and share one table, whose last line is "N passed, N failed, N skipped". Tests that
compute and tests that wait are two queues (COMPUTES), so that the CPUs have work until the end and
no test waits beside many that compute.

A test that cannot run prints "skipped: WHY; needs KIND WHAT" (KINDS below) and exits with 77;
a part of a test says the same as its reason. With --strict a skip is a failure unless its
kind is one that no package could cure. With --twice a test that fails is run once more, alone, when
all others have ended: if it passes then, the first failure is told, too. With --once a test that fits
several BUILDs is run in the last of them only.
Exit: 0, 1 for failures, 2 for wrong arguments.
"""
import collections
import concurrent.futures
import fnmatch
import functools
import json
import os
import re
import shlex
import subprocess
import sys
import threading
import time

# kind of need: how to cure it, and whether --strict accepts it
KINDS = {
    "package": ("apt-get install {0}; ./check.sh --all does it", False),
    "torch": ("./check.sh --all makes an environment with it; or set DDPRUN_TORCH", False),
    "network": ("a package index that pip can reach", False),
    "root": ("run as root", False),
    "gpu": ("a machine with an NVIDIA GPU", True),
    "cuda": ("install {0}", True),
    "memory": ("a machine with {0} of free memory", True),
    "program": ("install {0}; Debian has no package of it", True),
    "system": ("a machine with {0}", True),
    "build": ("a build {0}; ./check.sh --all runs it there", True),
}
# suites that name a group of packages in tools/need.sh
GROUPS = ["ssh", "net", "mpi", "slurm", "sge", "numpy", "torch", "horovod", "container", "clang", "shellcheck",
          "valgrind", "chromium", "release"]
# the suites of tests that keep a CPU busy for more than half of their time; the others mostly wait
COMPUTES = {"cpu", "fuzz", "interop", "large"}
# how many run side by side, of each kind: also those that compute wait now and then
CPUS = os.cpu_count() or 1
JOBS = {"compute": CPUS + 1, "wait": 3 * CPUS + 1}
# the shell tells of the CPU time of what it has waited for
TIMED = ["sh", "-c", '"$@"; code=$?; times >&2; exit $code', "sh"]
TIMES = re.compile(r"^\d+m[\d.]+s \d+m[\d.]+s\n(\d+)m([\d.]+)s (\d+)m([\d.]+)s$", re.M)
# more failures than these are no accidents: --twice does not run them again
TWICE_MAX = 6


class Wrong(Exception):
    pass


def load(build, name):
    with open(os.path.join(build, "meson-info", f"intro-{name}.json"), encoding="utf-8") as f:
        return json.load(f)


def suites_of(test):
    return [s.partition(":")[2] for s in test["suite"]]


def select(build, patterns):
    """The tests of `build` that fit."""

    def fits(test, pattern):
        return pattern in suites_of(test) or fnmatch.fnmatchcase(test["name"], pattern)

    tests = load(build, "tests")
    wanted = [p for p in patterns if not p.startswith("!")]
    unwanted = [p[1:] for p in patterns if p.startswith("!")]
    for pattern in wanted:
        if not any(fits(t, pattern) for t in tests):
            raise Wrong(f"no test or suite is called '{pattern}'; meson test -C {build} --list shows all")
    return [t for t in tests if any(fits(t, p) for p in wanted)
            and not any(fits(t, p) for p in unwanted)]


def divide(jobs, once):
    """The tests to run of each (build, patterns), and the names of all of them."""
    chosen, names = [], set()
    for build, patterns in reversed(jobs):
        tests = [t for t in select(build, patterns) if not once or t["name"] not in names]
        names.update(t["name"] for t in tests)
        chosen.insert(0, (build, tests))
    return chosen, names


def needed(build, tests):
    """The files that `tests` depend on; none: all files."""
    files = {t["id"]: t["filename"] for t in load(build, "targets")}
    return [] if any("whole" in suites_of(t) for t in tests) else sorted({
        os.path.relpath(f, build) for t in tests for d in t["depends"] for f in files[d]})


def compile_for(build, tests, ahead=False):
    """Build what `tests` depend on, and nothing else; `ahead`: while others run, which go first."""
    wanted = needed(build, tests)
    began = time.monotonic()
    done = subprocess.run([*(["nice", "-n", "19"] if ahead else []), "ninja", "-C", build, *wanted],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0:
        lines = done.stdout.splitlines()
        first = next((i for i, line in enumerate(lines) if line.startswith("FAILED")), 0)
        print("\n".join(lines[first:first + 60]), file=sys.stderr)
        raise Wrong(f"the build failed: {build}")
    say(f"built {len(wanted) or 'all'} files in {build}/ in {time.monotonic() - began:.0f} s\n")


one_speaks = threading.Lock()


def say(text):
    with one_speaks:
        print(text, end="", flush=True)


def run(build, tests, log, jobs):
    """Run `tests`, `jobs` at a time; {name: result}, as meson has written them."""
    path = os.path.join(build, "meson-logs", f"{log}-{TIMED[0]}.json")  # meson adds the wrapper's name
    if os.path.exists(path):
        os.remove(path)
    meson = subprocess.Popen(["meson", "test", "-C", build, "--no-rebuild", "--print-errorlogs",
                              "--num-processes", str(jobs), "--logbase", log, "--wrapper", shlex.join(TIMED),
                              *(t["name"] for t in tests)], stdout=subprocess.PIPE)
    with meson:
        while said := os.read(meson.stdout.fileno(), 1 << 16):  # what it writes at once stays together
            say(said.decode(errors="replace"))
    try:
        with open(path, encoding="utf-8") as f:
            results = [json.loads(line) for line in f]
    except OSError:
        results = []
    # "ddprun:SUITES / NAME"; with meson 1.12 "SUITES - ddprun:NAME"
    return {re.split(" / | - ddprun:", r["name"])[-1]: r for r in results}


def run_queue(kind, chosen, compiled):
    """Run the tests of a kind, build after build; their results by build."""
    results = []
    for number, (build, tests) in enumerate(chosen):
        compiled[number].result()
        mine = [t for t in tests if kind == ("wait" if COMPUTES.isdisjoint(suites_of(t)) else "compute")]
        results.append(run(build, mine, f"check{number}-{kind}", JOBS[kind]) if mine else {})
    return results


def run_all(chosen):
    """Build, and run the tests of each (build, tests); the results by build."""
    with concurrent.futures.ThreadPoolExecutor(1) as builder, \
            concurrent.futures.ThreadPoolExecutor(len(JOBS)) as runner:
        compiled = [builder.submit(compile_for, build, tests, number > 0)
                    for number, (build, tests) in enumerate(chosen)]
        queues = [runner.submit(run_queue, kind, chosen, compiled) for kind in JOBS]
        return [collections.ChainMap(*results) for results in zip(*(q.result() for q in queues))]


@functools.lru_cache(maxsize=None)
def in_this_debian(packages):
    """Can apt-get install all of them?"""
    return subprocess.run(["apt-get", "-s", "install", *packages.split()], stdout=subprocess.DEVNULL,
                          stderr=subprocess.DEVNULL, check=False).returncode == 0


class Row:
    """One test in one build."""

    def __init__(self, build, test, result):
        self.build, self.name = build, test["name"]
        self.suite = suites_of(test)[0]
        self.state, self.reasons, self.seconds, self.cpu = "failed", [], 0.0, 0.0
        self.first = None  # the row of its first run; None: it has run once
        if result is None:
            self.reasons = ["it was not run"]
            return
        self.seconds = result["duration"]
        self.state = {"OK": "passed", "EXPECTEDFAIL": "passed", "SKIP": "skipped"}.get(
            result["result"], "failed")
        if self.state == "failed":
            code = result["returncode"]
            self.reasons = [result["result"].lower() + (f", exit code {code}" if code else "")]
        text = (result.get("stdout") or "") + "\n" + (result.get("stderr") or "")
        for m in TIMES.findall(text)[-1:]:
            self.cpu = 60 * (int(m[0]) + int(m[2])) + float(m[1]) + float(m[3])
        self.skips = collections.Counter(re.findall(r"^skipped: (.*)", text, re.M))
        self.skips.update(
            m[1] for m in re.findall(r"\.\.\. skipped (['\"])(.*)\1$", text, re.M))
        if self.state == "skipped" and not self.skips:
            self.skips["it does not say why"] = 1

    def judge(self, strict):
        """Its reasons in words; with `strict` the skips of it that are failures."""
        for why, times in getattr(self, "skips", {}).items():
            found = re.match(r"(.*); needs (\w+) ?(.*)", why)
            cure, fine = KINDS.get(found[2] if found else "", ("", False))
            text = found[1] if found and cure else why
            if found and found[2] == "package" and not in_this_debian(found[3]):
                cure, fine = "a Debian that has {0}", True
            if self.state != "skipped":
                text = f"{times} of its cases: {text}" if times > 1 else f"one of its cases: {text}"
            if strict and not fine:
                self.state = "failed"
                text += " (this machine could run it)"
            if cure:
                text += f"\n      to run it: {cure.format(found[3])}"
            self.reasons.append(text)


def run_again(chosen, rows):
    """Each failed test, alone: its second row, with the first one."""
    failed = [i for i, row in enumerate(rows) if row.state == "failed"]
    if not 0 < len(failed) <= TWICE_MAX:
        return
    say(f"{len(failed)} failed; once more, one at a time:\n")
    for number, (build, tests) in enumerate(chosen):
        mine = {rows[i].name: i for i in failed if rows[i].build == build}
        tests = [t for t in tests if t["name"] in mine]
        results = run(build, tests, f"check{number}-again", 1) if tests else {}
        for test in tests:
            again, i = Row(build, test, results.get(test["name"])), mine[test["name"]]
            again.first, rows[i] = rows[i], again


def write_seconds(path, rows):
    """What each test took."""
    with open(path, "w", encoding="utf-8") as f:
        f.write("  CPU s seconds\n")
        for r in sorted(rows, key=lambda r: -r.cpu):
            f.write(f"{r.cpu:7.1f} {r.seconds:7.1f} {r.build} {r.name}\n")


def table(rows, left_out, began):
    """Print what came out; whether all is well."""
    count = collections.Counter(r.state for r in rows)
    by_suite = collections.defaultdict(collections.Counter)
    for r in rows:
        by_suite[r.suite, r.build][r.state] += 1
        by_suite[r.suite, r.build]["seconds"] += r.seconds
        by_suite[r.suite, r.build]["cpu"] += r.cpu
    print(f"\n{'suite':<10} {'build':<12} {'passed':>7} {'failed':>7} {'skipped':>8} {'seconds':>8} {'CPU s':>8}")
    for (suite, build), c in sorted(by_suite.items()):
        print(f"{suite:<10} {build:<12} {c['passed']:>7} {c['failed']:>7} {c['skipped']:>8}"
              f" {c['seconds']:>8.0f} {c['cpu']:>8.0f}")
    for title, seconds in (("longest", lambda r: r.seconds), ("most CPU", lambda r: r.cpu)):
        most = sorted(rows, key=seconds, reverse=True)[:5]
        print(f"{title}: " + ", ".join(f"{r.name} {seconds(r):.0f} s" for r in most))
    for state, title in (("passed", "skipped in part"), ("skipped", "skipped"), ("failed", "failed")):
        found = [r for r in rows if r.state == state and r.reasons]
        if found:
            print(f"\n{title}:")
        for r in found:
            print(f"  {r.name}" + ("" if r.build == "build" else f" ({r.build})"))
            for reason in r.reasons:
                print(f"    {reason}")
    unstable = [r for r in rows if r.first and r.state != "failed"]
    if unstable:
        print("\nfailed beside other tests, and passed alone; each is a defect of the test or of what it tests:")
    for r in unstable:
        print(f"  {r.name} ({r.build}): {' '.join(r.first.reasons)}; the log is above")
    if left_out:
        print("\nnot run: " + ", ".join(f"{n} {s}" for s, n in sorted(left_out.items()))
              + "; ./check.sh --all runs them")
    print(f"\n{time.monotonic() - began:.0f} s")
    again = f", {len(unstable)} of them at the second run" if unstable else ""
    print(f"{count['passed']} passed{again}, {count['failed']} failed, {count['skipped']} skipped")
    return count["failed"] == 0 and rows


def main():
    what, *args = sys.argv[1:] or [""]
    strict, twice, once = (option in args for option in ("--strict", "--twice", "--once"))
    jobs = [(build, patterns.split(",")) for build, _, patterns in
            (a.partition("=") for a in args if not a.startswith("--"))]
    if what == "needs":
        chosen = [t for build, patterns in jobs for t in select(build, patterns)]
        named = {s for t in chosen for s in suites_of(t)}
        print(" ".join(g for g in GROUPS if g in named))
        return 0
    if what != "run" or not jobs:
        raise Wrong(__doc__)
    began = time.monotonic()
    chosen, names = divide(jobs, once)
    left_out = collections.Counter(suites_of(t)[0] for t in load(jobs[0][0], "tests") if t["name"] not in names)
    rows = [Row(build, t, results.get(t["name"]))
            for (build, tests), results in zip(chosen, run_all(chosen)) for t in tests]
    if twice:
        run_again(chosen, rows)
    for row in rows:
        row.judge(strict)
    write_seconds(os.path.join(chosen[0][0], "meson-logs", "seconds.txt"), rows)
    return 0 if table(rows, left_out, began) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Wrong as wrong:
        print(wrong, file=sys.stderr)
        sys.exit(2)
