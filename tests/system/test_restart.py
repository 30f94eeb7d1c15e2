"""--max-restarts: all ranks once more, on the same agents, and what is new to them."""

import json
import os
import signal
import sys
import time

from launch import LaunchTest, held, main, marked, needs_gpus, parent_of, wait_until
from test_store import ADD

PYTHON = sys.executable
N = "TORCHELASTIC_RESTART_COUNT"
AGAIN = "ddprun: all ranks are started again, attempt "


def ours(launch):
    return [line for line in launch.err.splitlines() if line.startswith("ddprun: ")]


def said(launch):
    """What the ranks have written, without their tags."""
    return sorted(line.partition("] ")[2] for line in launch.out.splitlines())


class Restart(LaunchTest):
    def fails(self, times, script, np=2, options=()):
        """Rank 1 fails so many times, when the others have come; they would go on."""
        up = self.path("up")
        return self.sh(np, f'N=${N}; {script}; [ $N -lt {times} ] || exit 0; '
                       f'[ $RANK = 1 ] || {{ : > {up}$RANK.$N; exec sleep 60; }}; '
                       f'for r in $(seq 0 {np - 1}); do '
                       f'while [ $r != 1 ] && ! [ -e {up}$r.$N ]; do sleep .01; done; done; '
                       'echo oops $N >&2; exit $((3 + N))', *options)

    def test_each_failure_is_told_and_the_last_attempt_counts(self):
        launch = self.fails(2, f'echo $RANK ${N} $TORCHELASTIC_MAX_RESTARTS', 3,
                            options=["--max-restarts", 2, "--report"])
        self.assert_ended(launch, 0)
        self.assertEqual(said(launch), [f"{r} {n} 2" for r in range(3) for n in range(3)])
        lines = ours(launch)
        for i, code in ((0, 3), (1, 4)):
            self.assertRegex(lines[2 * i], rf"^ddprun: rank 1 on \S+ exited with status {code} "
                             rf"\(after \d+\.\d s\), attempt {i + 1} of 3; ddprun stopped ranks 0,2$")
            self.assertEqual(lines[2 * i + 1], f"{AGAIN}{i + 2} of 3")
        self.assertEqual(launch.err.count("oops"), 2)  # each failure's last line once
        self.assertRegex(lines[4], r"^ddprun: all ranks ran again \d+\.\d+ s after a failure \(mean of 2; "
                         r"longest \d+\.\d+ s\), and for \d+\.\d % of the time$")
        self.assertIn("in 3 attempts, ", lines[5])
        self.assertEqual(len(lines), 6)

    def test_an_attempt_that_fails_before_all_ranks_have_started(self):
        """Rank 1 runs already, but the thread that has started it has not reported it yet."""
        gate = self.path("gate")
        launch = self.start_sh(
            2, f'[ $RANK = 1 ] || : >{gate}.0; [ ${N} = 0 ] || exit 0; [ $RANK = 0 ] && exit 3; exec sleep 60',
            "--max-restarts", 1, "--report", "--log-level", "agent=debug", env=held(HOLD_START_UNTIL=gate))
        self.wait_for(launch, "active -> terminating", "err")
        for start in range(1, 4):
            self.write(f"gate.{start}", "")
        launch.wait()
        self.assert_ended(launch, 0)
        self.assertRegex(ours(launch)[-1], r"2 ranks on 1 host: all started after .* in 2 attempts, ")

    def test_what_a_failed_rank_left_delays_no_attempt(self):
        launch = self.sh(1, f"[ ${N} = 0 ] || exit 0; (sleep 0.9; echo late) & exit 3", "--max-restarts", 1)
        self.assert_ended(launch, 0)
        self.assertEqual(launch.out, "")  # where no attempt follows, it has a second: test_exit.py

    def test_attempts_are_marked_in_files(self):
        launch = self.fails(1, f'echo attempt ${N}', 3, options=[
            "--max-restarts", 1, "--output-filename", self.path("out", "rank.%r.%s")])
        self.assert_ended(launch, 0)
        for rank in range(3):
            with open(self.path("out", f"rank.{rank}.out"), encoding="utf-8") as f:
                self.assertEqual(
                    f.read(), "attempt 0\n--- ddprun, attempt 2 of 2 ---\nattempt 1\n")

    def test_files_of_each_attempt(self):
        """In folders, and by %a; the link leads to the last attempt, and over an older link."""
        os.makedirs(self.path("logs"))
        os.symlink("attempt-7", self.path("logs", "current"))
        for name, paths in (("logs", "logs/attempt-{}/rank.{}.out"), ("by%a/%r", "by{}/{}")):
            launch = self.fails(2, f'echo attempt ${N}', 3, options=[
                "--max-restarts", 5, "--output-filename", self.path(name)])
            self.assert_ended(launch, 0)
            for attempt in range(3):
                for rank in (0, 2):  # rank 1 has errors, too
                    with open(self.path(paths.format(attempt + 1, rank)), encoding="utf-8") as f:
                        self.assertEqual(f.read(), f"attempt {attempt}\n")
            for left in os.scandir(self.path()):
                if left.name.startswith("up"):
                    os.remove(left)
        self.assertEqual(os.readlink(self.path("logs", "current")), "attempt-3")
        self.assertEqual(sorted(os.listdir(self.path("logs"))),
                         ["attempt-1", "attempt-2", "attempt-3", "current"])

    def test_a_current_that_is_not_ours_stays(self):
        os.makedirs(self.path("logs", "current"))
        launch = self.sh(1, "echo out", "--max-restarts", 1, "--output-filename", self.path("logs"))
        self.assert_ended(launch, 0)
        self.assertEqual(sorted(os.listdir(self.path("logs"))), ["attempt-1", "current"])

    def test_when_there_are_no_more(self):
        for options in (["--max-restarts", 1], ["--max-restarts=1", "--store", "rank0"]):
            launch = self.fails(9, 'echo $MASTER_PORT', options=options)
            self.assert_ended(launch, 4)
            self.assertIn("attempt 2 of 2", ours(launch)[2])
            self.assertEqual(launch.err.count(AGAIN), 1)
            # with a store of its own rank 0 gets another port, which must be free again
            self.assertEqual(len(set(said(launch))), 1 + ("rank0" in options))

    def test_keys_of_the_dead_are_gone(self):
        for options in ([], ["--store-open"]):
            text = ADD + (f"n = int(os.environ['{N}']); add('/a', 1)\n"
                          "os.write(1, b'%d %d\\n' % (n, add('/n', 1)))\n"
                          "add('/written', 1)\n"
                          "while add('/written', 0) < 2: time.sleep(.01)\n"
                          "n < 2 and (sys.exit(5) if os.environ['RANK'] == '1' else time.sleep(60))\n")
            launch = self.run_to_end("-np", 2, "--max-restarts", 3, *options, PYTHON, "-c", text)
            self.assert_ended(launch, 0)
            self.assertEqual(said(launch), ["0 1", "0 2", "1 1", "1 2", "2 1", "2 2"])

    def test_the_dead_use_no_descriptors(self):
        """The agent keeps /proc/PID/fd of each process open that it has admitted to the store."""
        text = ADD + (f"n = os.environ['{N}']; up = '{self.path('up')}' + n\n"
                      "add('/n', 1)\n"
                      "if os.environ['RANK'] == '0':\n"
                      "    open(up, 'w').close()\n"
                      "    n < '3' and time.sleep(60)\n"
                      "    sys.exit()\n"
                      "while not os.path.exists(up): time.sleep(.01)\n"
                      "os.system(f'ls -l /proc/{os.getppid()}/fd | grep -c /proc/')\n"
                      "n < '3' and sys.exit(5)\n")
        launch = self.run_to_end("-np", 2, "--max-restarts", 3, PYTHON, "-c", text)
        self.assert_ended(launch, 0)
        self.assertLess(max(map(int, said(launch))), 4)

    def test_who_does_not_listen_is_killed_first(self):
        launch = self.sh(2, f'[ ${N} = 1 ] && exit; [ $RANK = 1 ] && {{ sleep .3; exit 3; }}; '
                         "trap '' TERM; for i in 1 2 3 4 5 6; do sleep 10; done",
                         "--max-restarts", 1, "--grace", "200ms")
        self.assert_ended(launch, 0)
        self.assertLess(launch.seconds, 45)

    @needs_gpus
    def test_a_gpu_that_is_lost(self):
        """Another attempt begins only where all GPUs still answer."""
        env = {"LD_LIBRARY_PATH": os.path.dirname(os.environ["FAKE_NVML"]),
               "FAKE_NVML_LOST": self.path("lost")}
        for breaks, code in (("", 0), (f"touch {self.path('lost')};", 125)):
            job = self.launch_class(
                self.mark, ["-np", 2, "--max-restarts", 2, "sh", "-c",
                            f"{breaks} [ $TORCHELASTIC_RESTART_COUNT = 1 ] || exit 4"],
                command=self.with_gpus(), env=env)
            self.launches.append(job)
            job.wait()
            self.assert_ended(job, code)
        self.assertIn("is lost: the check of its GPUs exited with status 1: 'GPU 1 is lost (NVML)'",
                      job.err)
        self.assertNotIn(AGAIN, job.err)

    def test_what_is_not_forgiven(self):
        for command, code, words in (
                ((self.path("nowhere"),), 127, "nowhere"),
                (("sh", "-c", "[ $RANK = 0 ] || sleep 60; exit 93"), 93,
                 "exited with status 93 (no restart)"),
                (("--timeout", "1", "sh", "-c", "sleep 0.3; exit 1"), 124, "timed out after 1 s (--timeout)")):
            launch = self.run_to_end("-np", 2, "--max-restarts", 1000, *command)
            self.assert_ended(launch, code)
            self.assertIn(words, ours(launch)[-1])

    def test_a_health_check_that_fails_before_the_next_attempt(self):
        """Only that is reported: the ranks of the attempt before have been."""
        sick = self.path("sick")
        launch = self.sh(2, f": >{sick}; exit 4", "--max-restarts", 2, "--health-check",
                         f"! [ -e {sick} ] || {{ echo broken >&2; exit 3; }}")
        self.assert_ended(launch, 125)
        first, last = ours(launch)
        self.assertIn("exited with status 4", first)
        self.assertIn(", attempt 1 of 3", first)
        self.assertRegex(last, r"^ddprun: \S+ is lost: its health check exited with status 3: 'broken' "
                         r"\(--health-check\), before attempt 2 of 3$")

    def test_a_health_check_that_outlasts_the_timeout(self):
        launch = self.sh(1, "echo started", "--timeout", "1s", "--health-check", "exec sleep 1000",
                         "--health-timeout", "500s", deadline=100)
        self.assert_ended(launch, 124)
        self.assertEqual(launch.out, "")
        self.assertEqual(launch.err, "ddprun: timed out after 1 s (--timeout)\n")

    def test_told_to_end_while_an_attempt_is_being_ended(self):
        ready = self.path("ready")  # to be asked: rank 1 fails when rank 0 is
        launch = self.start_sh(
            2, f"[ $RANK = 1 ] && {{ until [ -e {ready} ]; do sleep 0.05; done; exit 3; }}; "
            f"trap 'echo asked' TERM; : >{ready}; while :; do sleep 0.1; done",
            "--max-restarts", 5, "--grace", "60s")
        self.wait_for(launch, "asked")
        while launch.process.poll() is None:  # two that come together count as one
            launch.signal(signal.SIGINT)
            time.sleep(0.2)
        self.assertEqual(launch.wait(), 130, launch.err)
        self.assertIn("attempt 1 of 6", launch.err)
        self.assertLess(launch.seconds, 45)
        self.assertNotIn(AGAIN, launch.err)

    def test_told_to_end_while_ranks_fail_all_the_time(self):
        launch = self.start_sh(2, "exit 3", "--max-restarts", 100000)
        self.wait_for(launch, AGAIN + "3 ", "err")
        launch.signal(signal.SIGTERM)
        self.assertEqual(launch.wait(), 143, launch.err[-1000:])
        self.assertIn("interrupted (SIGTERM)", ours(launch)[-1])

    def test_the_agent_is_killed_in_a_later_attempt(self):
        launch = self.start_sh(2, f'[ ${N} = 0 ] && exit 3; echo up; sleep 60',
                               "--max-restarts", 5)
        self.assertTrue(wait_until(lambda: launch.out.count("up") == 2), launch.err)
        agents = [p for p in marked(self.mark) if parent_of(p) == launch.process.pid]
        self.assertEqual(len(agents), 1)
        os.kill(agents[0], signal.SIGKILL)
        self.assertEqual(launch.wait(), 125, launch.err)  # tearDown: no process is left
        self.assertIn("is lost", launch.err)
        self.assertIn("ddprun: warning: the agent on this host died of SIGKILL", ours(launch))

    def test_input_goes_on_where_it_stood(self):
        launch = self.start_sh(
            2, f'[ $RANK = 0 ] || {{ [ ${N} = 1 ] && exit; exec sleep 60; }}; '
            f'if [ ${N} = 0 ]; then read -r a; echo first $a; exit 3; fi; echo second $(cat)',
            "--max-restarts", 1, stdin="c\n")
        for text, stream, until in (("a\n", "out", "first a"), ("", "err", AGAIN),
                                    ("b\n", "err", AGAIN)):
            launch.process.stdin.write(text.encode())
            launch.process.stdin.flush()
            self.wait_for(launch, until, stream)
        self.assertEqual(launch.wait(), 0, launch.err)
        self.assertIn("second b c\n", launch.out)

    # --- a crash loop ---

    def test_no_progress_ends_the_job_for_good(self):
        """A rank that gets no further: as often as was said, and with the code of no requeue."""
        launch = self.sh(2, '[ $RANK = 0 ] && exec sleep 60; exit 3', "--max-restarts", 100,
                         "--max-no-progress", 3)
        self.assert_ended(launch, 93)
        self.assertEqual(launch.err.count(AGAIN), 2)
        self.assertIn("attempt 3 of 101", ours(launch)[-2])
        self.assertEqual(ours(launch)[-1], "ddprun: 3 attempts in a row got no further "
                         "(--max-no-progress): do not requeue the job")

    def test_progress_by_a_line(self):
        """A higher step than ever before counts; the same one, or half a line, does not."""
        steps = "5 7 7x 7 9 9"  # of the attempts: from "7x" on two that get no further
        launch = self.sh(2, f'[ $RANK = 0 ] && exec sleep 60; set -- {steps}; shift ${N}; '
                         'printf "much\nddprun.checkpoint "; sleep .05; echo $1; '
                         'echo "at ddprun.checkpoint 99"; exit 3',
                         "--max-restarts", 100, "--max-no-progress", 2)
        self.assert_ended(launch, 93)
        self.assertEqual(launch.err.count(AGAIN), 3)
        self.assertIn("2 attempts in a row got no further than step 7 (", ours(launch)[-1])

    def test_a_program_that_begins_anew(self):
        """It writes over its checkpoints: told once. Steps from before the last one are none of that."""
        begins_anew = "ddprun: warning: rank 0 reports step 10 again"
        for reports, told in (("10,20 10,20 10,20", 1), ("10,20,30 20,30 20,30,40", 0), ("10 10 10", 0)):
            launch = self.sh(1, f'set -- {reports}; shift ${N}; for s in $(echo $1 | tr , " "); do '
                             'echo ddprun.checkpoint $s; done; exit 3', "--max-restarts", 2,
                             "--max-no-progress", 2)
            self.assertEqual(launch.err.count(begins_anew), told, launch.err)
            self.assertEqual(launch.err.count("may write over its checkpoints"), told, launch.err)

    def test_steps_that_are_done_again(self):
        """From where an attempt goes on, the first word counts, to the last step that any rank has done."""
        lines = "resumed_3,step_6,checkpoint_8 resumed_5,resumed_2,step_7 step_9 resumed_9"  # by attempt
        launch = self.sh(1, f'set -- {lines}; shift ${N}; for s in $(echo $1 | tr , " "); do '
                         f'echo ddprun.$s | tr _ " "; done; [ ${N} = 3 ] || exit 3', "--max-restarts", 3,
                         "--report", "--events", self.path("events"))
        self.assert_ended(launch, 0)
        self.assertIn("ddprun: 3 steps were done again after failures\n", launch.err)
        with open(self.path("events"), encoding="utf-8") as f:
            events = [json.loads(line) for line in f]
        self.assertEqual([(e["rank"], e["step"], e["again"]) for e in events if e["event"] == "resumed"],
                         [(0, 5, 3), (0, 9, 0)])

    def test_progress_by_a_file(self):
        """Written, replaced, or gone: until nothing changes; what lay there before is no progress."""
        self.write("state", "old")
        state = self.path("state")
        launch = self.sh(1, f'case ${N} in 0) : ;; 1) echo more >>{state} ;; '
                         f'2) echo new >{state}.1; mv {state}.1 {state} ;; 3) rm {state} ;; esac; exit 3',
                         "--max-restarts", 100, "--max-no-progress", 2, "--progress-file", state)
        self.assert_ended(launch, 93)
        self.assertEqual(launch.err.count(AGAIN), 5)

    def test_progress_by_a_file_on_a_dead_file_server(self):
        launch = self.sh(1, f"[ ${N} = 1 ] || exit 3", "--max-restarts", 2, "--max-no-progress", 2,
                         "--progress-file", "/held", env=held(HOLD_STAT="/held"))
        self.assert_ended(launch, 0)
        self.assertIn("--progress-file '/held': no answer in 2 s", launch.err)

    def test_the_wait_gets_longer_and_progress_ends_that(self):
        launch = self.sh(1, f'[ ${N} = 7 ] && echo ddprun.checkpoint 1; [ ${N} -lt 8 ] && exit 3; exit 0',
                         "--max-restarts", 9, "--restart-delay", "20ms")
        self.assert_ended(launch, 0)
        waits = [line.split()[-3] for line in ours(launch) if "(--restart-delay)" in line]
        self.assertEqual(waits, ["0.02", "0.04", "0.08", "0.16", "0.32", "0.32", "0.32", "0.02"])
        self.assertGreater(launch.seconds, 1.28)

    def test_the_wait_ends_with_the_job(self):
        """By a signal and by --timeout, at once; a rank that failed before is not told again."""
        for options, code, words in (((), 143, "interrupted (SIGTERM)"),
                                     (("--timeout", "4s"), 124, "timed out after 4 s (--timeout)")):
            launch = self.start_sh(2, "exit 3", "--max-restarts", 5, "--restart-delay", "1h", *options)
            self.wait_for(launch, "the next attempt begins in 3600 s", "err")
            if not options:
                launch.signal(signal.SIGTERM)
            self.assertEqual(launch.wait(), code, launch.err)
            self.assertLess(launch.seconds, 30)
            self.assertEqual(ours(launch)[-1], "ddprun: " + words)
            self.assertEqual(launch.err.count("exited with status 3"), 1)

    def test_the_agent_is_killed_during_the_wait(self):
        launch = self.start_sh(2, "exit 3", "--max-restarts", 5, "--restart-delay", "1h")
        self.wait_for(launch, "the next attempt begins", "err")
        for agent in [p for p in marked(self.mark) if parent_of(p) == launch.process.pid]:
            os.kill(agent, signal.SIGKILL)
        self.assertEqual(launch.wait(), 125, launch.err)
        self.assertIn("is lost", launch.err)

    def test_options_that_need_another(self):
        for options, words in ((["--restart-delay", "1s"], "needs --max-restarts"),
                               (["--max-no-progress", 3], "needs --max-restarts"),
                               (["--max-no-progress", 3, "--max-restarts", 2],
                                "--max-restarts 2 ends the job before"),
                               (["--progress-file", "x"], "needs --max-no-progress")):
            launch = self.run_to_end(*options, "true")
            self.assert_ended(launch, 2)
            self.assertIn(words, launch.err)
            self.assertEqual(len(launch.err.splitlines()), 1)

    def test_the_next_attempt_cannot_be_started(self):
        """The program is gone when it is to be started again."""
        program = self.write("program", "#!/bin/sh\n[ $RANK = 0 ] && rm $0\nexit 3\n")
        os.chmod(program, 0o755)
        launch = self.run_to_end("-np", 1, "--max-restarts", 5, program)
        self.assert_ended(launch, 127)
        self.assertEqual(launch.err.count(AGAIN), 1)

    # --- forked from one interpreter ---

    def forked(self, text, *options, np=2, slow=0):
        """Each import of `once` is counted, in a file and by a word of its own."""
        self.write("once.py", "import os, time\npid = os.getpid()\n"
                   f"time.sleep({slow})\nopen('{self.path('count')}', 'a').write('x')\n")
        return self.run_to_end("-np", np, "-v", "--preload", "once,json", *options, PYTHON, "-c",
                               "import os, sys, time, once\nrank = int(os.environ['RANK'])\n"
                               f"n = int(os.environ['{N}'])\n" + text,
                               env={"PYTHONPATH": self.folder.name})

    def imports(self):
        with open(self.path("count"), encoding="ascii") as f:
            return len(f.read())

    def test_imported_once_for_all_attempts(self):
        launch = self.forked("print(rank, n, flush=True)\nn < 3 and sys.exit(3 + n)\n",
                             "--max-restarts", 3, np=3)
        self.assert_ended(launch, 0)
        self.assertEqual(self.imports(), 1)
        self.assertEqual([line for line in said(launch) if line.endswith("3")],
                         ["0 3", "1 3", "2 3"])

    def test_a_failure_while_others_are_still_being_forked(self):
        """The rank that is halfway is dropped, and the interpreter goes on with the next."""
        launch = self.forked("n < 6 and sys.exit(3)\nprint(rank, once.pid)\n",
                             "--max-restarts", 6, np=8)
        self.assert_ended(launch, 0)
        self.assertEqual(self.imports(), 1)
        self.assertEqual(len(said(launch)), 8)
        self.assertEqual(len({line.split()[1] for line in said(launch)}), 1)

    def test_the_interpreter_dies_between_two_attempts(self):
        up = self.path("up")
        launch = self.forked("while n == 0 and rank == 1 and not os.path.exists('%s'): time.sleep(.01)\n"
                             "n == 0 and rank == 1 and (os.kill(once.pid, 9), sys.exit(3))\n"
                             "n == 0 and (open('%s', 'w').close(), time.sleep(60))\nprint(rank, n)\n"
                             % (up, up), "--max-restarts", 1)
        self.assert_ended(launch, 0)
        self.assertEqual(said(launch), ["0 1", "1 1"])
        self.assertEqual(self.imports(), 3)
        # "in another attempt", or in this one: the agent may be at it when it hears of the end
        self.assertIn("the ranks import by themselves, as the interpreter that imports has ended",
                      launch.err)

    def test_an_import_that_looks_which_attempt_it_is(self):
        self.write("doubt.py", f"import os; n = os.environ['{N}']\n")
        for options, forked in ((("--max-restarts", 1), False), ((), True)):
            launch = self.run_to_end("-np", 2, "-v", "--preload", "doubt", *options, PYTHON, "-c",
                                     "import doubt; print(doubt.n)",
                                     env={"PYTHONPATH": self.folder.name})
            self.assert_ended(launch, 0)
            self.assertEqual("the ranks are forked" in launch.err, forked)
            self.assertEqual(f"keeps {N}" in launch.err, not forked)


if __name__ == "__main__":
    main()
