#!/usr/bin/env python3
"""Which imports of real training scripts the ranks of a node share, and what that saves.

    bench/shared_import.py --python ENV/bin/python [--build DIR] [--rounds 3] SCRIPT...

Of each script a copy beside it is run that ends behind its last import. A script counts if two ranks
of it come so far. Printed are whether they were forked, how many of the installed
packages that they have loaded were imported before the fork, which were not, why, and with --rounds
the medians of the seconds from ddprun's start until both ranks are there, with and without the shared
import, in turns. The first launch, which may find an import that is to be refused, is not counted.
"""
import argparse
import ast
import json
import os
import re
import statistics
import subprocess
import sys
import time

from launch import SOURCE

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


def run(args, path, *options):
    """What both ranks have found, with the seconds until the later was there; else why not."""
    begin = time.time()
    done = subprocess.run(
        [f"{args.build}/launcher/ddprun", "-np", "2", "--tag-output=off", "--timeout", "300s", *options,
         args.python, os.path.basename(path)], cwd=os.path.dirname(path), stdin=subprocess.DEVNULL,
        capture_output=True, text=True, errors="replace", check=False)
    found = [json.loads(line) for line in re.findall(r"PROBE(\{.*\})$", done.stdout, re.MULTILINE)]
    if done.returncode or len(found) != 2:
        errors = re.findall(r"^\w*(?:Error|Exception)\b.*", done.stderr, re.MULTILINE)
        return None, (errors or done.stderr.strip().splitlines() or ["ended early"])[-1]
    return {**found[0], "seconds": max(f["now"] for f in found) - begin}, done.stderr


def reason(said):
    lines = re.findall(r"an import is left to the ranks: (.*)|the ranks import by themselves, as (.*)", said)
    return "; ".join(a or b for a, b in lines)


def look(args, script):
    path = cut(script)
    try:
        first, said = run(args, path, "--verbose")
        if not first:
            plain, why = run(args, path, "--no-preload")
            return {"script": script, "skipped": f"WRONG, only with the shared import: {said}" if plain else why}
        times = {"shared": [], "plain": []}
        for _ in range(args.rounds):
            times["shared"].append(run(args, path)[0]["seconds"])
            times["plain"].append(run(args, path, "--no-preload")[0]["seconds"])
    finally:
        os.unlink(path)
    packages = first["packages"]
    return {"script": script, "forked": first["forked"], "packages": len(packages),
            "not": sorted(name for name, shared in packages.items() if not shared),
            "why": reason(said), **{k: statistics.median(v) for k, v in times.items() if v}}


def show(r):
    if "skipped" in r:
        return f"-    {r['script']}: {r['skipped']}"
    took = f", {r['shared']:.1f} s, --no-preload {r['plain']:.1f} s" if "shared" in r else ""
    left = f", not {' '.join(r['not'])}" if r["not"] and r["forked"] else ""
    return (f"{'fork' if r['forked'] else 'no  '} {r['script']}: {r['packages'] - len(r['not'])} of "
            f"{r['packages']} packages{left}{took}{' (' + r['why'] + ')' if r['why'] else ''}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("scripts", nargs="+", metavar="SCRIPT")
    parser.add_argument("--python", required=True)
    parser.add_argument("--build", default=os.path.join(SOURCE, "build"))
    parser.add_argument("--rounds", type=int, default=0)
    args = parser.parse_args()
    args.build = os.path.abspath(args.build)
    ran = []
    for script in map(os.path.abspath, args.scripts):
        r = look(args, script)
        print(show(r), flush=True)
        ran += [] if "skipped" in r else [r]
    forked = [r for r in ran if r["forked"]]
    print(f"of {len(args.scripts)} scripts {len(ran)} could be imported: {len(forked)} forked, "
          f"{sum(not r['not'] for r in forked)} of them with all packages")
    sys.exit(not ran)


if __name__ == "__main__":
    main()
