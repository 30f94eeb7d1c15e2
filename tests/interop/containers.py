#!/usr/bin/env python3
"""--container with a real podman: an image made of busybox, found nowhere else."""

import io
import os
import shutil
import subprocess
import sys
import tarfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "system"))
import launch  # noqa: E402

IMAGE = "localhost/ddprun-test:1"
# for a machine without cgroups v2, or whose limits may not be raised
OLD = """[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
[engine]
runtime = "runc"
"""


def image():
    text = io.BytesIO()
    with tarfile.open(fileobj=text, mode="w") as tar:
        tar.add("/bin/busybox", "bin/busybox")
        for name in "sh", "echo", "cat", "ls", "sleep":
            link = tarfile.TarInfo(f"bin/{name}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            tar.addfile(link)
        for name in "tmp", "proc", "dev", "etc", "inside":
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(folder)
    subprocess.run(["podman", "import", "-", IMAGE], input=text.getvalue(), check=True,
                   capture_output=True, timeout=200)


def runs():
    return subprocess.run(
        ["podman", "run", "--rm", "--pull", "never", "--network", "host", "--pid", "host", IMAGE,
         "/bin/echo", "hi"], capture_output=True, text=True, timeout=200)


class Podman(launch.LaunchTest):
    deadline = 200.0

    def tearDown(self):
        super().tearDown()
        left = subprocess.run(["podman", "ps", "--all", "--quiet", "--filter", "name=ddprun-"],
                              capture_output=True, text=True, check=True, timeout=200)
        self.assertEqual(left.stdout, "")

    def run_inside(self, *args, **kwargs):
        return self.run_to_end("--tag-output=off", "--container", IMAGE, "--container-engine",
                               "podman", *args, **kwargs)

    def test_ranks_are_inside_and_find_the_job(self):
        with open(os.path.join(self.folder.name, "here"), "w", encoding="ascii") as f:
            f.write("mounted\n")
        launched = self.run_inside(
            "-np", 2, "-x", "MINE=a b", "--wdir", self.folder.name, "sh", "-c",
            "[ -d /inside ] && echo $RANK of $WORLD_SIZE, $MINE && cat here")
        self.assert_ended(launched, 0)
        self.assertEqual(sorted(launched.out.splitlines()),
                         ["0 of 2, a b", "1 of 2, a b", "mounted", "mounted"])

    def test_exit_codes_come_out(self):
        self.assert_ended(self.run_inside("-np", 1, "sh", "-c", "exit 7"), 7)
        self.assert_ended(self.run_inside("-np", 1, "/nosuch"), 127)

    def test_preflight_asks_podman_for_the_image(self):
        fit = self.run_inside("--preflight", "true")
        self.assert_ended(fit, 0)
        self.assertRegex(fit.out, rf"\n  container .*/podman', image '{IMAGE}' is [0-9a-f]{{12}}\n")
        unfit = self.run_inside("--preflight", "--container", "localhost/nonesuch", "true")
        self.assert_ended(unfit, 1)
        self.assertIn(": container: no image 'localhost/nonesuch', and none is pulled", unfit.err)

    def test_a_stopped_job_leaves_no_container(self):
        launched = self.run_inside("-np", 2, "--timeout", 3, "sh", "-c",
                                   "trap 'exit 3' TERM; while :; do sleep 1; done")
        self.assert_ended(launched, 124)


if __name__ == "__main__":
    if not shutil.which("podman") or not os.path.exists("/bin/busybox"):
        print("skipped: no podman or no busybox; needs package podman busybox-static")
        sys.exit(77)
    image()
    tried = runs()
    if tried.returncode != 0:
        path = os.path.join(os.environ.get("TMPDIR", "/tmp"), f"ddprun-containers-{os.getpid()}")
        with open(path, "w", encoding="ascii") as f:
            f.write(OLD)
        os.environ["CONTAINERS_CONF"] = path
        tried = runs()
        if tried.returncode != 0:
            os.unlink(path)
            print(f"skipped: podman runs nothing: {tried.stderr.strip()[-200:]}; "
                  "needs package podman runc")
            sys.exit(77)
    try:
        unittest.main(verbosity=2)
    finally:
        if "CONTAINERS_CONF" in os.environ:
            os.unlink(os.environ["CONTAINERS_CONF"])
