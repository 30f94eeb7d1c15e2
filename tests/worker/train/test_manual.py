"""test_manual.py PROGRAM MANUAL - every option of --help is in the manual, and no other"""
import re
import subprocess
import sys

shown = subprocess.run([sys.argv[1], "--help"], check=True, stdout=subprocess.PIPE,
                       text=True, timeout=100).stdout
helped = set(re.findall(r"--[a-z][a-z0-9-]+", re.sub(r"(?m)^.*--progress=HOW", "--progress", shown)))
with open(sys.argv[2]) as f:
    text = f.read()
told = set(re.findall(r"\*(--[a-z][a-z0-9-]+)\*", text))
headed = set(re.findall(r"(?m)^\*(?:-.\*, \*)?(--[a-z][a-z0-9-]+)\*", text)) | {"--usage", "--version"}
assert len(helped) > 20, shown
for option in sorted(helped - headed):
    print(f"{option} has no paragraph in {sys.argv[2]}")
for option in sorted(told - helped):
    print(f"{option} is in {sys.argv[2]} and not in --help")
sys.exit(1 if helped - headed or told - helped else 0)
