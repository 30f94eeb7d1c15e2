"""Environments with packages from a package index, kept in the user's cache as PyTorch is
(torch-env.sh). Versions are pinned, so that a new one is our decision."""

import fcntl
import os
import subprocess
import sys

CACHE = os.path.join(
    os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "ddprun")
PIP_SECONDS = 90


def installed(name, *requirements, seconds=PIP_SECONDS):
    """The folder of the environment `name` with these; made if need be. Raises what it fails at."""
    folder = os.path.join(CACHE, name)
    done = os.path.join(folder, "complete")
    os.makedirs(folder, exist_ok=True)
    with open(folder + ".lock", "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not os.path.exists(done):
            subprocess.run([sys.executable, "-m", "venv", folder], check=True, timeout=60,
                           stdout=subprocess.DEVNULL)
            subprocess.run(
                [os.path.join(folder, "bin", "pip"), "install", "--quiet", "--retries", "1",
                 "--disable-pip-version-check", *requirements],
                check=True, timeout=seconds, stdout=subprocess.DEVNULL)
            with open(done, "w", encoding="ascii"):
                pass
    return folder
