"""aarch64.py [PATTERN...] - build for AArch64 and run tests on an emulated machine
aarch64.py --release TARBALL - try what tools/release --arch aarch64 made

Debian's cross compiler builds. Libraries, kernel and Python are Debian's packages for arm64, unpacked in
the user's cache and not installed. QEMU boots the kernel with an initial file system that holds packages
and build; the build keeps its path. There `guest.py` runs the tests and prints "N passed, N failed,
N skipped". Patterns are those of tests/run.py. Emulated code is about 20 times slower than native code.
"""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import zlib

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tools")]
import arm64  # noqa: E402
import run  # noqa: E402
from arm64 import TRIPLET, call  # noqa: E402

BUILD = "build-aarch64"
# the build needs these headers and libraries
LIBRARIES = """libc6 libc6-dev linux-libc-dev libgcc-s1 libgcc-12-dev libevent-dev libevent-2.1-7
    libevent-core-2.1-7 libhwloc-dev libhwloc15 libudev1 libsodium-dev libsodium23 libjansson-dev libjansson4
    uthash-dev zlib1g-dev zlib1g libpng-dev libpng16-16 libjpeg62-turbo-dev libjpeg62-turbo libinih-dev
    libinih1 check libsubunit-dev libsubunit0""".split()
# programs on the emulated machine, and their libraries
MACHINE = """busybox-static bash coreutils procps libproc2-0 python3.11-minimal libpython3.11-minimal
    libpython3.11-stdlib libexpat1 libssl3 libffi8 libbz2-1.0 liblzma5 libncursesw6 libtinfo6 libuuid1
    libsqlite3-0 libselinux1 libpcre2-8-0 libacl1 libattr1 libgmp10 netbase util-linux libcap-ng0 openssh-client
    libgssapi-krb5-2 libkrb5-3 libk5crypto3 libkrb5support0 libcom-err2 libkeyutils1""".split()
# a folder for each list of packages
CACHE = (pathlib.Path(os.environ.get("XDG_CACHE_HOME", os.path.expanduser("~/.cache"))) / "ddprun" /
         f"aarch64-{zlib.crc32(' '.join(LIBRARIES + MACHINE).encode()):x}")
MODULES = re.compile(r"/(inet|tcp|unix)_diag\.ko$")
LIMIT_S = 3600
# tests that need no compiler, PyTorch, MPI or other hosts, and end there within ten minutes
DEFAULT = ["unit", "wire", "system/start", "system/exit", "system/signals", "system/output", "system/restart",
           "!rendezvous/wire-recorded", "!rendezvous/exports", "!worker/tokens"]
CROSS = f"""[binaries]
c = ['{TRIPLET}-gcc', '--sysroot=ROOT']
ar = '{TRIPLET}-ar'
strip = '{TRIPLET}-strip'
pkgconfig = 'pkg-config'
[properties]
sys_root = 'ROOT'
pkg_config_libdir = 'ROOT/usr/lib/{TRIPLET}/pkgconfig:ROOT/usr/share/pkgconfig'
[host_machine]
system = 'linux'
cpu_family = 'aarch64'
cpu = 'aarch64'
endian = 'little'
"""


def configure(tree):
    """Configure the build; from scratch if it used other packages."""
    build, cross = ROOT / BUILD, CACHE / "cross.ini"
    chosen = build / "meson-private" / "cmd_line.txt"
    if not chosen.exists() or str(cross) not in chosen.read_text():
        shutil.rmtree(build, ignore_errors=True)
        cross.write_text(CROSS.replace("ROOT", str(tree)))
        call("meson", "setup", str(build), "--cross-file", str(cross), "-Dcuda=disabled", cwd=ROOT)


def archive(names, where, out):
    """Append files below `where` to the initial file system."""
    done = subprocess.run(["cpio", "-o", "-H", "newc", "--quiet"], cwd=where, stdout=out,
                          input="\n".join(names), text=True, check=False)
    if done.returncode != 0:
        sys.exit("error: cpio failed")


def machine_files(tree):
    """The packages' files, without headers, static libraries and documentation."""
    left = re.compile(r"^(boot|usr/include|usr/share/(doc|man|locale|lintian|bug))/|\.(a|o)$|^usr/lib/gcc/")
    for path in tree.rglob("*"):
        name = str(path.relative_to(tree))
        if not left.search(name) and (not name.endswith(".ko") or MODULES.search(name)):
            yield name


