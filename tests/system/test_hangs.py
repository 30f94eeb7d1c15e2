"""Hang reports of Python ranks: the right rank, file and line, whatever it does, and nothing of it
while nothing hangs. A module at the path of torch's stands in for PyTorch."""

import fcntl
import json
import os
import pathlib
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import launch
from launch import needs_gpus

C10D = """\
import time
def all_reduce():
    print("up", flush=True)
    time.sleep(60)
"""
# PyTorch's control plane, which has not begun to listen when the program ends
SERVED = """\
import ctypes, socket, sys, threading, types
class Server:
    def __init__(self, path):
        self.socket, self.listens = socket.socket(socket.AF_UNIX), False
        self.socket.bind(path)
        self.socket.listen()
        threading.Thread(target=self.run, daemon=True).start()
    def run(self):
        asked, _ = self.socket.accept()
        self.listens = True
        asked.close()
    def shutdown(self):
        print("listens:", self.listens)
sys.modules["torch._C._distributed_c10d"] = types.SimpleNamespace(_WorkerServer=Server)
ctypes.CDLL, ctypes.c_int.in_dll = str, lambda library, name: ctypes.c_int()
from torch.distributed import distributed_c10d
distributed_c10d._new_process_group_helper = lambda *args: None
from torch.distributed import rpc
distributed_c10d._new_process_group_helper(1, 0, [0])
"""
PROGRAM = """\
import ctypes, os, signal, sys, time
from torch.distributed import distributed_c10d as dist

def sleep():
    time.sleep(60)

def loop():
    while True: pass

def gil():
    ctypes.PyDLL(None).sleep(60)

def stop():
    os.kill(os.getpid(), signal.SIGSTOP)

def closed():
    os.closerange(3, 70)
    with open(os.path.join(os.path.dirname(__file__), "own"), "w") as f:
        os.dup2(f.fileno(), 62)
        time.sleep(60)

def deaf():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    gil()

if int(os.environ["RANK"]) == 1:
    print("up", flush=True)
    globals()[sys.argv[1]]()
dist.all_reduce()
"""

# as NCCL's RAS subsystem: src/ras/client_support.cc of NCCL
NCCL = """\
import os, socket, sys, threading
s = socket.socket()
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
host, port = os.environ["NCCL_RAS_ADDR"].split(":")
s.bind((host, int(port)))
s.listen()

def serve():
    peer = s.accept()[0]
    for line in peer.makefile():
        word = line.strip().lower()
        if word.startswith("client protocol "):
            peer.sendall(b"SERVER PROTOCOL 2\\n")
        elif word.startswith("timeout "):
            float(word.split()[1])
            peer.sendall(b"OK\\n")
        elif word == "verbose status":
            peer.sendall(b"NCCL version 2.28.9 compiled with CUDA 13.0\\n\\nJob summary\\n")
            peer.sendall(b"Communicators... (0.00s)\\n")
            peer.close()
            return
        else:
            peer.sendall(b"ERROR: Unknown command\\n")

if sys.argv[1] == "answers":
    threading.Thread(target=serve, daemon=True).start()
print("up", port, flush=True)
threading.Event().wait()
"""

SILENT = """\
import os, signal, socket, struct, sys, time
if os.environ["TORCHELASTIC_RESTART_COUNT"] != "0":
    time.sleep(60)
stem = f"{os.environ['DDPRUN_DIAGNOSE']}.{os.getpid()}"
open(stem + ".calls", "w").close()
s = socket.socket(socket.AF_UNIX)
s.bind(stem + ".sock")
s.listen()
print("up")
peer = s.accept()[0].getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
os.kill(struct.unpack("3i", peer)[0], signal.SIGSTOP)
open("asked", "w").close()
sys.exit(1)
"""

# of 8 that run at a time; the argument is a file of each
DEBUGGER = """\
#!/bin/sh
touch "$0.$$"
while [ $(ls "$0".* | wc -l) -lt 8 ]; do sleep 0.05; done
printf 'TID 1:\\n#0  0x01 wait - /lib/libc.so.6\\n#1  0x02 load - /x/train\\n    /x/data.c:12:3\\n'
"""

