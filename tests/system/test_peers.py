"""Several ddprun, one per "node": here all on one machine, and told so by hand or by the
variables of a launcher that is played."""

import glob
import hashlib
import json
import os
import signal
import socket
import subprocess
import time
import unittest

from launch import DDPRUN, PATIENT, LaunchTest, free_port, main, wait_until, wait_until_settled, who_is_left

SAY = 'echo "rank $RANK/$WORLD_SIZE local $LOCAL_RANK/$LOCAL_WORLD_SIZE node $NODE_RANK"'


class Peers(LaunchTest):
    def setUp(self):
        super().setUp()
        self.port = free_port()
        self.env = {"HOME": self.folder.name}

    def node(self, k, n, *args, address="127.0.0.1", env=None, **how):
        return self.start(
            "--nnodes", n, "--node-rank", k, "--master-addr", f"{address}:{self.port}",
            *args, env={**self.env, **(env or {})}, **how)

    def nodes(self, n, *args, **how):
        return [self.node(k, n, *args, **how) for k in range(n)]

    def all_end(self, launches, code):
        for launch in launches:
            launch.wait()
        for launch in launches:
            self.assert_ended(launch, code)

    def said(self, launch):
        return sorted(line.split("] ", 1)[1] for line in launch.out.splitlines())


class MinMax(Peers):
    """--nnodes MIN:MAX: others join and leave while the job runs."""

    SIZES = 'echo "rank $RANK/$WORLD_SIZE attempt $TORCHELASTIC_RESTART_COUNT"; exec sleep 600'

    def begin(self, k, *args, of="2:3"):
        return self.node(k, of, "--grace", "1s", "--max-restarts", 3, *args, "sh", "-c", self.SIZES)

    def await_attempt(self, head, attempt, size):
        for rank in range(size):
            self.wait_for(head, f"rank {rank}/{size} attempt {attempt}\n")

    def end(self, head, *others):
        head.signal(signal.SIGTERM)
        self.all_end([head, *others], 143)
        self.assertEqual(os.listdir(self.path(".ddprun")), [])

    def test_one_joins_one_is_lost_and_one_comes_back(self):
        head, second = (self.begin(k, "--grow", "now") for k in (0, 1))
        self.await_attempt(head, 0, 2)
        third = self.begin(2, "--grow", "now")
        self.await_attempt(head, 1, 3)
        second.signal(signal.SIGKILL)
        self.await_attempt(head, 2, 2)
        again = self.begin(1, "--grow", "now")
        self.await_attempt(head, 3, 3)
        self.assertIn("the job goes on with 2 of 3 hosts, 2 ranks", head.err)
        self.end(head, third, again)

    def test_one_that_joins_waits_for_a_restart(self):
        head, second = (self.begin(k) for k in (0, 1))
        self.await_attempt(head, 0, 2)
        third = self.begin(2)
        self.wait_for(head, "it gets ranks at the next restart (--grow)", "err")
        fourth = self.begin(1)
        fourth.wait()
        self.assert_ended(fourth, 125)
        self.assertIn("the job has all hosts that it may have, 3 (--nnodes)", fourth.err)
        self.assertNotIn("attempt 1\n", head.out)
        second.signal(signal.SIGKILL)  # the third takes its place
        self.await_attempt(head, 1, 2)
        self.end(head, third)

    def test_too_few_are_left_for_some_time(self):
        head, second = (self.begin(k, "--node-wait", "5min", of="2:4") for k in (0, 1))
        self.await_attempt(head, 0, 2)
        second.signal(signal.SIGKILL)
        self.wait_for(head, "waiting up to 300 s for one to come back, or for another one", "err")
        third = self.begin(3, of="2:4")
        self.await_attempt(head, 1, 2)
        self.end(head, third)

    def test_fewer_than_the_least(self):
        head = self.begin(0, "--start-timeout", 4)
        head.wait()
        self.assert_ended(head, 125)
        self.assertIn("only 1 of 2 instances of ddprun (--nnodes) joined within 4 s", head.err)

    def test_growing_needs_a_range(self):
        launch = self.run_to_end("--nnodes", "3:3", "--grow", "now", "true")
        self.assert_ended(launch, 2)
        self.assertIn("--nnodes MIN:MAX (MIN < MAX)", launch.err)

    def test_node_wait_needs_a_range(self):
        head, other = self.nodes(2, "--node-wait", "5s", "true")
        for launch in (head, other):
            launch.wait()
        self.assert_ended(head, 2)
        self.assertIn("--node-wait needs --nnodes MIN:MAX (MIN < MAX)", head.err)


