"""Without --preload: what ddprun chooses to import once."""

import os
import re
import shutil

from launch import LaunchTest, held, main
from preload import FORKED, NOT_FORKED, PYTHON, setUpModule  # unittest calls the last


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
