#!/usr/bin/env python3
"""Unmodified MPI programs over several hosts: PMIx and PMI between the agents."""

import glob
import json
import os
import re
import shutil
import signal
import unittest

import hosts
import launch  # found by hosts
import mpi

# of a host: eth0 and a docker0 that is the same everywhere
OVER_HOSTS = {
    **mpi.QUICK, "OMPI_MCA_btl_tcp_if_include": "10.77.0.0/16", "UCX_NET_DEVICES": "eth0",
    "UCX_TLS": "all"
}


setUpModule = hosts.set_up
tearDownModule = hosts.tear_down


class MpiHosts(hosts.LabTest):
    def setUp(self):
        super().setUp()
        self.before = set()
        self.before = self.left()

    def left(self):
        """In any host's /dev/shm, and in the /tmp that they and this machine share: others
        that are at work here come and go, and theirs are gone before long."""
        on_hosts = "".join(
            hosts.LAB_HOSTS("exec", hosts.node(n), "sh", "-c", "ls /dev/shm") for n in (1, 2, 3)
        )
        of_mpi = {name for name in on_hosts.split() if not name.startswith("ddprun-")}  # agents' folders
        return {*of_mpi, *glob.glob("/tmp/ddprun-mpi-*")} - self.before

    def program(self, which):
        if not which.mpicc:
            self.skipTest(f"no {which.name}; needs package libopenmpi-dev libmpich-dev")
        return which.compile(hosts.LAB_HOSTS.folder)

    def check(self, which, where, what, *options, **env):
        return self.run_to_end(
            *where, "--tag-output=off", *options, self.program(which), what,
            env={**OVER_HOSTS, **env}, deadline=120.0,
        )

    def on_two(self, slots=4):
        return ["-H", self.hosts(1, 2, slots=slots)]