# rank 0 is within a call of MPI, as mpi4py makes it: without a frame in Python
MPI = """\
import mmap, os, time
with open("libmpi.so.40", "rb") as f:
    library = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)

def load():
    time.sleep(60)

print("up", flush=True)
if os.environ["RANK"] == "1":
    load()
time.sleep(60)
"""
IN_MPI = """\
#!/bin/sh
grep -qzx RANK=0 "/proc/$5/environ" && call="#0  0x01 PMPI_Barrier - /opt/lib/libmpi.so.40\n"
printf "TID $5:\n$call#1  0x02 main - /usr/bin/python3\n"
"""

# the argument is a file of each that runs; how many are seen
LARGE = """\
#!/bin/sh
touch "$0.$$"
sleep 0.2
ls "$0".* | wc -l >>"${0%/*}/seen"
rm "$0.$$"
"""

# ranks 0 and 2 wait for rank 1 no longer than the timeout of their group
DEADLINE = """\
import os, sys, time
from torch.distributed import distributed_c10d as dist

def load():
    time.sleep(60)

print("up", flush=True)
if os.environ["RANK"] == "1":
    open("late", "w").close()
    load()
while not os.path.exists("late"):
    time.sleep(0.05)
time.sleep(float(sys.argv[1]))
sys.exit("RuntimeError: Timed out waiting 1800000ms for recv operation to complete")
"""

# as py-spy 0.4.1, the newest thread first
PY_SPY = """\
#!/bin/sh
[ "$1 $3" = "dump --json" ] || exit 1
echo '[{"pid": 9, "thread_name": "Thread-1 (bg)", "os_thread_id": 10, "frames": [
  {"name": "bg", "filename": "/x/pool.py", "module": null, "short_filename": "pool.py", "line": 3}]},
 {"pid": 9, "thread_name": "MainThread", "os_thread_id": 9, "frames": [
  {"name": "load", "filename": "/x/data.py", "module": null, "short_filename": "data.py", "line": 10},
  {"name": "<module>", "filename": "/x/train.py", "module": null, "line": 29}]}]'
"""

# rank 1 sends to rank 0, which does not read; rank 0 sees an address of IPv4 in one of IPv6,
# and does not accept a second connection
CONNECTED = """\
import os, socket, time
if os.environ["RANK"] == "0":
    s = socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    with open("port.new", "w") as f:
        f.write(str(s.getsockname()[1]))
    os.rename("port.new", "port")
    peer = s.accept()[0]
else:
    while not os.path.exists("port"):
        time.sleep(0.01)
    peer = socket.create_connection(("127.0.0.1", int(open("port").read())))
    peer.sendall(b"hello")
    waits = socket.create_connection(peer.getpeername())
print("up", flush=True)
time.sleep(60)
"""


def line_of(text):
    return 1 + [line.strip() for line in PROGRAM.splitlines()].index(text)


WAITS = line_of("dist.all_reduce()")


