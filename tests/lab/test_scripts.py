"""Batch scripts that ddprun makes, in a real Slurm and a real Grid Engine."""

import os
import re
import subprocess

import hosts
from hosts import LabTest, main
from launch import wait_until
from test_sched import UsesGridEngine, UsesSlurm

HERE = os.path.dirname(os.path.abspath(__file__))
SITE = {"slurm": os.path.join(HERE, "lab.ini"), "sge": os.path.join(HERE, "lab_sge.ini")}
# not `sleep & wait`: told to end twice, by a scheduler and by us, bash leaves its trap half done
WAIT = "while :; do sleep 0.05; done\n"
# rank 0 saves when it is told to end, and another start of the job goes on from there
GOES_ON = (
    "#!/bin/bash\n"
    "[ \"$1\" != --resume ] || { echo went on; exit 0; }\n"
    "[ $RANK = 0 ] || exec sleep 300\n"
    "trap 'echo saved >>saved; exit 143' TERM\n"
    f"echo started\n{WAIT}")
TRAIN = ["--epochs", "2", "--threads", "1", "--plot", "none", "--progress", "lines"]


class ScriptTest(LabTest):
    """alice works in a folder of hers on node001, the front end."""

    def setUp(self):
        super().setUp()
        self.marks.append(self.folder.name)
        for name in SITE.values():
            with open(name, encoding="ascii") as site:
                self.write(os.path.basename(name), site.read())

    def tearDown(self):
        # what a job printed last is not its end: the scheduler has its daemons to tell
        hosts.launch.who_is_left(*self.marks, deadline=60)
        super().tearDown()

    def write(self, name, text):
        path = os.path.join(self.folder.name, name)
        with open(path, "w", encoding="utf-8") as out:
            out.write(text)
        os.chmod(path, 0o644)
        return path

    def alice(self, command, fails=False):
        done = subprocess.run(
            [hosts.LAB, "exec", "-l", "-u", "alice", "node001", "env", "-C", self.folder.name,
             "bash", "-c", command],
            env=hosts.LAB_HOSTS.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, timeout=250, check=False, text=True,
            errors="replace")
        self.assertEqual(done.returncode != 0, fails, f"{command}: {done.stdout}")
        return done.stdout

    def script(self, scheduler, *args, site=None):
        """What alice gets, in a file; the lab's own site where none is named."""
        words = ["--site", site or f"./{os.path.basename(SITE[scheduler])}", "--script",
                 scheduler, *args]
        self.count = getattr(self, "count", 0) + 1
        name = f"job{self.count}.sh"
        self.alice(f"{hosts.LAB_HOSTS.ddprun} {' '.join(words)} >{name}")
        self.alice(f"bash -n {name}")
        return name

    def submitted(self, scheduler, *args):
        """The number of a job that --submit has handed over."""
        site = f"./{os.path.basename(SITE[scheduler])}"
        number = self.alice(
            f"{hosts.LAB_HOSTS.ddprun} --site {site} --submit {' '.join(args)}").strip()
        self.assertRegex(number, r"^\d+$")
        return number

    def said(self, name):
        path = os.path.join(self.folder.name, name)
        if not os.path.exists(path):
            return ""
        with open(path, encoding="utf-8", errors="replace") as text:
            return text.read()

    def page(self, name, submits, out="ddp-train-{}.out",
             number=r"^(?:Submitted batch job |Your job )?(\d+)\b"):
        """Every command of a page of doc/ that begins with one of ours or the scheduler's, in
        turn, in one shell. Those that need the internet are left out, and so are examples of
        what is refused, which stand behind a '$'."""
        with open(os.path.join(HERE, "..", "..", "doc", name), encoding="utf-8") as text:
            lines = [line.strip() for line in text if re.match(
                r"    (ddprun|sbatch|squeue|salloc|qsub|qstat)( |$)", line)]
        lines = [line for line in lines if "--fetch-data" not in line]
        self.assertGreater(len(lines), 8)
        self.write("page.sh", "set -ex\nexport PATH="
                   f"{hosts.LAB_HOSTS.bin}:$PATH\n" + "\n".join(lines) + "\n")
        self.alice("bash page.sh >page.out 2>&1 || { cat page.out; exit 1; }")
        jobs = re.findall(number, self.said("page.out"), re.MULTILINE)
        self.assertEqual(len(jobs), submits, self.said("page.out"))
        for job in jobs:
            self.wait_for(out.format(job), "images/s|scaling.svg", 120)
        self.assertIn("ranks       2 over", self.said(out.format(jobs[0])))
        logs = os.listdir(os.path.join(self.folder.name, "logs", f"ddp-train-{jobs[0]}"))
        self.assertLessEqual({"job.log", "rank.0.out"}, set(logs))
        for made in ("digits.safetensors", "scaling/scaling.svg"):
            self.assertTrue(wait_until(
                lambda made=made: os.path.exists(os.path.join(self.folder.name, made)), 120), made)
        rows = self.said("scaling/scaling.csv").splitlines()
        self.assertEqual(len([row for row in rows if "images/s" in row]), len(rows) - 1, rows)

    def pytorch(self, scheduler, ranks, options):
        """An unmodified program of PyTorch's as a job, where alice has any: Debian's is
        for all users."""
        try:
            self.alice("/usr/bin/python3 -c 'import importlib.util as u; exit(not u.find_spec(\"torch\"))'")
        except AssertionError:
            print("left out: alice's python3 has no PyTorch (Debian: python3-torch)")
            return
        with open(os.path.join(HERE, "ddp.py"), encoding="ascii") as program:
            path = self.write("ddp.py", program.read())
        number = self.submitted(scheduler, options, f"/usr/bin/python3 {path}")
        self.wait_for(f"ddp-{number}.out", f"trained with {ranks} ranks")

    def wait_for(self, name, pattern, deadline=120):
        self.assertTrue(wait_until(lambda: re.search(pattern, self.said(name)), deadline),
                        f"{name} has no '{pattern}': {self.said(name)}\n"
                        f"{os.listdir(self.folder.name)}\n{self.all_said()}")
        return self.said(name)

    def all_said(self):
        """The output of this test's jobs, to see why it failed."""
        return self.alice("tail -n 20 *.o[0-9]* *.out logs/*/job.log 2>&1 || true")


