"""Nodes of a Slurm job fail: ddprun goes on, or the job is requeued and goes on."""

import os
import signal
import time

import hosts
from hosts import LabTest, main, node
from launch import wait_until
from test_sched import JobTest, set_up
from test_scripts import ScriptTest

# each rank says where it is; those of the first attempt wait to be stopped, the others for a file
RANKS = ('echo "at $RANK $(hostname) $TORCHELASTIC_RESTART_COUNT of $WORLD_SIZE"; '
         '[ $TORCHELASTIC_RESTART_COUNT != 0 ] || exec sleep 300; '
         'while ! [ -e {go} ]; do sleep 0.1; done')


def setUpModule():
    hosts.set_up()
    # soon noticed; a requeued job waits until the credentials of its first run are void
    hosts.LAB_HOSTS.env["LAB_SLURM_EXTRA"] = "AuthInfo=cred_expire=10\nSlurmdTimeout=12"
    set_up("slurm", "slurmctld")


def tearDownModule():
    try:
        hosts.LAB_HOSTS("slurm", "down")
    finally:
        hosts.tear_down()


class Losses(LabTest):
    def broken(self, number):
        self.addCleanup(hosts.LAB_HOSTS, "slurm", "up")
        self.addCleanup(self.heal, number)

    def lose(self, number, how="kill"):
        self.broken(number)
        self.fault(number, how)

    def slurm(self, *command):
        return hosts.LAB_HOSTS("exec", "-l", "-u", "alice", "node001", *command)

    def wait_until_down(self, number):
        """For Slurm."""
        self.assertTrue(wait_until(lambda: "DOWN" in self.slurm(
            "scontrol", "-o", "show", "node", node(number)).partition("State=")[2].split()[0], 120))

    def wait_for_state(self, job, state, deadline=180):
        def there():
            return f"JobState={state}" in self.slurm("scontrol", "-o", "show", "job", job)
        self.assertTrue(wait_until(there, deadline), self.slurm("scontrol", "show", "job", job))


class Unused(Losses, JobTest):
    def kill_agent(self, number):
        for pid, line in self.on_host(number).items():
            if os.path.basename(line.split()[0]) == "ddprun-agent":
                os.kill(pid, signal.SIGKILL)

    def test_a_node_without_ranks_is_no_spare(self):
        """Its loss ends nothing, and without --spares it takes no other's place."""
        for number, lost in ((4, "node004 is lost"), (3, "node003 is lost")):
            with self.subTest(number):
                go = self.path(f"go{number}")
                self.submit("sbatch -p all -w node002,node003,node004 -N3 -n6 --ntasks-per-node=2 "
                            "-o {out} {script}",
                            f"$ddprun -np 4 --grace 1s sh -c 'echo up; until [ -e {go} ]; do sleep 0.1; "
                            "done'; echo code $?")
                self.wait_for("up\n", 4)
                self.kill_agent(number)
                self.wait_for(lost)
                with open(go, "w", encoding="ascii"):
                    pass
                self.wait_for("code ")
                self.assertIn("code 0" if number == 4 else "code 125", self.said())
                self.assertNotIn("started again", self.said())
                os.remove(self.output)


    def test_a_launcher_that_is_stopped_while_srun_starts_agents(self):
        """For longer than an agent tries a network that is cut; no stdin is its lifeline."""
        go, up = self.path("go"), self.path("up")
        agent = self.write("agent", f"#!/bin/sh\necho >>{up}\nuntil [ -e {go} ]; do sleep 0.05; done\n"
                           f"exec {hosts.LAB_HOSTS.bin}/ddprun-agent \"$@\"\n", 0o755)
        os.chmod(self.folder.name, 0o777)
        self.submit("sbatch -p all -w node002,node003,node004 -N3 -n3 -o {out} {script}",
                    f"$ddprun --agent {agent} sh -c 'echo done' & echo launcher $!; wait $!; echo code $?")
        self.wait_for("launcher ")
        self.assertTrue(wait_until(lambda: os.path.exists(up) and os.path.getsize(up) == 3),
                        self.said())
        launcher = [pid for pid, line in self.on_host(2).items()
                    if os.path.basename(line.split()[0]) == "ddprun"]
        self.assertEqual(len(launcher), 1)
        os.kill(launcher[0], signal.SIGSTOP)
        with open(go, "w", encoding="ascii"):
            pass
        time.sleep(36)
        os.kill(launcher[0], signal.SIGCONT)
        self.wait_for("code ")
        self.assertIn("code 0", self.said())
        self.assertEqual(self.said().count("done"), 3)


