"""--preload: a forked rank and one started the plain way are the same to the script; and
what ddprun chooses by itself."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import zipfile

from launch import DDPRUN, LaunchTest, held, main, marked, parent_of, read_proc, wait_until

PYTHON = sys.executable
WORLD = os.path.join(os.path.dirname(os.path.abspath(__file__)), "programs", "world.py")
MODULES = "json,random,ctypes,multiprocessing,threading,logging,locale,resource"
FORKED = "the ranks are forked"
NOT_FORKED = "the ranks import by themselves, as "

# doc/preload.md, "What differs": all else has to be the same
ALLOWED = {"modules", "chance"}
# of the job, not of the rank
OF_THE_JOB = ("MASTER_PORT", "DDPRUN_MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_ERROR_FILE",
              "DDPRUN_TEST_MARK", "DDPRUN_DIAGNOSE", "NCCL_RAS_ADDR",
              "PMIX_NAMESPACE", "PMIX_SERVER_", "JAX_COORDINATOR_ADDRESS", "OMPI_MCA_orte_hnp_uri",
              "HOROVOD_GLOO_RENDEZVOUS_PORT")


def setUpModule():
    """What is remembered of refused imports is the tests' own."""
    folder = tempfile.TemporaryDirectory()
    unittest.addModuleCleanup(folder.cleanup)
    os.environ["XDG_CACHE_HOME"] = folder.name


def flat(value, path=""):
    """A tree of JSON as {path: leaf}, so that a difference names its place."""
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list) and path.count("/") < 4:
        items = enumerate(value)
    else:
        return {path: value}
    found = {}
    for key, item in items:
        found.update(flat(item, f"{path}/{key}"))
    return found


