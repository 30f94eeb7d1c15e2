"""Agents in the schedulers' own ways: srun in a real Slurm, qrsh in a real Grid Engine."""

import os
import shutil

import hosts
import test_sched
import test_spank
from hosts import main, node
from launch import wait_until

STEPS = 'squeue -h -s -j $SLURM_JOB_ID -o "step %i"'
# one that saves when it is told to end, and counts what it is warned of
WARY = ("trap \"echo rank $RANK saved; exit 0\" TERM; trap \"echo rank $RANK warned\" USR1; "
        "echo up; while :; do sleep 0.05; done")


class TransportTest(test_sched.JobTest):
    def as_user(self, *command):
        return hosts.LAB_HOSTS("exec", "-l", "-u", self.user, "node001", *command)

    def path(self, name):
        return os.path.join(self.folder.name, name)


class Srun(TransportTest):
    @classmethod
    def setUpClass(cls):
        test_sched.set_up("slurm", "slurmctld")

    def test_a_step_of_the_job_with_part_of_the_gpus(self):
        """Half of the GPUs of two nodes, the other half taken: each node sees its own. The
        job has --export=NONE and options that srun would take for its own."""
        said = self.batch(
            "-p dgx -N2 -n4 -c2 --gres=gpu:3 --export=NONE",
            "export PATH=/usr/sbin:/usr/bin:/sbin:/bin SLURM_NTASKS_PER_NODE=1 SLURM_EXACT=1 "
            "SRUN_CPUS_PER_TASK=1 SLURM_CPU_BIND=cores SLURM_MPI_TYPE=nonesuch\n"
            f"$ddprun sh -c 'echo rank $RANK of $WORLD_SIZE sees $CUDA_VISIBLE_DEVICES on "
            "$(hostname) job $SLURM_JOB_NAME overlap ${SLURM_OVERLAP-not}; "
            f"[ $RANK != 0 ] || {STEPS}'; echo code $?\n"
            "$ddprun --dry-run true | sed -n '/^commands/,$p'")
        for rank in range(6):
            self.assertIn(f"rank {rank} of 6 sees 0,1,2 on {node(1 + rank // 3)} job job.sh "
                          "overlap not\n", said)
        self.assertRegex(said, r"step \d+\.0\n")
        self.assertIn("code 0", said)
        self.assertIn("other hosts by srun: the default in a job of slurm", said)
        self.assertIn("srun -N2 -n2 --ntasks-per-node=1 '--nodelist=node[001-002]'", said)
        self.assertRegex(said, "removed from its environment: .*SLURM_EXACT")

    def test_gpus_of_tasks_on_uneven_nodes(self):
        said = self.batch(
            "-p dgx -N3 -n6 -c2 --gpus-per-task=1",
            "$ddprun sh -c 'echo node $NODE_RANK sees $CUDA_VISIBLE_DEVICES'; echo code $?")
        self.assertEqual(said.count("node 0 sees 0,1,2,3\n"), 4, said)
        for n in 1, 2:
            self.assertEqual(said.count(f"node {n} sees 0\n"), 1, said)
        self.assertIn("code 0", said)

    def test_beside_other_steps_and_in_one(self):
        said = self.submit(
            "env LC_ALL=C salloc -Q -p dgx -N2 -n4 --exclusive {script} >{out} 2>&1 || true",
            "srun -N2 -n80 --exact sleep 300 &\n"
            f"until {STEPS} | grep -q '\\.0$'; do sleep 0.1; done\n"
            "$ddprun sh -c 'echo beside $RANK'\n"
            "srun -N1 -n1 --overlap $ddprun --start srun sh -c 'echo within $RANK'\n"
            "$ddprun -H node002:2 sh -c 'echo part $RANK on $(hostname)'\n"
            "$ddprun --start ssh sh -c 'echo by ssh'\n"
            "kill %1; wait")
        for rank in range(4):
            self.assertIn(f"beside {rank}\n", said)
        self.assertEqual(said.count("within "), 1, said)
        self.assertEqual(said.count("on node002\n"), 2, said)
        self.assertEqual(said.count("by ssh\n"), 4, said)

    def test_agents_connect_to_each_other(self):
        """In a chain, so that two of the three links are between nodes; then one breaks."""
        said = self.batch(
            "-p dgx -N3 -n3",
            "$ddprun --tree-width 1 --log-level debug sh -c 'echo rank $RANK on $(hostname)'; echo code $?\n"
            "$ddprun --tree-width 1 sh -c '[ $RANK != 1 ] || kill -9 $PPID; sleep 100'; echo code $?")
        for rank in range(3):
            self.assertIn(f"rank {rank} on {node(1 + rank)}\n", said)
        self.assertEqual((said.count(" has connected"), said.count(") has joined")), (1, 3), said)
        self.assertIn("code 0\n", said)
        self.assertIn("ddprun: node002 is lost: ", said)
        self.assertIn("code 125\n", said)
        self.assert_nobody()

    def test_a_step_for_each_component(self):
        said = self.batch(
            "-p dgx -N1 -n2 --gres=gpu:2 : -p compute -N2 -n2",
            "$ddprun sh -c 'echo rank $RANK/$WORLD_SIZE on $(hostname)'; echo code $?")
        for rank, host in enumerate((1, 1, 6, 7)):
            self.assertIn(f"rank {rank}/4 on {node(host)}\n", said)
        self.assertIn("code 0", said)

    def test_warned_and_cancelled(self):
        """A warning of the steps reaches each rank once; then all may save."""
        self.submit("sbatch --parsable -p dgx -N3 -n3 -o {out} {script}", f"$ddprun --grace 40s sh -c '{WARY}'")
        self.wait_for("up\n", 3)
        job = self.answer.split()[-1]
        self.as_user("scancel", "-s", "USR1", job)
        self.wait_for("warned\n", 3)
        self.as_user("scancel", job)
        self.wait_for("interrupted (SIGTERM)")
        self.wait_for("saved\n", 3)
        self.assertEqual(self.said().count("warned\n"), 3, self.said())
        self.assert_nobody()

    def test_killed_in_the_middle_of_a_launch(self):
        self.submit("sbatch -p dgx -N3 -n3 -o {out} {script}",
                    "for t in 0.01 0.03 0.05 0.07; do $ddprun sh -c 'sleep 100' & sleep $t; "
                    "kill -9 $!; wait; done\necho all; env -u DDPRUN_TEST_MARK sleep 2")
        self.wait_for("all\n")
        self.assert_nobody()

    def test_no_agent_there_is_a_line(self):
        said = self.batch("-p dgx -N3 -n3",
                          "$ddprun --agent /nonesuch/agent true; echo code $?")
        self.assertIn("ddprun: cannot start on node[001-003]: the agent '/nonesuch/agent' is not there",
                      said)
        self.assertIn("code 125", said)

    def test_as_root(self):
        self.user = "root"
        said = self.batch("-p dgx -N2 -n2",
                          "$ddprun sh -c 'echo rank $RANK by $(id -un)'; echo code $?")
        self.assertEqual(said.count("by root\n"), 2, said)
        self.assertIn("code 0", said)


