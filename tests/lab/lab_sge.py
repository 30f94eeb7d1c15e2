"""lab sge up|down - Debian's Grid Engine: sge_qmaster on node001, which submits; sge_execd on the
others, 8 slots and 4 GPUs (a consumable, `-l gpu=`) each. Parallel environments: mpi (round robin),
mpi_fill (fill up), mpi_4 (4 on each host), smp (one host).
"""
import os
import re
import shutil
import sys
import time

SLOTS, GPUS = 8, 4
PES = {"mpi": "$round_robin", "mpi_fill": "$fill_up", "mpi_4": "4", "smp": "$pe_slots"}
# changes to the configuration that Grid Engine starts with
GLOBAL = {
    "execd_spool_dir": "/var/spool/gridengine/execd", "mailer": "/bin/true",
    "min_uid": "0", "min_gid": "0", "load_report_time": "00:00:02", "max_unheard": "00:00:20",
    "enforce_user": "auto", "shell_start_mode": "unix_behavior",
    "reporting_params": "accounting=true reporting=false flush_time=00:00:01 joblog=false "
                        "sharelog=00:00:00",
    **dict.fromkeys(("qlogin_command", "qlogin_daemon", "rlogin_command", "rlogin_daemon",
                     "rsh_command", "rsh_daemon"), "builtin")}
SCHEDULER = {"schedule_interval": "0:0:2", "flush_submit_sec": "1", "flush_finish_sec": "1",
             "load_formula": "slots", "job_load_adjustments": "NONE"}
# no load thresholds: all hosts are on one machine. /tmp is one for all, and each host would
# make and delete /tmp/JOB.TASK.QUEUE
QUEUE = {"qname": "all.q", "hostlist": "@allhosts", "load_thresholds": "NONE",
         "pe_list": " ".join(PES), "rerun": "FALSE", "slots": str(SLOTS), "tmpdir": "/run/lab/tmp",
         "shell": "/bin/bash", "shell_start_mode": "unix_behavior", "notify": "00:00:05"}
PE = {"slots": "9999", "control_slaves": "TRUE", "job_is_first_task": "FALSE",
      "accounting_summary": "FALSE", "start_proc_args": "NONE", "stop_proc_args": "NONE",
      "user_lists": "NONE", "xuser_lists": "NONE", "urgency_slots": "min", "qsort_args": "NONE"}

MASTER_UP = """set -e
export SGE_ROOT=/var/lib/gridengine SGE_CELL=default
spool=/var/spool/gridengine; common=$SGE_ROOT/$SGE_CELL/common
mkdir -p $spool/qmaster/job_scripts $spool/spooldb $common
install -m 644 /usr/share/gridengine/default-bootstrap $common/bootstrap
hostname >$common/act_qmaster
chown -R sgeadmin: $spool $SGE_ROOT/$SGE_CELL
setpriv --reuid sgeadmin --regid sgeadmin --clear-groups /usr/share/gridengine/scripts/init_cluster \
    $SGE_ROOT $SGE_CELL $spool/spooldb sgeadmin >/var/log/sge.log 2>&1
sge_qmaster </dev/null >>/var/log/sge.log 2>&1"""
EXECD_UP = """mkdir -p /var/spool/gridengine/execd; chown -R sgeadmin: /var/spool/gridengine
export SGE_ROOT=/var/lib/gridengine SGE_CELL=default SGE_EXECD_PIDFILE=/run/gridengine/execd.pid
[ -s $SGE_EXECD_PIDFILE ] || sge_execd </dev/null >/var/log/sge.log 2>&1"""
NODE_DOWN = """named() { for p in /proc/[0-9]*; do case $(cat $p/comm 2>/dev/null) in
sge_*) echo ${p#/proc/} ;; esac; done; }
kill $(named) 2>/dev/null
for i in 1 2 3 4 5 6 7 8 9 10; do [ -n "$(named)" ] || break; sleep 0.1; done
kill -KILL $(named) 2>/dev/null
rm -rf /var/spool/gridengine/* /run/gridengine/*; :"""


def changed(text, changes):
    """`text` as qconf shows it, one setting a line, with other values."""
    lines = re.sub(r"\\\n\s*", " ", text).splitlines()
    lines = [line for line in lines if line.split() and line.split()[0] not in changes]
    return "\n".join([*lines, *(f"{k} {v}" for k, v in changes.items())]) + "\n"


class Master:
    def __init__(self, host, folder):
        self.host, self.folder = host, folder
        os.makedirs(folder, exist_ok=True)

    def qconf(self, *args, check=True):
        return self.host.run("setpriv", "--reuid", "sgeadmin", "--regid", "sgeadmin",
                             "--clear-groups", "qconf", *args, check=check)

    def put(self, verb, name, text):
        with open(f"{self.folder}/{name}", "w", encoding="ascii") as f:
            f.write(text)
        self.qconf(verb, f"{self.folder}/{name}")


def configure(master, names):
    """Configure a new cell. One qconf takes 70 ms, so lists go in one call."""
    master.qconf("-as", "node001")
    master.qconf("-ah", ",".join(names))
    master.put("-Mconf", "global", changed(master.qconf("-sconf"), GLOBAL))
    master.put("-Msconf", "scheduler", changed(master.qconf("-ssconf"), SCHEDULER))
    master.put("-Mc", "complex", re.sub("(?m)^#.*\n", "", master.qconf("-sc"))
               + "gpu gpu INT <= YES YES 0 0\n")
    master.put("-Ahgrp", "hosts", f"group_name @allhosts\nhostlist {' '.join(names)}\n")
    for name, rule in PES.items():
        master.put("-Ap", name, changed("", {"pe_name": name, **PE, "allocation_rule": rule}))
    master.put("-Aq", "queue", changed(master.qconf("-sq"), QUEUE))


def up(lab):
    if not shutil.which("sge_qmaster"):
        sys.exit("lab: sge_qmaster is not installed (Debian: gridengine-master gridengine-exec "
                 "gridengine-client)")
    began, hosts = time.monotonic(), lab.hosts(running=True)
    if hosts[0].name != "node001" or len(hosts) < 2:
        sys.exit("lab: Grid Engine takes node001 and another host")
    master, workers = Master(hosts[0], f"{lab.state}/sge/lab"), hosts[1:]
    names = [h.name for h in workers]
    if not hosts[0].script("[ ! -e /var/spool/gridengine/spooldb/sge ] || echo there"):
        hosts[0].script(MASTER_UP)
        lab.wait("an answer of sge_qmaster",
                 lambda: "error" not in hosts[0].script("qconf -sh || echo error"), 30)
        configure(master, names)
    lab.everywhere(workers, EXECD_UP)

    def reported():  # a host that has reported shows a load instead of '-'
        lines = [x.split() for x in hosts[0].run("qhost", check=False).splitlines()]
        return sum(x[0].startswith("node") and x[3] != "-" for x in lines if len(x) > 3) >= len(names)
    lab.wait("the load of all execution hosts", reported)
    master.qconf("-rattr", "exechost", "complex_values", f"gpu={GPUS}", *names)
    print(f"lab: Grid Engine on {len(names)} hosts, {time.monotonic() - began:.1f} s",
          file=sys.stderr)


def down(lab):
    hosts = lab.hosts(running=True)
    hosts[0].script("timeout 10 qdel -u '*' >/dev/null 2>&1; :")
    lab.everywhere(hosts, NODE_DOWN)
    shutil.rmtree(f"{lab.state}/sge/common")
    os.mkdir(f"{lab.state}/sge/common")
