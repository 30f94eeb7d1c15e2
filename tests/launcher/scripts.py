#!/usr/bin/env python3
"""scripts.py DDPRUN: batch scripts as users get them, and what is refused."""

import itertools
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import unittest

DDPRUN = os.path.abspath(sys.argv.pop(1)) if len(sys.argv) > 1 else "ddprun"


def ddprun(*args, **env):
    return subprocess.run(
        [DDPRUN, *args], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, timeout=120, check=False, text=True,
        env={**os.environ, **NO_PYTHON, **env})


SOURCE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
# no environment is active, also if the tests run in one
NO_PYTHON = {"VIRTUAL_ENV": "", "CONDA_PREFIX": "", "CONDA_EXE": "", "MAMBA_EXE": ""}
# ddprun in sh: it ends by the code when the script's timer has; when Slurm has sent its warning
UNTIL = "trap 'kill $!; exit {}' TERM; sleep 60 & wait"
WARNED = "trap : TERM; kill -USR1 $PPID; sleep 0.3; exit {}"


def setUpModule():
    """The programs for which scripts are made."""
    folder = tempfile.TemporaryDirectory(prefix="ddprun-scripts-")
    unittest.addModuleCleanup(folder.cleanup)
    unittest.addModuleCleanup(os.chdir, os.getcwd())
    os.chdir(folder.name)
    os.mkdir("events")
    for name in ("train", "train.py", "flux:", "events/train"):
        with open(name, "w", encoding="ascii"):
            pass


