#!/usr/bin/env python3
"""Jobs of LSF and PBS, with stand-ins for blaunch and pbs_tmrsh that do what the manuals
of these say. The real Slurm and the real Grid Engine: tests/lab."""

import glob
import os
import re
import signal
import socket
import subprocess
import time

from launch import DDPRUN, LaunchTest, held, main, wait_until, who_is_left

# blaunch(1) of LSF 10.1: works inside a job and on its hosts only; a shell there reads the
# command, whose stdin is ours unless there is -n; the exit status is the command's.
BLAUNCH = r"""#!/bin/sh
echo "$@" >>"$FAKE_LOG"
[ "$1" = -n ] && { shift; exec </dev/null; }
host=$1; shift
[ -n "$LSB_JOBID" ] || { echo "blaunch: not in an LSF job" >&2; exit 255; }
case " $LSB_MCPU_HOSTS " in *" $host "*) ;;
*) echo "blaunch: host <$host> is not in the allocation" >&2; exit 255;; esac
exec sh -c "$*"
"""

# pbs_tmrsh of OpenPBS: host must stand in $PBS_NODEFILE; no shell; the task is MOM's, with
# no stdin, and output in the job's files; it outlives pbs_tmrsh; its exit status is passed on.
TMRSH = r"""#!/bin/sh
echo "$@" >>"$FAKE_LOG"
host=$1; shift
[ -n "$PBS_ENVIRONMENT" ] || { echo "pbs_tmrsh: not executing under PBS" >&2; exit 255; }
grep -qx "$host" "$PBS_NODEFILE" || {
    echo "pbs_tmrsh: host \"$host\" is not a node in job <$PBS_JOBID>" >&2; exit 255; }
setsid "$@" </dev/null >>"$FAKE_LOG.job" 2>&1 &
wait $!
"""


class TransportTest(LaunchTest):
    program, stand_in, source = "", "", ""

    def setUp(self):
        super().setUp()
        os.mkdir(self.path("bin"))
        self.write("bin/" + self.program, self.stand_in, 0o755)
        self.env = {
            "PATH": self.path("bin") + ":" + os.environ["PATH"], "FAKE_LOG": self.path("log"),
            "HOME": self.folder.name, "CUDA_VISIBLE_DEVICES": "", **self.job()
        }

    def inside(self, *args, **how):
        """This machine is none of the job's hosts, as its front end is not: --alloc says so."""
        return self.run_to_end("--alloc", self.source, *args, env=self.env, **how)

    def started(self):
        with open(self.path("log"), encoding="utf-8") as f:
            return sorted(line.strip() for line in f)

    def assert_ranks_run(self):
        self.assert_ended(self.inside("sh", "-c", "exit $((RANK / 2 * 5))"), 5)
        os.remove(self.path("log"))
        run = self.inside("sh", "-c", "echo $RANK $NODE_RANK")
        self.assert_ended(run, 0)
        lines = sorted(line.split("]")[-1].strip() for line in run.out.splitlines())
        self.assertEqual(lines, ["0 0", "1 0", "2 1"])


class Slurm(LaunchTest):
    """Which host the first line names when several do not start. The test replaces srun: a host has to
    die after Slurm has started its task and before the task connects to srun, and until all tasks have
    connected srun forwards its stdin to none."""

    OTHERS = "error: n[1,3]: tasks 0,2: Exited with exit code"

    def cannot_start(self, *said):
        """Its lines, each after a second."""
        os.mkdir(self.path("bin"))
        self.write("bin/srun", "#!/bin/sh\n" + "sleep 1\n".join(
            f"echo 'srun: {line}' >&2\n" for line in said) + "exec sleep 60\n", 0o755)
        run = self.run_to_end("--alloc", "slurm", "true", env={
            "PATH": self.path("bin") + ":" + os.environ["PATH"], "SLURM_JOB_ID": "7",
            "SLURM_JOB_NODELIST": "n[1-3]", "SLURM_TASKS_PER_NODE": "1(x3)"})
        self.assert_ended(run, 125)
        return run.err.splitlines()

    def test_a_host_that_others_followed_is_named_first(self):
        said = self.cannot_start(f"{self.OTHERS} 125", "error: Node failure on n2")
        self.assertEqual(said, [
            "ddprun: cannot start on n2: Slurm reports that the node has failed",
            "ddprun: cannot start on n[1,3]: its agent has ended early: 'Exited with exit code 125'"])

    def test_hosts_that_fail_alike_share_a_line(self):
        said = self.cannot_start("error: n[1-3]: tasks 0-2: Exited with exit code 125")
        self.assertEqual(said, ["ddprun: cannot start on n[1-3]: its agent has ended early: 'Exited with exit "
                                "code 125'"])

    def test_agents_without_input_wait_for_a_silent_host(self):
        said = self.cannot_start(f"{self.OTHERS} 120")
        self.assertRegex(said[0], "^ddprun: cannot start on n2: .* its agent has not connected in time")
        self.assertEqual(said[1:], ["ddprun: cannot start on n[1,3]: its agent got no input: srun waits "
                                    "until all nodes have connected to it"])

    def test_an_agent_without_input(self):
        agent = subprocess.run([DDPRUN + "-agent"], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False)
        self.assertEqual(agent.returncode, 120, agent)


