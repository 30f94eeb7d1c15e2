#!/usr/bin/env python3
"""collect.py DDPRUN [--np N] [--python PYTHON] [--torch | --recorded] [--part arrivals|calls]

The CPU time of collecting a hang report from N Python ranks of one host, in ddprun-diagnose and in each
rank; with --part arrivals of a question of --stragglers, with --part calls of one of the page. --torch:
ranks wait in an all_reduce for the last of them; --recorded: ranks without PyTorch answer as it does, with
a full recorder; without both they sleep."""
import argparse
import json
import os
import pathlib
import resource
import statistics
import subprocess
import tempfile
import time

ROUNDS = 9
RANK = """\
import json, os, socket, sys, threading, time

def serve(listener, answer):
    while True:
        peer = listener.accept()[0]
        peer.recv(4096)
        peer.sendall(answer)
        peer.close()

if sys.argv[1] == "recorded":
    entries = [{"collective_seq_id": i, "input_dtypes": ["Float"], "input_sizes": [[1000]],
                "is_p2p": False, "op_id": i, "output_dtypes": ["Float"], "output_sizes": [[1000]],
                "p2p_seq_id": 0, "pg_id": 0, "process_group": ["0", "default_pg"],
                "profiling_name": "gloo:all_reduce", "record_id": i - 1, "retired": i < 2000,
                "state": "scheduled", "thread_id": "140519988419456", "thread_name": "python",
                "time_created_ns": time.time_ns(), "time_discovered_completed_ns": 0,
                "time_discovered_started_ns": 0, "timeout_ms": 1800000} for i in range(1, 2001)]
    body = json.dumps({"comm_lib_version": "", "entries": entries, "pg_config": {}, "pg_status": {
        "0": {"last_completed_collective": "1999", "last_enqueued_collective": "2000",
              "last_started_collective": "-1"}}, "version": "2.10"}, separators=(",", ":"))
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"{os.environ['DDPRUN_DIAGNOSE']}.{os.getpid()}.sock")
    listener.listen()
    answer = f"HTTP/1.1 200 OK\\r\\nContent-Length: {len(body)}\\r\\n\\r\\n{body}".encode()
    threading.Thread(target=serve, args=(listener, answer), daemon=True).start()
if sys.argv[1] == "torch":
    import torch, torch.distributed as dist
    dist.init_process_group("gloo")
    for _ in range(int(sys.argv[2])):
        dist.all_reduce(torch.ones(1000))
print("up", os.environ["DDPRUN_DIAGNOSE"], os.getpid(), flush=True)
if sys.argv[1] == "torch" and dist.get_rank() < dist.get_world_size() - 1:
    dist.all_reduce(torch.ones(1000))
time.sleep(600)
"""


def used_ns(pids):
    """CPU time of all threads."""
    return sum(int(path.read_text().split()[0]) for pid in pids
               for path in pathlib.Path(f"/proc/{pid}/task").glob("*/schedstat"))


def children_ms():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return 1000 * (used.ru_utime + used.ru_stime)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("ddprun")
    parser.add_argument("--np", type=int, default=64)
    parser.add_argument("--python", default="/usr/bin/python3")
    parser.add_argument("--torch", dest="kind", action="store_const", const="torch", default="sleep")
    parser.add_argument("--recorded", dest="kind", action="store_const", const="recorded")
    parser.add_argument("--part", default="collect", choices=["collect", "arrivals", "calls"])
    args = parser.parse_args()
    if args.part == "calls":
        os.environ["TORCH_FR_BUFFER_SIZE"] = "64"  # as --ui does
    # a full recorder; among 64 ranks on two CPUs a hundred would take minutes
    calls = 70 if args.part == "calls" else 5
    with tempfile.TemporaryDirectory() as folder:
        program = pathlib.Path(folder, "rank.py")
        program.write_text(RANK, encoding="utf-8")
        job = subprocess.Popen(
            [args.ddprun, "-np", str(args.np), "--tag-output=off",
             *(["--stragglers"] if args.part == "arrivals" else []), args.python,
             str(program), args.kind, str(calls)], stdout=subprocess.PIPE, text=True)
        try:
            ranks = {}
            while len(ranks) < args.np:
                words = job.stdout.readline().split()
                if words[:1] == ["up"]:
                    files, rank = words[1].rsplit("/", 1)
                    ranks[int(rank)] = int(words[2])
            time.sleep(2)
            measure(args, files, ranks)
        finally:
            job.terminate()
            job.wait()


def measure(args, files, ranks):
    program = os.path.join(os.path.dirname(os.path.abspath(args.ddprun)), "ddprun-diagnose")
    command = [program, args.part, files, *(f"{rank}:{pid}" for rank, pid in sorted(ranks.items()))]
    before, took = used_ns(ranks.values()), []
    for _ in range(ROUNDS):
        began = children_ms()
        answer = subprocess.run(command, capture_output=True, check=True).stdout
        took.append(children_ms() - began)
    each = (used_ns(ranks.values()) - before) / 1e6 / ROUNDS / len(ranks)
    answers = json.loads(answer) if args.part == "collect" else []
    print(f"{len(ranks)} ranks, {sum('threads' in a for a in answers)} with stacks, "
          f"{sum(bool(a.get('groups')) for a in answers)} with collectives, {len(answer)} bytes: "
          f"{statistics.median(took):.0f} ms of CPU ({min(took):.0f} to {max(took):.0f}) in "
          f"ddprun-diagnose, {each:.2f} ms in each rank")


if __name__ == "__main__":
    main()
