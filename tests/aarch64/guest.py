"""guest.py - on the emulated machine: run the tests of tests.json, one per CPU, and print the results"""
import concurrent.futures
import json
import os
import re
import signal
import subprocess
import time

SLOWER = 30  # factor for time limits: 20 for emulation, more on a busy machine


def run(test):
    began, where = time.monotonic(), test["workdir"] or "/tmp"
    environment = {**os.environ, **test["env"], "CK_TIMEOUT_MULTIPLIER": str(SLOWER)}
    try:
        child = subprocess.Popen(test["cmd"], cwd=where, env=environment, start_new_session=True,
                                 stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    except OSError as why:
        return test["name"], "none", str(why), 0
    try:
        out, code = child.communicate(timeout=test["timeout"] * SLOWER)[0], child.returncode
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        out, code = child.communicate()[0], "no end"
    return test["name"], code, out.decode(errors="replace"), time.monotonic() - began


def main():
    with open("/tests.json", encoding="utf-8") as f:
        tests = json.load(f)
    count = {"passed": 0, "failed": 0, "skipped": 0}
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for done in concurrent.futures.as_completed([pool.submit(run, t) for t in tests]):
            name, code, out, seconds = done.result()
            state = {0: "passed", 77: "skipped"}.get(code, "failed")
            count[state] += 1
            print(f"{state:<8} {name} {seconds:.1f} s", flush=True)
            if state == "failed":
                print(f"---- exit code {code}\n{out[-3000:]}\n----", flush=True)
            for why in re.findall(r"^skipped: .*", out, re.M):
                print(f"         {why}", flush=True)
    print(f"{count['passed']} passed, {count['failed']} failed, {count['skipped']} skipped", flush=True)


main()
