"""Hosts that come and go: --node-wait, --host-discovery-script, a hostfile that changes, --grow."""

import json
import os
import re

import hosts
from hosts import LabTest, main, node
from launch import wait_until

setUpModule = hosts.set_up
tearDownModule = hosts.tear_down

# each rank says where it is, and the size of its world
SAY = ("echo $RANK $(hostname) $TORCHELASTIC_RESTART_COUNT $WORLD_SIZE $GROUP_RANK "
       "$GROUP_WORLD_SIZE $LOCAL_WORLD_SIZE $MASTER_ADDR; ")
# ranks stay until this file is there
STAY = SAY + "while ! [ -e {} ]; do sleep 0.1; done"


class Elastic(LabTest):
    def lines(self, launch, attempt):
        """What the ranks of this attempt say: [(rank, host, world, node rank, nodes, local, master)]."""
        words = [line.split() for line in launch.out.splitlines()]
        return sorted((int(w[-8]), w[-7], *map(int, w[-5:-1]), w[-1]) for w in words
                      if len(w) >= 8 and w[-6] == str(attempt))

    def expect(self, launch, attempt, *numbers, slots=(2,) * 8):
        """The world of this attempt: these hosts, in their order, with so many ranks each."""
        places = [p for p in range(len(numbers)) for _ in range(slots[p])]
        world = [(r, node(numbers[p]), len(places), p, len(numbers), slots[p]) for r, p in enumerate(places)]
        masters = [f"10.77.0.{numbers[0]}"] + ["127.0.0.1"] * (len(numbers) == 1)
        if not wait_until(lambda: any(
            self.lines(launch, attempt) == [(*rank, m) for rank in world] for m in masters)):
            self.fail(f"not {world}: {launch.out} {launch.err}")

    def end(self, launch, code=0):
        self.say_go()
        launch.wait()
        self.assert_ended(launch, code)


class NodeWait(Elastic):
    """A lost host is waited for."""

    def begin(self, numbers, *options, **how):
        return self.start_on(numbers, STAY.format(self.go), "--grace", "1s", *options, slots=2, **how)

    def test_the_agent_is_started_again(self):
        launch = self.begin((1, 2), "--node-wait", "100s")
        self.expect(launch, 0, 1, 2)
        self.lose(2)
        self.wait_for(launch, "too few hosts are left; waiting up to 100 s", "err")
        self.heal(2)
        self.expect(launch, 1, 1, 2)
        self.wait_for(launch, "ddprun: node002 has joined the job\n", "err")
        self.wait_for(launch, "ddprun: all ranks are started again, attempt 2\n", "err")
        self.end(launch)

    def test_an_agent_that_was_killed(self):
        launch = self.begin((1, 2), "--node-wait", "100s")
        self.expect(launch, 0, 1, 2)
        self.kill_agent(2)
        self.expect(launch, 1, 1, 2)
        self.end(launch)

    def kill_agent(self, number):
        for pid, line in self.on_host(number).items():
            if "ddprun-agent" in line:
                try:
                    os.kill(pid, 9)
                except ProcessLookupError:
                    pass

    def test_no_host_comes(self):
        launch = self.begin((1, 2), "--node-wait", "3s")
        self.expect(launch, 0, 1, 2)
        self.lose(2)
        launch.wait()
        self.assert_ended(launch, 125)
        self.assertIn("ddprun: no host has come in the place of the lost one within 3 s "
                      "(--node-wait)", launch.err)

    def test_it_comes_back_with_another_clock(self):
        """By days: the times of exits are still those of the launcher's clock."""
        launch = self.start_on((1, 2), SAY + "while ! [ -e " + self.go + " ]; do sleep 0.1; done; "
                               "[ $RANK != 2 ] || { sleep 1; exit 4; }; sleep 50", "--grace", "1s",
                               "--node-wait", "100s", slots=2)
        self.expect(launch, 0, 1, 2)
        self.lose(2)
        settings = os.path.join(hosts.LAB_HOSTS.env["LAB_STATE"], "settings")
        with open(settings, encoding="utf-8") as f:
            before = f.read()
        with open(settings, "w", encoding="utf-8") as f:
            json.dump({**json.loads(before), "clocks": "0"}, f)
        self.addCleanup(self.restore, settings, before)
        self.heal(2)
        self.expect(launch, 1, 1, 2)
        self.say_go()
        launch.wait()
        self.assert_ended(launch, 4)
        took = re.search(r"rank 2 on node002 exited with status 4 \(after (\S+) s\)", launch.err)
        self.assertTrue(took, launch.err)
        self.assertTrue(0.9 < float(took[1]) < 3600, launch.err)

    def restore(self, settings, before):
        with open(settings, "w", encoding="utf-8") as f:
            f.write(before)
        self.heal(2)


