"""ddprun --fetch-data: a data set from a mirror, whole and right or not at all."""

import hashlib
import http.server
import os
import random
import struct
import subprocess
import threading
import unittest

import launch
from launch import LaunchTest, main, wait_until

DDP_TRAIN = os.environ.get("DDP_TRAIN")


class Mirror(http.server.ThreadingHTTPServer):
    """Serves a dict of files. `ranges`: knows how to resume; `cut`: hangs up after so many
    bytes of a file, once."""

    def __init__(self, files, ranges=True, cut=None):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files, self.ranges, self.cut, self.asked = files, ranges, cut, []
        self.stall = threading.Event()
        self.stalled = threading.Event()
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}/data"

    def end(self):
        self.stall.set()
        self.shutdown()
        self.server_close()


class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_GET(self):
        name = self.path.rsplit("/", 1)[1]
        wanted = self.headers.get("Range")
        self.server.asked.append((name, wanted))
        whole = self.server.files.get(name)
        if whole is None:
            self.send_error(404)
            return
        start = int(wanted[6:].split("-")[0]) if wanted and self.server.ranges else 0
        body = whole[start:]
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(whole) - 1}/{len(whole)}")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        cut, self.server.cut = self.server.cut, None
        if cut == "stall":
            self.wfile.write(body[: len(body) // 2])
            self.server.stalled.set()
            self.server.stall.wait(120)
        else:
            self.wfile.write(body[:cut])
        if cut:
            self.close_connection = True


class Fetch(LaunchTest):
    def setUp(self):
        super().setUp()
        draw = random.Random(4)
        self.files = {"a.bin": draw.randbytes(200000), "b.bin": draw.randbytes(3000)}

    def mirror(self, files=None, **how):
        mirror = Mirror(self.files if files is None else files, **how)
        self.addCleanup(mirror.end)
        return mirror

    def table(self, *urls, files=None):
        lines = ["; mine", "[mine]", "about = a few bytes"]
        lines += [f"url = {url}" for url in urls]
        for name, data in (files or self.files).items():
            lines.append(f"file = {name} {len(data)} {hashlib.sha256(data).hexdigest()}")
        return self.write("sets.ini", "\n".join(lines) + "\n")

    def fetch(self, *urls, options=(), name="mine", files=None, **how):
        return self.run_to_end(
            "--fetch-data", name, "--data-sets", self.table(*urls, files=files), *options,
            cwd=self.folder.name, **how)

    def content(self, folder="mine"):
        found = {}
        for name in os.listdir(self.path(folder)):
            with open(self.path(folder, name), "rb") as f:
                found[name] = f.read()
        return found

    def refused(self, launch, *words, rc=1):
        self.assert_ended(launch, rc)
        self.assertEqual(len(launch.err.splitlines()), 1, launch.err)
        for word in words:
            self.assertIn(word, launch.err)

    def test_from_a_mirror_into_a_folder_of_its_name(self):
        mirror = self.mirror()
        launch = self.fetch(mirror.url)
        self.assert_ended(launch, 0)
        self.assertEqual(self.content(), self.files)
        self.assertEqual(launch.err, "")
        self.assertEqual(launch.out.count("SHA-256 verified"), 2)
        again = self.fetch(mirror.url)
        self.assert_ended(again, 0)
        self.assertEqual(again.out.count("is there already"), 2)
        self.assertEqual(len(mirror.asked), 2)

    def test_from_a_folder(self):
        os.mkdir(self.path("copy of it"))
        for name, data in self.files.items():
            with open(self.path("copy of it", name), "wb") as f:
                f.write(data)
        launch = self.fetch(
            "http://127.0.0.1:9", options=(
                "--data-mirror", f"file://{self.path('copy%20of%20it')}/",
                "--data-dir", "deep/er"))
        self.assert_ended(launch, 0)
        self.assertEqual(self.content("deep/er"), self.files)

    def test_the_second_place_when_the_first_has_gone(self):
        mirror = self.mirror()
        launch = self.fetch("http://127.0.0.1:9/nobody", mirror.url)
        self.assert_ended(launch, 0)
        self.assertEqual(self.content(), self.files)

    def test_nowhere(self):
        mirror = self.mirror(files={})
        self.refused(self.fetch(mirror.url, "http://127.0.0.1:9"), "a.bin", "404")
        self.assertEqual(self.content(), {})

    def test_a_broken_transfer_is_resumed(self):
        mirror = self.mirror(cut=150000)
        self.refused(self.fetch(mirror.url), "a.bin")
        self.assertEqual(len(self.content()["a.bin.part"]), 150000)
        self.assert_ended(self.fetch(mirror.url), 0)
        self.assertEqual(mirror.asked[1], ("a.bin", "bytes=150000-"))
        self.assertEqual(self.content(), self.files)

    def test_a_server_that_cannot_resume(self):
        mirror = self.mirror(cut=150000, ranges=False)
        self.refused(self.fetch(mirror.url), "a.bin")
        self.assert_ended(self.fetch(mirror.url), 0)
        self.assertEqual(self.content(), self.files)

    def test_killed_in_the_middle(self):
        mirror = self.mirror(cut="stall")
        first = self.start("--fetch-data", "mine", "--data-sets", self.table(mirror.url),
                           cwd=self.folder.name)
        part = self.path("mine", "a.bin.part")
        self.assertTrue(mirror.stalled.wait(60))
        self.assertTrue(wait_until(lambda: os.path.exists(part) and os.path.getsize(part) > 0))
        self.refused(self.fetch(mirror.url), "another ddprun")
        launch.end_all(self.mark)
        first.wait()
        self.assertEqual(list(self.content()), ["a.bin.part"])
        self.assert_ended(self.fetch(mirror.url), 0)
        self.assertEqual(self.content(), self.files)

    def test_what_came_is_something_else(self):
        for name, data in (("other bytes", bytes(200000)), ("fewer", self.files["a.bin"][:-1]),
                           ("more", self.files["a.bin"] + b"x")):
            with self.subTest(name):
                mirror = self.mirror(files={**self.files, "a.bin": data})
                self.refused(self.fetch(mirror.url), "a.bin", mirror.url)
                self.assertEqual(self.content(), {})

    def test_a_wrong_start_is_not_built_upon(self):
        os.mkdir(self.path("mine"))
        with open(self.path("mine", "a.bin.part"), "wb") as f:
            f.write(b"x" * 1000)
        mirror = self.mirror()
        self.refused(self.fetch(mirror.url), "a.bin", "SHA-256")
        self.assert_ended(self.fetch(mirror.url), 0)
        self.assertEqual(self.content(), self.files)

    def test_no_place_to_write(self):
        self.write("mine", "a file")
        self.refused(self.fetch("http://127.0.0.1:9"), "mine")

    def test_no_curl(self):
        self.refused(self.fetch("http://127.0.0.1:9", env={"PATH": self.folder.name}), "curl")

    def test_tables_that_are_wrong(self):
        good = "[mine]\nurl = file:///x\nfile = a 1 " + 64 * "0" + "\n"
        for text, *words in (
            (good, "no data set 'yours'", "mine"),
            ("file = a 1 2\n", "line 1", "before the first"),
            ("[yours]\nfile = ../a 1 " + 64 * "0" + "\n", "line 2", "'../a'"),
            ("[yours]\nfile = a 1 abc\n", "line 2", "SHA-256"),
            ("[yours]\nfile = a\n", "line 2", "NAME BYTES SHA256"),
            ("[yours]\nurl = x\n", "line 2", "URL"),
            ("[yours]\nsize = 3\n", "line 2", "'size'"),
            ("[yours]\nnonsense\n", "line 2"),
            ("[yours]\nurl = file:///x\n", "[yours]", "'file'"),
        ):
            with self.subTest(words):
                table = self.write("bad.ini", text)
                self.refused(
                    self.run_to_end("--fetch-data", "yours", "--data-sets", table), *words, rc=2)
        self.refused(
            self.run_to_end("--fetch-data", "yours", "--data-sets", "/no/table"), "/no/table", rc=2)

    def test_options_that_make_no_sense(self):
        self.refused(self.run_to_end("--fetch-data", "mnist", "./train"), "./train", rc=2)
        self.refused(self.run_to_end("--data-dir", "x", "true"), "--fetch-data", rc=2)
        self.refused(self.run_to_end("--fetch-data", "mnist", "--data-mirror", "x"), "URL", rc=2)

    def test_the_known_sets_are_known(self):
        for name in ("mnist", "fashion-mnist"):
            launch = self.run_to_end("--fetch-data", name, "--data-mirror", "file:///nowhere",
                                     cwd=self.folder.name)
            self.refused(launch, "file:///nowhere/train-images-idx3-ubyte.gz")

    @unittest.skipUnless(DDP_TRAIN, "no ddp-train; needs build with it")
    def test_the_trainer_reads_what_was_fetched(self):
        draw = random.Random(5)
        files = {}
        for part, n in (("train", 64), ("t10k", 16)):
            files[f"{part}-images-idx3-ubyte"] = (
                struct.pack(">IIII", 0x803, n, 8, 8) + draw.randbytes(64 * n))
            files[f"{part}-labels-idx1-ubyte"] = (
                struct.pack(">II", 0x801, n) + bytes(draw.randrange(10) for _ in range(n)))
        done = subprocess.run(
            [DDP_TRAIN, "--data", "mine", "--epochs", "1"], cwd=self.folder.name,
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("ddprun --fetch-data", done.stderr)
        self.assert_ended(self.fetch(self.mirror(files=files).url, files=files), 0)
        done = subprocess.run(
            [DDP_TRAIN, "--data", "mine", "--epochs", "1", "--plot", "none"],
            cwd=self.folder.name, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=120, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)


if __name__ == "__main__":
    # fetching is local: whatever the machine's proxy is
    for variable in [v for v in os.environ if v.lower().endswith("_proxy")]:
        del os.environ[variable]
    main()
