#!/usr/bin/env python3
"""layers.py ROOT: includes between folders.

A file may include its own folder, what stands in its folder's row, and the system's
headers. Includes are written from the root, so that the direction is visible in the line.
In launcher/ no modules (x.c and x.h) and no folders include each other in a circle. There, in
rendezvous/ and in some folders of worker/ no files of a folder call each other in one: a function may
be declared in a header that is not its file's (plugin.h), so it is where it is defined that counts."""
import collections
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
    # the launcher, from below: what knows of nothing else
    "launcher/opts": BASE,
    "launcher/contract": ["launcher/envfwd.h", "launcher/opts.h"] + BASE,
    "launcher/spawned": ["launcher/opts.h"] + BASE,
    "launcher/envfwd": BASE,
    "launcher/hooks": BASE,
    "launcher/admission": BASE,
    "launcher/control": BASE,
    "launcher/link": BASE,
    "launcher/policy": BASE,
    "launcher/io": ["launcher/opts.h"] + BASE,
    # options, hosts, ranks on hosts, agents on hosts
    "launcher/cli": ["launcher/opts.h", "launcher/spawned.h"] + BASE,
    "launcher/alloc": ["launcher/opts.h"] + BASE,
    "launcher/place": ["launcher/alloc", "launcher/opts.h", "launcher/contract.h"] + BASE,
    "launcher/transport": ["launcher/link", "launcher/alloc/sched.h", "launcher/envfwd.h", "launcher/opts.h"] + BASE,
    # the core on the nodes' side, and on the launcher's, which forks an agent
    "launcher/agent": ["launcher/" + name for name in
                       ("admission", "transport", "place", "policy", "link", "hooks.h",
                        "contract.h")] + BASE,
    "launcher/job": ["launcher/" + name for name in
                     ("agent", "transport", "place", "alloc", "policy", "link", "io", "control",
                      "envfwd.h", "hooks.h", "opts.h")] + BASE,
    # a plug-in: the cores' public headers, and what stands below; no other plug-in
    "launcher/plugins/*": ["launcher/" + name for name in
                           ("plugins/plugins.h", "job/plugin.h", "job/state.h", "job/events.h",
                            "agent/plugin.h", "agent/state.h", "agent/ranks.h", "agent/agent.h",
                            "transport", "place", "alloc", "admission", "link", "io", "control",
                            "contract.h", "opts.h", "spawned.h")] + ["rendezvous/server"] + BASE,
    "launcher/plugins": ["launcher/plugins", "launcher/job/plugin.h",
                         "launcher/agent/plugin.h"] + BASE,
    # ddprun on every node; ddprun
    "launcher/peer": ["launcher/" + name for name in
                      ("job/peers.h", "job/signals.h", "agent", "transport", "alloc", "link",
                       "envfwd.h", "opts.h")] + BASE,
    "launcher/main": ["launcher/" + name for name in
                      ("peer", "job/job.h", "job/signals.h", "job/dryrun.h", "transport", "alloc", "cli",
                       "contract.h", "opts.h")] + BASE,
    # programs of their own; a size of a series may be a batch job
    "launcher/tools": ["launcher/cli", "launcher/opts.h"] + BASE,
    "launcher/tools/script": ["launcher/cli", "launcher/tools/tool.h", "launcher/opts.h"] + BASE,
    "launcher/tools/scaling": ["launcher/cli", "launcher/tools/script", "launcher/tools/tool.h",
                               "launcher/opts.h"] + BASE,
    "launcher/tools/fetch": ["launcher/tools/tool.h", "launcher/opts.h"] + BASE,
    "launcher/plugins/observe/view": ["launcher/control"] + BASE,
    # inside programs of MPI
    "launcher/mpi_calls": BASE,
    # inside slurmstepd: the table of the contract, and the reader of Slurm's counts
    "spank": ["launcher/contract.h", "launcher/alloc/sched.h"] + BASE,
    "worker/gpu": BASE,
    "worker/group": ["worker/gpu"] + BASE,
    "worker/kernels": BASE,
    "worker/nn": ["worker/kernels", "worker/report/trace.h"] + BASE,
    "worker/optim": ["worker/kernels"] + BASE,
    # a data set is made of batches, which are what a model eats
    "worker/data": ["worker/nn", "worker/kernels"] + BASE,
    "worker/ddp": ["worker/gpu", "worker/nn", "worker/kernels", "worker/optim", "worker/report/trace.h", "worker/safetensors.h"] + BASE,
    "worker/cuda": ["worker/gpu", "worker/group/nccl_join.h", "worker/engine.h", "worker/pipeline.h", "worker/report/trace.h", "worker/ddp", "worker/nn", "worker/kernels", "worker/optim"] + BASE,
    "worker": ["worker"] + BASE,
}

