"""--stragglers: a rank that comes late to collectives again and again is named, no other is."""

import json
import os
import signal

import launch

GROUP = os.environ["STRAGGLER_GROUP"]


class Stragglers(launch.LaunchTest):
    def job(self, *args, options=()):
        return self.start("-np", 4, "--stragglers", *options, GROUP, *args)

    def test_a_late_rank_is_named(self):
        """20 % more in each step; the unit test has in how many steps."""
        file = self.path("events")
        job = self.job("late", 300, 300, 60, options=("--events", file))
        launch.wait_until(lambda: "straggler" in job.err or job.process.poll() is not None)
        self.assertRegex(job.err, r"^ddprun: straggler: rank 2 on \S+ came late to \d+ of the last "
                         r"\d+ collectives, by [\d.e+]+ ms of [\d.e+]+ ms: the others wait for it "
                         r"\d+ % of the time(; CPUs [\d,-]+, load [\d.]+: it runs \d+ % and waits for "
                         r"a CPU \d+ % of the time(; beside it .*)?)?\n")
        job.signal(signal.SIGTERM)
        job.wait()
        with open(file, encoding="utf-8") as f:
            events = [json.loads(line) for line in f]
        first = next(e for e in events if e["event"] == "straggler")
        self.assertEqual(first["rank"], 2)
        self.assertGreaterEqual(first["score"], 0.1)
        self.assertLessEqual(first["late"], first["rounds"])

    def healthy(self, *args):
        job = self.job(*args)
        job.wait()
        self.assert_ended(job, 0)
        self.assertEqual(job.err, "")

    def test_once(self):
        self.healthy("once", 40, 50, 100)

    def test_all_equally(self):
        self.healthy("all", 40, 50, 50)

    def test_each_in_turn(self):
        self.healthy("turns", 60, 50, 40)

    def test_a_value_that_is_none(self):
        done = self.run_to_end("--stragglers=0", "true")
        self.assert_ended(done, 2)
        self.assertIn("--stragglers takes a percentage from 1 to 99, not '0'", done.err)

    def test_ranks_see_what_they_set_themselves(self):
        show = "echo $TORCH_FR_BUFFER_SIZE,$DDPRUN_ARRIVALS"
        for args, env, said in (((), {}, ","), (("--stragglers",), {}, "64,1"),
                                (("--stragglers",), {"TORCH_FR_BUFFER_SIZE": "9"}, "9,1"),
                                (("--stragglers",), {"TORCH_NCCL_TRACE_BUFFER_SIZE": "9"}, ",1")):
            done = self.run_to_end(*args, "sh", "-c", show, env=env)
            self.assertEqual((done.out, done.err), (said + "\n", ""))


if __name__ == "__main__":
    launch.main()
