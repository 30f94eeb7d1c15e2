"""bench/collectives/namespaces.py - two hosts made of network namespaces of this one

A veth pair joins them, so that what goes between them goes through the whole TCP stack,
and neither end may take a shortcut because it knows the other's machine. The congestion
control is reno in both, which every kernel has and which paces nothing. Needs root and
iproute2.
"""
import os
import shutil
import subprocess
import tempfile


def why_not():
    """What is missing here; None when nothing is."""
    if os.geteuid() != 0:
        return "network namespaces take root"
    missing = [tool for tool in ("ip", "unshare", "sysctl") if not shutil.which(tool)]
    return f"'{missing[0]}' is not here" if missing else None


def run(*command):
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


class TwoHosts:
    """with TwoHosts() as hosts: hosts.enter(0) + ["command"] runs on the first."""

    interface = "bench0"
    addrs = ("10.213.77.1", "10.213.77.2")
    network = "10.213.77.0/24"

    def __init__(self):
        self.names = [f"ddpbench-{os.getpid()}-{i}" for i in range(2)]
        self.dir = None

    def __enter__(self):
        self.dir = tempfile.TemporaryDirectory()
        try:
            for name in self.names:
                run("ip", "netns", "add", name)
            run("ip", "link", "add", self.interface, "netns", self.names[0], "type", "veth",
                "peer", "name", self.interface, "netns", self.names[1])
            for name, addr in zip(self.names, self.addrs):
                run("ip", "-n", name, "addr", "add", f"{addr}/24", "dev", self.interface)
                run("ip", "-n", name, "link", "set", "lo", "up")
                run("ip", "-n", name, "link", "set", self.interface, "up")
                run("ip", "netns", "exec", name, "sysctl", "-q", "-w",
                    "net.ipv4.tcp_congestion_control=reno")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], stderr=subprocess.DEVNULL)
        self.dir.cleanup()

    def enter(self, i):
        return ["ip", "netns", "exec", self.names[i]]

    def file(self, i):
        return f"/run/netns/{self.names[i]}"

    def remote_shell(self):
        """What mpirun may use for ssh to the second: a host of another name."""
        path = os.path.join(self.dir.name, "remote")
        with open(path, "w") as f:
            f.write('#!/bin/sh\nshift\n'
                    f'exec ip netns exec {self.names[1]} unshare --uts '
                    'sh -c "hostname ddpbench-other; $*"\n')
        os.chmod(path, 0o755)
        return path
