#!/usr/bin/env python3
"""Launching over many hosts of the lab (tests/lab), beside others, in interleaved rounds.

    bench/lab_launch.py [--build DIR] [--hosts 4,16,64] [--rounds 3] [--slurm] [--sge] [--no-ssh]
                        [--realtime]

`true` once on every host, from exec of the launcher on the first of them to its exit:
ddprun, mpirun and Hydra by ssh, beside the bare ssh that all of them have to pay for: one
alone, and one to each other host at once. With --slurm also ddprun, mpirun and Hydra in an
allocation of a real Slurm, beside srun; with --sge ddprun and mpirun in a job of a real Grid
Engine, beside a bare qrsh -inherit to each of its hosts at once. --no-ssh leaves the first out.
256 hosts are an option because they take minutes.

The hosts share the machine's CPUs, so with many of them it is CPU time that is measured,
above all that of ssh: it stands beside the wall time (of all processes of all hosts, from
the control group that the lab gives them). Ratios are of the same round. What does not end
in time, or ends wrongly, is counted.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import launch

SOURCE = launch.SOURCE
LIMIT = 120.0  # seconds for one launch


class Lab:
    def __init__(self, folder, build, hosts):
        self.script = f"{SOURCE}/tests/lab/lab"
        self.folder = folder
        os.chmod(folder, 0o755)
        for name in ("ddprun", "ddprun-agent", "ssh_config"):
            shutil.copy(f"{build}/launcher/{name}", folder)
        self.env = {**os.environ, "LAB_STATE": f"{folder}/state", "LAB_OWNER": str(os.getpid())}
        self("up", str(hosts))
        self.group = self.find_group()

    def __call__(self, *args):
        subprocess.run([self.script, *args], env=self.env, check=True, stdout=subprocess.DEVNULL)

    def find_group(self):
        """The folder of the control group (version 2) that holds those of all hosts."""
        said = subprocess.run(self.enter("cat", "/proc/self/cgroup"), env=self.env, check=True,
                              stdout=subprocess.PIPE).stdout.decode()
        path = next(line[3:] for line in said.splitlines() if line.startswith("0::"))
        with open("/proc/mounts", encoding="ascii") as f:
            root = next(line.split()[1] for line in f if line.split()[2] == "cgroup2")
        return root + os.path.dirname(path)

    def cpu(self):
        """Seconds of CPU time of all processes of all hosts so far."""
        time.sleep(0.3)  # what is left behind on other hosts counts, too
        with open(f"{self.group}/cpu.stat", encoding="ascii") as f:
            return int(f.readline().split()[1]) / 1e6

    def enter(self, *command, host="node001"):
        return [self.script, "exec", "-l", "-u", "alice", host, *command]


class Contender(launch.Contender):
    def run(self, lab):
        before, start = lab.cpu(), time.perf_counter()
        status = launch.wait(launch.spawn(self.command, lab.env), LIMIT)
        ms = (time.perf_counter() - start) * 1000
        if status is None:
            self.hung += 1
        elif status != 0:
            self.wrong += 1
        else:
            self.ms.append(ms)
            self.cpu_ms.append((lab.cpu() - before) * 1000)


def by_ssh(lab, n):
    names = [f"node{i:03}" for i in range(1, n + 1)]
    for kind, form in (("colon", "{}:1\n"), ("slots", "{} slots=1\n")):
        with open(f"{lab.folder}/{kind}{n}", "w", encoding="ascii") as f:
            f.write("".join(map(form.format, names)))
    each = f'for h in {" ".join(names[1:])}; do ssh $h true & done; wait'
    return [
        Contender("one ssh", lab.enter("ssh", "node002", "true")),
        Contender("bare ssh to all", lab.enter("sh", "-c", each)),
        Contender("ddprun", lab.enter(
            f"{lab.folder}/ddprun", "--hostfile", f"{lab.folder}/slots{n}", "true")),
        Contender("ddprun, ssh as it is", lab.enter(
            f"{lab.folder}/ddprun", "--ssh", "/usr/bin/ssh", "--hostfile",
            f"{lab.folder}/slots{n}", "true")),
        Contender("mpiexec.hydra", lab.enter(
            "mpiexec.hydra", "-f", f"{lab.folder}/colon{n}", "-np", str(n), "true")),
        Contender("mpirun", lab.enter(
            "mpirun", "--hostfile", f"{lab.folder}/slots{n}", "-np", str(n), "true")),
    ]


def by_slurm(lab, n):
    """Each inside an allocation of its own, which is there before the clock starts."""
    command = {
        "srun": f"srun -n {n} --ntasks-per-node=1 true",
        "ddprun": f"{lab.folder}/ddprun true",
        "ddprun by ssh": f"{lab.folder}/ddprun --start ssh true",
        "mpiexec.hydra": f"mpiexec.hydra -np {n} true",
        "mpirun": f"mpirun -np {n} true",
    }
    return [
        Contender(name, lab.enter("sh", "-c", f". {lab.folder}/job{n}; exec {text}"))
        for name, text in command.items()
    ]


def wait_for(path, what):
    """Until the file has content."""
    end = time.monotonic() + 60
    while not (os.path.exists(path) and os.path.getsize(path)):
        if time.monotonic() > end:
            raise RuntimeError(what)
        time.sleep(0.1)


class Allocation:
    """Nodes of the lab's Slurm, held by a sleeping job; its variables in a file."""

    def __init__(self, lab, n):
        self.lab, self.path = lab, f"{lab.folder}/job{n}"
        script = f"{lab.folder}/hold{n}.sh"
        with open(script, "w", encoding="ascii") as f:
            f.write(f"#!/bin/sh\nexport -p | grep SLURM_ >{lab.folder}/out/job{n}\nsleep 3600\n")
        os.makedirs(f"{lab.folder}/out", exist_ok=True)
        os.chmod(f"{lab.folder}/out", 0o777)
        said = subprocess.run(
            lab.enter("sbatch", "--parsable", "-p", "all", "-o", "/dev/null", f"-N{n}", f"-n{n}",
                      "--ntasks-per-node=1", script),
            env=lab.env, check=True, stdout=subprocess.PIPE).stdout.decode()
        self.job = said.strip()
        written = f"{lab.folder}/out/job{n}"
        wait_for(written, f"Slurm has not given {n} nodes")
        time.sleep(0.2)
        shutil.copy(written, self.path)

    def end(self):
        self.lab("exec", "-l", "-u", "alice", "node001", "scancel", self.job)


