"""What ranks write arrives: whole, in order, tagged, apart, and at a slow reader too."""

import os
import re
import subprocess

from launch import DDPRUN, LaunchTest, held, main, wait_until
from terminal import shown


class Lines(LaunchTest):
    def test_a_million_lines_of_64_ranks_arrive(self):
        ranks, out_each, err_each = 64, 12500, 3125  # together one million
        script = (
            f'seq -f "out $RANK %.0f" {out_each} & '
            f'seq -f "err $RANK %.0f" {err_each} >&2; wait'
        )
        launch = self.sh(ranks, script, deadline=150)
        self.assert_ended(launch, 0)
        for stream, word, each in ((launch.out, "out", out_each), (launch.err, "err", err_each)):
            seen = [0] * ranks
            for line in stream.splitlines():
                m = re.fullmatch(rf"\[(\d+)\] {word} (\d+) (\d+)", line)
                self.assertTrue(m and m[1] == m[2], line)
                seen[int(m[1])] += 1
                self.assertEqual(int(m[3]), seen[int(m[1])])
            self.assertEqual(seen, [each] * ranks)

    def test_tags_stand_at_line_starts_only(self):
        launch = self.sh(4, 'for i in 1 2 3; do printf "a$RANK"; sleep 0.02; printf "b\\n"; done')
        self.assert_ended(launch, 0)
        self.assertEqual(
            sorted(launch.out.splitlines()), sorted([f"[{r}] a{r}b" for r in range(4)] * 3)
        )

    def test_one_rank_is_untouched(self):
        data = os.urandom(1 << 20)
        with open(self.path("data"), "wb") as f:
            f.write(data)
        with open(self.path("copy"), "wb") as f:
            launch = self.run_to_end("-np", 1, "cat", self.path("data"), stdout=f)
        self.assert_ended(launch, 0)
        with open(self.path("copy"), "rb") as f:
            self.assertEqual(f.read(), data)

    def test_a_last_line_without_end_gets_one_under_a_tag(self):
        launch = self.sh(2, "printf last")
        self.assertEqual(sorted(launch.out.splitlines()), ["[0] last", "[1] last"])

    def test_a_long_line_is_one_line(self):
        launch = self.sh(3, "for i in 1 2; do head -c 2000000 /dev/zero | tr '\\0' $RANK; echo; done")
        self.assert_ended(launch, 0)
        self.assertTrue(sorted(launch.out.splitlines()) ==
                        [f"[{r}] " + str(r) * 2_000_000 for r in (0, 0, 1, 1, 2, 2)],
                        [line[:20] for line in launch.out.splitlines()])

    def test_tags_on_and_off(self):
        on = self.sh(1, "echo x", "--tag-output=on")
        self.assertEqual(on.out, "[0] x\n")
        off = self.sh(2, "echo x", "--tag-output=off")
        self.assertEqual(off.out, "x\nx\n")

    def test_lines_are_whole_without_tags(self):
        """A line and its end written one after the other, as an unbuffered print() does."""
        launch = self.sh(4, "for i in 1 2 3 4 5; do printf x; sleep 0.01; echo; done",
                         "--tag-output=off")
        self.assertEqual(launch.out, "x\n" * 20)

    def test_timestamps(self):
        launch = self.sh(2, "echo x", "--timestamp-output")
        for line in launch.out.splitlines():
            self.assertRegex(line, r"^\d{4}-\d\d-\d\dT[\d:]{8}\.\d{3}[+-]\d{4} \[[01]\] x$")

    def test_output_from_some(self):
        launch = self.sh(5, "echo out $RANK; echo err $RANK >&2", "--output-from", "1,3-4")
        self.assertEqual(
            sorted(launch.out.splitlines()), ["[1] out 1", "[3] out 3", "[4] out 4"]
        )
        self.assertEqual(
            sorted(launch.err.splitlines()), ["[1] err 1", "[3] err 3", "[4] err 4"]
        )

    def test_output_from_ranks_that_are_not_there(self):
        launch = self.sh(2, f"touch {self.path('started')}", "--output-from", "1-7")
        self.assert_ended(launch, 2)
        self.assertFalse(os.path.exists(self.path("started")))

    def test_the_cause_of_a_silent_rank_is_told(self):
        launch = self.sh(2, "[ $RANK = 0 ] || { echo why >&2; exit 3; }", "--output-from", "0")
        self.assert_ended(launch, 3)
        self.assertIn("why", launch.err)


