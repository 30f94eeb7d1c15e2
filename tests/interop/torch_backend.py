#!/usr/bin/env python3
"""torch_backend.py DDPRUN: the backend "ddp" of torch.distributed, beside Gloo

Every collective gives Gloo's answers, DistributedDataParallel and FSDP its losses, under
ddprun and under torchrun, on one host and on two; and a rank that dies or does not join is named.
"""
import os
import re
import subprocess
import sys
import tempfile
import unittest

import jobs

HERE = os.path.dirname(os.path.abspath(__file__))
PROGRAM = os.path.join(HERE, "programs/torch_backend.py")
DDPRUN = os.path.abspath(sys.argv.pop(1))
BUILD = os.path.dirname(os.path.dirname(DDPRUN))
os.environ["PYTHONPATH"] = os.path.join(HERE, "../../packaging/python")
os.environ["DDPGROUP_LIBRARY"] = os.path.join(BUILD, "worker/group/libddpgroup.so")
PYTHON = jobs.newest_torch() or jobs.skip("no PyTorch 2.15 on this machine; needs torch")


def run(*command, cwd=None, **env):
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, cwd=cwd, env={**os.environ, **env},
                          timeout=4 * jobs.JOB_SECONDS, check=False)
    return done.returncode, done.stdout


class Backend(unittest.TestCase):
    def ddprun(self, ranks, what, **env):
        code, said = run(DDPRUN, "-np", str(ranks), PYTHON, PROGRAM, what, **env)
        self.assertEqual(code, 0, said)
        return said

    def test_collectives_give_gloos_answers(self):
        self.assertRegex(self.ddprun(3, "collectives"), r"[0-9]{3} results are Gloo's")

    def test_collectives_between_hosts(self):
        """Rank 2 takes itself for one of another host."""
        self.assertIn("results are Gloo's", self.ddprun(3, "collectives", RANKS_OF_A_HOST="2"))

    def test_training_gives_gloos_losses(self):
        said = self.ddprun(2, "training")
        self.assertEqual(said.count("Gloo's losses"), 8, said)

    def test_under_torchrun(self):
        code, said = run(PYTHON, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--standalone",
                         PROGRAM, "training")
        self.assertEqual(code, 0, said)
        self.assertEqual(said.count("Gloo's losses"), 8, said)

    @unittest.skipUnless(jobs.debian_torch(), "no package python3-torch")
    def test_an_older_pytorch_is_refused_in_a_line(self):
        code, said = run(jobs.debian_torch(), "-c", "import ddprun.torch")
        self.assertEqual(code, 1, said)
        self.assertRegex(said, r"\nImportError: ddprun.torch needs PyTorch 2.14 or newer, this is [12]\.")

    def test_a_group_is_made_again(self):
        self.assertEqual(self.ddprun(2, "again").count("30 groups"), 2)

    def test_a_rank_that_dies_is_named(self):
        said = self.ddprun(3, "dies")
        self.assertEqual(len(re.findall(r"rank [01]: ddp: .*rank 2 on .* has gone", said)), 2, said)

    def test_a_rank_that_does_not_come_is_named(self):
        said = self.ddprun(3, "late")
        self.assertEqual(len(re.findall(r"all_reduce #1: .*rank 2 on .* not come within 10 s", said)), 2, said)

    def test_a_rank_that_does_not_come_by_the_calls_deadline_is_named(self):
        said = self.ddprun(3, "absent")
        self.assertEqual(len(re.findall(r"all_reduce #1: rank 0 on .* not come within 2 s", said)), 2, said)
        self.assertEqual(len(re.findall(r"barrier #1: rank 0 on .* not come within 2 s", said)), 4, said)
        self.assertEqual(len(re.findall(r"barrier #1: rank 0 on .* not come within 0.001 s", said)), 2, said)
        self.assertEqual(said.count("ddp: rank 0 of the group has not come within 2 s"), 2, said)

    def test_backward_raises_when_a_rank_has_gone(self):
        said = self.ddprun(3, "backward")
        self.assertEqual(len(re.findall(r"rank [01]: .*ddp: .*rank 2 on .* has gone", said)), 2, said)

    def test_a_hang_is_reported(self):
        """Its collectives and messages are the library's, of which PyTorch's recorder knows nothing."""
        for what, words in (("sum", r"1 of 2 ranks has waited \d+ s in all_reduce #1 of the group of ranks 0,2 "
                                    r"\(4 x f32\) at torch_backend.py:\d+; rank 2 has not arrived: it is "),
                            ("all", r"2 of 3 ranks have waited \d+ s in all_reduce #1 of the group of ranks 0-2 "),
                            ("recv", r"ranks 0-2 wait for each other: rank 0 has waited \d+ s in recv for rank 1 "
                                     r"\(tag 3\) at torch_backend.py:\d+")):
            with self.subTest(what), tempfile.TemporaryDirectory() as folder:
                code, said = run(DDPRUN, "-np", "3", "--hang-after", "1s", "--on-hang", "stop", PYTHON, PROGRAM,
                                 "hang_" + what, cwd=folder)
                self.assertEqual(code, 124, said)
                self.assertRegex(said, "ddprun: hang: " + words)

    def test_a_model_is_compiled(self):
        self.assertIn("a compiled DDP: Gloo's losses", self.ddprun(2, "compiled"))

    def test_a_rank_that_comes_too_late_is_told_so(self):
        said = self.ddprun(2, "tardy")
        self.assertRegex(said, r"rank 1: .*rank 0 on .* has given up or ended while joining")


if __name__ == "__main__":
    unittest.main(verbosity=2)
