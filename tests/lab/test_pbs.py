"""ddprun, and the batch scripts that it makes, in a real OpenPBS: skipped where none is
installed (its sources make /opt/pbs)."""

import os
import shutil
import subprocess

import hosts
from hosts import main, node
from launch import wait_until
from test_scripts import GOES_ON, WAIT, ScriptTest

HERE = os.path.dirname(os.path.abspath(__file__))
PBS = os.environ.get("PBS_EXEC", "/opt/pbs")
NODES = 3
RANKS = ("echo rank $RANK/$WORLD_SIZE local $LOCAL_RANK on $(hostname) "
         "node ${PBS_NODENUM-none} threads $OMP_NUM_THREADS")


def missing():
    """What this machine lacks for a PBS of its own; None: nothing."""
    for program in ("sbin/pbs_server.bin", "sbin/pbs_mom", "bin/pbs_tmrsh"):
        if not os.access(f"{PBS}/{program}", os.X_OK):
            return f"no OpenPBS is installed in {PBS}"
    if not os.stat(f"{PBS}/sbin/pbs_iff").st_mode & 0o4000:
        return f"{PBS}/sbin/pbs_iff is not setuid"
    return None if shutil.which("pg_config") else "no PostgreSQL for OpenPBS's data"


class Pbs(ScriptTest):
    @classmethod
    def setUpClass(cls):
        lab = hosts.LAB_HOSTS
        cls.conf = os.path.join(lab.folder, "pbs.conf")
        for path, head in ((cls.conf, 1), (cls.conf + ".mom", 0)):
            with open(path, "w", encoding="ascii") as conf:
                conf.write(f"PBS_EXEC={PBS}\nPBS_HOME=/var/spool/pbs\nPBS_SERVER={node(1)}\n"
                           f"PBS_START_SERVER={head}\nPBS_START_SCHED={head}\n"
                           f"PBS_START_COMM={head}\nPBS_START_MOM=1\nPBS_SCP=/usr/bin/scp\n")
        # without -f qsub leaves a process behind, for a minute, to be faster the next time
        bin_ = os.path.join(lab.folder, "qsub")
        os.mkdir(bin_)
        with open(os.path.join(bin_, "qsub"), "w", encoding="ascii") as qsub:
            qsub.write(f"#!/bin/sh\nexec {PBS}/bin/qsub -f \"$@\"\n")
        os.chmod(qsub.name, 0o755)
        # as a site's /etc/profile.d/pbs.sh, and before another scheduler's qsub
        with open(os.path.join(lab.env["LAB_STATE"], "home", "alice", ".bash_profile"), "w",
                  encoding="ascii") as profile:
            profile.write(f"export PATH={bin_}:{PBS}/bin:$PATH PBS_CONF_FILE={cls.conf}\n")
        # not through the lab's own call, which waits for a minute at most
        starts = [cls.daemons(number) for number in range(2, NODES + 1)]
        starts.append(cls.daemons(1, *map(node, range(1, NODES + 1))))
        for start in starts:
            said = start.communicate(timeout=120)[0]
            if start.returncode != 0:
                raise RuntimeError(f"PBS does not start: {said}")
        free = f"{PBS}/bin/pbsnodes -a -F dsv | grep -c 'state=free'"
        if not wait_until(lambda: cls.root(free) == f"{NODES}\n", 60):
            raise RuntimeError(f"not every node is free: {cls.root(f'{PBS}/bin/pbsnodes -a')}")

    @classmethod
    def daemons(cls, number, *nodes):
        conf, role = (cls.conf, "head") if number == 1 else (cls.conf + ".mom", "mom")
        return subprocess.Popen(
            [hosts.LAB, "exec", "-l", node(number), "env", f"PBS_CONF_FILE={conf}",
             "bash", os.path.join(HERE, "pbs.sh"), role, *nodes],
            env=hosts.LAB_HOSTS.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True)

    @classmethod
    def root(cls, command):
        return subprocess.run(
            [hosts.LAB, "exec", "-l", node(1), "env", f"PBS_CONF_FILE={cls.conf}", "sh", "-c",
             command], env=hosts.LAB_HOSTS.env, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=200, check=False,
            text=True).stdout

    def alice(self, command, fails=False):
        return super().alice(f". ~/.bash_profile; {command}", fails)

    def job(self, select, lines):
        """The number of a job whose script is `lines`."""
        self.write("j.sh", f"#!/bin/bash\n#PBS -j oe\n#PBS -N j\n#PBS -l select={select}\n"
                           "#PBS -l place=scatter\ncd $PBS_O_WORKDIR\n"
                           f"ddprun={hosts.LAB_HOSTS.ddprun}\n{lines}\necho the end\n")
        return self.number(self.alice("qsub j.sh"))

    def number(self, said):
        self.assertRegex(said, rf"^\d+\.{node(1)}\n$")
        return said.split(".")[0]

    def said_by(self, number, pattern="the end"):
        """All that a job says, which PBS hands over after its end."""
        return self.wait_for(f"j.o{number}", pattern, 120)

    def test_a_job_has_a_rank_for_each_of_its_mpiprocs(self):
        number = self.job("1:ncpus=4:mpiprocs=2+1:ncpus=2:mpiprocs=1", (
            f"$ddprun sh -c '{RANKS}'; echo code $?\n"
            "$ddprun --start ssh sh -c 'echo by ssh $RANK in $PWD'\n"
            f"$ddprun -H {node(2)} sh -c 'echo picked $(hostname)'\n"
            "$ddprun sh -c 'exit $((RANK / 2 * 5))'; echo code $?\n"
            "$ddprun --dry-run true | grep -e from -e tmrsh\n"
            "$ddprun --agent /nonesuch/agent true\n"
            "pbsdsh -- $ddprun true\n"))
        said = self.said_by(number)
        first, second = node(1), node(2)
        # threads: PBS gives each rank of the first node those of both
        for line in (rf"\[0 {first}\] rank 0/3 local 0 on {first} node 0 threads [12]\n",
                     rf"\[1 {first}\] rank 1/3 local 1 on {first} node 0 threads [12]\n",
                     rf"\[2 {second}\] rank 2/3 local 0 on {second} node 1 threads 2\n",
                     "code 0\n", rf"by ssh 2 in {self.folder.name}\n", rf"picked {second}\n",
                     f"rank 2 on {second} exited with status 5", "code 5\n", "hosts: 2 from pbs\n",
                     f"here: pbs_tmrsh {second} .*ddprun-agent --bootstrap FILE\n",
                     f"cannot start on {second}: the agent '/nonesuch/agent' is not there",
                     r"PBS_TASKNUM=[1-9A-F]000000.: this is not the job's first process",
                     "PBS_TASKNUM=0000000.: this is not the job's first process"):
            self.assertRegex(said, line)

    def test_a_job_that_says_nothing_of_ranks_may_have_any_number(self):
        said = self.said_by(self.job("2:ncpus=4", (
            f"$ddprun --nproc-per-node 2 sh -c '{RANKS}'; $ddprun -np 4 true; echo code $?")))
        self.assertEqual(said.count("] rank "), 4, said)
        self.assertIn("2 hosts have 2 slots; --oversubscribe allows more, mpiprocs=N", said)

    def test_the_page_about_pbs_is_true(self):
        self.page("pbs.md", 1 + 1 + 1 + 2, out="ddp-train.o{}",
                  number=r"^(\d+)\.node001$")
        # ABCI's queue is there too, but not its modules: PBS takes the script, and no more
        self.number(self.alice("qsub -h abci.sh; qdel $(qselect -h u) >&2 || true"))

    def test_ranks_may_save_when_the_job_is_deleted(self):
        program = self.write("work", "#!/bin/bash\n"
                                     "trap 'sleep 1; echo saved >>saved; exit 0' TERM\n"
                                     f"echo up\n{WAIT}")
        os.chmod(program, 0o755)
        number = self.number(self.alice(
            f"{hosts.LAB_HOSTS.ddprun} --script pbs --submit -N {NODES} --nproc-per-node 2 "
            "--time 5m ./work"))
        log = f"logs/work-{number}"
        ups = [f"{log}/rank.{rank}.out" for rank in range(2 * NODES)]
        self.assertTrue(wait_until(lambda: all("up" in self.said(up) for up in ups), 60),
                        self.all_said())
        self.alice(f"qdel {number}")
        self.assertTrue(wait_until(lambda: self.said("saved").count("saved") == 2 * NODES, 60),
                        self.all_said())
        self.assertTrue(wait_until(
            lambda: not hosts.launch.marked(self.folder.name, hosts.LAB_HOSTS.bin), 60))

    def test_arrays_of_jobs_that_go_on_and_of_jobs_that_do_not(self):
        """Side by side, as in both cases time has to pass. Each job of an array has its index:
        one goes on where it was when its time was over, one does not start a second time."""
        goes_on = self.write("goes-on", GOES_ON.replace("went on", "went on $PBS_ARRAY_INDEX"))
        once = self.write("once", "#!/bin/bash\necho index $PBS_ARRAY_INDEX on $(hostname)\n"
                                  "[ $PBS_ARRAY_INDEX = 1 ] || exec sleep 300\n")
        for program in (goes_on, once):
            os.chmod(program, 0o755)
        name = self.script("pbs", *"-N 2 --nproc-per-node 1 --time 60s --warning 52s".split(),
                           "--requeue", "./goes-on", site="pbs")
        first = self.alice(f"qsub -J 3-4 {name}").split("[")[0]
        name = self.script("pbs", *"-N 1 --nproc-per-node 2 --time 5m ./once".split(), site="pbs")
        said = self.alice(f"qsub -J 1-2 {name}")
        self.assertRegex(said, rf"^\d+\[\]\.{node(1)}\n$")
        second = said.split("[")[0]
        for index in (1, 2):
            self.wait_for(f"logs/once-{second}.{index}/rank.1.out", f"^index {index} on ")
        self.root(f"{PBS}/bin/qrerun '{second}[2]'")
        self.wait_for(f"once.o{second}.2", rf"job {second}\.2 has run before")
        self.assertEqual(self.said(f"logs/once-{second}.2/job.log").count(" starts on "), 1)
        for index in (3, 4):
            self.wait_for(f"logs/goes-on-{first}.{index}/start-2/rank.0.out", f"went on {index}",
                          120)

    def test_a_node_that_dies(self):
        number = self.job(f"{NODES}:ncpus=1", "mkdir out; $ddprun --node-timeout 5s --output-filename "
                                              "out sh -c 'echo up; exec sleep 300' 2>err")
        self.assertTrue(wait_until(lambda: all(
            "up" in self.said(f"out/rank.{rank}.out") for rank in range(NODES)), 60),
            self.said("err") + self.alice("ls -lR; qstat -f"))
        self.fault(NODES, "crash")
        try:
            self.wait_for("err", f"{node(NODES)} is lost", 60)
            self.assertTrue(wait_until(lambda: not hosts.launch.marked(hosts.LAB_HOSTS.bin), 60))
        finally:
            self.heal(NODES)
            start = self.daemons(NODES)
            start.communicate(timeout=120)
            self.alice(f"qdel -W force {number} || true")

    def test_a_refusal_of_pbs_is_one_line(self):
        said = self.alice(
            f"{hosts.LAB_HOSTS.ddprun} --script pbs --submit --partition nosuch true", fails=True)
        self.assertEqual(said, "ddprun: qsub refuses the job: Unknown queue\n")


setUpModule = hosts.set_up
tearDownModule = hosts.tear_down


if __name__ == "__main__":
    main(missing() and f"{missing()}; needs program OpenPBS")
