"""ddprun --preflight: hosts that are fit, and hosts that are not, each in its own way."""

import os
import shutil

import hosts
from hosts import LabTest, main, node
from launch import wait_until

setUpModule = hosts.set_up
tearDownModule = hosts.tear_down


class Preflight(LabTest):
    def look(self, numbers, *args, hostlist=None, **how):
        return self.run_to_end(
            "--preflight", "-H", hostlist or self.hosts(*numbers), *args, deadline=120, **how)

    def fit(self, *args, **how):
        launch = self.look(*args, **how)
        self.assert_ended(launch, 0)
        return launch

    def inside(self, number, script):
        hosts.LAB_HOSTS("exec", node(number), "sh", "-ec", script)

    def mount(self, number, script, *places):
        """Mounts of `script` on a host, undone afterwards."""
        self.addCleanup(self.inside, number, "; ".join(f"umount '{p}'" for p in reversed(places)))
        self.inside(number, script)

    def problems(self, launch, number):
        """The problems reported of a host, alone or with others."""
        found = []
        for line in launch.err.splitlines():
            words = line.split(": ", 2)
            if words[0] == "ddprun" and len(words) > 2 and node(number)[4:] in words[1]:
                found.append(words[2])
        return found

    def assert_problem(self, launch, number, *words):
        said = self.problems(launch, number)
        self.assertTrue(any(all(w in line for w in words) for line in said),
                        f"{node(number)} {words}:\n{launch.out}\n{launch.err}")

    def test_hosts_that_are_fit(self):
        launch = self.fit((1, 2, 3), "sh", "-c", "exit 9")
        checks = {line[2:].split()[0] for line in launch.out.splitlines() if line[2] != " "}
        self.assertLessEqual(
            {"reached", "agent", "user", "clock", "cpus", "gpus", "directory", "program",
             "libraries", "/tmp", "/dev/shm", "limits", "names", "port", "network"},
            checks)
        self.assertNotIn("\n!", launch.out)
        self.assertNotIn("ddprun: node", launch.err)

    def test_a_master_that_others_cannot_reach(self):
        for addr in ("127.0.0.1", "localhost"):
            launch = self.look((1, 2), "--master-addr", addr, "true")
            self.assert_ended(launch, 1)
            self.assert_problem(launch, 2, f"ranks there cannot reach rank 0's host at MASTER_ADDR={addr}: "
                                           "leave out --master-addr")
        launch = self.look((1, 2), "--master-addr", "10.77.0.99", "true")
        self.assert_ended(launch, 1)
        self.assert_problem(launch, 2, "network", "'10.77.0.99'", "node001")

    def test_a_python_program(self):
        script = self.write("train.py", "raise SystemExit(9)\n")
        for module in ("csv", "email", "typing"):  # which a rank would not import
            self.write(f"{module}.py", f"open({self.path('imported')!r}, 'w')")
        launch = self.fit((2, 3), "--wdir", self.folder.name, "/usr/bin/python3", script)
        self.assertIn("Python 3.", launch.out)
        self.assertFalse(os.path.exists(self.path("imported")))
        self.assertIn("train.py", launch.out)

    def test_one_fault_each(self):
        program = self.write("train", "#!/bin/sh\nexit 9\n", 0o755)
        other = self.write("other", "#!/bin/sh\nexit 8\n", 0o755)
        self.mount(2, f"mount --bind {other} {program}", program)
        self.addCleanup(self.fault, 3, "mend", "/tmp")
        self.fault(3, "full", "/tmp", self.folder.name, hosts.LAB_HOSTS.folder)
        # a name server that does not answer
        self.inside(4, "mkfifo -m 666 /run/silent")
        self.mount(4, "mount --bind /run/silent /etc/hosts", "/etc/hosts")
        self.addCleanup(self.heal, 5)
        self.fault(5, "sshd-stop")
        # the launcher reaches both, but not the one the other
        self.addCleanup(self.inside, 6, "ip route del unreachable 10.77.0.7/32")
        self.inside(6, "ip route add unreachable 10.77.0.7/32")
        self.addCleanup(self.heal, 8)
        self.fault(8, "mtu", "1200", node(7))
        shim = shutil.copy(os.environ["CLOCK_SHIFT"], hosts.LAB_HOSTS.folder)
        agent = self.write(
            "agent", f"#!/bin/sh\n[ $(hostname) = node007 ] && export LD_PRELOAD={shim} "
            f"ASAN_OPTIONS=verify_asan_link_order=0 DDPRUN_TEST_CLOCK_SHIFT=3600\nexec {hosts.LAB_HOSTS.bin}/ddprun-agent\n", 0o755)
        launch = self.look(
            (1, 2, 3, 4, 5, 6, 7, 8), "--agent", agent, program, cwd=self.folder.name)
        self.assert_ended(launch, 1)
        self.assert_problem(launch, 2, "program", "sha256", "node[001")
        self.assert_problem(launch, 3, "/tmp", "is full there")
        self.assert_problem(launch, 4, "names", "no answer after 10 s")
        self.assert_problem(launch, 5, "reached", "refused")
        self.assert_problem(launch, 6, "network", "No route to host", "node007", "firewall")
        self.assert_problem(launch, 7, "clock", "3600.0 s ahead")
        self.assert_problem(launch, 7, "network", "node008", "MTU")
        for fit in (1, 8):
            self.assertEqual(self.problems(launch, fit), [], launch.err)
        self.assertIn("on 6 of 8 hosts", launch.err)

    def test_what_is_not_there(self):
        program = self.write("train", "#!/bin/sh\nexit 9\n", 0o755)
        bad = self.write("hosts", "127.0.0.1 localhost\n10.77.0.1 node001\n"
                         "10.77.0.99 node003\n10.77.0.4 node004\n")
        self.mount(2, f"mount --bind {bad} /etc/hosts", "/etc/hosts")
        self.mount(3, f"mount -t tmpfs none {self.folder.name}", self.folder.name)
        self.mount(4, "mount -t tmpfs -o size=64k none /dev/shm", "/dev/shm")
        os.mkdir(self.path("work"))
        launch = self.look((1, 2, 3, 4), program, cwd=self.path("work"))
        self.assert_ended(launch, 1)
        self.assert_problem(launch, 2, "names", "10.77.0.99")
        self.assert_problem(launch, 3, "directory", self.path("work"), "home shared")
        self.assert_problem(launch, 4, "/dev/shm", "free" if "full" not in launch.err else "full")

    def test_a_host_that_goes_away_meanwhile(self):
        self.addCleanup(self.heal, 3)
        self.inside(3, "mkfifo -m 666 /run/silent; mount --bind /run/silent /etc/hosts")
        launch = self.start("--preflight", "-H", self.hosts(1, 2, 3), "true")
        # the agent, and the process that looks, and hangs
        agent = hosts.LAB_HOSTS.bin + "/ddprun-agent"
        self.assertTrue(wait_until(lambda: sum(
            agent in line for line in self.on_host(3).values()) > 1), self.on_host(3))
        self.fault(3, "kill")
        launch.wait()
        self.assert_ended(launch, 1)
        self.assert_problem(launch, 3, "is lost")
        self.assertIn("network", launch.out)  # the others go on

    def test_no_host_at_all(self):
        launch = self.look((), "true", hostlist="nosuch1,nosuch2", host=1)
        self.assert_ended(launch, 1)
        self.assertIn("nosuch[1-2]: reached: the name cannot be resolved", launch.err)
        self.assertIn("2 problems" if launch.err.count("reached") > 1 else "1 problem", launch.err)


if __name__ == "__main__":
    main()