class Scripts(unittest.TestCase):
    maxDiff = None

    def made(self, *args, **env):
        done = ddprun(*args, **env)
        self.assertEqual((done.returncode, done.stderr), (0, ""), args)
        return done.stdout

    def assert_lines(self, text, *lines):
        have = text.splitlines()
        for line in lines:
            self.assertIn(line, have, text)

    def test_numbers_of_a_job_for_each_scheduler(self):
        ask = ("-N", "4", "--gpus-per-node", "4", "--time", "2h", "--account", "gx1", "./train",
               "--lr", "0.1")
        self.assert_lines(
            self.made("--script", "slurm", *ask),
            "#!/bin/bash", "#SBATCH --nodes=4", "#SBATCH --ntasks-per-node=4",
            "#SBATCH --gpus-per-node=4", "#SBATCH --time=02:00:00", "#SBATCH --account=gx1",
            "#SBATCH --signal=B:USR1@120", "set -euo pipefail",
            'ddprun -np 16 --nnodes 4 --nproc-per-node 4 --grace 90s --output-filename "$log" '
            './train --lr 0.1 &')
        sge = self.made("--script", "sge", *ask)
        self.assertIn("SECONDS < 7080 ?", sge)  # the timer
        self.assert_lines(
            sge, "#$ -pe mpi 16", "#$ -l h_rt=02:00:00", "#$ -P gx1",
            'ddprun -np 16 --nnodes 4 --nproc-per-node 4 --grace 90s --output-filename "$log" '
            './train --lr 0.1 &')
        self.assert_lines(
            self.made("--script", "pbs", *ask),
            "#PBS -l select=4:ncpus=4:ngpus=4:mpiprocs=4:ompthreads=1", "#PBS -l walltime=02:00:00")
        self.assert_lines(
            self.made("--script", "lsf", *ask),
            '#BSUB -n 16', '#BSUB -R "span[ptile=4]"', '#BSUB -gpu "num=4"', "#BSUB -W 02:00")
        self.assert_lines(
            self.made("--script", "flux", *ask), "# flux: --nodes=4 --nslots=4", "# flux: --cores-per-slot=4",
            "# flux: --gpus-per-slot=4", "# flux: --time-limit=7200s", "# flux: --bank=gx1",
            "# flux: --output=train-{{id}}.out")

    def test_site_files_in_the_pages_are_right(self):
        for page, ask, lines in (
                ("doc/sge.md", ["--gpus-per-node", "4"], ["#$ -pe mpi_fill 16", "#$ -l gpu=1"]),
                ("doc/sge.md", ["--gpus-per-node", "0"], ["#$ -pe mpi_fill 32"]),
                ("templates/site/README.md", [], ["#SBATCH --gpus-per-node=4",
                                                  "#SBATCH --cpus-per-task=16"])):
            with open(os.path.join(SOURCE, page), encoding="utf-8") as text:
                example = re.search(r"(?:^    .*\n|^\n)*^    \[site\]\n(?:^    .*\n|^\n)*", text.read(),
                                    re.MULTILINE)[0]
            with tempfile.NamedTemporaryFile("w", suffix=".ini", encoding="utf-8") as site:
                site.write(textwrap.dedent(example))
                site.flush()
                self.assert_lines(self.made("--site", site.name, "--submit", "--dry-run", "--account",
                                            "a", "-N", "4", *ask, "true"), *lines)

    def test_cpus_and_memory_are_requested_or_the_script_says_why_not(self):
        for scheduler, unknown, asked in (
                ("slurm", "# CPUs are not requested: each rank gets Slurm's default, usually 1",
                 "#SBATCH --cpus-per-task=6"), ("sge", "# One slot for each rank", "#$ -pe mpi 48"),
                ("pbs", "# One CPU for each rank", "#PBS -l select=2:ncpus=24:"),
                ("lsf", "# One core for each rank", '#BSUB -R "affinity[core(6)]"'),
                ("flux", "# One core for each rank", "# flux: --cores-per-slot=24\n")):
            ask = ("--script", scheduler, "-N", "2", "--nproc-per-node", "4")
            text = self.made(*ask, "true")
            self.assertIn(unknown, text)
            self.assertIn("# Memory is not requested: the ", text)
            text = self.made(*ask, "--cpus-per-task", "6", "true")
            self.assertNotIn(unknown, text)
            self.assertIn(asked, text)
        text = self.made("--script", "slurm", "--mem", "8G", "true")
        self.assertNotIn("# Memory is not", text)
        self.assertIn("#SBATCH --mem=8192M\n", text)
        text = self.made("--site", "tara", "--script", "slurm", "--account", "a", "true")
        self.assertNotIn("not requested", text)
        self.assertIn("#SBATCH --cpus-per-task=", text)

    def test_a_site_list_prints_only_what_is_known(self):
        with tempfile.TemporaryDirectory() as config:
            os.makedirs(f"{config}/ddprun/site")
            with open(f"{config}/ddprun/site/mine.ini", "w", encoding="ascii") as f:
                f.write("[site]\nscheduler = pbs\n[partition a]\nnodes = 3\n"
                        "[partition b]\ngpus = 1\ncores = 8\n[partition c]\ncores = 4\n")
            said = self.made("--list-sites", XDG_CONFIG_HOME=config).splitlines()
        self.assertEqual([" ".join(line.split()) for line in said[:4]], [
            f"mine pbs ; {config}/ddprun/site/mine.ini", "a 3 nodes",
            "b nodes with 1 GPU, 8 cores each", "c nodes with 4 cores each"])

    def test_an_option_after_the_program_is_reported(self):
        done = ddprun("--script", "slurm", "./train", "--lr", "0.1", "--submit")
        self.assertEqual(done.returncode, 0)
        self.assertIn("./train --lr 0.1 --submit &\n", done.stdout)
        self.assertRegex(done.stderr, r"^ddprun\b.*'--submit' follows the program and was passed to \./train.*\n$")

    def test_capital_n_has_the_schedulers_meaning(self):
        self.assertIn("--nodes=3\n", self.made("-N", "3", "--script", "slurm", "true"))
        done = ddprun("-N", "3", "--nnodes", "2", "--script", "slurm", "true")
        self.assertIn("-N 3 and --nnodes 2 contradict each other", done.stderr)

    def test_options_for_ranks_reach_the_ddprun_of_the_job(self):
        text = self.made("--script=slurm", "-x", "A=b c", "--preload=torch", "-N", "2", "--report",
                         "--time", "1h", "./train", "x")
        self.assertIn("-x 'A=b c' --preload=torch --report ./train x &", text)

    def test_values_of_other_options_replace_no_option_of_the_script(self):
        events = '--events "$events"'
        for args, options in (
                (["slurm", "--requeue", "--wdir", "events"], [events]),
                (["slurm", "-x", "grace=1"], ["--grace 90s"])):
            for option in options:
                with self.subTest(args=args):
                    self.assertIn(option, self.made("--script", *args, "./train"))
        text = self.made("--script", "sge", "--timeout=5m", "-grace", "9s", "--events", "e", "--requeue",
                         "./train")
        for option in ("--grace 90s", events):
            self.assertNotIn(option, text)
        self.assertIn("# 9 s to save their work", text)

    def test_no_word_of_the_user_becomes_a_directive_or_a_command(self):
        words = ["a\n#$ -q evil\n#SBATCH --evil\n# flux: --evil", "$(touch x)", "it's", "{{nodes}}", "tab\there"]
        for scheduler in ("slurm", "sge", "pbs", "lsf", "flux"):
            text = self.made("--script", scheduler, "echo", *words)
            self.assertNotIn("\n#$ -q evil", text)
            self.assertNotIn("\n#SBATCH --evil", text)
            self.assertNotIn("\n# flux: --evil", text)
            line = next(x for x in text.splitlines() if x.startswith("ddprun "))
            said = subprocess.run(
                ["bash", "-c", 'ddprun() { printf "%s\\0" "$@"; }; log=l; ' + line + "\nwait"],
                stdout=subprocess.PIPE, check=True, text=True).stdout.split("\0")
            self.assertEqual(said[-len(words) - 1:-1], words)

    def test_every_line_that_flux_obeys_is_a_directive(self):
        """Flux reads as one what its RFC 36 says, comments too, and accepts no line that is none."""
        text = self.made("--script", "flux", "--job-name", "flux", "--requeue", "./flux:", "FLUX: x")
        obeyed = [line for line in text.splitlines() if re.match(r"\W*(?:flux|FLUX):", line)]
        self.assertEqual([line for line in obeyed if not line.startswith("# flux: --")], [], text)
        self.assertIn("# flux: --job-name=flux", obeyed)

    def stand_in(self, folder, name, lines):
        with open(f"{folder}/{name}", "w", encoding="utf-8") as out:
            out.write(f"#!/bin/sh\n{lines}\n")
        os.chmod(f"{folder}/{name}", 0o755)

    def test_flux_gets_the_script_on_its_stdin(self):
        with tempfile.TemporaryDirectory(prefix="ddprun-scripts-") as folder:
            self.stand_in(folder, "flux", f'echo "$*" >{folder}/words; cat >{folder}/job.sh; echo ƒ2oV')
            path = f"{folder}:{os.environ['PATH']}"
            self.assertEqual(self.made("--script", "flux", "--submit", "true", PATH=path), "ƒ2oV\n")
            with open(f"{folder}/words", encoding="ascii") as words, \
                    open(f"{folder}/job.sh", encoding="utf-8") as job:
                self.assertEqual(words.read(), "batch\n")
                self.assertTrue(job.read().startswith("#!/bin/bash\n# Job true: 1 rank on 1 node, "))
            self.stand_in(folder, "flux", "echo 'flux-batch: ERROR: Invalid queue' >&2; exit 1")
            done = ddprun("--script", "flux", "--submit", "true", PATH=path)
            self.assertEqual((done.returncode, done.stderr), (
                2, "ddprun: flux refuses the job: flux-batch: ERROR: Invalid queue\n"))

    def test_a_flux_job_submits_itself_to_the_instance_that_runs_it(self):
        """With its own log directory. Flux copies the script when it is submitted: $0."""
        for says, again in ((UNTIL.format(75), True), (UNTIL.format(93), False), ("exit 124", False)):
            with self.subTest(says=says), tempfile.TemporaryDirectory(prefix="ddprun-scripts-") as folder:
                self.stand_in(folder, "flux", "[ $1 = getattr ] && echo parent && exit\n"
                              "echo \"$* $FLUX_URI $DDPRUN_LOG\" >submitted")
                text = self.made("--script", "flux", "--time", "3s", "--warning", "1s", "--requeue", "true")
                done = self.play(folder, text, f"[ -z $DDPRUN_LOG ] || exit 1; {says}", FLUX_URI="own",
                                 FLUX_ENCLOSING_ID="ƒ8", DDPRUN_LOG="logs/true-ƒ7")
                self.assertEqual((done.returncode, os.listdir(f"{folder}/logs")),
                                 (int(re.search(r"exit (\d{2,})", says)[1]), ["true-ƒ7"]), done)
                self.assertEqual(os.path.exists(f"{folder}/submitted"), again, done)
                if again:
                    with open(f"{folder}/submitted", encoding="utf-8") as told:
                        self.assertEqual(told.read(), "batch job.sh parent logs/true-ƒ7\n")

    def play(self, folder, text, ddprun_says, **env):
        """Runs the script in `folder`, where ddprun is two lines of sh."""
        self.stand_in(folder, "ddprun", ddprun_says)
        with open(f"{folder}/job.sh", "w", encoding="ascii") as out:
            out.write(re.sub(r"^export PATH=.*\n", "", text, flags=re.MULTILINE))
        return subprocess.run(
            ["bash", "job.sh"], cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, timeout=100, check=False, text=True,
            env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", **env})

    def test_no_rank_starts_in_a_job_smaller_than_requested(self):
        """Four hosts of four ranks were promised. One host is granted, with 16 slots, as Grid
        Engine does where slots fill hosts up; or four, one of them with fewer GPUs."""
        host = socket.gethostname()
        with tempfile.TemporaryDirectory(prefix="ddprun-scripts-") as folder:
            for name, text in (("pe", f"{host} 16 all.q@{host} UNDEFINED\n"),
                               ("nodes", f"{host}\n" * 16)):
                with open(f"{folder}/{name}", "w", encoding="ascii") as out:
                    out.write(text)
            slurm = {"SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": host, "SLURM_NTASKS": "16",
                     "SLURM_TASKS_PER_NODE": "16", "SLURM_SUBMIT_DIR": folder}
            pbs = {"PBS_JOBID": "1.server", "PBS_ENVIRONMENT": "PBS_BATCH",
                   "PBS_NODEFILE": f"{folder}/nodes", "PBS_O_WORKDIR": folder}
            sge = {"JOB_ID": "1", "SGE_ROOT": "/x", "PE_HOSTFILE": f"{folder}/pe", "NHOSTS": "1"}
            lsf = {"LSB_JOBID": "1", "LSB_MCPU_HOSTS": f"{host} 16"}
            flux = {"FLUX_URI": "x", "FLUX_ENCLOSING_ID": "ƒ1", "FLUX_JOB_ID": ""}
            self.stand_in(folder, "flux", """echo '{"version": 1, "execution": {"nodelist": ["%s"],
                "R_lite": [{"rank": "0", "children": {"core": "0-15", "gpu": "0-3"}}]}}'""" % host)
            few = "--nnodes 4, but the allocation ({}) has 1 host"
            for scheduler, env, line in (
                    ("slurm", slurm, few), ("sge", sge, few), ("pbs", pbs, few), ("lsf", lsf, few),
                    ("flux", flux, few),
                    ("slurm", {**slurm, "SLURM_JOB_NODELIST": f"{host},n[2-4]",
                               "SLURM_TASKS_PER_NODE": "4(x4)", "SLURM_GPUS_PER_NODE": "3"},
                     "4 ranks per node, but '{host}' has 3 slots (SLURM_GPUS_PER_NODE=3)")):
                with self.subTest(scheduler=scheduler, line=line):
                    text = self.made("--script", scheduler, "-N", "4", "--gpus-per-node", "4",
                                     "touch", f"{folder}/started")
                    done = self.play(folder, text, f'exec "{DDPRUN}" "$@"', **env)
                    self.assertIn(line.format(scheduler, host=host), done.stderr)
                    self.assertEqual((done.returncode, done.stderr.count("\n")), (2, 1), done)
                    self.assertFalse(os.path.exists(f"{folder}/started"))
                    shutil.rmtree(f"{folder}/logs")

    def test_a_cancellation_before_the_launch_is_forwarded(self):
        """Between the start in the background and `pid=$!`: bash itself can be made to send
        the signal just there. The log's disk is full."""
        with tempfile.TemporaryDirectory(prefix="ddprun-scripts-") as folder:
            with open(f"{folder}/early", "w", encoding="ascii") as out:
                out.write("trap '[ \"$BASH_COMMAND\" != \"pid=\\$!\" ] || kill -TERM $$' DEBUG\n")
            self.stand_in(folder, "tee", "cat\nexit 1")
            done = self.play(folder, self.made("--script", "slurm", "true"), "exec sleep 60",
                             BASH_ENV="./early", SLURM_SUBMIT_DIR=folder, SLURM_JOB_ID="1")
        self.assertIn("cancelled: stopping the ranks", done.stdout)
        self.assertEqual(done.returncode, 143)

    def test_jobs_of_an_array_have_a_folder_each(self):
        pbs = {"PBS_JOBID": "7[3].server", "PBS_ARRAY_INDEX": "3"}
        for scheduler, env, name in (
                ("sge", {"JOB_ID": "7", "SGE_TASK_ID": "3"}, "7.3"),
                ("sge", {"JOB_ID": "8", "SGE_TASK_ID": "undefined"}, "8"),
                ("lsf", {"LSB_JOBID": "7", "LSB_JOBINDEX": "3"}, "7.3"),
                ("lsf", {"LSB_JOBID": "8", "LSB_JOBINDEX": "0"}, "8"),
                ("pbs", pbs, "7.3"), ("pbs", {"PBS_JOBID": "8.server"}, "8")):
            with self.subTest(scheduler=scheduler, env=env), \
                    tempfile.TemporaryDirectory(prefix="ddprun-scripts-") as folder:
                done = self.play(folder, self.made("--script", scheduler, "-N", "1", "true"),
                                 "exit 5", PBS_O_WORKDIR=folder, **env)
                self.assertEqual((done.returncode, done.stderr), (5, ""))
                self.assertEqual(os.listdir(f"{folder}/logs"), [f"true-{name}"])

    def environment(self, folder, name, hook=None):
        """A folder with a python, and files by which a shell activates it; `hook` is the program whose
        output defines the function `name`."""
        os.makedirs(f"{folder}/env/bin")
        os.makedirs(f"{folder}/env/etc/conda/activate.d")
        for path, text in ((f"{folder}/env/bin/python", "#!/bin/sh\n"),
                           (f"{folder}/env/etc/conda/activate.d/x.sh", "OF_PACKAGE=$UNSET; export OF_PACKAGE\n"),
                           (f"{folder}/{name}", "#!/bin/sh\n" + (hook or ""))):
            with open(path, "w", encoding="ascii") as out:
                out.write(text)
            os.chmod(path, 0o755)

    def test_a_job_enters_the_python_environment_that_was_active(self):
        """Stand-ins for conda and micromamba: programs whose output defines the function that
        activates, as theirs does. pixi has none; a venv is a real one, within conda too."""
        define = ("[ \"$*\" = '{}' ] && echo '{}() {{ [ \"$1\" = activate ] && "
                  "export CONDA_PREFIX=\"$2\" PATH=\"$2/bin:$PATH\"; }}'\n")
        hooks = {"conda": define.format("shell.bash hook", "conda"),
                 "micromamba": define.format("shell hook --shell bash", "micromamba"), "pixi": None}
        for name, hook in hooks.items():
            for inner in (False, True):
                with self.subTest(name=name, inner=inner), \
                        tempfile.TemporaryDirectory(prefix="ddprun scripts-") as folder:
                    self.environment(folder, name, hook)
                    active = {"CONDA_PREFIX": f"{folder}/env", "CONDA_DEFAULT_ENV": "mine",
                              {"conda": "CONDA_EXE", "micromamba": "MAMBA_EXE"}.get(name, "X"):
                              f"{folder}/{name}", "PATH": f"{folder}/env/bin:{os.environ['PATH']}"}
                    if inner:
                        subprocess.run(["python3", "-m", "venv", "--without-pip", f"{folder}/venv"],
                                       check=True)
                        active["VIRTUAL_ENV"] = f"{folder}/venv"
                        active["PATH"] = f"{folder}/venv/bin:" + active["PATH"]
                    text = self.made("--script", "slurm", "python", "train.py", **active)
                    done = self.play(folder, text, "command -v python; echo $CONDA_PREFIX",
                                     SLURM_SUBMIT_DIR=folder, SLURM_JOB_ID="1", **NO_PYTHON)
                self.assertIn(f"conda environment 'mine' ({folder}/env)", text)
                self.assertEqual(done.stdout.split("\n")[:2], [
                    f"{folder}/{'venv' if inner else 'env'}/bin/python", f"{folder}/env"], done)
                self.assertEqual(done.returncode, 0, done.stderr)

    def test_python_without_an_environment_is_reported(self):
        for words, told in ((["python3", "train.py"], True), (["./train.py"], True),
                            (["--modules", "python/3.11", "python3", "train.py"], False),
                            ([sys.executable, "train.py"], False), (["./train"], False)):
            done = ddprun("--script", "slurm", *words)
            self.assertEqual("no Python environment is active here" in done.stderr, told, words)
            self.assertEqual((done.returncode, done.stderr.count("\n")), (0, told))

    def test_a_program_that_is_not_here_is_reported(self):
        for words, path in ((["./trian"], "./trian"), (["trian.sh"], "trian.sh"),
                            (["--wdir", "events", "./trian"], "events/./trian"),
                            (["--wdir", "events", "./train"], None), (["trian"], None), (["-m", "no/such"], None),
                            (["--container", "image.sif", "/opt/train"], None)):
            done = ddprun("--script", "slurm", "--modules", "a", *words)
            self.assertEqual((done.returncode, done.stderr), (
                0, f"ddprun: warning: there is no '{path}' here; the job needs it on its nodes\n" if path else ""))

    def test_only_a_job_that_ran_out_of_time_is_requeued(self):
        """93 means that the program is not to be started again."""
        for scheduler, says, again in (
                ("sge", UNTIL.format(75), True), ("sge", "exit 124", False),
                ("sge", UNTIL.format(93), False), ("lsf", UNTIL.format(143), True),
                ("sge", "exit 99", False), ("lsf", "exit 99", False),
                ("lsf", "exit 124", False), ("slurm", WARNED.format(75), True),
                ("slurm", WARNED.format(93), False), ("slurm", WARNED.format(0), False),
                ("slurm", "exit 124", False)):
            with self.subTest(scheduler=scheduler, says=says), \
                    tempfile.TemporaryDirectory(prefix="ddprun-scripts-") as folder:
                text = self.made("--script", scheduler, "--time", "3s", "--warning", "1s",
                                 "--requeue", "true")
                self.stand_in(folder, "scontrol", 'echo "$@" >requeued')
                done = self.play(folder, text, says, SLURM_JOB_ID="7", SLURM_SUBMIT_DIR=folder,
                                 JOB_ID="7", LSB_JOBID="7")
                requeued = os.path.exists(f"{folder}/requeued") if scheduler == "slurm" \
                    else done.returncode == 99
                self.assertEqual(requeued, again, done)

    def test_the_watch_of_the_scripts_node_starts_with_an_old_slurm(self):
        """srun of 18.08 refuses --overlap, which is of 20.11."""
        with tempfile.TemporaryDirectory(prefix="ddprun-scripts-") as folder:
            self.stand_in(folder, "scontrol", "echo n1; echo n2")
            self.stand_in(folder, "srun",
                          "case $* in *--overlap*) exit 1;; esac; echo $SLURM_OVERLAP $* >watch")
            text = self.made("--site", "tara", "--script", "slurm", "--account", "a", "--partition",
                             "gpu", "-N", "1", "--spares", "1", "true")
            self.play(folder, text, "for i in $(seq 100); do [ -s watch ] && exit; sleep 0.1; done",
                      SLURM_JOB_ID="7", SLURM_JOB_NODELIST="n[1-2]", SLURMD_NODENAME="n1",
                      SLURM_SUBMIT_DIR=folder)
            with open(f"{folder}/watch", encoding="ascii") as told:
                self.assertRegex(told.read(), "^1 -N1 -n1 -w n2 ")

    def test_a_job_that_says_nothing_of_gpus_is_not_moved_to_nodes_without(self):
        done = ddprun("--script", "slurm", "--site", "tara", "--account", "me", "-np", "16", "true")
        self.assertEqual(done.returncode, 2, done)
        self.assertIn("--partition dgx-preempt", done.stderr)

    def test_a_task_of_an_array_requeues_itself_alone(self):
        """The last task's SLURM_JOB_ID is that of the whole array."""
        with tempfile.TemporaryDirectory(prefix="ddprun-scripts-") as folder:
            self.stand_in(folder, "scontrol", 'echo "$@" >requeued')
            self.play(folder, self.made("--script", "slurm", "--requeue", "true"),
                      WARNED.format(75), SLURM_JOB_ID="7",
                      SLURM_ARRAY_JOB_ID="7", SLURM_ARRAY_TASK_ID="3", SLURM_SUBMIT_DIR=folder)
            with open(f"{folder}/requeued", encoding="ascii") as told:
                self.assertEqual(told.read(), "requeue 7_3\n")

    def test_no_code_of_a_program_is_an_order_to_grid_engine(self):
        for code, told in ((99, 1), (100, 1), (98, 98)):
            with tempfile.TemporaryDirectory(prefix="ddprun-scripts-") as folder:
                done = self.play(folder, self.made("--script", "sge", "true"), f"exit {code}",
                                 JOB_ID="7")
                self.assertEqual(done.returncode, told)

    def test_the_scripts_timer_ends_a_job_whatever_its_timeout(self):
        """It counts from the start of the script; ddprun's --timeout from that of the ranks."""
        with tempfile.TemporaryDirectory(prefix="ddprun-scripts-") as folder:
            text = self.made("--script", "pbs", "--time", "3s", "--warning", "1s", "--timeout", "1h", "true")
            done = self.play(folder, text, UNTIL.format(75), PBS_JOBID="7", PBS_O_WORKDIR=folder)
            self.assertIn("time-limit: stopping the ranks", done.stdout)
            self.assertEqual(done.returncode, 75)

    def test_a_second_signal_is_not_forwarded(self):
        """Schedulers send several: to ddprun a later TERM means to kill at once."""
        says = ("trap 'echo term >>terms' TERM; kill -{} $PPID; sleep 1; kill -TERM $PPID; sleep 1; "
                "exit 143")
        for scheduler, first in (("lsf", "INT"), ("flux", "HUP")):
            with self.subTest(scheduler=scheduler), \
                    tempfile.TemporaryDirectory(prefix="ddprun-scripts-") as folder:
                done = self.play(folder, self.made("--script", scheduler, "true"), says.format(first),
                                 LSB_JOBID="7", FLUX_ENCLOSING_ID="ƒ7")
                self.assertEqual(done.stdout.count("cancelled: stopping the ranks"), 2, done)
                with open(f"{folder}/terms", encoding="ascii") as terms:
                    self.assertEqual(terms.read(), "term\n")

    def test_every_script_is_clean(self):
        """bash -n, and shellcheck where it is."""
        asks = [["-N", "2", "--gpus-per-node", "4"], ["-N", "2", "--nproc-per-node", "3"],
                ["-np", "5", "-N", "2"]]
        more = [[], ["--requeue", "--modules", "cuda gcc/12", "--timeout", "20m"],
                ["--requeue=--go on", "--warning", "5m", "--job-name", "x", "--partition", "p"]]
        with tempfile.TemporaryDirectory(prefix="ddprun-scripts-") as folder:
            os.makedirs(f"{folder}/venv/bin")
            with open(f"{folder}/venv/bin/activate", "w", encoding="ascii"):
                pass
            files = []
            sites = [["--site", site, "--script", name, "--account", "a1"] for site, name in (
                ("tara", "slurm"), ("lanta", "slurm"), ("abci2", "sge"), ("abci3", "pbs"))]
            self.environment(folder, "conda", "")
            conda = {"CONDA_PREFIX": f"{folder}/env", "CONDA_EXE": f"{folder}/conda"}
            for name, ask, extra in [
                    *itertools.product([["--script", s] for s in ("slurm", "sge", "pbs", "lsf", "flux")],
                                       asks, more),
                    *((site, ["--gpus-per-node", "1"], ["--requeue"]) for site in sites)]:
                files.append(f"{folder}/{len(files)}.sh")
                with open(files[-1], "w", encoding="utf-8") as out:
                    done = subprocess.run(
                        [DDPRUN, *name, *ask, *extra, "./train", "a b"], stdout=out,
                        stderr=subprocess.PIPE, timeout=120, check=False,
                        env={**os.environ, **NO_PYTHON, "VIRTUAL_ENV": f"{folder}/venv",
                             **(conda if len(files) % 2 else {"CONDA_PREFIX": f"{folder}/env"})})
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertRegex(done.stderr, rb"^(ddprun: warning: ABCI 2.0, AIST was closed in "
                                 rb"October 2024\n)?$")
                with open(files[-1], encoding="utf-8") as made:
                    self.assertNotIn("{{", made.read().replace("-{{id}}.out\n", ""))
                subprocess.run(["bash", "-n", files[-1]], check=True)
            if not shutil.which("shellcheck"):
                self.skipTest("no shellcheck, bash -n only; needs package shellcheck")
            said = subprocess.run(["shellcheck", "--exclude=SC1091", *files], check=False,
                                  stdout=subprocess.PIPE, text=True)
            self.assertEqual((said.returncode, said.stdout), (0, ""))

    REFUSED = [
        (["--script", "slurm", "--min-np", "8", "--max-np", "12", "true"],
         "--min-np and --max-np in a batch script need --nproc-per-node"),
        (["--script", "slurm", "--time", "120", "true"],
         "--time: '120' is minutes for Slurm, LSF and Flux, seconds for Grid Engine and PBS; write "
         "120m, 120s or 120h"),
        (["--script", "torque", "true"], "--script is slurm, sge, pbs, lsf or flux, not 'torque'"),
        (["--submit", "true"],
         "which scheduler? write --script slurm, sge, pbs, lsf or flux, or --site"),
        (["--site", "nowhere", "--submit", "true"], "no site 'nowhere': there are "),
        (["--script", "slurm", "-H", "n1", "true"],
         "-H and a batch script: the scheduler chooses the hosts; leave it out"),
        (["--script", "slurm", "--grow", "now", "true"],
         "--grow and a batch script: the scheduler chooses the hosts; leave it out"),
        (["--script", "slurm", "--job-name", "1st", "true"], "--job-name '1st': a letter, then"),
        (["--script", "slurm", "--warning", "2h", "true"],
         "--warning leaves the program no time of 1h; write --warning 15m"),
        (["--script", "slurm", "-np", "3", "-N", "4", "true"],
         "3 ranks cannot be on 4 nodes; write -N 3"),
        (["--script", "slurm", "--nproc-per-node", "3", "--gpus-per-node", "2", "true"],
         "3 ranks on the 2 GPUs of a node; write --nproc-per-node 2, or --oversubscribe"),
        (["--script", "slurm", "-np", "9", "-N", "2", "--gpus-per-node", "4", "true"],
         "9 ranks on 2 nodes of 4 are too many; write -N 3"),
        (["--script", "slurm", "--requeue=a;b", "true"],
         "--requeue takes plain words for the program, not 'a;b'"),
        *((["--script", "slurm", f"--requeue={words}", "true"],
           f"--requeue takes plain words for the program, not '{words}'")
          for words in ("--from [ab]", "x]", "~/last")),
        (["--script", "slurm", "--time", "2d", "--warning", "20h", "true"],
         "--warning: Slurm takes at most 18h12m15s; write --warning 18h12m15s"),
        (["--script", "sge", "--time", "3m", "--warning", "179s", "true"],
         "--warning leaves the program 1s of 3m; write --warning 45s"),
        (["--script", "slurm", "--warning", "3541s", "true"],
         "--warning leaves the program 59s of 1h; write --warning 15m"),
        (["--script", "slurm", "--time", "3m", "--warning", "3m", "true"],
         "--warning leaves the program no time of 3m; write --warning 45s"),
        (["--script", "slurm", "--grace", "2m", "true"],
         "--grace 2m, but the job is killed 2m after the ranks get SIGTERM; write --warning 2m40s"),
        (["--script", "slurm", "--mem", "64", "true"],
         "--mem: '64' has no unit; write 64M or 64G"),
        (["--script", "slurm", "--account", "a b", "true"], "--account 'a b': ' ' cannot be in it"),
        (["--script", "slurm", "--account", "aé", "true"], "--account 'aé': 'é' cannot be in it"),
        (["--script", "sge", "--mem", "64G", "true"],
         "--mem: site sge does not define how to request memory; leave it out, or write"),
        (["--script", "pbs", "--requeue", "true"],
         "a PBS job that is to go on submits its own script: write it to a file first"),
        (["--script", "slurm", "--submit", "true"],
         "no command 'sbatch' here: submit on a login node, where the scheduler's commands are"),
    ]

    def test_errors_are_one_line(self):
        for args, expected in self.REFUSED:
            with self.subTest(args=args):
                done = ddprun(*args, PATH="/nowhere")
                self.assertEqual((done.returncode, done.stdout), (2, ""))
                self.assertTrue(done.stderr.startswith("ddprun: " + expected), done.stderr)
                self.assertEqual(done.stderr.count("\n"), 1)


if __name__ == "__main__":
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # no shell can trap what nohup lets it ignore
    unittest.main(verbosity=2)
