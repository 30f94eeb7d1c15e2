"""lab slurm up|down - Debian's Slurm: slurmctld on node001, munged and slurmd on every host.

Environment: LAB_SLURM_CPUS (40) each node claims, whatever the machine has; LAB_SLURM_EXTRA: more
lines of slurm.conf. Partitions: dgx (node001-003, 8 GPUs each), gpu (004-005, 2), compute (the
rest), and all. No accounting, no binding, no memory limits.
"""
import os
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
# no control groups: those of all hosts would have one name
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SwitchType=switch/none
MpiDefault=none
# CPUs and memory are what stands here, not what the machine has
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

# gres.conf takes devices for GPUs, which nobody opens: /dev/null by other names
NODE_UP = """set -e
[ ! -s /run/slurm/slurmd.pid ] || exit 0
setpriv --reuid munge --regid munge --clear-groups munged --num-threads=2
mkdir -p -m 1777 /run/lab/pmix
for i in 0 1 2 3 4 5 6 7; do [ -e /run/lab/nvidia$i ] || mknod -m 666 /run/lab/nvidia$i c 1 3; done
mkdir -p /var/spool/slurmd /var/spool/slurmctld; chown slurm: /var/spool/slurmctld
[ $(hostname) != node001 ] || slurmctld"""

# the daemons, and what they left of job steps: all processes here are this host's
NODE_DOWN = """named() { for p in /proc/[0-9]*; do case $(cat $p/comm 2>/dev/null) in
slurmd|slurmctld|slurmstepd|munged) echo ${p#/proc/} ;; esac; done; }
kill $(named) 2>/dev/null
for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do [ -n "$(named)" ] || break; sleep 0.1; done
kill -KILL $(named) 2>/dev/null
rm -rf /run/slurm/* /run/munge/* /var/spool/slurmd /var/spool/slurmctld /run/lab/nvidia* /run/lab/pmix; :"""


def configure(lab):
    etc, cpus = f"{lab.state}/etc/slurm", int(os.environ.get("LAB_SLURM_CPUS", "40"))
    nodes, gres, first = "", "AutoDetect=off\n", 1
    for name, count, gpus in PARTITIONS:
        last = min(first + count - 1, lab.size())
        if first > last:
            break
        hosts = f"node[{first:03}-{last:03}]"
        nodes += (f"NodeName={hosts} CPUs={cpus} Boards=1 SocketsPerBoard=2 CoresPerSocket={cpus // 2} "
                  f"ThreadsPerCore=1 RealMemory=190000 {f'Gres=gpu:{gpus}' if gpus else ''} "
                  f"Feature={name} State=UNKNOWN\n"
                  f"PartitionName={name} Nodes={hosts} MaxTime=INFINITE State=UP\n")
        if gpus:
            gres += f"NodeName={hosts} Name=gpu File=/run/lab/nvidia[0-{gpus - 1}]\n"
        first = last + 1
    nodes += "PartitionName=all Default=YES Nodes=ALL MaxTime=INFINITE State=UP\n"
    for path, text in (
            # what comes last counts twice in Slurm: a setting of CONF that is given again goes
            ("slurm.conf", "".join(line for line in CONF.splitlines(True) if not any(
                x.split("=")[0] == line.split("=")[0] for x in extra()))
             + "\n".join(extra()) + "\n" + nodes),
            ("gres.conf", gres),
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
