"""What `meson install` puts down works from there: for a user, and for a C programmer."""

import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

BUILD = sys.argv.pop(1)
HERE = os.path.dirname(os.path.abspath(__file__))
# a path of ours; "of the source" stands behind one that only the source has
REFERENCE = re.compile(
    r"(?<![\w/.-])((?:doc|templates|examples|include|launcher|worker|common|rendezvous|bench|tests|"
    r"tools|spank|share|libexec)/[\w./-]*\w|[\w-]+\.md)(?![\w/-]|\.\w)(?!_?\s+of\s+the\s+source)")


def output_of(*command, **env):
    done = subprocess.run(
        command, env={**os.environ, **env}, capture_output=True, text=True, timeout=150, check=False
    )
    assert done.returncode == 0, (command, done.stdout, done.stderr)
    return done.stdout


class Install(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory(prefix="ddprun-test-")
        cls.addClassCleanup(cls.folder.cleanup)
        output_of("meson", "install", "-C", BUILD, "--no-rebuild", "--quiet", "--destdir",
                  cls.folder.name)
        cls.ddprun = cls.find("bin/ddprun")
        sanitizers = subprocess.run(["ldd", cls.ddprun], capture_output=True, text=True, check=True)
        cls.sanitized = "libasan" in sanitizers.stdout

    @classmethod
    def find(cls, tail):
        found = glob.glob(os.path.join(cls.folder.name, "**", tail), recursive=True)
        assert len(found) == 1, (tail, found)
        return found[0]

    def test_programs_and_manuals_are_there(self):
        for tail in ("bin/ddp-train", "bin/ddpstored", "libexec/ddprun/ddprun-topo",
                     "libexec/ddprun/ddprun-view"):
            self.assertTrue(os.access(self.find(tail), os.X_OK), tail)
        self.find("libexec/ddprun/page.html")
        for page in ("ddprun.1", "ddp-train.1", "ddpstored.1"):
            with open(self.find("man1/" + page), encoding="ascii") as file:
                shown = file.read()
            self.assertIn(".SH OPTIONS", shown)
            if shutil.which("groff"):
                warnings = subprocess.run(["groff", "-man", "-Tutf8", "-ww", "-z"], input=shown,
                                          capture_output=True, text=True, check=True)
                self.assertEqual(warnings.stderr, "", page)

    def test_pages_name_only_what_is_installed(self):
        """A path in a page lies beside the pages, or under the prefix."""
        self.maxDiff = None
        docs = os.path.dirname(self.find("doc/ddprun/LICENSE"))
        prefix = os.path.dirname(os.path.dirname(os.path.dirname(docs)))
        pages = [*glob.glob(docs + "/**/*.md", recursive=True), *glob.glob(prefix + "/share/man/*/*")]
        self.assertGreater(len(pages), 15)
        missing, seen = [], 0
        for page in pages:
            with open(page, encoding="utf-8") as file:
                text = re.sub(r"\\f[BIR]|\\&|\\(?=-)", "", file.read())
            for named in REFERENCE.findall(text):
                seen += 1
                if not any(os.path.exists(os.path.join(base, named)) for base in
                           (docs, prefix, os.path.dirname(page))):
                    missing.append((os.path.relpath(page, prefix), named))
        self.assertEqual(sorted(set(missing)), [])
        self.assertGreater(seen, 20)

    def completed(self, command, *words):
        """What bash offers for the last of `words`."""
        script = self.find(f"completions/{command}.bash")
        shown = output_of("bash", "-c", """
            source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
            "_${1//-/_}"; printf '%s\\n' "${COMPREPLY[@]}" """, "bash", script, command, *words)
        return shown.split()

    def test_completion_knows_options_and_their_words(self):
        self.assertEqual(self.completed("ddprun", "--bind-to", "h"), ["hwthread"])
        self.assertEqual(self.completed("ddprun", "-np", "2", "--tag-output", "=", "o"), ["off", "on"])
        self.assertEqual(self.completed("ddprun", "--hostf"), ["--hostfile"])
        self.assertEqual(self.completed("ddprun", "--np", "2", "--oversubscribe", "--repo"),
                         ["--report-on", "--report"])
        self.assertEqual(self.completed("ddprun", "-np", "2", "./train", "--rep"), [])
        self.assertEqual(self.completed("ddprun", "--hostfile", "--np"), [])
        self.assertEqual(self.completed("ddp-train", "--epo"), ["--epochs"])
        self.assertEqual(self.completed("ddpstored", "--max-k"), ["--max-key"])
        if shutil.which("zsh"):
            for name in ("ddprun", "ddp-train", "ddpstored"):
                output_of("zsh", "-n", self.find("site-functions/_" + name))

    def test_python_module_is_there(self):
        module = self.find("ddpgroup.py")
        if not self.sanitized:
            library = output_of(sys.executable, "-c", "import ddpgroup; print(ddpgroup.library._name)",
                                PYTHONPATH=os.path.dirname(module))
            self.assertEqual(os.path.realpath(library.strip()), os.path.realpath(self.find("libddpgroup.so.0")))
        package = os.path.dirname(self.find("ddprun/__init__.py"))
        source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../packaging/python/ddprun")
        parts = [name for name in os.listdir(os.path.join(source, "torch")) if name.endswith(".py")]
        self.assertIn("__init__.py", parts)
        for path in (module, self.find("ddprun/__init__.py"),
                     *(os.path.join(package, "torch", part) for part in parts)):
            with open(path, encoding="utf-8") as file:
                compile(file.read(), path, "exec")

    def test_the_launcher_finds_its_helpers(self):
        here = self.find("libexec/ddprun/ddprun-agent")
        plan = output_of(self.ddprun, "-H", "n1,n2", "--dry-run", "true")
        self.assertIn(here, plan)
        self.assertIn("[1]", output_of(self.ddprun, "-np", "2", "--bind-to", "core", "sh", "-c", "echo x"))

    def test_another_launchers_name_passes_on_every_variable(self):
        """Also those that a shell cannot name."""
        odd = {"SM_HP_BATCH-SIZE": "32", "BASH_FUNC_module%%": "() {  :; }"}
        shown = output_of(self.find("libexec/ddprun/compat/mpirun"), "-np", "1", "env", **odd)
        for key, value in odd.items():
            self.assertIn(f"{key}={value}", shown)

    def test_tools_are_found_and_find_their_data(self):
        self.assertIn("slurm", output_of(self.ddprun, "--list-sites"))
        script = output_of(self.ddprun, "--script", "slurm", "-np", "2", "./train")
        self.assertIn(os.path.dirname(os.path.realpath(self.ddprun)), script)
        sizes = output_of(self.ddprun, "--scaling", "strong:2", "--dry-run", "true")
        self.assertIn("ddprun -np 2 -- true", sizes)
        done = subprocess.run([self.ddprun, "--fetch-data", "nosuch"], capture_output=True,
                              text=True, check=False)
        self.assertEqual(done.returncode, 2)
        self.assertIn("mnist", done.stderr)  # from the installed table

    def test_what_was_moved_finds_its_python_half(self):
        """The prefix that was configured has nothing: a destdir is an installation that was moved."""
        script = os.path.join(self.folder.name, "script.py")
        with open(script, "w", encoding="utf-8") as file:
            file.write("print('ran')\n")
        told = subprocess.run([self.ddprun, "-np", "2", "--preload", "json", "-v", sys.executable, script],
                              capture_output=True, text=True, timeout=200, check=True)
        self.assertEqual(told.stdout.count("ran"), 2)
        self.assertIn("the ranks are forked", told.stderr)

    def test_a_training_runs(self):
        shown = output_of(self.ddprun, "-np", "2", self.find("bin/ddp-train"), "--epochs", "1",
                          "--plot", "none")
        self.assertIn("test accuracy", shown)

    def test_c_programs_are_built_against_it(self):
        if self.sanitized:
            self.skipTest("a program without sanitizers cannot load libraries with them; needs build without them")
        libraries = os.path.dirname(self.find("libddpgroup.so"))
        for name, said in (("group", "sum 3"), ("store", "met ab"), ("", "step 2")):
            flags = output_of(
                "pkg-config", "--cflags", "--libs", "ddp" + name,
                PKG_CONFIG_SYSROOT_DIR=self.folder.name,
                PKG_CONFIG_PATH=os.path.join(libraries, "pkgconfig"),
            )
            program = os.path.join(self.folder.name, "user_" + name)
            output_of("cc", "-std=c99", "-Wall", "-Wextra", "-Werror", "-o", program,
                      os.path.join(HERE, f"user_{name or 'ddp'}.c"), *flags.split())
            shown = output_of(self.ddprun, "-np", "2", program, LD_LIBRARY_PATH=libraries)
            self.assertEqual(sorted(shown.splitlines()), [f"[0] {said}", f"[1] {said}"])
        examples = self.find("ddprun/examples")
        for name in os.listdir(examples):
            if name.endswith(".c"):
                output_of("cc", "-o", program, os.path.join(examples, name), *flags.split(), "-lm")


if __name__ == "__main__":
    unittest.main(verbosity=2)