class Listed(Elastic):
    def begin(self, *options, nnodes="1:4", script=None, **how):
        return self.start("--host-discovery-script", script or f"cat {self.path('hosts')}",
                          "--nnodes", nnodes, "--discovery-interval", "200ms", "--grace", "1s",
                          *options, "sh", "-c", STAY.format(self.go), **how)


class Discovery(Listed):
    def test_grows_at_once_and_shrinks(self):
        self.list_hosts(1)
        launch = self.begin("--grow", "now")
        self.expect(launch, 0, 1)
        self.list_hosts(2, 1)
        self.expect(launch, 1, 1, 2)
        self.list_hosts(1, 2, 3)
        self.expect(launch, 2, 1, 2, 3)
        self.list_hosts(1, 3)
        self.expect(launch, 3, 1, 3)
        self.end(launch)

    def test_gloo_s_interface_when_there_are_others(self):
        """No host's own name stands for an address that others can reach."""
        for k in (2, 3):
            hosts.LAB_HOSTS("exec", node(k), "mount", "--bind", "/dev/null", "/etc/hosts")
            self.addCleanup(hosts.LAB_HOSTS, "exec", node(k), "umount", "/etc/hosts")
        self.list("10.77.0.2:1")
        launch = self.start("--host-discovery-script", f"cat {self.path('hosts')}", "--nnodes", "1:2",
                            "--grow", "now", "--grace", "1s", "sh", "-c",
                            f"echo at=$GLOO_SOCKET_IFNAME; while ! [ -e {self.go} ]; do sleep 0.1; done")
        self.wait_for(launch, "at=\n")
        self.list("10.77.0.2:1", "10.77.0.3:1")
        self.assertTrue(wait_until(lambda: launch.out.count("at=eth0\n") == 2), launch.out + launch.err)
        self.end(launch)

    def test_all_hosts_are_replaced(self):
        """More than MAX have an agent meanwhile."""
        self.list_hosts(1, 2)
        launch = self.begin("--grow", "now", nnodes="2:2")
        self.expect(launch, 0, 1, 2)
        self.list_hosts(3, 4)
        self.expect(launch, 1, 3, 4)
        self.end(launch)

    def starts(self, number):
        return any(re.search(f"ssh .*{node(number)}", line) for line in self.on_host(1).values())

    def test_a_host_is_taken_off_the_list_while_it_starts(self):
        read = self.path("read")
        self.list_hosts(1)
        launch = self.begin(script=f"cat {self.path('hosts')}; echo >>{read}")
        self.expect(launch, 0, 1)
        self.addCleanup(self.heal, 2)
        self.fault(2, "sshd-hang")
        self.list_hosts(1, 2)
        self.assertTrue(wait_until(lambda: self.starts(2)), launch.err)
        self.list_hosts(1)
        size = os.path.getsize(read)
        self.assertTrue(wait_until(lambda: os.path.getsize(read) > size + 1))
        self.fault(2, "sshd-start")
        self.assertTrue(wait_until(lambda: not self.starts(2) and not self.on_host(2)), self.on_host(2))
        self.end(launch)
        self.assertEqual(launch.err, "ddprun: node002 is no longer listed\n")

    def test_grows_at_the_next_restart(self):
        self.list_hosts(1, 2)
        launch = self.begin()
        self.expect(launch, 0, 1, 2)
        self.list_hosts(1, 2, 3)
        self.wait_for(launch, "node003 has joined the job; it gets ranks at the next restart", "err")
        self.lose(2)
        self.expect(launch, 1, 1, 3)
        self.end(launch)


    def test_a_host_that_was_lost_comes_back(self):
        self.list_hosts(1, 2)
        launch = self.begin("--grow", "now")
        self.expect(launch, 0, 1, 2)
        self.lose(2)
        self.expect(launch, 1, 1)
        self.heal(2)
        self.expect(launch, 2, 1, 2)
        self.end(launch)

    def test_one_that_cannot_be_reached_delays_no_other(self):
        self.lose(2, "sshd-stop")
        self.list_hosts(1)
        launch = self.begin("--grow", "now")
        self.expect(launch, 0, 1)
        self.list_hosts(1, 2, 3)
        self.expect(launch, 1, 1, 3)
        # its ssh may fail after node003 has joined
        self.wait_for(launch, "; it is tried again\n", "err")
        self.assertRegex(launch.err, "ddprun: warning: node002: .*; it is tried again\n")
        self.heal(2)
        self.expect(launch, 2, 1, 3, 2)
        self.end(launch)

    def test_one_that_cannot_be_reached_at_the_start(self):
        self.lose(2, "sshd-stop")
        self.list_hosts(1, 2, 3)
        launch = self.begin()
        self.expect(launch, 0, 1, 3)
        self.wait_for(launch, "ddprun: warning: going on without node002: ", "err")
        self.end(launch)

    def test_one_that_cannot_be_reached_to_ask_for_its_slots(self):
        self.lose(2, "sshd-stop")
        self.list(*map(node, (1, 2, 3)))
        launch = self.begin()
        self.expect(launch, 0, 1, 3, slots=(1, 1))
        self.wait_for(launch, "ddprun: warning: going on without node002: ", "err")
        self.end(launch)

    def test_a_host_for_the_place_of_a_lost_one(self):
        self.list_hosts(1, 2)
        launch = self.begin("--node-wait", "100s", nnodes=2)
        self.expect(launch, 0, 1, 2)
        self.lose(2)
        self.wait_for(launch, "come back, or for another one (--node-wait)", "err")
        self.list_hosts(1, 3)
        self.expect(launch, 1, 1, 3)
        self.end(launch)

    def test_two_failures_within_one_recovery(self):
        self.list_hosts(1, 2, 3)
        launch = self.begin("--node-wait", "100s", "--max-restarts", 1, nnodes="3:4")
        self.expect(launch, 0, 1, 2, 3)
        self.lose(2)
        self.wait_for(launch, "too few hosts are left", "err")
        self.lose(3)
        self.wait_for(launch, "node003 is lost", "err")
        self.list_hosts(1, 4, 5)
        self.expect(launch, 1, 1, 4, 5)
        self.end(launch)

    def test_more_than_enough_are_not_used(self):
        self.list_hosts(1, 2, 3, 4)
        launch = self.begin("--grow", "now", nnodes="1:2")
        self.expect(launch, 0, 1, 2)
        self.assertEqual([n for n in (3, 4) if self.on_host(n)], [])
        self.lose(2)
        self.wait_for(launch, "node003 has joined", "err")
        self.end(launch)

    def test_slots_that_change(self):
        self.list("node001:2", "node002:1")
        launch = self.begin("--grow", "now")
        self.expect(launch, 0, 1, 2, slots=(2, 1))
        self.list("node001:2", "node002:3")
        self.expect(launch, 1, 1, 2, slots=(2, 3))
        self.list("node001:1", "node002:3")
        self.expect(launch, 2, 1, 2, slots=(1, 3))
        self.end(launch)

    def test_slots_that_change_count_at_the_next_restart(self):
        read = self.path("read")
        self.list("node001:2", "node002:1")
        launch = self.start(
            "--host-discovery-script", f"cat {self.path('hosts')}; echo >>{read}", "--nnodes", "1:4", "--max-restarts",
            1, "--discovery-interval", "200ms", "sh", "-c", f"{SAY} while ! [ -e {self.go} ]; do sleep 0.1; "
            f"[ $RANK$TORCHELASTIC_RESTART_COUNT != 00 ] || ! [ -e {self.path('fail')} ] || exit 3; done")
        self.expect(launch, 0, 1, 2, slots=(2, 1))
        self.list("node001:1", "node002:3")
        size = os.path.getsize(read)
        self.assertTrue(wait_until(lambda: os.path.getsize(read) > size + 1))
        self.write("fail", "")
        self.expect(launch, 1, 1, 2, slots=(1, 3))
        self.end(launch)

    def test_a_host_that_cannot_have_its_ranks(self):
        self.list("node001:2")
        launch = self.begin("--grow", "now", "--nproc-per-node", 2)
        self.expect(launch, 0, 1)
        self.list("node001:2", "node002:1", "node003:2")
        self.expect(launch, 1, 1, 3)
        self.list("node001:2", "node002:1", "node003:1")
        self.expect(launch, 2, 1)
        self.assertIn("ddprun: warning: no ranks on node002: 2 ranks per node, but 'node002' has 1 slot ", launch.err)
        self.end(launch)

    def test_the_output_of_more_ranks(self):
        self.list_hosts(1)
        out = self.path("out")
        launch = self.begin("--grow", "now", "--output-filename", out)
        self.expect(launch, 0, 1)
        self.list_hosts(1, 2)
        self.expect(launch, 1, 1, 2)
        self.end(launch)
        with open(os.path.join(out, "attempt-2", "rank.3.out"), encoding="utf-8") as f:
            self.assertTrue(f.read().startswith("3 node002 1 4 1 2 2 "))

    def test_events(self):
        self.list_hosts(1)
        launch = self.begin("--grow", "now", "--events", self.path("events"))
        self.expect(launch, 0, 1)
        self.list_hosts(1, 2)
        self.expect(launch, 1, 1, 2)
        self.list_hosts(1)
        self.expect(launch, 2, 1)
        self.end(launch)
        with open(self.path("events"), encoding="utf-8") as f:
            events = [json.loads(line) for line in f]
        for name in ("host_added", "host_removed"):
            self.assertEqual([e["host"] for e in events if e["event"] == name], [node(2)])
        self.assertEqual([e["kind"] for e in events if e["event"] == "failure"], ["resize"] * 2)
        self.assertEqual([e for e in events if e["event"] == "recovered"], [])

    def hostfile(self, *numbers):
        self.list(*(f"{node(n)} slots=2" for n in numbers))

    def test_a_hostfile_that_changes(self):
        self.hostfile(1, 2)
        launch = self.start("--hostfile", self.path("hosts"), "--nnodes", "1:3", "--grow", "now",
                            "--discovery-interval", "200ms", "--grace", "1s", "sh", "-c",
                            STAY.format(self.go))
        self.expect(launch, 0, 1, 2)
        self.list("node001 slots=2", "node002 slots=")
        self.wait_for(launch, "the hosts stay as they were", "err")
        self.hostfile(1, 2, 3)
        self.expect(launch, 1, 1, 2, 3)
        self.hostfile(2, 3, 1)
        os.unlink(self.path("hosts"))
        self.wait_for(launch, "cannot open the hostfile", "err")
        self.hostfile(1, 3)
        self.expect(launch, 2, 1, 3)
        self.end(launch)


