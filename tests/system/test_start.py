"""What is refused before anything is started: one line, exit code 2, no rank ran."""

import os
import signal
import socket
import sys

from launch import DDPRUN, LaunchTest, main, wait_until, who_is_left

# one of each kind of fault; tests/launcher/test_hostfile.c has the others
HOSTFILES = (
    ("n1 slots=two\n", ":1:10: slots must be"),
    ("# two\r\nlocalhost\r\nlocalhost slots=2\r\n", ":3:17: 'localhost' is already listed"),
    ("n1 max_slots=2 slots=3\n", ":1:22: 3 slots are more"),
    ("node[3-1]\n", ":1:6: the range counts down"),
    ("n1\0\n", "NUL"),
)


class Refused(LaunchTest):
    def refused(self, *args):
        """A launch whose ranks would leave a trace: there must be none."""
        launch = self.run_to_end(*args, "touch", self.path("started"))
        self.assert_ended(launch, 2)
        self.assertFalse(os.path.exists(self.path("started")), "something was started")
        self.assertEqual(launch.out, "")
        self.assertTrue(launch.err.startswith("ddprun"), launch.err)
        return launch

    def test_malformed_hostfiles(self):
        for text, said in HOSTFILES:
            with self.subTest(text):
                launch = self.refused("-np", 1, "--hostfile", self.write("hosts", text))
                self.assertIn(said, launch.err)
                self.assertIn("^", launch.err)

    def test_hostfiles_that_cannot_be_read(self):
        for path in (self.path("none"), self.folder.name):
            self.assertIn(path, self.refused("-np", 1, "--hostfile", path).err)

    def test_a_pipe_is_read_and_has_a_deadline(self):
        """Of a FIFO whose writer never comes nothing is read, but <(command) is a file."""
        pipe = self.path("pipe")
        os.mkfifo(pipe, 0o600)
        peer = ("--nnodes", 2, "--node-rank", 0, "--master-addr", "127.0.0.1", "--start-timeout", "1s")
        silent = [self.start(*args) for args in (
            ("--app", pipe), ("--data-sets", pipe, "--fetch-data", "mnist"), ("--script", "slurm", "--site", pipe, "true"),
            ("--peer-key", pipe, *peer, "true"), ("--hostfile", pipe, "--start-timeout", "1s", "true"))]
        for launch, code in zip(silent, (2, 2, 2, 125, 2)):
            launch.wait()
            self.assert_ended(launch, code)
            self.assertRegex(launch.err, f"^ddprun: nothing came from .*'{pipe}' in [0-9]* s\n$")
        for words, said in (("--app <(echo -np 2 echo a; sleep 0.2; echo -np 1 echo b)", "[0] a [1] a [2] b"),
                            ("--hostfile <(echo localhost slots=2) echo a", "[0] a [1] a")):
            launch = self.run_to_end("-c", f"'{DDPRUN}' {words}", command=["/bin/bash"])
            self.assertEqual(sorted(launch.out.split("\n")), ["", *said.replace(" [", "\n[").split("\n")], launch.err)

    def test_an_empty_hostfile(self):
        path = self.write("hosts", "\n# nobody\n")
        self.assertEqual(self.refused("-np", 1, "--hostfile", path).err, f"ddprun: the hostfile '{path}' "
                         "names no host; write one in each line, such as: node1 slots=4\n")

    def test_malformed_host_lists(self):
        for hosts in ("", ",", "localhost:", "localhost:0", "localhost:x", "a,,b", "n[1-"):
            with self.subTest(hosts):
                self.refused("-np", 1, "-H", hosts)

    def test_more_ranks_than_slots(self):
        for where in (("-H", "localhost:2"), ("--hostfile", self.write("hosts", "localhost slots=2\n"))):
            self.assertIn("3 ranks, but 1 host has 2 slots; --oversubscribe allows more",
                          self.refused("-np", 3, *where).err)

    def test_more_hosts_than_there_are(self):
        path = self.write("hosts", "localhost slots=2\n")
        for options, said in ((("--hostfile", path, "-H", "elsewhere"), "'elsewhere' is not in the hostfile"),
                              (("--hostfile", path, "--nnodes", 2), "--nnodes 2, but"),
                              (("--nnodes", 2), "--nnodes 2, but the allocation (local) has 1 host; -H or")):
            with self.subTest(options):
                self.assertIn(said, self.refused(*options).err)

    def test_numbers_of_ranks_that_are_none(self):
        for np in ("0", "-1", "two", "", "1.5", "99999999999"):
            with self.subTest(np):
                self.refused("-np", np)

    def test_an_option_goes_with_another(self):
        """From elsewhere than the command line it may be without effect: it is for all commands."""
        off = ("--hang-after", "off")
        for option, value, before, other in (
                ("metric", "x", (), "--ui or --metrics"),
                ("on-hang", "stop", off, "--hang-after TIME"),
                ("on-hang", "restart", (), "--max-restarts N"),
                ("restart-delay", "1s", (), "--max-restarts N"),
                ("max-no-progress", "3", (), "--max-restarts N"),
                ("progress-file", "x", ("--max-restarts", 1), "--max-no-progress K or --restart-delay TIME"),
                ("container-engine", "podman", (), "--container IMAGE"),
                ("discovery-interval", "5s", (), "--host-discovery-script or --hostfile"),
                ("discovery-timeout", "5s", (), "--host-discovery-script COMMAND"),
                ("health-timeout", "5s", (), "--health-check COMMAND"),
                ("data-dir", "x", (), "--fetch-data NAME")):
            with self.subTest(option=option, value=value):
                launch = self.run_to_end(*before, f"--{option}", value, "true")
                self.assert_ended(launch, 2)
                self.assertEqual(launch.err, f"ddprun: --{option} needs {other} (try ddprun --help)\n")
                launch = self.run_to_end(*before, "true", env={"DDPRUN_OPTIONS": f"--{option}={value}"})
                self.assert_ended(launch, 0)
                self.assertEqual(launch.err, "")

    def test_a_wait_for_the_only_host_is_reported(self):
        launch = self.run_to_end("--node-wait", "5s", "true")
        self.assert_ended(launch, 0)
        self.assertEqual(launch.err, "ddprun: warning: --node-wait has no effect: the only host is this one\n")
        launch = self.run_to_end("true", env={"DDPRUN_OPTIONS": "--node-wait=5s"})
        self.assertEqual(launch.err, "")

    def test_options_that_would_do_nothing(self):
        listing = ("--host-discovery-script", "echo localhost", "--nnodes", 1)
        for options, said in (
            (("--preload", "torch", "--no-preload"), "--preload and --no-preload: leave one out"),
            (("-m", "--no-python"), "-m and --no-python: leave one out"),
            (("--master-port", "1234", "--store-port", "1235"),
             "--store-port 1235 and --master-port 1234: both are MASTER_PORT; leave one out"),
            (("--store-port", "1235", "--master-addr", "h:1234"),
             "--store-port 1235 and --master-addr's port 1234: both are MASTER_PORT; leave one out"),
            (("--master-addr", "h:1", "--master-port", "2"),
             "--master-addr h:1 and --master-port 2 contradict each other; leave one port out"),
            (("--master-port", "2", "--rdzv-endpoint", "h:1"), "--master-addr h:1 and --master-port 2 contradict"),
            (("--script", "slurm", "--nproc-per-node", "cpu"),
             "--nproc-per-node cpu counts the CPUs of this machine, and a batch script is for others"),
            ((*listing, "--alloc", "local"), "--alloc local and --host-discovery-script: "),
            ((*listing, "--include", "localhost"), "--include and --host-discovery-script: "),
            ((*listing, "--exclude", "localhost"), "--exclude and --host-discovery-script: "),
            (("--include", "a", "--exclude", "b"), "--exclude and --include choose the same"),
            (("--include", "a,,b"), "--include:"),
            (("--script", "pbs", "--nnodes", "1:2"), "--nnodes MIN:MAX: only Slurm and Grid Engine let a job go on"),
        ):
            with self.subTest(options):
                launch = self.run_to_end(*options, "true")
                self.assert_ended(launch, 2)
                self.assertTrue(launch.err.startswith("ddprun: "), launch.err)
                self.assertIn(said, launch.err.splitlines()[0])
                self.assertNotIn("-H ", launch.err.splitlines()[0].replace("use -H", ""))

    def test_options_nobody_knows(self):
        self.assertIn("--no-such-thing", self.refused("--no-such-thing").err)

    def test_a_port_that_is_taken(self):
        taken = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(taken.close)
        launch = self.run_to_end("--master-port", taken.getsockname()[1], "--master-addr", "127.0.0.1", "true")
        self.assertIn(launch.rc, (2, 125))
        self.assertIn("cannot use this port (without --store-port and --master-port", launch.err)
        self.assertEqual(launch.err.count("\n"), 1)

    def test_values_that_make_no_sense(self):
        for option, value in (
            ("--timeout", "soon"), ("--grace", "-1"), ("--map-by", "mood"),
            ("--bind-to", "chair"), ("--store-port", "70000"), ("--tree-width", "-1"),
            ("--log-level", "loud"), ("--rank-names", "mine"),
        ):
            with self.subTest(option):
                self.refused("-np", 1, option, value)