class Qrsh(TransportTest):
    @classmethod
    def setUpClass(cls):
        test_sched.set_up("sge", "sge_qmaster")
        # between a warning and its end: five seconds pass while a machine stands still
        hosts.LAB_HOSTS("exec", "node001", "bash", "-c",
                        "for q in $(qconf -sql); do qconf -mattr queue notify 00:00:12 $q; done")

    @classmethod
    def tearDownClass(cls):
        hosts.LAB_HOSTS("sge", "down")

    def test_start_and_exit_codes(self):
        self.submit(
            "qsub -terse -pe mpi 3 -j y -o {out} {script}",
            "$ddprun --dry-run true | grep -A9 ^commands\n"
            "$ddprun sh -c 'echo rank $RANK in $PWD, of task ${JOB_NAME}'; echo code $?\n"
            "$ddprun sh -c 'exit $((RANK * 3))'; echo code $?\n"
            "$ddprun --agent /nonesuch/agent true; echo code $?; echo done")
        self.wait_for("done\n")
        said = self.said()
        self.assertIn("other hosts by qrsh: the default in a job of sge", said)
        self.assertIn("qrsh -inherit -v PWD node", said)
        for rank in range(3):
            self.assertIn(f"rank {rank} in {hosts.LAB_HOSTS.folder}, of task job.sh\n", said)
        self.assertIn("code 0", said)
        self.assertRegex(said, "code [36]")
        self.assertIn("the agent '/nonesuch/agent' is not there", said)
        self.assertIn("code 125", said)

    def test_qdel_and_its_warning(self):
        """-notify: USR2 first, KILL some seconds later, on every host."""
        self.submit("qsub -terse -notify -pe mpi 3 -j y -o {out} {script}",
                    "trap : USR2\n$ddprun sh -c 'trap \"echo warned\" USR2; echo up; "
                    "while :; do sleep 0.05; done' & while kill -0 $!; do wait $!; done")
        self.wait_for("up\n", 3)
        self.as_user("qdel", self.answer.split()[-1])
        self.wait_for("warned\n", 3)
        self.assert_nobody()

    def test_killed_in_the_middle_of_a_launch(self):
        self.submit("qsub -terse -pe mpi 3 -j y -o {out} {script}",
                    "for t in 0.1 0.6 1; do $ddprun sh -c 'sleep 100' & sleep $t; kill -9 $!; "
                    "wait; done\necho all; env -u DDPRUN_TEST_MARK sleep 3")
        # a task of qrsh that is killed while it begins makes Grid Engine end the whole job
        job = self.answer.split()[-1]
        self.assertTrue(wait_until(
            lambda: "all\n" in self.said() or self.as_user(
                "sh", "-c", f"qstat -j {job} >/dev/null 2>&1 || echo gone"), 120), self.said())
        self.assertIn("Killed", self.said())
        self.assert_nobody()


