"""Several programs in one job, and options that are not on the command line."""
import os
import sys
import unittest

import launch


class Apps(launch.LaunchTest):
    def lines(self, *args, **kwargs):
        launched = self.run_to_end("--tag-output=off", *args, **kwargs)
        self.assert_ended(launched, 0)
        return sorted(launched.out.splitlines())

    def test_each_program_gets_its_ranks(self):
        say = "echo $0 $RANK of $WORLD_SIZE"
        self.assertEqual(
            self.lines("-np", 1, "sh", "-c", say, "a", ":", "-np", 2, "sh", "-c", say, "b"),
            ["a 0 of 3", "b 1 of 3", "b 2 of 3"])

    def test_they_are_spread_over_hosts(self):
        self.assertEqual(
            self.lines("-H", "localhost:1,127.0.0.2:3", "--ssh", self.ssh(), "-np", 2, "sh", "-c",
                       "echo a $NODE_RANK", ":", "-np", 2, "sh", "-c", "echo b $NODE_RANK"),
            ["a 0", "a 1", "b 1", "b 1"])

    def ssh(self):
        """An 'ssh' that runs the command here."""
        path = self.write("ssh", '#!/bin/sh\nwhile [ "${1#-}" != "$1" ]; do\n'
                          'case $1 in -o|-p|-l) shift ;; esac; shift; done\nshift\n'
                          'exec sh -c "$*"\n')
        os.chmod(path, 0o755)
        return path

    def test_a_colon_without_a_program_is_reported(self):
        launched = self.run_to_end("-np", 1, "echo", "a", ":", "echo", "b")
        self.assert_ended(launched, 0)
        self.assertEqual((launched.out, launched.err), ("a : echo b\n", (
            "ddprun: warning: ':' was passed to the program before it; write ': -np N PROGRAM' for "
            "another program, or '--' before the first one\n")))
        for words in (["sh", "-c", ":"], ["--", "echo", "a", ":", "b"]):
            self.assertEqual(self.run_to_end("-np", 1, *words).err, "")

    def test_scripts_get_their_interpreters(self):
        python = self.write("a.py", "import os; print('python', os.environ['RANK'])\n")
        shell = self.write("b.sh", "echo shell $RANK\n")
        self.assertEqual(self.lines("-np", 2, python, ":", "-np", 1, shell),
                         ["python 0", "python 1", "shell 2"])

    def test_a_missing_program_is_named(self):
        launched = self.run_to_end("-np", 1, "sleep", 60, ":", "-np", 1, "/nosuch/b")
        self.assert_ended(launched, 127)
        self.assertIn("'/nosuch/b'", launched.err)

    def test_a_file_of_programs(self):
        path = self.write("apps", "\ufeff# two\r\n-np 1 -x A=1 printenv A\n\n-np 2 echo b\n")
        self.assertEqual(self.lines("--app", path), ["1", "b", "b"])
        one = self.write("one", "-np 2 echo only\n")
        self.assertEqual(self.lines("--app", one), ["only", "only"])
        bare = self.run_to_end("--app", self.write("bare", "echo a\necho b\n"))
        self.assert_ended(bare, 2)
        self.assertIn("'echo' is one of several programs: each needs -np N", bare.err)
        long = self.write("long", f"-np 1 echo {'a' * 5000} b\n")
        self.assertEqual(self.lines("--app", long), ["a" * 5000 + " b"])

    def test_a_container_starts_each_program(self):
        """The engines' command lines; tests/interop/containers.py runs podman."""
        for engine, words in {
                "apptainer": "exec apptainer exec $nv --bind \"$PWD\" --pwd \"$PWD\" \"$0\" \"$@\"",
                "singularity": "exec singularity exec $nv",
                "podman": "podman run --name $name --interactive --env-host --network host "
                          "--pid host --ipc host --userns $ns",
                "enroot": "exec enroot start --rw $e --mount \"$PWD:$PWD\" --mount /tmp:/tmp"}.items():
            shown = self.run_to_end("--dry-run", "--container", "the image", "--container-engine",
                                    engine, "-np", 1, "a.py", "x", ":", "-np", 1, "b")
            self.assert_ended(shown, 0)
            self.assertIn(words, shown.out)
            self.assertIn("' 'the image' a.py x\n", shown.out)
            self.assertIn("' 'the image' b\n", shown.out)
        absent = self.run_to_end("--container", "i", "--container-engine", "enroot", "-np", 1, "true",
                                 env={"PATH": "/usr/sbin:/usr/bin:/bin"})
        self.assert_ended(absent, 127)
        self.assertIn("ddprun: error: --container: no enroot in PATH on ", absent.err)
        wrong = self.run_to_end("--container", "i", "--container-engine", "docker", "true")
        self.assert_ended(wrong, 2)
        self.assertIn("apptainer, singularity, podman or enroot, not 'docker'", wrong.err)

    def preflight(self, engine, image, stand_in=None):
        os.makedirs(self.path("bin"), exist_ok=True)
        if stand_in is not None:
            self.write(f"bin/{engine}", f"#!/bin/sh\n{stand_in}\n", 0o755)
        path = f"{self.path('bin')}:/usr/sbin:/usr/bin:/bin"
        return self.run_to_end("--preflight", "--container", image, "--container-engine", engine, "true",
                               env={"PATH": path}, cwd=self.folder.name)

    def test_preflight_tells_of_engine_and_image(self):
        missing = self.write("missing", "exit 1")
        for engine, image, stand_in, found in (
                ("podman", "i", "echo " + 64 * "5", r"image 'i' is 555555555555\n"),
                ("apptainer", "docker://i", "", "image 'docker://i' is pulled at the start"),
                ("singularity", missing, "", f"image '{missing}'"),
                ("enroot", "i", "echo other; echo i", "container 'i'")):
            fit = self.preflight(engine, image, stand_in)
            self.assertRegex(fit.out, rf"\n  container +\S+ +'{self.path('bin')}/{engine}', {found}")
            self.assert_ended(fit, 0)
        for engine, image, stand_in, said in (
                ("podman", "i", "echo Error: i: no such image >&2; exit 125",
                 "no image 'i', and none is pulled at the start: podman pull i (Error: i: no such image)"),
                ("apptainer", "nonesuch.sif", "", "no image 'nonesuch.sif' there; copy it there"),
                ("enroot", "i", "echo ii", "no container 'i': enroot create --name i FILE.sqsh")):
            unfit = self.preflight(engine, image, stand_in)
            self.assertIn(f": container: {said}", unfit.err)
            self.assert_ended(unfit, 1)
        bare = self.run_to_end("--preflight", "--container", "i", env={"PATH": f"{self.path('bin')}:/usr/bin:/bin"})
        self.assertIn(": container: no image 'i' there", bare.err)
        os.remove(self.path("bin/enroot"))
        self.assertIn(": container: no enroot in PATH there; ", self.preflight("enroot", "i").err)

    def test_hosts_as_in_deepspeed(self):
        hosts = self.write("hosts", "n1 slots=2\nn2 slots=2\nn3 slots=2\n")
        for option, left in ("--include", "n1@n3"), ("--exclude", "n2"):
            shown = self.run_to_end("--dry-run", "--hostfile", hosts, option, left, "true")
            self.assert_ended(shown, 0)
            self.assertIn("ranks: 4 on 2 hosts", shown.out)
            self.assertNotRegex(shown.out, r"\bn2\b")  # the hostfile's folder has a random name
        wrong = self.run_to_end("--hostfile", hosts, "--include", "n1:0,2", "true")
        self.assert_ended(wrong, 2)
        self.assertIn("use --include n1 -x CUDA_VISIBLE_DEVICES=0,2 --nproc-per-node 2", wrong.err)

    def test_a_script_of_deepspeed_is_given_its_local_rank(self):
        """Also one that is forked, and one that is a module; what a rank starts is not."""
        self.write("show.py", "import os, subprocess, sys\n"
                   "child = subprocess.run([sys.executable, '-c', 'import sys; print(len(sys.argv))'],"
                   " stdout=subprocess.PIPE, text=True)\n"
                   "print('rank', os.environ['RANK'], *sys.argv[1:], child.stdout, end='')\n")
        start = ("--as", "deepspeed", "--num_gpus", 2, "--tag-output=off",
                 "--wdir", self.folder.name)
        for options, argument in (([], "--local_rank={} "), (["--preload", "json"], "--local_rank={} "),
                                  (["--no_local_rank"], "")):
            for script in (sys.executable, "show.py"), ("--module", "show"):
                shown = self.run_to_end(*start, *options, *script, "--lr", "1")
                self.assert_ended(shown, 0)
                self.assertEqual(sorted(shown.out.splitlines()), [
                    f"rank {rank} {argument.format(rank)}--lr 1 1" for rank in (0, 1)])

    def test_the_plan_shows_programs_and_origins(self):
        shown = self.run_to_end("--dry-run", "-np", 1, "echo", "a", ":", "-np", 2, "echo", "b",
                                env={"DDPRUN_OPTIONS": "--bind-to none"})
        self.assert_ended(shown, 0)
        for line in "  rank 0: echo a\n", "  ranks 1-2: echo b\n", \
                "  options from DDPRUN_OPTIONS: --bind-to none\n":
            self.assertIn(line, shown.out)


if __name__ == "__main__":
    unittest.main(verbosity=2)
