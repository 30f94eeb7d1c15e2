"""How a launch ends: exit codes, and the one line with the first cause."""

import json
import os
import re
import shutil
import signal
import unittest

from launch import DDPRUN, LaunchTest, main, marked, parent_of, wait_until


class Exit(LaunchTest):
    def test_a_launch_that_works_prints_nothing_of_its_own(self):
        launch = self.run_to_end("-np", 4, "true")
        self.assert_ended(launch, 0)
        self.assertEqual((launch.out, launch.err), ("", ""))

    def test_a_report_is_one_line_with_times(self):
        launch = self.run_to_end("--report", "-np", 2, "true")
        self.assert_ended(launch, 0)
        self.assertRegex(
            launch.err,
            r"^ddprun: 2 ranks on 1 host: all started after \d+\.\d ms, "
            r"ran for \d+\.\d{3} s, \d+\.\d{3} s in all\n$",
        )

    def test_all_ranks_are_waited_for(self):
        launch = self.sh(3, 'sleep 0.$((RANK * 2)); echo done')
        self.assert_ended(launch, 0)
        self.assertEqual(launch.out.count("done"), 3)

    def first_failure(self, script, rc, *words):
        """Rank 1 fails first; the others would go on for a minute."""
        launch = self.sh(4, f'[ $RANK = 1 ] || exec sleep 60; {script}')
        self.assert_ended(launch, rc)
        self.assertLess(launch.seconds, 45)
        headline = [line for line in launch.err.splitlines() if line.startswith("ddprun")][0]
        for word in ("rank 1", *words):
            self.assertIn(word, headline)
        return launch

    def test_the_code_of_the_first_rank_that_fails(self):
        self.first_failure("exit 3", 3, "3")

    def test_output_through_a_process_that_the_rank_left(self):
        """The tee of `exec > >(tee log)` ends when its input has ended, after the shell."""
        launch = self.run_to_end("-np", 2, "bash", "-c", "exec > >(sleep 0.1; exec cat); echo rank $RANK")
        self.assert_ended(launch, 0)
        self.assertEqual((sorted(launch.out.splitlines()), launch.err), (["[0] rank 0", "[1] rank 1"], ""))

    def test_output_through_a_process_that_a_failed_rank_left(self):
        launch = self.run_to_end("-np", 2, "bash", "-c", "[ $RANK = 0 ] || exec sleep 60; "
                                 "exec > >(sleep 0.1; exec cat); echo last; exit 3")
        self.assert_ended(launch, 3)
        self.assertEqual(launch.out, "[0] last\n")
        self.assertRegex(launch.err, r"^ddprun: rank 0 on .* exited with status 3 ")
        launch = self.sh(2, "[ $RANK = 1 ] || { sleep 60 & exit 4; }; sleep 60")  # it is ended without a note
        self.assert_ended(launch, 4)
        self.assertNotIn("note:", launch.err)

    def test_a_program_in_the_background_is_reported(self):
        launch = self.sh(2, "setsid sleep 60 &")
        self.assert_ended(launch, 0)
        self.assertRegex(launch.err, r"^ddprun: note: all ranks have exited; ending what they left: "
                                     r"process \d+ \(sleep\), .*'setsid --wait'\)\n$")

    def test_a_signal_gives_128_and_its_number(self):
        self.first_failure("kill -SEGV $$", 139, "SIGSEGV")

    def test_killed_by_kill(self):
        self.first_failure("kill -KILL $$", 137, "SIGKILL")

    def test_that_cpu_time_ran_out_is_said(self):
        launch = self.sh(2, "[ $RANK = 1 ] || exec sleep 60; while :; do :; done",
                         command=["sh", "-c", 'ulimit -t 1; exec "$0" "$@"', DDPRUN])
        self.assert_ended(launch, 137)
        self.assertIn(" died of SIGKILL (killed) as its 1 s of CPU time were used up (ulimit -t)", launch.err)

    @unittest.skipUnless(os.geteuid() == 0 and shutil.which("unshare"), "a counter of the kernel; needs root")
    def test_that_memory_ran_out_is_said(self):
        """By the kernel's counter, which is replaced here: no memory is used."""
        for how, rc, said in (("exit 3", 3, "exited with status 3, perhaps as memory ran out there: the kernel killed 2"),
                              ("kill -KILL $$", 137, "died of SIGKILL (killed), perhaps as memory ran out there: the kernel")):
            counter = self.write("vmstat", "pgfault 7\noom_kill 5\n")
            replaced = ["unshare", "-m", "sh", "-c", f'mount --bind {counter} /proc/vmstat && exec "$0" "$@"', DDPRUN]
            launch = self.sh(2, f"[ $RANK = 1 ] || exec sleep 60; echo oom_kill 7 > {counter}; {how}",
                             command=replaced)
            self.assert_ended(launch, rc)
            self.assertIn(said, launch.err)

    def test_a_code_above_128_is_a_code(self):
        self.first_failure("exit 200", 200, "200")

    def test_the_last_lines_stand_below_the_cause(self):
        # where the others have written much since; else they stand right above it
        launch = self.first_failure("echo why >&2; exit 5", 5)
        self.assertEqual(launch.err.count("why"), 1)
        launch = self.start_sh(
            2, "[ $RANK = 1 ] && { echo why >&2; until [ -e go ]; do sleep 0.05; done; exit 5; }; "
            "until [ -e seen ]; do sleep 0.05; done; seq 100 >&2; sleep 60", "--wdir", self.folder.name)
        self.wait_for(launch, "[1] why\n", "err")
        self.write("seen", "")
        self.wait_for(launch, "[0] 100\n", "err")
        self.write("go", "")
        launch.wait()
        self.assert_ended(launch, 5)
        self.assertIn("\nddprun: the last lines of rank 1:\n    why\n", launch.err)

    def test_the_exception_that_a_rank_wrote_down_stands_below_the_cause(self):
        said = r'{"message": {"message": "ValueError: boom\n", "extraInfo": {}}}'
        write = f"""printf '%s' '{said}' > "$TORCHELASTIC_ERROR_FILE"; exit 5"""
        launch = self.first_failure(write, 5)
        self.assertEqual(launch.err.splitlines()[1], "ddprun: rank 1 raised ValueError: boom")

    def test_a_python_without_a_module_is_the_wrong_one(self):
        script = self.write("train.py", "import no_such_package\n")
        for program, which in ((["python3", script], ""), ([script], " (python3, from PATH)")):
            launch = self.run_to_end("-np", 2, *program)
            self.assert_ended(launch, 1)
            self.assertRegex(launch.err.splitlines()[-1],
                             rf"note: the Python of rank \d on .*{re.escape(which)} has no module "
                             "'no_such_package': activate the environment")
        caught = ("import traceback\ntry:\n    import none\nexcept ImportError:\n    traceback.print_exc()\n"
                  "raise SystemExit('something else')")
        for code in ("import os.none", caught):
            launch = self.run_to_end("-np", 2, "python3", "-c", code)
            self.assertIn("ModuleNotFoundError: No module named '", launch.err)
            self.assertNotIn("has no module", launch.err)

    def test_a_pytorch_without_libuv_gets_advice(self):
        line = "use_libuv was requested but PyTorch was build without libuv support"  # Debian 13's package
        for line, told in ((line, True), (line + ", they say", False)):
            launch = self.run_to_end("-np", 2, "python3", "-c", f"raise RuntimeError('{line}')")
            self.assert_ended(launch, 1)
            self.assertEqual("note: the Python of rank" in launch.err and launch.err.endswith(
                "a PyTorch without libuv, as Debian 13's package is: try 'ddprun --store rank0 -x USE_LIBUV=0', "
                "or pip's PyTorch\n"), told)

    def test_the_exception_is_passed_on_to_an_agent_above(self):
        said = r'{"message": {"message": "ValueError: boom \"x\"\n", "extraInfo": {}}}'
        outer = self.path("outer.json")
        launch = self.sh(2, f"""[ $RANK = 1 ] || exec sleep 60
                         printf '%s' '{said}' > "$TORCHELASTIC_ERROR_FILE"; exit 5""",
                         env={"TORCHELASTIC_ERROR_FILE": outer})
        self.assert_ended(launch, 5)
        with open(outer, encoding="utf-8") as f:
            message = json.load(f)["message"]
        self.assertEqual((message["message"], message["errorCode"]), ('ValueError: boom "x"', 5))
        self.assertGreater(int(message["extraInfo"]["timestamp"]), 1.6e9)  # as torchrun reads it

    def test_an_agent_above_whose_file_cannot_be_opened(self):
        """As on a dead file server: open() does not return."""
        os.mkfifo(self.path("outer.json"))
        launch = self.sh(2, """echo '{"message": "x"}' > "$TORCHELASTIC_ERROR_FILE"; exit 5""",
                         env={"TORCHELASTIC_ERROR_FILE": self.path("outer.json")})
        self.assert_ended(launch, 5)
        self.assertIn("cannot write TORCHELASTIC_ERROR_FILE", launch.err)

    def test_an_exception_that_did_not_end_the_rank_is_not_shown(self):
        launch = self.sh(2, """echo '{"message": "x"}' > "$TORCHELASTIC_ERROR_FILE" """)
        self.assert_ended(launch, 0)
        self.assertEqual(launch.err, "")

    def test_an_error_file_of_the_user_stays(self):
        launch = self.run_to_end("-np", 2, "-x", "TORCHELASTIC_ERROR_FILE=/mine",
                                 "sh", "-c", "echo $TORCHELASTIC_ERROR_FILE")
        self.assertEqual(launch.out.count("/mine"), 2)

    def test_half_a_line_is_not_lost(self):
        launch = self.first_failure("printf 'half out'; printf 'half err' >&2; exit 6", 6)
        self.assertIn("[1] half out\n", launch.out)
        self.assertIn("[1] half err\n", launch.err)

    def test_the_others_are_folded(self):
        launch = self.sh(16, '[ $RANK = 7 ] && exit 9; exec sleep 60')
        self.assert_ended(launch, 9)
        self.assertLessEqual(len(launch.err.splitlines()), 6, launch.err)

    def test_every_rank_fails_at_once(self):
        launch = self.sh(8, "exit 4")
        self.assert_ended(launch, 4)

    def test_the_first_of_many_that_are_found_at_once(self):
        """The agent is stopped while they end, and sees all exits at once."""
        for first in (0, 3, 7):
            launch = self.start_sh(8, f"[ $RANK = {first} ] && echo $$ >pid{first}; echo up; "
                                   f"until [ -e go{first} ]; do sleep 0.02; done; "
                                   f"[ $RANK = {first} ] && exit 5; "
                                   f"until grep -q ') Z' /proc/$(cat pid{first})/stat; do sleep 0.02; done; "
                                   "sleep 0.0$((9 - RANK)); exit 4", "--wdir", self.folder.name)
            self.assertTrue(wait_until(lambda launch=launch: launch.out.count("up") == 8))
            ours = [p for p, line in marked(self.mark).items() if line.startswith(DDPRUN + " ")]
            agent = next(pid for pid in ours if parent_of(pid) in ours)
            os.kill(agent, signal.SIGSTOP)
            self.write(f"go{first}", "")
            self.assertTrue(wait_until(lambda ours=ours: set(marked(self.mark)) == set(ours)))
            os.kill(agent, signal.SIGCONT)
            launch.wait()
            self.assert_ended(launch, 5)
            self.assertIn(f"ddprun: rank {first} on ", launch.err)

    def test_a_failure_after_others_have_ended_well(self):
        go = self.path("go")
        launch = self.start("-np", 4, "sh", "-c", "echo up; [ $RANK = 2 ] && exec sleep 60; [ $RANK = 3 ] || "
                            f"exit 0; while [ ! -e {go} ]; do sleep 0.05; done; exit 11")
        self.assertTrue(wait_until(lambda: launch.out.count("up") == 4))
        self.assertTrue(wait_until(lambda: sum(c.startswith("sh ") for c in marked(self.mark).values()) == 1))
        self.write("go", "")
        launch.wait()
        self.assert_ended(launch, 11)
        self.assertRegex(launch.err, r"^ddprun: rank 3 on \S+ exited with status 11 \(after [0-9.]+ s\); "
                         "ranks 0-1 had exited with 0; ddprun stopped rank 2\n")

    def test_time_is_up(self):
        launch = self.run_to_end("-np", 2, "--timeout", "0.5s", "sleep", 60)
        self.assert_ended(launch, 124)
        self.assertLess(launch.seconds, 45)
        self.assertIn("0.5", launch.err)

    def test_a_program_that_is_not_there(self):
        launch = self.run_to_end("-np", 2, "no-such-program-at-all")
        self.assert_ended(launch, 127)
        self.assertIn("'no-such-program-at-all'", launch.err)

    def test_a_path_that_is_not_there(self):
        launch = self.run_to_end("-np", 2, "./no/such/program")
        self.assert_ended(launch, 127)
        self.assertIn("'./no/such/program'", launch.err)

    def test_a_program_that_may_not_be_run(self):
        launch = self.run_to_end("-np", 2, self.write("data", "text", 0o644))
        self.assert_ended(launch, 126)
        self.assertIn("data", launch.err)

    def test_a_folder_is_no_program(self):
        launch = self.run_to_end("-np", 2, self.folder.name)
        self.assert_ended(launch, 126)

    def test_an_interpreter_that_is_not_there(self):
        launch = self.run_to_end("-np", 2, self.write("p", "#!/no/such/sh\n", 0o755))
        self.assert_ended(launch, 126)
        self.assertIn("'/no/such/sh' is not there", launch.err)

    def test_a_script_from_windows(self):
        launch = self.run_to_end("-np", 2, self.write("p", "#!/bin/sh\r\necho hi\r\n", 0o755))
        self.assert_ended(launch, 126)
        self.assertIn("CR LF, so '/bin/sh' is not found", launch.err)
        script = self.write("env.sh", "#!/usr/bin/env sh\r\necho hi\r\n", 0o755)
        launch = self.run_to_end("-np", 2, script)
        self.assert_ended(launch, 126)
        self.assertEqual(launch.err, f"ddprun: cannot run '{script}': its lines end in CR LF, so 'sh' is not "
                                     f"found; try sed -i 's/\\r$//' {script}\n")

    def test_a_script_without_a_first_line_is_none(self):
        launch = self.run_to_end("-np", 1, self.write("p", "echo hello\n", 0o755))
        self.assert_ended(launch, 126)
        self.assertIn("#!", launch.err)

    def test_a_relative_program_is_found_from_the_folder(self):
        self.write("p", "#!/bin/sh\npwd\n", 0o755)
        launch = self.run_to_end("-np", 1, "./p", cwd=self.folder.name)
        self.assert_ended(launch, 0)
        self.assertEqual(launch.out.strip(), os.path.realpath(self.folder.name))

    def test_arguments_arrive_as_they_are(self):
        words = ["", " ", "a b", "'", '"', "$HOME", "*", "-np", "--", "ä\n"]
        launch = self.run_to_end(
            "-np", 1, "python3", "-c", "import sys; print(sys.argv[1:])", *words
        )
        self.assert_ended(launch, 0)
        self.assertEqual(launch.out, f"{words!r}\n")


if __name__ == "__main__":
    main()
