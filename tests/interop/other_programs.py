#!/usr/bin/env python3
"""TensorFlow, PaddlePaddle, XGBoost, LightGBM, accelerate, Lightning, Hugging Face's Trainer: as their
documentation writes them; transformers' Llama beside ddp-train."""

import os
import subprocess
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "system"))
import jobs  # noqa: E402
import launch  # noqa: E402
import wheels  # noqa: E402

PROGRAMS = os.path.join(HERE, "programs")


def python_with(test, name, *requirements, **how):
    try:
        return os.path.join(wheels.installed(name, *requirements, **how), "bin", "python")
    except (OSError, subprocess.SubprocessError) as why:
        return test.skipTest(f"no wheels of {name}: {why}; needs network")


class Others(launch.LaunchTest):
    deadline = 200.0

    def held(self, *command, env=None):
        launched = self.run_to_end("-H", "localhost:2", "--tag-output=off", "-np", 2, *command,
                                   env=env)
        self.assert_ended(launched, 0)
        for rank in 0, 1:
            self.assertIn(f"held: rank {rank} of 2 sum 3\n", launched.out)

    def test_tensorflow(self):
        python = python_with(self, "tensorflow-2.21.0", "tensorflow-cpu==2.21.0", seconds=400)
        script = os.path.join(PROGRAMS, "tensorflow_sum.py")
        self.held("--rank-names", "all,tf", python, script, "TF_CONFIG")
        self.held(python, script, "slurm", launch.free_port())

    def test_paddle(self):
        python = python_with(self, "paddlepaddle-3.3.1", "paddlepaddle==3.3.1", seconds=400)
        self.held("--rank-names", "all,paddle", "-x", "PADDLE_DISTRI_BACKEND=gloo", python,
                  os.path.join(PROGRAMS, "paddle_sum.py"))

    def test_xgboost(self):
        python = python_with(self, "xgboost-3.2.0", "xgboost==3.2.0", seconds=300)
        self.held("--rank-names", "all,dmlc", python, os.path.join(PROGRAMS, "xgboost_sum.py"))

    def test_lightgbm(self):
        python = python_with(self, "lightgbm-4.7.0", "lightgbm==4.7.0", seconds=300)
        self.held("--rank-names", "all,tf", python, os.path.join(PROGRAMS, "lightgbm_sum.py"))

    def torch(self):
        torch = jobs.newest_torch()
        if not torch:
            self.skipTest("no PyTorch; needs torch")
        return python_with(self, "accelerate-1.15.0", "accelerate==1.15.0", "lightning==2.6.6",
                           seconds=200, beside=torch)

    def test_accelerate(self):
        self.held(self.torch(), os.path.join(PROGRAMS, "accelerate_sum.py"))

    def test_lightning(self):
        self.held(self.torch(), os.path.join(PROGRAMS, "lightning_sum.py"))

    def transformers(self):
        torch = jobs.newest_torch()
        if not torch:
            self.skipTest("no PyTorch; needs torch")
        return python_with(self, "transformers-5.23.0", "accelerate==1.15.0",
                           "transformers==5.23.0", seconds=300, beside=torch)

    def test_trainer(self):
        self.held(self.transformers(), os.path.join(PROGRAMS, "trainer_sum.py"))

    def test_a_group_of_ddp_is_used(self):
        """accelerate and Trainer know no backend "ddp", but use a group that exists."""
        before = ("import runpy, sys, torch.distributed as d, ddprun.torch; d.init_process_group('ddp'); "
                  "runpy.run_path(sys.argv[1]); assert d.get_backend() == 'ddp'")
        env = {"PYTHONPATH": os.path.join(HERE, "../../packaging/python"),
               "DDPGROUP_LIBRARY": os.environ["DDPGROUP_LIBRARY"]}
        for python, script in ((self.torch, "accelerate_sum.py"), (self.transformers, "trainer_sum.py")):
            with self.subTest(script):
                self.held(python(), "-c", before, os.path.join(PROGRAMS, script), env=env)

    def test_llama(self):
        done = subprocess.run(
            [self.transformers(), os.path.join(PROGRAMS, "llama_losses.py"), os.environ["DDP_TRAIN"]],
            capture_output=True, text=True, timeout=400)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_accelerate_launch_by_mpirun(self):
        """accelerate calls mpirun, which is ddprun."""
        python = self.torch()
        hosts = self.write("hosts", "localhost slots=2\n")
        self.write("mpirun", f'#!/bin/sh\nexec "{launch.DDPRUN}" --as mpirun "$@"\n', 0o755)
        done = subprocess.run(
            [os.path.join(os.path.dirname(python), "accelerate"), "launch", "--cpu",
             "--num_processes", "2", "--num_machines", "1", "--mpirun_hostfile", hosts,
             os.path.join(PROGRAMS, "accelerate_sum.py")],
            env={**os.environ, "PATH": f"{self.folder.name}:{os.environ['PATH']}"},
            capture_output=True, text=True, timeout=200)
        self.assertEqual(done.returncode, 0, done.stderr)
        for rank in 0, 1:
            self.assertIn(f"[{rank}] held: rank {rank} of 2 sum 3\n", done.stdout)


if __name__ == "__main__":
    unittest.main(verbosity=2)
