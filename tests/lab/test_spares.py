"""--spares: a lost host's ranks are started again on another one."""

import os
import re
import shutil
import signal
import time

import hosts
from hosts import LabTest, main, node
from launch import parent_of, wait_until
from test_hosts import ADD

setUpModule = hosts.set_up
tearDownModule = hosts.tear_down

# each rank says where it is; those of the first attempt wait to be stopped
SAY = "echo $RANK $(hostname) $TORCHELASTIC_RESTART_COUNT; "
WAIT = SAY + "[ $TORCHELASTIC_RESTART_COUNT -gt {} ] || exec sleep 50"


class LossTest(LabTest):
    def up(self, launch, *ranks, attempt=0):
        lines = [f"{rank} {node(host)} {attempt}\n" for rank, host in ranks]
        if not wait_until(lambda: all(line in launch.out for line in lines)):
            self.fail(f"not up: {launch.out} {launch.err}")

    def lose(self, number, how="kill"):
        self.addCleanup(self.heal, number)
        self.fault(number, how)

    def heads(self, launch):
        return [line for line in launch.err.splitlines() if line.startswith("ddprun: ")]


class Spares(LossTest):
    def begin(self, numbers, *options, script=WAIT.format(0), spares=1, **how):
        return self.start_on(numbers, script, "--spares", spares, "--grace", "1s", *options, slots=2,
                             **how)

    def test_ranks_keep_their_numbers_on_another_host(self):
        launch = self.begin((1, 2, 3, 4))
        self.up(launch, (0, 1), (2, 2), (4, 3), (5, 3))
        self.lose(2)
        launch.wait()
        self.assert_ended(launch, 0)
        self.up(launch, (0, 1), (1, 1), (2, 4), (3, 4), (4, 3), (5, 3), attempt=1)
        lost, takes, again = self.heads(launch)
        self.assertRegex(lost, "^ddprun: node002 is lost: .*, attempt 1 of 2; ddprun stopped ranks "
                         "0-1,4-5; no exit status of ranks 2-3")
        self.assertEqual(takes, "ddprun: node004 takes the place of node002")
        self.assertEqual(again, "ddprun: all ranks are started again, attempt 2 of 2")
        self.assertIn("[2 node004] 2 node004 1\n", launch.out)

    def test_a_place_with_other_ranks_than_the_spare_was_told(self):
        hosts = ",".join(self.hosts(n, slots=s) for n, s in ((1, 1), (2, 3), (3, 1), (4, 3)))
        launch = self.start("-H", hosts, "--spares", 1, "sh", "-c", WAIT.format(0))
        self.up(launch, (0, 1), (3, 2), (4, 3))
        self.lose(2)
        launch.wait()
        self.assert_ended(launch, 0)
        self.up(launch, (0, 1), (1, 4), (3, 4), (4, 3), attempt=1)

    def test_the_store_moves_with_rank_0(self):
        """Its address is that of the new host, and no key of the attempt before is in it."""
        program = self.write("add.py", ADD)
        launch = self.begin((2, 3, 4), script=f"/usr/bin/python3 {program}; " + WAIT.format(0))
        self.up(launch, (0, 2), (1, 2), (2, 3), (3, 3))
        self.lose(2)
        launch.wait()
        self.assert_ended(launch, 0)
        self.up(launch, (0, 4), (1, 4), (2, 3), (3, 3), attempt=1)
        sums = [line.split()[-2:] for line in launch.out.splitlines() if "10.77." in line]
        for address in ("10.77.0.2", "10.77.0.4"):
            self.assertEqual(sorted(n for a, n in sums if a == address), ["1", "2", "3", "4"])

    def test_a_silent_host(self):
        launch = self.begin((1, 2, 3), "--node-timeout", "4s", "--report")
        self.up(launch, (0, 1), (2, 2))
        self.lose(2, "drop")
        launch.wait()
        self.assert_ended(launch, 0)
        self.up(launch, (0, 1), (2, 3), (3, 3), attempt=1)
        self.assertTrue(wait_until(lambda: not self.on_host(2), 30), self.on_host(2))
        took = re.search(r"all ranks ran again (\S+) s after a failure", launch.err)
        self.assertLess(3.5, float(took[1]), launch.err)  # the silence is part of it

    def test_the_agent_on_the_launchers_own_host(self):
        """It is a child of the launcher, as are the ssh of the other hosts, which must stay."""
        launch = self.begin((1, 2, 3))
        self.up(launch, (0, 1), (2, 2))
        ours = [pid for pid, line in self.on_host(1).items() if line.startswith(f"{hosts.LAB_HOSTS.ddprun} ")]
        agent = next(pid for pid in ours if parent_of(pid) in ours)
        os.kill(agent, signal.SIGKILL)
        launch.wait()
        self.assert_ended(launch, 0)
        self.up(launch, (0, 3), (1, 3), (2, 2), (3, 2), attempt=1)

    def test_one_after_the_other_until_there_is_none(self):
        launch = self.begin((1, 2, 3, 4), spares=2, script=WAIT.format(9))
        self.up(launch, (0, 1), (2, 2))
        self.lose(2)
        self.up(launch, (0, 1), (2, 3), attempt=1)
        self.lose(3)
        self.up(launch, (0, 1), (2, 4), attempt=2)
        self.lose(4)
        launch.wait()
        self.assert_ended(launch, 125)
        self.assertRegex(self.heads(launch)[-1], "^ddprun: node004 is lost: .*, attempt 3 of 3"
                         r".*no exit status of ranks 2-3 \(node004\)$")

    def test_two_at_once(self):
        gone = self.path("gone")
        launch = self.begin((1, 2, 3, 4, 5), spares=2, script=WAIT.format(0) +
                            f"; while ! [ -e {gone} ]; do sleep 0.1; done")
        self.up(launch, (0, 1), (2, 2), (4, 3))
        self.lose(2)
        self.lose(3)
        self.write("gone", "")
        launch.wait()
        self.assert_ended(launch, 0)
        last = max(line.split()[-1] for line in launch.out.splitlines())
        self.up(launch, (2, 4), (4, 5), attempt=last)

    def test_another_one_while_ranks_are_stopped(self):
        """Both are told, and replaced at once."""
        gone = self.path("gone")
        launch = self.begin((1, 2, 3, 4, 5), *hosts.launch.PATIENT, spares=2, script=
                            "trap '' TERM; " + SAY + "[ $TORCHELASTIC_RESTART_COUNT = 0 ] || exit 0; "
                            f"until [ -e {gone} ]; do sleep 0.1; done")
        self.up(launch, (0, 1), (1, 1), (2, 2), (4, 3))
        self.lose(2)
        self.wait_for(launch, "is lost", "err")
        self.lose(3)
        self.wait_for(launch, "warning: node003 is lost", "err")
        self.write("gone", "")
        launch.wait()
        self.assert_ended(launch, 0)
        self.up(launch, (0, 1), (2, 4), (4, 5), attempt=1)

    def test_one_during_the_wait_for_the_next_attempt(self):
        launch = self.begin((1, 2, 3), "--max-restarts", 1, "--restart-delay", "10s", script=SAY +
                            "[ $TORCHELASTIC_RESTART_COUNT = 1 ] || exit 3")
        self.wait_for(launch, "the next attempt begins", "err")
        self.lose(2)
        launch.wait()
        self.assert_ended(launch, 0)
        self.up(launch, (0, 1), (2, 3), attempt=1)
        self.assertIn("warning: node002 is lost", launch.err)
        self.assertIn("exited with status 3", launch.err)

    def test_none_is_left_during_that_wait(self):
        launch = self.begin((1, 2), "--max-restarts", 1, "--restart-delay", "1h", script="exit 3",
                            spares=0)
        self.wait_for(launch, "the next attempt begins", "err")
        self.lose(2)
        launch.wait()
        self.assert_ended(launch, 125)
        self.assertIn("ddprun: node002 is lost", launch.err)

    def test_a_spare_is_lost_as_it_takes_over(self):
        launch = self.begin((1, 2, 3, 4), spares=2, script=SAY +
                            "[ $TORCHELASTIC_RESTART_COUNT = 2 ] || exec sleep 50")
        self.up(launch, (0, 1), (2, 2))
        self.lose(2)
        self.wait_for(launch, "node003 takes the place", "err")
        self.lose(3)
        launch.wait()
        self.assert_ended(launch, 0)
        self.up(launch, (0, 1), (2, 4), attempt=2)

    def test_a_spare_that_does_not_start_ends_nothing(self):
        self.lose(3, "sshd-stop")
        launch = self.begin((1, 2, 3), script=SAY, spares=1)
        launch.wait()
        self.assert_ended(launch, 0)
        self.assertIn("warning: no spare: node003", launch.err)
        self.assertNotIn("going on without", launch.err)

    def test_a_spare_with_too_few_slots(self):
        hosts = f"{self.hosts(1, slots=2)},{self.hosts(2, slots=1)}"
        launch = self.run_to_end("-H", hosts, "--spares", 1, "true")
        self.assert_ended(launch, 0)
        self.assertEqual(launch.err, "ddprun: warning: the spare node node002 cannot replace "
                         "node001: slots=1 there, but 2 ranks\n")

    def test_a_spare_that_is_lost_ends_nothing(self):
        launch = self.begin((1, 2, 3), script=SAY + "while ! [ -e " + self.path("go") + " ]; do "
                            "sleep 0.1; done")
        self.up(launch, (0, 1), (2, 2))
        self.lose(3)
        self.wait_for(launch, "the spare node node003 is lost", "err")
        self.write("go", "")
        launch.wait()
        self.assert_ended(launch, 0)

    def test_a_failed_rank_is_not_a_lost_host(self):
        launch = self.begin((1, 2, 3), script=SAY + "exit 3")
        launch.wait()
        self.assert_ended(launch, 3)
        self.assertNotIn("again", launch.err)

    def test_with_restarts_each_has_its_own_count(self):
        """A failed rank uses up --max-restarts, a lost host a spare."""
        script = SAY + 'case $TORCHELASTIC_RESTART_COUNT in 0) exec sleep 50 ;; 1) exit 3 ;; esac'
        launch = self.begin((1, 2, 3), "--max-restarts", 1, script=script)
        self.up(launch, (0, 1), (2, 2))
        self.lose(2)
        launch.wait()
        self.assert_ended(launch, 0)
        self.up(launch, (0, 1), (2, 3), attempt=2)

    def test_a_host_is_lost_with_output_that_nobody_has_read(self):
        """All ranks have ended well. Those of host 1 fill what ddprun holds; the others' last 60 KB each
        wait in their pipes for a reader. Host 3 is the spare."""
        ours, theirs = os.pipe()
        self.addCleanup(os.close, ours)
        events = self.write("events", "", 0o666)
        launch = self.start(
            "-H", "node001:100,node002:15,node003:100", "--spares", "1", "--events", events, "sh", "-c",
            f"[ $(hostname) = node001 ] || until [ -e {self.go} ]; do sleep 0.2; done; "
            "exec head -c 60000 /dev/zero", stdout=theirs)
        os.close(theirs)

        def exits(number):  # that ddprun knows of
            with open(events, encoding="utf-8") as f:
                return sum('"rank_exit"' in line and f'"{node(number)}"' in line for line in f)

        def is_full():  # it takes no more output
            sizes = []
            for _ in range(4):
                with open(f"/proc/{launch.launcher_pid()}/statm", encoding="ascii") as f:
                    sizes.append(f.read().split()[1])
                time.sleep(0.1)
            return len(set(sizes)) == 1

        self.assertTrue(wait_until(lambda: exits(1) == 100 and is_full()))
        self.write("go", "")
        self.assertTrue(wait_until(lambda: exits(2) == 15))
        self.lose(2)
        self.wait_for(launch, "is lost", "err")
        self.assertRegex(launch.err, "warning: node002 is lost: .*; its ranks had ended, but the last of "
                         "their output is missing\n$")
        while os.read(ours, 1 << 16):
            pass
        launch.wait()
        self.assert_ended(launch, 1)

    def test_too_many(self):
        for options in (("--spares", 3), ("--spares", 1, "--nnodes", 3)):
            launch = self.run_to_end("-H", self.hosts(1, 2, 3), *options, "true")
            self.assert_ended(launch, 2)
            self.assertRegex(launch.err, r"^ddprun: --spares \d.* 3 hosts\n$")

    def test_an_interrupt_while_ranks_move(self):
        launch = self.begin((1, 2, 3), script=SAY + "trap '' TERM; while :; do sleep 1; done")
        self.up(launch, (0, 1), (2, 2))
        self.lose(2)
        self.wait_for(launch, "is lost", "err")
        launch.signal(signal.SIGTERM)
        launch.wait()
        self.assertIn(launch.rc, (143, 125))
        time.sleep(0.1)