NO_CIRCLES = ("launcher",)
NO_CALL_CIRCLES = ("launcher", "rendezvous",
                   *(f"worker/{name}" for name in ("cuda", "data", "ddp", "gpu", "kernels", "optim", "report")))
INCLUDE = re.compile(r'#\s*include "([^"]+)"')
# what is no code, and the head of a function, as clang-format writes it
NO_CODE = re.compile(r'/\*.*?\*/|"(?:\\.|[^"\\])*"', re.S)
FUNCTION = re.compile(r"^(?!static\b)[a-z][\w *]*?\b(\w+)\([^;{]*\)\n\{", re.M)
WORD = re.compile(r"\b[a-z]\w+\b")


def row_of(name):
    """The folder that a file belongs to, and the most specific row for it; or None."""
    module, folder = str(name.with_suffix("")), str(name.parent)
    for row in (module, folder, f"{name.parent.parent}/*"):
        if row in MAY:
            return folder, MAY[row]
    while "/" in folder and not folder.startswith("launcher/"):
        folder = folder.rsplit("/", 1)[0]
        if folder in MAY:
            return folder, MAY[folder]
    return folder, None


def allowed(inc, folder, may):
    if folder.startswith("launcher"):  # there, a folder does not own those below it
        if inc.rsplit("/", 1)[0] == folder:
            return True
    else:
        may = may + [folder]
    return any(inc == ok or inc.startswith(ok + "/") for ok in may)


def circles(graph):
    """Every circle that a walk over the sorted graph meets, as text."""
    done, found = {}, []

    def walk(node, path):
        done[node] = False
        for to in sorted(graph[node]):
            if to not in done:
                walk(to, path + [to])
            elif not done[to]:
                found.append(" -> ".join(path[path.index(to):] + [to]))
        done[node] = True

    for node in sorted(graph):
        if node not in done:
            walk(node, [node])
    return found


def calls(sources):
    """The modules of the same folder whose functions each module of {module: text} names."""
    sources = {module: NO_CODE.sub("", text) for module, text in sources.items()}
    home = {(module.rsplit("/", 1)[0], name): module for module, text in sources.items()
            for name in FUNCTION.findall(text)}
    graph = collections.defaultdict(set)
    for module, text in sources.items():
        named = {home.get((module.rsplit("/", 1)[0], name)) for name in WORD.findall(text)}
        graph[module] = named - {None, module}
    return graph


root = pathlib.Path(sys.argv[1])
faults, seen = [], 0
sources = {}
modules, folders = collections.defaultdict(set), collections.defaultdict(set)
for top in ("common", "include", "rendezvous", "launcher", "spank", "worker"):
    for path in sorted((root / top).rglob("*")):
        if path.suffix not in (".c", ".h", ".cu"):
            continue
        seen += 1
        name = path.relative_to(root)
        folder, may = row_of(name)
        if may is None:
            faults.append(f"{name}: {folder} has no row in tests/lint/layers.py")
            continue
        text = path.read_text()
        if str(name).startswith(NO_CALL_CIRCLES) and path.suffix == ".c":
            sources[str(name.with_suffix(""))] = text
        for number, line in enumerate(text.splitlines(), 1):
            found = INCLUDE.match(line)
            if not found:
                continue
            inc = found.group(1)
            if "/" not in inc:
                if folder != "include":
                    faults.append(f"{name}:{number}: \"{inc}\" is not written from the root")
                continue
            if not allowed(inc, folder, may):
                faults.append(f"{name}:{number}: {folder} may not include {inc}")
            module, to = str(name.with_suffix("")), inc.rsplit(".", 1)[0]
            if top in NO_CIRCLES and module != to:
                modules[module].add(to)
                # files directly in launcher/ are modules, not a folder
                here, there = str(name.parent), to.rsplit("/", 1)[0]
                if here != there and "/" in here and "/" in there:
                    folders[here].add(there)
called = calls(sources)
faults += [f"circle of includes: {text}" for text in circles(modules) + circles(folders)]
faults += [f"circle of calls: {text}" for text in circles(called)]
if faults:
    print("\n".join(faults))
ncalls = sum(map(len, called.values()))
if seen < 20 or ncalls < 100:
    sys.exit(f"only {seen} files and {ncalls} calls between them seen: wrong root?")
sys.exit(1 if faults else 0)
