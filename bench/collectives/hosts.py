#!/usr/bin/env python3
"""All-reduce of many ranks on several hosts of the lab (tests/lab), beside Open MPI and MPICH.

    sudo bench/collectives/hosts.py BUILD [--hosts 8] [--per-host 8] [--rounds 3] [--only NAMES]
                                          [--sizes BYTES,...]

The loop of contest.h, each contestant started by its own launcher over ssh, in interleaved
rounds. Within a host ranks have shared memory, between hosts TCP over a bridge. Open MPI runs with
its default algorithms (`tuned`) and with its hierarchical ones (`han`). All hosts share the
machine's CPUs, so with more ranks than CPUs this measures CPU time and how ranks wait for each
other: MPI's yield the CPU when they wait (mpi_yield_when_idle, MPICH's default).
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.dirname(HERE)]
import collectives  # noqa: E402
import lab_launch  # noqa: E402


def contestants(folder, ranks, sizes):
    task = ["all_reduce", "1"] + sizes
    open_mpi = ["mpirun.openmpi", "--hostfile", f"{folder}/slots", "-np", str(ranks), "--bind-to", "none",
                "--mca", "btl_tcp_if_include", "10.77.0.0/16", "--mca", "mpi_yield_when_idle", "1"]
    ours = [f"{folder}/ddprun", "--hostfile", f"{folder}/slots", "--tag-output=off", f"{folder}/ddp"]
    return {
        "arena": ours + ["arena"] + task,
        "private": ours + ["private"] + task,
        "Open MPI": open_mpi + [f"{folder}/mpi_openmpi"] + task,
        "Open MPI han": open_mpi + ["--mca", "coll_han_priority", "100",
                                    "--mca", "btl_vader_single_copy_mechanism", "none", f"{folder}/mpi_openmpi"] + task,
        "MPICH": ["mpiexec.hydra", "-f", f"{folder}/colon", "-np", str(ranks), f"{folder}/mpi_mpich"] + task,
    }


def run(lab, command, timeout):
    """{bytes: (microseconds,)}; None if it fails or does not end."""
    try:
        said = subprocess.run(lab.enter(*command), env=lab.env, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, timeout=timeout, check=True)
        return {int(size): (float(us),) for size, us in map(bytes.split, said.stdout.splitlines())}
    except (subprocess.SubprocessError, ValueError) as e:
        print(f"# {command[0]} failed: {e} {getattr(e, 'stderr', b'')!r:.1500}", file=sys.stderr)
        return None


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build")
    parser.add_argument("--hosts", type=int, default=8)
    parser.add_argument("--per-host", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", help="contestants, comma separated")
    parser.add_argument("--sizes", default="8,4096,65536,400000,4800000")
    parser.add_argument("--timeout", type=float, default=120, help="of a run, seconds")
    opts = parser.parse_args()
    build, sizes = os.path.abspath(opts.build), opts.sizes.split(",")
    with tempfile.TemporaryDirectory(prefix="ddprun-lab-") as folder:
        lab = lab_launch.Lab(folder, build, opts.hosts)
        try:
            for program in ("ddp", "mpi_openmpi", "mpi_mpich"):
                if os.path.exists(f"{build}/bench/collectives/{program}"):
                    shutil.copy(f"{build}/bench/collectives/{program}", folder)
            for kind, form in (("colon", "{}:{}\n"), ("slots", "{} slots={}\n")):
                with open(f"{folder}/{kind}", "w", encoding="ascii") as f:
                    f.writelines(form.format(f"node{i:03}", opts.per_host) for i in range(1, opts.hosts + 1))
            field = {name: command
                     for name, command in contestants(folder, opts.hosts * opts.per_host, sizes).items()
                     if not opts.only or name in opts.only.split(",")}
            results = {name: [] for name in field}
            for _ in range(opts.rounds):
                for name, command in field.items():
                    results[name].append(run(lab, command, opts.timeout))
        finally:
            lab("down")
    title = f"all-reduce of {opts.hosts} x {opts.per_host} ranks"
    pairs = [(other, "private") for other in field if other not in ("arena", "private")]
    collectives.show_times(title, results, list(field), [int(s) for s in sizes], pairs)
    print(f"\nload of the machine: {os.getloadavg()[0]:.1f}")
    return any(r is None for rs in results.values() for r in rs)


if __name__ == "__main__":
    sys.exit(main())
