"""ddprun, and the batch scripts that it makes, in a real Flux over several hosts: skipped where
none is installed, or no Hydra to start its brokers."""

import json
import os
import re
import shutil
import signal
import subprocess

import hosts
from hosts import main, node
from launch import wait_until
from test_scripts import GOES_ON, WAIT, ScriptTest

FLUX = os.environ.get("FLUX_PREFIX", "/opt/flux")
HYDRA = shutil.which("mpiexec.hydra")
NODES = 3
TIME_S = 8  # of a job that Flux itself ends: longer than its ranks need to listen
SAY = "echo rank $RANK/$WORLD_SIZE on $(hostname)"
RESOURCES = ("[resource]\nnoverify = true\n[[resource.config]]\n"
             f'hosts = "node[001-{NODES:03}]"\ncores = "0-3"\ngpus = "0-3"\n')


class Flux(ScriptTest):
    """All tests share one instance of alice's, as its start takes most of the time."""

    @classmethod
    def setUpClass(cls):
        folder = os.path.join(hosts.LAB_HOSTS.folder, "flux")
        os.mkdir(folder)
        os.chmod(folder, 0o777)
        uri = os.path.join(folder, "uri")
        with open(os.path.join(folder, "flux.toml"), "w", encoding="ascii") as conf:
            conf.write(RESOURCES)
        cls.setup = f"export PATH={FLUX}/bin:$PATH"
        cls.instance = subprocess.Popen(
            [hosts.LAB, "exec", "-l", "-u", "alice", node(1), "env", "-C", "/tmp", "bash", "-c",
             f"{cls.setup}; exec {HYDRA} -hosts {','.join(map(node, range(1, NODES + 1)))} -ppn 1 "
             f"-genv PATH $PATH flux start -c {folder}/flux.toml "
             f"sh -c 'echo $FLUX_URI >{uri}.new; mv {uri}.new {uri}; exec sleep inf'"],
            env=hosts.LAB_HOSTS.env, stdin=subprocess.DEVNULL)
        if not wait_until(lambda: os.path.exists(uri), 60):
            raise RuntimeError("Flux does not start")
        with open(uri, encoding="ascii") as text:
            cls.uri = text.read().strip()

    @classmethod
    def tearDownClass(cls):
        cls.instance.terminate()
        cls.instance.wait()

    def alice(self, command, fails=False):
        return super().alice(f"{self.setup} FLUX_URI={self.uri}; {command}", fails)

    def submitted(self, *args):
        said = self.alice(f"{hosts.LAB_HOSTS.ddprun} --script flux --submit {' '.join(args)}")
        self.assertRegex(said, r"^ƒ\w+\n$")
        return said.strip()

    def program(self, name, text):
        os.chmod(self.write(name, f"#!/bin/bash\n{text}"), 0o755)

    def ended(self, job):
        """Its exit code, when it is over."""
        return int(self.alice(f"flux job wait-event -t 90 {job} clean >wait 2>&1 || cat wait\n"
                              f"flux jobs -no '{{returncode}}' {job}"))

    def test_as_many_ranks_as_promised_and_their_exit_code(self):
        self.program("work", f"{SAY} cpus $(nproc)\n[ $RANK != 3 ] || {{ sleep 1; exit 7; }}\nsleep 2\n")
        for args, ranks, nodes, code in (("-N 2 --nproc-per-node 2", 4, 2, 7),
                                         ("-N 3 --gpus-per-node 1", 3, 3, 0),
                                         ("--nproc-per-node 3 --gpus-per-node 0", 3, 1, 0)):
            job = self.submitted(args, "--time 5m ./work")
            self.assertEqual(self.ended(job), code, self.all_said())
            said = self.said(f"work-{job}.out")
            self.assertEqual(len(re.findall(rf"\] rank \d/{ranks} on \w+ cpus 1\n", said)), ranks,
                             said)
            self.assertEqual(len(set(re.findall(r"on (node\d+)", said))), nodes)
            logs = f"logs/work-{job}"
            self.assertEqual(len([x for x in os.listdir(os.path.join(self.folder.name, logs))
                                  if x.endswith(".out")]), ranks)
            self.assertRegex(self.said(f"{logs}/job.log"), f"ended with {code}\n")

    def test_ranks_get_the_gpus_of_their_job_only(self):
        """Another job has two GPUs of one node, so those of this one differ from node to node."""
        other = self.alice("flux submit -N1 -n1 -c2 -g2 sleep 300").strip()
        self.program("work", "echo $(hostname) has $CUDA_VISIBLE_DEVICES\n")
        job = self.submitted("-N 3 --gpus-per-node 2 --time 5m ./work")
        self.assertEqual(self.ended(job), 0, self.all_said())
        resources = json.loads(self.alice(f"flux cancel {other}; flux job info {job} R"))
        held = {}
        for entry in resources["execution"]["R_lite"]:
            first, _, last = entry["rank"].partition("-")
            for rank in range(int(first), int(last or first) + 1):
                held[node(rank + 1)] = entry["children"]["gpu"].replace("-", ",")
        self.assertEqual(sorted(held.values()), ["0,1", "0,1", "2,3"])
        for name, gpus in held.items():
            self.assertEqual(self.said(f"work-{job}.out").count(f"{name} has {gpus}\n"), 2,
                             self.said(f"work-{job}.out"))

    def test_a_job_whose_time_is_over_goes_on_where_it_was(self):
        self.program("work", GOES_ON[len("#!/bin/bash\n"):])
        first = self.submitted("-N 2 --nproc-per-node 1 --time 40s --warning 30s --requeue ./work")
        self.wait_for(f"work-{first}.out", "submitted|ƒ", 60)
        log = f"logs/work-{first}/job.log"
        self.wait_for(log, "ended with 0$", 60)
        self.assertEqual(self.said("saved"), "saved\n")
        self.assertEqual(self.said(log).count(" starts on "), 2, self.said(log))
        self.assertIn("went on", self.alice("cat work-ƒ*.out"))

    def test_a_cancelled_job_asks_its_ranks_first_and_leaves_nothing(self):
        self.program("work", f"trap 'sleep 1; echo saved >>saved; exit 0' TERM\necho up\n{WAIT}")
        job = self.submitted("-N 3 --nproc-per-node 2 --time 5m ./work")
        ups = [f"logs/work-{job}/rank.{rank}.out" for rank in range(6)]
        self.assertTrue(wait_until(lambda: all("up" in self.said(up) for up in ups), 60),
                        self.all_said())
        self.alice(f"flux cancel {job}")
        self.ended(job)
        self.assertEqual(self.said("saved").count("saved"), 6, self.all_said())
        self.assertTrue(wait_until(lambda: not hosts.launch.marked(
            f"{self.folder.name}/work", hosts.LAB_HOSTS.ddprun + "-agent"), 60))

    def test_of_a_launcher_that_is_killed_nothing_is_left(self):
        self.program("work", f"echo up\n{WAIT}")
        job = self.submitted("-N 3 --nproc-per-node 1 --time 5m ./work")
        ups = [f"logs/work-{job}/rank.{rank}.out" for rank in range(3)]
        self.assertTrue(wait_until(lambda: all("up" in self.said(up) for up in ups), 60),
                        self.all_said())
        ours = [pid for pid, line in hosts.launch.marked(self.folder.name).items()
                if line.startswith("ddprun -np ")]
        os.kill(next(pid for pid in ours if hosts.launch.parent_of(pid) not in ours),
                signal.SIGKILL)
        self.assertEqual(self.ended(job), 137, self.all_said())
        self.assertTrue(wait_until(lambda: not hosts.launch.marked(
            f"{self.folder.name}/work", hosts.LAB_HOSTS.ddprun + "-agent"), 60))

    def test_a_job_that_its_ranks_do_not_end_ends_with_its_time(self):
        self.program("work", "trap '' TERM HUP\necho up\nwhile :; do sleep 1; done\n")
        job = self.submitted("-N 2 --nproc-per-node 2 --time 20s --warning 15s --grace 2s ./work")
        self.assertNotEqual(self.ended(job), 0)
        self.assertRegex(self.said(f"work-{job}.out"), "time-limit: stopping the ranks")
        self.assertTrue(wait_until(lambda: not hosts.launch.marked(
            f"{self.folder.name}/work"), 30))

    def test_a_refusal_of_flux_is_one_line(self):
        said = self.alice(f"{hosts.LAB_HOSTS.ddprun} --script flux --submit --partition nosuch true",
                          fails=True)
        self.assertRegex(said, r"^ddprun: flux refuses the job: .*nosuch.*\n$")

    def test_batch_tasks_and_copies(self):
        script = os.path.join(self.folder.name, "script")
        with open(script, "w", encoding="ascii") as f:
            f.write(
                f"cd {self.folder.name}; ddprun={hosts.LAB_HOSTS.ddprun}\n"
                f"$ddprun sh -c '{SAY} uri ${{FLUX_URI-none}}'; echo script $?\n"
                # a task's FLUX_URI is the whole instance: its job has one node
                f"flux run -N1 -n1 $ddprun sh -c '{SAY}'; echo task $?\n"
                f"flux run -N2 -n4 $ddprun sh -c '{SAY}; exit $((RANK / 3 * 7))'; echo copies $?\n"
                f"flux run -o pmi=off -N2 -n2 $ddprun sh -c '{SAY}'; echo no pmi $?\n"
                f"flux alloc -N2 -n2 $ddprun sh -c '{SAY}'; echo alloc $?\n"
                f"flux alloc -N2 -n2 $ddprun --agent /nonesuch true; echo alloc $?\n"
                # two nodes that are one machine
                f"flux start --test-size=2 flux run -N2 -n4 $ddprun sh -c '{SAY}'; echo one $?\n"
                f"late=$(flux submit -t {TIME_S}s -N2 -n2 --output=late $ddprun sh -c "
                "'n=0; trap \"n=\\$((n + 1))\" ALRM; while [ $n = 0 ]; do sleep 0.1; done; sleep 1; "
                "echo alarms $n')\n"
                "job=$(flux submit -N2 -n2 --output=out $ddprun sh -c "
                "'trap \"echo saved; exit 0\" TERM; echo up; while :; do sleep 0.1; done')\n"
                "for i in $(seq 300); do [ \"$(grep -c up out)\" != 2 ] || break; sleep 0.1; done\n"
                "flux cancel $job; flux job wait-event -t 60 $job clean; cat out\n"
                "flux job wait-event -t 60 $late clean; cat late\n")
        said = self.alice("bash script 2>err; cat err >&2")
        parts = re.split(r"^((?:script|task|copies|no pmi|alloc|one) \d+)\n", said, flags=re.MULTILINE)
        self.assertEqual(parts[1::2], ["script 0", "task 0", "copies 7", "no pmi 0", "alloc 0",
                                       "alloc 125", "one 0"], said)
        _, task, copies, no_pmi, _, _, one, ended = parts[::2]
        self.assertRegex(said, rf"rank 0/\d+ on {node(1)} uri local:")
        self.assertRegex(said, rf"rank \d+/\d+ on {node(3)} uri local:\S+/local-2\n")
        self.assertIn(f"rank 0/1 on {node(1)}", task)
        self.assertIn(f"rank 3/4 on {node(2)}", copies)
        self.assertIn(f"rank 1/2 on {node(2)}", no_pmi)
        self.assertIn(f"rank 3/4 on {node(1)}", one)
        self.assertRegex(said, f"cannot start on {node(2)}: the agent '/nonesuch' is not there")
        self.assertEqual((ended.count("saved"), ended.count("alarms 1\n")), (2, 2), said)


setUpModule = hosts.set_up
tearDownModule = hosts.tear_down


if __name__ == "__main__":
    if not HYDRA:
        main("no mpiexec.hydra; needs package mpich")
    main(None if os.access(f"{FLUX}/bin/flux", os.X_OK) else f"no Flux in {FLUX}; needs program Flux")
