"""--preload: imports after which ranks are not forked, and what is kept then."""

import os
import subprocess
import sys

from launch import main
from preload import FORKED, NOT_FORKED, PYTHON, PreloadTest, setUpModule  # unittest calls the last


class Refused(PreloadTest):
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

    def test_a_helper_that_cannot_start_does_not_run_the_script(self):
        """Its start-up fails, as in Python 2 or without one of its files; Python would go on to the script."""
        self.write("ctypes.py", "raise RuntimeError('not the module that the helper needs')\n")
        self.refused("the interpreter that imports has ended", PYTHON, "-c",
                     f"import os; open(f'{self.folder.name}/ran.{{os.getpid()}}', 'w')")
        self.assertEqual(len([name for name in os.listdir(self.folder.name) if name.startswith("ran.")]), 2)

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
        self.deadline = 200  # three imports of torch at once, on a busy machine
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

    def test_cuda_works_in_ranks_after_an_import_has_counted_its_devices(self):
        """torch refuses it in what pthread_atfork() tells of, which a fork before an import is."""
        self.write("torch/__init__.py", "import ctypes\nfrom . import cuda\n")
        self.write("torch/cuda.py", "import ctypes\nforked = []\n"
                   "@ctypes.CFUNCTYPE(None)\ndef on_fork(): forked.append(1)\n"
                   "def _is_in_bad_fork(): return bool(forked)\ndef is_initialized(): return False\n"
                   "def is_available():\n"
                   "    getattr(ctypes.PyDLL(None), '__register_atfork')(None, None, on_fork, None)\n")
        self.write("first.py", "import torch; torch.cuda.is_available()\n")
        for name in "second", "third":
            self.write(f"{name}.py", "import os; pid = os.getpid()\n")
        text = ("import os, torch, first, second, third; "
                "print(torch.cuda._is_in_bad_fork(), third.pid == os.getpid())")
        launch = self.run_to_end("-np", 2, "--tag-output=off", "-v", "--preload", "torch,first,second,third",
                                 PYTHON, "-c", text, env={"PYTHONPATH": self.folder.name})
        self.assert_ended(launch, 0)
        self.assertIn(FORKED, launch.err)
        self.assertEqual(launch.out, "False False\n" * 2)

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

if __name__ == "__main__":
    main()