class ByHand(Peers):
    def test_they_make_one_world_and_say_it_at_the_head(self):
        others = [self.node(k, 3, "--nproc-per-node", 2, "sh", "-c", SAY + "; echo $MINE",
                            env={"MINE": f"of node {k}"}) for k in (2, 1)]
        head = self.node(0, 3, "--nproc-per-node", 2, "sh", "-c", SAY, stdin=b"")
        self.all_end([head, *others], 0)
        ranks = [f"rank {r}/6 local {r % 2}/2 node {r // 2}" for r in range(6)]
        # each has the environment of its own ddprun
        self.assertEqual(self.said(head), ["of node 1"] * 2 + ["of node 2"] * 2 + ranks)
        self.assertEqual([o.out for o in others], ["", ""])
        self.assertIn("this is node 2 of 3", others[0].err)
        self.assertEqual(os.listdir(self.path(".ddprun")), [])

    def test_a_port_that_is_taken(self):
        with socket.create_server(("", self.port)):
            head = self.node(0, 2, "true")
            head.wait()
        self.assert_ended(head, 125)
        self.assertRegex(head.err, "^ddprun: the instances of ddprun cannot meet at this port \\(--master-port "
                         f"chooses another, the same on each host\\): cannot listen on port {self.port}: "
                         r"Address already in use by python.* \(pid \d+\)\n$")

    def test_all_instances_end_with_the_code_of_a_failure(self):
        launches = self.nodes(3, "sh", "-c", "[ $RANK = 2 ] && exit 9; exec sleep 60")
        self.all_end(launches, 9)
        self.assertIn("rank 2", launches[0].err.splitlines()[0])

    def test_a_head_that_stands_still_while_it_waits(self):
        head = self.node(0, 2, "--start-timeout", 4, "true")
        self.assertTrue(wait_until(lambda: os.path.exists(self.path(".ddprun"))
                                   and os.listdir(self.path(".ddprun"))))
        head.signal(signal.SIGSTOP)
        time.sleep(6)
        head.signal(signal.SIGCONT)
        time.sleep(1)
        self.all_end([self.node(1, 2, "true"), head], 0)

    def test_one_that_stands_still_while_it_looks_for_the_head(self):
        other = self.node(1, 2, "--start-timeout", 6, "true")
        wait_until_settled(other.mark)
        other.signal(signal.SIGSTOP)
        time.sleep(8)
        other.signal(signal.SIGCONT)
        self.all_end([self.node(0, 2, "true"), other], 0)

    def test_a_head_that_stands_still_when_one_has_joined(self):
        """For longer than the start-timeout of that one."""
        head = self.node(0, 3, "--verbose", "true")
        other = self.node(1, 3, "--start-timeout", 2, "true")
        self.wait_for(head, "joined: 2 of 3", "err")
        head.signal(signal.SIGSTOP)
        time.sleep(18)
        head.signal(signal.SIGCONT)
        self.all_end([self.node(2, 3, "true"), head, other], 0)

    def test_who_has_not_come_is_named(self):
        launches = [self.node(k, 4, "--start-timeout", 8, "true") for k in (0, 2)]
        self.port = free_port()
        alone = self.node(1, 2, "--start-timeout", 1, "true")
        no_name = self.node(1, 2, "--start-timeout", 1, "true",
                            address="no.such.invalid")
        self.all_end([*launches, alone, no_name], 125)
        for launch in launches:
            self.assertIn("missing: --node-rank 1, --node-rank 3", launch.err)
        self.assertRegex(alone.err, "the head has not been found within 1 s: it has written no file '.*'; "
                         f"cannot connect to '127.0.0.1' port {self.port}: Connection refused; "
                         "is --node-rank 0 started, with the same --master-addr")
        self.assertIn("cannot resolve 'no.such.invalid'", no_name.err)

    def test_a_number_given_twice_is_refused(self):
        head = self.node(0, 3, "true")
        twice = [self.node(1, 3, "true") for _ in range(2)]
        self.assertTrue(wait_until(lambda: any("joined twice" in t.err for t in twice)))
        last = self.node(2, 3, "true")
        self.all_end([head, last], 0)
        self.assertEqual(sorted(t.wait() for t in twice), [0, 125])

    def test_one_that_waits_tells_who_is_missing(self):
        head = self.node(0, 2, "true")
        self.assertTrue(wait_until(lambda: os.path.exists(self.path(".ddprun"))))
        wait_until_settled(self.mark)
        head.signal(signal.SIGQUIT)
        self.wait_for(head, "ddprun: warning: missing: --node-rank 1\n", "err")
        head.signal(signal.SIGUSR1)
        self.wait_for(head, "ddprun: warning: SIGUSR1 was not passed on: no rank has been started\n", "err")
        too_high = self.node(2, 3, "true")
        self.wait_for(head, "node 2 is not expected", "err")
        self.all_end([too_high], 125)
        self.assertIn("lost the connection to the head, whose output may say why", too_high.err)
        self.all_end([head, self.node(1, 2, "true")], 0)

    def test_the_address_of_the_interface_is_tried_first(self):
        head = self.node(0, 2, "--interface", "lo", "true")
        files = wait_until(lambda: glob.glob(self.path(".ddprun") + "/peers-" + 32 * "[0-9a-f]"))
        with open(files[0], encoding="ascii") as f:
            calls = [line for line in f if line.startswith("call ")]
        self.assertEqual(calls[0], f"call 127.0.0.1 {self.port}\n")
        head.signal(signal.SIGTERM)
        self.all_end([head], 143)

    def test_another_key_is_told_though_the_head_has_gone(self):
        launches = [self.node(k, 2, "--start-timeout", 1 + 2 * k, "true", env={"DDPRUN_KEY": f"{k}" * 40})
                    for k in range(2)]
        self.all_end(launches, 125)
        self.assertIn("the handshake was not completed", launches[1].err)
        self.assertIn("is its key (--peer-key, DDPRUN_KEY) the same?", launches[1].err)

    def test_metrics_of_two_on_one_machine(self):
        """Each series is there once, and no age of an output that never was."""
        file = self.path("job.prom")
        self.all_end([self.node(0, 2, "--metrics", file, "sleep", "1.5"), self.node(1, 2, "sleep", "1.5")], 0)
        with open(file, encoding="utf-8") as f:
            series = [line.rsplit(" ", 1)[0] for line in f if line[0] != "#"]
        self.assertIn("system_memory_usage_bytes", "".join(series))
        self.assertEqual(len(series), len(set(series)), series)
        self.assertNotIn("ddprun_output_age_seconds", "".join(series))

    def test_the_number_of_nodes_is_the_head_s(self):
        launches = [self.node(0, 2, "true"), self.node(1, 3, "true")]
        self.all_end(launches, 0)
        self.assertEqual(launches[1].err, "ddprun: this is node 1 of 2; output appears on node 0\n")

    def test_each_has_its_own_number_of_ranks(self):
        """As torchrun's nodes have; one that is given none has the head's."""
        launches = [self.node(0, 3, "--nproc-per-node", 2, "sh", "-c", SAY),
                    self.node(1, 3, "--nproc-per-node", 1, "sh", "-c", SAY),
                    self.node(2, 3, "sh", "-c", SAY)]
        self.all_end(launches, 0)
        self.assertEqual(self.said(launches[0]),
                         [f"rank {r}/5 local {local}/{of} node {node}"
                          for r, local, of, node in ((0, 0, 2, 0), (1, 1, 2, 0), (2, 0, 1, 1),
                                                     (3, 0, 2, 2), (4, 1, 2, 2))])

    def test_another_number_of_all_ranks_is_refused(self):
        head = self.node(0, 2, "-np", 2, "true")
        for np in (3, 4):
            other = self.node(1, 2, "-np", np, "true")
            other.wait()
            self.assert_ended(other, 125)
            self.assertRegex(other.err, rf"--node-rank 1 on \S+ has -np {np}, but --node-rank 0 has -np 2: ")
        self.all_end([self.node(1, 2, "true"), head], 0)

    def test_each_that_is_told_to_end_ends_all(self):
        for who, text in ((1, "was interrupted (SIGTERM)"), (0, "interrupted (SIGTERM)")):
            with self.subTest(who):
                self.port = free_port()
                launches = self.nodes(
                    2, *PATIENT, "sh", "-c",
                    "trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.1; done")
                self.assertTrue(wait_until(lambda: launches[0].out.count("up\n") == 2))
                launches[who].signal(signal.SIGTERM)
                self.all_end(launches, 143)
                self.assertIn(text, launches[0].err)
                self.assertEqual(launches[0].out.count("bye\n"), 2)

    def test_each_that_is_killed_ends_all(self):
        for who in (1, 0):
            with self.subTest(who):
                self.port = free_port()
                launches = self.nodes(2, "sh", "-c", "echo up; sleep 60")
                self.assertTrue(wait_until(lambda: launches[0].out.count("up\n") == 2))
                launches[who].signal(signal.SIGKILL)
                launches[1 - who].wait()
                self.assert_ended(launches[1 - who], 125)
                self.assertEqual(who_is_left(self.mark), {})

    def test_a_head_that_waits_can_be_told_to_end(self):
        head = self.node(0, 2, "true")
        card = self.path(".ddprun")
        self.assertTrue(wait_until(lambda: os.path.isdir(card) and os.listdir(card)))
        head.signal(signal.SIGINT)
        self.all_end([head], 130)
        self.assertIn("these were missing: --node-rank 1", head.err)
        self.assertEqual(os.listdir(card), [])

    def test_what_cannot_be_is_refused(self):
        for args, line in (
            (("--node-rank", 1, "true"), "needs --nnodes"),
            (("--as", "torchrun", "--node-rank", 1, "true"), "needs --nnodes"),
            (("--node-rank", 2, "--nnodes", 2, "true"), "they count from 0"),
            (("--node-rank", 0, "--nnodes", 2, "--hostfile", "x", "true"), "--hostfile"),
            (("--node-rank", 0, "--nnodes", 2, "--master-addr", "h:0", "true"), "'h:0'"),
        ):
            launch = self.run_to_end(*args)
            self.assert_ended(launch, 2)
            self.assertIn(line, launch.err)
            self.assertEqual(launch.err.count("\n"), 1)
        launch = self.run_to_end("true", env={"PET_NODE_RANK": "0"})
        self.assertEqual(launch.err, "ddprun: --node-rank 0 needs --nnodes; options are also from PET_*: "
                         "--node-rank=0\n")

    def test_a_plan_that_cannot_be_is_refused_everywhere(self):
        for args, env, line in (
            (("--output-from", 9), {}, "--output-from"),
            (("-np", 99), {}, "99 ranks, but 2 hosts have"),
            (("-np", 99), {"SM_NUM_GPUS": "2"}, "99 ranks, but 2 hosts have 4 slots"),
            (("-np", 99), {"SLURM_STEP_GPUS": "0,1,4"}, "99 ranks, but 2 hosts have 6 slots"),
        ):
            with self.subTest(line):
                self.port = free_port()
                launches = self.nodes(2, *args, "true", env=env)
                self.all_end(launches, 2)
                self.assertIn(line, launches[0].err)
                self.assertEqual(launches[0].err.count("\n"), 1)

    def test_one_node_by_hand_is_an_ordinary_launch(self):
        launch = self.run_to_end("--nnodes", 1, "--node-rank", 0, "sh", "-c", SAY)
        self.assert_ended(launch, 0)
        self.assertEqual(launch.out, "rank 0/1 local 0/1 node 0\n")
        launch = self.run_to_end("--as", "torchrun", "--node-rank", 0, "sh", "-c", SAY)
        self.assert_ended(launch, 0)
        self.assertEqual(launch.out, "rank 0/1 local 0/1 node 0\n")