class Trouble(Listed):
    """A script that is not as it should be: told once, and the hosts stay as they were."""

    SCRIPT = "[ -e {0}/bad ] || exec cat {0}/hosts; . {0}/bad"

    def spoil(self, bad, said, *options):
        self.list_hosts(1)
        launch = self.begin(*options, script=self.SCRIPT.format(self.folder.name))
        self.expect(launch, 0, 1)
        self.write("bad", bad + "\n")
        self.wait_for(launch, said, "err")
        lines = [line for line in launch.err.splitlines() if "stay as they were" in line]
        self.assertEqual(len(lines), 1, launch.err)
        self.assertTrue(lines[0].startswith("ddprun: warning: --host-discovery-script"), lines)
        self.list_hosts(1, 2)
        os.unlink(self.path("bad"))
        self.wait_for(launch, "node002 has joined the job", "err")
        self.end(launch)

    def test_it_fails(self):
        self.spoil("echo nothing there >&2; exit 7", "exited with status 7: 'nothing there'; the hosts")

    def test_it_hangs(self):
        self.spoil("sleep 1000", "had not ended after 5 s; the hosts", "--discovery-timeout", "5s")

    def test_rubbish(self):
        self.spoil("head -c 1000 /dev/urandom | tr -d '\\n'", "; the hosts stay")

    def test_it_prints_for_ever(self):
        self.spoil("yes node001:2", "printed more than 1024 KiB; the hosts")

    def test_ten_thousand_lines(self):
        """That many hosts may exist; those beyond MAX cost nothing."""
        self.write("hosts", f"{node(1)}:2\n" + "".join(f"x{n}:2\n" for n in range(10000)))
        launch = self.begin(nnodes="1:1")
        self.expect(launch, 0, 1)
        self.end(launch)

    def test_the_same_host_twice(self):
        self.spoil("echo node001:2; echo node001:4", "node001")

    def test_no_host_for_a_while(self):
        self.list_hosts(1, 2)
        launch = self.begin("--grow", "now")
        self.expect(launch, 0, 1, 2)
        self.list()
        self.wait_for(launch, "lists 0 hosts, but --nnodes needs 1: the job keeps those", "err")
        self.list_hosts(1, 2, 3)
        self.expect(launch, 1, 1, 2, 3)
        self.end(launch)

    def test_no_host_at_the_start(self):
        self.list()
        launch = self.begin(nnodes="2:4")
        self.wait_for(launch, "lists 0 hosts, but --nnodes needs 2; asking again", "err")
        self.list_hosts(2, 1)
        self.expect(launch, 0, 2, 1)
        self.end(launch)

    def test_too_few_at_the_start(self):
        self.list_hosts(1)
        launch = self.begin("--start-timeout", "1s", nnodes="2:4")
        launch.wait()
        self.assert_ended(launch, 125)
        self.assertIn("ddprun: --host-discovery-script lists 1 host, but --nnodes needs 2\n",
                      launch.err)

    def test_a_dry_run_shows_those_of_now(self):
        launch = self.run_to_end("--host-discovery-script", "echo node001:2; echo node002:2",
                                 "--nnodes", "1:8", "--dry-run", "true")
        self.assert_ended(launch, 0)
        self.assertIn("hosts: 2 from discovery\n", launch.out)
        self.assertIn("ranks: 4 on 2 hosts", launch.out)

    def test_what_it_does_not_go_with(self):
        for options, said in (
            (("--host-discovery-script", "true"), "needs --nnodes"),
            (("--host-discovery-script", "true", "--hostfile", "x", "--nnodes", 1), "--hostfile"),
            (("--grow", "now", "-H", "node001"), "--grow now needs"),
        ):
            launch = self.run_to_end(*options, "true")
            self.assert_ended(launch, 2)
            self.assertIn(said, launch.err)
            self.assertEqual(launch.err.count("\n"), 1, launch.err)


