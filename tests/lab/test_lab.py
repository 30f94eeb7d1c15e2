"""The lab itself: hosts, faults, repeated and interrupted starts; `down` leaves nothing."""

import os
import signal
import subprocess
import tempfile
import unittest

from hosts import LAB, main
from launch import marked, wait_until


class LabItself(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="ddprun-lab-")
        self.addCleanup(self.folder.cleanup)
        os.chmod(self.folder.name, 0o755)
        self.state = os.path.join(self.folder.name, "state")
        self.addCleanup(self.nothing_is_left)
        self.addCleanup(self.lab, "down")

    def lab(self, *words, check=True, **how):
        done = subprocess.run([LAB, *words], text=True, env={"LAB_OWNER": str(os.getpid()), **os.environ, "LAB_STATE": self.state},
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=100,
                              check=False, **how)
        if check:
            self.assertEqual(done.returncode, 0, done.stdout)
        return done

    def on(self, host, script, user="alice", **how):
        return self.lab("exec", "-l", "-u", user, host, "sh", "-c", script, **how).stdout

    def nothing_is_left(self):
        self.assertEqual(marked(self.state), {})
        self.assertFalse(os.path.exists(self.state))
        with open("/proc/mounts", encoding="utf-8") as f:
            mounts = f.read()
        self.assertNotIn(self.state, mounts)
        for line in mounts.splitlines():
            if line.split()[2] == "cgroup2":
                self.assertNotIn("lab" + self.state.replace("/", "-"), os.listdir(line.split()[1]))

    def test_hosts_are_machines_of_their_own(self):
        before = os.listdir("/sys/class/net")
        self.lab("up", "2")
        self.assertEqual(sorted(os.listdir("/sys/class/net")), sorted(before))
        self.assertEqual(self.on("node001", "ssh node002 hostname"), "node002\n")
        self.assertEqual(self.on("node001", "ssh node002 id -un", user="root"), "root\n")
        each = "cat $(ls /etc/machine-id || echo /etc/hostname) /proc/sys/kernel/random/boot_id; ls /proc | grep -c '^[0-9]'; " \
               "cut -d. -f1 /proc/uptime; echo x >/dev/shm/$(hostname); ls /dev/shm; ls /sys/class/net"
        one, two = (self.on(host, each, user="root").split() for host in ("node001", "node002"))
        for i in (0, 1, 3, 4):  # machine, boot, uptime, shared memory
            self.assertNotEqual(one[i], two[i])
        self.assertLess(int(one[2]), 20)
        self.assertEqual(one[5:], ["eth0", "lo"])
        self.assertEqual(self.on("node001", "cat; exit 0", input="words"), "words")
        self.assertEqual(self.lab("exec", "node001", "sh", "-c", "exit 7", check=False).returncode, 7)

    def test_more_hosts_and_dead_ones_again(self):
        self.lab("up", "2")
        first = self.on("node001", "cat /proc/sys/kernel/random/boot_id")
        self.lab("fault", "node002", "crash")
        self.assertIn("node002 10.77.0.2 down", self.lab("status").stdout)
        self.lab("up", "3")
        self.assertEqual(self.on("node001", "ssh node002 hostname; ssh node003 hostname"),
                         "node002\nnode003\n")
        self.assertEqual(self.on("node001", "cat /proc/sys/kernel/random/boot_id"), first)

    def test_two_at_once_and_one_that_is_killed(self):
        ups = [subprocess.Popen([LAB, "up", "3"], env={**os.environ, "LAB_STATE": self.state},
                                stderr=subprocess.DEVNULL) for _ in range(2)]
        self.assertEqual([up.wait() for up in ups], [0, 0])
        self.lab("down")
        up = subprocess.Popen([LAB, "up", "9"], env={**os.environ, "LAB_STATE": self.state})
        wait_until(lambda: os.path.exists(f"{self.state}/hosts/node003/pid"))
        up.send_signal(signal.SIGKILL)
        up.wait()
        self.lab("up", "9")
        self.assertEqual(self.lab("status").stdout.count(" pid "), 9)

    def test_a_folder_that_was_removed(self):
        self.lab("up", "2")
        subprocess.run(["rm", "-r", self.state], check=True)
        self.assertTrue(marked(self.state))

    def test_an_owner_that_is_killed(self):
        owner = subprocess.Popen(["sleep", "100"])
        os.environ["LAB_OWNER"] = str(owner.pid)
        self.addCleanup(os.environ.pop, "LAB_OWNER")
        self.lab("up", "2")
        owner.kill()
        owner.wait()
        self.assertTrue(wait_until(lambda: not os.path.exists(self.state), 20))

    def test_faults(self):
        self.lab("up", "2")
        def reached():
            return self.on("node001", "timeout 2 bash -c 'echo >/dev/tcp/node002/22' 2>/dev/null "
                                      "&& echo yes || true") == "yes\n"
        for broken, mended in (("link-down", "link-up"), ("drop", "undrop"), ("drop in", "clear"),
                               ("drop out", "undrop"), ("if-down", "if-up"),
                               ("sshd-stop", "sshd-start")):
            with self.subTest(broken):
                self.lab("fault", "node002", *broken.split())
                self.assertIn(broken.split()[0], self.lab("status").stdout)
                self.assertFalse(reached())
                self.lab("fault", "node002", mended)
                self.assertTrue(wait_until(reached, 10))  # ARP may have given up for a moment
        self.assertNotIn("=", self.lab("status").stdout)
        self.lab("fault", "node002", "delay", "100")
        seconds = self.on("node001", "date +%s%N; echo >/dev/tcp/node002/22; date +%s%N".join(
            ("bash -c '", "'"))).split()
        self.assertGreater(int(seconds[1]) - int(seconds[0]), 200_000_000)

    def test_processes_that_stand_still_and_end(self):
        self.lab("up", "2")
        self.lab("fault", "node002", "freeze")
        self.assertEqual(self.on("node001", "timeout 1 ssh node002 true || echo none"), "none\n")
        self.lab("fault", "node002", "thaw")
        self.assertEqual(self.on("node001", "ssh node002 echo here"), "here\n")
        self.lab("fault", "node002", "sshd-hang")
        self.assertEqual(self.on("node001", "timeout 1 ssh node002 true || echo none"), "none\n")
        self.lab("fault", "node002", "shutdown")
        self.lab("fault", "node002", "boot")
        self.assertEqual(self.on("node001", "ssh node002 echo here"), "here\n")

    def test_a_name_server(self):
        self.lab("up", "2")
        self.lab("fault", "node001", "dns")
        said = self.on("node001", "getent hosts node002; getent hosts node077 || echo none; "
                                  "grep -c node /etc/hosts; ssh node002 hostname")
        self.assertEqual(said.split(), ["10.77.0.2", "node002", "none", "0", "node002"])
        self.lab("fault", "node001", "dns-off")
        self.lab("fault", "node001", "dns", "silent")
        self.assertEqual(self.on("node001", "timeout 1 getent hosts node002; echo $?"), "124\n")
        self.lab("fault", "node001", "dns-off")
        self.assertEqual(self.on("node001", "getent hosts node002").split()[0], "10.77.0.2")

    def test_folders_that_are_broken(self):
        work = os.path.join(self.folder.name, "work")
        os.mkdir(work)
        os.chmod(work, 0o777)
        self.lab("up", "1")
        for broken, said in (("readonly", "Read-only"), ("full", "No space")):
            with self.subTest(broken):
                self.lab("fault", "node001", broken, work)
                self.assertIn(said, self.on("node001", f"seq 99999 | tee {work}/x >/dev/null; true"))
                self.lab("fault", "node001", "mend", work)
        if not os.path.exists("/dev/fuse"):
            self.skipTest("no FUSE, so no slow folder; needs system with /dev/fuse")
        self.lab("fault", "node001", "slow", work, "1")
        self.on("node001", f"cd {work}; mkdir d; seq 99999 >d/a; mv d/a b; ln -s b c; cp /bin/true t; "
                           "./t; chmod 600 b; head -c 9 b >s; truncate -s 4 s; rm t; rmdir d")
        self.assertEqual(sorted(os.listdir(work)), ["b", "c", "s"])
        with open(f"{work}/c", encoding="ascii") as f:
            self.assertEqual(f.read().count("\n"), 99999)
        self.assertEqual(os.stat(f"{work}/b").st_mode & 0o777, 0o600)
        self.assertEqual(os.path.getsize(f"{work}/s"), 4)
        self.lab("fault", "node001", "stall", work)
        self.assertEqual(self.on("node001", f"timeout -s KILL 1 cat {work}/b; true"), "Killed\n")
        self.lab("fault", "node001", "unstall", work)
        self.assertEqual(self.on("node001", f"head -1 {work}/c"), "1\n")
        self.lab("fault", "node001", "stall", work)  # and the lab goes down


if __name__ == "__main__":
    main()
