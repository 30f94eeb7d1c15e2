"""`srun --ddp` in a real Slurm: the plugin makes ranks of a step's tasks. Run as part of
test_transports.py, or alone."""

import os
import re
import shutil
import subprocess
import threading
import unittest

import hosts
import test_sched
from hosts import main
from launch import wait_until

SHOW = ('echo "$RANK/$WORLD_SIZE local $LOCAL_RANK/$LOCAL_WORLD_SIZE node $NODE_RANK cross '
        '$HOROVOD_CROSS_RANK/$HOROVOD_CROSS_SIZE at $MASTER_ADDR:$MASTER_PORT in '
        '$TORCHELASTIC_RUN_ID store $TORCHELASTIC_USE_AGENT_STORE"')
PROGRAM = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
x = torch.ones(4) * dist.get_rank()
dist.all_reduce(x)
print("sum", x[0].item(), "of", dist.get_world_size(), flush=True)
dist.barrier()
dist.destroy_process_group()
"""


class Spank(test_sched.JobTest):
    @classmethod
    def setUpClass(cls):
        test_sched.set_up("slurm", "slurmctld")
        if not os.environ.get("DDPRUN_SPANK"):
            raise unittest.SkipTest("the plugin was not built (no slurm/spank.h, or for sanitizers)")
        for name in ("DDPSTORED", "DDPRUN_SPANK"):
            shutil.copy(os.environ[name], hosts.LAB_HOSTS.bin)
        cls.configure(os.path.join(hosts.LAB_HOSTS.bin, "ddpstored"))

    @staticmethod
    def configure(stored):
        """What an administrator writes; no daemon is restarted."""
        lab = hosts.LAB_HOSTS
        with open(os.path.join(lab.folder, "state/etc/slurm/plugstack.conf.d/ddprun.conf"), "w",
                  encoding="utf-8") as f:
            f.write(f"optional {lab.bin}/ddprun_spank.so ddpstored={stored}\n")

    def tearDown(self):
        """Whatever went wrong, no node is drained."""
        super().tearDown()
        states = hosts.LAB_HOSTS("exec", "node001", "sinfo", "-h", "-o", "%T")
        self.assertNotIn("drain", states)

    def srun(self, command):
        """What one srun says, without a script around it."""
        mark = "spank-" + os.path.basename(self.folder.name)
        self.marks.append(mark)
        return hosts.LAB_HOSTS("exec", "-l", "-u", self.user, "node001", "sh", "-c",
                               f"cd / && export DDPRUN_TEST_MARK={mark} && {command} 2>&1 || true")

    def stores(self):
        return [line for line in hosts.launch.marked(hosts.LAB_HOSTS.bin).values()
                if "ddpstored --port" in line]

    def client(self):
        """A program that prints how many bytes the store at its arguments answers. As PyTorch's, it
        tries again until the store listens: tasks of other nodes than its own may be earlier."""
        os.chmod(self.folder.name, 0o755)
        return self.write("connect.py", (
            "import socket, sys, time\n"
            "end = time.monotonic() + 40\n"
            "s = None\n"
            "while not s:\n"
            "    try:\n"
            "        s = socket.create_connection((sys.argv[1], int(sys.argv[2])), 20)\n"
            "    except ConnectionRefusedError:\n"
            "        if time.monotonic() > end: raise\n"
            "        time.sleep(0.1)\n"
            "try:\n"
            "    s.sendall(bytes.fromhex('00cef7853c0d34120000'))\n"
            "    print('answered', len(s.recv(4)))\n"
            "except ConnectionError:\n"
            "    print('answered 0')\n"))

    def test_ranks_of_an_uneven_step(self):
        said = self.srun(f"srun --ddp -p dgx -N2 -n3 sh -c '{SHOW}; sleep 0.5' & sleep 0.3; wait")
        found = sorted(re.findall(r"^(.*) at (\S+) in (\S+) store True$", said, re.M))
        self.assertEqual([f[0] for f in found], [
            "0/3 local 0/2 node 0 cross 0/2", "1/3 local 1/2 node 0 cross 0/1",
            "2/3 local 0/1 node 1 cross 1/2"], said)
        self.assertEqual(len({f[1:] for f in found}), 1, said)
        self.assertRegex(found[0][1], r"^node001:\d+$")
        self.assertRegex(found[0][2], r"^slurm-\d+\.0$")
        self.assertTrue(wait_until(lambda: not self.stores()), self.stores())

    def test_one_task_has_its_port_for_itself(self):
        show = 'echo "store $TORCHELASTIC_USE_AGENT_STORE $DDPRUN_STORE_PORT at $MASTER_ADDR:$MASTER_PORT"'
        said = self.srun(f"srun --ddp -p dgx -n1 sh -c '{show}; "
                         f"python3 {self.client()} $MASTER_ADDR ${{DDPRUN_STORE_PORT%@*}}'")
        self.assertRegex(said, r"store False \d+@(node\d+:\d+) at \1\n")
        self.assertIn("answered 4\n", said)
        said = self.srun(f"srun --ddp=open -p dgx -n1 sh -c '{show}'")
        self.assertRegex(said, r"store True  at node")

    def test_nothing_else_is_touched(self):
        names = "env | grep -E \"^(RANK|WORLD_SIZE|MASTER_|TORCHELASTIC)\""
        said = self.submit(
            "sbatch --ddp -p dgx -N2 -n2 -o {out} {script}",
            f"echo batch; {names}\necho step\n"
            f"srun sh -c 'echo rank $RANK; {names} | grep -c . >/dev/null'\n"
            "MASTER_PORT=23456 srun sh -c 'echo own $RANK:$MASTER_PORT'\n"
            "srun -n1 --overlap sh -c 'srun --overlap -N2 -n2 sh -c \"echo inner "
            "\\$RANK \\$MASTER_PORT\"; echo outer $MASTER_PORT'\necho done")
        self.wait_for("done\n")
        said = self.said()
        self.assertIn("batch\nstep\n", said)
        for rank in range(2):
            self.assertIn(f"rank {rank}\n", said)
            self.assertIn(f"own {rank}:23456\n", said)
        outer = re.search(r"outer (\d+)", said)[1]
        inner = set(re.findall(r"inner \d (\d+)", said))
        self.assertEqual(len(inner), 1, said)
        self.assertNotIn(outer, inner)
        self.assertEqual(self.srun("srun -Q -p dgx -N2 -n2 sh -c 'echo [$RANK$MASTER_PORT]'"), "[]\n[]\n")
        said = self.srun("salloc -Q -p dgx -N1 --ddp sh -c 'echo front [$RANK]'")
        self.assertIn("front []\n", said)

    def test_rank_0_elsewhere_and_components(self):
        order = os.path.join(self.folder.name, "order")
        with open(order, "w", encoding="utf-8") as f:
            f.write("node003\nnode001\nnode002\n")
        said = self.srun(f"SLURM_HOSTFILE={order} srun --ddp -p dgx -n3 -m arbitrary "
                         f"sh -c '{SHOW}'")
        self.assertEqual(len(re.findall(r"/3 .* at node003:\d+ ", said)), 3, said)
        done = os.path.join(self.folder.name, "done")
        os.mkdir(done)
        os.chmod(done, 0o777)  # the store ends with its node's tasks: they wait for the others
        said = self.srun("salloc -Q -p dgx -N1 -n2 : -p compute -N2 -n2 "
                         f"srun --ddp --het-group=0,1 sh -c '{SHOW}; "
                         f"python3 {self.client()} $MASTER_ADDR $MASTER_PORT; : >{done}/$RANK; "
                         f"until [ $(ls {done} | wc -l) = 4 ]; do sleep 0.1; done'")
        self.assertEqual(len(re.findall(r"^\d/4 ", said, re.M)), 4, said)
        self.assertEqual(len(set(re.findall(r" at (\S+ in \S+)", said))), 1, said)
        self.assertEqual(said.count("answered 4"), 4, said)

    def test_without_its_store(self):
        """A busy port, no ddpstored: said, and rank 0 is told to make its own."""
        said = self.srun(
            f"port={self.folder.name}/port; {hosts.LAB_HOSTS.bin}/ddpstored --port 23457 >$port & "
            "until [ -s $port ]; do sleep 0.05; done; "
            f"MASTER_PORT=23457 srun --ddp -p dgx -N2 -n2 sh -c '{SHOW}'; kill $!; wait")
        self.assertRegex(said, "ddprun: no store on port 23457: .*in use.*rank 0 will create one")
        self.assertRegex(said, "0/2 .* store False")
        self.assertRegex(said, "1/2 .* store True")
        self.configure("/nonesuch/ddpstored")
        try:
            said = self.srun(f"srun --ddp -p dgx -N2 -n2 sh -c '{SHOW}'")
        finally:
            self.configure(os.path.join(hosts.LAB_HOSTS.bin, "ddpstored"))
        self.assertRegex(said, "ddprun: no store on port .*cannot run '/nonesuch/ddpstored'")
        self.assertEqual(len(re.findall("/2 local", said)), 2, said)

    def test_strangers_are_refused(self):
        """Another host, and another user of the store's host; unless it is open."""
        connect = self.client()
        for option, lengths in (("--ddp", [0, 0, 4]), ("--ddp=open", [4, 4, 4])):
            with self.subTest(option):
                said, go = [], os.path.join(self.folder.name, f"go{option}")
                step = threading.Thread(target=lambda: said.append(self.srun(
                    f"srun {option} -p dgx -N2 -n2 sh -c "
                    f"'until [ -e {go} ]; do sleep 0.1; done; echo done $RANK'")))
                step.start()
                self.assertTrue(wait_until(self.stores))
                port = re.search("--port ([0-9]+)", self.stores()[0]).group(1)
                where = [("root", "node003"), ("daemon", "node001"), (self.user, "node002")]
                try:
                    got = [int(hosts.LAB_HOSTS("exec", "-u", user, host, "/usr/bin/python3", connect,
                                               "node001", port).split()[-1])
                           for user, host in where]
                finally:
                    self.write(os.path.basename(go), "")
                    step.join()
                self.assertEqual(got, lengths, said)
                self.assertIn("done 1", said[0])
                self.assertEqual("refused a connection from" in said[0], option == "--ddp", said[0])

    def test_cancelled(self):
        self.submit("sbatch -p dgx -N2 -n2 -o {out} {script}",
                    "srun --ddp sh -c 'echo up; sleep 300'")
        self.wait_for("up\n", 2)
        self.assertEqual(len(self.stores()), 1)
        hosts.LAB_HOSTS("exec", "-l", "-u", "alice", "node001", "scancel", self.answer.split()[-1])
        self.assert_nobody()
        self.assertTrue(wait_until(lambda: not self.stores()), self.stores())

    def test_the_bundled_trainer(self):
        said = self.srun(f"srun --ddp -p dgx -N2 -n4 {hosts.LAB_HOSTS.bin}/ddp-train --plot none "
                         "--check-replicas")
        self.assertIn("4 over shm+tcp", said)
        self.assertIn("4 alike", said)

    def test_a_pytorch_program_as_it_is(self):
        program = os.path.join(self.folder.name, "program.py")
        with open(program, "w", encoding="utf-8") as f:
            f.write(PROGRAM)
        os.chmod(program, 0o644)
        made = subprocess.run(
            [os.path.join(hosts.SOURCE, "tests/interop/torch-env.sh")],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False,
        ).stdout.strip()
        # Debian 13's own has no libuv, and so no store
        has_torch = ("-c 'from torch.distributed import TCPStore as T; "
                     "T(\"127.0.0.1\", 0, is_master=True, wait_for_workers=False); print(\"yes\")'")
        for self.user, python in (("alice", "/usr/bin/python3"), ("alice", made), ("root", made)):
            if python and "yes" in self.srun(f"{python} {has_torch}").splitlines():
                break
        else:
            self.skipTest("no PyTorch that a user of the lab can read; needs torch")
        self.submit("sbatch -p dgx -N2 -n4 -o {out} {script}", f"srun --ddp {python} {program}\n"
                    "echo done")
        # importing it takes its time on a busy machine
        self.wait_for("done\n", deadline=200)
        self.assertEqual(self.said().count("sum 6.0 of 4\n"), 4, self.said())


setUpModule = hosts.set_up
tearDownModule = hosts.tear_down

if __name__ == "__main__":
    main()