class Taken(LaunchTest):
    def test_oversubscribe_lets_them_in(self):
        launch = self.run_to_end("-np", 3, "--oversubscribe", "-H", "localhost:2", "echo", "x")
        self.assert_ended(launch, 0)
        self.assertEqual(launch.out.count("x\n"), 3)

    def test_a_hostfile_of_this_machine(self):
        path = self.write("hosts", "# two\r\n\r\nlocalhost slots=2 max_slots=4\r\n")
        launch = self.run_to_end("--hostfile", path, "sh", "-c", "echo $RANK of $WORLD_SIZE")
        self.assert_ended(launch, 0)
        self.assertEqual(sorted(launch.out.splitlines()), ["[0] 0 of 2", "[1] 1 of 2"])

    def test_a_login_on_this_machine_has_no_effect(self):
        launch = self.run_to_end("-H", "nobody@localhost:1", "true", env={"USER": "somebody"})
        self.assert_ended(launch, 0)
        self.assertEqual(launch.err, "ddprun: warning: 'localhost' is this machine, where ranks run as you and "
                                     "without ssh: login name 'nobody' has no effect\n")
        path = self.write("hosts", "somebody@localhost port=2222\n")
        launch = self.run_to_end("--hostfile", path, "true", env={"USER": "somebody"})
        self.assert_ended(launch, 0)
        self.assertIn("without ssh: port 2222 has no effect", launch.err)

    def test_variables_that_are_not_set_here(self):
        for name, more in (("NONE", ""), ("NONE,PATH", "; each name needs its own -x")):
            launch = self.run_to_end("-np", 1, "-x", name, "true")
            self.assert_ended(launch, 0)
            self.assertEqual(launch.err, f"ddprun: warning: -x {name}: not set here, so there is nothing to "
                             f"export{more}\n")

    def test_a_folder_to_work_in(self):
        launch = self.run_to_end("-np", 1, "--wdir", self.folder.name, "pwd")
        self.assertEqual(launch.out.strip(), os.path.realpath(self.folder.name))

    def test_a_folder_that_is_not_there(self):
        launch = self.run_to_end("-np", 1, "--wdir", self.path("none"), "pwd")
        self.assert_ended(launch, 125)
        self.assertEqual(launch.err, f"ddprun: cannot start in directory '{self.path('none')}': "
                         "No such file or directory; --wdir names one that is there\n")
        for file in self.write("file", ""), os.path.realpath(sys.executable):
            launch = self.run_to_end("-np", 1, "--wdir", file, "./pwd")
            self.assertEqual(launch.err, f"ddprun: cannot start in directory '{file}': "
                             "Not a directory; --wdir names one that is there\n")

    def test_a_folder_that_has_been_removed(self):
        for options, rc in ((), 125), (("--dry-run",), 125), (("--wdir", self.folder.name), 0):
            with self.subTest(options):
                gone = self.path("gone")
                os.mkdir(gone)
                launch = self.run_to_end(*options, "true", cwd=gone, command=[
                    "sh", "-c", 'rmdir "$PWD"; exec "$@"', "sh", DDPRUN])
                self.assert_ended(launch, rc)
                self.assertEqual(launch.err, "" if rc == 0 else
                                 "ddprun: no rank can start in the current directory (--wdir names "
                                 "another): No such file or directory\n")

    def test_a_dry_run_starts_nothing(self):
        launch = self.run_to_end("-np", 2, "--dry-run", "touch", self.path("started"))
        self.assert_ended(launch, 0)
        self.assertFalse(os.path.exists(self.path("started")))
        self.assertIn("touch", launch.out)
        self.assertIn("nothing was started", launch.out)
        self.assertEqual(launch.err, "")

    def test_a_scripts_host_without_slots(self):
        launch = self.run_to_end(
            "--as", "horovodrun", "-np", 2, "--min-np", 1, "--slots-per-host", 2,
            "--host-discovery-script", "echo localhost", "--dry-run", "true")
        self.assert_ended(launch, 0)
        self.assertIn("ranks: 2 on 1 host", launch.out)


