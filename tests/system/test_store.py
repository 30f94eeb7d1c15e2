"""The store of a launch: bound before any rank starts, open to the job only.

The ranks speak PyTorch's oldest dialect by hand: 03 is ADD, with a length before the key
and 64-bit numbers, everything little-endian; the answer is the sum.
"""

import os
import shutil
import socket
import subprocess
import unittest

from launch import DDPRUN, LaunchTest, free_port, main, make_network

ADD = '''
import os, socket, struct, sys, time
# of a job of one rank
PORT = os.environ.get("DDPRUN_STORE_PORT", os.environ["MASTER_PORT"]).partition("@")[0]
def add(key, n, host=None, port=None, timeout=30):
    s = socket.create_connection((host or os.environ["MASTER_ADDR"],
                                  port or int(PORT)), timeout)
    k = key.encode()
    s.sendall(b"\\x03" + struct.pack("<Q", len(k)) + k + struct.pack("<q", n))
    got = b""
    while len(got) < 8:
        more = s.recv(8 - len(got))
        if not more:
            raise SystemExit("closed")
        got += more
    return struct.unpack("<q", got)[0]
'''


class Store(LaunchTest):
    def python(self, np, script, *options, **how):
        return self.run_to_end("-np", np, *options, "python3", "-c", ADD + script, **how)

    def test_ranks_meet(self):
        launch = self.python(4, 'print(add("/n", 1))')
        self.assert_ended(launch, 0)
        self.assertEqual(sorted(line[4:] for line in launch.out.splitlines()), list("1234"))

    def test_a_child_of_a_rank_belongs(self):
        launch = self.python(
            2, 'import subprocess; os.fork() and os.wait() or print("sum", add("/n", 1))'
        )
        self.assert_ended(launch, 0)
        self.assertIn("sum 2\n", launch.out)

    def test_an_orphan_of_a_rank_belongs(self):
        launch = self.python(
            1,
            'r, w = os.pipe()\n'
            'if os.fork() == 0:\n'
            '    if os.fork() == 0:\n'
            '        os.setsid(); time.sleep(0.2)\n'
            '        os.write(w, b"%d" % add("/n", 5)); os._exit(0)\n'
            '    os._exit(0)\n'
            'os.wait(); os.close(w); print(os.read(r, 9).decode())',
        )
        self.assert_ended(launch, 0)
        self.assertEqual(launch.out, "5\n")

    def start_with_stranger(self, *options):
        """A rank that waits for a line; another process has asked its store to add 7."""
        launch = self.start(
            "-np", 1, *options, "python3", "-u", "-c",
            ADD + 'print(os.environ["MASTER_ADDR"], PORT, flush=True)\n'
            'input()\nprint("sum", add("/n", 1))',
            stdin=b"",
        )
        self.wait_for(launch, "\n")
        host, port = launch.out.split()
        stranger = socket.create_connection((host, int(port)), 30)
        stranger.settimeout(30)
        stranger.sendall(b"\x03" + (2).to_bytes(8, "little") + b"/n" + (7).to_bytes(8, "little"))
        return launch, stranger

    def test_a_stranger_is_shut_out_and_the_job_goes_on(self):
        launch, stranger = self.start_with_stranger()
        with stranger:
            try:
                self.assertEqual(stranger.recv(8), b"")  # closed, not left waiting
            except ConnectionResetError:
                pass
        launch.input = b"\n"
        launch.wait()
        self.assert_ended(launch, 0)
        self.assertTrue(launch.out.endswith("sum 1\n"), launch.out)
        self.assertRegex(launch.err, "refused a connection from .* to the store: no process of")

    def test_what_rank_0s_host_does_not_have(self):
        for option, value, line in (
                ("--master-addr", "198.51.100.7", "ddprun: '198.51.100.7' is no address of rank 0's host; "
                 "--master-addr and --interface choose another\n"),
                ("--master-addr", "none.invalid", "--master-addr 'none.invalid' cannot be resolved on"),
                ("--interface", "none0", "rank 0's host: network interface 'none0' is not there")):
            launch = self.run_to_end("-np", 2, option, value, "true")
            self.assert_ended(launch, 125)
            self.assertIn(line, launch.err)

    def as_rank(self, *prefix, **how):
        """A rank that `prefix` starts connects."""
        launch = self.run_to_end(
            "-np", 1, *prefix, "/usr/bin/python3", "-c", ADD + 'print("sum", add("/n", 1))', **how)
        self.assert_ended(launch, 0)
        self.assertIn("sum 1\n", launch.out)

    @unittest.skipUnless(os.geteuid() == 0, "only root can be another user; needs root")
    def test_a_rank_that_changes_its_user_belongs(self):
        self.as_rank("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")

    def test_a_rank_in_namespaces_belongs(self):
        own = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount"]
        if subprocess.run([*own, "true"], capture_output=True, check=False).returncode != 0:
            self.skipTest("no user namespaces; needs system user namespaces")
        self.as_rank(*own)

    @unittest.skipUnless(os.geteuid() == 0, "only root can make networks; needs root")
    def test_a_rank_in_a_network_of_its_own_is_told_why(self):
        name, here, there = make_network(self)
        launch = self.run_to_end(
            "-np", 1, "--master-addr", here, "ip", "netns", "exec", name,
            "/usr/bin/python3", "-c", ADD + 'print("sum", add("/n", 1))')
        self.assertEqual(launch.rc, 1, launch.err)
        self.assertRegex(launch.err, f"refused a connection from {there}:[0-9]+ to the store: "
                                     ".*a container needs its host's network")

    @unittest.skipUnless(os.geteuid() == 0, "a folder that other users can read; needs root")
    def test_a_rank_whose_program_cannot_be_read_belongs(self):
        """Its descriptors are hidden from the agent, which is not root here."""
        for folder in (self.folder.name, self.path("bin")):
            os.makedirs(folder, exist_ok=True)
            os.chmod(folder, 0o755)
        for program in (DDPRUN, os.path.join(os.path.dirname(DDPRUN), "ddprun-agent")):
            shutil.copy(program, self.path("bin"))
        python = shutil.copy(os.path.realpath("/usr/bin/python3"), self.path("bin", "hidden"))
        os.chmod(python, 0o711)
        launch = self.run_to_end(
            self.path("bin", "ddprun"), "-np", 1, python, "-c",
            ADD + 'print("sum", add("/n", 1))',
            command=("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "env", "-C",
                     self.folder.name, "HOME=" + self.folder.name))
        self.assert_ended(launch, 0)
        self.assertIn("sum 1\n", launch.out)

    def test_an_open_store_takes_strangers_and_says_so(self):
        launch, stranger = self.start_with_stranger("--store-open")
        with stranger:
            self.assertEqual(stranger.recv(8), (7).to_bytes(8, "little"))
        launch.input = b"\n"
        launch.wait()
        self.assert_ended(launch, 0)
        self.assertTrue(launch.out.endswith("sum 8\n"), launch.out)
        self.assertIn("--store-open", launch.err)

    def test_the_port_can_be_chosen(self):
        port = free_port()
        launch = self.sh(1, "echo $MASTER_PORT", "--store-port", port)
        self.assert_ended(launch, 0)
        self.assertEqual(launch.out.strip(), str(port))

    def test_a_port_that_is_taken_is_named(self):
        with socket.socket(socket.AF_INET6) as taken:
            taken.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            taken.bind(("::", 0))
            taken.listen()
            port = taken.getsockname()[1]
            launch = self.sh(2, f"touch {self.path('started')}", "--store-port", port)
        self.assert_ended(launch, 125)
        self.assertRegex(launch.err, rf"port {port}: Address already in use by \S+ \(pid {os.getpid()}\)")
        self.assertIn("without --store-port", launch.err)
        self.assertRaises(OSError, open, self.path("started"))

    def test_a_port_that_is_left_to_another_job_is_named(self):
        """Also before its program listens there; it is free again when that job ends."""
        port = free_port()
        options = ("-np", 1, "--store-port", port)
        first = self.start(*options, "sh", "-c", "echo up; exec sleep 300")
        self.wait_for(first, "up")
        for ranks in (1, 2):
            second = self.run_to_end("-np", ranks, "--store-port", port, "true")
            self.assert_ended(second, 125)
            self.assertIn(f"port {port} is left to rank 0 of another job", second.err)
        first.end()
        self.assert_ended(self.run_to_end(*options, "true"), 0)

    @unittest.skipUnless(os.geteuid() == 0, "only root can make networks; needs root")
    def test_a_drawn_port_that_is_left_to_another_job_is_not_taken(self):
        """In a network where only one port can be drawn, a job starts another."""
        draw = 'echo 20001 60999 >/proc/sys/net/ipv4/ip_local_port_range; ip link set lo up; exec "$0" "$@"'
        launch = self.sh(1, f"echo $MASTER_PORT; {DDPRUN} -np 1 sh -c 'echo $MASTER_PORT'",
                         command=["unshare", "-n", "sh", "-c", draw, DDPRUN])
        self.assert_ended(launch, 0)
        first, second = map(int, launch.out.split())
        self.assertEqual(first, 20000)
        self.assertGreater(second, 20000)

    @unittest.skipUnless(os.geteuid() == 0, "only root can make networks; needs root")
    def test_claims_of_all_ports_do_not_stop_a_job(self):
        """As another user could make them."""
        claim = self.write("claim.py", """
import socket, subprocess, sys
with open("/proc/sys/net/ipv4/ip_local_port_range", "w") as f:
    f.write("20001 20009")
claims = [socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(10)]
for i, s in enumerate(claims):
    s.bind(f"\\0ddprun-port-{20000 + i}")
subprocess.run(("ip", "link", "set", "lo", "up"), check=True)
sys.exit(subprocess.call(sys.argv[1:]))
""")
        launch = self.sh(1, "echo $MASTER_PORT", command=["unshare", "-n", "python3", claim, DDPRUN])
        self.assert_ended(launch, 0)
        self.assertRegex(launch.out, r"^2000\d\n$")

    def test_rank_0_may_host_the_store_itself(self):
        launch = self.python(
            2,
            'if os.environ["RANK"] == "0":\n'
            '    s = socket.create_server(("", int(os.environ["MASTER_PORT"])))\n'
            '    s.settimeout(40); print(s.accept()[0].recv(5).decode())\n'
            'else:\n'
            '    for i in range(600):\n'
            '        try:\n'
            '            s = socket.create_connection((os.environ["MASTER_ADDR"],\n'
            '                                          int(os.environ["MASTER_PORT"])), 30)\n'
            '            s.sendall(b"hello"); break\n'
            '        except OSError:\n'
            '            time.sleep(0.05)',
            "--store", "rank0",
        )
        self.assert_ended(launch, 0)
        self.assertEqual(launch.out, "[0] hello\n")

    def test_the_only_rank_may_host_a_store_itself(self):
        """At MASTER_PORT, as it would without a launcher: ddprun's store is beside it."""
        own = ('print(os.environ["TORCHELASTIC_USE_AGENT_STORE"])\n'
               'socket.create_server(("", int(os.environ["MASTER_PORT"])))\n'
               'print("sum", add("/n", 1))')
        for options in ((), ("--store-port", free_port())):
            launch = self.python(1, own, *options)
            self.assert_ended(launch, 0)
            self.assertEqual(launch.out, "False\nsum 1\n", options)
        again = 'sys.exit(1 - int(os.environ["TORCHELASTIC_RESTART_COUNT"]))'
        launch = self.python(1, f'{own}\nprint(PORT, os.environ["MASTER_PORT"])\n{again}',
                             "--max-restarts", 1)
        self.assert_ended(launch, 0)
        said = launch.out.split("\n")
        self.assertEqual([said[1], said[4]], ["sum 1", "sum 1"])  # its keys are new
        (store, first), (same, second) = said[2].split(), said[5].split()
        self.assertEqual(store, same)
        self.assertNotEqual(first, second)

    def test_where_the_only_rank_finds_the_store_at_master_port(self):
        served = ('print(os.environ["TORCHELASTIC_USE_AGENT_STORE"],'
                  ' add("/n", 1, None, os.environ["MASTER_PORT"]),'
                  ' os.environ.get("DDPRUN_STORE_PORT"))')
        for options in (("--store", "launcher"), ("--store-open",)):
            launch = self.python(1, served, *options, env={"DDPRUN_STORE_PORT": "1"})
            self.assert_ended(launch, 0)
            self.assertEqual(launch.out, "True 1 None\n", options)
        # one that may get more
        launch = self.run_to_end("--nnodes", "1:2", "-H", "localhost", "python3", "-c",
                                 ADD + served)
        self.assert_ended(launch, 0)
        self.assertIn("True 1 None\n", launch.out)

    def test_64_ranks_at_once(self):
        launch = self.python(64, 'print(add("/n", 1))', deadline=120)
        self.assert_ended(launch, 0)
        self.assertEqual(
            sorted(int(line.split()[1]) for line in launch.out.splitlines()),
            list(range(1, 65)),
        )


if __name__ == "__main__":
    main()