class Slurm(UsesSlurm, ScriptTest):
    @classmethod
    def setUpClass(cls):
        # nodes of LANTA's size, so that its scripts fit too
        hosts.LAB_HOSTS.env["LAB_SLURM_CPUS"] = "64"
        # a requeued job waits until the credentials of its first run are void: two minutes,
        # if nothing else is said. Asked for sooner, it may meet the end of its first run
        hosts.LAB_HOSTS.env["LAB_SLURM_EXTRA"] = "AuthInfo=cred_expire=10\nKillWait=30"
        super().setUpClass()

    def try_out(self, name, *more):
        return self.alice(f"sbatch --test-only {' '.join(more)} {name}")

    def test_slurm_takes_every_script(self):
        for args in (["-N", "2"], ["-N", "3", "--gpus-per-node", "4", "--time", "2h"],
                     ["-N", "2", "--partition", "gpu", "--requeue"],
                     ["-N", "2", "--gpus-per-node", "0", "--nproc-per-node", "5"],
                     ["-np", "5", "-N", "2", "--gpus-per-node", "0"], ["--nnodes", "2:3"],
                     ["--gpus-per-node", "2", "--cpus-per-task", "3", "--mem", "4G"]):
            self.assertIn("to start at", self.try_out(self.script("slurm", *args, "true")))
        self.assertIn("to start at", self.try_out(
            self.script("slurm", "-N", "2", "--gpus-per-node", "2", "true", site="slurm")))

    def test_slurm_takes_the_scripts_of_known_sites(self):
        """Their partitions are called as the lab's, or another is named for the test."""
        for site, args, more in (
                ("tara", "--partition dgx-preempt -N 2 --requeue", ["-p", "dgx"]),
                ("tara", "-N 2 --gpus-per-node 2", ["-p", "dgx"]),
                ("tara", "-N 2 --partition gpu", []),
                ("tara", "-N 2 --gpus-per-node 0", []),
                ("lanta", "-N 3 --time 4d", ["-p", "dgx"]),
                ("lanta", "-N 2 --partition gpu-devel --gpus-per-node 2", ["-p", "dgx"])):
            name = self.script("slurm", *args.split(), "--account", "a1", "true", site=site)
            self.assertIn("to start at", self.try_out(name, *more), name)

    def test_a_job_trains_over_four_nodes_of_an_unknown_slurm(self):
        number = self.alice(
            f"{hosts.LAB_HOSTS.ddprun} --script slurm --submit -N 4 --time 5m "
            f"{hosts.LAB_HOSTS.bin}/ddp-train {' '.join(TRAIN)}").strip()
        self.assertIn("ranks       4 over",
                      self.wait_for(f"ddp-train-{number}.out", r"images/s"))

    def test_ranks_are_warned_and_the_job_goes_on_where_it_was(self):
        """The warning is sent by hand: Slurm itself would send it a minute too early. Before
        the second start other jobs have their turn."""
        program = self.write("work", GOES_ON)
        os.chmod(program, 0o755)
        number = self.submitted("slurm", "-N 2 --gpus-per-node 1 --time 5m --requeue ./work")
        out = f"work-{number}.out"
        self.wait_for(out, "started")
        self.alice(f"scancel --batch --signal=USR1 {number}")
        self.wait_for("saved", "saved")
        self.pytorch("slurm", 2, "-N 2 --gpus-per-node 1 --time 5m")
        self.wait_for(out, "went on", 120)
        log = self.said(f"logs/work-{number}/job.log")
        self.assertEqual(log.count(" starts on "), 2, log)

    def test_a_cancelled_job_asks_its_ranks_first(self):
        program = self.write("work", "#!/bin/bash\ntrap 'echo saved >saved; exit 0' TERM\n"
                                     f"echo up\n{WAIT}")
        os.chmod(program, 0o755)
        number = self.submitted("slurm", "-N 2 --gpus-per-node 1 --time 5m ./work")
        self.wait_for(f"work-{number}.out", "up")
        self.alice(f"scancel {number}")
        self.wait_for("saved", "saved")

    def test_the_page_about_slurm_is_true(self):
        self.page("slurm.md", 1 + 1 + 1 + 1 + 3)
        self.assertIn("images/s", self.said("page.out"), "salloc")

    def test_a_refusal_of_slurm_is_one_line(self):
        said = self.alice(
            f"{hosts.LAB_HOSTS.ddprun} --script slurm --submit --partition nosuch true",
            fails=True)
        self.assertIn("ddprun: sbatch refuses the job: ", said)
        self.assertIn("invalid partition", said)
        self.assertEqual(said.count("\n"), 1, said)
        self.alice("scontrol show partition compute")
        said = self.alice(  # sbatch would take it, and let it wait for ever
            f"{hosts.LAB_HOSTS.ddprun} --script slurm --submit --partition compute "
            "--gpus-per-node 1 true", fails=True)
        self.assertIn("ddprun: sbatch refuses the job: ", said)
        # no job of this name: another's may still be on its way out
        self.assertEqual(self.alice("squeue -h --name true"), "")


