#!/usr/bin/env python3
"""messages.py ROOT [--write]: is the table of messages in doc/agent.md that of messages.def?

With --write the table is written anew."""
import pathlib
import re
import sys

KINDS = {"BOOL": "1", "U8": "1", "U32": "4", "RANGE": "4", "PORT": "4", "PROTOCOL": "4", "I32": "4",
         "I64": "8", "U64": "8", "TEXT": "text", "OPTIONAL": "text or none", "CLIPPED": "text",
         "MAY_CLIP": "text or none", "LIST": "list", "ADDRESS": "address", "BYTES": "4-byte count, bytes",
         "REST": "bytes to the end", "NUMBERS": "4-byte count, 4 each"}
SIZES = {"PIECE_MAX": 64 << 10, "FENCE_MAX": 64 << 20}
BEGIN, FINISH = "<!-- from launcher/link/messages.def -->\n", "<!-- end -->\n"


def size(text):
    n = eval(text, {}, SIZES)
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if n >= unit:
            return f"{n // unit} {name}" + (f" + {n % unit}" if n % unit else "")
    return str(n)


def rows(text):
    records, number = {}, 0
    text = text.split("#define RECORDS")[1].split("#undef")[0]
    block = r"(MESSAGE|RECORD)\(((?:[^()]|\([^()]*\))*)\)([^\n]*)\n(.*?)END\((\w+)\)"
    for kind, args, comment, body, name in re.findall(block, text, re.S):
        fields = []
        for what, inner, note in re.findall(r"^ +(\w+)\(([^)]*)\) *(?:/\* (.*?) \*/)?$", body, re.M):
            inner = [part.strip() for part in inner.split(",")]
            if what == "RECORDS":
                fields.append(f"{inner[1]} 4-byte count, each: {records[inner[0]]}")
            else:
                fields.append(f"{inner[0]} {KINDS[what]}" + (f" ({note})" if note else ""))
        if len(fields) != len(body.strip().splitlines() if body.strip() else []):
            sys.exit(f"messages.def: a line of '{name}' cannot be read")
        if kind == "RECORD":
            records[name] = ", ".join(fields)
            continue
        number += 1
        _, _, way, limit, _ = args.split(",", 4)
        way = way.strip().removeprefix("FRAME_").lower()
        purpose = comment.strip(" /*")
        lines = "; ".join(fields)
        yield f"| {number} | {name} | {way} | {size(limit)} | " + \
            ". ".join(part for part in (f"*{purpose}*" if purpose else "", lines) if part) + " |\n"


root = pathlib.Path(sys.argv[1])
table = "| type | name | way | limit | body |\n|---|---|---|---|---|\n" + \
    "".join(rows((root / "launcher/link/messages.def").read_text()))
doc = root / "doc/agent.md"
text = doc.read_text()
before, rest = text.split(BEGIN)
found, after = rest.split(FINISH)
if "--write" in sys.argv:
    doc.write_text(before + BEGIN + table + FINISH + after)
elif found != table:
    sys.exit("doc/agent.md: the table of messages is old: run tests/lint/messages.py . --write")
