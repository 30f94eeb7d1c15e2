"""Unmodified PyTorch programs meet at ddpstored.   store.py DDPSTORED LIBDDPSTORE

The test plays the launcher: it sets the variables of each rank by hand. Jobs of PyTorch
1.13 and 2.15, by env:// and by tcp://, two of them at once on one port; and PyTorch's client
beside ours in one process.
"""
import os
import subprocess
import sys
import tempfile

import jobs


def rank_env(rank, size, port, directory):
    env = {k: v for k, v in os.environ.items() if not k.startswith(("MASTER_", "TORCH"))}
    env.update(RANK=str(rank), WORLD_SIZE=str(size), LOCAL_RANK=str(rank),
               LOCAL_WORLD_SIZE=str(size), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
               TORCHELASTIC_USE_AGENT_STORE="True", TORCHELASTIC_RESTART_COUNT="0",
               OMP_NUM_THREADS="1",
               CHECK_DIR=directory)
    return env


def start(version, python, how, size, checks, port, directory):
    job = jobs.Job(f"PyTorch {version}, {how}://")
    for rank in range(size):
        job.start([python, jobs.CHECK, how, *checks],
                  env=rank_env(rank, size, port, directory))
    return job, size, checks


def run(ddpstored, library, torches, directory):
    daemon = subprocess.Popen([ddpstored, "--host", "127.0.0.1", "--port", "0"],
                              stdout=subprocess.PIPE, text=True)
    good = True
    try:
        port = int(daemon.stdout.readline())
        # at once on one port: every version
        together = [start(v, p, "env", 2, jobs.BASIC + jobs.TRAIN[v], port, directory)
                    for v, p in torches.items()]
        for job, size, checks in together:
            good &= job.finish(size, checks)
        for version, python in torches.items():
            job = jobs.Job(f"PyTorch {version} beside libddpstore")
            job.start([python, os.path.join(jobs.HERE, "programs", "mixed.py"), library,
                       str(port)])
            good &= job.finish(1, ["mixed"])
    finally:
        daemon.terminate()
        daemon.wait(60)
    good &= daemon.returncode == 0
    for version, python in torches.items():  # fresh keys: a store of its own
        daemon = subprocess.Popen([ddpstored, "--host", "127.0.0.1", "--port", "0"],
                                  stdout=subprocess.PIPE, text=True)
        try:
            port = int(daemon.stdout.readline())
            job, size, checks = start(version, python, "tcp", 4,
                                      jobs.BASIC + ["ddp"], port, directory)
            good &= job.finish(size, checks)
        finally:
            daemon.terminate()
            daemon.wait(60)
        good &= daemon.returncode == 0
    return good


def main():
    ddpstored, library = map(os.path.abspath, sys.argv[1:])
    torches = jobs.find_torches()
    with tempfile.TemporaryDirectory() as directory:
        sys.exit(0 if run(ddpstored, library, torches, directory) else 1)


if __name__ == "__main__":
    main()