@unittest.skipUnless(os.environ.get("DDPRUN_PMIX"), "built without PMIx; needs package libpmix-dev")
class OpenMpi(MpiHosts):
    def tearDown(self):
        super().tearDown()
        left = self.left()
        launch.wait_until(lambda: not left & self.left())
        self.assertEqual(left & self.left(), set())

    def test_everything_is_computed_right(self):
        launched = self.check(mpi.OPENMPI, self.on_two(), "all")
        self.assert_ended(launched, 0)
        self.assertEqual(launched.out, "all ok on 8 ranks, 4 of them here\n")

    def test_ranks_dealt_out_over_three_hosts_of_which_none_is_ours(self):
        where = ["-H", self.hosts(2, 3, 4, slots=2), "--map-by", "node", "-np", 5]
        launched = self.check(mpi.OPENMPI, where, "all")
        self.assert_ended(launched, 0)
        self.assertEqual(launched.out, "all ok on 5 ranks, 2 of them here\n")

    def test_in_a_tree_of_agents(self):
        """Each host's agent is started by the one before: fences are joined on the way."""
        where = ["-H", self.hosts(2, 3, 4, slots=2), "--tree-width", 1]
        launched = self.check(mpi.OPENMPI, where, "all")
        self.assert_ended(launched, 0)
        self.assertEqual(launched.out, "all ok on 6 ranks, 2 of them here\n")

    def test_addresses_on_demand(self):
        launched = self.check(
            mpi.OPENMPI, self.on_two(2), "all",
            OMPI_MCA_pmix_base_async_modex="1", OMPI_MCA_pmix_base_collect_data="0",
        )
        self.assert_ended(launched, 0)

    def spawn(self, what, *options, **env):
        return self.run_to_end(
            *options, "-H", self.hosts(1, slots=1) + "," + self.hosts(2, slots=3), "-np", 2, self.program(mpi.OPENMPI), what,
            env={**OVER_HOSTS, **env}, deadline=120.0)

    def test_ranks_spawn_on_all_hosts(self):
        """On two free slots, and one more; or where the program says."""
        for env, places in (({}, (1, 2, 2)), ({"SPAWN_HOST": hosts.node(2)}, (2, 2, 2))):
            with self.subTest(env):
                launched = self.spawn("spawn-some", "--events", "fd:2", **env)
                self.assert_ended(launched, 0)
                nodes = [e["nodes"] for e in map(json.loads, re.findall("^{.*", launched.err, re.M))
                         if e["event"] == "spawned_start"]
                self.assertEqual(nodes, [[{"host": hosts.node(n), "ranks": places.count(n)}
                                          for n in sorted(set(places))]])
                said = [line.partition("] ")[2] for line in launched.out.splitlines()]
                self.assertEqual(sorted(line for line in said if line.startswith("spawned ")),
                                 [f"spawned {r} of 3 on {hosts.node(n)}" for r, n in enumerate(places)])

    def test_ranks_spawn_inside_a_job_of_slurm(self):
        """By another step beside that of the agents."""
        if hosts.missing("slurmctld"):
            self.skipTest(hosts.missing("slurmctld"))
        hosts.LAB_HOSTS("slurm", "up")
        launched = launch.Launch(
            self.mark, ["salloc", "-Q", "-p", "compute", "-N2", "--ntasks-per-node=2", hosts.LAB_HOSTS.ddprun, "-np", 2,
                        self.program(mpi.OPENMPI), "spawn-some"],
            command=[hosts.LAB, "exec", "-l", "-u", "alice", "node001", "env", "-C", hosts.LAB_HOSTS.folder,
                     f"DDPRUN_TEST_MARK={self.mark}", *(f"{k}={v}" for k, v in OVER_HOSTS.items())],
            env=hosts.LAB_HOSTS.env)
        self.launches.append(launched)
        launched.wait(120.0)
        self.assert_ended(launched, 0)
        first, second, third = sorted(re.findall(r"\] spawned (\d of 3 on \S+)", launched.out))
        self.assertNotEqual(first.split()[-1], second.split()[-1])
        self.assertEqual(second.split()[-1], third.split()[-1])

    def test_a_spawned_rank_that_fails_elsewhere(self):
        launched = self.spawn("spawn-fails")
        self.assert_ended(launched, 7)
        self.assertIn("ddprun: spawned job 1: rank 1 on node002 exited with status 7", launched.err)
        self.assertRegex(launched.err, r"ddprun: rank 0 on node001 spawned '\S+', which failed with exit code 7")

    def test_names_are_published_to_another_host(self):
        launched = self.check(mpi.OPENMPI, self.on_two(1), "names")
        self.assert_ended(launched, 0)

    def test_abort_elsewhere_gives_its_code(self):
        launched = self.check(mpi.OPENMPI, self.on_two(2), "abort")
        self.assert_ended(launched, 42)
        self.assertIn("rank 3 on node002 called MPI_Abort with code 42", launched.err)

    def test_who_dies_or_leaves_elsewhere(self):
        for what, rc, words in (
            ("kill", 137, "rank 3 on node002 died of SIGKILL"),
            ("leave", 1, "rank 3 on node002 exited with status 0 without calling MPI_Finalize"),
        ):
            with self.subTest(what):
                launched = self.check(mpi.OPENMPI, self.on_two(2), what)
                self.assert_ended(launched, rc)
                self.assertIn(words, launched.err)

    def test_the_server_of_a_killed_agent_removes_its_files(self):
        """Of the host whose rank waits for the other one."""
        job = self.start(*self.on_two(1), "sh", "-c", "[ $RANK = 1 ] || exec sleep 100; "
                         f"exec {self.program(mpi.OPENMPI)} ring", env=OVER_HOSTS)
        self.assertTrue(launch.wait_until(lambda: self.left() and any(
            "ddprun-pmix" in line for line in self.on_host(2).values())), job.err)
        agent, = (pid for pid in self.on_host(2)
                  if launch.read_proc(pid, "comm") == b"ddprun-agent\n")
        os.kill(agent, signal.SIGKILL)
        job.wait()
        self.assert_ended(job, 125)  # and tearDown looks for files

    def test_who_never_comes_from_elsewhere(self):
        """No process on its host uses PMIx at all."""
        launched = self.run_to_end(
            *self.on_two(1), "sh", "-c", f"[ $RANK = 1 ] || exec {self.program(mpi.OPENMPI)} ring",
            env=OVER_HOSTS, deadline=120.0)
        self.assert_ended(launched, 1)
        self.assertIn("rank 1 on node002 exited with status 0 without calling MPI_Init, in which "
                      "rank 0 waits for it", launched.err)

    def test_a_rank_that_others_wait_for_in_a_fence(self):
        job = self.start(
            *self.on_two(1), "sh", "-c",
            f"echo up; [ $RANK = 0 ] || sleep 100; exec {self.program(mpi.OPENMPI)} ring",
            cwd=self.folder.name, env=OVER_HOSTS)
        launch.wait_until(lambda: job.out.count("up") == 2)
        self.assertTrue(launch.wait_until(lambda: self.reports(job, "in a PMIx fence")), job.err)
        self.assertRegex(job.err, r"ddprun: hang: rank 0 on node001 waits in a PMIx fence "
                         r"\(PMIx_Fence, as in MPI_Init\); rank 1 on node002 has not come\n")
        job.signal(signal.SIGTERM)
        job.wait()

    def reports(self, job, wanted):
        """Ask for another report; does it say that?"""
        before = job.err.count("the whole report is in")
        job.signal(signal.SIGQUIT)
        launch.wait_until(lambda: job.err.count("the whole report is in") > before)
        return wanted in job.err

    def test_a_host_without_the_server_is_named(self):
        # as if libpmix were not installed: the loader ends with 127
        folder = os.path.join(self.folder.name, "bin")
        shutil.copytree(hosts.LAB_HOSTS.bin, folder)
        self.marks.append(folder)
        with open(os.path.join(folder, "ddprun-pmix"), "w", encoding="ascii") as f:
            f.write("#!/bin/sh\nexit 127\n")
        launched = self.check(
            mpi.OPENMPI, self.on_two(1), "hello", "--agent", os.path.join(folder, "ddprun-agent")
        )
        self.assert_ended(launched, 125)
        self.assertIn("on node002 asks for PMIx, but ddprun-pmix does not run there", launched.err)


