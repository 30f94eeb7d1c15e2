"""Several hosts on one machine: namespaces with sshd, made by the lab script.

The launcher and its agent are copied to a folder that every user of every host can read;
the folder's name stands in the command lines of all agents and, with the mark in the
environment of all ranks, shows from outside which are alive on any host.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "system"))
import launch  # noqa: E402

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
LAB = os.path.join(SOURCE, "tests", "lab", "lab")

HOSTS = 8
# the daemons of schedulers: their names, and Debian's packages
DAEMONS = {"slurmctld": ("Slurm", "slurm-wlm"),
           "sge_qmaster": ("Grid Engine", "gridengine-master gridengine-exec")}


def node(number):
    return f"node{number:03}"


class Folder:
    """The folder of a lab: its state, and in `bin` the programs that all hosts see."""

    def __init__(self, prefix, **variables):
        self.folder = tempfile.mkdtemp(prefix=prefix)
        os.chmod(self.folder, 0o755)
        self.bin = os.path.join(self.folder, "bin")
        os.mkdir(self.bin)
        self.state = os.path.join(self.folder, "state")
        self.env = {**os.environ, "LAB_STATE": self.state, "LAB_OWNER": str(os.getpid()), **variables}

    def __call__(self, *args):
        done = subprocess.run(
            [LAB, *args], env=self.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, timeout=200, check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(f"lab {' '.join(args)}: {done.stdout.decode()}")
        return done.stdout.decode()

    def down(self):
        try:
            self("down")
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)


class Lab(Folder):
    """HOSTS hosts for the life of a test file."""

    def __init__(self):
        super().__init__("ddprun-lab-", LAB_DECOY="1")
        for name in ("DDPRUN", "DDPRUN_AGENT", "DDPRUN_PMIX", "DDP_TRAIN"):
            if os.environ.get(name):
                shutil.copy(os.environ[name], self.bin)
        for tool in ("ddprun-script", "ddprun-scaling", "ddprun-fetch", "ddprun-view",
                     "ddprun-diagnose"):
            program = os.path.join(os.path.dirname(launch.DDPRUN), tool)
            if os.path.exists(program):
                shutil.copy(program, self.bin)
        for name in ("transport/ssh_config", "plugins/observe/view/page.html"):
            shutil.copy(os.path.join(SOURCE, "launcher", name), self.bin)
        python_half = os.path.join(os.path.dirname(launch.DDPRUN), "preload")
        if os.path.isdir(python_half):
            shutil.copytree(python_half, os.path.join(self.bin, "preload"))
        self.ddprun = os.path.join(self.bin, os.path.basename(launch.DDPRUN))
        try:
            self("up", str(HOSTS))
        except BaseException:
            self.down()
            raise


LAB_HOSTS = None


def set_up():
    global LAB_HOSTS
    LAB_HOSTS = Lab()


def tear_down():
    LAB_HOSTS.down()


class Remote(launch.Launch):
    """A ddprun on a host of the lab."""

    def __init__(self, mark, args, host=1, user="alice", cwd=None, env=None, wrapper=(), **how):
        lab = LAB_HOSTS
        variables = [f"{k}={v}" for k, v in {**(env or {}), "DDPRUN_TEST_MARK": mark}.items()]
        super().__init__(
            mark, args,
            command=[
                LAB, "exec", "-l", "-u", user, node(host), "env", "-C", cwd or lab.folder,
                *variables, *wrapper, lab.ddprun,
            ],
            env=lab.env, **how,
        )

    def launcher_pid(self):
        """Of the launcher itself, not of what carries it into the host."""
        ours = [
            pid for pid, line in launch.marked(self.mark).items()
            if line.startswith(LAB_HOSTS.ddprun + " ")
        ]
        return next(pid for pid in ours if launch.parent_of(pid) not in ours)

    def signal(self, signum):
        os.kill(self.launcher_pid(), signum)


class LabTest(launch.LaunchTest):
    launch_class = Remote

    def setUp(self):
        super().setUp()
        os.chmod(self.folder.name, 0o777)
        self.go = self.path("go")
        self.marks.append(LAB_HOSTS.bin)  # agents have no environment of ours

    def hosts(self, *numbers, slots=1):
        return ",".join(f"{node(n)}:{slots}" for n in numbers)

    def on(self, numbers, script, *options, slots=1, **how):
        return self.run_to_end(
            "-H", self.hosts(*numbers, slots=slots), *options, "sh", "-c", script, **how
        )

    def start_on(self, numbers, script, *options, slots=1, **how):
        return self.start(
            "-H", self.hosts(*numbers, slots=slots), *options, "sh", "-c", script, **how
        )

    def fault(self, number, *what):
        LAB_HOSTS("fault", node(number), *what)

    def on_host(self, number):
        """Who of the job is alive there, as {pid: command line}."""
        path = os.path.join(LAB_HOSTS.state, "hosts", node(number), "pid")
        with open(path, encoding="ascii") as f:
            first = int(f.read().split()[0])
        inside, found = os.readlink(f"/proc/{first}/ns/pid"), {}
        for pid, line in launch.marked(*self.marks).items():
            try:
                if os.readlink(f"/proc/{pid}/ns/pid") == inside:
                    found[pid] = line
            except OSError:
                pass  # gone meanwhile
        return found

    def lose(self, number, how="kill"):
        self.addCleanup(self.heal, number)
        self.fault(number, how)

    def list(self, *lines):
        """What `cat hosts` prints from now on."""
        path = self.path("hosts.new")
        self.write("hosts.new", "".join(f"{line}\n" for line in lines))
        os.rename(path, self.path("hosts"))

    def list_hosts(self, *numbers):
        self.list(*(f"{node(n)}:2" for n in numbers))

    def say_go(self):
        """For ranks that stay until the file self.go is there."""
        self.write("go", "")

    def heal(self, number):
        """Whatever happened to it: the host is as new."""
        try:
            LAB_HOSTS("fault", node(number), "kill")
        except RuntimeError:
            pass  # it was dead already
        LAB_HOSTS("up", str(HOSTS))


def missing(*daemons):
    """Why a test cannot have one of these schedulers, or None."""
    path = os.environ["PATH"] + ":/usr/sbin"
    if any(shutil.which(daemon, path=path) for daemon in daemons):
        return None
    return (f"no {' or '.join(DAEMONS[daemon][0] for daemon in daemons)}; needs package "
            + " ".join(DAEMONS[daemon][1] for daemon in daemons))


def main(reason=None):
    """`reason`: why the tests of this file cannot run, or None."""
    if os.geteuid() != 0:
        reason = "the lab makes namespaces; needs root"
    elif not shutil.which("sshd", path="/usr/sbin:/usr/bin"):
        reason = "no sshd; needs package openssh-server"
    if reason:
        print(f"skipped: {reason}")
        sys.exit(77)
    unittest.main(verbosity=2)