class GridEngine(UsesGridEngine, ScriptTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        # ABCI's resource types, as far as qsub looks at them
        hosts.LAB_HOSTS(
            "exec", "node001", "bash", "-c",
            "qconf -sc | sed '/^#/d' >/run/complex; for r in rt_F rt_AF rt_G.small rt_C.large; do "
            "echo $r $r INT '<=' YES YES 0 0; done >>/run/complex; "
            # four GPUs on each host, counted per slot and per job
            "echo gpu_slot gpu_slot INT '<=' YES YES 0 0 >>/run/complex; "
            "echo gpu_job gpu_job INT '<=' YES JOB 0 0 >>/run/complex; qconf -Mc /run/complex; "
            "for h in $(qconf -sel); do qconf -mattr exechost complex_values gpu_slot=4,gpu_job=4 $h; done")

    def verified(self, name):
        return self.alice(f"qsub -verify {name}")

    def test_grid_engine_takes_every_script(self):
        for site, args in (
                (None, "-N 2"), (None, "-N 3 --nproc-per-node 4 --time 1d2h --requeue"),
                (None, "--nnodes 2:3"), ("sge", "-N 2 --nproc-per-node 4"), (None, "-N 2 --spares 1"),
                ("abci2", "-N 4 --account g1"),
                ("abci2", "-N 2 --account g1 --partition rt_AF --time 60h"),
                ("abci2", "--account g1 --partition rt_G.small --requeue"),
                ("abci2", "--account g1 --gpus-per-node 0")):
            text = self.verified(self.script("sge", *args.split(), "true", site=site))
            self.assertIn("merge:                      y", text)
            self.assertRegex(text, r"hard resource_list: .*h_rt=\d+")

    def test_as_many_gpus_and_ranks_as_promised_however_gpus_are_counted(self):
        site = ("[site]\nscheduler = sge\ngpu-consumable = {}\nrequest =\n    -pe mpi_fill {}\n"
                "    -l {}={{{{gpus}}}}\n[partition all.q]\nnodes = 7\ngpus = 4\ncores = 8\n")
        for kind, slots, name, nodes in (("YES", "{{all_gpus}}", "gpu_slot", 2),
                                         ("JOB", "{{slots}}", "gpu_job", 1)):
            self.write(f"{name}.ini", site.format(kind, slots, name))
            number = self.alice(
                f"{hosts.LAB_HOSTS.ddprun} --site ./{name}.ini --submit -N {nodes} --time 5m "
                f"--gpus-per-node 4 --job-name {name} sh -c 'echo rank $RANK of $WORLD_SIZE'").strip()
            self.wait_for(f"logs/{name}-{number}/rank.0.out", f"rank 0 of {4 * nodes}$")
            self.assertEqual(len([x for x in os.listdir(os.path.join(
                self.folder.name, "logs", f"{name}-{number}")) if x.endswith(".out")]), 4 * nodes)

    def test_a_python_file_runs_in_the_environment_that_was_active(self):
        """Grid Engine's jobs get nothing of the environment of qsub."""
        self.write("show.py", "import os, sys\nprint(os.environ['RANK'], sys.prefix)\n")
        number = self.alice(
            "/usr/bin/python3 -m venv --without-pip venv; source venv/bin/activate; "
            f"{hosts.LAB_HOSTS.ddprun} --site ./lab_sge.ini --submit -N 2 --nproc-per-node 2 "
            "--time 5m show.py --lr 0.1").strip()
        for rank in range(4):
            self.wait_for(f"logs/show-{number}/rank.{rank}.out", f"^{rank} {self.folder.name}/venv$")

    def test_a_job_for_a_range_of_hosts_has_all_and_goes_on_with_fewer(self):
        """The agent of the second host is killed."""
        program = self.write("work", (
            "#!/bin/bash\necho at $RANK $TORCHELASTIC_RESTART_COUNT of $WORLD_SIZE\n"
            "[ $TORCHELASTIC_RESTART_COUNT = 0 ] || exit 0\n"
            "touch up.$RANK\n"
            "[ $RANK != 1 ] || { until [ -e up.0 ] && [ -e up.2 ]; do sleep 0.1; done; kill -9 $PPID; }\n"
            "exec sleep 300\n"))
        os.chmod(program, 0o755)
        number = self.submitted("sge", "--nnodes 2:3 --nproc-per-node 1 --cpus-per-task 8 --time 5m ./work")
        self.wait_for(f"work-{number}.out", "at 2 0 of 3")
        self.wait_for(f"work-{number}.out", "at 1 1 of 2")
        self.wait_for(f"logs/work-{number}/job.log", "ended with 0$")

    def test_the_page_about_grid_engine_is_true(self):
        self.page("sge.md", 1 + 1 + 1 + 2)

    def test_a_job_whose_time_is_over_goes_on_where_it_was(self):
        """And while it waits for its second start, others have their turn: an array, whose
        tasks have a folder each. Where the first eight seconds were not enough to begin, there
        is nothing to go on with."""
        program = self.write("work", (
            "#!/bin/bash\n"
            "[ \"$1\" != --resume ] || [ ! -e saved ] || { echo went on; exit 0; }\n"
            "[ $RANK = 0 ] || exec sleep 300\n"
            "trap 'echo saved >>saved; exit 143' TERM\n"
            f"echo started\n{WAIT}"))
        os.chmod(program, 0o755)
        number = self.submitted(
            "sge", "-N 2 --nproc-per-node 1 --time 60s --warning 52s --requeue ./work")
        out = f"work-{number}.out"
        name = self.script("sge", *"-N 1 --nproc-per-node 1 --time 5m --job-name array".split(),
                           "sh", "-c", "'echo task $SGE_TASK_ID'")
        array = self.alice(f"qsub -terse -t 1-2 {name}").split(".")[0]
        self.pytorch("sge", 4, "-N 4 --nproc-per-node 1 --time 5m")
        for task in (1, 2):
            self.wait_for(f"logs/array-{array}.{task}/rank.0.out", f"^task {task}$")
        self.wait_for("saved", "saved")
        self.wait_for(out, "went on", 120)


setUpModule = hosts.set_up
tearDownModule = hosts.tear_down


if __name__ == "__main__":
    main()