class Lsf(TransportTest):
    program, stand_in, source = "blaunch", BLAUNCH, "lsf"

    def job(self):
        return {"LSB_JOBID": "7", "LSB_MCPU_HOSTS": "n1 2 n2 1"}

    def test_agents_are_tasks_of_the_job(self):
        self.assert_ranks_run()
        self.assertEqual([line.split()[0] for line in self.started()], ["n1", "n2"])

    def joined(self, hosts):
        """The hosts that connected to the launcher, and those that joined, in a tree of width 1."""
        self.env["LSB_MCPU_HOSTS"] = " ".join(f"{host} 2" for host in hosts)
        run = self.inside("--tree-width", "1", "--log-level", "debug", "sh", "-c", "echo rank $RANK")
        self.assert_ended(run, 0)
        for rank in range(2 * len(hosts)):
            self.assertEqual(run.out.count(f"rank {rank}\n"), 1, run.out)
        return [re.findall(rf"\b(\S+) {what}", run.err) for what in ("has connected", r"\(\S+\) has joined")]

    def test_agents_connect_in_a_tree(self):
        """To each other, by the names of the hosts: the launcher gets one connection."""
        hosts = [f"127.0.0.{n}" for n in range(2, 6)]
        called, joined = self.joined(hosts)
        self.assertEqual((called, sorted(joined)), (hosts[:1], hosts))

    def test_an_agent_without_a_parent_calls_the_launcher(self):
        """The name of the second host means nothing to the third."""
        hosts = ["127.0.0.2", "nowhere.invalid", "127.0.0.3", "127.0.0.4"]
        called, joined = self.joined(hosts)
        self.assertEqual((sorted(called), sorted(joined)), (sorted([hosts[0], hosts[2]]), sorted(hosts)))

    def test_what_dry_run_says(self):
        run = self.inside("--dry-run", "true")
        self.assertIn("other hosts by blaunch: the default in a job of lsf", run.out)
        self.assertRegex(run.out, "here: blaunch n1 .*ddprun-agent")
        self.assertEqual(run.err, "")
        run = self.inside("--ssh", "ssh -p 1", "--dry-run", "true")
        self.assertEqual(run.err, "ddprun: warning: --ssh has no effect: agents are started by blaunch "
                         "(the default in a job of lsf; --start ssh uses ssh)\n")
        os.remove(self.path("bin/blaunch"))
        run = self.inside("--dry-run", "true")
        self.assertIn("other hosts by ssh: the hosts are those of lsf, but its 'blaunch' is not in PATH",
                      run.out)
        run = self.inside("--ssh", "ssh -p 1", "--dry-run", "true")
        self.assertEqual(run.err, "")

    def test_what_it_says_when_it_fails(self):
        run = self.inside("--agent", "/nonesuch/agent", "true")
        self.assert_ended(run, 125)
        self.assertIn("cannot start on n[1-2]: the agent '/nonesuch/agent' is not there", run.err)
        self.env["LSB_MCPU_HOSTS"] = "n1 1 n2 1"
        self.write("bin/blaunch", "#!/bin/sh\necho \"LSF daemon not responding\" >&2; exit 255", 0o755)
        run = self.inside("true")
        self.assert_ended(run, 125)
        self.assertIn("cannot start on n[1-2]: LSF daemon not responding\n", run.err)

    def test_killed(self):
        run = self.start("--alloc", self.source, "sh", "-c", "echo up; sleep 100", env=self.env)
        self.assertTrue(wait_until(lambda: run.out.count("up\n") == 3), run.err)
        run.signal(signal.SIGKILL)
        run.wait()
        self.assertEqual(who_is_left(run.mark), {})


