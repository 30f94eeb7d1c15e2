"""bench/gpu_programs.py - the programs that gpu.py measures: ddp-train and gpu_torch.py, and what
they are given to learn."""
import array
import contextlib
import json
import os
import select
import signal
import struct
import subprocess
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))


class Failed(Exception):
    pass


# ---- PyTorch ----

class Torch:
    """gpu_torch.py, started when it is first asked for something."""

    def __init__(self, python, device, keep):
        self.words = [python, os.path.join(HERE, "gpu_torch.py"), device]
        self.keep = keep
        self.process, self.version, self.missing = None, "", None

    def read(self, seconds):
        ready = select.select([self.process.stdout], [], [], max(seconds, 1))[0]
        line = self.process.stdout.readline() if ready else ""
        if line:
            return json.loads(line)
        self.close()
        return {"error": "PyTorch's process has ended" if ready else
                f"no answer in {seconds:.0f} s"}

    def ask(self, case, how, seconds, images, most):
        """(images/s, MiB) within `most` seconds; Failed."""
        if self.missing:
            raise Failed(self.missing)
        if not self.process:
            try:
                self.process = subprocess.Popen(self.words, stdin=subprocess.PIPE, text=True,
                                                stdout=subprocess.PIPE, stderr=self.keep)
            except OSError as error:
                self.missing = f"no PyTorch: {error}"
                raise Failed(self.missing) from None
            hello = self.read(120)
            if "version" not in hello:
                self.missing = f"no PyTorch: {self.words[0]} cannot import it, or finds no GPU"
                raise Failed(self.missing)
            self.version = hello["version"]
        with contextlib.suppress(OSError):  # it has ended: read() will say so
            print(*case.split(":"), how, seconds, images, file=self.process.stdin, flush=True)
        told = self.read(most)
        if "error" in told:
            raise Failed(f"{case} {how}: {told['error']}")
        return told["rate"], told.get("mib")

    def close(self):
        if self.process:
            self.process.kill()
            self.process.wait()
            with contextlib.suppress(OSError):  # what it has not read
                self.process.stdin.close()
            self.process.stdout.close()
        self.process = None


# ---- ours ----

def random_images(folder, n):
    for part, n in (("train", n), ("t10k", min(n, 256))):
        with open(f"{folder}/{part}-images-idx3-ubyte", "wb") as f:
            f.write(struct.pack(">IIII", 0x803, n, 28, 28) + os.urandom(n * 784))
        with open(f"{folder}/{part}-labels-idx1-ubyte", "wb") as f:
            f.write(struct.pack(">II", 0x801, n) + bytes(b % 10 for b in os.urandom(n)))


def random_colours(folder, n):
    for i in range(1, 7):
        name = "test_batch.bin" if i == 6 else f"data_batch_{i}.bin"
        with open(f"{folder}/{name}", "wb") as f:
            for k in range(min(n, 256) if i == 6 else n // 5):
                f.write(bytes([k % 10]) + os.urandom(3072))


def random_tokens(folder, n):
    """Samples of 1,024 tokens of 16 bits, from GPT-2's 50,257; and a text of as many letters."""
    tokens = array.array("H", (word % 50257 for word in array.array("I", os.urandom(4 * (1024 * n + 1)))))
    with open(f"{folder}/tokens.bin", "wb") as f:
        tokens.tofile(f)
    with open(f"{folder}/text", "wb") as f:
        f.write(bytes(1 + b % 127 for b in os.urandom(64 * n)))


class Trainer:
    """left(): seconds that there are. keep: a file for all that a run said that failed."""

    def __init__(self, build, scratch, left, keep):
        self.build, self.scratch, self.left, self.keep = build, scratch, left, keep
        self.log = os.path.join(scratch, "log.jsonl")
        self.said = os.path.join(scratch, "said")

    def start(self, words, ranks):
        if os.path.exists(self.log):
            os.unlink(self.log)
        launch = [f"{self.build}/launcher/ddprun", "-np", str(ranks)] if ranks > 1 else []
        # each measures with --tune: it must not find the user's choices, nor add to them
        env = dict(os.environ, XDG_CACHE_HOME=tempfile.mkdtemp(prefix="cache.", dir=self.scratch))
        with open(self.said, "w") as said:  # a pipe would be full some day
            return subprocess.Popen(
                [*launch, f"{self.build}/worker/ddp-train", "--engine", "cuda", "--plot", "none",
                 "--log", self.log, *map(str, words)], env=env, stdout=said, stderr=subprocess.STDOUT)

    def rows(self):
        try:
            with open(self.log) as f:
                return [json.loads(line) for line in f if line.endswith("\n")]
        except OSError:
            return []

    def end(self, process, seconds, good=(0, 3)):
        """What it said. Whatever happens, it has ended then."""
        late = False
        try:
            process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            late = True
            process.kill()
            process.wait()
        with open(self.said, errors="replace") as f:
            out = f.read()
        if late or process.returncode not in good:
            print(*process.args, out, sep="\n", file=self.keep, flush=True)
        if late:
            raise Failed(f"ddp-train has not ended after {seconds:.0f} s")
        if process.returncode not in good:
            raise Failed(out.strip().splitlines()[-1] if out.strip() else
                         f"ddp-train ended with {process.returncode}")
        return out

    def at_most(self, seconds):
        return min(seconds, max(self.left(), 20))

    def run(self, *words, ranks=1):
        out = self.end(self.start(("--progress", "none", *words), ranks), self.at_most(240))
        return self.rows(), out

    def epochs(self, seconds, *words):
        """Runs until epochs behind the first one have taken so long; all of its rows."""
        process = self.start(("--progress", "lines", "--epochs", 100000, *words), 1)
        until = time.monotonic() + self.at_most(90)
        while process.poll() is None and time.monotonic() < until:
            time.sleep(0.05)
            # steps are many: they are not decoded each time
            with open(self.log) if os.path.exists(self.log) else open(os.devnull) as f:
                ends = [json.loads(line)["seconds"] for line in f
                        if '"kind":"epoch"' in line and line.endswith("\n")]
            if len(ends) > 2 and ends[-1] - ends[0] > seconds:
                break
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        out = self.end(process, self.at_most(60), good=(128 + signal.SIGTERM,))
        return self.rows(), out
