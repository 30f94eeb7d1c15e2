"""--events: every event has the members of doc/events.md, and nothing holds up the job."""

import json
import os
import pathlib
import re
import signal

import launch

ROOT = pathlib.Path(__file__).resolve().parents[2]
CLIENT = str(ROOT / "tests/system/programs/pmi_client.py")
TYPES = {"integer": int, "number": (int, float), "string": str, "boolean": bool, "list": list,
         "object": dict, "null": type(None)}


def schema():
    """The tables of doc/events.md: {event: {member: types}}, and those of all events."""
    page = (ROOT / "doc/events.md").read_text(encoding="utf-8")
    tables = {}
    for section in re.split(r"^## ", page, flags=re.M)[1:]:
        rows = re.findall(r"^\| `(\w+)` \| ([\w ]+?) \|", section, flags=re.M)
        tables[section.split("\n")[0]] = {
            name: [TYPES[word] for word in kinds.split(" or ")] for name, kinds in rows}
    return tables, tables.pop("All events")


def fits(value, kinds):
    """bool is an int for Python, and not for JSON."""
    return any(isinstance(value, kind) for kind in kinds) and (
        not isinstance(value, bool) or bool in kinds)


class Events(launch.LaunchTest):
    def setUp(self):
        super().setUp()
        self.file = self.path("events")
        self.tables, self.common = schema()

    def check(self, lines):
        """Parse and compare with the page; returns the events."""
        events = [json.loads(line) for line in lines]
        for event in events:
            name = event["event"]
            self.assertIn(name, self.tables, "not in doc/events.md")
            wanted = {**self.common, **self.tables[name]}
            self.assertEqual(set(event), set(wanted), name)
            for member, kinds in wanted.items():
                self.assertTrue(fits(event[member], kinds), f"{name}: {member} {event[member]!r}")
        self.assertEqual({e["v"] for e in events}, {1})
        return events

    def events(self, *args, code=0):
        done = self.run_to_end("--events", self.file, *args)
        self.assertEqual(done.rc, code, done.err)
        with open(self.file, encoding="utf-8") as f:
            return self.check(f.read().splitlines()), done

    def test_a_job_from_start_to_end(self):
        events, _ = self.events("-np", 2, "true")
        names = [e["event"] for e in events]
        self.assertEqual(names[:2], ["job", "plan"])
        self.assertEqual(names[-1], "end")
        for name in ("rank_start", "rank_exit"):
            self.assertEqual([e["rank"] for e in sorted(events, key=lambda e: e.get("rank", 0))
                              if e["event"] == name], [0, 1])
        job, plan, end = events[0], events[1], events[-1]
        self.assertEqual(job["command"], ["true"])
        self.assertEqual([n["ranks"] for n in plan["nodes"]], [[0, 1]])
        self.assertEqual((end["code"], end["ranks"], end["attempts"]), (0, 2, 1))
        self.assertLess(names.index("rank_start"), names.index("rank_exit"))

    def test_several_programs(self):
        events, _ = self.events("-np", 1, "echo", "a", ":", "-np", 1, "true")
        self.assertEqual(events[0]["command"], ["echo", "a", ":", "true"])

    def test_checkpoints_that_a_rank_reports(self):
        script = "for n in 1 1 5 3; do echo ddprun.checkpoint $n; done; exit 3"
        events, _ = self.events("-np", 1, "--max-restarts", 1, "--restart-delay", "1ms", "sh", "-c",
                                script, code=3)
        self.assertEqual([(e["rank"], e["step"], e["attempt"]) for e in events
                          if e["event"] == "checkpoint"], [(0, 1, 1), (0, 5, 1)])

    def test_a_failure_with_its_last_words_and_a_restart(self):
        script = r"sleep 0.1; [ $RANK = 1 ] && { printf 'bad \377 byte\n' >&2; exit 3; }; sleep 60"
        events, done = self.events("-np", 2, "--max-restarts", 1, "sh", "-c", script, code=3)
        failed = [e for e in events if e["event"] == "rank_exit" and e["why"] == "failed"]
        self.assertEqual([(e["rank"], e["code"], e["attempt"]) for e in failed],
                         [(1, 3, 1), (1, 3, 2)])
        stopped = [e for e in events if e["event"] == "rank_exit" and e["why"] == "stopped"]
        self.assertEqual({(e["rank"], e["signal"]) for e in stopped}, {(0, "SIGTERM")})
        failures = [e for e in events if e["event"] == "failure"]
        self.assertEqual([e["restart"] for e in failures], [True, False])
        self.assertEqual(failures[0]["last_words"], "bad \ufffd byte\n")
        self.assertEqual([e["attempt"] for e in events if e["event"] == "restart"], [2])
        found = [e for e in events if e["event"] == "recovered"]
        self.assertEqual([e["attempt"] for e in found], [2])
        self.assertLess(0, found[0]["detect_s"])
        self.assertLess(found[0]["detect_s"], found[0]["recover_s"])
        self.assertEqual(events[-1]["recoveries"], 1)
        self.assertAlmostEqual(events[-1]["recover_s"], found[0]["recover_s"], places=6)
        # every line of ddprun is an event
        self.assertLess(0, events[-1]["whole_s"])
        self.assertLess(events[-1]["whole_s"], events[-1]["total_s"])
        texts = [e["text"] for e in events if e["event"] == "message"]
        ours = re.findall(r"^ddprun: (.*)", done.err, flags=re.M)
        self.assertEqual(len(ours), 3)
        self.assertLessEqual(set(ours), set(texts))

    def test_signals_and_timeouts(self):
        events, _ = self.events("--timeout", "2", "sleep", "60", code=124)
        self.assertEqual([e["kind"] for e in events if e["event"] == "failure"], ["timeout"])
        events, _ = self.events("sh", "-c", "kill -SEGV $$", code=139)
        self.assertEqual(events[-1]["code"], 139)
        self.assertEqual([e["signal"] for e in events if e["event"] == "rank_exit"],
                         ["SIGTERM", "SIGSEGV"], "the file is appended to")

    def test_on_stdout_lines_stay_whole(self):
        script = "printf 'half '; sleep 0.1; echo line"
        done = self.run_to_end("--events", "-", "-np", 2, "sh", "-c", script)
        lines = done.out.splitlines()
        self.assertEqual(self.check([x for x in lines if x[0] == "{"])[-1]["code"], 0)
        self.assertEqual(sorted(x for x in lines if x[0] != "{"),
                         ["[0] half line", "[1] half line"])

    def test_a_descriptor_that_is_our_stdout(self):
        """A pipe takes parts of lines: two writers would cut them."""
        script = "i=0; while [ $i -lt 2000 ]; do echo ddprun.checkpoint $i; echo text $i; i=$((i + 1)); done"
        done = self.run_to_end(
            "--events", "fd:1", "-np", 4, "sh", "-c", script,
            command=["bash", "-c", '"$0" "$@" | (sleep 0.5; cat); exit ${PIPESTATUS[0]}', launch.DDPRUN])
        self.assert_ended(done, 0)
        lines = done.out.splitlines()
        self.assertEqual(self.check([x for x in lines if x[0] == "{"])[-1]["event"], "end")
        ranks = [x for x in lines if x[0] != "{"]
        self.assertEqual([x for x in ranks if not re.fullmatch(r"\[[0-3]\] (ddprun.checkpoint|text) \d+", x)], [])
        self.assertEqual(len(ranks), 4 * 2 * 2000)

    def test_of_a_job_that_did_not_get_far(self):
        done = self.run_to_end("--events", "fd:2", "-H", "nohost.invalid:1", "true")
        lines = done.err.splitlines()
        self.assertEqual(self.check([x for x in lines if x[0] == "{"])[-1]["event"], "end")
        self.assertEqual(done.out, "")

    def test_to_a_descriptor(self):
        command = ["sh", "-c", f'exec "$0" "$@" 7>{self.file}', launch.DDPRUN]
        done = self.run_to_end("--events", "fd:7", "true", command=command)
        self.assert_ended(done, 0)
        with open(self.file, encoding="utf-8") as f:
            self.assertEqual(self.check(f.read().splitlines())[-1]["event"], "end")

    def test_mistakes_are_one_line(self):
        for where, why in (("fd:77", "--events: descriptor 77 is not open for writing"),
                           ("fd:x", "--events fd:N takes the number of a descriptor, not 'x'"),
                           (self.folder.name, f"cannot write '{self.folder.name}': Is a directory"),
                           (self.path("new/"), f"cannot write '{self.path('new/')}': Is a directory"),
                           (self.path("x" * 300), ": File name too long"),
                           ("/proc/self/x", "cannot write '/proc/self/x': Operation not permitted"),
                           ("/dev/null/x", "cannot write '/dev/null/x': Not a directory")):
            for options in ((), ("--dry-run",)):
                done = self.run_to_end("--events", where, *options, "true")
                self.assert_ended(done, 2)
                self.assertIn(why, done.err)
                self.assertEqual(done.err.count("\n"), 1, done.err)
        self.assertFalse(os.path.exists(self.path("new")))

    def test_a_pipe_without_a_reader(self):
        os.mkfifo(self.file)
        done = self.run_to_end("--events", self.file, "true")
        self.assert_ended(done, 125)
        self.assertEqual(done.err, f"ddprun: --events: cannot write '{self.file}': "
                         "no process reads from this pipe\n")

    def test_folders_of_the_file_are_created(self):
        self.file = self.path("a", "b", "events")
        self.events("true")

    def test_a_reader_that_does_not_read_does_not_stop_the_job(self):
        os.mkfifo(self.file)
        reader = os.open(self.file, os.O_RDONLY | os.O_NONBLOCK)
        self.addCleanup(os.close, reader)
        # more than a pipe holds
        done = self.run_to_end("--events", self.file, "-np", 1, "--max-restarts", 100, "false")
        self.assertEqual(done.rc, 1)
        self.assertIn(f"error: '{self.file}' (--events) is incomplete", done.err)

    def test_a_full_disk_is_a_failure_but_not_the_end(self):
        for code, script in ((1, "true"), (1, "sleep 0.3"), (3, "sleep 0.3; exit 3")):
            done = self.run_to_end("--events", "/dev/full", "sh", "-c", script)
            self.assert_ended(done, code)
            self.assertEqual(done.err.count("'/dev/full' (--events): No space left on device; "
                                            "events from here on are lost\n"), 1, done.err)
            self.assertEqual(done.err.count("\n"), 1 + (code == 3), done.err)

    def read(self, *names):
        """Events of these names so far."""
        with open(self.file, encoding="utf-8") as f:
            whole = [line for line in f.read().splitlines(keepends=True) if line.endswith("\n")]
        return [e for e in self.check(whole) if e["event"] in names]

    def test_a_job_that_a_rank_spawns(self):
        events, done = self.events("-np", 2, "python3", CLIENT, "spawn2")
        names = [e["event"] for e in events if e["event"].startswith("spawned") or e["event"] == "end"]
        self.assertEqual(names, ["spawned_start", "spawned_end", "end"], done.err)
        start, end, _ = [e for e in events if e["event"] in names]
        self.assertEqual((start["number"], start["rank"], start["ranks"]), ("1", 0, 3))
        self.assertEqual([n["ranks"] for n in start["nodes"]], [3])
        self.assertEqual([n["host"] for n in start["nodes"]], [n["host"] for n in events[1]["nodes"]])
        self.assertEqual([w for w in start["command"] if w in (CLIENT, "; =", ":")], [CLIENT, "; =", ":", ":", CLIENT])
        self.assertNotEqual(start["id"], start["job"])
        self.assertEqual((end["number"], end["rank"], end["ranks"], end["code"]), ("1", 0, 3, 0))
        self.assertLess(0, end["run_s"])
        self.assertLess(end["run_s"], events[-1]["total_s"])

    def start_nested(self, *options):
        """Rank 0 spawns job 1, rank 0 of which spawns job 1.1. Job 1.1 waits for the file "0"."""
        run = [["python3", CLIENT, "run", self.path(str(n))] for n in range(3)]
        job = self.start("--events", self.file, *options, "-np", 1, *run[2], *run[1], *run[0])
        self.wait_for(job, "[1:0] rc 0")
        self.assertTrue(launch.wait_until(lambda: len(self.read("spawned_start")) == 2), job.err)
        return job

    def test_jobs_that_spawned_ones_spawn(self):
        job = self.start_nested()
        self.assertEqual([(e["number"], e["rank"], e["ranks"]) for e in self.read("spawned_start")],
                         [("1", 0, 1), ("1.1", 0, 1)])
        for go, number in (("0", "1.1"), ("1", "1")):
            self.write(go, "")
            self.assertTrue(launch.wait_until(lambda n=number: n in [e["number"] for e in self.read("spawned_end")]))
            self.assertEqual([(e["number"], e["code"]) for e in self.read("spawned_end")][-1], (number, 0))
        self.write("2", "")
        job.wait()
        self.assert_ended(job, 0)

    def test_spawned_jobs_that_are_stopped(self):
        metrics = self.path("job.prom")
        job = self.start_nested("--metrics", metrics)
        self.end_by(job, signal.SIGTERM, 143)
        self.assertEqual([(e["number"], e["code"]) for e in self.read("spawned_end") if e["number"] == "1"],
                         [("1", 143)])
        text = pathlib.Path(metrics).read_text(encoding="utf-8")
        self.assertIn('ddprun_spawned_jobs{state="running"} 0\nddprun_spawned_jobs{state="ended"} 2\n', text)

    def test_spawned_jobs_whose_ranks_do_not_start_or_fail(self):
        self.write("go", "")
        for words, answer, code, end, runs in ((["/nowhere/x"], "rc -1\n", 0, 127, False),
                                               (["true"], "rc -1\n", 0, 0, True),
                                               (["sh", "-c", "exit 3"], "", 3, 3, True)):
            with self.subTest(words):
                self.file = self.path(words[-1].replace("/", "_"))
                events, done = self.events("-np", 1, "python3", CLIENT, "run", self.path("go"), *words, code=code)
                self.assertEqual(done.out, answer)
                ends = [e for e in events if e["event"] == "spawned_end"]
                self.assertEqual([(e["code"], e["run_s"] is not None) for e in ends], [(end, runs)])
                self.assertEqual(sum(e["event"] == "spawned_start" for e in events), runs)

    def test_the_page_has_what_the_source_has(self):
        found = set()
        for path in (ROOT / "launcher").rglob("*.c"):
            found |= set(re.findall(r'event_emit\([^;"]*"(\w+)"', path.read_text()))
        self.assertEqual(found, set(self.tables))


if __name__ == "__main__":
    launch.main()