class Files(LaunchTest):
    def read(self, *names):
        with open(self.path(*names), encoding="utf-8") as f:
            return f.read()

    def test_a_folder_of_files(self):
        launch = self.sh(
            3, "echo out $RANK; printf err >&2", "--output-filename", self.path("a", "b")
        )
        self.assert_ended(launch, 0)
        for rank in range(3):
            self.assertEqual(self.read("a", "b", f"rank.{rank}.out"), f"out {rank}\n")
            self.assertEqual(self.read("a", "b", f"rank.{rank}.err"), "err")
        self.assertIn("[1] out 1\n", launch.out)  # and on the terminal

    def test_folders_that_are_not_there_are_made(self):
        for name in ("logs", "of/this/job", "./a"):
            launch = self.sh(2, "echo out", "--output-filename", name, cwd=self.folder.name)
            self.assert_ended(launch, 0)
            self.assertEqual(self.read(name, "rank.1.out"), "out\n")

    def test_a_pattern_of_files(self):
        launch = self.sh(
            2, "echo out; echo err >&2", "--output-filename", self.path("log.%r.%s")
        )
        self.assert_ended(launch, 0)
        self.assertEqual(
            sorted(os.listdir(self.folder.name)),
            ["log.0.err", "log.0.out", "log.1.err", "log.1.out"],
        )

    def test_a_bad_pattern_starts_nothing(self):
        launch = self.sh(2, f"touch {self.path('x')}", "--output-filename", self.path("%q"))
        self.assert_ended(launch, 2)
        self.assertEqual(os.listdir(self.folder.name), [])

    def test_files_that_cannot_be_written_start_nothing(self):
        self.write("file", "")
        os.mkdir(self.path("taken.1.err"))
        for pattern, why in (
            (self.path("file"), "Not a directory"), (self.path("file", "a", "b%r"), "Not a directory"),
            (self.path("taken.%r.%s"), "Is a directory"), (self.path("%r/"), "Is a directory"),
            ("/proc/self/ranks", "Operation not permitted"),
        ):
            with self.subTest(pattern):
                launch = self.sh(2, f"touch {self.path('x')}", "--output-filename", pattern)
                self.assert_ended(launch, 2)
                self.assertEqual(len(launch.err.splitlines()), 1, launch.err)
                self.assertIn("--output-filename: cannot write", launch.err)
                self.assertIn(why, launch.err)
                self.assertFalse(os.path.exists(self.path("x")))

    def test_files_on_a_dead_file_server_do_not_hold_up_the_start(self):
        launch = self.sh(1, "echo x", "--output-filename", self.path("%r"),
                         env=held(HOLD_STAT=self.path("0")))
        self.assert_ended(launch, 0)
        self.assertIn(f"--output-filename: no answer about '{self.path('%r')}' in 5 s", launch.err)
        self.assertEqual(self.read("0"), "x\n")

    def test_another_jobs_files_stay_as_they_are(self):
        options = ("--output-filename", self.folder.name)
        first = self.start_sh(1, "echo one; exec sleep 300", *options)
        name = self.path("rank.0.out")
        self.assertTrue(wait_until(lambda: os.path.exists(name) and self.read(name) == "one\n"))
        second = self.sh(1, "echo two", *options)
        self.assert_ended(second, 0)
        self.assertEqual((second.out, self.read("rank.0.out")), ("two\n", "one\n"))
        self.assertEqual(second.err, f"ddprun: error: cannot write '{name}': another job writes it; "
                         "files of --output-filename are incomplete, the terminal is not\n")
        first.end()
        self.assert_ended(self.sh(1, "echo three", *options), 0)
        self.assertEqual(self.read("rank.0.out"), "three\n")

    def test_a_full_disk_loses_no_terminal_output(self):
        os.symlink("/dev/full", self.path("rank.0.out"))
        launch = self.sh(
            2, "echo one; sleep 0.1; echo two", "--output-filename", self.folder.name
        )
        self.assert_ended(launch, 0)
        self.assertEqual(sorted(launch.out.split()), sorted("[0] one [0] two [1] one [1] two".split()))
        self.assertEqual(launch.err.count("No space left on device"), 1)

    def test_a_full_disk_under_ranks_that_are_not_printed_is_a_failure(self):
        os.symlink("/dev/full", self.path("rank.1.out"))
        launch = self.sh(2, "echo one; sleep 0.1; echo two", "--output-filename", self.folder.name,
                         "--output-from", "0")
        self.assert_ended(launch, 1)
        self.assertEqual(launch.out, "one\ntwo\n")
        self.assertRegex(launch.err, r"^ddprun: cannot write '\S+/rank.1.out': No space left on device; "
                         "files of --output-filename are incomplete\n$")


