"""Launches over several hosts that work, as root and as an ordinary user."""

import os
import re
import shutil
import signal
import threading

import hosts
from hosts import LabTest, main, node
from launch import PATIENT, wait_until, who_is_left
from terminal import OnTerminal, set_size

setUpModule = hosts.set_up
tearDownModule = hosts.tear_down

# PyTorch's oldest dialect: ADD of 1 to the key "/n", the answer is the sum
ADD = '''
import os, socket, struct
s = socket.create_connection((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])), 10)
s.sendall(b"\\x03" + struct.pack("<Q", 2) + b"/n" + struct.pack("<q", 1))
got = s.recv(8)
print(os.environ["MASTER_ADDR"], struct.unpack("<q", got)[0] if got else "closed", flush=True)
'''


class Works(LabTest):
    def ranks_of(self, user):
        launch = self.on(
            (1, 2), 'echo "$(hostname) $(id -un) $RANK $LOCAL_RANK $NODE_RANK $WORLD_SIZE"',
            slots=2, user=user,
        )
        self.assert_ended(launch, 0)
        self.assertEqual(
            sorted(launch.out.splitlines()),
            [
                f"[{r} {node(r // 2 + 1)}] {node(r // 2 + 1)} {user} {r} {r % 2} {r // 2} 4"
                for r in range(4)
            ],
        )
        self.assertEqual(launch.err, "")

    def test_as_an_ordinary_user(self):
        self.ranks_of("alice")

    def test_as_root(self):
        self.ranks_of("root")

    def test_from_a_host_that_has_no_rank(self):
        launch = self.on((2, 3), "hostname", host=5)
        self.assert_ended(launch, 0)
        self.assertEqual(
            sorted(launch.out.splitlines()), ["[0 node002] node002", "[1 node003] node003"]
        )

    def test_a_pseudo_terminal_on_another_host(self):
        lab = hosts.LAB_HOSTS
        script = ("import os, signal, time\ncame = []\n"
                  "signal.signal(signal.SIGWINCH, lambda *_: came.append(1))\n"
                  "print(os.uname().nodename, os.isatty(0), os.isatty(2), *os.get_terminal_size())\n"
                  "print('up', flush=True)\n"
                  "while not came: time.sleep(0.1)\n"
                  "print('now', *os.get_terminal_size(), flush=True)\n"
                  "while True: time.sleep(0.1)")
        terminal = OnTerminal(
            self.mark, "-H", self.hosts(2), "python3", "-c", script, env=lab.env,
            command=[hosts.LAB, "exec", "-l", "-u", "alice", node(1), "env", "-C", lab.folder,
                     f"DDPRUN_TEST_MARK={self.mark}", lab.ddprun])
        self.assertEqual(terminal.read("up").strip(), "node002 True True 80 24")
        set_size(terminal.fd, 40, 132)
        terminal.read("now 132 40")
        self.assertTrue(terminal.is_raw())
        terminal.type("\x03")
        seen = terminal.read()
        self.assertEqual(terminal.end(), 130, seen)
        self.assertTrue(terminal.restored)
        self.assertIn("KeyboardInterrupt", seen)

    def test_nothing_installed_on_the_other_hosts(self):
        for _ in range(2):  # the second time it is there
            launch = self.on((2, 3), "readlink /proc/$PPID/exe", "--agent", "push")
            self.assert_ended(launch, 0)
            self.assertEqual(launch.err, "")
            for line in launch.out.splitlines():
                self.assertRegex(line, r"/ddprun-\d+/[0-9a-f]{64}/ddprun-agent$")

    def test_a_hostfile(self):
        path = self.write("hosts", "node001 slots=1\nnode002:2\nnode003 slots=1\n")
        launch = self.run_to_end("--hostfile", path, "sh", "-c", "echo $RANK $(hostname)")
        self.assert_ended(launch, 0)
        self.assertEqual(
            sorted(line.split("] ")[1] for line in launch.out.splitlines()),
            ["0 node001", "1 node002", "2 node002", "3 node003"],
        )

    def test_every_rank_reaches_the_store(self):
        # every host has a docker0 with one and the same address: a trap for MASTER_ADDR
        for host in (1, 4):  # also when the launcher is not on the store's host
            with self.subTest(host):
                launch = self.run_to_end(
                    "-H", self.hosts(1, 2, 3, slots=2), "python3", "-c", ADD, host=host
                )
                self.assert_ended(launch, 0)
                words = [line.split("] ")[1].split() for line in launch.out.splitlines()]
                self.assertEqual(sorted(w[1] for w in words), list("123456"))
                self.assertEqual(len({w[0] for w in words}), 1)
                self.assertFalse(words[0][0].startswith(("127.", "172.17.", "::")))

    def test_strangers_on_every_host_are_shut_out(self):
        launch = self.start_on(
            (1, 2), "echo at $MASTER_ADDR $MASTER_PORT; cat", stdin=b"", user="alice"
        )
        self.wait_for(launch, "at 10")
        address, port = re.search(r"at (\S+) (\d+)", launch.out).groups()
        code = (
            f"import os; os.environ.update(MASTER_ADDR='{address}', MASTER_PORT='{port}')\n{ADD}"
        )
        for number in (1, 2, 3):
            try:
                said = hosts.LAB_HOSTS("exec", "-l", "-u", "alice", node(number), "python3", "-c", code)
            except RuntimeError as reset:  # closed before it was read
                said = str(reset)
            self.assertRegex(said, "closed|reset by peer|Connection refused", node(number))
        launch.wait()
        self.assert_ended(launch, 0)

    def test_much_output_of_many_hosts(self):
        launch = self.on((1, 2, 3, 4), "seq 25000", slots=2)
        self.assert_ended(launch, 0)
        seen = {}
        for line in launch.out.splitlines():
            tag, number = line.rsplit(" ", 1)
            seen[tag] = seen.get(tag, 0) + 1
            self.assertEqual(int(number), seen[tag])
        self.assertEqual(list(seen.values()), [25000] * 8)

    def test_stdin_reaches_rank_0_on_another_host(self):
        launch = self.on((2, 3), 'echo "$RANK:$(wc -c)"', stdin=b"x" * 300000)
        self.assert_ended(launch, 0)
        self.assertEqual(
            sorted(line.split("] ")[1] for line in launch.out.splitlines()),
            ["0:300000", "1:0"],
        )

    def test_the_environment_travels(self):
        launch = self.on((2,), 'echo "$MY_OWN"', "-x", "MY_OWN", env={"MY_OWN": "a b"})
        self.assert_ended(launch, 0)
        self.assertIn("a b\n", launch.out)

    def test_a_folder_that_is_only_here_is_named(self):
        hosts.LAB_HOSTS("exec", "node001", "mkdir", "-p", "-m", "777", "/run/only-here")
        launch = self.on((1, 2), "pwd", cwd="/run/only-here")
        self.assertNotEqual(launch.rc, 0)
        self.assertIn("node002", launch.err)
        self.assertIn("/run/only-here", launch.err)


    def test_an_environment_of_python_that_is_only_here_is_named(self):
        """The other host runs the system's Python, which may have other packages."""
        hosts.LAB_HOSTS("exec", "node001", "sh", "-c", "mkdir -p /run/venv/bin && "
                        "ln -sf /usr/bin/python3 /run/venv/bin/python3")
        for name, warned in (("VIRTUAL_ENV", 1), ("CONDA_PREFIX", 1), ("OTHER_PREFIX", 0)):
            launch = self.run_to_end("-H", self.hosts(1, 2, slots=1), "python3", "-c", "pass", env={
                name: "/run/venv", "PATH": "/run/venv/bin:/usr/bin:/bin"})
            self.assert_ended(launch, 0)
            self.assertEqual(launch.err.count(f"the Python environment '/run/venv' ({name}) is missing "
                                              "on node002, which runs '/usr/bin/python3'"), warned, launch.err)
            self.assertEqual(launch.err.count("Python"), warned, launch.err)