class Allocation(Losses, JobTest):
    """ddprun in an allocation with a spare node."""

    def begin(self, submit, *options, nodes="2,3,4"):
        self.go = os.path.join(self.folder.name, "go")
        names = ",".join(node(int(n)) for n in nodes.split(","))
        self.submit(f"{submit} -p all -w {names} -N3 -n3 -o {{out}} {{script}}",
                    f"$ddprun --grace 1s {' '.join(options)} sh -c '{RANKS.format(go=self.go)}'; "
                    "echo code $?")

    def ranks(self, *where, attempt=0, size=2):
        for rank, number in where:
            self.wait_for(f"at {rank} {node(number)} {attempt} of {size}\n")

    def end(self):
        with open(self.go, "w", encoding="ascii"):
            pass
        self.wait_for("code ")
        self.assertIn("code 0", self.said())

    def test_a_spare_takes_the_place_of_a_failed_node(self):
        """Also after Slurm has noticed, too. Rank 0 and the store are on that node."""
        self.begin("sbatch --no-kill", "--spares", "1", "-H", "node003:1,node002:1,node004:1")
        self.ranks((0, 3), (1, 2))
        self.lose(3)
        self.ranks((0, 4), (1, 2), attempt=1)
        self.wait_until_down(3)
        self.wait_for("ddprun: node004 takes the place of node003")
        self.end()

    def test_fewer_nodes_go_on(self):
        """Silence: --node-timeout is shorter than Slurm's SlurmdTimeout."""
        self.begin("sbatch --no-kill", "--nnodes", "2:3", "--node-timeout", "4s")
        self.ranks((0, 2), (2, 4), size=3)
        self.lose(3, "link-down")
        self.ranks((0, 2), (1, 4), attempt=1)
        self.wait_until_down(3)
        self.end()

    def test_a_node_that_only_slurm_misses(self):
        """Its daemon is dead. Slurm would end what runs there as soon as the daemon is back."""
        self.begin("sbatch --no-kill", "--spares", "1")
        self.ranks((0, 2), (1, 3))
        self.broken(3)
        hosts.LAB_HOSTS("exec", "node003", "sh", "-c", "kill -9 $(cat /run/slurm/slurmd.pid)")
        self.ranks((0, 2), (1, 4), attempt=1)
        self.wait_for("ddprun: node003 is lost: Slurm reports that the node has failed")
        self.end()

    def test_slurm_ends_a_job_without_no_kill(self):
        self.begin("sbatch --no-requeue", "--spares", "1")
        self.ranks((0, 2), (1, 3))
        self.lose(3)
        self.ranks((0, 2), (1, 4), attempt=1)
        self.wait_for("ddprun: note: node003 was lost before: Slurm ends a job when a node fails, "
                      "unless it was submitted with --no-kill")