class Readers(LaunchTest):
    def pipeline(self, command, deadline=100):
        """`command` through bash, with $DDPRUN in it: its exit code and output."""
        env = {**os.environ, "DDPRUN": DDPRUN, "DDPRUN_TEST_MARK": self.mark}
        try:
            return subprocess.run(
                ["bash", "-o", "pipefail", "-c", command],
                env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=deadline,
                stdin=subprocess.DEVNULL, check=False,
            )
        except subprocess.TimeoutExpired:
            self.fail(f"hung: {command}")

    def test_a_slow_reader_loses_nothing(self):
        # 20 MB: far more than all buffers between a rank and the reader
        done = self.pipeline('"$DDPRUN" -np 4 seq 700000 | (sleep 1; cat) | wc -l')
        self.assertEqual(done.stdout.strip(), b"2800000", done.stderr)
        self.assertEqual(done.returncode, 0)

    def test_what_nobody_reads_stays_with_the_ranks(self):
        """A few MB are on their way; a rank that has written more waits, as with a pipe."""
        written, seen = self.write("written", "0"), []
        ours, theirs = os.pipe()
        launch = self.start_sh(1, "for i in $(seq 64); do head -c 1000000 /dev/zero; echo $i >written; done",
                               "--wdir", self.folder.name, stdout=theirs)
        os.close(theirs)

        def stands():
            with open(written, encoding="ascii") as f:
                seen.append(f.read())
            return len(seen) > 50 and set(seen[-50:]) == {seen[-1]} != {"0"}

        with open(ours, "rb") as reader:
            self.assertTrue(wait_until(stands))
            self.assertLess(int(seen[-1]), 32)
            self.assertEqual(len(reader.read()), 64000000)
        launch.wait()
        self.assert_ended(launch, 0)

    def test_a_reader_that_begins_after_the_ranks_have_ended(self):
        # more than all buffers hold: the rank ends while the rest waits in its pipe; how much
        # that is depends on the size, so there are several at once
        done = self.pipeline(
            'for n in $(seq 4560000 20000 4900000); do '
            '{ got=$("$DDPRUN" -np 1 head -c $n /dev/zero | (sleep 4; wc -c)) || echo failed; '
            '[ $got = $n ] || echo "$got of $n"; } & done; wait')
        self.assertEqual(done.stdout, b"", done.stderr)

    def stuck(self, *options, kill="", size=4700000):
        """A reader that never reads, and ranks that have ended: the exit code of the launch."""
        done = self.pipeline(
            f'({{ "$DDPRUN" {" ".join(options)} -np 1 head -c {size} /dev/zero & pid=$!; {kill} '
            f'wait $pid; }}; echo $? >{self.path("rc")}; until [ -s {self.path("reader")} ]; do '
            f'sleep 0.05; done; kill $(cat {self.path("reader")})) | '
            f'(echo $BASHPID >{self.path("reader")}; exec sleep 90)', deadline=80)
        with open(self.path("rc"), encoding="ascii") as f:
            return int(f.read()), done.stderr.decode()

    def test_timeout_ends_a_launch_whose_reader_is_stuck(self):
        for size in (4700000, 1000000):  # more than ddprun holds, and less: its agents have left
            rc, err = self.stuck("--timeout", "3s", size=size)
            self.assertEqual(rc, 124, err)
            self.assertIn("ddprun: timed out after 3 s (--timeout)", err)

    def test_a_signal_ends_a_launch_whose_reader_is_stuck(self):
        for size in (4700000, 1000000):
            rc, err = self.stuck(kill="sleep 3; kill -TERM $pid;", size=size)
            self.assertEqual(rc, 143, err)
            self.assertIn("ddprun: interrupted (SIGTERM)", err)

    def test_a_reader_that_leaves_late_ends_the_launch(self):
        done = self.pipeline('"$DDPRUN" -np 1 head -c 4700000 /dev/zero | sleep 3; '
                             'exit ${PIPESTATUS[0]}')
        self.assertEqual(done.returncode, 141, done.stderr)

    def test_a_reader_that_leaves_ends_the_job(self):
        done = self.pipeline('"$DDPRUN" -np 2 yes | head -1; exit ${PIPESTATUS[0]}')
        self.assertIn(done.stdout, (b"[0] y\n", b"[1] y\n"))
        self.assertEqual(done.returncode, 141)
        self.assertEqual(done.stderr, b"")

    def test_a_reader_of_stderr_that_leaves_does_not_end_the_job(self):
        script = "for i in 1 2 3; do echo x >&2; sleep 0.1; done; echo end; exit 3"
        done = self.pipeline(f'"$DDPRUN" -np 1 sh -c "{script}" 2> >(true)')
        self.assertEqual((done.returncode, done.stdout), (3, b"end\n"))

    def test_a_full_disk_under_stdout_is_a_failure_but_not_the_end(self):
        done = self.pipeline(f'"$DDPRUN" -np 2 sh -c "echo x; sleep 0.2; >{self.path("end")}" >/dev/full')
        self.assertTrue(os.path.exists(self.path("end")))  # hours of work are worth more
        self.assertEqual(done.returncode, 1)
        self.assertIn(b"No space left on device", done.stderr)

    def test_a_file_that_may_not_grow_is_a_failure_but_not_the_end(self):
        done = self.pipeline(f'ulimit -f 1; "$DDPRUN" -np 1 sh -c "head -c 4000 /dev/zero | tr \\\\0 x; '
                             f'>{self.path("end")}" >{self.path("out")}')
        self.assertTrue(os.path.exists(self.path("end")))
        self.assertEqual(done.returncode, 1)
        self.assertIn(b"cannot write to stdout: File too large", done.stderr)

    def test_stdout_may_be_closed(self):
        done = self.pipeline('"$DDPRUN" -np 2 true >&-')
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_output_to_a_closed_stdout_is_a_failure(self):
        done = self.pipeline('"$DDPRUN" -np 2 echo x >&-')
        self.assertEqual(done.returncode, 1)
        self.assertIn(b"cannot write to stdout: Bad file descriptor", done.stderr)

    def test_a_stdin_that_cannot_be_read_is_a_failure(self):
        for source, why in (("/", b"Is a directory"), ("/proc/$$/mem", b"Input/output error")):
            done = self.pipeline(f'"$DDPRUN" -np 1 cat <{source}')
            self.assertEqual(done.returncode, 1)
            self.assertIn(b"cannot read from stdin: " + why + b": the ranks' input ends here", done.stderr)

    def test_a_stdin_that_is_not_open_for_reading_is_none(self):
        done = self.pipeline('"$DDPRUN" -np 1 cat 0>/dev/null')  # as nohup leaves it
        self.assertEqual((done.returncode, done.stderr), (0, b""))

    def test_our_stdout_stays_blocking(self):
        # O_NONBLOCK would outlive us on the shell's own pipe
        done = self.pipeline(
            '{ "$DDPRUN" -np 2 echo x; python3 -c \'import os; print(os.get_blocking(1))\'; } | cat'
        )
        self.assertEqual(done.stdout.splitlines()[-1], b"True")

    def test_appending_to_a_file_keeps_its_order(self):
        log = self.path("log")
        self.pipeline(f'{{ echo before; "$DDPRUN" -np 1 echo x; echo after; }} >{log} 2>&1')
        with open(log, encoding="utf-8") as f:
            self.assertEqual(f.read(), "before\nx\nafter\n")