class Trees(LabTest):
    ALL = tuple(range(1, 9))

    def on_all(self, *options):
        launch = self.on(self.ALL, "hostname", *options)
        self.assert_ended(launch, 0)
        self.assertEqual(
            sorted(line.split("] ")[1] for line in launch.out.splitlines()),
            [node(n) for n in self.ALL],
        )
        return launch

    def test_a_tree_of_width_2(self):
        self.on_all("--tree-width", 2)

    def test_flat(self):
        self.on_all("--tree-width", 0)

    def test_a_tree_that_cannot_grow_falls_back_to_flat(self):
        ssh = self.write(
            "ssh", '#!/bin/sh\n[ "$(hostname)" = node001 ] || exit 255\nexec ssh "$@"\n', 0o755
        )
        self.on_all("--tree-width", 2, "--ssh", ssh)

    def test_failures_come_up_the_tree(self):
        launch = self.on(
            self.ALL, '[ $RANK = 6 ] && { echo why >&2; exit 9; }; exec sleep 60',
            "--tree-width", 2,
        )
        self.assert_ended(launch, 9)
        for word in ("rank 6", "node007", "why"):
            self.assertIn(word, launch.err)


class Configuration(LabTest):
    def kex(self):
        said = hosts.LAB_HOSTS("exec", "-l", "-u", "alice", "node001", "ssh", "-G", "-F",
                               os.path.join(hosts.LAB_HOSTS.bin, "ssh_config"), "node002")
        return re.search("^kexalgorithms (.*)$", said, re.M)[1].split(",")

    def test_the_cheap_key_exchange_is_only_a_default(self):
        dry = self.run_to_end("--dry-run", "-H", self.hosts(1, 2), "true")
        version = hosts.LAB_HOSTS("exec", "node001", "ssh", "-V")
        self.assertEqual("/ssh_config" in dry.out, "OpenSSH_9" in version, dry.out + version)
        usual = self.kex()
        self.assertTrue(usual[0].startswith("curve25519"), usual)
        self.assertIn("ecdh-sha2-nistp256", usual)  # the others are still there
        home = hosts.LAB_HOSTS("exec", "-l", "-u", "alice", "node001", "sh", "-c", "echo $HOME")
        folder = os.path.join(home.strip(), ".ssh")
        os.mkdir(folder)
        self.addCleanup(shutil.rmtree, folder)
        with open(os.path.join(folder, "config"), "w", encoding="ascii") as f:
            f.write("Host node*\n    KexAlgorithms ecdh-sha2-nistp256\n")
        self.assertEqual(self.kex(), ["ecdh-sha2-nistp256"])