class Hangs(launch.LaunchTest):
    def setUp(self):
        super().setUp()
        self.write("torch/__init__.py", "")
        self.write("torch/distributed/__init__.py", "")
        self.write("torch/distributed/distributed_c10d.py", C10D)
        self.program = self.write("train.py", PROGRAM)

    def launch(self, *args, np=3, **how):
        done = self.start("-np", np, *args, cwd=self.folder.name, **how)
        if not launch.wait_until(lambda: done.out.count("up") == np):
            self.fail(f"not up: {done.out!r} {done.err!r}")
        launch.wait_until_settled(self.mark)
        return done

    def hang(self, fault, *args):
        return self.launch(*args, "--no-preload", sys.executable, "-u", self.program, fault)

    def report(self, job):
        """Ask for a report; returns what is on stderr, and the JSON."""
        job.signal(signal.SIGQUIT)
        launch.wait_until(lambda: "the whole report is in" in job.err or job.process.poll())
        self.assertIn("the whole report is in", job.err)
        path, = pathlib.Path(self.folder.name).glob("ddprun-report-*/report.json")
        return job.err, json.loads(path.read_text())

    def end(self, job):
        self.end_by(job, signal.SIGTERM, 143)

    def check(self, fault, where):
        job = self.hang(fault)
        err, report = self.report(job)
        self.assertIn(f"ranks 0,2 wait in all_reduce at train.py:{WAITS}; rank 1 has not arrived: "
                      f"it is {where}", err)
        self.assertEqual(report["verdict"]["ranks"], [1])
        self.end(job)
        return report

    def test_a_rank_that_sleeps(self):
        report = self.check("sleep", f"in sleep() at train.py:{line_of('time.sleep(60)')} (sleeping)")
        self.assertEqual([r["rank"] for r in report["ranks"]], [0, 1, 2])
        frames = report["ranks"][1]["threads"][0]["frames"]
        self.assertEqual([f["function"] for f in frames], ["sleep", "<module>"])

    def test_a_rank_in_an_endless_loop(self):
        self.check("loop", f"in loop() at train.py:{line_of('while True: pass')} (running)")

    def test_a_rank_that_holds_the_gil(self):
        line = line_of("ctypes.PyDLL(None).sleep(60)")
        self.check("gil", f"in gil() at train.py:{line} (sleeping)")

    def test_a_rank_that_is_stopped(self):
        self.check("stop", "stopped by a signal")

    def test_descriptors_that_the_program_uses_are_not_written_to(self):
        job = self.hang("closed")
        self.report(job)
        self.assertEqual(pathlib.Path(self.path("own")).read_text(), "")
        self.end(job)

    def test_a_rank_that_has_exited(self):
        job = self.launch("--no-preload", "sh", "-c",
                          '[ $RANK = 1 ] && echo up && exit 0; exec "$@"', "sh", sys.executable, "-u",
                          self.program, "sleep")
        err, report = self.report(job)
        self.assertIn("rank 1 has exited with status 0", err)
        self.assertEqual(report["verdict"]["kind"], "exited")
        self.end(job)

    def debugger(self, name, text):
        self.write(f"bin/{name}", text, 0o755)
        return {"PATH": f"{self.path('bin')}:{os.environ['PATH']}"}

    def test_debuggers_run_at_the_same_time(self):
        """More of them than CPUs, as ranks that wait may use all CPU time."""
        env = self.debugger("eu-stack", DEBUGGER)
        job = self.launch("sh", "-c", "echo up; exec sleep 60", np=8, env=env)
        err, report = self.report(job)
        self.assertEqual([r["threads"][0]["frames"][1]["line"] for r in report["ranks"]], [12] * 8, err)
        self.end(job)

    def test_a_rank_of_python_in_a_call_of_mpi(self):
        env = self.debugger("eu-stack", IN_MPI)
        self.write("libmpi.so.40", "x")
        job = self.launch("--no-preload", sys.executable, self.write("mpi.py", MPI), np=2, env=env)
        err, report = self.report(job)
        self.assertIn("ddprun: hang: rank 0 waits in MPI_Barrier at mpi.py:11; rank 1 has not arrived: "
                      "it is in load() at mpi.py:6 (sleeping)", err)
        self.assertEqual(report["verdict"]["ranks"], [1])
        self.end(job)

    def test_the_large_debugger_runs_once_per_cpu(self):
        """Also if it is the second choice."""
        self.debugger("eu-stack", "#!/bin/sh\nexit 1\n")
        env = self.debugger("gdb", LARGE)
        np = os.cpu_count() + 2
        job = self.launch("sh", "-c", "echo up; exec sleep 60", np=np, env=env)
        self.report(job)
        seen = [int(n) for n in pathlib.Path(self.path("bin/seen")).read_text().split()]
        self.assertEqual(len(seen), np)
        self.assertLessEqual(max(seen), os.cpu_count())
        self.end(job)

    def test_py_spy_for_an_interpreter_that_ignores_its_environment(self):
        """And not for programs that are none."""
        self.debugger("eu-stack", DEBUGGER.replace("-lt 8", "-lt 1"))
        env = self.debugger("py-spy", PY_SPY)
        job = self.launch("--no-preload", "sh", "-c", 'echo up; [ $RANK = 0 ] && exec sleep 60; exec "$@"',
                          "sh", sys.executable, "-E", "-c", "import time; time.sleep(60)", np=2, env=env)
        report = self.report(job)[1]
        self.assertEqual([[[f["function"] for f in t["frames"]] for t in r["threads"]]
                          for r in report["ranks"]], [[["wait", "load"]], [["load", "<module>"], ["bg"]]])
        self.end(job)

    def test_to_whom_ranks_have_connections(self):
        self.write("connected.py", CONNECTED)
        job = self.launch("--no-preload", sys.executable, "connected.py", np=2)
        report = self.report(job)[1]
        self.end(job)
        zero, one = ([s for s in r["sockets"] if s.get("rank") is not None] for r in report["ranks"])
        self.assertEqual([(s["rank"], s["state"], s.get("unread")) for s in zero + one[:1]],
                         [(1, "established", 5), (0, "established", None)])
        self.assertEqual((zero[0]["local"], zero[0]["peer"]), (one[0]["peer"], one[0]["local"]))
        self.assertTrue(zero[0]["peer"].startswith("127.0.0.1:"), zero)
        path, = pathlib.Path(self.folder.name).glob("ddprun-report-*/report.txt")
        self.assertRegex(path.read_text(), r"  socket 127\.0\.0\.1:\d+ to 127\.0\.0\.1:\d+ \(rank 1\): "
                         r"established, 5 bytes unread\n")

    def test_an_agent_that_did_not_run(self):
        job = self.hang("sleep", "--verbose")
        agent, = (p for p in launch.marked(self.mark) if launch.read_proc(p, "comm") == b"ddp-agent\n")
        os.kill(agent, signal.SIGSTOP)
        time.sleep(3)
        os.kill(agent, signal.SIGCONT)
        self.assertTrue(launch.wait_until(lambda: "this process did not run for" in job.err), job.err)
        err, report = self.report(job)
        note = r"ddprun: note: the agent on \S+ did not run for (\d+\.\d) s: stopped, blocked, or without a CPU\n"
        seconds, = report["late"]["hosts"].values()
        self.assertLess(1, seconds)
        self.assertAlmostEqual(float(re.search(note, err)[1]), seconds, delta=0.06)
        path, = pathlib.Path(self.folder.name).glob("ddprun-report-*/report.txt")
        self.assertRegex(path.read_text(), note)
        self.end(job)

    @unittest.skipUnless(os.geteuid() == 0, "a /dev/shm of its own; needs root")
    def test_stacks_where_dev_shm_is_full(self):
        full = 'mount -t tmpfs -o size=16k none /dev/shm; cat /dev/zero 2>/dev/null >/dev/shm/x; exec "$0" "$@"'
        job = self.launch("--no-preload", sys.executable, "-u", self.program, "sleep",
                          command=["unshare", "-m", "sh", "-c", full, launch.DDPRUN])
        self.assertIn("rank 1 has not arrived: it is in sleep() at train.py", self.report(job)[0])
        self.end(job)

    def test_a_job_between_two_attempts_goes_on(self):
        job = self.start("--max-restarts", 1, "--restart-delay", "2s", "sh", "-c",
                         "[ $TORCHELASTIC_RESTART_COUNT = 1 ]")
        self.wait_for(job, "the next attempt begins", "err")
        job.signal(signal.SIGQUIT)
        self.assertEqual(job.wait(), 0)
        self.assertIn("ddprun: warning: no report on the job: its ranks are not running\n", job.err)

    def test_without_descriptors(self):
        job = self.hang("sleep")
        agent = launch.parent_of(next(pid for pid, command in launch.marked(self.mark).items()
                                      if command.startswith(sys.executable)))
        for pid, why in ((job.process.pid, "no report: cannot hold the answers: "),
                         (agent, "no report of the ranks here: cannot make a pipe: ")):
            usual = resource.prlimit(pid, resource.RLIMIT_NOFILE)
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, usual[1]))
            job.signal(signal.SIGQUIT)
            self.wait_for(job, f"warning: {why}Too many open files; see 'ulimit -n'\n", "err")
            resource.prlimit(pid, resource.RLIMIT_NOFILE, usual)
        self.wait_for(job, "ranks 0-2 have not answered", "err")
        self.end(job)

    def test_a_request_from_another_process(self):
        job = self.hang("sleep")
        done = subprocess.run([launch.DDPRUN, "--report-on", str(job.process.pid)], timeout=100,
                              capture_output=True, text=True, check=False)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn("ddprun: hang: ranks 0,2 wait in all_reduce", done.stdout)
        self.end(job)
        for option in "--report-on", "--report_on", "--top":
            done = subprocess.run([launch.DDPRUN, option, str(job.process.pid)], timeout=100,
                                  capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 2)
            self.assertIn("no running job", done.stderr)

    def test_a_request_in_the_first_moments(self):
        """The job's socket is made some ms after its start."""
        job = self.start("-np", 1, "sleep", 60, cwd=self.folder.name)
        done = subprocess.run([launch.DDPRUN, "--report-on", str(job.process.pid)], timeout=100,
                              capture_output=True, text=True, check=False)
        self.assertNotIn("no running job", done.stderr)
        self.end(job)

    def test_a_request_that_a_restart_overtakes(self):
        """The agent's answer is held up: the rank stops the process that collects it."""
        self.write("silent.py", SILENT)
        job = self.launch("--no-preload", "--max-restarts", 1, sys.executable, "-u", "silent.py", np=1)
        with subprocess.Popen([launch.DDPRUN, "--report-on", str(job.process.pid)],
                              stderr=subprocess.PIPE, text=True) as asks:
            said = asks.communicate(timeout=launch.DEADLINE)[1]
        self.assertTrue(os.path.exists(self.path("asked")), (asks.returncode, said))
        self.end(job)
        self.assertEqual((asks.returncode, said), (1, "ddprun: its ranks are not running\n"))

    def hang_of_libddpgroup(self, *what):
        job = self.start("-np", 3, "--hang-after", "1s", "--on-hang", "stop", os.environ["HANG_GROUP"], *what,
                         cwd=self.folder.name)
        job.wait()
        self.assert_ended(job, 124)
        return job.err

    def test_ranks_of_libddpgroup_after_a_time_and_stop(self):
        said = self.hang_of_libddpgroup()
        self.assertRegex(said, r"ddprun: hang: 2 of 3 ranks have waited \d+ s in all_reduce #4 of "
                         r"the default group \(1,000 x f32\)( at hang_group.c:\d+)?; rank 1 has not "
                         r"arrived: it is ")
        self.assertIn("the job hangs", said)

    def test_one_that_does_not_join_libddpgroup(self):
        self.assertRegex(self.hang_of_libddpgroup("init"),
                         r"ddprun: hang: 2 of 3 ranks have waited \d+ s in ddp_group_init #1 of "
                         r"the default group( at hang_group.c:\d+)?; rank 1 has not arrived: it is ")

    def test_ranks_of_libddpgroup_that_wait_for_messages(self):
        self.assertRegex(self.hang_of_libddpgroup("message"),
                         r"ddprun: hang: ranks 0-2 wait for each other: rank 0 has waited \d+ s in recv for "
                         r"rank 2 \(tag 7\)( at hang_group.c:\d+)?; rank 2 has waited \d+ s in recv for rank 1")

    def test_a_stop_is_no_part_of_the_time(self):
        """By Ctrl-Z, for longer than --hang-after; heartbeats measure it to within a second."""
        job = self.launch("--hang-after", "4s", "--on-hang", "stop", os.environ["HANG_GROUP"])
        job.signal(signal.SIGTSTP)
        launch.wait_until(lambda: launch.state_of(job.process.pid) == "T")
        time.sleep(6)
        job.signal(signal.SIGCONT)
        job.wait()
        self.assert_ended(job, 124)
        self.assertGreaterEqual(job.seconds, 4 + 6 - 1)
        self.assertGreaterEqual(int(re.search(r"have waited (\d+) s", job.err)[1]), 4 - 1)

    def test_a_restart_after_a_hang(self):
        job = self.launch("--hang-after", "1s", "--on-hang", "restart", "--max-restarts", "1",
                          "--timeout", "40s", "--events", "events", os.environ["HANG_GROUP"])
        job.wait()
        self.assert_ended(job, 124)
        self.assertEqual(job.err.count("ddprun: hang: 2 of 3 ranks"), 2, job.err)
        with open(self.path("events")) as f:
            failures = [e for e in map(json.loads, f) if e["event"] == "failure"]
        self.assertEqual([(e["kind"], e["rank"], e["restart"]) for e in failures],
                         [("hang", 1, True), ("hang", 1, False)])
        self.assertIn("rank 1 on", job.err)

    def fail_by_timeout(self, *args):
        self.write("deadline.py", DEADLINE)
        job = self.launch(*args, "--no-preload", sys.executable, "-u", "deadline.py", 1)
        job.wait()
        self.assert_ended(job, 1)
        self.assertRegex(job.err, r"(?m)^ddprun: rank [02] on \S+ exited with status 1 ")
        return job.err

    def test_after_a_timeout_of_the_program_s_own(self):
        """The ranks that have waited fail; the one that is late is asked before it is stopped."""
        err = self.fail_by_timeout()
        line = 1 + DEADLINE.splitlines().index("    time.sleep(60)")
        self.assertRegex(err, r"ddprun: hang: ranks? [02,]+ ha(s|ve) failed, it seems by a timeout; .*rank 1 has "
                         rf"not arrived: it is in load\(\) at deadline.py:{line} \(sleeping\)")

    def test_after_a_timeout_of_libddpgroup(self):
        job = self.launch(os.environ["HANG_GROUP"], 1000)
        job.wait()
        self.assert_ended(job, 1)
        self.assertIn("rank 1 on", job.err)
        self.assertRegex(job.err, r"ddprun: hang: .*rank 1 has not arrived: it is ")

    def test_no_report_after_a_timeout_if_they_are_off(self):
        self.assertNotIn("hang", self.fail_by_timeout("--hang-after", "off"))

    def test_before_the_end_by_timeout(self):
        job = self.hang("sleep", "--timeout", "20s")
        job.wait()
        self.assert_ended(job, 124)
        self.assertIn("ddprun: hang: ranks 0,2 wait in all_reduce", job.err)
        self.assertIn("timed out after 20 s", job.err)

    def nccl(self, *args, **how):
        self.write("nccl.py", NCCL)
        job = self.launch("--no-preload", "--oversubscribe", sys.executable, "nccl.py", *args, **how)
        report = self.report(job)[1]
        self.end(job)
        path, = pathlib.Path(self.folder.name).glob("ddprun-report-*/report.txt")
        return report["ranks"], path.read_text(), set(re.findall(r"up (\d+)", job.out))

    def test_without_gpus_there_is_no_address_for_nccl(self):
        done = self.sh(1, "echo up $NCCL_RAS_ADDR.")
        self.assertEqual(done.out, "up .\n")

    @needs_gpus
    def test_what_nccl_says(self):
        """All ranks listen at one address, as NCCL does; two jobs of a host have two addresses."""
        other = self.start("-np", 1, "sh", "-c", "echo up $NCCL_RAS_ADDR.; sleep 60",
                           command=self.with_gpus())
        self.assertTrue(launch.wait_until(lambda: ".\n" in other.out), other.err)
        ranks, text, ports = self.nccl("answers", command=self.with_gpus())
        said = ("NCCL version 2.28.9 compiled with CUDA 13.0\n\nJob summary\n"
                "Communicators... (0.00s)\n")
        self.assertEqual([r.get("nccl_ras") for r in ranks], [said, None, None])
        self.assertIn(f" (RAS):\n{said}", text)
        self.assertEqual(len({*ports, *re.findall(r"up 127.0.0.1:(\d+)", other.out)}), 2)
        other.signal(signal.SIGTERM)
        other.wait()

    def test_at_an_address_of_the_user(self):
        port = launch.free_port()
        ranks = self.nccl("answers", env={"NCCL_RAS_ADDR": f"localhost:{port}"})[0]
        self.assertIn("NCCL version", ranks[0]["nccl_ras"])

    def test_nccl_that_does_not_answer(self):
        port = launch.free_port()
        ranks = self.nccl("silent", env={"NCCL_RAS_ADDR": f"127.0.0.1:{port}"})[0]
        self.assertEqual([("nccl_ras" in r, "threads" in r) for r in ranks], [(False, True)] * 3)

    def test_the_stack_of_a_rank_that_does_not_end_by_sigterm(self):
        """Ranks 0 and 2 end by it: nothing is written of them."""
        job = self.hang("deaf", "--grace", "3s")
        self.end_by(job, signal.SIGTERM, 143)
        self.assertEqual(re.findall(r"^ddprun: note: (ranks? [0-9,-]+) on \S+ (.*)", job.err, re.M),
                         [("rank 1", "has not ended by SIGTERM; before SIGKILL:")], job.err)
        self.assertRegex(job.err, rf"    gil  \S*train.py:{line_of('ctypes.PyDLL(None).sleep(60)')}\n")

    def test_ranks_that_are_killed_at_once_write_nothing(self):
        job = self.hang("deaf", "--grace", "0s")
        self.end_by(job, signal.SIGTERM, 143)
        self.assertNotIn("note: rank", job.err)

    def test_pytorch_s_control_plane_listens_before_it_is_ended(self):
        """Otherwise its end waits for ever."""
        self.write("torch/distributed/rpc.py", "")
        done = self.run_to_end("--no-preload", sys.executable, self.write("served.py", SERVED))
        self.assert_ended(done, 0)
        self.assertEqual(done.out, "listens: True\n")

    def test_a_program_sees_nothing_of_it(self):
        self.write("site/sitecustomize.py", "import sys; sys.mine = 1")
        text = ("import os, sys, sitecustomize; print(sys.mine, sitecustomize.__file__, "
                "os.environ.get('PYTHONPATH'), [p for p in sys.path if 'preload' in p])")
        for path in (self.path("site"), f"/nowhere:{self.path('site')}"):
            done = self.run_to_end("-np", 2, "--no-preload", sys.executable, "-c", text,
                                   env={"PYTHONPATH": path})
            self.assert_ended(done, 0)
            wanted = f"1 {self.path('site')}/sitecustomize.py {path} []"
            self.assertEqual({line[4:] for line in done.out.splitlines()}, {wanted})
            self.assertEqual(done.err, "")

    def test_the_folder_is_closed_to_others_and_removed(self):
        text = ("import os; d = os.path.dirname(os.environ['DDPRUN_DIAGNOSE']); "
                "print(oct(os.stat(d).st_mode), sorted(os.listdir(d))[0].split('.')[0], d)")
        done = self.run_to_end("--no-preload", sys.executable, "-c", text)
        self.assert_ended(done, 0)
        mode, rank, folder = done.out.split()
        self.assertEqual((mode, rank), ("0o40700", "0"))
        self.assertFalse(os.path.exists(folder))

    def test_the_folders_of_killed_agents_are_removed(self):
        parent = "/dev/shm" if os.access("/dev/shm", os.W_OK | os.X_OK) else "/tmp"
        prefix = f"ddprun-{os.geteuid()}-ranks-"
        killed, runs = (tempfile.mkdtemp(prefix=prefix, dir=parent) for _ in range(2))
        lock = os.open(runs, os.O_RDONLY)
        self.addCleanup(os.close, lock)
        fcntl.flock(lock, fcntl.LOCK_EX)
        for folder in (killed, runs):
            self.addCleanup(shutil.rmtree, folder, ignore_errors=True)
            with open(f"{folder}/0.1.sock", "w", encoding="ascii"):
                pass
            os.utime(folder, (0, 0))
        wait = self.run_to_end("sh", "-c", f"while [ -e {killed} ]; do sleep 0.1; done")
        self.assert_ended(wait, 0)
        self.assertEqual(os.listdir(runs), ["0.1.sock"])


if __name__ == "__main__":
    launch.main()
