#!/usr/bin/env python3
"""ddpstored over TCP: clients of both kinds, half requests, slow readers, limits, signals.

usage: test_ddpstored.py DDPSTORED
"""
import os
import random
import resource
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "system"))
import launch  # noqa: E402

DDPSTORED = sys.argv.pop(1)
PATIENCE = 60  # seconds; only a hang takes so long

HELLO = b"\0" + struct.pack("<I", 0x3C85F7CE) + b"\x0d\x34\x12\0\0"
SET, GET, ADD, CHECK, WAIT, DELETE, APPEND, MULTI_GET = 1, 3, 4, 5, 6, 8, 9, 10


def text(s):
    s = s if isinstance(s, bytes) else s.encode()
    return struct.pack("<Q", len(s)) + s


def keys(*names):
    return struct.pack("<Q", len(names)) + b"".join(map(text, names))


class Client:
    def __init__(self, port, host="127.0.0.1", hello=True):
        self.sock = socket.create_connection((host, port), timeout=PATIENCE)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if hello:
            try:
                self.sock.sendall(HELLO)
                assert self.read(4) == HELLO[6:]
            except (EOFError, ConnectionError):
                self.sock.close()
                raise

    def send(self, op, *parts):
        self.sock.sendall(bytes([op]) + b"".join(parts))

    def read(self, n):
        data = b""
        while len(data) < n:
            more = self.sock.recv(n - len(data))
            if not more:
                raise EOFError(f"closed after {len(data)} of {n} bytes")
            data += more
        return data

    def text(self):
        return self.read(struct.unpack("<Q", self.read(8))[0])

    def number(self):
        return struct.unpack("<q", self.read(8))[0]

    def get(self, key):
        self.send(GET, text(key))
        return self.text()

    def is_closed(self):
        try:
            return self.sock.recv(1) == b""
        except ConnectionError:
            return True

    def is_silent(self):
        self.sock.settimeout(0.2)
        try:
            self.sock.recv(1)
            return False
        except TimeoutError:
            return True
        finally:
            self.sock.settimeout(PATIENCE)