class NoWayBack(LabTest):
    """Agents that reach no other host: a firewall before the launcher."""

    def agent(self, *numbers):
        names = "|".join(node(n) for n in numbers)
        return self.write(
            "agent", f"#!/bin/sh\necho welcome to $(hostname)\ncase $(hostname) in ({names}) "
            f"exec unshare -n sh -c 'ip link set lo up; exec {hosts.LAB_HOSTS.bin}/ddprun-agent';; esac\n"
            f"exec {hosts.LAB_HOSTS.bin}/ddprun-agent\n", 0o755)

    def test_they_speak_through_ssh(self):
        launch = self.on(
            (2, 3, 4), 'echo "$RANK $(hostname)"; seq 20000; wc -c; exit 0', "--agent",
            self.agent(3, 4), "--stdin", "all", stdin=b"x" * 300000, user="root")
        self.assert_ended(launch, 0)
        self.assertEqual(launch.out.count("] 20000\n"), 3)
        self.assertEqual(launch.out.count("] 300000\n"), 3)

    def test_their_failures_come_through(self):
        launch = self.on((2, 3), "[ $RANK = 1 ] && exit 7; sleep 60", "--agent", self.agent(3),
                         user="root")
        self.assert_ended(launch, 7)
        self.assertIn("rank 1 on node003", launch.err.splitlines()[0])

    def test_the_launcher_is_killed(self):
        launch = self.start_on((2, 3), "trap '' TERM; echo up; sleep 60; sleep 60", "--agent",
                               self.agent(3), user="root")
        self.assertTrue(wait_until(lambda: launch.out.count("up\n") == 2), launch.err)
        launch.signal(signal.SIGKILL)
        launch.wait()
        self.assertEqual(who_is_left(*self.marks), {})

    def test_in_a_tree(self):
        launch = self.on(range(1, 9), "hostname", "--tree-width", 2, "--agent",
                         self.agent(4, 6, 8), user="root")
        self.assert_ended(launch, 0)
        self.assertEqual(launch.out.count("] node"), 8)