class Mpich(MpiHosts):
    def test_they_meet_and_abort(self):
        # it cannot run to its end: MPICH 4.0.2 over UCX may hang in MPI_Finalize between
        # hosts, under any launcher
        launched = self.check(mpi.MPICH, self.on_two(2), "abort")
        self.assert_ended(launched, 42)
        self.assertIn("rank 3 on node002 called MPI_Abort with code 42", launched.err)

    def test_clients_of_both_dialects(self):
        client = os.path.join(hosts.SOURCE, "tests", "system", "programs", "pmi_client.py")
        shutil.copy(client, hosts.LAB_HOSTS.folder)
        for dialect in "12":
            with self.subTest(dialect):
                launched = self.run_to_end(
                    "-H", self.hosts(1, 2, 3, slots=2), "--map-by", "node", "--tag-output=off",
                    "python3", "pmi_client.py", dialect,
                )
                self.assert_ended(launched, 0)
                self.assertEqual(launched.out, "size 6 mapping (vector,(0,3,1))\n")


class Worker(MpiHosts):
    """Our worker under their launchers, over two hosts, without a rendezvous address."""

    def train(self, *launcher):
        launched = launch.Launch(
            self.mark, launcher, env=hosts.LAB_HOSTS.env,
            command=[
                hosts.LAB, "exec", "-l", "-u", "alice", "node001", "env", "-C",
                hosts.LAB_HOSTS.folder, f"DDPRUN_TEST_MARK={self.mark}",
            ],
        )
        self.launches.append(launched)
        launched.wait(120.0)
        self.assert_ended(launched, 0)
        self.assertIn("4 over shm+tcp", launched.out)
        self.assertIn("4 alike", launched.out)

    TRAIN = ("bin/ddp-train", "--model", "toy", "--epochs", "1", "--plot", "none",
             "--check-replicas")

    def test_under_mpirun_and_hydra(self):
        if shutil.which("mpirun.openmpi"):
            self.train("mpirun.openmpi", "-H", "node001:2,node002:2", "-np", 4, *self.TRAIN)
        if shutil.which("mpiexec.hydra"):
            self.train("mpiexec.hydra", "-hosts", "node001,node002", "-ppn", 2, "-n", 4,
                       *self.TRAIN)

    def test_under_srun(self):
        if hosts.missing("slurmctld"):
            self.skipTest(hosts.missing("slurmctld"))
        hosts.LAB_HOSTS("slurm", "up")
        offered = hosts.LAB_HOSTS("exec", "node001", "srun", "--mpi=list")
        for how in ("none", "pmi2", "pmix"):
            with self.subTest(how):
                if how not in offered:
                    self.skipTest(f"srun has no --mpi={how}; needs system Slurm with it")
                self.train("srun", f"--mpi={how}", "-N2", "-n4", *self.TRAIN)


if __name__ == "__main__":
    hosts.main()
