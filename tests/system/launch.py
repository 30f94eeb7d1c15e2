"""Helpers of the launch tests: run ddprun with a deadline, and check for leftover processes.

Every launch has a mark in its environment, which agents, ranks and their children inherit
independently of sessions and parents. After each test no process with that mark may be
alive; a launch that exceeds its deadline fails and lists its processes.
"""

import glob
import ipaddress
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import uuid

DDPRUN = os.environ.get("DDPRUN", "ddprun")
if os.sep in DDPRUN:  # some tests have another working directory
    DDPRUN = os.path.abspath(DDPRUN)
# seconds. Tests need a few; the rest allows for an overloaded machine. Shorter than the minute for
# which ranks sleep that are to be killed, so that a launch that waits for such a rank is a hang
DEADLINE = 50.0
# for ranks that handle SIGTERM: the default of five seconds is too short on a loaded machine
PATIENT = ("--grace", "40s")
# seconds; less than the --node-timeout of a minute after which an agent without heartbeats exits:
# an agent must exit because of a message or a closed link
GONE = 20.0
if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:  # by nohup: ddprun would ignore it, too
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def read_proc(pid, name):
    try:
        with open(f"/proc/{pid}/{name}", "rb") as f:
            return f.read()
    except OSError:
        return b""  # exited, or not ours


def marked(*marks):
    """The processes with one of `marks`, as {pid: command line}; no zombies."""
    found = {}
    for path in glob.glob("/proc/[0-9]*"):
        pid = int(path[6:])
        command = read_proc(pid, "cmdline")
        if command and any(
            mark.encode() in command or mark.encode() in read_proc(pid, "environ")
            for mark in marks
        ):
            found[pid] = command.replace(b"\0", b" ").decode(errors="replace").strip()
    return found


def read_all(file):
    """Contents of a file that another process is writing. Never seek(): the offset is shared, and
    the next write would overwrite earlier output."""
    return os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0)


def stat_of(pid):
    """/proc/PID/stat from the third field on; [] if it has exited."""
    return read_proc(pid, "stat").rpartition(b")")[2].split()


def state_of(pid):
    return (stat_of(pid) or [b""])[0].decode()


def parent_of(pid):
    return int((stat_of(pid) or [b"", 0])[1])


def end_all(*marks):
    """Kill all processes with one of `marks`. They lose it with their memory, and close files after that."""
    killed = set()
    for _ in range(500):
        alive = marked(*marks)
        killed.update(alive)
        for pid in alive:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        if not alive and all(state_of(pid) in ("", "Z") for pid in killed):
            break
        time.sleep(0.02)


def wait_until(condition, deadline=DEADLINE):
    """Poll `condition` until it is true; returns its last value. Between two calls it pauses four times as
    long as `condition` took, from 10 ms to 1 s: other tests run on the same CPUs."""
    end = time.monotonic() + deadline
    while True:
        began = time.monotonic()
        value = condition()
        if value or time.monotonic() > end:
            return value
        time.sleep(min(max(0.01, 4 * (time.monotonic() - began)), 1))


def wait_until_settled(mark):
    """Until each process with `mark` has come from the line that it wrote to the call after it: it
    sleeps, is stopped, or has computed for 0.1 s."""
    def ticks(pid):
        return sum(map(int, stat_of(pid)[11:13]))

    before = {pid: ticks(pid) for pid in marked(mark)}
    tenth = os.sysconf("SC_CLK_TCK") // 10
    for pid, at in before.items():
        if not wait_until(lambda pid=pid, at=at: state_of(pid) not in ("R", "D") or ticks(pid) > at + tenth):
            raise AssertionError(f"process {pid} does not run")


def who_is_left(*marks, deadline=GONE):
    """Processes with one of `marks` that do not exit in time, as {pid: command line}."""
    left = {}

    def none_left():
        left.clear()
        left.update(marked(*marks))
        return not left

    wait_until(none_left, deadline)
    return left


def free_port():
    """A free port outside of the kernel's ephemeral range."""
    with open("/proc/sys/net/ipv4/ip_local_port_range", encoding="ascii") as f:
        first = int(f.read().split()[0])
    while True:
        port = random.randrange(min(first, 20000) // 2, min(first, 30000))
        with socket.socket(socket.AF_INET6) as s:
            s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            try:
                s.bind(("::", port))
                return port
            except OSError:
                pass


def held(**where):
    """The environment of a ddprun that waits where `where` says (hold_start.c)."""
    return {"LD_PRELOAD": os.environ["HOLD_START"],
            "ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS", "") + ":verify_asan_link_order=0", **where}


def make_network(test):
    """A network namespace for a test, which is root; returns its name, our address and its own."""
    name = f"ddt{os.getpid() % 1000000}"
    # a network of this test's own: those of killed tests may be left
    net = ipaddress.ip_address("10.212.0.0") + os.getpid() % 16384 * 4
    here, there = str(net + 1), str(net + 2)
    test.addCleanup(subprocess.run, ["ip", "netns", "del", name], check=False)
    for command in (
        f"netns add {name}", f"link add {name}a type veth peer name {name}b netns {name}",
        f"addr add {here}/30 dev {name}a", f"link set {name}a up",
        f"-n {name} addr add {there}/30 dev {name}b", f"-n {name} link set {name}b up",
    ):
        subprocess.run(["ip", *command.split()], check=True)
    return name, here, there


