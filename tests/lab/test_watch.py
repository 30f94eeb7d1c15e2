"""A job on several hosts is watched from the launcher's: --events, --top, --metrics."""

import json
import os
import re
import sys

import hosts
from hosts import LabTest, main, node
from launch import wait_until

sys.path.insert(0, os.path.join(hosts.SOURCE, "tests", "system"))
import test_events  # noqa: E402

setUpModule = hosts.set_up
tearDownModule = hosts.tear_down


class Watch(LabTest):
    def read_events(self):
        tables, common = test_events.schema()
        with open(self.path("events"), encoding="utf-8") as f:
            events = [json.loads(line) for line in f.read().split("\n")[:-1]]
        for e in events:
            self.assertEqual(set(e), {*common, *tables[e["event"]]})
        return events

    def test_every_host_is_measured(self):
        job = self.start_on((1, 2, 3), "while :; do echo busy; sleep 0.1; done",
                            "--metrics", self.path("prom"), "--events", self.path("events"),
                            slots=2)
        self.wait_for(job, "[5 node003] busy")
        self.assertTrue(wait_until(self.read_events))
        seen, job_id = [], self.read_events()[0]["job"]

        def all_measured():
            top = self.run_to_end("--top", job_id)
            seen[:] = [line for line in top.out.splitlines() if re.match(r" +\d ", line)]
            measured = r" +\d node00[123] +(runs|sleeps|in I/O) +\d+ +[\d.]+M +\d+s  busy"
            return len(seen) == 6 and all(re.match(measured, line) for line in seen)

        self.assertTrue(wait_until(all_measured), seen)

        def written():  # every ten seconds
            if not os.path.exists(self.path("prom")):
                return False
            with open(self.path("prom"), encoding="utf-8") as f:
                text = f.read()
            return (all(f'system_memory_usage_bytes{{host="{node(n)}"}}' in text for n in (1, 2, 3))
                    and len(re.findall(r"^process_memory_usage_bytes{", text, re.M)) == 6)

        self.assertTrue(wait_until(written))
        job.signal(15)
        job.wait()
        self.assertTrue(written())

    def test_a_lost_host_in_the_events(self):
        self.addCleanup(self.heal, 3)
        job = self.start_on((1, 2, 3), "echo up; sleep 100", "--events", self.path("events"))
        self.assertTrue(wait_until(lambda: job.out.count("up") == 3))
        self.fault(3, "kill")
        job.wait()
        events = self.read_events()
        joined = [e["host"] for e in events if e["event"] == "node"]
        self.assertEqual(sorted(joined), [node(n) for n in (1, 2, 3)])
        self.assertEqual([e["host"] for e in events if e["event"] == "host_lost"], [node(3)])
        failures = [(e["kind"], e["code"]) for e in events if e["event"] == "failure"]
        self.assertEqual(failures, [("host", job.rc)])
        self.assertEqual(events[-1]["event"], "end")

    def test_a_host_that_cannot_be_reached(self):
        done = self.on((1,), "true", "--events", self.path("events"), "-H", "node001,nowhere")
        self.assertEqual(done.rc, 125)
        events = self.read_events()
        self.assertEqual([e["kind"] for e in events if e["event"] == "failure"], ["start"])
        self.assertEqual((events[-1]["event"], events[-1]["code"]), ("end", 125))


if __name__ == "__main__":
    main()
