"""An ssh that runs everything here, for tests of launches over hosts."""

import os
import signal
import time

from launch import LaunchTest, marked, read_proc

# Understands what ddprun says to ssh; the host's name says how it behaves.
FAKE_SSH = r"""#!/bin/sh
while [ "$1" != -- ]; do shift; done
host=$2 command=$3
echo "${FAKE_HOST:-launcher} $host" >>"$FAKE_LOG"
[ -z "$FAKE_ONEWAY" ] || [ -z "$FAKE_HOST" ] || {
    echo "x@$host: Permission denied (publickey)." >&2; exit 255; }
case $host in
unknown*) echo "ssh: Could not resolve hostname $host: Name or service not known" >&2; exit 255;;
refused*) echo "ssh: connect to host $host port 22: Connection refused" >&2; exit 255;;
nokey*) echo "x@$host: Permission denied (publickey)." >&2; exit 255;;
noagent*) exec sh -c "exec /nonesuch/ddprun-agent";;
silent*) exec sleep 1000;;
slow*) until [ -e "$FAKE_LOG.go" ]; do sleep 0.1; done;;
late*) trap '' TERM; sleep 4;; # until failures are reported
flaky*) [ -e "$FAKE_LOG.$host" ] || { : >"$FAKE_LOG.$host"
    echo "kex_exchange_identification: read: Connection reset by peer" >&2; exit 255; };;
nocall*) exec "$FAKE_LOG.nocall" "$command";;
deaf*) printf 'ddprun-agent 1\nend\n' | sh -c "$command"; exit $?;;
esac
unset SSH_CONNECTION
export CUDA_VISIBLE_DEVICES="$FAKE_GPUS"
FAKE_HOST=$host exec sh -c "$command"
"""


class SshTest(LaunchTest):
    def setUp(self):
        super().setUp()
        self.ssh = self.write("ssh", FAKE_SSH, 0o755)
        self.log = self.path("log")

    def hosts(self, hosts, *args, script="echo $RANK $WORLD_SIZE $NODE_RANK", **how):
        env = {"FAKE_LOG": self.log, **how.pop("env", {})}
        return self.run_to_end(
            "--ssh", self.ssh, "-H", hosts, *args, "sh", "-c", script, env=env, **how
        )

    def start_hosts(self, hosts, script, *args):
        return self.start(
            "--ssh", self.ssh, "-H", hosts, *args, "sh", "-c", script, env={"FAKE_LOG": self.log}
        )

    def started(self):
        with open(self.log, encoding="utf-8") as f:
            return [tuple(line.split()) for line in f]

    def agents(self):
        return [
            pid for pid in marked(self.mark) if read_proc(pid, "comm").strip() == b"ddprun-agent"
        ]

    def kill_agent(self, host):
        for pid in self.agents():
            if f"FAKE_HOST={host}\0".encode() in read_proc(pid, "environ"):
                os.kill(pid, signal.SIGKILL)

    def pause(self, pid, seconds):
        began = time.monotonic()
        os.kill(pid, signal.SIGSTOP)
        time.sleep(seconds)
        os.kill(pid, signal.SIGCONT)
        return time.monotonic() - began
