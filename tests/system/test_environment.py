"""What a rank finds in its environment, and what it must not find there."""

import ast
import json
import os
import shutil
import subprocess
import unittest

from launch import DDPRUN, DEADLINE, LaunchTest, main

TRAINER = os.environ.get("DDP_TRAIN")
SHOW = "import json, os; print(json.dumps(dict(os.environ)))"

# of two ranks on one node, rank 1's
WANTED = {
    "RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2",
    "GROUP_RANK": "0", "GROUP_WORLD_SIZE": "1", "NODE_RANK": "0",
    "ROLE_RANK": "1", "ROLE_WORLD_SIZE": "2", "ROLE_NAME": "default",
    "TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_MAX_RESTARTS": "0",
    "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
    "HOROVOD_RANK": "1", "HOROVOD_SIZE": "2", "HOROVOD_LOCAL_RANK": "1",
    "HOROVOD_LOCAL_SIZE": "2", "HOROVOD_CROSS_RANK": "0", "HOROVOD_CROSS_SIZE": "1",
    "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "SLURM_PROCID": "1", "SLURM_LOCALID": "1", "SLURM_NTASKS": "2",
    "SLURM_NNODES": "1", "SLURM_NODEID": "0", "PMI_RANK": "1", "PMI_SIZE": "2",
}

# what launchers around us may have left, and what no rank of ours may see
STALE = {
    "RANK": "7", "WORLD_SIZE": "99", "LOCAL_RANK": "5", "MASTER_ADDR": "elsewhere",
    "MASTER_PORT": "1", "SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_LOCALID": "0",
    "OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4", "PMI_RANK": "8",
    "PMI_SIZE": "9", "PMI_FD": "9", "PMI_PORT": "h:1", "PMIX_RANK": "6",
    "PMIX_NAMESPACE": "n", "TORCHELASTIC_RUN_ID": "stale",
    "TORCHELASTIC_ERROR_FILE": "/stale", "HOROVOD_RANK": "3", "GROUP_RANK": "4",
    "HOROVOD_GLOO_RENDEZVOUS_ADDR": "elsewhere",
}


