#!/usr/bin/env python3
"""stragglers.py DDPRUN: --stragglers with PyTorch: one of four ranks takes 20 % longer in each step and
is named; of ranks that are alike none is."""
import pathlib
import re
import signal
import subprocess
import sys
import threading

HERE = pathlib.Path(__file__).resolve().parent
DEADLINE_S = 180


def python():
    made = subprocess.run(["sh", str(HERE / "torch-env.sh")], capture_output=True, text=True,
                          check=False)
    if made.returncode != 0:
        print(made.stderr.strip(), file=sys.stderr)
        sys.exit(77)
    return made.stdout.strip()


def run(*args):
    """Until a straggler is named or the job ends: the last step before it, and what ddprun said."""
    job = subprocess.Popen([sys.argv[1], "-np", "4", "--stragglers", python(),
                            str(HERE / "programs/late.py"), *map(str, args)],
                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    limit = threading.Timer(DEADLINE_S, job.kill)
    limit.start()
    step, said = 0, []
    with job:
        for line in job.stdout:
            found = re.match(r"\[0\] step (\d+)", line)
            step = int(found.group(1)) if found else step
            if line.startswith("ddprun: "):
                said.append(line)
                job.send_signal(signal.SIGTERM)
    limit.cancel()
    return step, said, job.returncode


def main():
    step, said, code = run(300, 300, 60)
    print(f"at step {step}: {''.join(said[:1])}", end="")
    if not said or not said[0].startswith("ddprun: straggler: rank 2 on "):
        sys.exit(f"rank 2 is not named (exit {code}): {said}")
    step, said, code = run(30, 100, 0)
    if said or code != 0 or step != 30:
        sys.exit(f"a healthy job: step {step}, exit {code}: {said}")


if __name__ == "__main__":
    main()
