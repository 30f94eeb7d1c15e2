#!/usr/bin/env python3
"""Which imports of real training scripts the ranks of a node share, and what that saves.

    bench/shared_import.py --python ENV/bin/python [--build DIR] [--np 1,2,4,8 --rounds 3] SCRIPT...

Of each script a copy beside it is run that ends behind its last import. A script counts if two ranks
of it come so far. Printed are whether they were forked, how many of the installed
packages that they have loaded were imported before the fork, which were not, and why.

With --rounds, for each number of ranks: three launches in turns, the first of this script ever ("new"),
one that knows the result of an earlier one ("again"), and one with --no-preload. Printed are, of both,
the median (range) of the ratio to --no-preload of the same round, of the time from ddprun's start until
all ranks have done their imports, of the time until ddprun's end, and of the CPU time.
"""
import argparse
import ast
import json
import os
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

from launch import SOURCE, parse

# gc.freeze() hides from the collector what the interpreter has imported from which a rank is forked
PROBE = """
import gc, json, os, sys, time, types
now = time.time()
ours = {id(x) for x in gc.get_objects() if type(x) is types.ModuleType}
with open("/proc/self/environ", "rb") as f:
    forked = b"\\0RANK=" not in f.read()
print("PROBE" + json.dumps({"now": now, "forked": forked, "packages": {
    name: id(m) not in ours for name, m in sys.modules.items() if "." not in name and
    "/site-packages/" in (getattr(m, "__file__", None) or "")}}), flush=True)
sys.exit(0)
"""


def imports(node):
    """Is this statement an import, or a try of one? What an `if` imports belongs to the program."""
    return isinstance(node, (ast.Import, ast.ImportFrom)) or (
        isinstance(node, ast.Try) and any(imports(child) for child in node.body))


def cut(script):
    """The script up to its last import, and the probe, in a file beside it."""
    with open(script, encoding="utf-8") as f:
        text = f.read()
    lines = text.splitlines()
    last = max((node.end_lineno for node in ast.parse(text).body if imports(node)), default=0)
    path = os.path.join(os.path.dirname(script), f"cut_{os.getpid()}_{os.path.basename(script)}")
    with open(path, "w", encoding="utf-8") as f:
        f.write("\n".join(lines[:last]) + "\n" + PROBE)
    return path


def cpu_seconds():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run(args, path, *options, ranks=2, new=False):
    """What one rank has found, with the seconds until the last was there; else why not."""
    if new:
        shutil.rmtree(os.path.join(args.cache, "ddprun", "preload"), ignore_errors=True)
    before, begin = cpu_seconds(), time.time()
    done = subprocess.run(
        [f"{args.build}/launcher/ddprun", "-np", str(ranks), "--tag-output=off", "--timeout", "300s",
         *options, args.python, os.path.basename(path)], cwd=os.path.dirname(path),
        stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False,
        env={**os.environ, "XDG_CACHE_HOME": args.cache, "OMP_NUM_THREADS": "1"})
    end, used = time.time(), cpu_seconds() - before
    found = [json.loads(line) for line in re.findall(r"PROBE(\{.*\})$", done.stdout, re.MULTILINE)]
    if done.returncode or len(found) != ranks:
        errors = re.findall(r"^\w*(?:Error|Exception)\b.*", done.stderr, re.MULTILINE)
        return None, (errors or done.stderr.strip().splitlines() or ["ended early"])[-1]
    times = {"imports": max(f["now"] for f in found) - begin, "total": end - begin, "CPU": used}
    return {**found[0], "times": times}, done.stderr


def reason(said):
    lines = re.findall(r"an import is left to the ranks: (.*)|the ranks import by themselves, as (.*)", said)
    return "; ".join(a or b for a, b in lines)


def rounds(args, path, ranks):
    """The times of each way to start that many ranks, by round."""
    ways = {"new": ((), True), "again": ((), False), "plain": (("--no-preload",), False)}
    times = {way: [] for way in ways}
    for _ in range(args.rounds):
        for way, (options, new) in ways.items():
            found, why = run(args, path, *options, ranks=ranks, new=new)
            if not found:
                raise SystemExit(f"{path}, {ranks} ranks, {way}: {why}")
            times[way].append(found["times"])
    return times


def look(args, script):
    path = cut(script)
    try:
        first, said = run(args, path, "--verbose")
        if not first:
            plain, why = run(args, path, "--no-preload")
            return {"script": script, "skipped": f"WRONG, only with the shared import: {said}" if plain else why}
        times = {n: rounds(args, path, n) for n in args.np} if args.rounds else {}
    finally:
        os.unlink(path)
    packages = first["packages"]
    return {"script": script, "forked": first["forked"], "packages": len(packages),
            "not": sorted(name for name, shared in packages.items() if not shared),
            "why": reason(said), "times": times}


def show(r):
    if "skipped" in r:
        return f"-    {r['script']}: {r['skipped']}"
    left = f", not {' '.join(r['not'])}" if r["not"] and r["forked"] else ""
    return (f"{'fork' if r['forked'] else 'no  '} {r['script']}: {r['packages'] - len(r['not'])} of "
            f"{r['packages']} packages{left}{' (' + r['why'] + ')' if r['why'] else ''}")


def ratios(times, way, what):
    return [ours[what] / plain[what] for ours, plain in zip(times[way], times["plain"])]


def show_times(times):
    for n, found in times.items():
        took = statistics.median(t["imports"] for t in found["plain"])
        print(f"       {n} ranks, --no-preload {took:5.2f} s:", end="")
        for way in "new", "again":
            for what in "imports", "total", "CPU":
                all_of = ratios(found, way, what)
                print(f"  {what if what != 'imports' else way + ': imports'} "
                      f"{statistics.median(all_of):.2f} ({min(all_of):.2f}-{max(all_of):.2f})", end="")
        print(flush=True)


def summary(args, ran):
    """Over all scripts: the median of their medians, the slowest, and how many are slower."""
    for n in args.np if args.rounds and ran else ():
        for way in "new", "again":
            for what in "imports", "total":
                all_of = sorted(statistics.median(ratios(r["times"][n], way, what)) for r in ran)
                print(f"{n} ranks, {way}, {what}: median {statistics.median(all_of):.2f}, {all_of[0]:.2f} to "
                      f"{all_of[-1]:.2f}; {sum(x > 1 for x in all_of)} of {len(all_of)} above 1, "
                      f"{sum(x > 1.03 for x in all_of)} above 1.03")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("scripts", nargs="+", metavar="SCRIPT")
    parser.add_argument("--python", required=True)
    parser.add_argument("--build", default=os.path.join(SOURCE, "build"))
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--np", default="2", type=lambda text: [int(n) for n in text.split(",")])
    args = parse(parser)
    args.build = os.path.abspath(args.build)
    ran = []
    with tempfile.TemporaryDirectory() as args.cache:
        for script in map(os.path.abspath, args.scripts):
            r = look(args, script)
            print(show(r), flush=True)
            show_times(r.get("times", {}))
            ran += [] if "skipped" in r else [r]
    forked = [r for r in ran if r["forked"]]
    print(f"of {len(args.scripts)} scripts {len(ran)} could be imported: {len(forked)} forked, "
          f"{sum(not r['not'] for r in forked)} of them with all packages")
    summary(args, ran)
    sys.exit(not ran)


if __name__ == "__main__":
    main()