class Fewer(LossTest):
    """--nnodes MIN:MAX: without a spare the job goes on with fewer ranks."""

    def begin(self, numbers, *options, script=WAIT.format(0), nnodes="2:3", **how):
        return self.start_on(numbers, script, "--nnodes", nnodes, "--grace", "1s", *options, slots=2,
                             **how)

    SIZES = "echo $RANK $(hostname) $TORCHELASTIC_RESTART_COUNT $WORLD_SIZE $GROUP_WORLD_SIZE; "

    def test_ranks_are_numbered_anew(self):
        launch = self.begin((1, 2, 3), nnodes="2:8", script=self.SIZES + "[ $WORLD_SIZE = 4 ] || exec sleep 50")
        self.up(launch, (0, 1), (2, 2), (5, 3), attempt="0 6 3")
        self.lose(2)
        launch.wait()
        self.assert_ended(launch, 0)
        self.up(launch, (0, 1), (1, 1), (2, 3), (3, 3), attempt="1 4 2")
        lost, fewer, again = self.heads(launch)
        self.assertRegex(lost, "^ddprun: node002 is lost: .*, attempt 1 of 2; ")
        self.assertEqual(fewer, "ddprun: the job goes on with 2 of 3 hosts, 4 ranks")
        self.assertEqual(again, "ddprun: all ranks are started again, attempt 2 of 2")

    def test_the_host_of_rank_0(self):
        launch = self.begin((2, 3, 4), script=self.SIZES + "[ $WORLD_SIZE = 4 ] || exec sleep 50")
        self.up(launch, (0, 2), (5, 4), attempt="0 6 3")
        self.lose(2)
        launch.wait()
        self.assert_ended(launch, 0)
        self.up(launch, (0, 3), (1, 3), (2, 4), (3, 4), attempt="1 4 2")

    def test_files_and_ranks_that_the_next_attempt_does_not_have(self):
        out = self.path("out")
        launch = self.begin((1, 2, 3), "--output-filename", out, "--output-from", "0-5")
        self.up(launch, *((r, 1 + r // 2) for r in range(6)))
        # written by other threads than the lines above
        self.assertTrue(wait_until(lambda: sum(len(files) for _, _, files in os.walk(out)) == 6))
        shutil.rmtree(out)
        self.write("out", "")
        self.lose(2)
        launch.wait()
        self.assert_ended(launch, 0)
        self.up(launch, (0, 1), (3, 3), attempt=1)
        self.assertEqual(launch.err.count(f"cannot write '{out}/"), 1, launch.err)

    def test_not_below_the_least(self):
        launch = self.begin((1, 2), nnodes="2:3", script=SAY + "exec sleep 50")
        self.up(launch, (0, 1), (2, 2))
        self.lose(2)
        launch.wait()
        self.assert_ended(launch, 125)
        self.assertNotIn("again", launch.err)

    def test_hosts_that_do_not_start(self):
        self.lose(3, "sshd-stop")
        launch = self.begin((1, 2, 3), script=self.SIZES)
        launch.wait()
        self.assert_ended(launch, 0)
        self.assertIn("warning: going on without node003", launch.err)
        self.up(launch, (0, 1), (3, 2), attempt="0 4 2")

    def test_too_few_start(self):
        self.lose(2, "sshd-stop")
        self.lose(3, "sshd-stop")
        launch = self.begin((1, 2, 3), script=SAY)
        launch.wait()
        self.assert_ended(launch, 125)
        self.assertRegex(self.heads(launch)[0], r"^ddprun: cannot start on node\[002-003\]: ")

    def test_what_it_does_not_go_with(self):
        launch = self.run_to_end("-H", self.hosts(1, 2), "--nnodes", "1:2", "-np", 4, "true")
        self.assert_ended(launch, 2)
        self.assertIn("--nproc-per-node", launch.err)


del LabTest, LossTest

if __name__ == "__main__":
    main()
