"""One world of several ddprun, started by a real srun, mpirun or mpiexec, or by hand."""

import json
import os
import shutil
import signal
import time
import unittest

import hosts
from hosts import LabTest, Remote, main, node
from launch import wait_until

RANKS = ('echo "rank $RANK/$WORLD_SIZE local $LOCAL_RANK/$LOCAL_WORLD_SIZE on $(hostname) '
         'gpus=$CUDA_VISIBLE_DEVICES"')


class Started(LabTest):
    """`start_as` runs ddprun behind another launcher on a host."""

    def start_as(self, starter, *args, host=1, env=None, **how):
        variables = [f"{k}={v}" for k, v in (env or {}).items()]
        ddprun = ["env", *variables, hosts.LAB_HOSTS.ddprun] if variables else [
            hosts.LAB_HOSTS.ddprun]
        launch = Remote.__new__(Remote)
        super(Remote, launch).__init__(
            self.mark, [*starter.split(), *ddprun, *args],
            command=[hosts.LAB, "exec", "-l", "-u", "alice", node(host), "env", "-C",
                     hosts.LAB_HOSTS.folder, f"DDPRUN_TEST_MARK={self.mark}"],
            env=hosts.LAB_HOSTS.env, **how)
        self.launches.append(launch)
        return launch

    def run_as(self, starter, *args, **how):
        launch = self.start_as(starter, *args, **how)
        launch.wait()
        return launch

    def assert_world(self, launch, layout):
        """`layout`: how many ranks on node001, node002, ..."""
        self.assert_ended(launch, 0)
        size, expected = sum(layout), []
        for number, n in enumerate(layout, 1):
            for local in range(n):
                expected.append(f"rank {len(expected)}/{size} local {local}/{n} on {node(number)}")
        said = [line.split("] ", 1)[1].split(" gpus")[0] for line in launch.out.splitlines()]
        self.assertEqual(sorted(said), sorted(expected), launch.err)

    def assert_nobody(self):
        self.assertEqual(hosts.launch.who_is_left(self.mark), {})


