"""--scaling: tables of launches that happen, made of programs that say how fast they are."""

import csv
import os
import re
import signal
import xml.dom.minidom

import launch
from launch import LaunchTest, wait_until


class Scaling(LaunchTest):
    def rows(self, folder="scaling"):
        with open(os.path.join(self.folder.name, folder, "scaling.csv"), encoding="ascii") as f:
            return {(r["scaling"], int(r["ranks"])): r for r in csv.DictReader(f)}

    def scale(self, *args):
        return self.run_to_end(*args, cwd=self.folder.name)

    # a rank that is "fast" by itself, less so in company
    PROGRAM = 'echo "$RANK got $1"; [ $RANK != 0 ] || echo "at $((WORLD_SIZE * 900 + 100)) samples/s"'

    def test_both_series_from_one_command(self):
        done = self.scale("--scaling", "1,2,4", "sh", "-c", self.PROGRAM, "x", "{per-rank:8}")
        self.assert_ended(done, 0)
        rows = self.rows()
        self.assertEqual(sorted(rows), [(s, n) for s in ("strong", "weak") for n in (1, 2, 4)])
        for series in ("strong", "weak"):
            self.assertAlmostEqual(float(rows[series, 4]["speedup"]), 3.7)
            self.assertAlmostEqual(float(rows[series, 4]["efficiency"]), 0.925)
            self.assertEqual(rows[series, 4]["unit"], "samples/s")
        folder = os.path.join(self.folder.name, "scaling")
        with open(f"{folder}/strong-4.log", encoding="utf-8") as said:
            self.assertIn("3 got 2", said.read())
        with open(f"{folder}/weak-4.log", encoding="utf-8") as said:
            self.assertIn("3 got 8", said.read())
        self.assertFalse(os.path.exists(f"{folder}/weak-1.log"), "one rank is measured once")
        with open(f"{folder}/scaling.txt", encoding="ascii") as text:
            table = text.read()
        self.assertIn(table, done.out)
        self.assertIn("100 %  the base", table)
        xml.dom.minidom.parse(f"{folder}/scaling.svg")

    def test_another_size_joins_the_table_another_command_does_not(self):
        self.assert_ended(self.scale("--scaling", "1", "true"), 0)
        self.assert_ended(self.scale("--scaling", "2", "true"), 0)
        self.assertEqual(sorted(self.rows()), [("strong", 1), ("strong", 2)])
        done = self.scale("--scaling", "2", "false")
        self.assert_ended(done, 2)
        self.assertIn("'scaling' has the table of another command, 'true'; write --scaling-dir",
                      done.err)

    def test_a_run_that_fails_ends_it_with_its_code_and_last_lines(self):
        done = self.scale("--scaling", "1,2,4", "sh", "-c",
                          "[ $WORLD_SIZE != 2 ] || { echo no more; exit 5; }")
        self.assert_ended(done, 5)
        self.assertIn("with 2 ranks it ended with 5; 'scaling/strong-2.log' ends with", done.err)
        self.assertIn("no more", done.err)
        self.assertEqual(sorted(self.rows()), [("strong", 1)])

    def test_what_cannot_be_is_refused_before_anything_runs(self):
        for args, expected in (
                (["--scaling", "1,3", "prog", "{per-rank:8}"], "write a multiple of 3"),
                (["--scaling", "2,1", "prog"], "--scaling: 1 follows 2"),
                (["-np", "2", "--scaling", "1", "prog"], "leave out -np")):
            done = self.scale(*args)
            self.assert_ended(done, 2)
            self.assertIn(expected, done.err)
        self.assertFalse(os.path.exists(os.path.join(self.folder.name, "scaling")))

    def test_who_ends_it_ends_the_run(self):
        launched = self.start("--scaling", "1", "sh", "-c", "echo up >up; exec sleep 300",
                              cwd=self.folder.name)
        self.assertTrue(wait_until(lambda: os.path.exists(os.path.join(self.folder.name, "up"))))
        launched.signal(signal.SIGTERM)
        launched.wait()
        self.assertEqual(launch.who_is_left(self.mark), {})

    def test_ctrl_c_ends_the_run_in_order(self):
        launched = self.start(
            "--scaling", "1,2", *launch.PATIENT, "sh", "-c",
            "trap 'sleep 0.3; echo >saved; exit 0' INT; echo >up; while :; do sleep 0.05; done",
            cwd=self.folder.name,
            command=["setsid", launch.DDPRUN])
        self.assertTrue(wait_until(lambda: os.path.exists(os.path.join(self.folder.name, "up"))))
        os.killpg(launched.process.pid, signal.SIGINT)
        launched.wait()
        self.assert_ended(launched, 130)
        self.assertTrue(os.path.exists(os.path.join(self.folder.name, "saved")))
        self.assertIn("with 1 rank it ended with 130", launched.err)

    def test_a_dry_run_shows_the_commands(self):
        done = self.scale("--scaling", "1,2", "--dry-run", "-x", "A=1", "prog", "{total:5}")
        self.assert_ended(done, 0)
        self.assertEqual(done.out.splitlines(), [
            "ddprun -np 1 -x A=1 -- prog 5", "ddprun -np 2 -x A=1 -- prog 5",
            "ddprun -np 2 -x A=1 -- prog 10"])

    def test_a_dry_run_shows_the_script_of_each_job(self):
        for submit, sizes in ((("--submit",), ["strong:1", "strong:2"]), ((), ["1,2"])):
            done = self.scale("--scaling", "1,2", "--script", "slurm", *submit, "--dry-run", "true")
            self.assert_ended(done, 0)
            self.assertEqual(re.findall(r"^ddprun .* --scaling (\S+) ", done.out, re.M), sizes)

    def test_the_timeout_is_for_all_runs(self):
        """A rank prints the --timeout of the ddprun that runs it; by --dry-run no time has passed."""
        program = self.write("program.py", (
            "import os, time\n"
            "pid, words = os.getppid(), []\n"
            "while '--scaling' not in words and pid > 1:\n"
            "    run = words\n"
            "    with open(f'/proc/{pid}/cmdline') as f:\n"
            "        words = f.read().split('\\0')\n"
            "    with open(f'/proc/{pid}/stat') as f:\n"
            "        pid = int(f.read().rpartition(')')[2].split()[1])\n"
            "time.sleep(0.1)\n"
            "if os.environ['RANK'] == '0':\n"
            "    print('limit', run[run.index('--') - 1])\n"))
        args = ("--scaling", "1,2", "--timeout", "1h")
        done = self.scale(*args, "--dry-run", "true")
        self.assertEqual(done.out.splitlines()[1], "ddprun -np 2 --timeout 1h --timeout 3600000ms -- true")
        self.assert_ended(self.scale(*args, "python3", program), 0)
        limits = []
        for size in (1, 2):
            with open(os.path.join(self.folder.name, f"scaling/strong-{size}.log"), encoding="ascii") as f:
                limits.append(int(f.read().partition("limit ")[2].partition("ms")[0]))
        self.assertLess(limits[1], limits[0])
        self.assertLessEqual(limits[0], 3600000)

    def test_each_run_has_output_files_of_its_own(self):
        for pattern, names in (
                ("out", ["out/strong-1/rank.0.out", "out/strong-2/rank.1.out"]),
                ("new/%r.log", ["new/strong-1/0.log", "new/strong-2/1.log"]),
                ("%r.log", ["strong-1/0.log", "strong-2/1.log"])):
            done = self.scale("--scaling", "1,2", "--output-filename", pattern, "sh", "-c",
                              "echo $WORLD_SIZE")
            self.assert_ended(done, 0)
            for size, name in zip((1, 2), names):
                with open(os.path.join(self.folder.name, name), encoding="ascii") as f:
                    self.assertEqual(f.read(), f"{size}\n", name)


if __name__ == "__main__":
    launch.main()
