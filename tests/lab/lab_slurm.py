"""lab slurm up|down - Debian's Slurm: slurmctld on node001, munged and slurmd on every host.

Environment: LAB_SLURM_CPUS (40) each node claims, whatever the machine has; LAB_SLURM_EXTRA: more
lines of slurm.conf; LAB_SLURM_SITE: a site file of ddprun, whose partitions and limits are taken, with a
few hosts for each kind of node. Partitions else: dgx (node001-003, 8 GPUs each), gpu (004-005, 2),
compute (the rest), and all. No accounting, no binding, no memory limits.
"""
import configparser
import os
import re
import shutil
import sys
import time

CONF = """ClusterName=lab
SlurmctldHost=node001
SlurmUser=slurm
AuthType=auth/munge
CredType=cred/munge
StateSaveLocation=/var/spool/slurmctld
SlurmdSpoolDir=/var/spool/slurmd
SlurmctldPidFile=/run/slurm/slurmctld.pid
SlurmdPidFile=/run/slurm/slurmd.pid
SlurmctldLogFile=/var/log/slurm/slurmctld.log
SlurmdLogFile=/var/log/slurm/slurmd.log
# no control groups: all hosts would use the same path
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SwitchType=switch/none
MpiDefault=none
# believe this file about CPUs and memory, not the machine
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu
# jobs start at once
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,bf_interval=1
ReturnToService=2
SlurmdTimeout=20
KillWait=3
MinJobAge=600
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
"""
PARTITIONS = (("dgx", 3, 8), ("gpu", 2, 2), ("compute", 1000, 0))  # hosts, GPUs of each

# gres.conf wants device files; nothing opens them, so they are /dev/null by other names
NODE_UP = """set -e
[ ! -s /run/slurm/slurmd.pid ] || exit 0
setpriv --reuid munge --regid munge --clear-groups munged --num-threads=2
mkdir -p -m 1777 /run/lab/pmix
for i in 0 1 2 3 4 5 6 7; do [ -e /run/lab/nvidia$i ] || mknod -m 666 /run/lab/nvidia$i c 1 3; done
mkdir -p /var/spool/slurmd /var/spool/slurmctld; chown slurm: /var/spool/slurmctld
[ $(hostname) != node001 ] || slurmctld"""

# the daemons and what is left of job steps; only this host's processes are visible here
NODE_DOWN = """named() { for p in /proc/[0-9]*; do case $(cat $p/comm 2>/dev/null) in
slurmd|slurmctld|slurmstepd|munged) echo ${p#/proc/} ;; esac; done; }
kill $(named) 2>/dev/null
for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do [ -n "$(named)" ] || break; sleep 0.1; done
kill -KILL $(named) 2>/dev/null
rm -rf /run/slurm/* /run/munge/* /var/spool/slurmd /var/spool/slurmctld /run/lab/nvidia* /run/lab/pmix; :"""


def node_lines(first, last, gpus, cpus, memory, feature):
    """Lines of slurm.conf and gres.conf, and how the hosts are called there."""
    hosts, sockets = f"node[{first:03}-{last:03}]", 2 - cpus % 2
    line = (f"NodeName={hosts} CPUs={cpus} Boards=1 SocketsPerBoard={sockets} "
            f"CoresPerSocket={cpus // sockets} ThreadsPerCore=1 RealMemory={memory} "
            f"{f'Gres=gpu:{gpus}' if gpus else ''} Feature={feature} State=UNKNOWN\n")
    gres = f"NodeName={hosts} Name=gpu File=/run/lab/nvidia[0-{gpus - 1}]\n" if gpus else ""
    return line, gres, hosts


def usual(size):
    nodes, gres, first = "", "", 1
    for name, count, gpus in PARTITIONS:
        last = min(first + count - 1, size)
        if first > last:
            break
        line, devices, hosts = node_lines(first, last, gpus, int(os.environ.get("LAB_SLURM_CPUS", "40")),
                                          190000, name)
        nodes += line + f"PartitionName={name} Nodes={hosts} MaxTime=INFINITE State=UP\n"
        gres += devices
        first = last + 1
    return nodes + "PartitionName=all Default=YES Nodes=ALL MaxTime=INFINITE State=UP\n", gres


