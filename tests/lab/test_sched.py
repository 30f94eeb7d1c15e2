"""ddprun inside jobs of a real Slurm and a real Grid Engine, without a list of hosts."""

import os
import shutil
import unittest

import hosts
from hosts import LabTest, main, node
from launch import wait_until

RANKS = 'echo "rank $RANK/$WORLD_SIZE local $LOCAL_RANK on $(hostname)"'


def set_up(scheduler, daemon):
    if hosts.missing(daemon):
        raise unittest.SkipTest(hosts.missing(daemon))
    try:
        hosts.LAB_HOSTS(scheduler, "up")
    except RuntimeError as e:
        if scheduler != "sge" or "status 139" not in str(e):
            raise
        # Ubuntu 26.04's spooldefaults.bin does
        raise unittest.SkipTest("Grid Engine's own programs crash; needs system another Grid Engine") from e


class UsesSlurm:
    """Mixed into a test class: its tests have a Slurm."""

    scheduler, daemon = "slurm", "slurmctld"

    @classmethod
    def setUpClass(cls):
        set_up(cls.scheduler, cls.daemon)

    @classmethod
    def tearDownClass(cls):
        hosts.LAB_HOSTS(cls.scheduler, "down")


class UsesGridEngine(UsesSlurm):
    scheduler, daemon = "sge", "sge_qmaster"


class JobTest(LabTest):
    """A job script runs as `user`; what it and ddprun say comes back."""

    user = "alice"

    def submit(self, submit, lines):
        script = os.path.join(self.folder.name, "job.sh")
        said = os.path.join(self.folder.name, "job.out")
        mark = "job-" + os.path.basename(self.folder.name)
        self.marks.append(mark)
        self.job_mark = mark
        with open(script, "w") as f:
            f.write(f"#!/bin/bash\ncd {hosts.LAB_HOSTS.folder}\n"
                    f"export DDPRUN_TEST_MARK={mark}\nddprun={hosts.LAB_HOSTS.ddprun}\n"
                    + lines + "\n")
        os.chmod(script, 0o755)
        self.output = said
        command = submit.format(out=said, script=script)
        self.answer = hosts.LAB_HOSTS(
            "exec", "-l", "-u", self.user, "node001", "sh", "-c", f"cd / && {command}")
        return self.said()

    def said(self):
        if not os.path.exists(self.output):
            return ""
        with open(self.output) as f:
            return f.read()

    def wait_for(self, what, times=1, deadline=120):
        self.assertTrue(wait_until(lambda: self.said().count(what) >= times, deadline), self.said())

    def batch(self, options, lines):
        """A batch job of Slurm's to its end; `sbatch -W` looks for that every two seconds."""
        before, colon, after = options.partition(" : ")
        self.submit(f"sbatch {before} -o {{out}}{colon}{after} {{script}}", lines + "\necho done")
        self.wait_for("done\n")
        return self.said()

    def assert_nobody(self):
        """Of the job, whose scheduler has its own daemons to tell."""
        self.assertEqual(hosts.launch.who_is_left(self.job_mark, deadline=60), {})

    def assert_ranks(self, said, expected):
        found = sorted(line.split("] ", 1)[1] for line in said.splitlines() if "] rank " in line)
        self.assertEqual(found, sorted(expected), said)


class Slurm(UsesSlurm, JobTest):
    def test_a_rank_per_gpu_of_the_job(self):
        said = self.batch("-p dgx -N2 --gres=gpu:2", f"$ddprun sh -c '{RANKS}'; echo code $?")
        self.assert_ranks(said, [f"rank {r}/4 local {r % 2} on {node(1 + r // 2)}" for r in range(4)])
        self.assertIn("code 0", said)

    def test_a_rank_per_task_where_no_gpus_were_asked_for(self):
        said = self.batch("-p compute -N3 -n5",
                          f"$ddprun sh -c '{RANKS}'; $ddprun --dry-run true | head -5")
        self.assertEqual(said.count("] rank "), 5, said)
        self.assertIn("hosts: 3 from slurm", said)
        self.assertIn("SLURM_TASKS_PER_NODE=", said)

    def test_from_the_front_end_of_an_allocation(self):
        said = self.submit(
            "env LC_ALL=C salloc -Q -p dgx -N2 -n4 {script} >{out} 2>&1 || true",
            f"$ddprun sh -c '{RANKS}'")
        self.assertEqual(said.count("] rank "), 4, said)

    def test_copies_of_the_launcher_are_one_world_or_refused(self):
        said = self.batch("-p dgx -N2 -n4 --ntasks-per-node=2",
                          f"srun $ddprun sh -c '{RANKS}'; echo code $?\n"
                          "srun $ddprun --alloc slurm true; echo code $?")
        self.assert_ranks(said, [f"rank {r}/4 local {r % 2} on {node(1 + r // 2)}" for r in range(4)])
        self.assertIn("code 0", said)
        self.assertIn("this step has 4 tasks (SLURM_STEP_NUM_TASKS=4)", said)
        self.assertIn("code 2", said)

    def test_scancel_leaves_nobody(self):
        self.submit("sbatch -p dgx -N2 -n2 -o {out} {script}",
                    "$ddprun sh -c 'echo up; sleep 300'")
        self.wait_for("up\n", 2)
        hosts.LAB_HOSTS("exec", "-l", "-u", "alice", "node001", "scancel",
                        self.answer.split()[-1])
        self.assert_nobody()


class GridEngine(UsesGridEngine, JobTest):
    def test_a_rank_per_slot_where_there_are_no_gpus(self):
        self.submit("qsub -pe mpi 4 -j y -o {out} {script}",
                    f"$ddprun sh -c '{RANKS}'; echo code $?; "
                    "$ddprun --dry-run true | head -5; echo done")
        self.wait_for("done\n")
        said = self.said()
        self.assertEqual(said.count("] rank "), 4, said)
        self.assertIn("code 0", said)
        self.assertIn("from sge", said)
        self.assertIn("PE_HOSTFILE: ", said)

    @unittest.skipUnless(shutil.which("mpirun.openmpi"), "no Open MPI; needs package openmpi-bin")
    def test_a_copy_per_node_by_mpirun_is_one_world(self):
        """As ABCI's own examples start things."""
        self.submit(
            "qsub -pe mpi 3 -j y -o {out} {script}",
            "mpirun.openmpi -np $NHOSTS --map-by ppr:1:node $ddprun --nproc-per-node 2 "
            "sh -c 'echo rank $RANK/$WORLD_SIZE; [ $RANK = 5 ] || exit 0; sleep 4; exit 5'; "
            "echo code $?")
        self.wait_for("code ")
        said = self.said()
        ranks = sorted(line.split("] ")[1] for line in said.splitlines() if "] rank " in line)
        self.assertEqual(ranks, [f"rank {r}/6" for r in range(6)], said)
        self.assertIn("code 5", said)

    def test_qdel_leaves_nobody(self):
        self.submit("qsub -terse -pe mpi 3 -j y -o {out} {script}",
                    "$ddprun sh -c 'echo up; sleep 300'")
        self.wait_for("up\n", 3)
        hosts.LAB_HOSTS("exec", "-l", "-u", "alice", "node001", "qdel",
                        self.answer.split()[-1])
        self.assert_nobody()


setUpModule = hosts.set_up
tearDownModule = hosts.tear_down


if __name__ == "__main__":
    main(hosts.missing("slurmctld", "sge_qmaster"))
