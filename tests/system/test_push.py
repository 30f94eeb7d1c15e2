#!/usr/bin/env python3
"""--agent push: the agent's files come along by ssh, here one that runs everything on this
machine. What they are put into, and what is said where there is no place for them."""

import glob
import os
import shutil
import subprocess
import unittest

from launch import DDPRUN, LaunchTest, main

# a host is a home of its own; the name says what is wrong with it
FAKE_SSH = r"""#!/bin/sh
while [ "$1" != -- ]; do shift; done
host=$2 command=$3
unset SSH_CONNECTION XDG_CACHE_HOME
export HOME="$HOMES/${host%-*}" PATH="$HOMES/tools:$PATH" CUDA_VISIBLE_DEVICES=
mkdir -p "$HOME"
noexec() { echo "mkdir -p $1 && mount -t tmpfs -o noexec none $1 && "; }
case $host in
nohome*) export HOME=/proc/nonexistent ;;
noexec*) exec unshare -m sh -c "$(noexec "$HOME/.cache") exec sh -c \"\$0\"" "$command" ;;
noplace*) exec unshare -m sh -c "$(for d in "$HOME/.cache" /dev/shm /var/tmp /tmp; do noexec $d
    done) exec sh -c \"\$0\"" "$command" ;;
raced*) command="exec bash -c ${command#exec sh -c }"
    command="${command%%umask*}. $HOMES/race; umask${command#*umask}" ;;
tcsh*) exec tcsh -f -c "$command" ;;
esac
exec sh -c "$command"
"""
# $HOME/.cache/ddprun-UID is a stranger's, but for tests of the owner, which find a link to ours
RACE = r"""
p=$HOME/.cache/ddprun-$(id -u)
swap() { mv -T "$p" "$p.x"; mv -T "$HOMES/other" "$p"; mv -T "$p.x" "$HOMES/other"; }
[() {
    case $1 in -O) swap; builtin [ "$@"; set -- $?; swap; return $1 ;; esac
    builtin [ "$@"
}
mkdir -p "$p/$h" "$HOMES/ours/$h"
touch "$HOMES/ours/$h/ddprun-agent"
ln -s "$HOMES/ours" "$HOMES/other"
printf '#!/bin/sh\ntouch "$HOMES/ran"\n' >"$p/$h/ddprun-agent"
chmod 755 "$p" "$p/$h" "$p/$h/ddprun-agent"
chown -R 65534 "$p"
"""
# the removal of an agent takes its time, as on a network file system
SLOW_RM = f"""#!/bin/sh
case $* in */new.*) ;; *) sleep 0.3 ;; esac
exec {shutil.which("rm")} "$@"
"""
AGENT = "readlink /proc/$PPID/exe"


