"""A job on several hosts is watched from the launcher's: --events, --top, --metrics."""

import json
import os
import re
import subprocess
import sys

import hosts
from hosts import LabTest, main, node
from launch import wait_until
from test_sched import JobTest, UsesSlurm

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

    def test_the_time_of_a_failure_on_the_launchers_host(self):
        """Its agent says HELLO while the launcher still starts the others; both have the same clock."""
        job = self.start_on((1, 2), "sleep 0.1; exit $((RANK == 0 ? 3 : 0))", "--max-restarts", "1",
                            "--events", self.path("events"))
        job.wait()
        events = self.read_events()
        self.assertEqual(job.rc, 3)
        found = [e for e in events if e["event"] == "recovered"]
        self.assertEqual(len(found), 1)
        self.assertLess(0, found[0]["detect_s"])
        self.assertLess(found[0]["detect_s"], found[0]["recover_s"])

    def test_a_host_that_cannot_be_reached(self):
        done = self.run_to_end("-H", "node001,nowhere", "--events", self.path("events"), "true")
        self.assertEqual(done.rc, 125)
        events = self.read_events()
        self.assertEqual([e["kind"] for e in events if e["event"] == "failure"], ["start"])
        self.assertEqual((events[-1]["event"], events[-1]["code"]), ("end", 125))


class InSlurm(UsesSlurm, JobTest):
    """node001 is the login node, the job has node006 and 007. node008 is the user's own machine, which
    reaches the login node only."""

    FETCH = ("import sys, urllib.request as u, urllib.error\n"
             "try: print(u.urlopen(sys.argv[1], timeout=60).read().decode())\n"
             "except urllib.error.HTTPError as e: print('refused', e.code)\n"
             "except OSError: print('not reached')")

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        hosts.LAB_HOSTS("exec", "node008", "ip", "route", "add", "blackhole", "10.77.0.6")

    @classmethod
    def tearDownClass(cls):
        hosts.LAB_HOSTS("exec", "node008", "ip", "route", "del", "blackhole", "10.77.0.6")
        super().tearDownClass()

    def start_job(self):
        self.submit("sbatch -p compute -w node[006-007] -N2 -n2 -o {out} {script}",
                    f"$ddprun --ui --events {self.path('events')} sh -c 'while :; do echo step 7/9 loss 0.5; sleep 0.2; done'")
        self.wait_for("loss 0.5", 2)

    def tearDown(self):
        self.on_login("scancel", self.number())
        hosts.launch.who_is_left(self.job_mark, deadline=60)
        super().tearDown()

    def number(self):
        return self.answer.split()[-1]

    def on_login(self, *command):
        return hosts.LAB_HOSTS("exec", "-l", "-u", "alice", "node001", *command)

    def fetch(self, url):
        """From the user's machine."""
        return hosts.LAB_HOSTS("exec", "-l", "-u", "alice", "node008", "/usr/bin/python3", "-c",
                               self.FETCH, url)

    def tunnel(self, line):
        """Until the test ends, on the user's machine."""
        ssh = subprocess.Popen(
            [hosts.LAB, "exec", "-l", "-u", "alice", "node008", *line.split()],
            env=hosts.LAB_HOSTS.env, stdin=subprocess.DEVNULL)
        self.addCleanup(ssh.wait)
        self.addCleanup(ssh.terminate)

    def assert_page(self, url, token):
        self.assertTrue(wait_until(lambda: "<title>" in self.fetch(f"{url}?t={token}"), 120))
        self.assertEqual(self.fetch(url), "refused 403\n")

        def both_measured():
            status = json.loads(self.fetch(f"{url}api/status?t={token}"))
            return ([host["host"] for host in status["hosts"]] == [node(6), node(7)]
                    and len(status.get("rss", [])) == 2 and all(status["rss"]))

        self.assertTrue(wait_until(both_measured, 120))

    def test_the_printed_lines_work(self):
        self.start_job()
        url, token = re.search(r"ddprun: (http://127\.0\.0\.1:\d+/)\?t=(\w+)\n", self.said()).groups()
        self.tunnel(re.search(r"from another machine: (ssh .*)\n", self.said()).group(1))
        self.assert_page(url, token)

    def test_top(self):
        self.start_job()
        with open(self.path("events"), encoding="utf-8") as events:
            job = json.loads(events.readline())["job"]
        for way in (["ssh", "node006"], ["srun", "--overlap", "--jobid", self.number(), "-N1", "-n1"]):
            top = self.on_login(*way, hosts.LAB_HOSTS.ddprun, "--top", job)
            for rank in 0, 1:
                self.assertRegex(top, rf"(?m)^ +{rank} {node(6 + rank)} .* step 7/9 loss 0.5")


if __name__ == "__main__":
    main()
