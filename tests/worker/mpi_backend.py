#!/usr/bin/env python3
"""mpi_backend.py RESULTS FAULTS SHIMS DDPRUN LAUNCHER...: groups of the mpi backend, under
each MPI that is here: mpi_group.c and mpi_faults.c"""
import os
import re
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "system"))

import mpi

RANKS = 3


def run(launcher, program, shims, *args, options=(), **more):
    """Exit status, and what was written to stdout and stderr."""
    command = [launcher, *options, "-np", str(RANKS), program, *args]
    if "openmpi" in launcher:
        command[1:1] = ["--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]
    # else a library of Ubuntu 22.04's MPICH ends a rank that ignores SIGTERM by it
    env = dict(os.environ, DDP_MPI_DIR=shims, IPATH_NO_BACKTRACE="1", **more)
    text = ""
    for _ in range(2):  # Open MPI 4.1.4's mpirun has been seen not to return
        with subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as p:
            try:
                text = p.communicate(timeout=100)[0]
                return p.returncode, text
            except subprocess.TimeoutExpired:
                p.terminate()
                text = f"{launcher} has not returned\n{p.communicate()[0]}"
    return 1, text


def judge(what, text, lines, pattern):
    """So many lines were said, all of which tell what they should."""
    said = [line for line in text.splitlines() if re.match(rf"{what[0]}: rank \d|init: ", line)]
    wrong = [line for line in said if "BAD" in line or not re.search(pattern, line)]
    if len(said) == lines and not wrong:
        return False
    print(f"{' '.join(what)}: {len(said)} of {lines} ranks said something, wrong: {wrong}\n{text}")
    return True


def disagree(launcher, program, shims):
    _, text = run(launcher, program, shims, "disagree")
    return judge(("disagree",), text, 3 * RANKS,
                 r"the ranks disagree on collective #1: rank . calls .*, rank . calls ")


def die(at, launcher, program, shims, *options, **more):
    _, text = run(launcher, program, shims, "die", at, options=options, **more)
    return judge(("die", at), text, RANKS - 1, r"rank 1 on \S+ .*(gone|left)")


def main():
    results, program, shims, ddprun, *launchers = sys.argv[1:]
    here = [name for name in launchers if shutil.which(name)]
    if not here:
        print("skipped: no MPI is here; needs package openmpi-bin mpich")
        return 77
    failed = False
    for launcher in here:
        if "hydra" in launcher and mpi.needs_pmix(f"{shims}/ddpgroup-mpich.so"):
            continue
        rc, text = run(launcher, results, shims, "launcher://")
        failed |= rc != 0
        print(f"{launcher}: {rc}\n{text}")
        failed |= disagree(launcher, program, shims)
        # told to leave the others alone; Hydra cannot: a death makes its proxy fail
        if "openmpi" in launcher:
            failed |= die("3", launcher, program, shims, "--enable-recovery")
        for at in ("0", "5"):
            name = "openmpi" if "openmpi" in launcher else "mpich"
            failed |= die(at, ddprun, program, shims, "--tag-output=off", "--grace", "60s",
                          DDP_MPI=name)
    alone = subprocess.run([results, "env://"], capture_output=True, text=True, env={
        k: v for k, v in os.environ.items() if not k.startswith(("PMI", "OMPI", "DDP_MPI"))})
    if "has not been started as a rank of MPI" not in alone.stderr:
        failed = True
        print(f"alone: {alone.returncode}, {alone.stderr}")
    return failed


sys.exit(main())
