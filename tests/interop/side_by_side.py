#!/usr/bin/env python3
"""side_by_side.py DDPRUN: mpi4py and torch.distributed in one program, under ddprun.

With every Python that has both: the system's (Debian: python3-mpi4py, python3-torch) and that
of torch-env.sh, there also forked from an interpreter that has imported torch."""

import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
PROGRAM = os.path.join(HERE, "programs", "side_by_side.py")
NP = 2


def pythons():
    made = subprocess.run(
        [os.path.join(HERE, "torch-env.sh"),], stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, text=True, check=False,
    )
    for python in ("/usr/bin/python3", made.stdout.strip()):
        # looked for, not imported: that takes seconds
        look = "import importlib.util as u, sys; " \
               "sys.exit(not (u.find_spec('mpi4py') and u.find_spec('torch')))"
        if python and subprocess.run([python, "-c", look], check=False).returncode == 0:
            yield python


def check(ddprun, python, *options):
    done = subprocess.run(
        [ddprun, "-np", str(NP), "--tag-output=off", *options, python, PROGRAM],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=240, check=False,
        env={**os.environ, "OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self,vader,tcp"},
    )
    expected = [f"rank {r} of {NP} in both" for r in range(NP)]
    if done.returncode != 0 or sorted(done.stdout.splitlines()) != expected:
        sys.exit(f"{python} {options}: status {done.returncode}\n{done.stdout}\n{done.stderr}")
    print(f"{python} {' '.join(options)}: MPI and PyTorch in one program of {NP} ranks")


found = list(pythons())
if not found:
    print("skipped: no Python has both mpi4py and torch; needs package python3-mpi4py python3-torch")
    sys.exit(77)
for python in found:
    check(sys.argv[1], python)
if found[-1] != "/usr/bin/python3":
    check(sys.argv[1], found[-1], "--preload", "torch")