def of_site(path, size):
    """Partitions of one kind of node share hosts, as many as the lab has for each kind."""
    site = configparser.ConfigParser(interpolation=None, inline_comment_prefixes=(";",))
    site.read(path, encoding="utf-8")
    partitions = {name.split(" ", 1)[1]: site[name] for name in site.sections() if name != "site"}
    kinds = {}
    for name, p in partitions.items():
        kinds.setdefault((int(p.get("gpus", 0)), int(p.get("cores", 8))), []).append(name)
    nodes, gres, each = "", "", size // len(kinds)
    for i, ((gpus, cores), names) in enumerate(kinds.items()):
        line, devices, hosts = node_lines(1 + i * each, (i + 1) * each, gpus, cores, 4000000, f"kind{i}")
        nodes, gres = nodes + line, gres + devices
        for name in names:
            p = partitions[name]
            amount, unit = re.match(r"(\d+)([dh]?)", p.get("time", "0")).groups()
            minutes = int(amount) * {"d": 24 * 60, "h": 60, "": 0}[unit]
            memory = {"G": 1024, "T": 1 << 20}.get(p.get("memory", " ")[-1], 0)
            nodes += (f"PartitionName={name} Nodes={hosts} MaxTime={minutes or 'INFINITE'} "
                      f"MaxNodes={p.get('nodes', 'UNLIMITED')} MaxMemPerNode="
                      f"{int(float(p['memory'][:-1]) * memory) if memory else 'UNLIMITED'} State=UP\n")
    return nodes + "PartitionName=all Nodes=ALL MaxTime=INFINITE State=UP\n", gres


def configure(lab):
    etc, path = f"{lab.state}/etc/slurm", os.environ.get("LAB_SLURM_SITE")
    nodes, gres = of_site(path, lab.size()) if path else usual(lab.size())
    for path, text in (
            # a setting may not occur twice: LAB_SLURM_EXTRA replaces those of CONF
            ("slurm.conf", "".join(line for line in CONF.splitlines(True) if not any(
                x.split("=")[0] == line.split("=")[0] for x in extra()))
             + "\n".join(extra()) + "\n" + nodes),
            ("gres.conf", "AutoDetect=off\n" + gres),
            # /tmp is one for all hosts
            ("mpi.conf", "PMIxCliTmpDirBase=/run/lab/pmix\n"),
            ("plugstack.conf", "include /etc/slurm/plugstack.conf.d/*.conf\n"),
            ("plugstack.conf.d/00-none.conf", "# the pattern has to match something\n")):
        with open(f"{etc}/{path}", "w", encoding="ascii") as f:
            f.write(text)


def extra():
    return os.environ.get("LAB_SLURM_EXTRA", "").splitlines()


def up(lab):
    if not shutil.which("slurmctld"):
        sys.exit("lab: slurmctld is not installed (Debian: slurm-wlm munge)")
    began, key = time.monotonic(), f"{lab.state}/etc/munge/munge.key"
    if not os.path.exists(key):
        with open(os.open(key, os.O_WRONLY | os.O_CREAT, 0o400), "wb") as f:
            f.write(os.urandom(128))
        shutil.chown(key, "munge", "munge")
    configure(lab)
    hosts = lab.hosts(running=True)
    # the controller first: a slurmd that finds none waits before it tries again
    lab.everywhere(hosts, NODE_UP)
    lab.everywhere(hosts, "[ -s /run/slurm/slurmd.pid ] || slurmd")

    def idle():
        said = hosts[0].run("sinfo", "-h", "-N", "-p", "all", "-t", "idle,mix,alloc", "-o", "%N",
                            check=False)
        return len(set(said.split())) == len(hosts)
    lab.wait("idle nodes of Slurm", idle)
    print(f"lab: slurm on {len(hosts)} hosts, {time.monotonic() - began:.1f} s", file=sys.stderr)


def down(lab):
    hosts = lab.hosts(running=True)
    hosts[0].script("timeout 10 scancel -u root,alice 2>/dev/null; :")
    lab.everywhere(hosts, NODE_DOWN)
