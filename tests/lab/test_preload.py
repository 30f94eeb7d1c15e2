"""Python ranks of several hosts: forked on each, started again on all, and hosts, agents and
interpreters that die meanwhile. A folder on PYTHONPATH plays PyTorch."""

import os
import signal
import sys
import time

import hosts
from hosts import LabTest, main
from launch import marked, read_proc, wait_until

setUpModule = hosts.set_up
tearDownModule = hosts.tear_down

# the system's: a Python in somebody's home cannot be run by the hosts' user
PYTHON = os.path.realpath("/usr/bin/python3" if os.path.exists("/usr/bin/python3")
                          else sys.executable)
N = "TORCHELASTIC_RESTART_COUNT"
HEAD = (f"import torch, os, sys, time\nrank, n = int(os.environ['RANK']), int(os.environ['{N}'])\n"
        "def say(*words):  # in one write: a rank may be killed in the middle of a line\n"
        "    words = rank, os.uname().nodename, *words\n"
        "    os.write(1, ' '.join(map(str, words)).encode() + b'\\n')\n")


class Python(LabTest):
    def setUp(self):
        super().setUp()
        os.mkdir(self.path("site"))
        self.torch("")

    def torch(self, text):
        self.write("site/torch.py", f"import os, time\npid = os.getpid()\n{text}\n")

    def begin(self, text, *options, numbers=(2, 3), **how):
        script = self.write("train.py", HEAD + text)
        return self.start("-H", self.hosts(*numbers, slots=2), "-v", *options, PYTHON, script,
                          env={"PYTHONPATH": self.path("site")}, **how)

    def to_the_end(self, *args, **how):
        launch = self.begin(*args, **how)
        launch.wait()
        return launch

    def said(self, launch):
        return [line.partition("] ")[2].split() for line in launch.out.splitlines()]

    def test_forked_on_every_host(self):
        launch = self.to_the_end("say(torch.pid, os.getppid())\n")
        self.assert_ended(launch, 0)
        said = self.said(launch)
        self.assertEqual(sorted(w[:2] for w in said),
                         [["0", "node002"], ["1", "node002"], ["2", "node003"], ["3", "node003"]])
        self.assertEqual(launch.err.count("the ranks are forked"), 2)
        for host in ("node002", "node003"):  # one interpreter, one agent
            self.assertEqual(len({tuple(w[2:]) for w in said if w[1] == host}), 1)

    def test_started_again_by_the_same_agents(self):
        launch = self.to_the_end("say(n, torch.pid, os.getppid())\n"
                                 "n < 2 and (sys.exit(3) if rank == 2 else time.sleep(60))\n",
                                 "--max-restarts", 2)
        self.assert_ended(launch, 0)
        said = self.said(launch)
        self.assertEqual(sum(w[2] == "2" for w in said), 4)
        for host in ("node002", "node003"):
            self.assertEqual(len({tuple(w[3:]) for w in said if w[1] == host}), 1)
        self.assertIn("rank 2 on node003 exited with status 3", launch.err)
        self.assertIn("attempt 2 of 3", launch.err)

    def test_an_interpreter_is_killed_on_one_host(self):
        gate = self.write("gate", "")
        self.torch("while os.uname().nodename == 'node003' and "
                   f"os.path.exists('{gate}'): time.sleep(0.01)")
        launch = self.begin("say(torch.pid == os.getpid())\n")
        helpers = wait_until(lambda: self.helpers("node003"))
        self.assertTrue(helpers, launch.err)
        for pid in helpers:
            os.kill(pid, signal.SIGKILL)
        os.unlink(gate)
        launch.wait()
        self.assert_ended(launch, 0)
        self.assertIn("node003: the ranks import by themselves", launch.err)
        self.assertEqual(sorted(w[1:] for w in self.said(launch)),
                         [["node002", "False"]] * 2 + [["node003", "True"]] * 2)

    def helpers(self, host):
        """Interpreters that import on that host."""
        return [pid for pid in marked(self.mark)
                if b"DDPRUN_PRELOAD=" in read_proc(pid, "environ")
                and self.host_of(pid) == host]

    def host_of(self, pid):
        """Which host a process is on: its namespace of names is that of the host's first."""
        for number in range(1, hosts.HOSTS + 1):
            try:
                with open(os.path.join(hosts.LAB_HOSTS.env["LAB_STATE"], "hosts",
                                       hosts.node(number), "pid"), encoding="ascii") as f:
                    first = int(f.read().split()[0])
                if os.readlink(f"/proc/{pid}/ns/uts") == os.readlink(f"/proc/{first}/ns/uts"):
                    return hosts.node(number)
            except OSError:
                pass  # one of the two is gone
        return None

    def test_a_host_is_lost_while_an_attempt_is_ended(self):
        self.addCleanup(self.heal, 3)
        os.mkdir(self.path("up"), 0o777)
        os.chmod(self.path("up"), 0o777)
        launch = self.begin("import signal\nsignal.signal(signal.SIGTERM, lambda *_: say('asked'))\n"
                            f"up = '{self.path('up')}'\nopen(f'{{up}}/{{rank}}', 'w').close()\n"
                            "while rank != 0 or len(os.listdir(up)) < 4: time.sleep(0.1)\n"
                            "sys.exit(3)\n",
                            "--max-restarts", 5, "--grace", "60s")
        self.assertTrue(wait_until(lambda: launch.out.count("asked") == 3), launch.err)
        self.fault(3, "kill")
        self.assertTrue(wait_until(lambda: "node003 is lost" in launch.err), launch.err)
        while launch.process.poll() is None:  # two that come together count as one
            try:
                launch.signal(signal.SIGINT)
            except (StopIteration, ProcessLookupError):
                break
            time.sleep(0.2)
        self.assertNotEqual(launch.wait(), 0)
        self.assertNotIn("started again", launch.err)
        self.assertIn("rank 0 on node002 exited with status 3", launch.err)

    def test_the_agent_of_a_host_is_killed(self):
        """While it imports; and in a second attempt, when its ranks have been forked."""
        for text, run in (("time.sleep(60)", ""), ("", "n == 0 and sys.exit(3)\n")):
            self.torch(text)
            launch = self.begin(run + "say('up')\ntime.sleep(60)\n", "--max-restarts", 1)
            up = wait_until(lambda: self.helpers("node003") if text else
                            launch.out.count("up") == 4 and "attempt 2" in launch.err)
            self.assertTrue(up, launch.err)
            agent, = (pid for pid in marked(hosts.LAB_HOSTS.bin)
                      if read_proc(pid, "comm") == b"ddprun-agent\n" and self.host_of(pid) == "node003")
            os.kill(agent, signal.SIGKILL)
            self.assertEqual(launch.wait(), 125, launch.err)
            self.assertIn("node003 is lost", launch.err)


if __name__ == "__main__":
    main()