def build_files():
    """Files of source and build that tests use, and their folders; a folder precedes its files."""
    source = call("git", "ls-files", "--cached", "--others", "--exclude-standard", cwd=ROOT).splitlines()
    files = [ROOT / name for name in source if (ROOT / name).is_file()]
    files += [path for path in (ROOT / BUILD).rglob("*")
              if path.suffix not in (".o", ".a", ".d", ".ninja", ".cpio")
              and not {"meson-private", "guest"} & set(path.parts)]
    folders = {folder for path in files for folder in path.parents} - {pathlib.Path("/")}
    return sorted(str(path).lstrip("/") for path in folders | set(files))


def release(tarball):
    """Unpack it; tests of its programs, and their files."""
    folder = ROOT / BUILD / "release"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    call("tar", "-C", folder, "--strip-components=1", "-xzf", tarball)
    launch = [f"{folder}/bin/ddprun", "-np", "2", "--bind-to", "core"]
    commands = {
        "version": [*launch[:1], "--version"],
        "launch": ["sh", "-c", '"$@" | sort | tr "\\n" " " | grep "rank 0.*rank 1"', "sh", *launch,
                   "sh", "-c", "echo rank $RANK"],
        "train": [*launch, f"{folder}/bin/ddp-train", "--epochs", "1", "--plot", "none", "--progress", "none"],
        "library": ["python3", "-c", f"import ctypes; ctypes.CDLL('{folder}/lib/libddpgroup.so.0')"]}
    files = [folder, *folder.parents[:-1], *folder.rglob("*")]
    return ([{"name": f"release/{name}", "cmd": command, "env": {}, "workdir": "/tmp", "timeout": 20}
             for name, command in commands.items()], sorted(str(path).lstrip("/") for path in files))


def image(tree, tests, files):
    """Write the initial file system: packages, init and tests, and what they use."""
    here = pathlib.Path(__file__).parent
    root = ROOT / BUILD / "guest"
    root.mkdir(parents=True, exist_ok=True)
    for name in "init", "guest.py":
        shutil.copy(here / name, root / name)
    (root / "tests.json").write_text(json.dumps(
        [{k: t[k] for k in ("name", "cmd", "env", "workdir", "timeout")} for t in tests]))
    for name in "proc", "sys", "dev", "tmp", "root", "run", "etc", "usr/local/bin":
        (root / name).mkdir(parents=True, exist_ok=True)
    path = ROOT / BUILD / "guest.cpio"
    with open(path, "wb") as out:
        archive(["."] + list(machine_files(tree)), tree, out)
        out.flush()
        archive([str(p.relative_to(root)) for p in root.rglob("*")], root, out)
        out.flush()
        archive(files, "/", out)
    return path


def boot(kernel, files):
    """Boot the machine and wait until it is off. True if its tests ran and none failed."""
    outcome = None
    with subprocess.Popen(
            ["timeout", str(LIMIT_S), "qemu-system-aarch64", "-M", "virt", "-cpu", "neoverse-n1",
             "-smp", str(os.cpu_count()), "-m", "6144", "-nic", "none", "-nographic", "-no-reboot",
             "-kernel", kernel, "-initrd", files, "-append", "console=ttyAMA0 quiet panic=-1"],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            errors="replace") as machine:
        for line in machine.stdout:
            print(line.rstrip(), flush=True)
            outcome = re.match(r"(\d+) passed, (\d+) failed, \d+ skipped$", line.strip()) or outcome
    if not outcome:
        print(f"error: the machine stopped before its tests had ended, or after {LIMIT_S} s", file=sys.stderr)
    return bool(outcome) and outcome[1] != "0" and outcome[2] == "0"


def main():
    tree = arm64.unpacked(CACHE, LIBRARIES + MACHINE, kernel=True)
    os.chdir(ROOT)
    if sys.argv[1:2] == ["--release"]:
        tests, files = release(sys.argv[2])
    else:
        configure(tree)
        tests, _ = run.select(BUILD, sys.argv[1:] or DEFAULT)
        run.compile_for(BUILD, tests)
        files = build_files()
    kernel = next((tree / "boot").glob("vmlinuz-*"))
    return 0 if boot(kernel, image(tree, tests, files)) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except run.Wrong as wrong:
        sys.exit(str(wrong))
