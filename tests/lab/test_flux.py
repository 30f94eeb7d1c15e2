"""ddprun in a real Flux over several hosts: skipped where none is installed, or no Hydra to
start its brokers."""

import os
import re
import shutil

import hosts
from hosts import LabTest, main, node

FLUX = os.environ.get("FLUX_PREFIX", "/opt/flux")
HYDRA = shutil.which("mpiexec.hydra")
NODES = 3
TIME_S = 8  # of a job that Flux itself ends: longer than its ranks need to listen
SAY = "echo rank $RANK/$WORLD_SIZE on $(hostname)"


class Flux(LabTest):
    def test_batch_scripts_tasks_and_copies(self):
        """One instance for all, as its start is what is dear."""
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
        os.chmod(script, 0o644)
        env = {"PATH": f"{FLUX}/bin:{os.environ['PATH']}"}
        names = ",".join(map(node, range(1, NODES + 1)))
        run = hosts.launch.Launch(
            "flux-" + os.path.basename(self.folder.name),
            ["-hosts", names, "-ppn", "1", "-genv", "PATH", env["PATH"], f"{FLUX}/bin/flux",
             "start", "bash", script],
            command=[hosts.LAB, "exec", "-l", "-u", "alice", node(1), "env", "-C", "/tmp",
                     HYDRA], env=hosts.LAB_HOSTS.env)
        run.wait(150)
        said = run.out
        parts = re.split(r"^((?:script|task|copies|no pmi|alloc|one) \d+)\n", said, flags=re.MULTILINE)
        self.assertEqual(parts[1::2], ["script 0", "task 0", "copies 7", "no pmi 0", "alloc 0",
                                       "one 0"], said + run.err)
        _, task, copies, no_pmi, _, one, ended = parts[::2]
        self.assertRegex(said, rf"rank 0/{NODES} on {node(1)} uri local:")
        self.assertIn(f"rank 2/{NODES} on {node(3)} uri none", said)
        self.assertIn(f"rank 0/1 on {node(1)}", task)
        self.assertIn(f"rank 3/4 on {node(2)}", copies)
        self.assertIn(f"rank 1/2 on {node(2)}", no_pmi)
        self.assertIn(f"rank 3/4 on {node(1)}", one)
        self.assertEqual((ended.count("saved"), ended.count("alarms 1\n")), (2, 2), said)


setUpModule = hosts.set_up
tearDownModule = hosts.tear_down


if __name__ == "__main__":
    if not HYDRA:
        main("no mpiexec.hydra; needs package mpich")
    main(None if os.access(f"{FLUX}/bin/flux", os.X_OK) else f"no Flux in {FLUX}; needs program Flux")
