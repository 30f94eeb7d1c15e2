"""Environments with packages from a package index, kept in the user's cache as PyTorch is
(torch-env.sh). Versions are pinned, so that a new one is our decision."""

import fcntl
import glob
import os
import subprocess
import sys

CACHE = os.path.join(
    os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "ddprun")
PIP_SECONDS = 90
# name, version and extras of what PyTorch states as needed and this one does without, as torch-env.sh
# makes it where the machine has CUDA
LACKING = r"""
import importlib.metadata as data, re
have = {re.sub("[-_.]+", "-", one.name).lower() for one in data.distributions()}
for need in data.requires("torch"):
    found = re.match(r"((?:cuda|nvidia|triton)[\w-]*)(?:\[(.*)\])?.*[=~>]=([\d.]+)", need.partition(";")[0])
    if found and found[1] not in have:
        print(found[1], found[3], *(found[2] or "").split(","))
"""


def leave_out(python, path):
    """Let pip take for installed what PyTorch lacks: gigabytes, for each environment."""
    said = subprocess.run([python, "-c", LACKING], check=True, stdout=subprocess.PIPE, text=True)
    for name, version, *extras in map(str.split, said.stdout.splitlines()):
        info = os.path.join(path, f"{name.replace('-', '_')}-{version}.dist-info")
        os.makedirs(info, exist_ok=True)
        with open(os.path.join(info, "METADATA"), "w", encoding="ascii") as f:
            f.write(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
            f.writelines(f"Provides-Extra: {extra}\n" for extra in extras)


def installed(name, *requirements, seconds=PIP_SECONDS, beside=None):
    """The folder of the environment `name` with these; made if need be. Raises what it fails at.
    `beside`: a Python whose packages it has, too."""
    folder = os.path.join(CACHE, name)
    done = os.path.join(folder, "complete")
    os.makedirs(folder, exist_ok=True)
    with open(folder + ".lock", "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not os.path.exists(done):
            subprocess.run([beside or sys.executable, "-m", "venv", folder], check=True, timeout=200,
                           stdout=subprocess.DEVNULL)
            for path in glob.glob(os.path.join(folder, "lib", "python3*", "site-packages")):
                other = os.path.join(os.path.dirname(os.path.dirname(beside or "")), "lib",
                                     os.path.basename(os.path.dirname(path)), "site-packages")
                with open(os.path.join(path, "beside.pth"), "w", encoding="ascii") as f:
                    f.write(other + "\n" if beside else "")
                if beside:
                    leave_out(beside, path)
            subprocess.run(
                [os.path.join(folder, "bin", "pip"), "install", "--quiet", "--retries", "1",
                 "--disable-pip-version-check", *requirements],
                check=True, timeout=seconds, stdout=subprocess.DEVNULL)
            with open(done, "w", encoding="ascii"):
                pass
    return folder
