"""Hang reports of a job on several hosts. A module at the path of torch's stands in for PyTorch."""

import os
import re
import shutil
import signal
import sys
import unittest

import hosts
from hosts import LabTest, main, node
from launch import wait_until

setUpModule = hosts.set_up
tearDownModule = hosts.tear_down

PYTHON = os.path.realpath("/usr/bin/python3" if os.path.exists("/usr/bin/python3")
                          else sys.executable)
PROGRAM = """\
import os, sys, threading, time
from torch.distributed import distributed_c10d as dist

def load():
    if len(sys.argv) > 1:
        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
        open(sys.argv[1])
    time.sleep(60)

if int(os.environ["RANK"]) == 3:
    print("up", flush=True)
    load()
dist.all_reduce()
"""
SEND = """\
import os, socket, time
if os.environ["RANK"] == "1":
    server = socket.create_server(("", 0))
    with open("port.new", "w") as f:
        f.write(str(server.getsockname()[1]))
    os.rename("port.new", "port")
    peer = server.accept()[0]
else:
    while not os.path.exists("port"):
        time.sleep(0.05)
    peer = socket.create_connection(("node003", int(open("port").read())))
    peer.sendall(bytes(30000))
time.sleep(60)
"""
CONNECT = """\
import ctypes, os, socket, time
if os.environ["RANK"] == "0":
    peer = socket.socket()
    peer.setblocking(False)
    peer.connect_ex(("10.77.0.3", 9))
    ctypes.CDLL(None).poll(ctypes.byref(ctypes.c_uint64(4 << 32 | peer.fileno())), 1, -1)
    peer.close()
time.sleep(60)
"""


class Hangs(LabTest):
    def begin(self, *numbers, args=(), **how):
        for folder in ("torch", "torch/distributed"):
            os.mkdir(self.path(folder))
            self.write(f"{folder}/__init__.py", "")
        self.write("torch/distributed/distributed_c10d.py",
                   "import time\ndef all_reduce():\n    print('up', flush=True)\n    time.sleep(60)\n")
        script = self.write("train.py", PROGRAM)
        job = self.start("-H", self.hosts(*numbers, slots=2), PYTHON, "-u", script, *args,
                         cwd=self.folder.name, **how)
        self.assertTrue(wait_until(lambda: job.out.count("up") == 2 * len(numbers)), job.err)
        hosts.launch.wait_until_settled(self.mark)
        return job

    def report(self, job):
        job.signal(signal.SIGQUIT)
        wait_until(lambda: "the whole report is in" in job.err)
        self.end_by(job, signal.SIGTERM, 143)
        return job.err

    def test_a_rank_of_another_host(self):
        err = self.report(self.begin(1, 2, 3))
        self.assertIn("ddprun: hang: ranks 0-2,4-5 wait in all_reduce at train.py:13; rank 3 on "
                      "node002 has not arrived: it is in load() at train.py:8 (sleeping)", err)

    @unittest.skipUnless(os.path.exists("/dev/fuse"), "no FUSE; needs system with /dev/fuse")
    def test_a_rank_that_waits_for_a_file_server(self):
        """Its main thread takes no signal; another one writes its stack."""
        work = self.path("work")
        os.mkdir(work)
        self.addCleanup(self.heal, 2)
        self.fault(2, "slow", work, "0")
        self.fault(2, "stall", work)
        job = self.begin(1, 2, args=(self.path("work", "data"),))
        err = self.report(job)
        self.assertIn("rank 3 on node002 has not arrived: it is in load() at train.py:7", err)

    def straggler_group(self):
        """Where the user can read it, also if the clone is in root's home."""
        return shutil.copy(os.environ["STRAGGLER_GROUP"], self.folder.name)

    def test_a_straggler_on_another_host(self):
        """Clocks of hosts differ; the launcher compares them."""
        job = self.start("-H", self.hosts(1, 2, slots=2), "--stragglers",
                         self.straggler_group(), "late", 300, 300, 60)
        wait_until(lambda: "straggler" in job.err or job.process.poll() is not None, 150)
        self.assertRegex(job.err, "^ddprun: straggler: rank 2 on node002 came late to ")
        job.signal(signal.SIGTERM)
        job.wait()

    def test_a_host_whose_ranks_come_late_together(self):
        events = self.path("events")
        job = self.start("-H", self.hosts(1, 2, 3, slots=2), "--stragglers", "--events", events,
                         self.straggler_group(), "host", 300, 300, 100)
        named = r"straggler: ranks 2-3, all on node002, come late: rank [23] on node002 came late to "
        wait_until(lambda: re.search(named, job.err) or job.process.poll() is not None, 150)
        self.assertRegex(job.err, named)
        self.assertNotRegex(job.err, "rank [0145] on ")
        with open(events, encoding="utf-8") as f:
            self.assertIn('"ranks":[2,3]', f.read().replace(" ", ""))
        job.signal(signal.SIGTERM)
        job.wait()

    def unanswered(self, mtu, state, script):
        """The report on ranks on hosts 2 and 3, when packets from 2 to 3 are lost and the kernel has
        sent one of a connection in `state` four times more."""
        self.addCleanup(self.heal, 3)
        self.fault(3, "mtu", mtu, node(2))
        job = self.start("-H", self.hosts(2, 3), PYTHON, self.write("rank.py", script), cwd=self.folder.name)
        again = rf":\w+ {state} \w+:\w+ \w+:\w+ 0000000[4-9] "
        self.assertTrue(wait_until(lambda: re.search(
            again, hosts.LAB_HOSTS("exec", node(2), "cat", "/proc/net/tcp"))), job.err)
        return self.report(job)

    def test_a_way_that_loses_large_packets(self):
        self.assertRegex(self.unanswered("1000", "01", SEND),
                         r"note: rank 0 on node002 gets no answer from 10\.77\.0\.3:\d+ \(rank 1\), "
                         r"which has not confirmed what it sent \([4-9] retransmits\): a firewall, or an MTU")

    def test_a_way_that_loses_what_connects(self):
        """And connect() is ended by the signal for the stacks."""
        self.assertRegex(self.unanswered("60", "02", CONNECT),
                         r"note: rank 0 on node002 gets no answer from 10\.77\.0\.3:9, to which it connects "
                         r"\([4-9] retransmits\): a firewall\?")

    def test_a_host_that_does_not_answer(self):
        job = self.begin(1, 2, 3)
        agents = [pid for pid, line in self.on_host(2).items() if "ddprun-agent" in line]
        for pid in agents:
            os.kill(pid, signal.SIGSTOP)
        job.signal(signal.SIGQUIT)
        wait_until(lambda: "the whole report is in" in job.err)
        for pid in agents:
            os.kill(pid, signal.SIGCONT)
        self.assertIn("ddprun: hang: ranks 0-1,4-5 wait in all_reduce at train.py:13; ranks 2-3 on "
                      "node002 have not answered", job.err)
        self.end_by(job, signal.SIGTERM, 143)


if __name__ == "__main__":
    main()