@unittest.skipIf(hosts.missing("slurmctld"), hosts.missing("slurmctld"))
class Srun(Started):
    @classmethod
    def setUpClass(cls):
        hosts.LAB_HOSTS("slurm", "up")

    @classmethod
    def tearDownClass(cls):
        hosts.LAB_HOSTS("slurm", "down")

    def test_one_per_node(self):
        launch = self.run_as("srun -p dgx -N3 -n3 --ntasks-per-node=1 --gres=gpu:2", "sh", "-c",
                             RANKS)
        self.assert_world(launch, [2, 2, 2])

    def test_one_per_rank_each_with_a_gpu_of_its_own(self):
        launch = self.run_as("srun -p dgx -N2 -n4 --ntasks-per-node=2 --gpus-per-task=1", "sh",
                             "-c", RANKS)
        self.assert_world(launch, [2, 2])
        self.assertEqual(launch.out.count("gpus=0,1\n"), 4, launch.out)

    def test_one_per_rank_unevenly(self):
        self.assert_world(
            self.run_as("srun -p dgx -N3 -n7 -m plane=5", "sh", "-c", RANKS), [5, 1, 1])

    def test_one_per_rank_on_one_node(self):
        self.assert_world(self.run_as("srun -p dgx -N1 -n3", "sh", "-c", RANKS), [3])

    def test_all_instances_end_with_the_code(self):
        launch = self.run_as("srun -p dgx -N2 -n4 --ntasks-per-node=2", "sh", "-c",
                             "[ $RANK = 2 ] && exit 9; exec sleep 60")
        self.assert_ended(launch, 9)
        self.assertEqual(launch.err.count("Exited with exit code 9"), 2, launch.err)
        self.assertRegex(launch.err, "rank 2 on node[0-9]+ exited with status 9")

    def test_one_that_waits_beside_a_peer_is_killed_and_ends_all(self):
        kill = self.write("kill", "#!/bin/sh\n[ $RANK = 3 ] || exec sleep 60\n"
                          "for p in /proc/[0-9]*; do\n"
                          "  [ \"$(cat $p/comm)\" = ddprun ] && tr '\\0' '\\n' <$p/environ |\n"
                          "  grep -c -e ^SLURM_PROCID=3$ -e ^DDPRUN_TEST_MARK=$DDPRUN_TEST_MARK$ |\n"
                          "  grep -q 2 && kill -9 ${p#/proc/}\ndone 2>/dev/null\nsleep 60\n", 0o755)
        launch = self.run_as("srun -p dgx -N2 -n4 --ntasks-per-node=2", kill)
        self.assertIn("ddprun: an instance of ddprun on node002, which waited", launch.err)
        self.assertIn("task 2: Exited with exit code 125", launch.err)
        self.assert_nobody()

    def test_the_node_that_is_missing_is_named(self):
        said = self.path("said")  # srun ends when the last has ended
        script = self.write("late", "#!/bin/sh\n[ $(hostname) = node002 ] || exec \"$@\"\n"
                            f"until [ -e {said} ]; do sleep 0.1; done\n", 0o755)
        launch = self.start_as(f"srun -p dgx -N3 -n3 --ntasks-per-node=1 {script}",
                               "--start-timeout", "6", "true")
        self.wait_for(launch, "missing: ", "err")
        self.write("said", "")
        launch.wait()
        self.assert_ended(launch, 125)
        self.assertRegex(launch.err, "2 of 3 instances of ddprun .* missing: node002;")

    def test_in_an_order_of_the_users(self):
        path = self.write("order", "node002\nnode001\nnode002\n")
        launch = self.run_as(f"env SLURM_HOSTFILE={path} srun -p dgx -n3 -m arbitrary", "sh",
                             "-c", RANKS)
        self.assert_ended(launch, 0)
        said = sorted(line.split("] ")[1].split(" gpus")[0] for line in launch.out.splitlines())
        self.assertEqual(said, ["rank 0/3 local 0/2 on node002", "rank 1/3 local 1/2 on node002",
                                "rank 2/3 local 0/1 on node001"])

    def test_over_the_parts_of_a_heterogeneous_job(self):
        ddprun = hosts.LAB_HOSTS.ddprun
        script = self.write("say", f"#!/bin/sh\n{RANKS}\n", 0o755)
        launch = self.run_as(
            f"srun -p dgx -N1 -n2 {ddprun} {script} : -p compute -N2 -n2 --ntasks-per-node=1",
            script)
        self.assert_ended(launch, 0)
        said = sorted(line.split("] ")[1].split(" gpus")[0] for line in launch.out.splitlines())
        self.assertEqual([s.split(" on ")[0] for s in said],
                         ["rank 0/4 local 0/2", "rank 1/4 local 1/2", "rank 2/4 local 0/1",
                          "rank 3/4 local 0/1"])
        # a part that runs something else is missed, and not left out
        launch = self.run_as(
            "srun -p dgx -N1 -n1 sleep 3 : -p compute -N2 -n2", "--start-timeout", "2", "true")
        self.assertNotEqual(launch.rc, 0)
        self.assertIn("the head has not been found within 2 s", launch.err)

    def test_the_worker_alone_as_scripts_for_pytorch_start_it(self):
        train = os.path.join(hosts.LAB_HOSTS.bin, "ddp-train")
        launch = Remote.__new__(Remote)
        super(Remote, launch).__init__(
            self.mark, ["srun", "-p", "dgx", "-N2", "-n4", train, "--model", "toy", "--epochs", "1",
                        "--plot", "none", "--check-replicas"],
            command=[hosts.LAB, "exec", "-l", "-u", "alice", "node001", "env",
                     f"DDPRUN_TEST_MARK={self.mark}", "MASTER_ADDR=node001", "MASTER_PORT=29533",
                     "WORLD_SIZE=4"],
            env=hosts.LAB_HOSTS.env)
        self.launches.append(launch)
        launch.wait()
        self.assert_ended(launch, 0)
        self.assertIn("4 alike", launch.out)

    def started(self):
        launch = self.start_as("srun -p dgx -N2 -n4", "sh", "-c", "echo up $SLURM_JOB_ID; sleep 300")
        self.assertTrue(wait_until(lambda: launch.out.count("up ") == 4), launch.err)
        return launch

    def test_scancel_leaves_nobody(self):
        launch = self.started()
        hosts.LAB_HOSTS("exec", "-l", "-u", "alice", "node001", "scancel",
                        launch.out.split()[3])
        launch.wait()
        self.assertNotEqual(launch.rc, 0)
        self.assert_nobody()

    def test_ctrl_c_leaves_nobody(self):
        launch = self.started()
        sruns = [p for p, c in hosts.launch.marked(self.mark).items() if c.startswith("srun")]
        srun, = (p for p in sruns if hosts.launch.parent_of(p) not in sruns)
        os.kill(srun, signal.SIGINT)
        self.wait_for(launch, "one more within 1 sec", "err")
        while "sending Ctrl-C" not in launch.err and launch.process.poll() is None:
            try:
                os.kill(srun, signal.SIGINT)  # two that are less than a second apart
            except ProcessLookupError:
                pass  # ended meanwhile
            time.sleep(0.3)
        launch.wait()
        self.assertIn("sending Ctrl-C", launch.err)
        self.assertNotEqual(launch.rc, 0)
        self.assert_nobody()