class Keys(Peers):
    def test_a_secret_instead_of_a_home(self):
        key = self.write("key", "0123456789abcdef0123456789abcdef\n", 0o600)
        for args, env in (
            (("--peer-key", key), {"HOME": "/nonexistent"}),
            ((), {"HOME": "/nonexistent", "DDPRUN_KEY": "0123456789abcdef-secret"}),
        ):
            self.port = free_port()
            launches = self.nodes(2, *args, "sh", "-c", SAY + "; echo key=$DDPRUN_KEY", env=env)
            self.all_end(launches, 0)
            self.assertEqual(self.said(launches[0])[:2], ["key=", "key="])

    def test_a_secret_of_the_outer_launcher(self):
        def start(r, secret):
            return self.start("--start-timeout", 5, "--master-addr", f"127.0.0.1:{self.port}", "sh", "-c", SAY, env={
                "HOME": "/nonexistent", "PMIX_NAMESPACE": "ns", "OMPI_COMM_WORLD_RANK": str(r),
                "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "0",
                "OMPI_COMM_WORLD_LOCAL_SIZE": "1", "OMPI_MCA_orte_precondition_transports": secret})
        launches = [start(0, "1f-2e"), start(1, "1f-2e")]
        self.all_end(launches, 0)
        self.assertEqual(self.said(launches[0]), [f"rank {r}/2 local 0/1 node {r}" for r in range(2)])
        self.port = free_port()
        launches = [start(0, "1f-2e"), start(1, "1f-2f")]
        self.all_end(launches, 125)
        self.assertIn("is its key (--peer-key, DDPRUN_KEY) the same?", launches[1].err)

    def test_the_secret_of_peers_is_not_for_ranks(self):
        launch = self.run_to_end("-np", 1, "sh", "-c", "echo [$DDPRUN_KEY]",
                                 env={"DDPRUN_KEY": "0123456789abcdef-secret"})
        self.assertEqual(launch.out, "[]\n")

    def test_who_has_no_key_does_not_get_in(self):
        """Three starts that cannot succeed, at the same time."""
        homes = [self.path(f"home{k}") for k in range(2)]
        for home in homes:
            os.mkdir(home)
        apart = [self.node(k, 2, "--start-timeout", 7, "true", env={"HOME": homes[k]})
                 for k in range(2)]
        self.port = free_port()
        other = [
            self.node(k, 2, "--start-timeout", 7, "true",
                      env={"DDPRUN_KEY": f"secret number {k}, long enough"})
            for k in range(2)]
        self.port = free_port()
        strange = self.nodes(2, "--peer-key", "none", "-H", "127.0.0.9", "--start-timeout", 7,
                             "true")
        self.all_end([*apart, *other, *strange], 125)
        self.assertIn("--peer-key FILE or DDPRUN_KEY", apart[1].err)
        self.assertIn("missing: --node-rank 1", other[0].err)
        self.assertIn("the head has not been found", other[1].err)
        self.assertIn("it is not a host of the job", strange[0].err)

    def test_keys_that_are_none_are_refused(self):
        loose = self.write("loose", "0123456789abcdef0123456789abcdef\n", 0o644)
        short = self.write("short", "xyz\n", 0o600)
        for args, line in ((("--peer-key", loose), "can be read by others"),
                           (("--peer-key", short), "too short"),
                           (("--peer-key", self.path("none-there")), "cannot open the file of --peer-key"),
                           (("--peer-key", "none"), "--peer-key none needs -H")):
            launch = self.node(0, 2, *args, "true")
            self.all_end([launch], 125)
            self.assertIn(line, launch.err)

    def test_a_head_makes_no_peer_run_anything_but_its_own_command(self):
        """Without a secret a stranger may be the head: here one that asks for more."""
        touch = (f"import os\nif 'PEER' in os.environ: open({self.path('imported')!r}, 'w')\n")
        for folder, module in (("path", "sitecustomize.py"), ("modules", "chosen.py")):
            os.mkdir(self.path(folder))
            self.write(f"{folder}/{module}", touch)
        command = ("python3", "-c", "pass")
        own = ("python3", self.write("own.py", f"open({self.path('own')!r}, 'w')\n"))
        for options in (("-x", f"PYTHONPATH={self.path('path')}", "--preflight"),
                        ("-x", f"PYTHONPATH={self.path('path')}"),
                        ("--preload=chosen",)):
            with self.subTest(options):
                self.port = free_port()
                key = ("--peer-key", "none", "-H", "127.0.0.1", "--nproc-per-node", 2)
                peer = self.node(1, 2, *key, *own,
                                 env={"PEER": "1", "PYTHONPATH": self.path("modules")})
                head = self.node(0, 2, *key, *options, *command)
                head.wait()
                peer.wait()
                if os.path.exists(self.path("imported")):
                    os.unlink(self.path("imported"))
                    self.fail(head.err + peer.err)
                self.assertEqual(os.path.exists(self.path("own")), "--preflight" not in options)

    def test_strangers_that_can_prove_the_public_key_are_bounded(self):
        """Without a secret a stranger on a host of the job can; it then says nothing."""
        def keyed(key, label, *data):
            return hashlib.blake2b(b"\0".join((label, b"".join(data))), key=key,
                                   digest_size=32).digest()

        head = self.node(0, 2, "--peer-key", "none", "-H", "127.0.0.1", "sh", "-c", SAY)
        job = keyed(bytes(32), b"ddprun open", f"by hand 127.0.0.1 {self.port}".encode())
        strangers = []

        def prove(number):
            rank = number.to_bytes(2, "big")
            key, mine = keyed(job, b"ddprun node", rank), os.urandom(32)
            self.assertTrue(wait_until(lambda: self.connect(strangers)))
            offer = strangers[-1].recv(40, socket.MSG_WAITALL)
            proof = keyed(key, b"ddprun caller", offer[8:], rank, mine)
            strangers[-1].sendall(b"DDPRUN\0\1" + rank + mine + proof)
            self.assertEqual(len(strangers[-1].recv(32, socket.MSG_WAITALL)), 32)

        for _ in range(50):
            prove(1)
        for other in 0, 2, 65535:  # the head itself, and none of the job
            prove(other)
            self.assertEqual(strangers[-1].recv(1), b"")
        sockets = 0
        for entry in os.scandir(f"/proc/{head.process.pid}/fd"):
            try:
                sockets += os.readlink(entry.path).startswith("socket:")
            except FileNotFoundError:
                pass  # closed meanwhile
        self.assertLess(sockets, 20)
        peer = self.node(1, 2, "--peer-key", "none", "-H", "127.0.0.1", "sh", "-c", SAY)
        self.all_end([head, peer], 0)
        for stranger in strangers:
            stranger.close()

    def connect(self, connections):
        try:
            connections.append(socket.create_connection(("127.0.0.1", self.port), 10))
        except ConnectionRefusedError:
            return False
        return True

    @unittest.skipUnless(os.geteuid() == 0, "only root can be a host of another name; needs root")
    def test_names_that_are_none_do_not_join(self):
        """They would be printed, and be parts of files' names."""
        be_named = self.write("named.py", "import ctypes, os, sys\nname = os.fsencode(sys.argv[1])\n"
                              "ctypes.CDLL(None).sethostname(name, len(name))\n"
                              "os.execv(sys.argv[2], sys.argv[2:])")
        head = self.node(0, 2, "--peer-key", "none", "-H", "127.0.0.1", "sh", "-c", SAY)
        for name in ("../x", "a\x1b[2Jb", "-x"):
            refused = subprocess.run(
                ["unshare", "--uts", "python3", be_named, name, DDPRUN, "--peer-key", "none", "--nnodes", "2",
                 "--node-rank", "1", "--master-addr", f"127.0.0.1:{self.port}", "true"],
                env={**os.environ, **self.env}, text=True, capture_output=True, timeout=100, check=False)
            self.assertEqual(refused.returncode, 125, refused.stderr)
            self.assertIn("' is no name of a host\n", refused.stderr)
        peer = self.node(1, 2, "--peer-key", "none", "-H", "127.0.0.1", "sh", "-c", SAY)
        self.all_end([head, peer], 0)
        self.assertIn("rejected a peer: 'a?[2Jb' is no name of a host\n", head.err)

    def test_open_only_to_the_hosts_of_the_job(self):
        launches = self.nodes(2, "--peer-key", "none", "-H", "127.0.0.1", "sh", "-c", SAY)
        self.all_end(launches, 0)
        self.assertIn("nothing secret is shared", launches[0].err)


