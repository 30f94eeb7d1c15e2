"""--preload: a forked rank and one started the plain way are the same to the script."""

import os
import re
import signal
import sys
import time
import zipfile

from launch import DDPRUN, main, marked, parent_of, read_proc, wait_until
from preload import FORKED, NOT_FORKED, PYTHON, WORLD, PreloadTest, setUpModule  # unittest calls the last


class Preload(PreloadTest):
    # --- the same world ---

    def test_a_script(self):
        ours = self.same_world(PYTHON, WORLD, "one", "-m", "two words")
        self.assertEqual(ours[0]["kernel"]["death signal"], signal.SIGKILL)

    def test_a_module(self):
        self.same_world(PYTHON, "-m", "world", "x", cwd=os.path.dirname(WORLD))

    def test_the_interpreters_flags(self):
        self.same_world(PYTHON, "-uOB", "-X", "faulthandler", "-Xutf8", "-W", "error",
                        "-Wdefault::UserWarning", WORLD)

    def test_development_mode(self):
        self.same_world(PYTHON, "-X", "dev", WORLD, forked=sys.version_info >= (3, 10, 1))

    def test_a_c_locale_and_a_path(self):
        """Python adds LC_CTYPE to its own environment in one."""
        env = dict.fromkeys(("LANG", "LC_ALL", "LC_CTYPE", "PYTHONUTF8"))
        self.same_world(PYTHON, WORLD, env={**env, "PYTHONPATH": "/nowhere::/usr"})
        self.same_world(PYTHON, WORLD, env={**env, "PYTHONPATH": "", "PYTHONHASHSEED": "7"})

    def test_a_real_sitecustomize(self):
        self.write("sitecustomize.py", "import sys; sys.mine = getattr(sys, 'mine', 0) + 1")
        text = "import sitecustomize, sys; print('mine', sys.mine, sitecustomize.__file__)"
        env = {"PYTHONPATH": self.folder.name}
        plain, ours = self.both(PYTHON, "-c", text, env=env)
        self.assertEqual(sorted(plain.out.splitlines()), sorted(ours.out.splitlines()))
        self.assertIn(f"mine 1 {self.folder.name}", ours.out)
        self.same_world(PYTHON, WORLD, env=env)

    def test_a_sitecustomize_and_the_environment(self):
        """What it sets and removes is so in each rank; where it reads RANK, no ranks are forked."""
        env = {"PYTHONPATH": self.folder.name, "GONE": "1"}
        text = "import os, sys; print('now', os.environ.get('ADDED'), 'GONE' in os.environ, sys.seen)"
        for seen, forked in (("os.environ['HOME'] != ''", True), ("os.environ['RANK']", False)):
            with self.subTest(seen):
                self.write("sitecustomize.py", "import os, sys; os.environ['ADDED'] = '1'; "
                                               f"del os.environ['GONE']; sys.seen = {seen}")
                plain, ours = self.both(PYTHON, "-c", text, env=env, forked=forked)
                self.assertEqual(sorted(plain.out.splitlines()), sorted(ours.out.splitlines()))
                self.assertIn("now 1 False", ours.out)

    def test_a_program_with_a_first_line(self):
        with open(WORLD, encoding="utf-8") as f:
            program = self.write("world", f"#!{PYTHON}\n" + f.read(), 0o755)
        self.same_world(program, "x")

    def test_limits_umask_nice_and_cpus(self):
        self.same_world(
            PYTHON, WORLD, options=["--bind-to", "none"],
            command=["nice", "-n", "3", "sh", "-c",
                     'umask 027; ulimit -S -n 333; ulimit -c 0; exec "$0" "$@"', DDPRUN])

    # --- the same behaviour ---

    def test_ends(self):
        for text, rc in (
                ("import sys; sys.exit(3)", 3),
                ("raise SystemExit('a message')", 1),
                ("import os; os._exit(4)", 4),
                ("raise KeyError('what')", 1),
                ("raise KeyboardInterrupt", 130),
                ("import os; os.abort()", 134),
                ("import atexit; atexit.register(print, 'at exit')", 0),
                ("import threading, time\n"
                 "threading.Thread(target=lambda: (time.sleep(.1), print('late'))).start()", 0),
                ("import multiprocessing as m\nif __name__ == '__main__':\n"
                 "    with m.get_context('spawn').Pool(1) as p: print(p.map(abs, [-1]))", 0),
                ("import multiprocessing as m\n"
                 "with m.get_context('fork').Pool(2) as p: print(p.map(abs, [-1, -2]))", 0),
                ("import colorsys\nclass A:\n    def __del__(self): print('deleted', colorsys)\na = A()", 0),
                ("import atexit, json\natexit.register(lambda: print(json.dumps([1])))\n"
                 "import colorsys; atexit.register(print, 'later')", 0),
                ("import ctypes; ctypes.CDLL(None).printf(b'from C, not flushed\\n')", 0),
                ("import os, sys; sys.stdout = open(1, 'w', closefd=False)\n"
                 "sys.stdout.write('lost'); os.close(1)", 120),
                ("import pickle\nclass A: pass\n"
                 "print(type(pickle.loads(pickle.dumps(A()))))", 0)):
            with self.subTest(text=text):
                wait = "" if rc == 0 else (  # for its end: only one shall tell its cause
                    "import os, time; os.environ['RANK'] != '0' and time.sleep(60)\n")
                script = self.write("script.py", wait + text + "\n")
                plain, ours = self.both(PYTHON, "-X", "faulthandler", script,
                                        options=["--output-from", "0"])
                self.assertEqual(plain.rc, rc, plain.err)
                if rc == 0:
                    self.assertEqual(plain.out, ours.out)
                else:
                    self.assertEqual(self.told(plain), self.told(ours))

    def test_files_that_nobody_has_closed(self):
        """Also one that only an imported module knows of, which is not taken apart. A ZIP archive ends with
        its table, written by its __del__."""
        text = ("import json, os, zipfile\nn = os.environ['RANK']\ndef function(): pass\n"
                "archive = zipfile.ZipFile('archive' + n, 'w'); archive.writestr('a', 'b')\n"
                "json.mine = open('theirs' + n, 'w'); json.mine.write('a' * 10)\n"
                "mine = open('mine' + n, 'wb'); mine.write(b'b' * 10)\n")
        self.both(PYTHON, "-c", text, modules="json", cwd=self.folder.name)
        for name in ("theirs0", "theirs1", "mine0", "mine1"):
            self.assertEqual(os.path.getsize(self.path(name)), 10, name)
        for name in ("archive0", "archive1"):
            self.assertTrue(zipfile.is_zipfile(self.path(name)), name)

    @staticmethod
    def told(launch):
        """The ranks' lines on stderr, without what differs between processes."""
        return {re.sub(r"0x[0-9a-f]+|\[\d+\] ", "", line) for line in launch.err.splitlines()
                if not line.startswith(("ddprun", " "))}

    def test_the_garbage_collector(self):
        """It does not run while modules are imported; what they set stays."""
        for text in "pass", "gc.set_threshold(3, 4, 5)", "gc.disable()":
            self.write("collects.py", f"import gc\n{text}\n")
            plain, ours = self.both(PYTHON, "-c", "import collects, gc\n"
                                    "print(gc.get_threshold(), gc.isenabled())", modules="collects",
                                    env={"PYTHONPATH": self.folder.name})
            self.assertEqual(sorted(plain.out.splitlines()), sorted(ours.out.splitlines()))

    def test_extensions_of_nanobind_are_destroyed(self):
        """They print a list of their objects that exist after Python's end."""
        self.write("extension.py", "import os\nclass nb_func:\n    __module__ = 'nanobind'\n"
                   "    def __del__(self, write=os.write): write(1, b'destroyed\\n')\n"
                   "    def __init__(self): self.me = self\nf = nb_func()\ndel nb_func.__init__\n")
        for launch in self.both(PYTHON, "-c", "import extension", modules="extension",
                                env={"PYTHONPATH": self.folder.name}):
            self.assertEqual(launch.out.count("destroyed"), 2, launch.out)

    def test_input_reaches_rank_0(self):
        text = "import sys; print(sys.stdin.seekable(), repr(sys.stdin.read()))"
        plain, ours = self.both(PYTHON, "-c", text, stdin="a\nb\r\n")
        self.assertEqual(sorted(plain.out.splitlines()), sorted(ours.out.splitlines()))
        self.assertIn("'a\\nb\\r\\n'", ours.out)

    def test_a_report_says_what_was_saved(self):
        self.write("slow.py", "import time\ntime.sleep(0.3)\n")
        launch = self.run_to_end("-np", 3, "--report", "--preload", "slow", PYTHON, "-c", "pass",
                                 env={"PYTHONPATH": self.folder.name})
        self.assert_ended(launch, 0)
        said = re.search(r"^ddprun: imported once, in (\S+) s: saves (\S+) s of other imports$",
                         launch.err, re.M)
        self.assertTrue(said, launch.err)
        once, seconds = map(float, said.groups())
        self.assertGreaterEqual(once, 0.3)
        self.assertAlmostEqual(seconds, 2 * once, delta=0.3 + once / 10)  # both are rounded

    # --- kills ---

    def helper_of(self, launch):
        """The process that imports: a child of the agent, before any rank is there."""
        def look():
            return [pid for pid in marked(self.mark)
                    if b"DDPRUN_PRELOAD=" in read_proc(pid, "environ")
                    and parent_of(pid) != launch.process.pid]
        return wait_until(look)

    def test_the_helper_is_killed_while_it_imports(self):
        self.write("slow.py", "import time; time.sleep(60)\n")
        launch = self.start("-np", 2, "-v", "--preload", "slow", PYTHON, "-c",
                            "import os; print('rank', os.environ['RANK'])",
                            env={"PYTHONPATH": self.folder.name})
        self.wait_for_helper(launch)
        launch.wait()
        self.assert_ended(launch, 0)
        self.assertIn("the interpreter that imports has ended", launch.err)
        self.assertEqual(sorted(w.split()[-1] for w in launch.out.splitlines()), ["0", "1"])

    def wait_for_helper(self, launch):
        pids = self.helper_of(launch)
        self.assertTrue(pids, launch.err)
        time.sleep(0.1)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)

    def test_a_death_in_the_middle_of_forking(self):
        """Of the helper before its third rank, also of one that is a fork itself, as with two packages; of
        a rank."""
        self.write("other.py", "")
        third = ("os.register_at_fork(before=lambda: os.getpid() == me and (count.append(1),"
                 " len(count) > 2 and os.kill(me, 9)))")
        rank = "os.register_at_fork(after_in_child=lambda: os.getppid() != me and os.kill(os.getpid(), 9))"
        for text, modules, forked in ((third, "doubt", 2), (third, "other,doubt", 2),
                                      (rank, "doubt", 0), (rank, "other,doubt", 0)):
            with self.subTest(text=text, modules=modules):
                self.write("doubt.py", f"import os; me, count = os.getpid(), []\n{text}\n")
                launch = self.run_to_end(
                    "-np", 4, "-v", "--preload", modules, PYTHON, "-c",
                    "import os, sys; print(os.environ['RANK'], 'doubt' in sys.modules)",
                    env={"PYTHONPATH": self.folder.name})
                self.assert_ended(launch, 0)
                self.assertIn(NOT_FORKED, launch.err)
                self.assertEqual(sorted(w.split(" ", 1)[1] for w in launch.out.splitlines()),
                                 [f"{r} {r < forked}" for r in range(4)])

    def test_one_fork_for_each_rank(self):
        """A second one would copy the page tables of all that was imported once more."""
        if os.uname().machine not in ("x86_64", "aarch64"):
            self.skipTest("ranks are forked twice here; needs system x86-64 or AArch64")
        self.write("forks.py", "import os; count = []; os.register_at_fork(before=lambda: count.append(1))\n")
        self.write("other.py", "")
        # as with glibc 2.43: the kernel clears another variable than the thread's id
        set_tid_address = 218 if os.uname().machine == "x86_64" else 96
        self.write("moved.py", "import ctypes, forks\nother = ctypes.c_int()\n"
                   f"ctypes.CDLL(None).syscall({set_tid_address}, ctypes.byref(other))\n")
        for modules in "forks", "other,forks", "moved":
            with self.subTest(modules=modules):
                launch = self.run_to_end("-np", 4, "-v", "--preload", modules, PYTHON, "-c",
                                         "import os, forks; print(os.environ['RANK'], len(forks.count))",
                                         env={"PYTHONPATH": self.folder.name})
                self.assert_ended(launch, 0)
                self.assertIn(FORKED, launch.err)
                self.assertEqual(sorted(w.split(" ", 1)[1] for w in launch.out.splitlines()),
                                 [f"{r} {r + 1}" for r in range(4)])

    def test_the_launcher_is_told_to_end_while_it_imports(self):
        self.write("slow.py", "import time; time.sleep(60)\n")
        launch = self.start("-np", 2, "--preload", "slow", PYTHON, "-c", "pass",
                            env={"PYTHONPATH": self.folder.name})
        self.assertTrue(self.helper_of(launch))
        launch.signal(signal.SIGTERM)
        self.assertNotEqual(launch.wait(), 0)  # tearDown: no process is left

    def test_the_agent_is_killed(self):
        """While it imports, and when the ranks run."""
        self.write("slow.py", "import time; time.sleep(60)\n")
        self.write("first.py", "")
        for modules in ("slow", "first,slow", "json"):
            launch = self.start("-np", 2, "--preload", modules, PYTHON, "-c",
                                "import time; print('up', flush=True); time.sleep(60)",
                                env={"PYTHONPATH": self.folder.name})
            if modules == "json":
                self.wait_for(launch, "[1] up")
                self.wait_for(launch, "[0] up")
            else:
                self.assertTrue(self.helper_of(launch))
            agents = [p for p in marked(self.mark) if parent_of(p) == launch.process.pid]
            self.assertTrue(agents)
            for agent in agents:
                os.kill(agent, signal.SIGKILL)
            self.assertNotEqual(launch.wait(), 0)

    def test_a_rank_is_killed(self):
        launch = self.start("-np", 3, "--preload", "json", PYTHON, "-c",
                            "import os, time; print(os.environ['RANK'], os.getpid(), flush=True);"
                            "time.sleep(60)")
        self.assertTrue(wait_until(lambda: launch.out.count("\n") == 3))
        victim = next(w for w in launch.out.splitlines() if " 1 " in w).split()[-1]
        os.kill(int(victim), signal.SIGKILL)
        launch.wait()
        self.assert_ended(launch, 137)
        self.assertIn("rank 1", launch.err)

if __name__ == "__main__":
    main()