class Pbs(TransportTest):
    program, stand_in, source = "pbs_tmrsh", TMRSH, "pbs"

    def job(self):
        nodes = self.write("nodes", "n1\nn2\nn1\n")
        return {"PBS_JOBID": "7.x", "PBS_ENVIRONMENT": "PBS_BATCH", "PBS_NODEFILE": nodes}

    def bootstrap_files(self):
        return glob.glob(self.path(".ddprun-*"))

    def test_agents_are_tasks_of_the_job(self):
        self.assert_ranks_run()
        for line, host in zip(self.started(), ("n1", "n2")):
            # the name of a file is all that others can see
            self.assertRegex(line, rf"^{host} \S*ddprun-agent --bootstrap {self.folder.name}/\.ddprun-\w+$")
        self.assertEqual(self.bootstrap_files(), [])

    def test_an_agent_that_fails_says_so_in_the_job_s_file(self):
        run = self.inside("--agent", "/bin/false", "--start-timeout", "40s", "true")
        self.assert_ended(run, 125)
        self.assertIn("cannot start on n[1-2]: pbs_tmrsh ended with status 1", run.err)
        self.assertEqual(self.bootstrap_files(), [])
        self.env["HOME"] = "/nonesuch"
        run = self.inside("true")
        self.assert_ended(run, 125)
        self.assertIn("cannot write the bootstrap file '/nonesuch/.ddprun-", run.err)

    def test_a_home_directory_that_does_not_answer(self):
        self.env |= held(HOLD_MKOSTEMP=self.folder.name)
        run = self.inside("true")
        self.assert_ended(run, 125)
        self.assertEqual(run.err, "ddprun: cannot start on n[1-2]: the home directory, for the bootstrap files "
                         "of agents, has not answered in 5 s (stalled file system?); --start ssh needs none\n")

    def test_killed(self):
        """The tasks outlive pbs_tmrsh, and end with the launcher all the same."""
        run = self.start("--alloc", self.source, "sh", "-c", "echo up; sleep 100", env=self.env)
        self.assertTrue(wait_until(lambda: run.out.count("up\n") == 3), run.err)
        self.assertEqual(self.bootstrap_files(), [])
        run.signal(signal.SIGKILL)
        run.wait()
        self.assertEqual(who_is_left(run.mark), {})


class CallBack(LaunchTest):
    """An agent whose calls are accepted and closed at once, started by something that does not
    return its stdout."""

    def setUp(self):
        super().setUp()
        self.server = socket.create_server(("127.0.0.1", 0))
        self.server.settimeout(0.1)
        self.addCleanup(self.server.close)

    def agent(self, *lines):
        agent = subprocess.Popen(
            [os.path.join(os.path.dirname(DDPRUN), "ddprun-agent")], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env={k: v for k, v in os.environ.items() if k != "SSH_CONNECTION"})
        call = f"call 127.0.0.1 {self.server.getsockname()[1]}"
        text = "\n".join(("ddprun-agent 1", "key " + "5" * 64, "node 0", "name n1", call, *lines, "end\n"))
        agent.stdin.write(text.encode())
        agent.stdin.flush()
        return agent

    def calls(self, seconds):
        n, end = 0, time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                self.server.accept()[0].close()
                n += 1
            except TimeoutError:
                pass
        return n

    def ends(self, agent):
        out, err = agent.communicate(timeout=20)
        self.assertEqual((out, agent.returncode), (b"", 125), err)
        self.assertIn(b"n1: cannot call back", err)
        return err

    def test_there_is_a_pause(self):
        agent = self.agent("detached yes")
        n = self.calls(2)
        self.server.close()  # refused: nobody will answer
        self.ends(agent)
        self.assertIn(n, range(2, 12))

    def test_the_end_of_stdin_ends_it(self):
        agent = self.agent()
        self.assertGreater(self.calls(2), 1)
        agent.stdin.close()
        agent.stdin = None
        self.ends(agent)

    def test_who_accepts_and_says_nothing_is_named(self):
        agent = self.agent()
        with self.server.accept()[0]:
            agent.stdin.close()
            agent.stdin = None
            err = self.ends(agent)
        call = f"'127.0.0.1 {self.server.getsockname()[1]}': no handshake received"
        self.assertEqual(err.decode(), f"ddprun-agent: n1: cannot call back: {call}\n")

    def test_the_end_of_stdin_as_link_ends_it(self):
        agent = self.agent("stdio yes")
        self.assertNotEqual(agent.stdout.readline(), b"")
        agent.stdin.close()
        agent.stdin = None
        self.ends(agent)


if __name__ == "__main__":
    main()
