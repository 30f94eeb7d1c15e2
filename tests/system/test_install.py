"""What `meson install` puts down works from there: for a user, and for a C programmer."""

import glob
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

BUILD = sys.argv.pop(1)
HERE = os.path.dirname(os.path.abspath(__file__))


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
        for tail in ("bin/ddp-train", "bin/ddpstored", "libexec/ddprun/ddprun-topo"):
            self.assertTrue(os.access(self.find(tail), os.X_OK), tail)
        if shutil.which("scdoc"):
            for page in ("ddprun.1", "ddp-train.1", "ddpstored.1"):
                self.find("man1/" + page)

    def test_the_launcher_finds_its_helpers(self):
        here = self.find("libexec/ddprun/ddprun-agent")
        plan = output_of(self.ddprun, "-H", "n1,n2", "--dry-run", "true")
        self.assertIn(here, plan)
        self.assertIn("[1]", output_of(self.ddprun, "-np", "2", "--bind-to", "core", "sh", "-c", "echo x"))

    def test_a_training_runs(self):
        shown = output_of(self.ddprun, "-np", "2", self.find("bin/ddp-train"), "--epochs", "1",
                          "--plot", "none")
        self.assertIn("test accuracy", shown)

    def test_c_programs_are_built_against_it(self):
        if self.sanitized:
            self.skipTest("a program without sanitizers cannot load libraries with them")
        libraries = os.path.dirname(self.find("libddpgroup.so"))
        for name, said in (("group", "sum 3"), ("store", "met ab")):
            flags = output_of(
                "pkg-config", "--cflags", "--libs", "ddp" + name,
                PKG_CONFIG_SYSROOT_DIR=self.folder.name,
                PKG_CONFIG_PATH=os.path.join(libraries, "pkgconfig"),
            )
            program = os.path.join(self.folder.name, "user_" + name)
            output_of("cc", "-std=c99", "-Wall", "-Wextra", "-Werror", "-o", program,
                      os.path.join(HERE, f"user_{name}.c"), *flags.split())
            shown = output_of(self.ddprun, "-np", "2", program, LD_LIBRARY_PATH=libraries)
            self.assertEqual(sorted(shown.splitlines()), [f"[0] {said}", f"[1] {said}"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
