"""A rank with a pseudo-terminal of its own, under a ddprun on a real one."""

import os
import signal
import sys

from launch import DDPRUN, LaunchTest, main, state_of, wait_until
from terminal import OnTerminal, set_size

PYTHON = sys.executable
ON_TERMINALS = "import os; print('terminals', *(os.isatty(fd) for fd in range(3)))"
# a signal that comes just before a long sleep() would not interrupt it
UP = "import time\nprint('up', flush=True)\nwhile True: time.sleep(0.1)"


class Pty(LaunchTest):
    def on_terminal(self, *args, **how):
        return OnTerminal(self.mark, *args, **how)

    def ended(self, terminal, code=0):
        seen = terminal.read()
        self.assertEqual(terminal.end(), code, seen)
        self.assertTrue(terminal.restored, seen)
        return seen

    def test_one_rank_has_a_terminal(self):
        script = ON_TERMINALS + ("; print(*os.get_terminal_size(), os.ttyname(0) == os.ttyname(2), "
                                 "os.getsid(0) == os.getpid())")
        for option in ((), ("-np", "1"), ("--pty",)):
            with self.subTest(option):
                seen = self.ended(self.on_terminal(*option, PYTHON, "-c", script))
                self.assertEqual(seen, "terminals True True True\r\n80 24 True True\r\n")

    def test_no_terminal_unless_it_is_wanted(self):
        for options in (("--no-pty",), ("--pty=off",), ("-np", "2"), ("--stdin", "none"), ("--timestamp-output",)):
            with self.subTest(options):
                seen = self.ended(self.on_terminal(*options, PYTHON, "-c", ON_TERMINALS))
                self.assertIn("terminals False False False", seen)
        seen = self.ended(self.on_terminal(
            "-c", f"'{DDPRUN}' '{PYTHON}' -c \"{ON_TERMINALS}\" 2>{self.path('err')}", command=("/bin/sh",)))
        self.assertIn("terminals False False False", seen)

    def test_input_once_a_launch_is_in_the_foreground(self):
        terminal = self.on_terminal(
            "-mc", f"'{DDPRUN}' -np 2 --output-from 0 sh -c 'echo up; read -r x; echo got $x' & read -r go; fg",
            command=("/bin/bash",))  # another shell would send SIGCONT
        terminal.read("up")
        terminal.type("go\n")
        terminal.type("hello\n")
        self.assertIn("got hello", self.ended(terminal))

    def test_pdb(self):
        path = self.write("train.py", "def step(x):\n    breakpoint()\n    return x\n\nprint('result', step(41))\n")
        terminal = self.on_terminal(path)
        terminal.read("(Pdb) ")
        terminal.type("p x + 1\n")
        self.assertIn("42", terminal.read("(Pdb) "))
        terminal.type("!x = 7\n")
        terminal.read("(Pdb) ")
        terminal.type("c\n")
        self.assertIn("result 7", self.ended(terminal))

    def test_the_size_changes(self):
        script = ("import os, signal, time\ncame = []\nsignal.signal(signal.SIGWINCH, lambda *_: came.append(1))\n"
                  "print('up', flush=True)\nwhile not came: time.sleep(0.1)\n"
                  "print('now', *os.get_terminal_size())")
        terminal = self.on_terminal(PYTHON, "-c", script)
        terminal.read("up")
        set_size(terminal.fd, 40, 132)
        self.assertIn("now 132 40", self.ended(terminal))

    def test_ctrl_c_is_for_the_foreground_of_the_rank(self):
        script = ("import time\ntry:\n    print('up', flush=True)\n    while True: time.sleep(0.1)\n"
                  "except KeyboardInterrupt:\n    input('again? ')")
        terminal = self.on_terminal(PYTHON, "-c", script)
        terminal.read("up")
        terminal.type("\x03")
        terminal.read("again? ")
        terminal.type("yes\r")
        self.assertNotIn("ddprun:", self.ended(terminal))
        terminal = self.on_terminal(PYTHON, "-c", UP)
        terminal.read("up")
        terminal.type("\x03")
        seen = self.ended(terminal, 130)
        self.assertRegex(seen, r"KeyboardInterrupt\r\n(.*\r\n)*ddprun: rank 0 .* SIGINT")

    def test_our_terminal_is_restored_by_any_signal(self):
        for sig, code in ((signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129),
                          (signal.SIGSEGV, -signal.SIGSEGV), (signal.SIGPROF, -signal.SIGPROF),
                          (signal.SIGABRT, -signal.SIGABRT)):
            with self.subTest(sig):
                terminal = self.on_terminal("--hang-after", "off", PYTHON, "-c", UP)
                terminal.read("up")
                self.assertTrue(terminal.is_raw())
                os.kill(terminal.pid, sig)
                self.ended(terminal, code)

    def test_our_terminal_is_restored_while_we_are_stopped(self):
        terminal = self.on_terminal(PYTHON, "-c", UP)
        terminal.read("up")
        os.kill(terminal.pid, signal.SIGTSTP)
        self.assertTrue(wait_until(lambda: state_of(terminal.pid) == "T"))
        self.assertTrue(terminal.is_restored())
        os.kill(terminal.pid, signal.SIGCONT)
        self.assertTrue(wait_until(terminal.is_raw))
        terminal.type("\x03")
        self.ended(terminal, 130)

    def test_lines_of_ours_begin_at_the_left(self):
        # the first attempt fails on its own terminal; then rank 0 has one again
        script = f"[ $TORCHELASTIC_RESTART_COUNT = 1 ] || exit 1; exec '{PYTHON}' -c \"{ON_TERMINALS}\""
        seen = self.ended(self.on_terminal("--max-restarts", "1", "sh", "-c", script))
        self.assertIn("terminals True True True\r\n", seen)
        self.assertNotRegex(seen, r"[^\r]\n|\r\r")

    def test_output_goes_to_files_too(self):
        script = r"echo out; echo err >&2; printf '50 %%\r100 %%\r'"
        terminal = self.on_terminal("--output-filename", self.path("logs"), "sh", "-c", script)
        self.assertTrue(self.ended(terminal).startswith("out\r\nerr\r\n50 %\r100 %\r"))
        written = ""
        for folder, _, names in os.walk(self.path("logs")):
            for name in names:
                with open(os.path.join(folder, name), encoding="utf-8", newline="") as f:
                    written += f.read()
        self.assertEqual(written, "out\nerr\n50 %\r100 %\r")

    def test_without_a_terminal_of_ours(self):
        launch = self.run_to_end("--pty", "sh", "-c", "stty size; stty -echo; echo ready; exec wc -c",
                                 stdin="one\ntwo")
        self.assert_ended(launch, 0)
        self.assertRegex(launch.out, r"\A[^\0]*24 80\r\n[^\0]*ready\r\n7\r\n\Z")
        self.assertEqual(launch.err, "")

    def test_a_rank_may_close_its_streams(self):
        launch = self.run_to_end("--pty", "sh", "-c", "exec <&- >&- 2>&-; sleep 0.1; exit 3")
        self.assert_ended(launch, 3)

    def test_what_it_cannot_go_with(self):
        for options, why in ((("-np", "2"), "--pty is for one rank"),
                             (("--timestamp-output",), "--pty and --timestamp-output"),
                             (("--tag-output",), "--pty and --tag-output"),
                             (("--stdin", "none"), "--pty and --stdin none")):
            with self.subTest(options):
                launch = self.run_to_end("--pty", *options, "true")
                self.assert_ended(launch, 2)
                self.assertEqual(launch.err.count("\n"), 1)
                self.assertIn(why, launch.err)


if __name__ == "__main__":
    main()