class Scripts(Losses, ScriptTest):
    """Scripts of --script slurm --requeue."""

    def work(self, first):
        """A program whose first start does `first`, and which says so when it is resumed."""
        path = self.write("work", "#!/bin/bash\n[ \"$1\" != --resume ] || { echo went on; exit 0; }\n"
                          f"echo started $RANK on $(hostname) $TORCHELASTIC_RESTART_COUNT\n{first}\n")
        os.chmod(path, 0o755)

    def begin(self, *options, first="exec sleep 300"):
        self.work(first)
        name = self.script("slurm", "--gpus-per-node", "0", "--time", "9m", "--requeue", *options,
                           "./work", site="slurm")
        with open(os.path.join(self.folder.name, name), "r+", encoding="utf-8") as script:
            text = script.read().replace("sleep 60", "sleep 1")
            script.seek(0)
            script.write(text)
        said = self.alice(f"sbatch -p all -w node002,node003,node004 {name}")
        job = said.split()[-1]
        return job, f"work-{job}.out"

    def requeued(self, job, out):
        """To other nodes, as one of these may be dead."""
        self.wait_for_state(job, "PENDING")
        self.slurm("scontrol", "update", f"JobId={job}", "ReqNodeList=")
        self.wait_for(out, "went on", 240)
        self.wait_for_state(job, "COMPLETED")
        self.assertEqual(self.said(f"logs/work-{job}/job.log").count(" starts on "), 2)

    def goes_on(self, asked, ranks, left):
        """Node 2 is lost, and node 3 has rank 1 then."""
        go = os.path.join(self.folder.name, "go")
        self.write("work", "#!/bin/bash\n" + RANKS.format(go=go) + "\n")
        os.chmod(os.path.join(self.folder.name, "work"), 0o755)
        number = self.submitted("slurm", f"--site slurm --partition all {asked} --time 5m "
                                "--gpus-per-node 0 ./work")
        out = f"work-{number}.out"
        self.wait_for(out, f"at 1 node002 0 of {ranks}")
        self.lose(2)
        self.wait_for(out, f"at 1 node003 1 of {left}")
        self.wait_until_down(2)
        self.write("go", "")
        self.wait_for_state(number, "COMPLETED")

    def test_spares_are_asked_for_and_used(self):
        self.goes_on("-N 2 --spares 1", 2, 2)

    def test_as_many_nodes_as_there_are_and_fewer_later(self):
        """Slurm gives all its eight nodes of 2 to 9."""
        self.goes_on("--nnodes 2:9", 8, 7)

    def test_the_launcher_is_killed(self):
        job, out = self.begin("-N", "3")
        self.wait_for(out, "started 2 on node004")
        launcher = f"{hosts.LAB_HOSTS.ddprun} -np"
        hosts.LAB_HOSTS("exec", "node002", "pkill", "-9", "-f", f"^({launcher}|ddprun -np)")
        self.requeued(job, out)

    def test_the_node_of_the_script_fails(self):
        """Slurm itself would leave the job as it is, for its --no-kill."""
        job, out = self.begin("-N", "2", "--spares", "1")
        self.wait_for(out, "started 1 on node003")
        self.lose(2)
        self.requeued(job, out)

    def test_more_nodes_fail_than_there_are_spares(self):
        job, out = self.begin("-N", "2", "--spares", "1")
        self.wait_for(out, "started 1 on node003 0")
        self.lose(3)
        self.wait_for(out, "started 1 on node004 1")
        self.lose(4)
        self.requeued(job, out)
        self.assertIn("ended with 125", self.said(f"logs/work-{job}/job.log"))

    def test_no_progress_is_not_requeued(self):
        job, out = self.begin("-N", "3", "--max-restarts", "2", "--max-no-progress", "2",
                              first="exit 1")
        self.wait_for_state(job, "FAILED")
        self.assertIn("do not requeue the job", self.said(out))
        self.assertIn("ended with 93", self.said(f"logs/work-{job}/job.log"))
        self.assertEqual(self.said(f"logs/work-{job}/job.log").count(" starts on "), 1)

    def test_a_failed_rank_is_not_requeued(self):
        """Neither if it was killed, as by the memory limit."""
        job, _ = self.begin("-N", "3", first="kill -9 $$")
        self.wait_for_state(job, "FAILED")
        self.assertIn("ended with 137", self.said(f"logs/work-{job}/job.log"))
        self.assertEqual(self.said(f"logs/work-{job}/job.log").count(" starts on "), 1)


del Losses, JobTest, ScriptTest, LabTest

if __name__ == "__main__":
    main(hosts.missing("slurmctld"))