@unittest.skipUnless(shutil.which("mpirun.openmpi"), "no Open MPI; needs package openmpi-bin")
class Mpirun(Started):
    ON = "mpirun.openmpi --host node001:2,node002:2,node003:2"

    def test_one_per_node(self):
        launch = self.run_as(f"{self.ON} -np 3 --map-by ppr:1:node", "--nproc-per-node", 2, "sh",
                             "-c", RANKS)
        self.assert_world(launch, [2, 2, 2])

    def test_one_per_rank_from_a_host_that_has_none(self):
        launch = self.run_as(f"{self.ON} -np 4", "sh", "-c", RANKS, host=4)
        self.assert_world(launch, [2, 2])

    def test_all_instances_end_with_the_code(self):
        launch = self.run_as(f"{self.ON} -np 3 --map-by ppr:1:node", "sh", "-c",
                             "[ $RANK = 2 ] && exit 9; exec sleep 60")
        self.assert_ended(launch, 9)
        self.assertIn("rank 2 on node003 exited with status 9", launch.err)
        self.assert_nobody()

    def test_all_cpus_of_a_node_although_mpirun_binds_to_one(self):
        launch = self.run_as(f"{self.ON} -np 2 --map-by ppr:1:node --bind-to core", "sh", "-c",
                             "nproc")
        self.assert_ended(launch, 0)
        self.assertEqual({line.split("] ")[1] for line in launch.out.splitlines()},
                         {str(len(os.sched_getaffinity(0)))})

    def test_several_worlds_are_refused(self):
        launch = self.run_as(f"{self.ON} -np 2", "-H", "node001,node002", "true")
        self.assertNotEqual(launch.rc, 0)
        self.assertIn("has started 2 instances of ddprun (OMPI_COMM_WORLD_SIZE=2)", launch.err)


@unittest.skipUnless(shutil.which("mpiexec.hydra"), "no Hydra; needs package mpich")
class Hydra(Started):
    ON = "mpiexec.hydra -hosts node001,node002,node003"

    def test_one_per_node_and_one_per_rank(self):
        launch = self.run_as(f"{self.ON} -ppn 1 -n 3", "sh", "-c", RANKS)
        self.assert_world(launch, [1, 1, 1])
        launch = self.run_as(f"{self.ON} -ppn 2 -n 4", "sh", "-c", RANKS)
        self.assert_world(launch, [2, 2])


