"""Unmodified PyTorch programs under ddprun.   launch.py DDPRUN {here|hosts}

here:  1, 2, 4 and 8 ranks on this machine, by env:// and tcp://, each by itself and forked
       from one interpreter, which must not differ; all of them started again
       (--max-restarts); a script that hosts the store itself (--store rank0); one rank that
       starts the others itself; and a script that chooses the port itself.
hosts: 4 ranks over two hosts of the lab (tests/lab), started by ssh.
"""
import difflib
import os
import re
import socket
import subprocess
import sys
import tempfile

import jobs

ALL = {version: jobs.BASIC + more for version, more in jobs.TRAIN.items()}
RAISES = os.path.join(jobs.HERE, "programs", "raises.py")
FEW = ["collectives", "groups", "ddp"]


FORKED = "the ranks are forked"
SPAWN = os.path.join(jobs.HERE, "programs", "spawn.py")
OWN_PORT = os.path.join(jobs.HERE, "programs", "own_port.py")
RESTARTS = os.path.join(jobs.HERE, "programs", "restarts.py")


def under(ddprun, version, python, size, how, checks, options=(), env=None, enter=(),
          must_say=""):
    return launched(ddprun, version, python, size, how, checks, options, env, enter, must_say)[0]


def launched(ddprun, version, python, size, how, checks, options=(), env=None, enter=(),
             must_say=""):
    options = " ".join(options)
    job = jobs.Job(f"PyTorch {version}, {how}://, ddprun -np {size} {options}".rstrip())
    job.start([*enter, ddprun, "-np", str(size), *options.split(), python, jobs.CHECK, how,
               *checks], env=env)
    return job.finish(size, checks, must_say), job


def told(text):
    """What the ranks have written, without what differs from run to run: numbers, and the
    blanks that bring some of them to one width."""
    return sorted(re.sub(r" *(0x[0-9a-f]+|\d+)", " N", line) for line in text.splitlines()
                  if not line.startswith(("ddprun", "    ")))


def both_ways(ddprun, version, python, env):
    """Each by itself, and forked from one interpreter, without a word on the command line:
    the same output and the same exit code."""
    good, plain = launched(ddprun, version, python, 2, "env", ALL[version],
                           ["-v --no-preload"], env)
    also, ours = launched(ddprun, version, python, 2, "env", ALL[version], ["-v"], env,
                          must_say=FORKED)
    same = told(plain.text) == told(ours.text) and plain.codes == ours.codes
    print(f"{'ok' if same else 'FAILED'}: PyTorch {version}, the same both ways")
    if not same:
        print(plain.codes, ours.codes, *difflib.unified_diff(
            told(plain.text), told(ours.text), "by itself", "forked"), sep="\n")
    return good and also and same


def raising(ddprun, version, python):
    """The message of the exception stands right below the first line."""
    results = []
    for option in ("--no-preload", "--verbose"):
        command = [ddprun, "-np", "2", option, python, RAISES]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              text=True, timeout=jobs.JOB_SECONDS)
        first = [line for line in done.stderr.splitlines() if line.startswith("ddprun: ")]
        results.append((done.returncode, first[1:2], told(done.stderr)))
    good = results[0] == results[1] and FORKED in done.stderr and results[0][:2] == (
        1, ["ddprun: rank 1 raised ValueError: boom"])
    print(f"{'ok' if good else 'FAILED'}: PyTorch {version}, an exception under @record")
    if not good:
        print(*results, done.stderr, sep="\n")
    return good


def restarting(ddprun, version, python, option):
    job = jobs.Job(f"PyTorch {version}, ddprun -np 3 --max-restarts 2 {option}")
    job.start([ddprun, "-np", "3", "--max-restarts", "2", option, python, RESTARTS])
    return job.finish(3, ["attempt 2"], "attempt 3 of 3")


def free_port():
    with socket.socket() as free:
        free.bind(("", 0))
        return str(free.getsockname()[1])


def spawning(ddprun, version, python):
    job = jobs.Job(f"PyTorch {version}, torch.multiprocessing.spawn() in ddprun -np 1")
    job.start([ddprun, "-np", "1", python, SPAWN, free_port()])
    return job.finish(2, ["sum"])


def own_port(ddprun, version, python):
    """A port that the script sets, and one that a shell sets before it."""
    job = jobs.Job(f"PyTorch {version}, ddprun -np 2, a port of the script's own")
    job.start([ddprun, "-np", "2", "-v", python, OWN_PORT, free_port()])
    good = job.finish(2, ["sum"], FORKED)
    job = jobs.Job(f"PyTorch {version}, ddprun -np 2, a port of a shell script")
    job.start([ddprun, "-np", "2", "sh", "-c", 'GIVEN_PORT=$MASTER_PORT MASTER_PORT=$2 exec "$0" "$1"', python,
               OWN_PORT, free_port()])
    return good & job.finish(2, ["sum"])


def here(ddprun, torches, env):
    good = True
    for version, python in torches.items():
        good &= spawning(ddprun, version, python)
        good &= own_port(ddprun, version, python)
        good &= both_ways(ddprun, version, python, env)
        for size, how, checks in ((1, "env", ALL[version]), (4, "tcp", ALL[version]),
                                  (8, "env", FEW)):
            good &= under(ddprun, version, python, size, how, checks, (), env)
        good &= raising(ddprun, version, python)
        good &= under(ddprun, version, python, 2, "tcp", FEW, ["-v --preload torch,numpy"], env,
                      must_say=FORKED)
        good &= restarting(ddprun, version, python, "--verbose")
    # three times three imports, which is nearly all of it: by the version that is quickest
    good &= restarting(ddprun, *min(torches.items()), "--no-preload")
    good &= under(ddprun, version, python, 2, "env", FEW, ["--store rank0"], env)
    return good


def hosts(ddprun, torches, lab, env):
    enter = [lab, "exec", "-l", "node001", "env", f"CHECK_DIR={env['CHECK_DIR']}"]
    spread = ["-H node001:2,node002:2", "-x CHECK_DIR", f"--wdir {env['CHECK_DIR']}"]
    good = True
    for version, python in torches.items():
        for how in ("env", "tcp"):
            checks = ALL[version] if how == "env" else FEW
            good &= under(ddprun, version, python, 4, how, checks, spread, env, enter)
    # one rank on each, so that every pair talks over the network
    good &= under(ddprun, version, python, 2, "env", ALL[version],
                  ["-H node001,node002", "-x CHECK_DIR"], env, enter)
    return good


def main():
    ddprun, where = os.path.abspath(sys.argv[1]), sys.argv[2]
    lab = os.path.join(jobs.HERE, "../lab/lab")
    if where == "hosts" and os.geteuid() != 0:
        jobs.skip("the lab makes namespaces; needs root")
    torches = jobs.find_torches()
    with tempfile.TemporaryDirectory(prefix="ddprun-interop-") as directory:
        env = dict(os.environ, CHECK_DIR=directory)
        if where == "here":
            sys.exit(not here(ddprun, torches, env))
        env.update(LAB_STATE=os.path.join(directory, "lab"), LAB_OWNER=str(os.getpid()))
        up = subprocess.run([lab, "up", "2"], env=env, stdin=subprocess.DEVNULL)
        try:
            if up.returncode != 0:
                sys.exit("the lab does not come up")
            good = hosts(ddprun, torches, lab, env)
        finally:
            subprocess.run([lab, "down"], env=env, stdin=subprocess.DEVNULL)
        sys.exit(not good)


if __name__ == "__main__":
    main()