class Ranks(LaunchTest):
    def test_too_few_descriptors_are_one_line(self):
        for n in (5, 10, 40, 63):
            launch = self.run_to_end("-c", f'ulimit -n {n}; exec "$@"', "sh", DDPRUN, "true", command=["sh"])
            self.assert_ended(launch, 125)
            self.assertEqual(launch.err, f"ddprun: only {n} files may be open (ulimit -Hn); 64 are needed, "
                             "more with many ranks\n")
        launch = self.run_to_end("-c", 'ulimit -n 64; exec "$@"', "sh", DDPRUN, "true", command=["sh"])
        self.assert_ended(launch, 0)
        self.assertEqual(launch.err, "")

    def test_one_that_cannot_start_is_the_cause(self):
        """Others may start in the same moment, and are ended."""
        for _ in range(12):
            launch = self.run_to_end("-c", 'ulimit -n 80; exec "$@"', "sh", DDPRUN, "-np", 40, "sleep", 300,
                                     command=["sh"])
            self.assert_ended(launch, 125)
            self.assertRegex(launch.err, "cannot start 'sleep': Too many open files; see 'ulimit -n'"
                                         r"(; ddprun stopped ranks? [-\d,]+)?\n$")

    def test_room_for_their_descriptors_is_there_before_the_first(self):
        """The kernel enlarges the table of a process with threads only after milliseconds."""
        launch = self.run_to_end("-np", 64, "sh", "-c",
                                 "[ $RANK != 0 ] || exec grep FDSize /proc/$PPID/status")
        self.assert_ended(launch, 0)
        self.assertGreaterEqual(int(launch.out.split()[-1]), 1024)