class Ends(LabTest):
    def test_the_first_failure_ends_all_hosts(self):
        launch = self.on((1, 2, 3), '[ $RANK = 2 ] && exit 3; exec sleep 60')
        self.assert_ended(launch, 3)
        headline = launch.err.splitlines()[0]
        self.assertIn("rank 2", headline)
        self.assertIn("node003", headline)

    def test_a_program_that_is_not_there(self):
        launch = self.run_to_end("-H", self.hosts(2, 3), "no-such-program-at-all")
        self.assert_ended(launch, 127)
        self.assertIn("no-such-program-at-all", launch.err)

    def test_ctrl_c(self):
        launch = self.start_on((1, 2, 3), "trap 'echo bye; exit 0' INT TERM; echo up; "
                               "while :; do sleep 0.1; done", *PATIENT)
        self.assertTrue(wait_until(lambda: launch.out.count("up\n") == 3), launch.err)
        self.end_by(launch, signal.SIGINT, 130)
        self.assertEqual(launch.out.count("bye\n"), 3)

    def send_junk(self, name):
        """Bytes that are none of ours for every port where other hosts reach `name`."""
        listening = hosts.LAB_HOSTS("exec", "node001", "ss", "-ltnpH")
        ports = {int(m[1]) for m in re.finditer(rf"(?<!127\.0\.0\.1):(\d+) .*\"{name}\"", listening)}
        self.assertTrue(ports, listening)
        for port in ports:
            code = (
                "import socket\n"
                f"silent = socket.create_connection(('10.77.0.1', {port}), 5)\n"
                f"for junk in (bytes(range(256)) * 8, b'\\0' * 64, b'GET / HTTP/1.0\\r\\n\\r\\n'):\n"
                f"    s = socket.create_connection(('10.77.0.1', {port}), 5)\n"
                "    s.settimeout(2); s.sendall(junk)\n"
                "    try:\n        print('got', len(s.recv(4096)))\n"
                "    except OSError as e:\n        print(e)\n"
            )
            hosts.LAB_HOSTS("exec", "-l", "-u", "alice", "node004", "python3", "-c", code)

    def test_strangers_at_the_store_do_no_harm(self):
        go = self.path("go")
        launch = self.start_on((1, 2), f"echo up; until [ -e {go} ]; do sleep 0.1; done; echo done")
        self.assertTrue(wait_until(lambda: launch.out.count("up\n") == 2), launch.err)
        # the agents' port is closed when all have joined
        self.assertNotIn('"ddprun"', hosts.LAB_HOSTS("exec", "node001", "ss", "-ltnpH"))
        self.send_junk("ddp-agent")  # the launcher's own host's
        self.write("go", "")
        launch.wait()
        self.assert_ended(launch, 0)
        self.assertEqual(launch.out.count("done\n"), 2)

    def test_strangers_do_no_harm_while_agents_are_awaited(self):
        agent = self.write(
            "agent", f"#!/bin/sh\nuntil [ -e {self.path('go')} ]; do sleep 0.1; done\n"
            f"exec {hosts.LAB_HOSTS.bin}/ddprun-agent\n", 0o755)
        launch = self.start_on((2, 3), "echo up", "--agent", agent)
        self.assertTrue(wait_until(
            lambda: '"ddprun"' in hosts.LAB_HOSTS("exec", "node001", "ss", "-ltnpH")))
        self.send_junk("ddprun")
        held = threading.Thread(target=self.hold_connections, args=("ddprun", 500))
        held.start()
        self.assertTrue(wait_until(lambda: os.path.exists(self.path("held"))))
        self.write("go", "")
        launch.wait()
        held.join()
        self.assert_ended(launch, 0)
        self.assertEqual(launch.out.count("up\n"), 2)
        self.assertRegex(launch.err, r"refused a connection from 10\.77\.0\.4:\d+ to the agents' port")

    def hold_connections(self, name, n):
        """`n` connections from another host that send a byte now and then, until "go"."""
        listening = hosts.LAB_HOSTS("exec", "node001", "ss", "-ltnpH")
        port = int(re.search(rf":(\d+) .*\"{name}\"", listening)[1])
        code = (
            "import os, socket, sys, time\n"
            f"all = [socket.create_connection(('10.77.0.1', {port}), 9) for _ in range({n})]\n"
            f"open({self.path('held')!r}, 'w').close()\n"
            f"while not os.path.exists({self.path('go')!r}):\n"
            "    time.sleep(0.2)\n"
            "end = time.monotonic() + 2\n"
            "while time.monotonic() < end:\n"
            "    for s in all:\n"
            "        try:\n            s.send(b'D')\n"
            "        except OSError:\n            pass\n"
            "    time.sleep(0.2)\n")
        hosts.LAB_HOSTS("exec", "-l", "node004", "python3", "-c", code)


if __name__ == "__main__":
    main()