class Push(LaunchTest):
    def setUp(self):
        super().setUp()
        self.ssh = self.write("ssh", FAKE_SSH, 0o755)
        self.homes = self.path("homes")
        self.before = set(glob.glob(f"/dev/shm/ddprun-{os.getuid()}/*"))
        self.addCleanup(self.remove_new)

    def remove_new(self):
        for path in set(glob.glob(f"/dev/shm/ddprun-{os.getuid()}/*")) - self.before:
            shutil.rmtree(path)
        for folder in glob.glob(f"/dev/shm/ddprun-{os.getuid()}"):
            if not os.listdir(folder):
                os.rmdir(folder)

    def agents(self, hosts, *args):
        """Where the agent of each rank lies; of hosts with one rank each."""
        run = self.run_to_end("--ssh", self.ssh, "--agent", "push", "-H", hosts, "--tag-output=off",
                              *args, "sh", "-c", AGENT, env={"HOMES": self.homes})
        self.assert_ended(run, 0)
        self.assertEqual(run.err, "")
        return sorted(run.out.split())

    def test_comes_once_and_stays(self):
        first = self.agents("n1,n2")
        for host, path in zip(("n1", "n2"), first):
            self.assertTrue(path.startswith(f"{self.homes}/{host}/.cache/ddprun-"), path)
            self.assertEqual(os.stat(path).st_mode & 0o77, 0)
            files = os.listdir(os.path.dirname(path))
            self.assertLessEqual({"ddprun-agent", "ddprun-topo", "preload", "ssh_config"}, set(files))
            self.assertFalse({"tar", "try"} & set(files))
        made = [os.stat(path).st_ino for path in first]
        self.assertEqual(self.agents("n1,n2"), first)
        self.assertEqual([os.stat(path).st_ino for path in first], made)
        self.assertEqual(glob.glob(self.homes + "/*/.cache/ddprun-*/new.*"), [])

    def test_ranks_have_the_umask_of_a_login(self):
        own = os.umask(0o027)
        self.addCleanup(os.umask, own)
        for _ in ("it comes", "it is there"):
            run = self.run_to_end("--ssh", self.ssh, "--agent", "push", "-H", "n1", "sh", "-c", "umask",
                                  env={"HOMES": self.homes})
            self.assert_ended(run, 0)
            self.assertEqual(run.out, "0027\n")

    def test_agents_push_on(self):
        paths = self.agents("n1,n2,n3", "--tree-width", "1")
        self.assertEqual([p[len(self.homes) + 1:].split("/")[0] for p in paths], ["n1", "n2", "n3"])
        self.assertEqual(len({p.split("/")[-2] for p in paths}), 1)

    def test_a_damaged_one_is_replaced(self):
        (path,) = self.agents("n1")
        with open(path, "r+b") as file:
            file.truncate(5000)
        self.assertEqual(self.agents("n1"), [path])
        self.assertGreater(os.path.getsize(path), 5000)

    def test_hosts_that_share_a_home(self):
        """All of them copy the agent at the same time; none removes another one's."""
        os.makedirs(self.homes + "/tools")
        self.write("homes/tools/rm", SLOW_RM, 0o755)
        paths = self.agents(",".join(f"n1-{i}" for i in range(4)))
        self.assertEqual(paths, paths[:1] * 4)
        self.assertEqual(glob.glob(self.homes + "/*/.cache/ddprun-*/new.*"), [])

    def test_a_link_is_not_followed(self):
        (path,) = self.agents("n1")
        folder = os.path.dirname(os.path.dirname(path))
        os.rename(folder, self.path("away"))
        os.symlink(self.path("away"), folder)
        (path,) = self.agents("n1")
        self.assertTrue(path.startswith("/dev/shm/ddprun-"), path)

    def test_ranks_have_cpus_and_python_halves(self):
        run = self.run_to_end("--ssh", self.ssh, "--agent", "push", "-H", "n1:2", "--bind-to", "core",
                              "--preload", "json", "-v", "python3", self.write("t.py", "print('ran')"),
                              env={"HOMES": self.homes})
        self.assert_ended(run, 0)
        self.assertEqual(run.out.count("ran"), 2)
        self.assertNotIn("beside", run.err)

    def test_other_places(self):
        (path,) = self.agents("nohome1")
        self.assertTrue(path.startswith("/dev/shm/ddprun-"), path)

    @unittest.skipUnless(os.getuid() == 0, "mounts of its own; needs root")
    def test_noexec(self):
        (path,) = self.agents("noexec1")
        self.assertTrue(path.startswith("/dev/shm/ddprun-"), path)

    @unittest.skipUnless(os.getuid() == 0, "mounts of its own; needs root")
    def test_no_place(self):
        run = self.run_to_end("--ssh", self.ssh, "--agent", "push", "-H", "noplace1", "true",
                              env={"HOMES": self.homes})
        self.assert_ended(run, 125)
        self.assertRegex(run.err, r"cannot start on noplace1: no folder for the agent: none of .*/\.cache /dev/shm "
                         r"/tmp /var/tmp lets us write \d+ MiB and run programs\n")
        self.assertEqual(run.err.count("\n"), 1)

    def test_without_tar_here(self):
        run = self.run_to_end("--ssh", self.ssh, "--agent", "push", "-H", "n1", "true", env={"PATH": self.homes})
        self.assert_ended(run, 125)
        self.assertEqual(run.err, "ddprun: --agent push: cannot run 'tar': No such file or directory\n")

    def test_an_agent_that_does_not_run_there(self):
        folder = self.path("bin")
        os.mkdir(folder)
        shutil.copy(DDPRUN, folder)
        with open(folder + "/ddprun-agent", "w", encoding="utf-8") as file:
            file.write("#!/bin/sh\necho \"libc.so.6: version 'GLIBC_9.9' not found\" >&2\nexit 1\n")
        os.chmod(file.name, 0o755)
        run = subprocess.run([folder + "/ddprun", "--ssh", self.ssh, "--agent", "push", "-H", "n1",
                              "true"], env={**os.environ, "HOMES": self.homes}, text=True,
                             capture_output=True, timeout=100, check=False)
        self.assertEqual(run.returncode, 125)
        self.assertEqual(run.stderr, "ddprun: cannot start on n1: the agent does not run there: "
                         "libc.so.6: version 'GLIBC_9.9' not found\n")

    @unittest.skipUnless(os.getuid() == 0, "a folder of another user; needs root")
    def test_a_strangers_folder_is_left_alone(self):
        folder = f"{self.homes}/n1/.cache/ddprun-0"
        os.makedirs(folder)
        os.chown(folder, 65534, 65534)
        (path,) = self.agents("n1")
        self.assertTrue(path.startswith("/dev/shm/ddprun-"), path)
        self.assertEqual(os.listdir(folder), [])

    @unittest.skipUnless(os.getuid() == 0, "a folder of another user; needs root")
    def test_a_strangers_folder_that_becomes_a_link_is_left_alone(self):
        os.mkdir(self.homes)
        self.write("homes/race", RACE)
        (path,) = self.agents("raced1")
        self.assertTrue(path.startswith("/dev/shm/ddprun-"), path)
        self.assertFalse(os.path.exists(self.homes + "/ran"))

    @unittest.skipUnless(shutil.which("tcsh"), "no tcsh; needs package tcsh")
    def test_a_login_shell_of_another_kind(self):
        (path,) = self.agents("tcsh1")
        self.assertTrue(path.startswith(self.homes), path)


if __name__ == "__main__":
    main()
