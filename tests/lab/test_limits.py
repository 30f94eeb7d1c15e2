"""Limits of hosts: open files, processes, read-only and noexec folders, full disks, file servers
that are slow or do not answer. One clear line, the right exit code, no process left."""

import os
import shutil
import unittest

import hosts
from hosts import LAB, LabTest, Remote, main, node

setUpModule = hosts.set_up
tearDownModule = hosts.tear_down

# a user id of this test only: the kernel counts processes per user
NOBODY = 54000 + os.getpid() % 1000


class Limited(LabTest):
    def within(self, limit, *args, user="alice", become=()):
        """Run ddprun under limits set by a shell."""
        launch = Remote.__new__(Remote)
        super(Remote, launch).__init__(
            self.mark, ["bash", "-c", f'{limit}; exec "$0" "$@"', hosts.LAB_HOSTS.ddprun, *args],
            command=[LAB, "exec", "-l", "-u", user, node(1), *become, "env", "-C",
                     hosts.LAB_HOSTS.folder, f"DDPRUN_TEST_MARK={self.mark}"],
            env=hosts.LAB_HOSTS.env)
        self.launches.append(launch)
        launch.wait()
        self.assertEqual(hosts.launch.who_is_left(*self.marks), {})
        return launch

    def until_it_works(self, limits, command, what, ranks, *args, **how):
        """Raise a limit step by step: ddprun fails with a clear line, until it works."""
        codes = []
        for n in limits:
            with self.subTest(n):
                launch = self.within(command.format(n), *args, **how)
                codes.append(launch.rc)
                self.assertIn(launch.rc, (0, 125), launch.err)
                if launch.rc == 0:
                    self.assertEqual(launch.out.count("fine\n"), ranks)
                    continue
                for line in launch.err.splitlines():
                    self.assertTrue(line.startswith("ddprun"), launch.err)
                    self.assertRegex(line, "(?i)too many|only [0-9]+ files may be open")
                self.assertIn(what, launch.err)
        self.assertEqual((codes[0], codes[-1]), (125, 0), codes)

    def test_few_open_files(self):
        self.until_it_works((4, 8, 16, 63, 64), "ulimit -n {}", "ulimit -Hn", 2, "-np", "2",
                            "--stdin", "all", "echo", "fine")
        self.until_it_works((10, 63, 64), "ulimit -n {}", "ulimit -Hn", 3,
                            "-H", self.hosts(1, 2, 3), "echo", "fine")

    def test_few_open_files_by_default(self):
        """ddprun raises its soft limit, but not that of the ranks."""
        launch = self.within("ulimit -Sn 40", "-H", self.hosts(1, 2), "sh", "-c",
                             "[ $RANK = 1 ] || ulimit -n")
        self.assert_ended(launch, 0)
        self.assertEqual(launch.out, "[0 node001] 40\n")

    def test_few_processes(self):
        become = ("setpriv", "--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups")
        self.until_it_works((1, 2, 3, 4, 5, 20), "ulimit -u {}", "ulimit -u", 4, "-np", "4", "echo",
                            "fine", user="root", become=become)


class Folders(LabTest):
    def broken(self, what, folder, numbers, *keep):
        for n in numbers:
            self.fault(n, what, folder, *keep)
            self.addCleanup(self.fault, n, "mend", folder)

    def test_a_home_that_cannot_be_written_to(self):
        home = os.path.join(hosts.LAB_HOSTS.env["LAB_STATE"], "home", "alice")
        self.broken("readonly", home, (1, 2))
        launch = self.on((1, 2), "echo x >$HOME/x || echo closed")
        self.assert_ended(launch, 0)
        self.assertEqual(launch.out.count("] closed\n"), 2, launch.err)
        launch = self.start("--nnodes", 2, "--node-rank", 0, "--master-addr", node(1), "true")
        launch.wait()
        self.assert_ended(launch, 125)
        (line,) = launch.err.splitlines()
        for word in (home, "Read-only file system", "--peer-key"):
            self.assertIn(word, line)

    def test_a_tmp_from_which_nothing_is_run(self):
        program = os.path.join("/tmp", f"ddprun-{os.getpid()}")
        shutil.copy("/bin/hostname", program)
        self.addCleanup(os.remove, program)
        self.broken("noexec", "/tmp", (1, 2), hosts.LAB_HOSTS.folder)
        launch = self.run_to_end(
            "-H", self.hosts(1, 2, slots=2), "--preload", "json", "/usr/bin/python3", "-c",
            "print('fine')")  # ddprun executes nothing in /tmp
        self.assert_ended(launch, 0)
        self.assertEqual(launch.out.count("] fine\n"), 4, launch.out + launch.err)
        launch = self.run_to_end("-H", self.hosts(3, 2), program)
        self.assert_ended(launch, 126)
        (line,) = launch.err.splitlines()
        for word in (program, node(2), "noexec"):
            self.assertIn(word, line)

    def test_a_full_disk(self):
        work = self.path("work")
        os.mkdir(work, 0o777)
        os.chmod(work, 0o777)
        self.broken("full", work, (1, 2))
        launch = self.on((1, 2), 'head -c 9999 /dev/zero >"$RANK" || exit 3', cwd=work)
        self.assert_ended(launch, 3)
        self.assertIn("No space left on device", launch.err)
        launch = self.run_to_end("-H", self.hosts(1, 2), "--output-filename", "out", "echo", "x",
                                 cwd=work)
        self.assertNotEqual(launch.rc, 0)
        (line,) = launch.err.splitlines()
        self.assertIn("No space left on device", line)


@unittest.skipUnless(os.path.exists("/dev/fuse"), "no FUSE; needs system with /dev/fuse")
class FileServers(LabTest):
    """A working directory behind a file server that is slow or does not answer."""

    def test_a_slow_one(self):
        work = self.path("work")
        os.mkdir(work)
        os.chmod(work, 0o777)
        for n in (1, 2):
            self.fault(n, "slow", work, "20")
            self.addCleanup(self.fault, n, "mend", work)
        launch = self.on((1, 2), "echo $(hostname) >$RANK && cat $RANK", cwd=work)
        self.assert_ended(launch, 0)
        self.assertEqual(sorted(launch.out.splitlines()),
                         ["[0 node001] node001", "[1 node002] node002"])

    def test_one_that_does_not_answer_any_more(self):
        """The rank hangs in the file system; the job ends all the same."""
        self.addCleanup(self.heal, 2)
        work = self.path("work")
        os.mkdir(work)
        os.chmod(work, 0o777)
        self.write("work/data", "x\n")
        self.fault(2, "slow", work, "1")
        go = self.path("go")
        launch = self.start_on(
            (1, 2), f"echo up; until [ -e {go} ]; do sleep 0.1; done; [ $RANK = 0 ] && exit 9; "
            f"cat {work}/data", "--grace", "1s")
        self.assertTrue(hosts.launch.wait_until(lambda: launch.out.count("up\n") == 2), launch.err)
        self.fault(2, "stall", work)
        self.write("go", "")
        launch.wait()
        self.assert_ended(launch, 9)
        self.assertLess(launch.seconds, 30)
        self.assertTrue(hosts.launch.wait_until(lambda: not self.on_host(2)), self.on_host(2))


if __name__ == "__main__":
    main()
