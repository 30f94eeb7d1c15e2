#!/usr/bin/env python3
"""Hosts by ssh, with an ssh that runs everything here: how a job over them ends when they are lost, killed or
stopped, and that no process stays."""

import json
import os
import re
import signal
import time

import test_watch
from fake_ssh import SshTest
from launch import (PATIENT, free_port, main, marked, parent_of, read_proc, stat_of, wait_until,
                    who_is_left)


def children_faults(pid):
    """Page faults of its children that have ended: more of them with each one."""
    return int(stat_of(pid)[8])


class SshEnd(SshTest):
    # --- the end

    def test_the_first_cause_is_named_with_its_host(self):
        run = self.hosts(
            "n1:2,n2:2", script="[ $RANK = 2 ] && { sleep 0.3; echo why >&2; exit 5; }; sleep 100"
        )
        self.assert_ended(run, 5)
        self.assertIn("ddprun: rank 2 on n2 exited with status 5", run.err)
        self.assertIn("ddprun stopped ranks 0-1,3", run.err)
        self.assertEqual(run.err.count("why"), 1, run.err)

    def test_killing_an_agent_ends_all(self):
        run = self.start_hosts("n1:1,n2:1", "echo here; (setsid sleep 200 &) ; exec sleep 100")
        self.assertTrue(wait_until(lambda: run.out.count("here") == 2), run.err)
        os.kill(self.agents()[0], 9)
        self.assertEqual(run.wait(), 125)
        self.assertRegex(run.err, r"n[12] is lost: its agent has ended; ddprun stopped rank [01]")

    def test_a_rank_that_the_scheduler_ends_after_a_loss(self):
        """Slurm's SIGTERM may reach a rank before it reaches ddprun."""
        run = self.start(
            "--ssh", self.ssh, "--start", "ssh", "--alloc", "slurm", "--spares", 1, "sh", "-c",
            "[ $TORCHELASTIC_RESTART_COUNT = 1 ] && [ $RANK = 1 ] && kill -TERM $$; echo here; "
            "exec sleep 100",
            env={"FAKE_LOG": self.log, "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-3]",
                 "SLURM_JOB_NUM_NODES": "3", "SLURM_TASKS_PER_NODE": "1(x3)"})
        self.assertTrue(wait_until(lambda: run.out.count("here") == 2), run.err)
        agent, = (p for p in self.agents() if b"FAKE_HOST=n1\0" in read_proc(p, "environ"))
        os.kill(agent, 9)
        self.assertEqual(run.wait(), 143, run.err)
        self.assertIn("rank 1 on n2 died of SIGTERM", run.err)
        self.assertIn("note: n1 was lost before: Slurm ends a job when a node fails", run.err)

    def test_the_page_waits_for_hosts_with_ranks_not_for_a_spare(self):
        """The spare has nothing to look at and answers first, n2 last."""
        job = self.start(
            "--ssh", self.ssh, "-H", "n1:1,n2:1,n3:1", "--spares", 1, "--ui", "--no-preload", "python3",
            self.write("rank.py", test_watch.RECORDER), env={"FAKE_LOG": self.log})
        self.assertTrue(wait_until(lambda: job.out.count("up") == 2), job.err)
        url, token = test_watch.url_of(job)
        spare = next(pid for pid in self.agents() if b"FAKE_HOST=n3" in read_proc(pid, "environ"))
        status, before = {}, children_faults(spare)

        def both_known():
            status.update(json.loads(test_watch.fetch(url + "api/status", token)) or {})
            return all(status.get("call") or [None]) and status.get("waits")

        self.assertTrue(wait_until(both_known), status)
        self.assertEqual(status["waits"][0]["for"], "1")
        self.assertEqual(children_faults(spare), before, "the spare's agent has started a process")
        job.signal(signal.SIGTERM)
        self.assertEqual(job.wait(), 143)

    def test_metrics_and_attempts_after_a_host_is_lost(self):
        """No numbers of a host that is lost; its place is another attempt."""
        port, events = free_port(), self.path("events")
        job = self.start_hosts("n1:1,n2:1,n3:1", "echo up; exec sleep 60", "--spares", "1", "--metrics", port,
                               "--events", events)

        def hosts():
            try:
                text = test_watch.fetch(f"http://127.0.0.1:{port}/metrics")
            except OSError:  # not yet
                return []
            return re.findall(r'^system_memory_limit_bytes{host="(\w+)"}', text, flags=re.M)

        self.assertTrue(wait_until(lambda: "n2" in hosts()), job.err)
        self.kill_agent("n2")
        self.assertTrue(wait_until(lambda: hosts() == ["n1", "n3"]), job.err)
        job.signal(signal.SIGTERM)
        self.assertEqual(job.wait(), 143)
        with open(events, encoding="utf-8") as f:
            found = {e["event"]: e for e in map(json.loads, f)}
        self.assertEqual((found["job"]["attempts"], found["restart"]["of"]), (2, 2))

    def test_top_lists_the_hosts_that_are_there(self):
        """Not the room for those that may come."""
        job = self.start("--ssh", self.ssh, "--host-discovery-script", "echo n1:1; echo n2:1", "--min-np", 1,
                         "--max-np", 4, "sh", "-c", "echo up; exec sleep 60", env={"FAKE_LOG": self.log})
        self.assertTrue(wait_until(lambda: job.out.count("up") == 2), job.err)
        lines = self.run_to_end("--top", job.process.pid).out.splitlines()
        self.assertEqual([line.split()[0] for line in lines[3:lines.index(next(
            line for line in lines if line.startswith(" RANK")))]], ["n1", "n2"], lines)
        job.signal(signal.SIGTERM)
        self.assertEqual(job.wait(), 143)

    def test_preflight_tells_of_scripts_that_cannot_run(self):
        for first, why in (
                ("#!/nonesuch/sh", "cannot run '{}': its interpreter '/nonesuch/sh' is not there"),
                ("#!/bin/sh\r", "cannot run '{}': its lines end in CR LF, so '/bin/sh' is not found; try sed"),
                ("#!/usr/bin/env nonesuch", "'nonesuch', the interpreter of '{}', is not in PATH there")):
            script = self.write("script", first + "\necho\n", 0o755)
            done = self.run_to_end("--ssh", self.ssh, "-H", "n1:1,n2:1", "--preflight", script,
                                   env={"FAKE_LOG": self.log})
            self.assertEqual(done.rc, 1)
            self.assertIn(f"ddprun: n[1-2]: program: {why.format(script)}", done.err)

    def test_killing_the_launcher_ends_all(self):
        run = self.start_hosts(
            "n1:1,n2:1,n3:1", "echo here; (setsid sleep 200 &) ; exec sleep 100", "--tree-width", "1"
        )
        self.assertTrue(wait_until(lambda: run.out.count("here") == 3), run.err)
        run.signal(9)
        self.assertEqual(run.wait(), -9)
        self.assertEqual(who_is_left(self.mark), {})

    def test_ctrl_c_reaches_every_host(self):
        run = self.start_hosts(
            "n1:1,n2:1", "trap 'echo bye; exit 0' INT; echo here; while :; do sleep 0.1; done",
            *PATIENT)
        self.assertTrue(wait_until(lambda: run.out.count("here") == 2), run.err)
        run.signal(2)
        self.assertEqual(run.wait(), 130)
        self.assertEqual(run.out.count("bye"), 2)

    def test_a_stopped_node_is_lost(self):
        run = self.start_hosts("n1:1,n2:1", "echo here; exec sleep 100", "--node-timeout", "3s")
        self.assertTrue(wait_until(lambda: run.out.count("here") == 2), run.err)
        began = time.monotonic()
        os.kill(self.agents()[0], 19)
        self.assertEqual(run.wait(), 125)
        self.assertLess(time.monotonic() - began, 45)
        self.assertRegex(run.err, r"n[12] is lost: nothing heard from it for 3 s")
        self.assertRegex(run.err, r"; ddprun stopped rank [01]; no exit status of rank [01] \(n[12]\)\n")

    def test_pkill_on_a_host_ends_all_that_its_ranks_have_started(self):
        run = self.start_hosts("n1:1,n2:1", "setsid sleep 60 & echo here; wait")
        self.assertTrue(wait_until(lambda: run.out.count("here") == 2), run.err)
        ours = [p for p in marked(self.mark) if b"ddprun" in read_proc(p, "comm") and p != run.process.pid]
        self.assertEqual(len(ours), 2)  # the agents, as both hosts are this one
        for signum in (signal.SIGSTOP, signal.SIGKILL):
            for pid in ours:
                os.kill(pid, signum)
        run.wait()
        self.assertIn(run.rc, (125, 137))
        self.assertTrue(wait_until(lambda: not marked(self.mark)), marked(self.mark))

    # --- slow is not dead

    def counting(self, *options):
        """Two ranks that run until the file `end` is there; what they write is counted."""
        run = self.start_hosts(
            "n1:1,n2:1",
            f"echo here; until [ -e {self.path('end')} ]; do sleep 0.1; done; echo end", *options)
        self.assertTrue(wait_until(lambda: run.out.count("here") == 2), run.err)
        return run

    def goes_on(self, run):
        self.write("end", "")
        run.wait()
        self.assert_ended(run, 0)
        self.assertEqual(run.out.count("end\n"), 2)

    def test_an_agent_that_stands_still_is_waited_for(self):
        run = self.counting("--report", "--events", self.path("events"))
        seconds = self.pause(self.agents()[0], 7)
        self.goes_on(run)
        # a busy machine may add the other one
        late = re.search(r"ddprun: the agents? on n.* did not run for (?:up to )?(\d+\.\d) s: stopped", run.err)
        self.assertTrue(late, run.err)
        self.assertLess(5, float(late[1]))
        with open(self.path("events"), encoding="utf-8") as f:
            end = json.loads(f.read().splitlines()[-1])
        self.assertAlmostEqual(max(end["late"]["hosts"].values()), float(late[1]), delta=0.06)
        self.assertLess(float(late[1]), seconds + 2)

    def test_a_launcher_that_stands_still_kills_nobody(self):
        run = self.counting("--node-timeout", "2s", "--verbose", "--report")
        seconds = self.pause(run.process.pid, 6)
        self.goes_on(run)
        # a busy machine may add shorter ones
        missed = max(map(float, re.findall(r"this process did not run for (\d+\.\d) s", run.err)))
        self.assertLess(4, missed)
        self.assertLess(missed, seconds + 1)
        report = re.search(r"ddprun: the launcher did not run for (\d+\.\d) s", run.err)
        self.assertLessEqual(missed, float(report[1]) + 0.1)

    def test_all_of_a_job_may_stand_still(self):
        # as under a scheduler's suspend
        run = self.counting("--node-timeout", "2s")
        pids = [run.process.pid, *self.agents()]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(5)
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
        self.goes_on(run)

    def test_ctrl_z_for_longer_than_the_node_timeout(self):
        run = self.counting("--node-timeout", "2s")
        os.kill(run.process.pid, signal.SIGTSTP)
        time.sleep(6)
        os.kill(run.process.pid, signal.SIGCONT)
        self.goes_on(run)

    def test_agents_that_stand_still_while_they_stop_ranks(self):
        """Both, the launcher's own and another host's, for longer than they may take for it.
        The own one gets SIGCONT when it has to stop its ranks, and is stopped again."""
        run = self.start_hosts(
            "localhost:1,n1:1", "trap '' INT TERM; echo here; while :; do sleep 1; done",
            "--grace", "0.1s", "--log-level", "job=debug")
        self.assertTrue(wait_until(lambda: run.out.count("here") == 2), run.err)
        ours = next(pid for pid in marked(self.mark) if parent_of(pid) == run.process.pid
                    and read_proc(pid, "cmdline") == read_proc(run.process.pid, "cmdline"))
        agents = [ours, *self.agents()]
        for pid in agents:
            os.kill(pid, signal.SIGSTOP)
        os.kill(run.process.pid, signal.SIGINT)
        self.wait_for(run, "interrupted (SIGINT)", "err")
        os.kill(ours, signal.SIGSTOP)
        self.wait_for(run, "terminating: time limit passed", "err")
        for pid in agents:
            os.kill(pid, signal.SIGCONT)
        run.wait()
        self.assert_ended(run, 130)
        self.assertNotIn("is lost", run.err)

    def test_an_end_that_is_urgent_waits_for_no_agent(self):
        runs = [self.start_hosts("localhost:1,n1:1", "echo here; exec sleep 300", "--grace", "0.1s",
                                 "--node-timeout", "200s", *options)
                for options in (("--timeout", "8s"), ())]
        for run in runs:
            self.assertTrue(wait_until(lambda run=run: run.out.count("here") == 2), run.err)
        for pid in self.agents():
            os.kill(pid, signal.SIGSTOP)
        os.kill(runs[1].process.pid, signal.SIGINT)
        self.wait_for(runs[1], "interrupted (SIGINT)", "err")
        os.kill(runs[1].process.pid, signal.SIGINT)
        for run in runs:
            run.wait()
        for run, code in zip(runs, (124, 130)):
            self.assert_ended(run, code)
            self.assertLess(run.seconds, 90)
        # others that answer would have more time than this
        self.assertIn("n1 is lost: its agent does not answer", runs[1].err)

if __name__ == "__main__":
    main()