class Spank(test_spank.Spank):
    """Here, as time has to pass for TimeLimit anyway; of this module, as one of another would
    have hosts of its own."""


class TimeLimit(TransportTest):
    """Half a minute at least, of which the others make use: the job was submitted before them."""

    @classmethod
    def setUpClass(cls):
        if LIMITED is None:
            raise test_sched.unittest.SkipTest("no job was submitted")

    def test_warned_and_ended_by_slurm(self):
        self.output = os.path.join(LIMITED, "job.out")
        self.job_mark = "long-" + os.path.basename(LIMITED)
        self.marks.append(self.job_mark)
        self.wait_for("warned\n", 2)
        self.wait_for("DUE TO TIME LIMIT")
        self.wait_for("interrupted (SIGTERM)")
        self.wait_for("saved\n", 2)
        self.assert_nobody()


class Unreachable(TransportTest):
    """The last: Slurm does less for other jobs while it looks for a node that has gone."""

    @classmethod
    def setUpClass(cls):
        test_sched.set_up("slurm", "slurmctld")

    def test_a_node_that_dies_before_the_start(self):
        go = self.path("go")
        self.submit("sbatch -p compute -N3 -n3 -o {out} {script}",
                    f"echo ready; while [ ! -e {go} ]; do sleep 0.1; done\n"
                    "$ddprun sh -c 'echo started'; echo code $?")
        self.wait_for("ready")
        self.fault(7, "crash")
        try:
            with open(go, "w"):
                pass
            self.wait_for("code ")
        finally:
            self.heal(7)
            hosts.LAB_HOSTS("slurm", "up")
        said = self.said()
        self.assertRegex(said, "ddprun: cannot start on node007: Slurm cannot start a task there: ")
        self.assertNotIn("on node006", said)
        self.assertNotIn("started\n", said)
        self.assertIn("code 125", said)


LIMITED = None


def submit_limited():
    """In a folder of its own: no process of other tests may be alive. Limits are minutes, and
    Slurm checks them twice a minute: root shortens the limit when the ranks are up."""
    folder = os.path.join(hosts.LAB_HOSTS.folder, "limited")
    shutil.copytree(hosts.LAB_HOSTS.bin, folder)
    os.chmod(folder, 0o777)
    script, out = os.path.join(folder, "job.sh"), os.path.join(folder, "job.out")
    with open(script, "w", encoding="utf-8") as f:
        f.write(f"#!/bin/bash\nexport DDPRUN_TEST_MARK=long-limited\n"
                f"{folder}/{os.path.basename(hosts.LAB_HOSTS.ddprun)} --grace 40s sh -c '{WARY}'\n")
    os.chmod(script, 0o755)
    job = hosts.LAB_HOSTS(
        "exec", "-l", "-u", "alice", "node004", "sbatch", "--parsable", "-p", "gpu", "-N2", "-n2",
        "-t", "10", "--signal=USR1@30", "-o", out, script).strip()

    def ranks_are_up():
        if not os.path.exists(out):
            return False
        with open(out, encoding="utf-8") as said:
            return said.read().count("up\n") == 2

    wait_until(ranks_are_up, 120)
    hosts.LAB_HOSTS("exec", "node001", "bash", "-c", f"scontrol update jobid={job} "
                    "EndTime=$(date -d '+32 sec' +%FT%T)")
    return folder


def setUpModule():
    global LIMITED
    # between the first signal and the last one, and until a node is given up with its jobs:
    # the lab's three and twenty seconds pass while a machine stands still
    os.environ["LAB_SLURM_EXTRA"] = "KillWait=30\nSlurmdTimeout=120"
    hosts.set_up()
    if not hosts.missing("slurmctld"):
        hosts.LAB_HOSTS("slurm", "up")
        LIMITED = submit_limited()


tearDownModule = hosts.tear_down


if __name__ == "__main__":
    main(hosts.missing("slurmctld", "sge_qmaster"))