class Discovery(LaunchTest):
    """The script of --host-discovery-script, before there is a job."""

    def wait_for_script(self, *options):
        launch = self.start("--host-discovery-script", "echo runs >&2; sleep 300; :", "--nnodes", "1:2",
                            *options, "true")
        self.wait_for(launch, "runs", "err")
        return launch

    def test_a_signal_ends_the_script_too(self):
        for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            with self.subTest(signum):
                launch = self.wait_for_script()
                self.end_by(launch, signum, -signum)
                self.assertEqual(who_is_left(self.mark), {})

    def test_commands_end_when_ddprun_is_killed(self):
        """With what they have started: at the start, beside the ranks, and as a health check."""
        runs, hosts = self.path("runs"), self.path("hosts")
        command = f": >{runs}; sleep 300; :"
        listing = ("--nnodes", "1:2", "--discovery-interval", "100ms", "--host-discovery-script")
        for options in ((*listing, command),
                        (*listing, f"[ -e {hosts} ] || {{ echo localhost:1 | tee {hosts}; exit; }}; {command}"),
                        ("--health-check", command)):
            with self.subTest(options):
                launch = self.start(*options, "sleep", "300")
                self.assertTrue(wait_until(lambda: os.path.exists(runs)), launch.err)
                launch.signal(signal.SIGKILL)
                launch.wait()
                self.assertEqual(who_is_left(self.mark), {})
                os.remove(runs)

    def test_a_signal_that_is_ignored_ends_nothing(self):
        launch = self.start("-c", "trap '' INT; exec \"$@\"", "sh", DDPRUN, "--host-discovery-script",
                            f"echo runs >&2; cat {self.path('hosts')}", "--nnodes", "1:2",
                            "sh", "-c", "echo rank", command=["sh"])
        self.wait_for(launch, "asking again", "err")
        launch.signal(signal.SIGINT)
        self.write("hosts", "localhost:1\n")
        launch.wait()
        self.assert_ended(launch, 0)
        self.assertIn("rank", launch.out)

    def test_what_the_script_has_started_ends_with_it(self):
        launch = self.wait_for_script("--discovery-timeout", "1s", "--node-wait", "2s")
        launch.wait()
        self.assert_ended(launch, 125)
        self.assertIn("had not ended after 1 s", launch.err)

    def test_it_takes_no_longer_than_the_start_may(self):
        launch = self.wait_for_script("--start-timeout", "1s")
        launch.wait(20)
        self.assert_ended(launch, 125)
        self.assertRegex(launch.err, r"; :' has listed no hosts within 1 s \(--start-timeout\)\n\Z")

    def test_a_script_that_prints_without_end(self):
        for command in ("yes", "yes | head -c 2000000; sleep 300"):
            launch = self.run_to_end("--host-discovery-script", command, "--node-wait", "20s",
                                     "--discovery-interval", "20s", "--nnodes", "1:2", "true", deadline=15)
            self.assert_ended(launch, 125)
            self.assertEqual(launch.err, f"ddprun: --host-discovery-script '{command}' printed more than 1024 KiB\n")

    def test_a_warning_is_one_line(self):
        launch = self.start("--host-discovery-script", "echo 'localhost:1 x'", "--nnodes", "1:2", "true")
        self.wait_for(launch, "asking again", "err")
        self.assertRegex(launch.err, r"\Addprun: warning: --host-discovery-script:1:.*; asking again .*\n\Z")
        launch.signal(signal.SIGTERM)
        launch.wait()

    def test_a_command_that_cannot_be_run_is_not_asked_again(self):
        for command, why in (("/nonesuch/hosts", "127: there is no such command; check its path"),
                             (self.write("hosts", ""), "126: not executable; try chmod +x")):
            launch = self.run_to_end("--host-discovery-script", command, "--nnodes", "1:2", "true",
                                     deadline=20)
            self.assert_ended(launch, 125)
            self.assertEqual(launch.err.splitlines()[-1], (
                f"ddprun: --host-discovery-script '{command}' exited with status {why}"))


if __name__ == "__main__":
    main()
