#!/usr/bin/env python3
"""layers.py ROOT: who includes whom.

A file may include its own room, what stands in its room's row, and the system's headers.
Includes are written from the root, so that the arrow is visible in the line."""
import pathlib
import re
import sys

BASE = ["common", "include"]
MAY = {
    "common": BASE,
    "include": [],
    "rendezvous/store": BASE,
    "rendezvous/protocol": ["rendezvous/store"] + BASE,
    "rendezvous/server": ["rendezvous/protocol", "rendezvous/store"] + BASE,
    "rendezvous/client": BASE,
    "rendezvous": ["rendezvous/server", "rendezvous/protocol", "rendezvous/store"] + BASE,
    # values flow to the right: options, allocation, placement, commands, job
    "launcher/alloc": ["launcher/opts.h"] + BASE,
    "launcher/place": ["launcher/alloc", "launcher/opts.h", "launcher/contract.h"] + BASE,
    "launcher/io": ["launcher/opts.h"] + BASE,
    "launcher/tools/script": ["launcher/cli", "launcher/tools/tool.h", "launcher/opts.h"] + BASE,
    # a size of a series may be a batch job
    "launcher/tools/scaling": ["launcher/cli", "launcher/tools/script", "launcher/tools/tool.h", "launcher/opts.h"] + BASE,
    "launcher/admission": BASE,
    "launcher/control": BASE,
    "launcher/link": BASE,
    "launcher": ["launcher", "rendezvous/server", "rendezvous/client"] + BASE,
    # inside slurmstepd: the table of the contract, and the reader of Slurm's counts
    "spank": ["launcher/contract.h", "launcher/alloc/sched.h"] + BASE,
    "worker/group": BASE,
    "worker/kernels": BASE,
    "worker/nn": ["worker/kernels"] + BASE,
    "worker/optim": ["worker/kernels"] + BASE,
    # a data set is made of batches, which are what a model eats
    "worker/data": ["worker/nn", "worker/kernels"] + BASE,
    "worker/ddp": ["worker/nn", "worker/kernels", "worker/optim"] + BASE,
    "worker/cuda": ["worker/engine.h", "worker/pipeline_schedule.h", "worker/report/trace.h", "worker/ddp", "worker/nn", "worker/kernels", "worker/optim"] + BASE,
    "worker": ["worker"] + BASE,
}

root = pathlib.Path(sys.argv[1])
faults, seen = [], 0
for top in ("common", "include", "rendezvous", "launcher", "spank", "worker"):
    for path in sorted((root / top).rglob("*")):
        if path.suffix not in (".c", ".h", ".cu"):
            continue
        seen += 1
        name = path.relative_to(root)
        room = str(name.parent)
        while room not in MAY and "/" in room:
            room = room.rsplit("/", 1)[0]
        for number, line in enumerate(path.read_text().splitlines(), 1):
            found = re.match(r'#\s*include "([^"]+)"', line)
            if not found:
                continue
            inc = found.group(1)
            if "/" not in inc:
                if room != "include":
                    faults.append(f"{name}:{number}: \"{inc}\" is not written from the root")
            elif not any(inc == ok or inc.startswith(ok + "/") for ok in [room] + MAY[room]):
                faults.append(f"{name}:{number}: {room} may not know {inc}")
if faults:
    print("\n".join(faults))
if seen < 20:
    sys.exit(f"only {seen} files seen: wrong root?")
sys.exit(1 if faults else 0)
