"""What the tests of preloading have in common."""

import json
import os
import sys
import tempfile
import unittest

from launch import LaunchTest

PYTHON = sys.executable
WORLD = os.path.join(os.path.dirname(os.path.abspath(__file__)), "programs", "world.py")
MODULES = "json,random,ctypes,multiprocessing,threading,logging,locale,resource"
FORKED = "the ranks are forked"
NOT_FORKED = "the ranks import by themselves, as "

# doc/preload.md, "What differs": all else has to be the same
ALLOWED = {"modules", "chance"}
# of the job, not of the rank
OF_THE_JOB = ("MASTER_PORT", "DDPRUN_MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_ERROR_FILE",
              "DDPRUN_TEST_MARK", "DDPRUN_DIAGNOSE", "NCCL_RAS_ADDR",
              "PMIX_NAMESPACE", "PMIX_SERVER_", "JAX_COORDINATOR_ADDRESS", "OMPI_MCA_orte_hnp_uri",
              "HOROVOD_GLOO_RENDEZVOUS_PORT")


def setUpModule():
    """What is remembered of refused imports is the tests' own."""
    folder = tempfile.TemporaryDirectory()
    unittest.addModuleCleanup(folder.cleanup)
    os.environ["XDG_CACHE_HOME"] = folder.name


def flat(value, path=""):
    """A tree of JSON as {path: leaf}, so that a difference names its place."""
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list) and path.count("/") < 4:
        items = enumerate(value)
    else:
        return {path: value}
    found = {}
    for key, item in items:
        found.update(flat(item, f"{path}/{key}"))
    return found


class PreloadTest(LaunchTest):
    def both(self, *command, np=2, options=(), modules=MODULES, forked=True, **how):
        """The same job both ways."""
        plain = self.run_to_end("-np", np, "-v", "--no-preload", *options, *command, **how)
        ours = self.run_to_end("-np", np, "-v", "--preload", modules, *options, *command, **how)
        if forked:
            self.assertIn(FORKED, ours.err)
            self.assertNotIn(NOT_FORKED, ours.err)
        self.assertEqual(plain.rc, ours.rc, ours.err)
        return plain, ours

    def worlds(self, launch, np):
        found = {}
        for line in launch.out.splitlines():
            if "world {" in line:
                world = json.loads(line[line.index("{"):])
                world["environ"] = [e for e in world["environ"] if not e[0].startswith(OF_THE_JOB)]
                files = world["kernel"]["descriptors"]
                world["kernel"]["descriptors"] = {fd: how for fd, how in files.items()
                                                  if "/libffi." not in how[0] and fd != "62"}
                found[int(dict(world["environ"])["RANK"])] = world
        self.assertEqual(sorted(found), list(range(np)), launch.out + launch.err)
        return found

    def same_world(self, *command, np=2, **how):
        launches = self.both(*command, np=np, **how)
        plain, ours = (self.worlds(launch, np) for launch in launches)
        for rank in range(np):
            a, b = plain[rank], ours[rank]
            # imported things are more, never fewer
            self.assertLessEqual(set(a["modules"]), set(b["modules"]))
            for world in (a, b):
                for name in ALLOWED:
                    self.assertTrue(world[name])
            b["python"]["atexit"] -= how.get("forked", True)  # the helper's own
            a, b = (flat({k: v for k, v in w.items() if k not in ALLOWED}) for w in (a, b))
            different = {k: (a.get(k), b.get(k)) for k in a.keys() | b.keys()
                         if a.get(k) != b.get(k)}
            self.assertFalse(different, f"rank {rank}: plain, forked")
            self.assertGreater(len(a), 150)
        for worlds in (plain, ours):
            for i in range(3):  # no two ranks draw the same
                self.assertEqual(len({w["chance"][i] for w in worlds.values()}), np)
        return ours

    def refused(self, why, *command, modules="doubt", np=2, **how):
        how.setdefault("env", {})["PYTHONPATH"] = self.folder.name
        launch = self.run_to_end("-np", np, "-v", "--preload", modules, *command, **how)
        self.assert_ended(launch, 0)
        self.assertIn(NOT_FORKED, launch.err)
        self.assertIn(why, launch.err)
        self.assertNotIn(FORKED, launch.err)
        return launch