def by_sge(lab, job):
    each = f'for h in {" ".join(job.hosts[1:])}; do qrsh -inherit -nostdin -v PWD $h true & done; wait'
    command = {
        "qrsh to all": each,
        "ddprun": f"{lab.folder}/ddprun true",
        "ddprun by ssh": f"{lab.folder}/ddprun --start ssh true",
        "mpirun": "mpirun true",
    }
    return [
        Contender(name, lab.enter("sh", "-c", f". {job.path}; {text}", host=job.hosts[0]))
        for name, text in command.items()
    ]


class GridEngineJob:
    """Hosts of the lab's Grid Engine, held by a sleeping job; its variables in a file."""

    def __init__(self, lab, n):
        self.lab, self.path = lab, f"{lab.folder}/out/sge{n}"
        script = f"{lab.folder}/hold-sge{n}.sh"
        os.makedirs(f"{lab.folder}/out", exist_ok=True)
        os.chmod(f"{lab.folder}/out", 0o777)
        with open(script, "w", encoding="ascii") as f:
            f.write(f"#!/bin/sh\nexport -p >{self.path}.new\nmv {self.path}.new {self.path}\n"
                    f"cat $PE_HOSTFILE >{self.path}.hosts\nsleep 3600\n")
        said = subprocess.run(
            lab.enter("sh", "-c", f"cd /tmp && qsub -terse -pe mpi {n} -o /dev/null -j y {script}"),
            env=lab.env, check=True, stdout=subprocess.PIPE).stdout.decode()
        self.job = said.strip()
        wait_for(f"{self.path}.hosts", f"Grid Engine has not given {n} slots")
        with open(f"{self.path}.hosts", encoding="ascii") as f:
            self.hosts = [line.split()[0] for line in f]

    def end(self):
        self.lab("exec", "-l", "-u", "alice", "node001", "qdel", self.job)


def table(title, results, base):
    print(f"\n{title}\n  {'':22} {'wall, ms':28} {'CPU, ms':>9}   x {base}, wall and CPU")
    ours = next(c for c in results if c.name == base)
    for c in results:
        faults = f"  hung {c.hung}" * (c.hung > 0) + f"  wrong {c.wrong}" * (c.wrong > 0)
        if not c.ms:
            print(f"  {c.name:22} {'-':28}{faults}")
            continue
        ratios = ""
        if c is not ours and ours.ms:
            wall = [a / b for a, b in zip(c.ms, ours.ms)]
            cpu = [a / b for a, b in zip(c.cpu_ms, ours.cpu_ms)]
            ratios = (f"{statistics.median(wall):5.2f} ({min(wall):.2f}-{max(wall):.2f})   "
                      f"{statistics.median(cpu):5.2f}")
        cpu_ms = statistics.median(c.cpu_ms)
        print(f"  {c.name:22} {launch.median_and_range(c.ms)} {cpu_ms:9.0f}   {ratios}{faults}")
    sys.stdout.flush()


def rounds_of(title, lab, results, rounds):
    found = [c for c in results if c.name.split(",")[0].split()[0] not in ("mpirun", "mpiexec.hydra")
             or shutil.which(c.name)]
    for _ in range(rounds):
        for c in found:
            c.run(lab)
    table(title, found, "ddprun")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", default=f"{SOURCE}/build")
    parser.add_argument("--hosts", default="4,16,64")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--slurm", action="store_true")
    parser.add_argument("--sge", action="store_true")
    parser.add_argument("--no-ssh", action="store_true")
    args = launch.parse(parser)
    counts = [int(n) for n in args.hosts.split(",")]
    with tempfile.TemporaryDirectory(prefix="ddprun-lab-") as folder:
        lab = Lab(folder, args.build, max(counts))
        try:
            for n in () if args.no_ssh else counts:
                rounds_of(f"true on {n} hosts by ssh", lab, by_ssh(lab, n), args.rounds)
            if args.slurm:
                lab("slurm", "up")
            for n in counts if args.slurm else ():
                allocation = Allocation(lab, n)
                rounds_of(f"true on {n} hosts under Slurm", lab, by_slurm(lab, n), args.rounds)
                allocation.end()
            if args.sge:
                lab("slurm", "down")
                lab("sge", "up")
            for n in counts if args.sge else ():
                job = GridEngineJob(lab, n - 1)  # node001 has the queue master
                rounds_of(f"true on {len(job.hosts)} hosts under Grid Engine", lab,
                          by_sge(lab, job), args.rounds)
                job.end()
        finally:
            lab("down")
    print(f"\nload of the machine: {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
