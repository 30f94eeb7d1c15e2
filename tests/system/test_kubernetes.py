"""The environments of pods of the MPI operator and of Kubeflow Trainer: ddprun, and nothing else.

They are recorded in tests/launcher/recorded/kubernetes, whose README names their sources."""

import os
import re
import tempfile

from launch import LaunchTest, free_port, main

RECORDED = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "launcher", "recorded", "kubernetes")
MPI_PODS = ("mpi-operator-openmpi", "mpi-operator-mpich", "mpi-operator-intel", "trainer-mpi")
MOUNTED = "/etc/mpi/hostfile"
SECRET = "secret-of-this-job-0123456789abcdef"
SAY = 'echo "rank $RANK/$WORLD_SIZE local $LOCAL_RANK/$LOCAL_WORLD_SIZE"'


def recorded(name):
    with open(os.path.join(RECORDED, name), encoding="ascii") as f:
        return f.read()


class Pods(LaunchTest):
    def pod(self, name, hostfile=None, **change):
        """Its variables; its hostfile is not where only root could write it."""
        env = dict(line.split("=", 1) for line in recorded(name + ".env").splitlines())
        if hostfile:
            path = self.write("hostfile", hostfile)
            env = {k: path if v == MOUNTED else v for k, v in env.items()}
        return {**env, **change}

    def ranks(self, launches):
        said = []
        for launch in launches:
            launch.wait()
            self.assert_ended(launch, 0)
            said += [line.split("] ", 1)[1] for line in launch.out.splitlines()]
        return sorted(said)

    def test_the_plan_has_the_workers_of_the_hostfile(self):
        for name in MPI_PODS:
            with self.subTest(name):
                hosts = recorded(name + ".hostfile")
                names = re.findall(r"(?m)^([\w.-]+)[: ]", hosts)
                launch = self.run_to_end("--dry-run", "train", env=self.pod(name, hosts))
                self.assert_ended(launch, 0)
                self.assertIn("hosts: 2 from mpi-hostfile\n", launch.out)
                self.assertIn("\nranks: 4 on 2 hosts ", launch.out)
                for host in names:  # full names, by ssh, which tries as often as mpirun's would
                    self.assertRegex(launch.out, rf"ssh -o ConnectionAttempts=10 .*\b{re.escape(host)}\b")

    def test_arguments_for_ssh_are_those_of_the_hostfile(self):
        env = self.pod("mpi-operator-openmpi", recorded("mpi-operator-openmpi.hostfile"))
        for options, command in ((("--ssh", "ssh -v"), "ssh -v "), (("-H", "a.b:1"), "ssh "),
                                 (("--hostfile", env["OMPI_MCA_orte_default_hostfile"]), "ssh ")):
            with self.subTest(options):
                launch = self.run_to_end(*options, "--dry-run", "train", env=env)
                self.assert_ended(launch, 0)
                self.assertIn(f": {command}", launch.out)
                self.assertNotIn("ConnectionAttempts", launch.out)

    def test_ranks_start_on_the_hosts_of_the_hostfile(self):
        for name in MPI_PODS:
            with self.subTest(name):
                host = re.sub(r"\A[\w.-]+([: ].*)\n[^\0]*", r"localhost\1\n", recorded(name + ".hostfile"))
                launch = self.start("sh", "-c", SAY, env=self.pod(name, host))
                self.assertEqual(self.ranks([launch]), [f"rank {r}/2 local {r}/2" for r in range(2)])

    def torch_pods(self, **secret):
        """Both; each has a home of its own."""
        port = str(free_port())
        return [self.start("sh", "-c", SAY, env=self.pod(
            f"trainer-torch.{pod}", PET_MASTER_ADDR="127.0.0.1", PET_MASTER_PORT=port,
            HOME=tempfile.mkdtemp(dir=self.folder.name), **secret)) for pod in range(2)]

    def test_pods_of_trainer_s_torch_runtime(self):
        """The secret comes from the environment, or from a file that is mounted, by way of a link."""
        os.symlink(self.write("data", SECRET + "\n"), self.path("key"))
        os.chmod(self.path("data"), 0o400)
        for secret in ({"DDPRUN_KEY": SECRET}, {"DDPRUN_OPTIONS": f"--peer-key {self.path('key')}"}):
            with self.subTest(secret):
                self.assertEqual(self.ranks(self.torch_pods(**secret)),
                                 [f"rank {r}/4 local {r % 2}/2" for r in range(4)])

    def test_pods_without_a_secret_end_at_once(self):
        for launch in self.torch_pods():
            launch.wait()
            self.assert_ended(launch, 125)
            self.assertRegex(launch.err, r"\Addprun: .* the same DDPRUN_KEY from a Secret .*\n\Z")

    def test_pods_that_share_a_directory_need_no_secret(self):
        launches = self.torch_pods(DDPRUN_OPTIONS=f"--peer-key {self.folder.name}")
        self.assertEqual(self.ranks(launches), [f"rank {r}/4 local {r % 2}/2" for r in range(4)])

    def test_variables_are_shown_as_the_origin_of_options(self):
        launch = self.run_to_end("--dry-run", "train", env=self.pod("trainer-torch.0"))
        self.assert_ended(launch, 0)
        self.assertRegex(launch.out, r"PET_\*: .*--nnodes=2")


if __name__ == "__main__":
    main()
