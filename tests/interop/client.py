"""Our client library at PyTorch's own store.   client.py TEST_CLIENT_LIVE

Hosts a TCPStore of PyTorch 2.15, both of its servers in turn, and runs the tests of
tests/rendezvous/test_client_live.c against it.
"""
import subprocess
import sys
import os

import jobs

HOST = """
import sys, torch.distributed as d
s = d.TCPStore("127.0.0.1", 0, None, True, use_libuv=sys.argv[1] == "libuv")
print(s.port, flush=True)
sys.stdin.read()
"""


def main():
    python = jobs.newest_torch()
    if not python:
        jobs.skip("no PyTorch 2.15 to host a store; needs torch")
    good = True
    for kind in ("libuv", "legacy"):
        host = subprocess.Popen([python, "-c", HOST, kind], stdin=subprocess.PIPE,
                                stdout=subprocess.PIPE, text=True)
        try:
            port = int(host.stdout.readline())
            # the legacy server has no queues
            env = dict(os.environ, DDPRUN_TEST_STORE=f"127.0.0.1:{port}",
                       DDPRUN_TEST_QUEUES="1" if kind == "libuv" else "0")
            done = subprocess.run(sys.argv[1:], env=env, timeout=200)
            print(f"{'ok' if done.returncode == 0 else 'FAILED'}: {kind}")
            good &= done.returncode == 0
        finally:
            host.kill()
            host.wait()
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
