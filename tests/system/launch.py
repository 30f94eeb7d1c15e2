"""What the launch tests share: run ddprun with a deadline, and see that nobody is left.

Every launch carries a mark in its environment, which its agents, ranks and their children
inherit, whatever sessions and parents they choose. After each test nobody with that mark
may be alive, and a launch that outlives its deadline is a failure that shows who hung.
"""

import glob
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import uuid

DDPRUN = os.environ.get("DDPRUN", "ddprun")
# seconds. Nothing here needs more than a few: what is longer is a machine that stands still for
# a while. Shorter than the minute that ranks sleep when somebody shall end them, so that a
# launch which waits for such a rank is one that hangs
DEADLINE = 50.0
# for ranks that do something when they are told to end: the usual five seconds pass, too
PATIENT = ("--grace", "40s")
# less than the minute (--node-timeout) after which an agent that hears nothing ends by itself:
# who is to go with a launcher has to be told, or to see its link end
GONE = 20.0


def read_proc(pid, name):
    try:
        with open(f"/proc/{pid}/{name}", "rb") as f:
            return f.read()
    except OSError:
        return b""  # gone meanwhile, or not ours


def marked(*marks):
    """The processes that carry one of `marks`, as {pid: command line}; no zombies."""
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
    """What is in a file that another process is writing. Never seek() there: the offset is
    shared, and what is written next would go over what was written first."""
    return os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0)


def parent_of(pid):
    return int(read_proc(pid, "stat").rpartition(b")")[2].split()[1])


def end_all(*marks):
    """Whatever happened: nobody with such a mark stays."""
    for _ in range(500):
        alive = marked(*marks)
        for pid in alive:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        if not alive:
            break
        time.sleep(0.02)


def wait_until(condition, deadline=DEADLINE):
    """Poll `condition` until it holds; its last value. What is dear to look at is looked at
    half of the time at most: the other half is for what is waited for."""
    end = time.monotonic() + deadline
    while True:
        began = time.monotonic()
        value = condition()
        if value or time.monotonic() > end:
            return value
        time.sleep(max(0.01, time.monotonic() - began))


def who_is_left(*marks, deadline=GONE):
    """Who carries one of `marks` and does not end in time, as {pid: command line}."""
    left = {}

    def look():
        left.clear()
        left.update(marked(*marks))
        return not left

    wait_until(look, deadline)
    return left


def free_port():
    """One that nobody has, and that the kernel gives nobody who asks for any."""
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
        """The exit code; a launch that hangs is ended and raises."""
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

    def setUp(self):
        self.mark = f"ddprun-test-{uuid.uuid4().hex}"
        self.marks = [self.mark]
        self.folder = tempfile.TemporaryDirectory(prefix="ddprun-test-")
        self.addCleanup(self.folder.cleanup)
        self.launches = []

    def tearDown(self):
        left = who_is_left(*self.marks)
        end_all(*self.marks)
        for launch in self.launches:
            launch.end()
            for file in launch.files:
                file.close()
        self.assertEqual(left, {}, "somebody is left")

    def path(self, *names):
        return os.path.join(self.folder.name, *names)

    def write(self, name, text, mode=0o644):
        with open(self.path(name), "w", encoding="utf-8", newline="") as f:
            f.write(text)
        os.chmod(self.path(name), mode)
        return self.path(name)

    def start(self, *args, **how):
        launch = self.launch_class(self.mark, args, **how)
        self.launches.append(launch)
        return launch

    def run_to_end(self, *args, deadline=DEADLINE, **how):
        launch = self.start(*args, **how)
        launch.wait(deadline)
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

    def wait_for(self, launch, text, stream="out"):
        """Until `text` has come out of the launch."""
        if not wait_until(lambda: text in getattr(launch, stream)):
            self.fail(f"no {text!r} in {launch.out!r} and {launch.err!r}")


def main():
    if not os.access(DDPRUN, os.X_OK):
        print(f"'{DDPRUN}' cannot be run: set DDPRUN to the launcher")
        sys.exit(1)
    unittest.main(verbosity=2)
