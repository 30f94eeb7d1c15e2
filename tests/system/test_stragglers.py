"""--stragglers: a rank that comes late to collectives again and again is named, no other is."""

import json
import os
import re
import signal
import subprocess
import urllib.request

import launch
import test_events

GROUP = os.environ["STRAGGLER_GROUP"]


class Stragglers(launch.LaunchTest):
    def job(self, *args, options=()):
        return self.start("-np", 4, "--stragglers", *options, GROUP, *args)

    def metrics(self, port):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
                text = answer.read().decode()
        except OSError:
            return {}
        found = {}
        for name, rank, value in re.findall(r'^(\w+)\{rank="(\d)",host="[^"]*"\} (\S+)$', text, re.M):
            found.setdefault(name, {})[int(rank)] = float(value)
        return found

    def test_a_late_rank_is_named(self):
        """20 % more in each step; the unit test has in how many steps."""
        port, file, found = launch.free_port(), self.path("events"), {}
        job = self.job("late", 300, 300, 60,
                       options=("--events", file, "--metrics", f"127.0.0.1:{port}"))
        launch.wait_until(lambda: "straggler" in job.err or job.process.poll() is not None, 100)
        self.assertRegex(job.err, r"^ddprun: straggler: rank 2 on \S+ came late to \d+ of the last "
                         r"\d+ collectives, by [\d.e+]+ ms of [\d.e+]+ ms: the others wait for it "
                         r"\d+ % of the time(; CPUs [\d,-]+, load [\d.]+: it runs \d+ % and waits for "
                         r"a CPU \d+ % of the time(; the hypervisor takes \d+ % of the host's CPU time)?"
                         r"(; it waits for \d+ pages .*)?(; beside it .*)?)?\n")

        def shown():
            found.update(self.metrics(port))
            return found.get("ddprun_straggler", {}).get(2) == 1

        self.assertTrue(launch.wait_until(shown), found)
        self.assertEqual(set(found["ddprun_collectives_total"]), {0, 1, 2, 3})
        self.assertGreater(found["ddprun_collectives_total"][0], 10)
        lags = found["ddprun_collective_lag_seconds"]
        self.assertEqual(max(lags, key=lags.get), 2)
        top = subprocess.run([launch.DDPRUN, "--top", str(job.process.pid)], timeout=60,
                             capture_output=True, text=True, check=False)
        self.assertRegex(top.stdout, r"(?m)^ +2 \S+ +late ")
        job.signal(signal.SIGTERM)
        job.wait()
        self.check_event(file, job.err)

    def test_a_rank_that_waits_for_pages_from_disk(self):
        folder = self.folder.name
        kind = subprocess.run(["stat", "-f", "-c", "%T", folder], capture_output=True, text=True, check=True)
        if kind.stdout.strip() == "tmpfs":
            self.skipTest("files are in memory; needs system a disk behind its temporary folder")
        job = self.start("-np", 4, "--stragglers", GROUP, "disk", 300, 200, 200, cwd=folder)
        launch.wait_until(lambda: "straggler" in job.err or job.process.poll() is not None, 100)
        self.assertRegex(job.err, r"^ddprun: straggler: rank 2 on .*; it waits for \d+ pages per second "
                         r"from disk \(major faults\)")
        job.signal(signal.SIGTERM)
        job.wait()

    def check_event(self, file, err):
        with open(file, encoding="utf-8") as f:
            events = [json.loads(line) for line in f]
        first = next(e for e in events if e["event"] == "straggler")
        self.assertEqual(first["rank"], 2)
        self.assertGreaterEqual(first["score"], 0.1)
        self.assertLessEqual(first["late"], first["rounds"])
        self.assertIn(f"ddprun: {first['text']}\n", err)
        tables, common = test_events.schema()
        for member, kinds in {**common, **tables["straggler"]}.items():
            self.assertTrue(test_events.fits(first.pop(member), kinds), member)
        self.assertEqual(first, {})

    def healthy(self, *args):
        job = self.job(*args)
        job.wait()
        self.assert_ended(job, 0)
        self.assertEqual(job.err, "")

    def test_once(self):
        self.healthy("once", 40, 50, 100)

    def test_all_equally(self):
        self.healthy("all", 40, 50, 50)

    def test_each_in_turn(self):
        self.healthy("turns", 60, 50, 40)

    def test_a_value_that_is_none(self):
        done = self.run_to_end("--stragglers=0", "true")
        self.assert_ended(done, 2)
        self.assertIn("--stragglers takes a percentage from 1 to 99, not '0'", done.err)

    def test_ranks_see_what_they_set_themselves(self):
        show = "echo $TORCH_FR_BUFFER_SIZE,$DDPRUN_ARRIVALS"
        for args, env, said in (((), {}, ","), (("--stragglers",), {}, "64,1"),
                                (("--stragglers",), {"TORCH_FR_BUFFER_SIZE": "9"}, "9,1"),
                                (("--stragglers",), {"TORCH_NCCL_TRACE_BUFFER_SIZE": "9"}, ",1")):
            done = self.run_to_end(*args, "sh", "-c", show, env=env)
            self.assertEqual((done.out, done.err), (said + "\n", ""))


if __name__ == "__main__":
    launch.main()