# as the driver shows two GPUs
WITH_GPUS = """#!/bin/sh -e
cd "$1"
shift
mkdir -p dev
mount --rbind /dev dev
mount -t tmpfs -o mode=755 none /dev
for f in null zero full random urandom tty; do : > /dev/$f; mount --bind dev/$f /dev/$f; done
for d in shm pts; do mkdir /dev/$d; mount --rbind dev/$d /dev/$d; done
touch /dev/nvidiactl /dev/nvidia0 /dev/nvidia1
exec "$@"
"""
needs_gpus = unittest.skipUnless(os.geteuid() == 0 and shutil.which("unshare"),
                                 "a /dev of its own; needs root")


class Launch:
    """One ddprun in the background; out and err are collected in files."""

    def __init__(
        self, mark, args, stdin=None, env=None, cwd=None, stdout=None, stderr=None, command=None
    ):
        environment = {**os.environ, **(env or {}), "DDPRUN_TEST_MARK": mark}
        self.files = [tempfile.TemporaryFile(), tempfile.TemporaryFile()]
        source = subprocess.DEVNULL if stdin is None else subprocess.PIPE
        self.started = time.monotonic()
        self.process = subprocess.Popen(
            [*(command or [DDPRUN]), *map(str, args)],
            stdin=source,
            stdout=stdout if stdout is not None else self.files[0],
            stderr=stderr if stderr is not None else self.files[1],
            env={k: v for k, v in environment.items() if v is not None},
            cwd=cwd,
        )
        self.mark = mark
        self.input = stdin

    def read(self, i):
        return read_all(self.files[i]).decode(errors="replace")

    @property
    def out(self):
        return self.read(0)

    @property
    def err(self):
        return self.read(1)

    def signal(self, signum):
        self.process.send_signal(signum)

    def wait(self, deadline=DEADLINE):
        """Returns the exit code; a launch that hangs is killed, and raises."""
        try:
            self.process.communicate(
                self.input.encode() if isinstance(self.input, str) else self.input,
                timeout=deadline,
            )
        except subprocess.TimeoutExpired:
            alive = marked(self.mark)
            self.end()
            raise AssertionError(
                f"hung for {deadline} s\nstdout: {self.out[-2000:]}\n"
                f"stderr: {self.err[-2000:]}\nalive: {alive}"
            ) from None
        self.seconds = time.monotonic() - self.started
        self.rc = self.process.returncode
        return self.rc

    def end(self):
        end_all(self.mark)
        self.process.wait()


class LaunchTest(unittest.TestCase):
    maxDiff = None
    launch_class = Launch
    deadline = DEADLINE  # longer where programs take half a minute to load

    def setUp(self):
        self.mark = f"ddprun-test-{uuid.uuid4().hex}"
        self.marks = [self.mark]
        self.folder = tempfile.TemporaryDirectory(prefix="ddprun-test-")
        self.addCleanup(self.folder.cleanup)
        self.launches = []
        self.failed_before = self.failures()

    def failures(self):
        """How many there are so far; bench/lost_host.py is no test."""
        result = self._outcome.result if self._outcome else unittest.TestResult()
        return len(result.failures) + len(result.errors)

    def tearDown(self):
        if self.failures() > self.failed_before:
            end_all(*self.marks)  # what a test leaves that has failed is no failure of its own
        left = who_is_left(*self.marks)
        end_all(*self.marks)
        for launch in self.launches:
            launch.end()
            for file in launch.files:
                file.close()
        self.assertEqual(left, {}, "processes are left")

    def path(self, *names):
        return os.path.join(self.folder.name, *names)

    def write(self, name, text, mode=0o644):
        os.makedirs(os.path.dirname(self.path(name)), exist_ok=True)
        with open(self.path(name), "w", encoding="utf-8", newline="") as f:
            f.write(text)
        os.chmod(self.path(name), mode)
        return self.path(name)

    def with_gpus(self):
        """The `command` of a launch on a machine that seems to have two GPUs."""
        script = self.write("with-gpus", WITH_GPUS, 0o755)
        return ["unshare", "-m", script, self.folder.name, DDPRUN]

    def start(self, *args, **how):
        launch = self.launch_class(self.mark, args, **how)
        self.launches.append(launch)
        return launch

    def run_to_end(self, *args, deadline=None, **how):
        launch = self.start(*args, **how)
        launch.wait(deadline or self.deadline)
        return launch

    def sh(self, np, script, *options, **how):
        """Launch `np` ranks of a shell script."""
        return self.run_to_end("-np", np, *options, "sh", "-c", script, **how)

    def start_sh(self, np, script, *options, **how):
        return self.start("-np", np, *options, "sh", "-c", script, **how)

    def assert_ended(self, launch, rc):
        self.assertEqual(
            launch.rc, rc, f"\nstdout: {launch.out[-2000:]}\nstderr: {launch.err[-2000:]}"
        )
        self.assertNotIn("(after -", launch.err)

    def end_by(self, launch, signum, rc, deadline=DEADLINE):
        launch.signal(signum)
        launch.wait(deadline)
        self.assert_ended(launch, rc)

    def wait_for(self, launch, text, stream="out"):
        """Wait until `text` is in the output of the launch."""
        if not wait_until(lambda: text in getattr(launch, stream)):
            self.fail(f"no {text!r} in {launch.out!r} and {launch.err!r}")


def main():
    if not os.access(DDPRUN, os.X_OK):
        print(f"'{DDPRUN}' cannot be run: set DDPRUN to the launcher")
        sys.exit(1)
    unittest.main(verbosity=2)