class Preload(LaunchTest):
    def both(self, *command, np=2, options=(), modules=MODULES, forked=True, **how):
        """The same job both ways."""
        plain = self.run_to_end("-np", np, "-v", "--no-preload", *options, *command, **how)
        ours = self.run_to_end("-np", np, "-v", "--preload", modules, *options, *command, **how)
        if forked:
            self.assertIn(FORKED, ours.err)
            self.assertNotIn(NOT_FORKED, ours.err)
        self.assertEqual(plain.rc, ours.rc, ours.err)
        return plain, ours

    def worlds(self, launch, np):
        found = {}
        for line in launch.out.splitlines():
            if "world {" in line:
                world = json.loads(line[line.index("{"):])
                world["environ"] = [e for e in world["environ"] if not e[0].startswith(OF_THE_JOB)]
                files = world["kernel"]["descriptors"]
                world["kernel"]["descriptors"] = {fd: how for fd, how in files.items()
                                                  if "/libffi." not in how[0] and fd != "62"}
                found[int(dict(world["environ"])["RANK"])] = world
        self.assertEqual(sorted(found), list(range(np)), launch.out + launch.err)
        return found

    def same_world(self, *command, np=2, **how):
        launches = self.both(*command, np=np, **how)
        plain, ours = (self.worlds(launch, np) for launch in launches)
        for rank in range(np):
            a, b = plain[rank], ours[rank]
            # imported things are more, never fewer
            self.assertLessEqual(set(a["modules"]), set(b["modules"]))
            for world in (a, b):
                for name in ALLOWED:
                    self.assertTrue(world[name])
            b["python"]["atexit"] -= how.get("forked", True)  # the helper's own
            a, b = (flat({k: v for k, v in w.items() if k not in ALLOWED}) for w in (a, b))
            different = {k: (a.get(k), b.get(k)) for k in a.keys() | b.keys()
                         if a.get(k) != b.get(k)}
            self.assertFalse(different, f"rank {rank}: plain, forked")
            self.assertGreater(len(a), 150)
        for worlds in (plain, ours):
            for i in range(3):  # no two ranks draw the same
                self.assertEqual(len({w["chance"][i] for w in worlds.values()}), np)
        return ours

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

    # --- doubts: the plain way ---

    def refused(self, why, *command, modules="doubt", np=2, **how):
        how.setdefault("env", {})["PYTHONPATH"] = self.folder.name
        launch = self.run_to_end("-np", np, "-v", "--preload", modules, *command, **how)
        self.assert_ended(launch, 0)
        self.assertIn(NOT_FORKED, launch.err)
        self.assertIn(why, launch.err)
        self.assertNotIn(FORKED, launch.err)
        return launch

    def test_imports_that_are_not_safe(self):
        for text, why in (
                ("import os; n = os.environ.get('RANK')", "keeps RANK"),
                ("import os; n = int(os.getenv('LOCAL_RANK', '0'))", "reads LOCAL_RANK"),
                ("import os; e = dict(os.environ)", "keeps RANK"),
                ("import os; e = {k: v for k, v in os.environ.items() if 'RANK' in k and v > '0'}",
                 "reads RANK"),
                ("import os; e = [str(v) for v in os.environ.values()]", "reads RANK"),
                ("import os; e = [type(v) for v in os.environ.values() if isinstance(v, str)]",
                 "reads RANK"),
                ("import os; e = repr(os.environ)", "prints the environment"),
                ("import copy, os; e = copy.copy(os.environ)", "copies os.environ itself"),
                ("import json, os\ntry: json.dumps({**os.environ})\nexcept TypeError: pass",
                 "reads RANK"),
                ("import os\nfor v in os.environ.values():\n"
                 "    try: v in 'abc'\n    except TypeError: pass", "reads RANK"),
                ("import os\ndef f(v):\n    try: return ' '.join([v])\n"
                 "    except TypeError: return ''\n[f(v) for v in os.environ.values()]",
                 "reads RANK"),
                ("import threading, time\nthreading.Thread(target=time.sleep, args=(9,),"
                 " daemon=True).start()", "has started threads (2 now)"),
                ("f = open('/dev/zero')", "has left '/dev/zero' open"),
                ("import mmap; m = mmap.mmap(-1, 4096)", "memory that forks would share"),
                ("import subprocess; p = subprocess.Popen(['sleep', '0.2'])",
                 "left a child process"),
                ("import signal; signal.setitimer(signal.ITIMER_VIRTUAL, 100)", "set a timer"),
                ("import random; random.seed(5)", "an import has seeded"),
                ("import os; os.environ['RANK'] = '7'", "sets RANK"),
                ("import os; os.environ.pop('RANK', None)", "removes RANK"),
                ("import os; token = os.urandom(9)", "'doubt' draws from the system's random"),
                ("import uuid; job = f'run-{uuid.uuid1}-{uuid.uuid4()}'", "'doubt' draws from"),
                ("import uuid; job = uuid.uuid4().hex; short = job[:8]", "'doubt' draws from"),
                ("import uuid; job = str(uuid.uuid4()); file = {job: f'/tmp/{job}'}",
                 "'doubt' draws from"),
                *((f"import uuid; job = uuid.uuid4().hex\n{kept}", "'doubt' draws from") for kept in (
                    "x = [((job[:8],),)]", "def f(): pass\nf.__doc__ = 'of ' + job",
                    "x = '\\N{SNOWMAN}' + job[-8:]", "x = lambda y=({'a': (job + '-',)},): y",
                    "x = {job[:8] + '-'}", "also = ''.join(job)[:31] + job[-1]")),
                ("import uuid; job = uuid.uuid4()", "'doubt' draws from"),
                ("import tempfile; tempfile.NamedTemporaryFile()", "has drawn from one"),
                ("import random; n = random.Random().random()", "has drawn from one"),
                ("import random; r = random.Random(); r.random()", "has drawn from one"),
                ("import random; n = random.SystemRandom().random()", "'doubt' draws from"),
                ("import tempfile; d = tempfile.TemporaryDirectory(); path = d.name",
                 "keeps the name of a temporary directory"),
                ("import tempfile; d = tempfile.TemporaryDirectory(); open(d.name + '/x', 'w').close()",
                 "has left files in a temporary directory"),
                ("import sys, types; m = sys.modules['mpi4py'] = types.ModuleType('mpi4py')\n"
                 "m.__path__ = []\ntry: import mpi4py.MPI\nexcept ImportError: pass",
                 "initialises MPI"),
                ("import os; os.chdir('/')", "has changed the directory"),
                ("raise SystemExit(0)", "'doubt' cannot be imported: SystemExit"),
                ("import os; os._exit(0)", "the interpreter that imports has ended"),
                ("import os; os.kill(os.getpid(), 9)", "the interpreter that imports has ended")):
            with self.subTest(text=text):
                self.write("doubt.py", text + "\n")
                launch = self.refused(why, PYTHON, "-c", "import os; print(os.environ['RANK'])")
                self.assertEqual(sorted(w.split()[-1] for w in launch.out.splitlines()),
                                 ["0", "1"])

    def test_a_module_that_does_not_exist_is_a_warning(self):
        why = r"'none' cannot be imported: ModuleNotFoundError: No module named 'none'( \(recorded in .*)?\n"
        for np, line in ((2, rf"ddprun: warning: --preload: \S+: {NOT_FORKED}{why}"), (1, "")):
            for _ in range(2):  # the second time it is known
                launch = self.run_to_end("-np", np, "--preload", "none", PYTHON, "-c", "pass")
                self.assert_ended(launch, 0)
                self.assertRegex(launch.err, f"^{line}$")

    def test_looking_for_a_name_among_all_variables(self):
        """As tqdm and fsspec do: names, and values that are the same, are for all to see."""
        self.write("looks.py",
                   "import os\n"
                   "items = {k: v for k, v in os.environ.items() if k.startswith('LOOK_')}\n"
                   "copy = dict(os.environ)\n"
                   "mine = [copy[k] for k in copy if k.startswith('LOOK_')]\n"
                   "del copy\n"
                   "names = sorted(os.environ), sorted(os.environb), len(os.environ)\n"
                   "there = [n in os.environ for n in ('RANK', 'NOWHERE')]\n"
                   "os.environ.setdefault('RANK', '7')\n")
        text = "import json, looks; print(json.dumps([%s], default=str))" % ", ".join(
            f"looks.{name}" for name in ("items", "mine", "names", "there"))
        plain, ours = self.both(PYTHON, "-c", text, modules="looks",
                                env={"PYTHONPATH": self.folder.name, "LOOK_A": "1"})
        self.assertEqual(sorted(plain.out.splitlines()), sorted(ours.out.splitlines()))
        self.assertIn('{"LOOK_A": "1"}, ["1"]', ours.out)

    def drawn(self, text, same, different, **how):
        """What the ranks print of these expressions, with the import in each and shared: the
        first are the same for all, and as ever; no two of the second are."""
        self.write("draws.py", text)
        prints = "import draws; print([%s], '|', *[%s])" % (
            ", ".join(f"draws.{x}" for x in same), ", ".join(f"draws.{x}" for x in different))
        launches = self.both(how.get("python", PYTHON), "-c", prints, np=3, modules="draws",
                             env={"PYTHONPATH": self.folder.name})
        fixed = set()
        for launch in launches:
            lines = [line.partition("] ")[2].split("|") for line in launch.out.splitlines()]
            self.assertEqual(len(lines), 3, launch.err)
            fixed.update(line[0] for line in lines)
            self.assertEqual(len({n for line in lines for n in line[1].split()}),
                             3 * len(different), launch.out)
        self.assertEqual(len(fixed), 1, fixed)

    def test_private_generators(self):
        self.drawn("from random import Random, SystemRandom\n"
                   "from os import urandom\n"
                   "class Mine(Random):\n    pass\n"
                   "own, mine, system = Random(), Mine(), SystemRandom()\n"
                   "given, late, early = Random(5), Random(), Random(5)\n"
                   "late.seed(6); late.random(); given.gauss(0, 1); early.seed()\n"
                   "import tempfile, uuid\n"
                   "folder, session, job = tempfile.gettempdir(), uuid.uuid4().hex, str(uuid.uuid4())\n"
                   "from draws import session as again\n"
                   "__name__ = 'sympy.core.symbol'\nclass Dummy:\n"
                   "    prng = Random(); first = prng.random()\n"
                   "__name__ = 'scipy.stats._distribution_infrastructure'\n"
                   "def _generate_example(): return urandom(16)\ntext = _generate_example()\n"
                   "__name__ = 'opentelemetry.context'\n"
                   "def create_key(): return str(uuid.uuid4())\nkey = 'key-' + create_key()\n"
                   "__name__ = 'rich.style'\nfrom random import getrandbits\nn = getrandbits(24)\n"
                   "__name__ = 'draws'\n",
                   ("given.gauss(0, 1)", "late.random()", "urandom", "folder", "session == draws.again",
                    "uuid.UUID(draws.job).version"),
                   ("session", "job", "tempfile.mktemp()", "Dummy.prng.random()", "own.random()",
                    "mine.random()", "system.random()", "early.random()"))

    def test_identifiers_of_a_session(self):
        """Those of well-known packages, which others refer to in what they send: each rank's own."""
        self.write("diffusers/__init__.py", "from .utils import hub_utils\n")
        self.write("diffusers/utils/__init__.py", "")
        self.write("diffusers/utils/hub_utils.py", "from uuid import uuid4\nSESSION_ID = uuid4().hex\n")
        self.drawn("from diffusers.utils import hub_utils\nfrom diffusers.utils.hub_utils import SESSION_ID\n",
                   ("SESSION_ID == draws.hub_utils.SESSION_ID",), ("SESSION_ID",))
        self.write("diffusers/utils/hub_utils.py", "from uuid import uuid4\nSESSION_ID = uuid4()\n")
        self.write("doubt.py", "import diffusers\n")
        self.refused("'diffusers.utils.hub_utils' draws from", PYTHON, "-c", "pass")

    def test_temporary_directories(self):
        """Each rank has its own, and removes it; none is left by the helper."""
        os.mkdir(self.path("tmp"))
        self.write("doubt.py",
                   "import atexit, tempfile\nclass A:\n    d = tempfile.TemporaryDirectory('-own')\n"
                   "atexit.register(A.d.cleanup)\nfrom tempfile import TemporaryDirectory as T\n"
                   "other = T(prefix='mine-')\nwith T() as gone: pass\ndel gone\n")
        text = ("import doubt, os\nfor d in doubt.A.d, doubt.other:\n"
                "    open(d.name + '/' + os.environ['RANK'], 'w').close()\n"
                "    print(os.path.basename(d.name), os.listdir(d.name) == [os.environ['RANK']])\n"
                "print(doubt.A.d._finalizer.alive, doubt.other.name.startswith(os.environ['TMPDIR']))")
        for launch in self.both(PYTHON, "-W", "ignore", "-c", text, np=3, modules="doubt", env={
                "PYTHONPATH": self.folder.name, "TMPDIR": self.path("tmp")}):
            lines = [line.partition("] ")[2] for line in launch.out.splitlines()]
            self.assertEqual(len(set(lines)), 7, launch.out)
            self.assertTrue(all(line.endswith(" True") for line in lines), launch.out)
            self.assertEqual(sum("-own " in line for line in lines), 3)
            self.assertEqual(sum(line.startswith("mine-") for line in lines), 3)
            self.assertEqual(os.listdir(self.path("tmp")), [])

    def test_private_generators_of_numpy(self):
        if subprocess.call([PYTHON, "-c", "import numpy"], stderr=subprocess.DEVNULL):
            self.skipTest("there is no NumPy; needs package python3-numpy")
        self.drawn("import numpy.random as n\n"
                   "own, new = n.RandomState(), n.default_rng()\n"
                   "kinds = [n.Generator(k()) for k in (n.MT19937, n.PCG64, n.Philox, n.SFC64)]\n"
                   "given, fixed = n.RandomState(5), n.default_rng(5)\n"
                   "import uuid\nsession = uuid.uuid4().hex\n"
                   "given.normal(); fixed.random()\n",
                   ("given.rand()", "fixed.random()"),
                   ("own.rand()", "new.random()", "n.rand()", "kinds[0].random()",
                    "kinds[1].random()", "kinds[2].random()", "kinds[3].random()",
                    "n.SeedSequence().entropy", "new.bit_generator._seed_seq.entropy"))
        for text, why in (
                ("x = n.default_rng().random()", "draws from the system's random"),
                ("x = n.rand()", "drawn from a generator of NumPy"),
                ("g = n.default_rng(); x = g.random()", "drawn from a generator of NumPy"),
                ("s = n.SeedSequence()", "draws from the system's random"),
                ("s = n.SeedSequence(); g = n.default_rng(s)", "or from its seed"),
                ("g = [n.PCG64(s) for s in n.SeedSequence().spawn(2)]", "or from its seed"),
                ("n.seed(5)", "has seeded NumPy")):
            with self.subTest(text=text):
                self.write("doubt.py", f"import numpy.random as n\n{text}\n")
                self.refused(why, PYTHON, "-c", "pass")

    def test_private_generators_of_torch(self):
        if subprocess.call([PYTHON, "-c", "import torch"], stderr=subprocess.DEVNULL):
            self.skipTest("there is no torch; needs torch")
        self.drawn("import torch\nplain, given, large = (torch.Generator() for _ in range(3))\n"
                   "given.manual_seed(5); large.manual_seed(1 << 40)\n",
                   ("torch.rand(1, generator=draws.plain)", "torch.rand(1, generator=draws.given)",
                    "torch.rand(1, generator=draws.large)", "torch.Generator.seed"),
                   ("torch.rand(1).item()",))
        can_copy = subprocess.call([PYTHON, "-c", "import torch; torch.Generator.clone_state"],
                                   stderr=subprocess.DEVNULL) == 0
        copies = (("g = torch.default_generator.clone_state()", "'doubt' has got a random seed of torch"),
                  ("import copy; g = copy.deepcopy(torch.default_generator)",
                   "has got a random seed of torch")) if can_copy else ()
        for text, why in (("g = torch.Generator(); g.seed()", "'doubt' has got a random seed of torch"),
                          ("g = {'a': ({'b': torch.Generator()},)}; g['a'][0]['b'].seed()",
                           "has got a random seed of torch"),
                          ("g = torch.Generator().manual_seed(torch.initial_seed())",
                           "'doubt' has got a random seed of torch"),
                          *copies,
                          ("seed = torch.seed()", "'doubt' has got a random seed of torch"),
                          ("x = torch.rand(3)", "has drawn from torch"),
                          ("torch.manual_seed(5)", "has seeded torch")):
            with self.subTest(text=text):
                self.write("doubt.py", f"import torch\n{text}\n")
                self.refused(why, PYTHON, "-c", "pass")

    def test_a_real_tqdm(self):
        if subprocess.call([sys.executable, "-c", "import tqdm"], stderr=subprocess.DEVNULL):
            self.skipTest("there is no tqdm; needs package python3-tqdm")
        self.both(sys.executable, "-c", "import tqdm; print(tqdm.tqdm)", modules="tqdm")

    def test_an_allocator_is_told_not_to_start_a_thread(self):
        """Like pyarrow's, which reads a variable of C. No rank has it, but where it is the user's."""
        self.write("allocator.py", "import ctypes, os, threading, time\n"
                   "get = ctypes.CDLL(None).getenv\nget.restype = ctypes.c_char_p\npid = os.getpid()\n"
                   "conf = get(b'JE_ARROW_MALLOC_CONF') or b''\nif b'background_thread:false' not in conf:\n"
                   "    threading.Thread(target=time.sleep, args=(9,), daemon=True).start()\n")
        prints = "import os, allocator as a; print(a.pid == os.getpid(), a.get(b'JE_ARROW_MALLOC_CONF'))"
        for mine, said in ((None, "False None"), ("abort:true", "True b'abort:true'")):
            with self.subTest(mine=mine):
                launch = self.run_to_end("-np", 2, "-v", "--preload", "allocator", PYTHON, "-c", prints, env={
                    "PYTHONPATH": self.folder.name, **({"JE_ARROW_MALLOC_CONF": mine} if mine else {})})
                self.assertEqual(NOT_FORKED in launch.err, bool(mine), launch.err)
                self.assertEqual(launch.out.count(said + "\n"), 2, launch.out)

    def test_what_is_refused_is_left_to_the_ranks(self):
        """What was imported before it is shared."""
        self.write("first.py", "import os, random; pid = os.getpid()\nown = random.Random()\n")
        self.write("third.py", "import os; pid = os.getpid()\n")
        prints = ("import os, random, first, doubt, third; me = os.getpid(); print(first.pid == me,"
                  " third.pid == me, doubt.x, '|', random.random(), first.own.random())")
        for i, (text, why, third) in enumerate((
                ("x = 1", "", "False"),
                ("import os; x = os.environ['RANK'] and 1", "import of 'doubt' reads RANK", "True"),
                ("import os; x = 1; n = os.environ['RANK']", "'doubt' keeps RANK", "True"),
                ("import random; x = random.random() and 1", "has drawn from one", "True"),
                ("print('hello'); x = 1", "", "False"),
                ("import os; print('hello', flush=True); x = os.environ['RANK'] + '1' and 1",
                 "import of 'doubt' reads RANK", "True"),
                ("import threading, time\nthreading.Thread(target=time.sleep, args=(9,),"
                 " daemon=True).start(); x = 1", "has started threads (2 now)", "True"),
                ("import first\nif not hasattr(first, 'again'): first.again = 1; raise OSError\n"
                 "x = 1", "'doubt' cannot be imported: OSError", None))):
            with self.subTest(text=text):
                # of another size each time: a .pyc knows its source by that and the second
                self.write("doubt.py", text + "\n" * (i + 1))
                launch = self.run_to_end("-np", 3, "-v", "--preload", "first,doubt,third", PYTHON,
                                         "-c", prints, env={"PYTHONPATH": self.folder.name})
                self.assertIn(FORKED, launch.err)
                self.assertIn(why, launch.err)
                self.assertEqual("left to the ranks" in launch.err, bool(why), launch.err)
                if third is None:  # the ranks come to the same error by themselves
                    self.assertIn("OSError", launch.err)
                    continue
                self.assert_ended(launch, 0)
                lines = [line.partition("] ")[2].split("|") for line in launch.out.splitlines()]
                lines = [line for line in lines if line != ["hello"]]
                self.assertEqual([line[0] for line in lines], [f"False {third} 1 "] * 3)
                self.assertEqual(len({n for line in lines for n in line[1].split()}), 6)

    def test_what_imports_write_is_written_by_each_rank(self):
        """With the rank's own process id, and not what a refused import has written."""
        self.write("first.py", "import os, sys\nprint('hello', os.getpid())\n"
                   "sys.stderr.write('W1123 %d a.py] careful\\n' % os.getpid())\n")
        self.write("second.py", "import os\nos.write(1, b'more\\n')\n")
        self.write("doubt.py", "print('doubt')\nf = open('/dev/zero')\n")
        text = "import os, first, second, doubt; print('rank', os.getpid(), flush=True)"
        for modules in "first", "first,second", "first,second,doubt":
            for again in (False, True):
                launches = self.both(PYTHON, "-c", text, modules=modules, forked=not again or
                                     "doubt" not in modules, options=["--tag-output=on"],
                                     env={"PYTHONPATH": self.folder.name})
                for launch in launches:
                    self.assert_ended(launch, 0)
                    for rank in (0, 1):
                        def lines(t):
                            return [line[4:] for line in t.splitlines() if line.startswith(f"[{rank}] ")]
                        out = lines(launch.out)
                        pid = out[-1].split()[-1]
                        self.assertEqual(out, [f"hello {pid}", "more", "doubt", f"rank {pid}"])
                        self.assertEqual(lines(launch.err), [f"W1123 {pid} a.py] careful"])

    def test_modules_that_keep_the_rank_for_later(self):
        """As torchmetrics does. An import that reads it then is left to the ranks."""
        self.write("torchmetrics/utilities/__init__.py", "")
        self.write("torchmetrics/__init__.py", "from torchmetrics.utilities import prints\nimport wave\n")
        self.write("torchmetrics/utilities/prints.py", "import os\ndef rank_zero_only(f): pass\n"
                   "rank_zero_only.rank = getattr(rank_zero_only, 'rank',"
                   " int(os.environ.get('LOCAL_RANK', 0)))\n")
        self.write("doubt.py", "from torchmetrics.utilities.prints import rank_zero_only as f\n"
                   "if f.rank == 0: print('first')\n")
        for more, said in (("", ""), (",doubt", "reads RANK"), (",doubt", "")):
            plain, ours = self.both(
                PYTHON, "-c", "import torchmetrics, sys, doubt\n"
                "print(f'{torchmetrics.utilities.prints.rank_zero_only.rank + 0}', flush=True)",
                modules="json,torchmetrics" + more, forked=not more, options=["--tag-output=on"],
                env={"PYTHONPATH": self.folder.name})
            self.assertIn(FORKED, ours.err)
            self.assertIn(said, ours.err)
            for launch in plain, ours:
                self.assertEqual(sorted(launch.out.splitlines()), ["[0] 0", "[0] first", "[1] 1"])

    def test_a_refused_import_is_paid_once(self):
        """In the next launch it is not tried again, until something has changed."""
        count = self.write("count", "")
        self.write("first.py", "")
        for modules, text, why, forked in (
                ("doubt", "import os; os.chdir('/')", "an import has changed the directory", False),
                ("first,doubt", "print('x')\nf = open('/dev/zero')", "has left '/dev/zero' open", True)):
            with self.subTest(modules=modules, text=text):
                self.write("doubt.py", f"open('{count}', 'a').write('d')\n{text}\n")
                imports = []
                for again in (False, True):
                    self.write("count", "")
                    launch = self.run_to_end("-np", 2, "-v", "--preload", modules, PYTHON, "-c",
                                             "pass", env={"PYTHONPATH": self.folder.name})
                    self.assert_ended(launch, 0)
                    self.assertEqual(FORKED in launch.err, forked, launch.err)
                    self.assertEqual(why in launch.err, not (forked and again), launch.err)
                    self.assertEqual("recorded in" in launch.err, again and not forked, launch.err)
                    with open(count, encoding="ascii") as f:
                        imports.append(f.read())
                self.assertEqual(imports, ["d", ""])

    def test_another_attempt_is_forked_from_a_child(self):
        self.write("first.py", "import os; pid = os.getpid()\n")
        self.write("second.py", "import os; pid = os.getpid()\n")
        text = ("import os, sys, first, second; n = os.environ['TORCHELASTIC_RESTART_COUNT']\n"
                "print(f'{n} {first.pid} {second.pid}', flush=True); sys.exit(n == '0')")
        launch = self.run_to_end("-np", 2, "-v", "--max-restarts", 1, "--preload", "first,second",
                                 PYTHON, "-c", text, env={"PYTHONPATH": self.folder.name})
        self.assert_ended(launch, 0)
        said = [line.split()[-3:] for line in launch.out.splitlines()]
        self.assertEqual({words[0] for words in said}, {"0", "1"})
        self.assertEqual(len({tuple(words[1:]) for words in said}), 1)
        self.assertNotEqual(said[0][1], said[0][2])

    def test_a_file_beside_the_script_hides_a_module(self):
        self.write("colorsys.py", "mine = 1\n")
        script = self.write("s.py", "import colorsys; print(colorsys.mine)\n")
        launch = self.run_to_end("-np", 2, "-v", "--preload", "colorsys", PYTHON, script)
        self.assert_ended(launch, 0)
        self.assertIn("hides a module", launch.err)
        self.write("sched.py", "mine = 1\n")
        for first, second in ("sched", "colorsys"), ("colorsys", "sched"):
            launch = self.run_to_end("-np", 2, "--preload", f"{first},{second}", PYTHON, script,
                                     env={"PYTHONPATH": self.folder.name})
            self.assert_ended(launch, 0)
            self.assertIn(f"/{first}.py' hides a module", launch.err)

    def test_commands_that_are_not_fit(self):
        self.write("doubt.py", "")
        counting = f"import os; os.write(os.open('{self.path('count')}', 1089, 384), b'x')"
        for command, why in (
                ((PYTHON, "-E", "-c", counting), "option '-E'"),
                ((PYTHON, "-I", "-c", counting), "option '-I'"),
                ((PYTHON, "-uS", "-c", counting), "option '-uS'"),
                (("sh", "-c", f"printf x >> '{self.path('count')}'"), "is not a Python")):
            with self.subTest(command=command):
                self.write("count", "")
                self.refused(why, *command)
                with open(self.path("count"), encoding="ascii") as f:
                    self.assertEqual(f.read(), "xx", "run once by each rank")

    def test_one_rank_is_started_as_ever(self):
        self.write("doubt.py", "")
        self.refused("there is only one", PYTHON, "-c", "pass", np=1)

    def test_variables_that_differ(self):
        """OpenMP finds its places while it loads, and they are not the same CPUs."""
        launch = self.run_to_end("-np", 2, "-v", "--preload", "json", "--bind-to", "hwthread",
                                 PYTHON, "-c", "pass", env={"OMP_PROC_BIND": "true"})
        if "cannot bind" in launch.err:
            self.skipTest("ranks cannot be bound; needs system with two CPUs")
        self.assert_ended(launch, 0)
        self.assertIn("'OMP_PROC_BIND=true'", launch.err)

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


