#!/usr/bin/env python3
"""keep.py BUILD [FOLDER...]: what libFuzzer has found becomes tests/fuzz/corpus.

BUILD is the one that run.sh has made (build/tests/fuzz/fuzz), with a corpus-NAME for each target;
each FOLDER may have more of them. Of all inputs libFuzzer keeps those that cover something new,
the short ones first, up to ROOM bytes for a target: the tests are to run them, not to rest on them."""
import pathlib
import subprocess
import sys
import tempfile

ROOM, LONGEST = 24_000, 1500
corpus = pathlib.Path(__file__).parent / "corpus"


def keep(name, program, folders):
    with tempfile.TemporaryDirectory() as merged:
        subprocess.run([program, "-merge=1", f"-max_len={LONGEST}", merged, *folders], check=True,
                       stderr=subprocess.DEVNULL)
        inputs = sorted((path.read_bytes() for path in pathlib.Path(merged).iterdir()),
                        key=lambda data: (len(data), data))
    packed = b""
    for data in inputs:
        if len(packed) + 2 + len(data) <= ROOM:
            packed += len(data).to_bytes(2, "little") + data
    (corpus / name).write_bytes(packed)
    print(f"{name}: {len(packed)} bytes of {len(inputs)} inputs")


build = pathlib.Path(sys.argv[1])
corpus.mkdir(exist_ok=True)
for path in sorted(build.glob("corpus-*")):
    target = path.name.removeprefix("corpus-")
    keep(target, build / "tests/fuzz" / f"fuzz_{target}",
         [folder for top in (build, *map(pathlib.Path, sys.argv[2:]))
          if (folder := top / path.name).is_dir()])
