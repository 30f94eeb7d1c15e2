"""A program on a real terminal."""

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time

from launch import DDPRUN, DEADLINE


def set_size(fd, rows, columns):
    """As termios.tcsetwinsize(), which came with Python 3.11."""
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))


def shown(test, *args, columns=80):
    """What a ddprun that ends with 0 shows on a terminal; a method of a LaunchTest."""
    ours, theirs = pty.openpty()
    test.addCleanup(os.close, ours)
    set_size(theirs, 24, columns)
    env = {**os.environ, "TERM": "xterm", "DDPRUN_TEST_MARK": test.mark}
    process = subprocess.Popen([DDPRUN, *args], stdout=theirs, stdin=subprocess.DEVNULL, env=env)
    os.close(theirs)
    text = b""
    try:
        while piece := os.read(ours, 65536):
            text += piece
    except OSError:
        pass  # the other end is closed
    test.assertEqual(process.wait(60), 0)
    return text.decode()


class OnTerminal:
    """A ddprun on a terminal of 24 x 80; `command` is what runs it, if not the test itself."""

    def __init__(self, mark, *args, command=(DDPRUN,), env=None):
        self.seen = ""
        known, modes_known = os.pipe()
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            try:
                os.close(modes_known)
                os.read(known, 1)
                signal.signal(signal.SIGHUP, signal.SIG_DFL)
                set_size(0, 24, 80)
                os.execve(command[0], [*command, *args],
                          {**(env or os.environ), "TERM": "xterm", "PYTHON_COLORS": "0",
                           "DDPRUN_TEST_MARK": mark})
            finally:
                os._exit(99)
        self.modes = termios.tcgetattr(self.fd)  # before the program can change them
        os.close(known)
        os.close(modes_known)

    def read(self, until=None):
        """Up to the end of the output, or until it has `until`, which is taken off with all before."""
        end = time.monotonic() + DEADLINE
        while until is None or until not in self.seen:
            if not select.select([self.fd], [], [], max(0, end - time.monotonic()))[0]:
                raise AssertionError(f"no {until!r} in {self.seen!r}")
            try:
                piece = os.read(self.fd, 4096)
            except OSError:  # no process has the terminal
                piece = b""
            if not piece and until is not None:
                raise AssertionError(f"it ended without {until!r}: {self.seen!r}")
            if not piece:
                return self.seen
            self.seen += piece.decode()
        before, _, self.seen = self.seen.partition(until)
        return before

    def type(self, text):
        os.write(self.fd, text.encode())

    def is_raw(self):
        return not termios.tcgetattr(self.fd)[3] & (termios.ICANON | termios.ECHO | termios.ISIG)

    def is_restored(self):
        return termios.tcgetattr(self.fd) == self.modes

    def end(self):
        """Its exit code; -N: signal N."""
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        self.restored = self.is_restored()
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        os.close(self.fd)
        return code
