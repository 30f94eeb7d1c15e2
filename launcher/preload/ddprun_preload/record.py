"""What earlier launches have found out about a script's imports, in files of the user's cache."""
import os
import sys
import time
import zlib

from . import HERE

VALID_S = 86400
CAREFUL = -1  # as a record's number of steps: an import of GOOD failed a check, so fork before each
OURS = os.path.join(HERE, "sitecustomize.py")


def changed_at(path):
    """Time of the last change; -1: there is no such file."""
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return -1


def origins(tops):
    """Where these packages are found."""
    specs = [finder.find_spec(top, None) for finder in sys.meta_path for top in sorted(tops)]
    return [spec.origin for spec in specs if spec and spec.origin]


def write_file(path, lines):
    """Replace the file, and remove those in its folder that are too old to be used."""
    folder = os.path.dirname(path)
    try:
        os.makedirs(folder, 0o700, exist_ok=True)
        with open(f"{path}.{os.getpid()}", "w", encoding="utf-8", errors="surrogateescape") as f:
            f.writelines(f"{line}\n" for line in lines)
        os.rename(f"{path}.{os.getpid()}", path)
        for other in os.scandir(folder):
            if time.time() - other.stat().st_mtime > VALID_S:
                os.unlink(other.path)
    except OSError:
        pass  # without it the next launch is only slower


class Cache:
    """Cache file with the number of steps of a script that passed the checks in an earlier
    launch, so that a failing import costs time only once, and imports that are all `good` need
    neither a way back nor a search of the heap. Valid for a day, with unchanged packages, and
    for the same set of variables that differ between ranks (`differing`)."""

    def __init__(self, steps, folders, differing):
        self.files = [OURS, *sys.path, *origins(
            {step[1].partition(".")[0] for step in steps if step[0] == "import"})]
        times = [changed_at(path) for path in self.files]
        self.key = (f"{sys.version} {sys.executable} {sys.path} {folders} {times} {differing} "
                    f"{steps}").replace("\n", " ")
        home = os.environ.get("XDG_CACHE_HOME") or os.path.join(
            os.environ.get("HOME") or "/nonexistent", ".cache")
        self.path = os.path.join(home, "ddprun", "preload", f"{zlib.crc32(os.fsencode(self.key)):08x}")
        self.good = self.known = self.careful = False

    def passed(self, steps):
        """The steps to run."""
        try:
            with open(self.path, encoding="utf-8", errors="surrogateescape") as f:
                key, count, why = f.read().split("\n")[:3]
                fresh = 0 <= time.time() - os.fstat(f.fileno()).st_mtime < VALID_S
                count = int(count)
        except (OSError, ValueError):
            return steps
        if key != self.key or not fresh:
            return steps
        self.careful = count == CAREFUL
        self.known = not self.careful
        self.good = not why
        return steps if self.careful else steps[:count]

    def store(self, count, why):
        if not self.known:
            write_file(self.path, (self.key, count, why))

    def forget(self):
        """Remove the record: some recorded import failed a check, and it is unknown which."""
        try:
            os.unlink(self.path)
        except OSError:
            pass
