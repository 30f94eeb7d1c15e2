"""Several ddprun on one machine, one per rank as an outer launcher starts them, which is played."""

import contextlib
import hashlib
import os
import signal
import socket
import struct
import time

from launch import PATIENT, main, wait_until, wait_until_settled, who_is_left
from test_peers import SAY, Peers


class Copies(Peers):
    def copy(self, r, n, *args, gpus=None, **how):
        return self.start(*args, env={
            **self.env, "PMIX_NAMESPACE": f"ns-{self.port}", "OMPI_COMM_WORLD_RANK": str(r),
            "OMPI_COMM_WORLD_SIZE": str(n), "OMPI_COMM_WORLD_LOCAL_RANK": str(r),
            "OMPI_COMM_WORLD_LOCAL_SIZE": str(n), "CUDA_VISIBLE_DEVICES": gpus or f"{r + 4},4",
            "MINE": "a b"}, **how)

    def copies(self, n, *args, **how):
        return [self.copy(r, n, *args, **how) for r in range(n)]

    def test_one_leads_and_the_others_wait(self):
        os.mkdir(self.path("there"))
        # rank 1 fails when all have spoken
        launches = self.copies(
            3, "sh", "-c", SAY + ' "$MINE" $CUDA_VISIBLE_DEVICES; '
            f'cd {self.path("there")}; : >$RANK; [ $RANK != 1 ] || '
            "{ until [ -e 0 ] && [ -e 2 ]; do sleep 0.05; done; exit 6; }")
        self.all_end(launches, 6)
        said = sorted(line.split("] ")[1] for line in launches[0].out.splitlines())
        self.assertEqual(said, [f"rank {r}/3 local {r}/3 node 0 a b 4,5,6" for r in range(3)])
        self.assertEqual([launch.out + launch.err for launch in launches[1:]], ["", ""])

    def test_all_devices_of_a_large_machine_are_used(self):
        """Two tasks, each with the seven parts of each of its 16 GPUs."""
        gpus = [f"MIG-{r:08x}-0000-0000-0000-{k:012x}" for r in range(2) for k in range(112)]
        launches = [self.copy(r, 2, "sh", "-c", "[ $RANK = 0 ] || echo $CUDA_VISIBLE_DEVICES",
                              gpus=",".join(gpus[112 * r:112 * (r + 1)])) for r in range(2)]
        self.all_end(launches, 0)
        self.assertEqual(launches[0].out.split("] ")[-1].strip(), ",".join(gpus))

    def test_any_of_them_can_be_told_to_end(self):
        for end in signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT:
            launches = self.copies(
                2, *PATIENT, "sh", "-c",
                "trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.1; done")
            self.assertTrue(wait_until(lambda: launches[0].out.count("up\n") == 2))
            launches[1].signal(signal.SIGUSR2)  # the ranks get it from the one that leads
            launches[1].signal(end)
            self.all_end(launches, 143)
            self.assertEqual(launches[0].out.count("bye\n"), 2)

    def test_who_has_not_reported_is_named(self):
        leader, other = (self.copy(r, 4, "--start-timeout", 3, "true") for r in (0, 1))
        self.all_end([leader, other], 125)
        self.assertIn("started 4 instances of ddprun on this node, and 2 of them, such as the one with "
                      "local rank 2, have not reported", leader.err)
        self.assertEqual(other.err, "")
        alone = self.copy(1, 2, "--start-timeout", 1, "true")
        self.all_end([alone], 125)
        self.assertIn("started 2 instances of ddprun on this node, and the first of them does not answer",
                      alone.err)

    def test_a_report_that_is_short_or_of_a_rank_that_is_not_here(self):
        leader = self.copy(0, 2, "true")
        start = f"PMIX_NAMESPACE=ns-{self.port} {os.geteuid()} "
        name = hashlib.blake2b(b"ddprun mates\0" + start.encode(), key=bytes(32), digest_size=32).hexdigest()
        with contextlib.ExitStack() as strangers:
            for rank, size in ((-1, 2048), (0, 2048), (2, 2048), (1, 1)):
                stranger = strangers.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
                self.assertTrue(wait_until(lambda: stranger.connect_ex("\0ddprun-" + name[:40]) == 0))
                stranger.send(struct.pack("q", rank) + bytes(size))
            self.all_end([leader, self.copy(1, 2, "true")], 0)

    def test_the_leader_stands_still_while_it_waits(self):
        self.stands_still(0)

    def test_one_stands_still_while_it_looks_for_the_leader(self):
        self.stands_still(1)

    def stands_still(self, r):
        """For longer than its start-timeout."""
        waiting = self.copy(r, 2, "--start-timeout", 4, "true")
        wait_until_settled(waiting.mark)
        waiting.signal(signal.SIGSTOP)
        time.sleep(6)
        waiting.signal(signal.SIGCONT)
        time.sleep(0.5)
        self.all_end([waiting, self.copy(1 - r, 2, "true")], 0)

    def test_one_that_waits_is_killed_and_ends_all(self):
        launches = self.copies(3, "sh", "-c", "echo up; sleep 60")
        self.assertTrue(wait_until(lambda: launches[0].out.count("up\n") == 3))
        launches[2].signal(signal.SIGKILL)
        self.all_end(launches[:2], 125)
        self.assertRegex(launches[0].err, "^ddprun: an instance of ddprun on [^ ]+, which waited for "
                                          "the end of the job, ended before it")
        self.assertEqual(launches[1].err, "")
        self.assertEqual(who_is_left(self.mark), {})

    def test_they_end_with_the_one_that_leads(self):
        launches = self.copies(2, "sh", "-c", "echo up; sleep 60")
        self.assertTrue(wait_until(lambda: launches[0].out.count("up\n") == 2))
        launches[0].signal(signal.SIGKILL)
        launches[1].wait()
        self.assert_ended(launches[1], 125)
        self.assertIn("the leading instance of ddprun on this node was killed",
                      launches[1].err)


if __name__ == "__main__":
    main()