class Health(Elastic):
    def sick(self, *numbers, how="echo no GPU >&2; exit 3"):
        self.write("sick", "case $(hostname) in\n" +
                   "".join(f"{node(n)}) {how} ;;\n" for n in numbers) + "esac\n")

    def begin(self, numbers, *options, script=None, check=None, **how):
        return self.start_on(numbers, script or STAY.format(self.go), "--health-check",
                             check or f". {self.path('sick')}", "--grace", "1s", *options, slots=2,
                             **how)

    def test_a_host_is_taken_off_the_list_while_it_is_checked(self):
        """No answer is due then: the next attempt does not wait for it."""
        asked = self.path("asked")
        self.list_hosts(1)
        launch = self.start(
            "--host-discovery-script", f"cat {self.path('hosts')}", "--nnodes", "1:4", "--grow", "now",
            "--discovery-interval", "200ms", "--grace", "1s", "--health-timeout", "100s", "--health-check",
            f"[ $(hostname) != {node(2)} ] || {{ echo >{asked}; sleep 60; }}", "sh", "-c", STAY.format(self.go))
        self.expect(launch, 0, 1)
        self.list_hosts(1, 2)
        self.assertTrue(wait_until(lambda: os.path.exists(asked)), launch.err)
        self.list_hosts(1)
        self.assertTrue(wait_until(lambda: not self.on_host(2)), self.on_host(2))
        self.list("node001:1")
        self.expect(launch, 1, 1, slots=(1,))
        self.end(launch)

    def test_a_sick_host_is_left_out(self):
        self.sick(2)
        launch = self.begin((1, 2, 3), "--nnodes", "2:3")
        self.expect(launch, 0, 1, 3)
        self.wait_for(launch, "ddprun: warning: going on without node002: its health check exited "
                      "with status 3: 'no GPU' (--health-check)\n", "err")
        self.end(launch)

    def test_a_spare_takes_its_place(self):
        self.sick(2)
        launch = self.begin((1, 2, 3), "--spares", 1)
        self.expect(launch, 0, 1, 3)
        self.end(launch)

    def test_none_takes_its_place(self):
        for how, said in (("echo bad >&2; kill -9 $$", "died of SIGKILL: 'bad'"),
                          ("sleep 1000", "had not ended after 5 s")):
            self.sick(2, how=how)
            launch = self.begin((1, 2), "--health-timeout", "5s")
            launch.wait()
            self.assert_ended(launch, 125)
            self.assertRegex(launch.err, f"^ddprun: node002 is lost: its health check {said}")

    def test_one_that_gets_sick(self):
        """It is found before the next attempt; a spare that is sick takes no place."""
        self.sick()
        script = SAY + "[ $TORCHELASTIC_RESTART_COUNT = 1 ] || { while ! [ -e " + self.go + (
            " ]; do sleep 0.1; done; exit 4; }")
        launch = self.begin((1, 2, 3, 4), "--spares", 2, "--max-restarts", 1, script=script)
        self.expect(launch, 0, 1, 2)
        self.sick(2, 3)
        self.say_go()
        launch.wait()
        self.assert_ended(launch, 0)
        self.expect(launch, 1, 1, 4)
        self.assertIn("node004 takes the place of node002", launch.err)

    def test_on_this_machine_alone(self):
        launch = self.begin((1,), check="echo broken >&2; false")
        launch.wait()
        self.assert_ended(launch, 125)
        self.assertEqual(launch.err, "ddprun: node001 is lost: its health check exited with status "
                         "1: 'broken' (--health-check)\n")

    def test_a_sick_host_is_not_added(self):
        self.sick(2)
        self.write("hosts", "node001:2\n")
        launch = self.start("--host-discovery-script", f"cat {self.path('hosts')}", "--nnodes",
                            "1:2", "--discovery-interval", "200ms", "--grow", "now",
                            "--health-check", f". {self.path('sick')}", "sh", "-c",
                            STAY.format(self.go))
        self.expect(launch, 0, 1)
        self.write("hosts", "node001:2\nnode002:2\n")
        self.wait_for(launch, "the spare node node002 is lost: its health check exited", "err")
        self.sick()
        self.expect(launch, 1, 1, 2)
        self.end(launch)

del LabTest, Elastic, Listed

if __name__ == "__main__":
    main()
