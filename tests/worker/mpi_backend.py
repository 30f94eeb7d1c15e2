#!/usr/bin/env python3
"""mpi_backend.py PROGRAM SHIMS LAUNCHER...: mpi_group.c under each MPI that is here"""
import os
import shutil
import subprocess
import sys
import tempfile


def run(launcher, program, shims, folder):
    command = [launcher, "-np", "3", program, f"file://{folder}/meeting"]
    if "openmpi" in launcher:
        command[1:1] = ["--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]
    env = dict(os.environ, DDP_MPI_DIR=shims)
    for _ in range(2):  # Open MPI 4.1.4's mpirun has been seen not to return
        with subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL) as p:
            try:
                return p.wait(100)
            except subprocess.TimeoutExpired:
                p.terminate()
                print(f"{launcher} has not returned", flush=True)
    return 1


def main():
    program, shims, *launchers = sys.argv[1:]
    here = [name for name in launchers if shutil.which(name)]
    if not here:
        print("skipped: no MPI is here")
        return 77
    failed = False
    with tempfile.TemporaryDirectory(prefix="ddp-mpi-") as folder:
        for launcher in here:
            rc = run(launcher, program, shims, folder)
            failed |= rc != 0
            print(f"{launcher}: {rc}")
    alone = subprocess.run([program, "env://"], capture_output=True, text=True, env={
        k: v for k, v in os.environ.items() if not k.startswith(("PMI", "OMPI", "DDP_MPI"))})
    if "has not been started as a rank of MPI" not in alone.stderr:
        failed = True
        print(f"alone: {alone.returncode}, {alone.stderr}")
    return failed


sys.exit(main())
