#!/usr/bin/env python3
"""The worker under other launchers, without a rendezvous address."""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
import unittest

from launch import DDPRUN, end_all, free_port, marked, wait_until

TRAIN = [os.environ.get("DDP_TRAIN", "ddp-train"), "--model", "toy", "--epochs", "1",
         "--plot", "none", "--check-replicas"]
LAUNCHERS = {
    "mpirun.openmpi": ["--allow-run-as-root", "--oversubscribe", "-np", "4"],
    "mpiexec.hydra": ["-n", "4"],
}


def run(*command, **variables):
    # of a launcher that this test may itself run under
    clean = {
        k: v for k, v in os.environ.items()
        if not k.startswith(("PMI", "OMPI_", "SLURM_", "RANK", "WORLD_SIZE", "MASTER_", "TORCHELASTIC_"))
    }
    return subprocess.run(
        command, env={**clean, **variables}, stdin=subprocess.DEVNULL, capture_output=True,
        text=True, timeout=120, check=False,
    )


class Launchers(unittest.TestCase):
    def test_all_ranks_train_one_model(self):
        for name, options in LAUNCHERS.items():
            with self.subTest(name):
                if not shutil.which(name):
                    self.skipTest(f"no {name}; needs package openmpi-bin mpich")
                done = run(name, *options, *TRAIN)
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
                self.assertRegex(done.stdout, r"4 over shm")
                self.assertIn("4 alike", done.stdout)

    def test_two_groups_and_a_child_that_ends(self):
        for name, options in LAUNCHERS.items():
            if not shutil.which(name):
                continue
            with self.subTest(name):
                done = run(name, *options, os.environ["LAUNCHER_GROUPS"])
                self.assertEqual((done.returncode, done.stdout), (0, "sum 8\n" * 4), done.stderr)

    def test_a_launcher_that_is_stopped_is_waited_for_as_long_as_was_asked(self):
        name = "mpirun.openmpi"  # Hydra's proxy dies of a rank that ends before the proxy's answer
        if not shutil.which(name):
            self.skipTest(f"no {name}; needs package openmpi-bin mpich")
        done = run(name, *LAUNCHERS[name], os.environ["LAUNCHER_GROUPS"], "stop")
        self.assertEqual(done.stdout.count("not all ranks have joined in time\n"), 4, done)

    def test_a_world_other_than_the_launchers_is_refused(self):
        swapped = 'RANK=$((OMPI_COMM_WORLD_SIZE - 1 - OMPI_COMM_WORLD_RANK)) WORLD_SIZE=4; export RANK WORLD_SIZE; '
        larger = "RANK=$PMI_RANK WORLD_SIZE=5; export RANK WORLD_SIZE; "
        for name, world, why in (
                ("mpirun.openmpi", swapped, "this is rank 3 of the group, but rank 0 to PMIx"),
                ("mpiexec.hydra", larger, "PMI_SIZE is 4, but the group is to have 5 ranks")):
            if not shutil.which(name):
                continue
            with self.subTest(name):
                done = run(name, *LAUNCHERS[name], "sh", "-c", world + 'exec "$@"', "sh", *TRAIN)
                self.assertNotEqual(done.returncode, 0)
                self.assertIn(why, done.stdout + done.stderr)

    def test_what_scripts_for_pytorch_export_is_where_rank_0_listens(self):
        port = free_port()
        for name, options in LAUNCHERS.items():
            if not shutil.which(name):
                continue
            for more in ({}, {"MASTER_PORT": str(port)}):  # without one: it chooses its own
                with self.subTest(name, **more):
                    done = run(name, *options, *TRAIN, WORLD_SIZE="4", MASTER_ADDR="localhost",
                               **more)
                    self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
                    self.assertIn("4 alike", done.stdout)

    def test_pytorchs_four_variables_are_enough(self):
        """Where no launcher runs a store rank 0 listens, as with PyTorch."""
        by_hand = 'RANK=1 "$@" & RANK=0 "$@" && wait $!'
        address = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        rank0 = (DDPRUN, "--store", "rank0", "-np", "2")
        for start, variables in ((("sh", "-c", by_hand, "sh"), address), (rank0, {})):
            with self.subTest(start[0]):
                done = run(*start, *TRAIN, "--group-timeout", "30s", **variables)
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
                self.assertIn("2 alike", done.stdout)

    def test_a_rank_that_does_not_come_is_waited_for_as_long_as_was_asked(self):
        name = "mpirun.openmpi"  # Hydra does not end the others when one fails
        late = '[ "$OMPI_COMM_WORLD_RANK" = 1 ] && exec sleep 100; exec "$@"'
        if not shutil.which(name):
            self.skipTest(f"no {name}; needs package openmpi-bin mpich")
        done = run(name, *LAUNCHERS[name], "sh", "-c", late, "sh", *TRAIN, "--group-timeout", "1s")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("not all ranks have joined in time", done.stdout + done.stderr)

    def test_time_in_which_ranks_are_stopped_does_not_count(self):
        """Rank 0 waits for rank 1, and all are stopped for longer than --group-timeout."""
        name, mark = "mpirun.openmpi", f"ddprun-test-{os.getpid()}"
        if not shutil.which(name):
            self.skipTest(f"no {name}; needs package openmpi-bin mpich")
        with tempfile.TemporaryDirectory() as folder:
            go = os.path.join(folder, "go")
            late = (f'[ "$OMPI_COMM_WORLD_RANK" = 1 ] && until [ -e {go} ]; do sleep 0.02; done; '
                    'exec "$@"')
            with subprocess.Popen(
                    [name, *LAUNCHERS[name], "sh", "-c", late, "sh", *TRAIN, "--group-timeout", "10s"],
                    env={**os.environ, "MARK": mark}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT, text=True) as job:
                self.addCleanup(end_all, mark)

                def waiting():  # the other three, each with its threads
                    ranks = [p for p, line in marked(mark).items() if line.startswith(TRAIN[0])]
                    return sum(len(os.listdir(f"/proc/{p}/task")) > 1 for p in ranks) == 3

                self.assertTrue(wait_until(waiting), marked(mark))
                ours = [pid for pid, line in marked(mark).items() if TRAIN[0] in line]
                for signum in (signal.SIGSTOP, signal.SIGCONT):
                    for pid in ours:
                        os.kill(pid, signum)
                    if signum == signal.SIGSTOP:
                        time.sleep(11)
                with open(go, "x", encoding="utf-8"):
                    pass
                said = job.communicate(timeout=120)[0]
        self.assertEqual(job.returncode, 0, said)
        self.assertIn("4 alike", said)

    def test_a_full_disk_under_its_help_is_a_failure(self):
        with open("/dev/full", "w", encoding="ascii") as full:
            done = subprocess.run([TRAIN[0], "--help"], stdout=full, stderr=subprocess.PIPE,
                                  text=True, timeout=120, check=False)
        self.assertEqual((done.returncode, done.stderr), (
            1, "ddp-train: cannot write to stdout: No space left on device\n"))

    def test_a_descriptor_that_is_closed_is_said(self):
        for descriptor in "41", "x":
            done = run(*TRAIN, PMI_FD=descriptor, PMI_RANK="0", PMI_SIZE="2")
            self.assertEqual(done.returncode, 1)
            self.assertIn(f"PMI_FD is '{descriptor}', but that descriptor is closed", done.stderr)

    def test_a_pmi_that_gives_something_else(self):
        """To the address that rank 0 has put."""
        for value in "", " value=" + "x" * 300:
            ours, theirs = socket.socketpair()
            answers = {"init": "response_to_init rc=0", "get_my_kvsname": "my_kvsname kvsname=k",
                       "barrier_in": "barrier_out", "get": "get_result rc=0" + value, "finalize": "finalize_ack"}

            def serve(wire=theirs, answers=answers):
                with wire, wire.makefile("rw") as lines:
                    for line in lines:
                        print("cmd=" + answers[line.split()[0][len("cmd="):]], file=lines, flush=True)

            server = threading.Thread(target=serve)
            server.start()
            with ours:
                done = subprocess.run(
                    TRAIN, env={**os.environ, "RANK": "1", "WORLD_SIZE": "2", "PMI_FD": str(ours.fileno())},
                    pass_fds=[ours.fileno()], capture_output=True, text=True, timeout=120, check=False)
            server.join()
            self.assertIn("the launcher's PMI does not give what rank 0 has put", done.stderr)

    def test_a_libpmix_that_cannot_be_used_is_said(self):
        with tempfile.TemporaryDirectory() as folder:
            library = os.path.join(folder, "libpmix.so.2")
            with open("/proc/self/maps", encoding="utf-8") as maps:
                another = next(line.split()[-1] for line in maps if "/libc.so." in line)
            for content, why in (("/dev/null", "libpmix.so.2 is not to be had here"),
                                 (another, "libpmix.so.2 has no PMIx_")):
                os.symlink(content, library)
                done = run(*TRAIN, RANK="0", WORLD_SIZE="2", PMIX_NAMESPACE="none", LD_LIBRARY_PATH=folder)
                os.unlink(library)
                self.assertEqual(done.returncode, 1)
                self.assertRegex(done.stderr, f"{why}|offers PMIx, which is not built")

    def test_a_pmix_that_does_not_answer_is_said(self):
        done = run(
            *TRAIN, RANK="0", WORLD_SIZE="2", PMIX_NAMESPACE="none", PMIX_RANK="0",
            PMIX_SERVER_URI41="none.0;tcp4://127.0.0.1:1", PMIX_SECURITY_MODE="native",
            PMIX_BFROP_BUFFER_TYPE="PMIX_BFROP_BUFFER_NON_DESC", PMIX_GDS_MODULE="hash",
        )
        self.assertNotEqual(done.returncode, 0)
        self.assertRegex(done.stderr, "PMIx does not let us in: |offers PMIx, which is not built")

    def test_a_pmix_that_is_stopped_is_waited_for_as_long_as_was_asked(self):
        with socket.create_server(("127.0.0.1", 0)) as server:
            done = run(
                *TRAIN, "--group-timeout", "1s", RANK="0", WORLD_SIZE="2", PMIX_NAMESPACE="none", PMIX_RANK="0",
                PMIX_SERVER_URI41=f"none.0;tcp4://127.0.0.1:{server.getsockname()[1]}",
                PMIX_SECURITY_MODE="native", PMIX_BFROP_BUFFER_TYPE="PMIX_BFROP_BUFFER_NON_DESC",
                PMIX_GDS_MODULE="hash",
            )
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, "PMIx does not let us in: it does not answer|offers PMIx, which is not built")

    STEP = {"SLURM_JOB_ID": str(os.getpid()), "SLURM_STEP_ID": "3", "SLURM_STEP_NUM_TASKS": "2",
            "SLURM_STEP_NODELIST": "localhost,nowhere.invalid"}

    def start_in_step(self, rank, *options, **step):
        step = {**self.STEP, "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank), **step}
        rank = subprocess.Popen([*TRAIN, *options], env={**os.environ, **step}, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, text=True)
        self.addCleanup(rank.kill)
        return rank

    def test_each_step_of_slurm_has_a_port_of_its_own(self):
        steps = ({}, {"SLURM_STEP_ID": "4"}, {"SLURM_JOB_ID": str(os.getpid() + 1)})
        nodes = {"SLURMD_NODENAME": "localhost"}, {"SLURMD_NODENAME": "nowhere.invalid"}
        ranks = [self.start_in_step(r, **step, **nodes[r]) for r in range(2) for step in steps]
        said = [rank.communicate(timeout=120)[0] for rank in ranks]
        self.assertEqual([rank.returncode for rank in ranks], [0] * 6, said)
        for text in said[:3]:
            self.assertIn("2 alike", text)

    def test_a_rank_of_another_step_with_the_same_port_is_refused(self):
        ranks = [self.start_in_step(0)]
        # 750 * 16 is the number of ports
        other = self.start_in_step(1, "--group-timeout", "2s", SLURM_JOB_ID=str(os.getpid() + 750))
        said = other.communicate(timeout=120)[0]
        self.assertIn("is not rank 0 of this group", said)
        ranks.append(self.start_in_step(1))
        said = [rank.communicate(timeout=120)[0] for rank in ranks]
        self.assertEqual([rank.returncode for rank in ranks], [0, 0], said)

    def test_a_step_of_slurm_that_does_not_say_where_rank_0_is(self):
        for step, why in (
                ({"SLURMD_NODENAME": "elsewhere"}, "rank 0 runs on elsewhere, which is not the first host"),
                ({"SLURM_STEP_NODELIST": ""}, "SLURM_STEP_NODELIST '' has no host")):
            done = run(*TRAIN, **{**self.STEP, **step, "SLURM_PROCID": "0"})
            self.assertEqual(done.returncode, 1)
            self.assertIn(why, done.stderr)
        for name in "SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_STEP_NODELIST":
            step = {k: v for k, v in self.STEP.items() if k != name}
            done = run(*TRAIN, RANK="0", WORLD_SIZE="2", **step)
            self.assertIn("MASTER_ADDR is not set: rank 0 of 2 does not know where", done.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
