"""pytorch_tests.py BACKEND [NAME...]: the tests for CPUs of PyTorch's own distributed_test.py, with four ranks"""
import os
import shutil
import sys
import tempfile
import types
import unittest

backend, *names = sys.argv[1:]
tempfile.tempdir = tempfile.mkdtemp(prefix="pytorch_tests-")
for name in "barrier", "test_dir", "init_dir":
    os.mkdir(os.path.join(tempfile.tempdir, name))
# the tests name the backends that they are for: what is for Gloo is for this one
os.environ.update(BACKEND="gloo", WORLD_SIZE="4", TEMP_DIR=tempfile.tempdir, CUDA_VISIBLE_DEVICES="")
# a package that PyTorch's wheel does not bring, of which these tests use a name
sys.modules["expecttest"] = types.SimpleNamespace(TestCase=unittest.TestCase)

import torch
import torch.distributed as dist
from torch.testing._internal.distributed import distributed_test as theirs

import ddprun.torch  # noqa: F401

OTHER_WORDS = "its error has other words, which torch_backend.py tests"
NOT_OURS = {
    "test_get_backend": "it wants the name gloo",
    "test_barrier_timeout_full_group": OTHER_WORDS,
    "test_barrier_timeout_group": OTHER_WORDS,
    "test_monitored_barrier_failure_order": OTHER_WORDS,
    "test_monitored_barrier_gloo": OTHER_WORDS,
    "test_monitored_barrier_gloo_rank_0_timeout": OTHER_WORDS,
    "test_monitored_barrier_gloo_subgroup": OTHER_WORDS,
    "test_monitored_barrier_wait_all_ranks": OTHER_WORDS,
}

torch.set_num_threads(1)  # no others live on in a fork
os.environ["BACKEND"] = "mpi"  # for others, some tests want eight ranks
init = dist.init_process_group
dist.init_process_group = lambda *args, **options: init(*args, **{**options, "backend": backend})


class Tests(theirs.TestDistBackend, theirs.DistributedTest._DistTestBase):
    def setUp(self):
        if backend == "ddp" and self._testMethodName in NOT_OURS:
            self.skipTest(NOT_OURS[self._testMethodName])
        super().setUp()
        self._start_processes(torch.multiprocessing.get_context("fork").Process)

    def _barrier(self, *args, timeout=60, **options):
        super()._barrier(*args, timeout=timeout, **options)


for test in vars(theirs.DistributedTest._DistTestBase).values():
    if "MPI supports" in getattr(test, "__unittest_skip_why__", ""):  # all-to-all of CPUs
        test.__unittest_skip__ = False
try:
    # with 2, tests/run.py would read the skips, which are PyTorch's, as tests that this machine could run
    verbosity = 2 if names else 1
    result = unittest.main(argv=["", *("Tests." + name for name in names)], verbosity=verbosity, exit=False).result
finally:
    shutil.rmtree(tempfile.tempdir)
passed = result.testsRun - len(result.skipped) - len(result.errors) - len(result.failures)
print(f"{passed} of PyTorch's tests passed, {len(result.skipped)} are not for this backend")
sys.exit(not result.wasSuccessful() or passed < (len(names) or 110))
