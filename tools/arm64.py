"""arm64.py - Debian's packages for AArch64, unpacked in a folder and not installed"""
import re
import shutil
import subprocess
import sys

TRIPLET = "aarch64-linux-gnu"


def call(*command, **more):
    """Run a command quietly; what it printed."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False, **more)
    if done.returncode != 0:
        sys.exit(f"error: {' '.join(map(str, command[:3]))} ...: {(done.stderr or done.stdout).strip()[-2000:]}")
    return done.stdout


def unpacked(folder, packages, kernel=False):
    """The tree of these packages' files, and of the newest kernel for virtual machines. apt's lists for arm64 are
    in the folder, too; this machine's do not change."""
    root, new, debs = folder / "root", folder / "root.new", folder / "debs"
    if root.exists():
        return root
    shutil.rmtree(folder, ignore_errors=True)
    for path in debs, folder / "apt/lists/partial", folder / "apt/cache/archives/partial":
        path.mkdir(parents=True)
    apt = ["-o", "APT::Architecture=arm64", "-o", "APT::Architectures::=arm64", "-o", "Dir::State::status=/dev/null",
           "-o", f"Dir::State::Lists={folder}/apt/lists", "-o", f"Dir::Cache={folder}/apt/cache",
           "-o", "APT::Sandbox::User="]
    print("fetching Debian's packages for arm64", flush=True)
    call("apt-get", *apt, "-qq", "update")
    if kernel:
        found = re.findall(r"^(linux-image-[\d.]+-(\d+)-cloud-arm64-unsigned) ",
                           call("apt-cache", *apt, "search", "--names-only", "cloud-arm64-unsigned"), re.M)
        if not found:
            sys.exit("error: apt-cache finds no kernel for arm64")
        packages = [*packages, max(found, key=lambda k: int(k[1]))[0]]
    call("apt-get", *apt, "-qq", "download", *packages, cwd=debs)
    for deb in sorted(debs.glob("*.deb")):
        call("dpkg", "-x", deb, new)
    new.rename(root)
    return root