class Choice(LaunchTest):
    """Without --preload: what the script is sure to import first, when torch comes with it.
    A folder on PYTHONPATH plays the site's packages."""

    def setUp(self):
        super().setUp()
        self.env = {"PYTHONPATH": self.path("site")}
        os.makedirs(self.path("site", "torch", "nn"))
        self.write("site/torch/__init__.py", "import os; os.environ.setdefault('BY_TORCH', '1')\n")
        self.write("site/torch/nn/__init__.py", "")
        for name, needs in (("trainer", "torch (>=2.0) ; python_version > '3'"),
                            ("perhaps", "torch ; extra == 'torch'"), ("vision", "torchvision")):
            os.makedirs(self.path("site", f"{name}-1.0.dist-info"))
            self.write(f"site/{name}-1.0.dist-info/METADATA", f"Requires-Dist: {needs}\n\n")
            self.write(f"site/{name}.py", "import torch\n")
        self.write("site/trainer.py", "import torch\ndef main(): print('rank trains')\n")

    def told(self, *command, options=("-np", 2), **how):
        launch = self.run_to_end("--dry-run", *options, *command, env=self.env, **how)
        self.assert_ended(launch, 0)
        return "".join(line.partition("Python ranks: ")[2] for line in launch.out.splitlines())

    def test_what_a_script_says(self):
        self.write("beside.py", "import json\nX = {'a': [1, -2]}\ndef f(a: int = 3) -> str:\n"
                   "    print(a)\n")
        self.write("busy.py", "import csv\ndef f(): pass\nf()\n")
        os.makedirs(self.path("pack", "sub"))
        os.makedirs(self.path("folder"))
        self.write("folder/one.py", "import wave\n")
        os.makedirs(self.path("site", "Some_Trainer-1.0.dist-info"))
        self.write("site/Some_Trainer-1.0.dist-info/METADATA", "Requires-Dist: torch\n\n")
        self.write("site/some_trainer.py", "")
        self.write("pack/__init__.py", "from . import one\n")
        self.write("pack/one.py", "import wave\n")
        self.write("pack/sub/__init__.py", "")
        self.write("pack/__main__.py", "from .one import y\nimport torch\n")
        for text, imports in (
                ("import torch", "torch"),
                ('"""what it is"""\nfrom __future__ import annotations\nimport json, torch.nn\n'
                 "csv.f()\nimport csv", "json, torch.nn"),
                ("from torch import nn", "torch"),
                ("import trainer", "trainer"),
                ("from beside import X\nimport torch", "json, torch"),
                ("import perhaps", "perhaps"),
                ("import some_trainer", "some_trainer"),
                ("import torch\nimport busy\nimport wave", "torch, csv"),
                ("from folder.one import y\nimport torch", "wave, torch"),
                ("import pack.sub, torch", "wave, torch"),
                ("from pack import one, sub\nimport torch", "wave, torch"),
                ("try:\n    import torch\nexcept ImportError:\n    torch = None\nimport csv",
                 "torch, csv"),
                ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import nothing\n"
                 "import torch", "typing, torch"),
                ("import os\nos.environ['A'] = 'b'\nos.environ.setdefault('A', 'c')\n"
                 "import torch", "os, torch"),
                ("import os\nN = min(8, max(1, os.cpu_count() - 1))\nos.environ['A'] = str(N)\n"
                 "import torch", "os, torch"),
                ("import torch\n@torch.jit.script\ndef f(): pass\ntorch.set_printoptions(linewidth=3)\n"
                 "import wave", "torch, wave"),
                ("N: int = 3\nNAMES = ['a', 'b']\nimport torch", "torch"),
                ("async def f(*a, b=1, **c): pass\npass\nimport torch", "torch"),
                ("import torch\nimport nothing", "torch"),
                ("try:\n    import nothing\nexcept ImportError:\n    import csv\nimport torch",
                 "csv, torch"),
                ("try:\n    import nothing.x\n    import wave\nexcept (ValueError,"
                 " ModuleNotFoundError) as e:\n    nothing = None\nimport torch", "torch"),
                ("if __name__ == '__main__':\n    import torch", "torch"),
                ("print(1)\nimport torch", "torch"),
                ("import time, re\nstart = time.time()\nfind = re.compile('a').match\n"
                 "import torch", "time, re, torch"),
                ("from pathlib import Path\nhere = Path(__file__).resolve().parent / 'x'\n"
                 "text = [line.strip() for line in open(here)]\nimport torch", "pathlib, torch"),
                ("import argparse\np = argparse.ArgumentParser()\np.add_argument('--n', type=int)\n"
                 "args = p.parse_args()\nimport torch", "argparse, torch"),
                ("import logging\nlog = logging.getLogger(__name__)\nimport torch",
                 "logging, torch"),
                ("import warnings\nwarnings.filterwarnings('ignore', category=UserWarning)\n"
                 "import torch", "warnings, torch"),
                (f"import sys\nX = '{self.path('pack')}'\nif X not in sys.path:\n"
                 "    sys.path.append(X)\nimport one, torch", "sys, wave, torch"),
                ("import os, sys\nhere = os.path.dirname(os.path.abspath(__file__))\n"
                 "sys.path.insert(0, os.path.join(here, 'pack'))\nimport one, torch",
                 "os, sys, wave, torch"),
                ("import sys\nfrom pathlib import Path\nsys.path.insert(1, str(Path(__file__)"
                 ".resolve().parents[0] / 'pack'))\nimport one, torch",
                 "sys, pathlib, wave, torch"),
                ("import torch\ntorch.backends.cudnn.benchmark = True\nimport gc\ngc.disable()\n"
                 "import wave", "torch, gc, wave"),
                ("import sys, torch\nif sys.version_info < (3, 8):\n    raise OSError('old')\n"
                 "elif not torch:\n    import torch.nn\n    sys.exit(1)\nimport wave",
                 "sys, torch, wave"),
                ("import torch\nclass Net(torch.nn.Module):\n    n: int = 3\n"
                 "    def f(self): g()\n    @staticmethod\n    def s(): g()\n"
                 "class Other(Net, object): pass\nimport wave", "torch, wave"),
                ("import torch, dataclasses, functools\n@dataclasses.dataclass(frozen=True)\n"
                 "class A:\n    x: list = dataclasses.field(default_factory=lambda: g())\n"
                 "@torch.no_grad()\n@functools.lru_cache(None)\ndef f(): g()\nimport wave",
                 "torch, dataclasses, functools, wave"),
                ("import os, torch\nassert torch.__version__.split('+')[0] >= '1'\n"
                 "with open(__file__) as f:\n    lines = f.read().split()\n"
                 "for line in lines:\n    n = len(line)\n    names = {}\n    names[n] = 1\n"
                 "import wave", "os, torch, wave")):
            with self.subTest(text=text):
                script = self.write("script.py", text + "\n")
                self.assertIn(f"that has imported {imports}, as the script does first",
                              self.told(PYTHON, script))
        self.assertIn("has imported wave, torch,",
                      self.told(PYTHON, "-m", "pack", cwd=self.folder.name))
        self.assertIn("has imported torch,", self.told(PYTHON, "-uc", "import torch"))

    def test_what_is_not_sure(self):
        self.write("busy.py", "import csv\ndef f(): pass\nf()\n")
        self.write("broken.py", "import (\n")
        begin = "does not begin with an import of torch: "
        for text, why in (
                ("import json", begin + "it has no import that may"),
                ("import vision", begin + "it ends"),
                ("import os\nos.environ['A'] = str(id)\nimport torch", begin + "line 2"),
                ("import busy\nimport torch", begin + "line 3 of busy.py may do anything"),
                ("import broken\nimport torch", begin + "broken.py is no Python"),
                ("import nothing\nimport torch", begin + "there is no module 'nothing'"),
                ("if True:\n    import torch", begin + "'torch' may be imported or not"),
                ("if __name__ != '__main__':\n    import torch", begin),
                ("try:\n    import nothing\nexcept KeyError: pass\nimport torch",
                 begin + "there is no module 'nothing'"),
                ("try:\n    if 1: import nothing\nexcept ImportError: pass\nimport torch",
                 begin + "there is no module 'nothing'"),
                ("try:\n    n = int('x')\n    import torch\nexcept ValueError: pass",
                 begin + "'torch' may be imported or not"),
                ("import torch as", "script.py is no Python")):
            with self.subTest(text=text):
                script = self.write("script.py", text + "\n")
                told = self.told(PYTHON, script)
                self.assertIn("each imports by itself, as ", told)
                self.assertIn(why, told)
        self.not_passed_over()
        script = self.write("script.py", "import torch\n")
        for command, why in (((PYTHON, "-"), "through stdin"),
                             ((PYTHON, "-m", "nothing.x"), "'nothing.x' is not found"),
                             ((PYTHON, self.path("nowhere.py")), "cannot be read"),
                             ((PYTHON, "-I", script), "option '-I'")):
            with self.subTest(command=command):
                self.assertIn(why, self.told(*command))
        self.assertIn("because of --no-preload", self.told("--no-preload", PYTHON, script))
        self.assertIn("no host has two", self.told(PYTHON, script, options=()))
        self.assertIn("has imported json, if", self.told("--preload", "json", PYTHON, script))
        self.assertEqual(self.told("true"), "")

    def not_passed_over(self):
        """Statements that may change what the next import does: nothing comes after them."""
        for text in (
                "def f(): pass\nf()", "class A: pass\na = A()", "f = open; open = exec; open('x')",
                "open('x', 'w')", "open('x', mode=M)", "eval('1')", "setattr(csv, 'x', 1)",
                "csv.x = 1", "os.environ['CUDA_VISIBLE_DEVICES'] = os.environ['SLURM_LOCALID']",
                "os.environ['B'] = 'b'\nos.environ['A'] = os.environ['B']", "os.environ.update(A='b')",
                "m = []\nm.append(1)\nos.environ['A'] = str(m)",
                "if os.environ: os.environ['A'] = 'b'", "os.chdir('/')", "os.system('true')",
                "m = sys.modules; m['x'] = None", "sys.path.append(os.environ['X'] + f())",
                "sys.path = []", "[os.environ][0]['A'] = 'b'",
                "for d in [os.environ]: d['A'] = 'b'", "sys.exit(0)", "raise OSError",
                "x = {'a': os.abort}['a']()", "x = getattr(os, 'abort')()",
                "f = getattr(os, 'abort')\nf()", "x = [f() for f in [os.abort]]",
                "import functools\nx = functools.partial(os.abort)()",
                "import functools\nf = functools.partial(os.abort)\nx = f()",
                "def f(x): pass\nx = list(map(f, [1]))", "x = sorted([1], key=lambda n: os.abort())",
                "import re\ndef f(x): pass\nre.sub('a', f, 'a')", "def f(x): pass\n@f\nclass A: pass",
                "import argparse\np = argparse.ArgumentParser()\ndef f(): pass\n"
                "p.set_defaults(func=f)\np.parse_args().func()",
                "class A:\n    def __init_subclass__(cls): os.abort()\nclass B(A): pass",
                "import enum\nclass A(enum.Enum):\n    X = 1\n    def __init__(self, n): os.abort()",
                "class A:\n    x = os.abort()", "class A(os.abort()): pass",
                "class M(type): pass\nclass A(metaclass=M): pass", "def f(a=os.abort()): pass",
                "def f(a: os.abort()): pass", "@os.abort\ndef f(): pass", "(x := os.abort())",
                "x = f'{os.abort()}'", "while True: os.abort()", "with os.abort(): pass",
                "from csv import *\nprint(1)", "from pathlib import Path\nPath('x').write_text('')",
                "import logging\nlogging.getLogger('x').setLevel(10)",
                "import warnings\nwarnings.simplefilter(os.environ['X'])",
                "import warnings\nif os.environ: warnings.simplefilter('ignore')",
                "import multiprocessing as m\nm.set_start_method('spawn')", "import random\n"
                "random.seed(1)", "if os.environ: f = print\nelse: f = os.abort\nf()"):
            with self.subTest(text=text):
                script = self.write("script.py", f"import csv, os, sys\n{text}\nimport torch\n")
                self.assertIn("does not begin with an import of torch: line ",
                              self.told(PYTHON, script))
        for text in ("set_default_dtype(torch.half)", "manual_seed(1)", "nn.x = None"):
            script = self.write("script.py", f"import torch\ntorch.{text}\nimport wave\n")
            self.assertIn("has imported torch, as", self.told(PYTHON, script))

    def ranks(self, *command, forked, **how):
        launch = self.run_to_end("-np", 2, "-v", *command, env=self.env, **how)
        self.assert_ended(launch, 0)
        self.assertEqual(FORKED in launch.err, forked, launch.err)
        return sorted(line.split(" ", 1)[1] for line in launch.out.splitlines()), launch

    def test_by_itself(self):
        """Forked, with what imports have done to the environment."""
        script = self.write("script.py", "import os\nos.environ['MINE'] = '2'\nimport torch\n"
                            "print(os.environ['RANK'], os.environ['BY_TORCH'],"
                            " os.environ['MINE'])\n")
        plain, launch = self.ranks("--no-preload", PYTHON, script, forked=False)
        self.assertNotIn(NOT_FORKED, launch.err)
        self.assertEqual(plain, ["0 1 2", "1 1 2"])
        self.assertEqual(plain, self.ranks(PYTHON, script, forked=True)[0])

    def test_a_console_script(self):
        text = ("# -*- coding: utf-8 -*-\nimport re\nimport sys\nfrom trainer import main\n"
                "if __name__ == '__main__':\n    sys.exit(main())\n")
        script = self.write("train", f"#!{PYTHON}\n{text}", 0o755)
        self.assertEqual(self.ranks(script, forked=True)[0], ["rank trains"] * 2)
        script = self.write("train", f"#!/bin/sh\n'''exec' \"{PYTHON}\" \"$0\" \"$@\"\n' '''\n"
                            f"{text}", 0o755)
        self.assertEqual(self.ranks(script, forked=True)[0], ["rank trains"] * 2)

    def test_the_plain_way(self):
        script = self.write("script.py", "import json\nprint('rank', json.loads('1'))\n")
        ranks, launch = self.ranks(PYTHON, script, forked=False)
        self.assertIn("does not begin with an import of torch", launch.err)
        self.assertEqual(ranks, ["rank 1"] * 2)
        _, launch = self.ranks("sh", "-c", "echo a b", forked=False)
        self.assertNotIn(NOT_FORKED, launch.err)

    def test_a_well_known_package_that_is_refused(self):
        """The helper does not fork before it until it has failed a check once; then torch is shared."""
        self.write("site/scipy.py", "import os; os.getenv('RANK') + ''\n")
        os.mkdir(self.path("site/__pycache__"))  # later it would change the folder
        script = self.write("script.py", "import torch, scipy\nprint('a', 'BY_TORCH' in scipy.os.environ)\n")
        for forked in (False, True, True):
            self.assertEqual(self.ranks(PYTHON, script, forked=forked)[0], ["a True"] * 2)

    def test_what_torch_imports_later(self):
        """Where the script trains, and does not mention a variable that this import reads; a refusal
        is paid once, and does not cost the other imports."""
        self.write("site/torch/_compile.py", "")
        self.write("site/torch/_dynamo.py", "import os; os.getenv('TORCH_X'); os.getenv('CI')\n")
        tell = "\nimport sys\nprint('a', 'torch._dynamo' in sys.modules)\n"
        for begin, shared, refused in (
                ("import torch", False, 0), ("import torch\noptim = 1", True, 0),
                ("import torch\nfor CIFAR in 'zero_grad': pass", True, 0),
                ("import torch\noptim = {'TORCH_X': 1}", False, 1),
                ("optim = 'CI'\nimport torch", False, 1)):
            with self.subTest(begin=begin):
                script = self.write("script.py", begin + tell)
                for again in range(2):
                    ranks, launch = self.ranks(PYTHON, script, forked=True)
                    self.assertEqual(ranks, [f"a {shared}"] * 2)
                    self.assertEqual("which the script mentions" in launch.err, refused and not again)
        self.write("site/torch/_dynamo.py", "import os; os.getenv('RANK') + ''\n")
        script = self.write("script.py", f"import torch\noptim = 'RANK'{tell}")
        self.assertEqual(self.ranks(PYTHON, script, forked=True)[0], ["a False"] * 2)
        self.write("script.py", "import torch\noptim = 2\nimport nothing\n")  # it will not train
        self.assertIn("has imported torch, as", self.told(PYTHON, script))

    def test_no_interpreter_is_started_for_nothing(self):
        """Where the script's text shows that it needs no torch; and again where an earlier launch has
        found that nothing is shared, until a file has changed."""
        mark = self.path("mark")
        self.write("site/sitecustomize.py", f"open('{mark}', 'a').write('s')\n")
        self.write("beside.py", "import json\n")
        for text, starts in (("import os, json as j\nfrom re import *", (2, 2, 2)),
                             ("import beside", (3, 2, 3)), ("print('torch')", (3, 2, 2)),
                             ("def f(): pass\nf()\nimport torch", (3, 2, 2))):
            script = self.write("script.py", f"{text}\nprint('a b')\n")
            for again, expected in enumerate(starts):
                with self.subTest(text=text, again=again):
                    self.write("mark", "")
                    if again == 2:
                        self.write("beside.py", "import json\n")
                    _, launch = self.ranks(PYTHON, script, "--lr", again, forked=False)
                    self.assertIn("does not begin with an import of torch", launch.err)
                    self.assertEqual("recorded in" in launch.err, expected == 2 and starts[0] == 3)
                    with open(mark, encoding="ascii") as f:
                        self.assertEqual(len(f.read()), expected)

    def test_a_module_that_was_missing(self):
        """It is there in a later launch, or was a mistake in the script or in a module beside it."""
        def launch(*command, good):
            done = self.run_to_end("-np", 2, "-v", *command, cwd=self.path("job"), env=self.env)
            self.assertEqual(done.rc == 0, good, done.err)
            return done.err

        os.makedirs(self.path("job", "beside"))
        self.write("job/beside/__init__.py", "")
        for text, name in (("import later", "later.py"), ("import later", "later/__init__.py"),
                           ("import later.part", "later/part.py"), ("import later", "script.py"),
                           ("import later", "../site/later.py"),
                           ("import beside.later", "beside/later.py"),
                           ("import beside.part", "beside/part.py")):
            self.write("job/script.py", text)
            self.write("job/beside/part.py", "import later")
            commands = [(PYTHON, self.path("job", "script.py")), (PYTHON, "-m", "script")]
            if name != "script.py":
                commands.append((PYTHON, "-c", f"{text}  # {name}"))
            for again in (False, True):
                for command in commands:
                    told = launch(*command, good=False)
                    self.assertIn("does not begin with an import of torch: ", told)
                    self.assertEqual("recorded in" in told, again, told)
            os.makedirs(os.path.dirname(self.path("job", name)), exist_ok=True)
            self.write(f"job/{name}", "import torch\n")  # of another size, else a .pyc of this second is valid
            for command in commands:
                with self.subTest(command=command, text=text, name=name):
                    told = launch(*command, good=True)
                    self.assertNotIn("recorded in", told)
                    self.assertEqual(FORKED in told, "site" not in name, told)
            os.unlink(self.path("job", name))
            shutil.rmtree(self.path("job", "later"), ignore_errors=True)

    def test_a_record_on_an_unresponsive_file_server(self):
        """The ranks start without it; until then the agent handles the launcher's messages."""
        command = ("-np", 2, "-v", PYTHON, "-c", "print('torch')")
        told = self.run_to_end(*command, env=self.env).err
        self.assertIn("does not begin with an import of torch", told)
        told = self.run_to_end(*command, env=self.env).err
        record = re.search("recorded in '(.*)'", told).group(1)
        env = {**self.env, **held(HOLD_STAT=record)}
        launch = self.run_to_end(*command, env=env)
        self.assert_ended(launch, 0)
        self.assertIn("cannot be read (stalled file system?)", launch.err)
        launch = self.start("--timeout", 1, *command, env=env)
        launch.wait(4)
        self.assert_ended(launch, 124)

    def test_filters_of_warnings(self):
        """Those of the script are there while it imports; behind those of imports, after it."""
        self.write("site/torch/__init__.py", "import warnings\nwarnings.warn('old')\n"
                   "warnings.filterwarnings('ignore', message='mine')\n")
        for action, forked in (("ignore", True), ("always", False)):
            script = self.write("script.py", f"import warnings\nwarnings.simplefilter('{action}')\n"
                                "import torch\nwarnings.warn('mine')\nprint('rank done')\n")
            ranks, launch = self.ranks(PYTHON, script, forked=forked)
            self.assertEqual(ranks, ["rank done"] * 2)
            self.assertEqual("UserWarning: mine" in launch.err, False)

    def test_an_import_that_looks_who_it_is_goes_no_further(self):
        mark = self.path("mark")
        self.write("site/torch/__init__.py", "import os; rank = os.environ.get('RANK', 'none')\n"
                   f"open('{mark}', 'a').write(rank + ' ')\n")
        _, launch = self.ranks(PYTHON, "-c", "import torch; print('a b')", forked=False)
        self.assertIn("import of 'torch' reads RANK", launch.err)
        with open(mark, encoding="ascii") as f:
            self.assertEqual(sorted(f.read().split()), ["0", "1"])


if __name__ == "__main__":
    main()