class Sources(Peers):
    def test_flux_is_asked_for_its_nodes(self):
        r = {"version": 1, "execution": {
            "R_lite": [{"rank": "0", "children": {"core": "0-3", "gpu": "0-2"}}],
            "nodelist": [socket.gethostname()]}}
        # in a task the instance is that of the whole cluster: the job is asked for
        one = json.dumps(r).replace("0-2", "0")
        self.write("flux", "#!/bin/sh\ncase $* in\n"
                           f"'resource R -s up') echo '{json.dumps(r)}' ;;\n"
                           f"'job info ƒ7 R') echo '{one}' ;;\n*) exit 1 ;;\nesac\n", 0o755)
        env = {"FLUX_URI": "local:///x", "PATH": f"{self.folder.name}:{os.environ['PATH']}"}
        launch = self.run_to_end("sh", "-c", SAY, env=env)
        self.assert_ended(launch, 0)
        self.assertEqual(len(launch.out.splitlines()), 3)
        launch = self.run_to_end("sh", "-c", SAY, env={**env, "FLUX_JOB_ID": "ƒ7"})
        self.assert_ended(launch, 0)
        self.assertEqual(len(launch.out.splitlines()), 1)
        self.write("flux", "#!/bin/sh\nexit 3\n", 0o755)
        launch = self.run_to_end("true", env=env)
        self.assert_ended(launch, 2)
        self.assertIn("'flux resource R' has failed (status 3)", launch.err)

    def test_hosts_of_sagemaker_have_slots_by_their_gpus(self):
        def start(host, *args):
            return self.start("--master-port", self.port, *args, env={
                **self.env, "SM_HOSTS": '["127.0.0.1","127.0.0.2"]', "SM_CURRENT_HOST": host,
                "SM_NUM_GPUS": "2", "DDPRUN_KEY": "0123456789abcdef-secret"})
        launches = [start(f"127.0.0.{k}", "sh", "-c", SAY) for k in (1, 2)]
        self.all_end(launches, 0)
        self.assertEqual(self.said(launches[0]), [f"rank {r}/4 local {r % 2}/2 node {r // 2}" for r in range(4)])
        self.port = free_port()
        alone = start("127.0.0.1", "--start-timeout", 1, "true")
        self.all_end([alone], 125)
        self.assertIn("missing: 127.0.0.2; --start-timeout", alone.err)

    def test_a_dry_run_meets_nobody(self):
        config = self.write("config", json.dumps(
            {"current_host": "algo-1", "hosts": ["algo-10", "algo-1", "algo-2"]}))
        launch = self.run_to_end("--dry-run", "true", env={"DDPRUN_RESOURCECONFIG": config})
        self.assert_ended(launch, 0)
        self.assertIn("hosts: 3 from SageMaker", launch.out)
        self.assertLess(launch.out.index("algo-2"), launch.out.index("algo-10"))
        launch = self.node(0, "2:3", "--grow", "now", "--dry-run", "true")
        launch.wait()
        self.assert_ended(launch, 0)
        self.assertIn("hosts: 3 from --node-rank", launch.out)
        launch = self.node(1, 3, "--dry-run", "true")
        launch.wait()
        self.assert_ended(launch, 0)
        self.assertEqual(launch.out, "the plan is made by --node-rank 0: its --dry-run shows it\n")


if __name__ == "__main__":
    main()