class Terminal(LaunchTest):
    """Our stdout is a terminal of 80 columns."""

    shown = shown

    def test_ranks_hear_its_width_less_the_tag(self):
        self.assertIn("[1] 76\r\n", self.shown("-np", "2", "sh", "-c", "echo $DDPRUN_COLUMNS"))
        # `script` run from a pipe makes a terminal that does not know its size
        self.assertIn(
            "[1] 76\r\n", self.shown("-np", "2", "sh", "-c", "echo $DDPRUN_COLUMNS", columns=0)
        )
        self.assertIn("80\r\n", self.shown("-np", "1", "sh", "-c", "echo $DDPRUN_COLUMNS"))

    def test_a_file_has_no_width(self):
        launch = self.sh(2, "echo width:$DDPRUN_COLUMNS")
        self.assert_ended(launch, 0)
        self.assertIn("[1] width:\n", launch.out)


class Input(LaunchTest):
    def test_stdin_goes_to_rank_0(self):
        launch = self.sh(3, 'echo "$RANK:$(cat)"', stdin="hello\n")
        self.assert_ended(launch, 0)
        self.assertEqual(
            sorted(launch.out.splitlines()), ["[0] 0:hello", "[1] 1:", "[2] 2:"]
        )

    def test_much_input_arrives_whole(self):
        data = os.urandom(3 << 20)
        with open(self.path("copy"), "wb") as f:
            launch = self.run_to_end("-np", 1, "cat", stdin=data, stdout=f)
        self.assert_ended(launch, 0)
        with open(self.path("copy"), "rb") as f:
            self.assertEqual(f.read(), data)

    def test_a_rank_that_reads_slowly_gets_all(self):
        launch = self.sh(1, "sleep 0.5; wc -c", stdin=b"x" * (4 << 20))
        self.assertEqual(launch.out.strip(), str(4 << 20))

    def test_a_rank_that_does_not_read_ends(self):
        launch = self.sh(2, "exit 0", stdin=b"x" * (1 << 20))
        self.assert_ended(launch, 0)

    def test_stdin_that_stays_open_does_not_hold_the_launch(self):
        reader, writer = os.pipe()
        process = subprocess.run(
            [DDPRUN, "-np", "2", "true"], stdin=reader, timeout=100, check=False,
            env={**os.environ, "DDPRUN_TEST_MARK": self.mark},
        )
        os.close(writer)
        os.close(reader)
        self.assertEqual(process.returncode, 0)


if __name__ == "__main__":
    main()