class ByHand(Started):
    def peers(self, n, *args, address, **how):
        return [self.start("--nnodes", n, "--node-rank", k, "--master-addr", address, *args,
                           host=k + 1, **how) for k in reversed(range(n))][::-1]

    def all_end(self, launches, code):
        for launch in launches:
            launch.wait()
            self.assert_ended(launch, code)

    def test_as_sagemaker_starts_it(self):
        """The same command on every host at once; each has a file that says who it is."""
        names = [node(k) for k in (2, 1, 3)]
        def start(k, *args):
            config = self.write(f"config{k}", json.dumps(
                {"current_host": node(k), "hosts": names, "network_interface_name": "eth0"}))
            return self.start(*args, host=k, env={"DDPRUN_RESOURCECONFIG": config,
                                                  "SM_NUM_GPUS": "2"})
        launches = [start(k, "sh", "-c", RANKS) for k in (3, 2, 1)][::-1]
        self.all_end(launches, 0)
        self.assert_world(launches[0], [2, 2, 2])
        self.assertIn("nothing secret is shared by the 3 hosts", launches[0].err)
        self.assertEqual([launch.err for launch in launches[1:]], ["", ""])
        # a stranger's number is one of the job's, his address is not
        head = start(1, "--start-timeout", "7", "true")
        stranger = self.start("--start-timeout", "5", "true", host=4, env={
            "DDPRUN_RESOURCECONFIG": self.path("config2"), "SM_NUM_GPUS": "2"})
        self.all_end([head, stranger], 125)
        self.assertIn("missing: node002, node003", head.err)
        self.assertIn("10.77.0.4", head.err)

    def test_over_another_network(self):
        """Every host has a second network, on which the store and Gloo are wanted."""
        for k in (1, 2, 3):
            hosts.LAB_HOSTS("exec", node(k), "sh", "-c",
                            "ip link add link eth0 name ib0 type macvlan mode bridge && "
                            f"ip addr add 10.88.0.{k}/24 dev ib0 && ip link set ib0 up")
        try:
            say = "echo $MASTER_ADDR $GLOO_SOCKET_IFNAME $NCCL_SOCKET_IFNAME"
            launches = self.peers(3, "--interface", "ib0", "sh", "-c", say, address="10.77.0.1")
            self.all_end(launches, 0)
            self.assertEqual([line.split("] ")[1] for line in launches[0].out.splitlines()],
                             ["10.88.0.1 ib0 ib0"] * 3)
            launch = self.on((2, 3), say, "--interface", "ib0")
            self.assert_ended(launch, 0)
            self.assertEqual([line.split("] ")[1] for line in launch.out.splitlines()],
                             ["10.88.0.2 ib0 ib0"] * 2)
            launch = self.on((2, 3), say, "--interface", "ib7")
            self.assert_ended(launch, 125)
            self.assertIn("network interface 'ib7' is not there", launch.err)
        finally:
            for k in (1, 2, 3):
                hosts.LAB_HOSTS("exec", node(k), "ip", "link", "del", "ib0")

    def test_without_any_names(self):
        """No DNS, and an empty /etc/hosts: not even their own names stand for anything."""
        for k in (1, 2, 3):
            hosts.LAB_HOSTS("exec", node(k), "mount", "--bind", "/dev/null", "/etc/hosts")
        try:
            say = "echo at $MASTER_ADDR $GLOO_SOCKET_IFNAME"
            launches = self.peers(3, "sh", "-c", say, address="10.77.0.1")
            self.all_end(launches, 0)
            self.assertEqual(launches[0].out.count("at 10.77.0.1 eth0\n"), 3, launches[0].out)
            launch = self.run_to_end("-H", "10.77.0.2,10.77.0.3", "sh", "-c", say)
            self.assert_ended(launch, 0)
            self.assertEqual(launch.out.count("at 10.77.0.2 eth0\n"), 2, launch.out)
        finally:
            for k in (1, 2, 3):
                hosts.LAB_HOSTS("exec", node(k), "umount", "/etc/hosts")

    def test_the_users_master_addr(self):
        """Kept in his words where it is rank 0's host, and replaced where it is not."""
        launch = self.on((2, 3), "echo $MASTER_ADDR", env={"MASTER_ADDR": "node002"})
        self.assert_ended(launch, 0)
        self.assertEqual(launch.out.count("] node002\n"), 2, launch.out)
        launch = self.on((2, 3), "echo $MASTER_ADDR", env={"MASTER_ADDR": "localhost"})
        self.assert_ended(launch, 0)
        self.assertEqual(launch.out.count("] 10.77.0.2\n"), 2, launch.out)
        self.assertIn("MASTER_ADDR=localhost is ignored", launch.err)
        # obeyed, as ranks may have a tunnel there
        for option, value, addr in ("--master-addr", "localhost", "localhost"), ("--interface", "lo", "127.0.0.1"):
            launch = self.on((2, 3), "echo $MASTER_ADDR", option, value)
            self.assert_ended(launch, 0)
            self.assertEqual(launch.out.count(f"] {addr}\n"), 2, launch.out)
            self.assertEqual(launch.err, "ddprun: warning: ranks on node003 cannot reach rank 0's host at "
                             f"MASTER_ADDR={addr}: leave out {option}\n")

    def test_one_that_is_cut_off_is_named(self):
        launches = self.peers(3, "--node-timeout", "5s", "sh", "-c", "echo up; sleep 60",
                              address="node001")
        self.assertTrue(wait_until(lambda: launches[0].out.count("up\n") == 3))
        self.fault(2, "link-down")
        try:
            launches[0].wait()
            self.assert_ended(launches[0], 125)
            self.assertIn("node002 is lost", launches[0].err)
        finally:
            self.heal(2)


setUpModule = hosts.set_up
tearDownModule = hosts.tear_down


if __name__ == "__main__":
    main()