class Stored(unittest.TestCase):
    def start(self, *options, preexec_fn=None):
        self.errors = tempfile.TemporaryFile()
        self.daemon = subprocess.Popen(
            [DDPSTORED, "--port", "0", *options], stdout=subprocess.PIPE,
            stderr=self.errors, text=True, preexec_fn=preexec_fn,
            # memory is measured: a sanitizer is not to keep what was freed
            env=os.environ | {"ASAN_OPTIONS": "quarantine_size_mb=0"})
        self.addCleanup(self.stop)
        self.port = int(self.daemon.stdout.readline())
        return self.port

    def stop(self):
        if self.daemon.poll() is None:
            self.daemon.kill()
        self.daemon.wait()
        self.daemon.stdout.close()
        self.errors.close()

    def said(self):
        # no seek(): the daemon shares the offset, and would write over what it wrote first
        fd = self.errors.fileno()
        return os.pread(fd, os.fstat(fd).st_size, 0).decode()

    def assert_says(self, line):
        """Soon: a client sees its end before the daemon has written about it."""
        end = time.monotonic() + PATIENCE
        while line not in self.said() and time.monotonic() < end:
            time.sleep(0.01)
        self.assertIn(line, self.said())

    def end(self, signo=signal.SIGTERM):
        self.daemon.send_signal(signo)
        return self.daemon.wait(PATIENCE)

    def client(self, **more):
        c = Client(self.port, **more)
        self.addCleanup(c.sock.close)
        return c

    def memory(self):
        with open(f"/proc/{self.daemon.pid}/status") as f:
            return next(int(line.split()[1]) for line in f if line.startswith("VmRSS"))

    # -- service

    def test_old_and_new_clients_share_one_port_and_one_store(self):
        self.start()
        new, old, silent = self.client(), self.client(hello=False), self.client(hello=False)
        old.sock.sendall(b"\x03")  # PyTorch 1.13 sends the opcode alone
        old.sock.sendall(text("init/") + struct.pack("<q", 1))
        self.assertEqual(old.number(), 1)
        new.send(ADD, text("init/"), struct.pack("<q", 1))
        self.assertEqual(new.number(), 2)
        self.assertTrue(silent.is_silent())

    def test_ipv4_and_ipv6_reach_every_interface(self):
        self.start()
        self.client(host="127.0.0.1").send(SET, text("/k"), text("v"))
        try:
            six = self.client(host="::1")
        except OSError as e:
            self.skipTest(f"no IPv6: {e}; needs system with IPv6")
        six.send(WAIT, keys("/k"))
        self.assertEqual(six.read(1), b"\0")

    def test_a_named_address_is_the_only_one(self):
        self.start("--host", "127.0.0.1")
        self.client(host="127.0.0.1")
        with self.assertRaises(OSError):
            Client(self.port, host="127.0.0.2")

    def test_one_set_wakes_all_who_wait_each_once(self):
        self.start()
        waiting = [self.client() for _ in range(64)]
        for c in waiting:
            c.send(WAIT, keys("/go"), bytes([GET]), text("/go"))
        setter = self.client()
        setter.send(SET, text("/go"), text("now"))
        for c in waiting:
            self.assertEqual(c.read(1), b"\0")
            self.assertEqual(c.text(), b"now")
        setter.send(SET, text("/go"), text("again"))
        self.assertEqual(setter.get("/go"), b"again")
        self.assertTrue(waiting[0].is_silent())

    def test_a_client_that_dies_waiting_leaves_nothing(self):
        self.start()
        dying, other = self.client(), self.client()
        dying.send(WAIT, keys("/k"))
        dying.sock.close()
        other.send(SET, text("/k"), text("v"))
        self.assertEqual(other.get("/k"), b"v")

    def test_half_a_request_holds_up_only_its_client(self):
        self.start()
        half, other = self.client(), self.client()
        half.sock.sendall(bytes([SET]) + text("/half") + struct.pack("<Q", 5) + b"he")
        other.send(SET, text("/k"), text("v"))
        self.assertEqual(other.get("/k"), b"v")
        half.sock.sendall(b"llo")
        half.send(CHECK, keys("/half"))
        self.assertEqual(half.read(1), b"\0")
        self.assertEqual(other.get("/half"), b"hello")

    def test_large_values_pass_whole(self):
        self.start()
        value = os.urandom(8 << 20)
        c = self.client()
        c.send(SET, text("/big"), text(value))
        self.assertEqual(c.get("/big"), value)

    def test_slow_readers_cost_neither_time_nor_memory(self):
        self.start()
        writer = self.client()
        names = [f"/v{i}" for i in range(8)]
        value = os.urandom(4 << 20)
        for name in names:
            writer.send(SET, text(name), text(value))
        self.assertEqual(writer.get(names[-1]), value)
        before = self.memory()
        slow = [self.client() for _ in range(20)]
        for c in slow:  # 320 MiB of replies each, 6 GiB in all
            for _ in range(10):
                c.send(MULTI_GET, keys(*names))
        for _ in range(20):
            writer.send(SET, text("/k"), text("v"))
            self.assertEqual(writer.get("/k"), b"v")
        self.assertLess(self.memory() - before, 64 << 10)  # KiB
        for _ in range(10 * len(names)):
            self.assertEqual(slow[0].text(), value)

    def test_many_requests_in_one_go_are_all_answered(self):
        """More replies than are gathered at once, and a socket that takes them all."""
        self.start()
        c = self.client()
        c.send(SET, text("/k"), text(b"v" * 1000))
        request = bytes([GET]) + text("/k")
        for n in 300, 2000, 5000:
            c.sock.sendall(request * n)
            self.assertEqual(c.read(n * 1008), (struct.pack("<Q", 1000) + b"v" * 1000) * n)

    def test_random_traffic_is_answered_as_a_dictionary_would(self):
        """Batches of requests of all sizes, cut anywhere, their replies read in between."""
        self.start()
        rnd = random.Random(7)
        clients = [self.client() for _ in range(6)]
        for _ in range(60):
            n = rnd.randrange(len(clients))
            table, sent, due = {}, b"", b""
            for _ in range(rnd.choice([1, 3, 40, 400])):
                key = f"/{n}/{rnd.randrange(9)}"
                value = rnd.randbytes(rnd.choice([0, 1, 39, 40, 41, 500, 16384, 70000])
                                      if rnd.random() < 0.2 else 10)
                which = rnd.randrange(5)
                if which == 0:
                    sent += bytes([SET]) + text(key) + text(value)
                    table[key] = value
                elif which == 1:
                    sent += bytes([APPEND]) + text(key) + text(value)
                    table[key] = table.get(key, b"") + value
                elif which == 2:
                    sent += bytes([DELETE]) + text(key)
                    due += struct.pack("<q", table.pop(key, None) is not None)
                elif which == 3:
                    sent += bytes([GET]) + text(key)
                    due += text(table.get(key, b""))
                else:
                    names = [f"/{n}/{rnd.randrange(9)}" for _ in range(rnd.randrange(40))]
                    sent += bytes([MULTI_GET]) + keys(*names)
                    due += b"".join(text(table.get(k, b"")) for k in names)
            for key in table:
                sent += bytes([DELETE]) + text(key)
                due += struct.pack("<q", 1)
            sender = threading.Thread(target=self.send_cut, args=(clients[n], sent, n))
            sender.start()
            self.assertEqual(clients[n].read(len(due)), due)
            sender.join(PATIENCE)

    def send_cut(self, client, data, seed):
        rnd = random.Random(seed)
        while data:
            n = rnd.choice([1, 9, 1000, 65536, 1 << 20])
            client.sock.sendall(data[:n])
            data = data[n:]

    def test_who_asks_and_never_reads_is_not_heard_further(self):
        self.start()
        c = self.client()
        c.send(SET, text("/k"), text(b"v" * 1000))
        before, sent, quiet = self.memory(), 0, 0
        c.sock.setblocking(False)
        while sent < 64 << 20 and quiet < 20:
            try:
                sent += c.sock.send((bytes([GET]) + text("/k")) * 5000)
                quiet = 0
            except BlockingIOError:
                quiet += 1
                time.sleep(0.01)
        self.assertLess(sent, 64 << 20)
        self.assertLess(self.memory() - before, 16 << 10)
        self.assertEqual(self.client().get("/k"), b"v" * 1000)

    # -- connections that are not served are closed

    def test_strangers_are_closed_at_once(self):
        self.start("--log-level", "warn")
        for first in b"OPTIONS / HTTP/1.0\r\n\r\n", b"\x16\x03\x01", b"\0\1\2\3\4":
            c = self.client(hello=False)
            c.sock.sendall(first)
            self.assertTrue(c.is_closed())
        self.assert_says("closed: the first byte, 79, is not that of a TCPStore client")

    def test_a_scan_allocates_nothing(self):
        self.start()
        before = self.memory()
        for _ in range(50):
            c = self.client()
            c.send(SET, text("/k"), struct.pack("<Q", 1 << 40))
            self.assertTrue(c.is_closed())
        # announced within the limit: memory only for what has come
        held = [self.client() for _ in range(50)]
        for c in held:
            c.send(SET, text("/k"), struct.pack("<Q", 8 << 20), b"x" * 1000)
        self.assertEqual(self.client().get("/none"), b"")
        self.assertLess(self.memory() - before, 8 << 10)

    def test_unfinished_requests_share_a_limit(self):
        self.start("--max-memory", "4m")
        part = bytes([SET]) + text("/k") + struct.pack("<Q", 4 << 20) + b"x" * (1 << 20)
        open_ones = []
        before = self.memory()
        for _ in range(40):
            c = self.client()
            try:
                c.sock.sendall(part)
                open_ones.append(c)
            except ConnectionError:
                pass
        self.assert_says("closed: no memory for its request")
        self.assertEqual(self.client().get("/none"), b"")
        self.assertLess(self.memory() - before, 20 << 10)

    def test_dead_hosts_will_be_noticed(self):
        self.start("--host", "127.0.0.1")
        c = self.client()
        here, there = f":{self.port:04X}", f":{c.sock.getsockname()[1]:04X}"
        with open("/proc/net/tcp") as f:
            rows = [line.split() for line in f]
        row = next(r for r in rows if r[1].endswith(here) and r[2].endswith(there))
        self.assertEqual(row[5][:2], "02")  # its timer is the keep-alive's

    def test_adding_to_a_word_closes_and_says_key_and_value(self):
        self.start()
        c = self.client()
        c.send(SET, text("/w"), text("abc"))
        c.send(ADD, text("/w"), struct.pack("<q", 1))
        self.assertTrue(c.is_closed())
        self.assert_says("cannot add to key '/w': its value 'abc' is not a number")

    def test_one_connection_too_many_is_refused(self):
        self.start("--max-connections", "2")
        first, second = self.client(), self.client()
        third = self.client(hello=False)
        self.assertTrue(third.is_closed())
        second.sock.close()
        for _ in range(100):
            try:
                self.client()
                break
            except (EOFError, ConnectionError):
                time.sleep(0.05)
        else:
            self.fail("no client is admitted after one has left")
        self.assertEqual(first.get("/none"), b"")

    def test_without_descriptors_clients_are_refused_not_kept(self):
        self.start(preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (24, 24)))
        refused = 0
        inside = []
        for _ in range(40):
            try:
                inside.append(self.client())
            except (EOFError, ConnectionError):
                refused += 1
        self.assertGreater(refused, 10)
        self.assertGreater(len(inside), 5)
        self.assertEqual(inside[0].get("/none"), b"")
        self.assert_says("no file descriptor is left")

    def test_a_full_store_says_so(self):
        self.start("--max-memory", "1m", "--max-key", "16", "--max-list", "2")
        for request in (bytes([GET]) + text("/" + 16 * "k"), bytes([WAIT]) + keys("/a", "/b", "/c")):
            c = self.client()
            c.sock.sendall(request)
            self.assertTrue(c.is_closed())
        self.assert_says("17 bytes")
        self.assert_says("3 keys")
        c = self.client()
        for key in "/k", "/l":
            c.send(SET, text(key), text(b"x" * (600 << 10)))
        self.assertTrue(c.is_closed())
        self.assert_says("the store is full")

    def test_a_dialect_can_be_demanded(self):
        self.start("--dialect", "d3")
        c = self.client(hello=False)
        c.sock.sendall(b"\x03")
        self.assertTrue(c.is_closed())
        self.client()

    # -- admission

    def served(self, prefix, host):
        """Is a client that `prefix` starts (another user, another network) served?"""
        program = (
            "import socket, sys\n"
            f"hello = {HELLO!r}\n"
            "try:\n"
            f"    s = socket.create_connection(({host!r}, {self.port}), 3)\n"
            "    s.sendall(hello)\n"
            "    sys.exit(0 if s.recv(4) == hello[6:] else 9)\n"
            "except OSError:\n"
            "    sys.exit(9)\n")
        # another user may not enter the folder of an interpreter of root's own
        python = shutil.which("python3", path="/usr/bin:/bin") or sys.executable
        code = subprocess.run([*prefix, python, "-c", program], cwd="/", timeout=PATIENCE,
                              check=False).returncode
        self.assertIn(code, (0, 9))
        return code == 0

    @unittest.skipUnless(os.geteuid() == 0, "not root; needs root")
    def test_another_user_of_this_machine_is_refused(self):
        nobody = ("setpriv", "--reuid=65534", "--clear-groups", "--regid=65534")
        self.start()
        self.assertTrue(self.served((), "127.0.0.1"))
        for _ in range(3):
            self.assertFalse(self.served(nobody, "127.0.0.1"))
        self.assert_says("refused a connection from 127.0.0.1:")
        self.assert_says("its user is 65534, ddpstored's is 0")
        self.assertEqual(self.said().count("refused"), 1)
        self.assertFalse(self.served(nobody, socket.gethostbyname(socket.gethostname())))
        self.stop()
        self.start("--open")
        self.assertTrue(self.served(nobody, "127.0.0.1"))

    def test_a_closed_socket_is_nobodys(self):
        """The kernel reports user 0 for it, or nothing after a reset; its request waits."""
        reset = struct.pack("ii", 1, 0)
        for options, linger in (((), None), (("--allow", "127.0.0.1"), reset)):
            with self.subTest(options):
                self.start(*options)
                self.daemon.send_signal(signal.SIGSTOP)
                os.waitpid(self.daemon.pid, os.WUNTRACED)
                early = self.client(hello=False)
                early.sock.sendall(HELLO + bytes([SET]) + text("k") + text("v"))
                if linger:
                    early.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                early.sock.close()
                self.daemon.send_signal(signal.SIGCONT)
                late = self.client()
                late.send(CHECK, keys("k"))
                self.assertEqual(late.read(1), b"\1")
                self.assert_says("its socket has been closed already")
                self.stop()

    @unittest.skipUnless(os.geteuid() == 0, "not root; needs root")
    def test_another_machine_is_refused(self):
        name, here, there = launch.make_network(self)
        away = ("ip", "netns", "exec", name)
        for options, local, remote in (((), False, False), (("--host", here), True, False),
                                       (("--allow", "10.214.7.[3-9]"), True, False),
                                       (("--allow", f"no.such.host.invalid,{there}"), True, True),
                                       (("--open",), True, True)):
            with self.subTest(options):
                self.start(*options)
                self.assertEqual(self.served((), here), local)
                self.assertEqual(self.served((), "::1"), "--host" not in options)
                self.assertEqual(self.served(away, here), remote)
                self.stop()
        self.start("--allow", "no.such.host.invalid")
        self.assert_says("--allow: cannot resolve 'no.such.host.invalid'; until that succeeds")
        self.assertFalse(self.served(away, here))
        self.assert_says("another machine, and 'no.such.host.invalid' of --allow cannot be resolved")

    # -- beginning and end

    def run_once(self, *options, **more):
        return subprocess.run([DDPSTORED, *options], capture_output=True, text=True,
                              timeout=PATIENCE, **more)

    def test_hardly_any_descriptors_are_one_clear_line(self):
        for n in 4, 5, 6:
            r = self.run_once("--port", "0", preexec_fn=lambda n=n: resource.setrlimit(
                resource.RLIMIT_NOFILE, (n, n)))
            self.assertEqual(r.returncode, 125)
            self.assertRegex(r.stderr, r"^ddpstored: error: cannot make an event loop: [^\n]*"
                                       r"Too many open files; see 'ulimit -n'\n$")

    def test_a_port_in_use_is_one_clear_line(self):
        port = self.start()
        r = self.run_once("--port", str(port))
        self.assertEqual(r.returncode, 125)
        self.assertEqual(r.stderr.count("\n"), 1, r.stderr)
        self.assertIn(f"cannot listen on port {port}: Address already in use by ddpstored (pid {self.daemon.pid}); ",
                      r.stderr)
        self.assertIn("--port 0 takes a free one", r.stderr)

    def test_a_full_disk_under_its_stdout_is_a_failure(self):
        for option, code, what in (("--version", 1, "cannot write to stdout"),
                                   ("--help", 1, "cannot write to stdout"),
                                   ("--port=0", 125, "error: cannot print the port")):
            with open("/dev/full", "w", encoding="ascii") as full:
                r = subprocess.run([DDPSTORED, option], stdout=full, stderr=subprocess.PIPE,
                                   text=True, timeout=PATIENCE)
            self.assertEqual(r.returncode, code)
            self.assertEqual(r.stderr, f"ddpstored: {what}: No space left on device\n")

    def test_bad_options_are_one_clear_line_each(self):
        for option, value, line in [
                ("--port", "70000", "'70000' is not a port"),
                ("--port", "x", "'x' is not a port"),
                ("--max-value", "8x", "'8x' is not a size"),
                ("--max-value", "-1", "'-1' is not a size"),
                ("--dialect", "d9", "'d9' is not one of auto, d0, d2, d3"),
                ("--grace", "soon", "--grace"),
                ("--allow", "", "--allow: '' names no host"),
                ("--log-level", "loud", "unknown log level 'loud'")]:
            with self.subTest(option=option, value=value):
                r = self.run_once(option, value)
                self.assertEqual(r.returncode, 2)
                self.assertIn(line, r.stderr.splitlines()[0])
        r = self.run_once("--host", "no.such.host.invalid", "--port", "0")
        self.assertEqual(r.returncode, 125)
        self.assertIn("cannot listen on 'no.such.host.invalid'", r.stderr)

    def test_the_port_file_is_whole_when_it_appears(self):
        with tempfile.TemporaryDirectory() as d:
            path = os.path.join(d, "port")
            daemon = subprocess.Popen([DDPSTORED, "--port", "0", "--port-file", path])
            self.addCleanup(daemon.wait)
            self.addCleanup(daemon.kill)
            end = time.monotonic() + PATIENCE
            while not os.path.exists(path) and time.monotonic() < end:
                time.sleep(0.01)
            with open(path) as f:
                Client(int(f.read())).sock.close()
            self.assertEqual(os.listdir(d), ["port"])
        r = self.run_once("--port", "0", "--port-file", "/proc/none/port")
        self.assertEqual(r.returncode, 125)
        self.assertIn("cannot write the port to '/proc/none/port'", r.stderr)
        r = self.run_once("--port", "0", "--port-file", "/dev/null")  # not to be replaced
        self.assertEqual(r.returncode, 125)
        self.assertIn("cannot write the port to '/dev/null': it is no file", r.stderr)

    def test_sigterm_without_clients_ends_at_once(self):
        self.start("--grace", "1h")
        self.assertEqual(self.end(), 0)

    def test_sigterm_lets_clients_finish(self):
        self.start("--grace", "1h")
        c = self.client()
        self.daemon.terminate()
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:  # no new client
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                time.sleep(0.02)
            except ConnectionError:
                break
        c.send(SET, text("/last"), text("word"))
        self.assertEqual(c.get("/last"), b"word")
        self.assertIsNone(self.daemon.poll())
        c.sock.close()
        self.assertEqual(self.daemon.wait(PATIENCE), 0)

    def test_the_grace_time_ends(self):
        self.start("--grace", "100ms")
        c = self.client()
        c.send(WAIT, keys("/never"))
        self.assertEqual(self.end(), 0)
        self.assertTrue(c.is_closed())
        self.assert_says("1 connection")

    def test_a_second_signal_ends_at_once(self):
        self.start("--grace", "1h", "--log-level", "info")
        c = self.client()
        self.daemon.terminate()
        self.assert_says("Terminated")
        self.assertEqual(self.end(signal.SIGINT), 0)
        self.assertTrue(c.is_closed())


if __name__ == "__main__":
    unittest.main()
