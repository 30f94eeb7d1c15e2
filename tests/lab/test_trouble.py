"""What goes wrong around a launch: another version, a full /tmp, lost packets, and jobs that
the scheduler ends while ddprun has only begun."""

import os
import shutil

import hosts
import test_sched
from hosts import LabTest, main, node
from launch import wait_until, who_is_left


setUpModule = hosts.set_up
tearDownModule = hosts.tear_down


class Hosts(LabTest):
    def inside(self, number, script):
        hosts.LAB_HOSTS("exec", node(number), "sh", "-ec", script)

    def test_an_agent_of_another_version(self):
        other = shutil.copy(os.environ["OTHER_AGENT"], hosts.LAB_HOSTS.folder)
        agent = self.write(
            "agent", f"#!/bin/sh\n[ $(hostname) = node003 ] && exec {other}\n"
            f"exec {hosts.LAB_HOSTS.bin}/ddprun-agent\n", 0o755)
        launch = self.on((1, 2, 3), f"touch {self.path('started')}", "--agent", agent)
        self.assert_ended(launch, 125)
        self.assertLess(launch.seconds, 45)
        self.assertFalse(os.path.exists(self.path("started")))
        headline = launch.err.splitlines()[0]
        for word in ("node003", "protocol", "99", "version"):
            self.assertIn(word, headline)
        launch = self.run_to_end("--preflight", "-H", self.hosts(1, 2, 3), "--agent", agent)
        self.assert_ended(launch, 1)
        self.assertIn("node003: reached: ", launch.err)
        self.assertIn("network", launch.out)

    def tmp(self, what, number):
        """Broken, but for the places of the launch and the agent in it."""
        self.addCleanup(self.fault, number, "mend", "/tmp")
        self.fault(number, what, "/tmp", self.folder.name, hosts.LAB_HOSTS.folder)

    def test_a_full_tmp(self):
        self.tmp("full", 1)  # the launcher's own
        self.tmp("full", 2)
        launch = self.on((1, 2, 3), "hostname; f=/tmp/y-$$; echo x 2>/dev/null >$f && rm $f || echo full")
        self.assert_ended(launch, 0)
        self.assertEqual(launch.out.count("] full\n"), 2, launch.out)
        launch = self.run_to_end(
            "-H", self.hosts(1, 2, slots=2), "--preload", "json", "/usr/bin/python3", "-c",
            "print('fine')")
        self.assert_ended(launch, 0)
        self.assertEqual(launch.out.count("] fine\n"), 4, launch.out + launch.err)

    def test_a_tmp_that_cannot_be_written(self):
        self.tmp("readonly", 2)
        launch = self.on((1, 2), "hostname; f=/tmp/y-$$; touch $f 2>/dev/null && rm $f || echo closed")
        self.assert_ended(launch, 0)
        self.assertIn("[1 node002] closed\n", launch.out)

    def test_name_servers_that_do_not_answer(self):
        """An agent that asks for its own name is not taken for dead meanwhile."""
        self.addCleanup(self.fault, 3, "dns-off")
        self.fault(3, "dns", "silent")
        launch = self.on((1, 3), "hostname")
        self.assert_ended(launch, 0)

    def test_lost_packets(self):
        self.addCleanup(self.heal, 4)
        self.fault(4, "loss", "5")
        launch = self.on((3, 4), "seq 5000; echo done; wc -c", "--stdin", "all",
                         stdin=b"x" * 100000, deadline=120)
        self.assert_ended(launch, 0)
        self.assertEqual(launch.out.count("] done\n"), 2)
        self.assertEqual(launch.out.count("] 100000\n"), 2)


# says that it was asked for, and becomes an agent when it may
LATE_AGENT = """#!/bin/sh
: >{work}/asked.$(hostname)
until [ -e {work}/go ]; do sleep 0.1; done
exec {bin}/ddprun-agent "$@"
"""


class MidLaunch(test_sched.JobTest):
    """The agents have been asked for, and have not come yet."""

    def asked(self):
        """The hosts on which an agent was asked for."""
        return [name for name in os.listdir(self.path("work")) if name.startswith("asked.")]

    def begun(self):
        """Until ddprun has asked for an agent on another host."""
        self.assertTrue(wait_until(self.asked, 90), self.said())
        self.assertNotIn("up", self.said().split())

    def job(self):
        work = self.path("work")
        os.mkdir(work)
        os.chmod(work, 0o777)
        self.write("work/agent", LATE_AGENT.format(work=work, bin=hosts.LAB_HOSTS.bin), 0o755)
        self.marks.append(f"{work}/agent")
        return f"$ddprun --agent {work}/agent sh -c 'echo up; sleep 300'"

    def ended(self):
        """No process of the job; then agents start, and find no launcher that waits for them."""
        self.assert_nobody()
        self.write("work/go", "")
        self.assertEqual(who_is_left(*self.marks), {})
        self.assertNotIn("up", self.said().split())

    def test_scancel(self):
        if hosts.missing("slurmctld"):
            self.skipTest(hosts.missing("slurmctld"))
        hosts.LAB_HOSTS("slurm", "up")
        self.addCleanup(hosts.LAB_HOSTS, "slurm", "down")
        for start in ("srun", "ssh"):
            with self.subTest(start):
                shutil.rmtree(self.path("work"), ignore_errors=True)
                self.submit("sbatch -p dgx -N2 -n2 -o {out} {script}",
                            self.job().replace("--agent", f"--start {start} --agent"))
                self.begun()
                hosts.LAB_HOSTS("exec", "-l", "-u", "alice", "node001", "scancel",
                                self.answer.split()[-1])
                self.ended()

    def test_qdel(self):
        test_sched.set_up("sge", "sge_qmaster")
        self.addCleanup(hosts.LAB_HOSTS, "sge", "down")
        self.submit("qsub -terse -pe mpi 3 -j y -o {out} {script}", self.job())
        self.begun()
        hosts.LAB_HOSTS("exec", "-l", "-u", "alice", "node001", "qdel", self.answer.split()[-1])
        self.ended()


if __name__ == "__main__":
    main()