class Environment(LaunchTest):
    def environments(self, np, *options, **how):
        launch = self.run_to_end("-np", np, *options, "python3", "-c", SHOW, **how)
        self.assert_ended(launch, 0)
        found = {}
        for line in launch.out.splitlines():
            env = json.loads(line[line.index("{"):])
            found[int(env["RANK"])] = env
        self.assertEqual(sorted(found), list(range(np)))
        return found, launch

    def test_what_is_replaced_is_said(self):
        # a batch step's 0 is right for our first rank, and wrong for all others
        launch = self.run_to_end("-v", "-np", 2, "true", env={"SLURM_PROCID": "0"})
        self.assert_ended(launch, 0)
        self.assertIn("SLURM_PROCID replaced ('0')", launch.err)

    def test_the_contract(self):
        found, launch = self.environments(2)
        self.assertEqual({name: found[1].get(name) for name in WANTED}, WANTED)
        for env in found.values():
            self.assertEqual(env["MASTER_ADDR"], found[0]["MASTER_ADDR"])
            self.assertEqual(env["MASTER_PORT"], found[0]["MASTER_PORT"])
            self.assertGreater(int(env["OMP_NUM_THREADS"]), 0)
            self.assertTrue(env["TORCHELASTIC_RUN_ID"])
        self.assertEqual(launch.err, "")

    def test_outer_launchers_are_not_believed(self):
        found, _ = self.environments(2, env=STALE)
        self.assertEqual({name: found[1].get(name) for name in WANTED}, WANTED)
        for name in set(STALE) - set(WANTED):
            self.assertNotEqual(found[1].get(name), STALE[name], name)

    def test_a_nested_launch_is_a_world_of_its_own(self):
        launch = self.run_to_end(
            "-np", 2, "sh", "-c",
            f'echo outer $RANK $MASTER_PORT; [ $RANK = 0 ] || exit 0;'
            f'"{DDPRUN}" -np 3 sh -c \'echo inner $RANK of $WORLD_SIZE at $MASTER_PORT\'',
        )
        self.assert_ended(launch, 0)
        lines = launch.out.splitlines()
        outer = {line.split()[3] for line in lines if " outer " in line}
        inner = [line.split() for line in lines if " inner " in line]
        self.assertEqual(len(outer), 1)
        self.assertEqual(sorted(w[3] for w in inner), ["0", "1", "2"])
        self.assertEqual({w[5] for w in inner}, {"3"})
        self.assertFalse({w[7] for w in inner} & outer)

    def test_the_users_own_master_addr_is_kept_where_it_can_be(self):
        for value, kept in (("localhost", True), ("127.0.0.1", True), ("203.0.113.9", False)):
            found, launch = self.environments(1, env={"MASTER_ADDR": value})
            self.assertEqual(found[0]["MASTER_ADDR"] == value, kept, value)
            self.assertEqual(f"MASTER_ADDR={value} is ignored" in launch.err, not kept)

    def test_the_users_own_variables_arrive(self):
        found, _ = self.environments(2, env={"MY_OWN": "a b\nc", "EMPTY": ""})
        self.assertEqual((found[1]["MY_OWN"], found[1]["EMPTY"]), ("a b\nc", ""))

    def test_x_sets_and_passes(self):
        found, _ = self.environments(
            1, "-x", "NEW=v=w", "-x", "OLD", "-x", "OMP_NUM_THREADS=3", env={"OLD": "o"}
        )
        self.assertEqual(
            (found[0]["NEW"], found[0]["OLD"], found[0]["OMP_NUM_THREADS"]), ("v=w", "o", "3")
        )

    def test_omp_num_threads_of_the_user_stays(self):
        found, _ = self.environments(2, env={"OMP_NUM_THREADS": "5"})
        self.assertEqual(found[0]["OMP_NUM_THREADS"], "5")

    @unittest.skipUnless(os.geteuid() == 0 and shutil.which("unshare"), "control groups of its own; needs root")
    @unittest.skipUnless(TRAINER, "no ddp-train; needs build without sanitizers")
    def test_a_quota_limits_threads(self):
        """Of a rank of ddprun, and of ddp-train alone; 1 CPU in the root of all control groups."""
        fake = ("mount -t tmpfs none /sys/fs/cgroup; cd /sys/fs/cgroup; mkdir cpu; echo 100000 100000 > cpu.max; "
                "echo 100000 | tee cpu/cpu.cfs_quota_us > cpu/cpu.cfs_period_us; unset OMP_NUM_THREADS; "
                '"$0" --steps 1 --plot none && exec "$1" -np 1 sh -c "echo OMP_NUM_THREADS is \\$OMP_NUM_THREADS"')
        out = subprocess.run(["unshare", "-m", "sh", "-c", fake, TRAINER, DDPRUN], check=True, text=True,
                             stdout=subprocess.PIPE, timeout=DEADLINE).stdout
        self.assertIn(", 1 thread per rank", out)
        self.assertIn("OMP_NUM_THREADS is 1\n", out)

    @unittest.skipUnless(os.geteuid() == 0 and shutil.which("unshare"), "namespaces; needs root")
    def test_a_proc_that_does_not_show_the_job_is_refused(self):
        """Its numbers are of other processes here, which must not be signalled."""
        cases = [(["--pid", "--fork"], ":", "shows another PID namespace")]
        if TRAINER:  # else with sanitizers, which need /proc
            cases.append((["--mount"], "mount -t tmpfs none /proc", "is not mounted"))
        for namespaces, first, said in cases:
            launch = self.sh(2, "echo started", command=["unshare", *namespaces, "sh", "-c", f'{first}; exec "$0" "$@"', DDPRUN])
            self.assert_ended(launch, 125)
            self.assertRegex(launch.err, rf"^ddprun: /proc {said}, so [^\n]+\n$")
            self.assertEqual(launch.out, "")

    def test_names_can_be_narrowed(self):
        found, _ = self.environments(1, "--rank-names", "ompi")
        self.assertIn("OMPI_COMM_WORLD_RANK", found[0])
        self.assertNotIn("PMI_RANK", found[0])
        self.assertNotIn("SLURM_PROCID", found[0])

    def test_ranks_have_clean_signals_and_descriptors(self):
        launch = self.run_to_end(
            "-np", 2, "python3", "-c",
            "import os; print(sorted({*map(int, os.listdir('/proc/self/fd'))} - {3}),"
            "[l.split()[1] for l in open('/proc/self/status') if l[:6] in ('SigBlk', 'SigIgn')])",
        )
        self.assert_ended(launch, 0)
        # 3 is what lists them, 62 is for hang reports, 63 is PMI_FD; Python itself ignores SIGPIPE and SIGXFSZ
        for line in launch.out.splitlines():
            self.assertTrue(
                line.endswith(" [0, 1, 2, 62, 63] ['0000000000000000', '0000000001001000']"), line
            )

    def test_python_2_can_read_what_each_rank_reads_first(self):
        """By its syntax, as there may be no Python 2 here; run by hand with 2.7."""
        folder = os.path.join(os.path.dirname(DDPRUN), "preload")
        newer = ("JoinedStr", "AnnAssign", "NamedExpr", "Nonlocal", "YieldFrom", "Starred")
        for name in ("sitecustomize.py", "rank/sitecustomize.py"):
            with open(os.path.join(folder, name), encoding="utf-8") as f:
                nodes = {type(node).__name__ for node in ast.walk(ast.parse(f.read()))}
            self.assertEqual(nodes.intersection(newer), set(), name)


if __name__ == "__main__":
    main()
