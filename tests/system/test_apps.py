"""Several programs in one job, and options that are not on the command line."""
import os
import unittest

import launch


class Apps(launch.LaunchTest):
    def lines(self, *args, **kwargs):
        launched = self.run_to_end("--tag-output=off", *args, **kwargs)
        self.assert_ended(launched, 0)
        return sorted(launched.out.splitlines())

    def write(self, name, text):
        path = os.path.join(self.folder.name, name)
        with open(path, "w", encoding="ascii") as f:
            f.write(text)
        return path

    def test_each_program_gets_its_ranks(self):
        say = "echo $0 $RANK of $WORLD_SIZE"
        self.assertEqual(
            self.lines("-np", 1, "sh", "-c", say, "a", ":", "-np", 2, "sh", "-c", say, "b"),
            ["a 0 of 3", "b 1 of 3", "b 2 of 3"])

    def test_they_are_spread_over_hosts(self):
        self.assertEqual(
            self.lines("-H", "localhost:1,127.0.0.2:3", "--ssh", self.ssh(), "-np", 2, "sh", "-c",
                       "echo a $NODE_RANK", ":", "-np", 2, "sh", "-c", "echo b $NODE_RANK"),
            ["a 0", "a 1", "b 1", "b 1"])

    def ssh(self):
        """An 'ssh' that runs the command here."""
        path = self.write("ssh", '#!/bin/sh\nwhile [ "${1#-}" != "$1" ]; do\n'
                          'case $1 in -o|-p|-l) shift ;; esac; shift; done\nshift\n'
                          'exec sh -c "$*"\n')
        os.chmod(path, 0o755)
        return path

    def test_scripts_get_their_interpreters(self):
        python = self.write("a.py", "import os; print('python', os.environ['RANK'])\n")
        shell = self.write("b.sh", "echo shell $RANK\n")
        self.assertEqual(self.lines("-np", 2, python, ":", "-np", 1, shell),
                         ["python 0", "python 1", "shell 2"])

    def test_a_missing_program_is_named(self):
        launched = self.run_to_end("-np", 1, "sleep", 60, ":", "-np", 1, "/nosuch/b")
        self.assert_ended(launched, 127)
        self.assertIn("'/nosuch/b'", launched.err)

    def test_a_file_of_programs(self):
        path = self.write("apps", "# two\n-np 1 -x A=1 printenv A\n\n-np 2 echo b\n")
        self.assertEqual(self.lines("--app", path), ["1", "b", "b"])
        one = self.write("one", "-np 2 echo only\n")
        self.assertEqual(self.lines("--app", one), ["only", "only"])

    def test_the_plan_shows_programs_and_origins(self):
        shown = self.run_to_end("--dry-run", "-np", 1, "echo", "a", ":", "-np", 2, "echo", "b",
                                env={"DDPRUN_OPTIONS": "--bind-to none"})
        self.assert_ended(shown, 0)
        for line in "  rank 0: echo a\n", "  ranks 1-2: echo b\n", \
                "  options from DDPRUN_OPTIONS: --bind-to none\n":
            self.assertIn(line, shown.out)


if __name__ == "__main__":
    unittest.main(verbosity=2)
