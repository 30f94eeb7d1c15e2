#!/usr/bin/env python3
"""docs.py PRINT_FRONT ROOT: the manual and the contract say what the tables say.

Both ways: what a table has must be documented, and what is documented must be in a table.
"""
import pathlib
import re
import subprocess
import sys

program, root = sys.argv[1], pathlib.Path(sys.argv[2])


def printed(what):
    return subprocess.run([program, what], check=True, capture_output=True, text=True,
                          timeout=100).stdout.splitlines()


def compare(kind, table, page, name):
    faults = [f"{name}: {kind} {x} is not described" for x in sorted(table - page)]
    faults += [f"{name}: {kind} {x} is described but unknown to ddprun"
               for x in sorted(page - table)]
    return faults


def options():
    table = set()
    for line in printed("help"):
        if re.match(r"  -", line):
            table |= set(re.findall(r"(?:^|[ ,])(--?[A-Za-z][\w-]*)", line))
    page = set()
    for line in (root / "doc/ddprun.1.md").read_text().splitlines():
        if line.startswith("*-"):
            page |= set(re.findall(r"\*(--?[A-Za-z][\w-]*)\*", line))
    if len(table) < 40:
        sys.exit(f"only {len(table)} options seen in --help")
    return compare("option", table, page, "doc/ddprun.1.md")


def variables():
    sets, removed, stays, starters = set(), set(), set(), set()
    where = None
    for line in printed("variables"):
        if not line.startswith(" "):
            where = (removed if line.startswith("removed")
                     else stays if line.startswith("not carried")
                     else starters if line.startswith("an instance of ddprun") else sets)
        elif where is starters:
            starters |= set(re.findall(r"\b[A-Z][A-Z0-9_]+\b", line.split("  ")[-1]))
        else:
            where.add(line.split()[0])
    faults = []
    text = (root / "doc/contract.md").read_text()
    parts = {part.split("\n", 1)[0]: part for part in text.split("\n## ")}
    starters -= {"MPI", "MVAPICH", "PALS", "PMI"}
    told = set(re.findall(r"`([A-Z_0-9]+)`", "".join(
        "|".join(line.split("|")[2:4]) for line in
        parts["Variables of other launchers"].splitlines() if line.startswith("| "))))
    faults += compare("variable", starters, told, "doc/contract.md, Variables of other launchers")
    for table, part in ((sets, "Variables a rank receives"),
                        (removed, "Variables that are removed"),
                        (stays, "Variables that travel")):
        page = set()
        for line in parts[part].splitlines():
            if line.startswith("| `"):
                page |= set(re.findall(r"`([A-Z_][A-Z0-9a-z_]*\*?)`", line.split("|")[1]))
        if len(table) < 20:
            sys.exit(f"only {len(table)} variables seen: {part}")
        faults += compare("variable", table, page, f"doc/contract.md, {part}")
    return faults


def subsystems():
    """What --log-level takes is what the sources log under."""
    source = {name for part in ("common", "launcher", "rendezvous", "worker", "spank")
              for file in (root / part).rglob("*.[ch]")
              for name in re.findall(r'^#define LOG_SUBSYS "(\w+)"', file.read_text(), re.MULTILINE)}
    table = set(printed("subsystems"))
    return [f"common/log.c: {x} is in one of log_subsystems and LOG_SUBSYS only"
            for x in sorted(table ^ source)]


found = options() + variables() + subsystems()
print("\n".join(found) if found else "options and variables are documented")
sys.exit(1 if found else 0)
