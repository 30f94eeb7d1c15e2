"""test_late.py BUILD SOURCE - ddp-train's ranks wait for one that is late, and not for one that has gone"""
import os
import shutil
import signal
import socket
import sys

from ranks import Ranks, main, wait_until

DIGITS = os.path.join(os.path.abspath(sys.argv[2]), "worker", "data", "digits")
QUIET = ("--plot", "none", "--progress", "none")


def a_late_rank_is_waited_for_as_long_as_was_asked():
    job = Ranks(2, "--epochs", 100000, *QUIET, "--log", "log", "--group-timeout", "5s")
    wait_until(lambda: os.path.exists("log") and os.path.getsize("log"))
    job.signal(signal.SIGSTOP, rank=1)
    job.ranks[0].wait(60)
    job.signal(signal.SIGCONT, rank=1)
    first, second = job.wait()
    assert first.code == 1 and "rank 1" in first.err and first.err.count("\n") == 1, first


def late_data(*args, late=1, **env):
    """Two ranks, of which one has its data late (slow_open.c)."""
    for rank in "01":
        shutil.copytree(DIGITS, "data" + rank)
    return Ranks(2, "--epochs", 0, *QUIET, *args, each=lambda rank: ("--data", f"data{rank}"),
                 env={"LD_PRELOAD": os.environ["SLOW_OPEN_LIBRARY"],
                      "SLOW_OPEN": f"data{late}/train-images-idx3-ubyte.gz", **env})


def a_rank_that_reads_its_data_for_long_is_waited_for():
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = free.getsockname()
    job = late_data("--group-timeout", "5s", DDP_MEETING="tcp://%s:%d" % address)
    wait_until(lambda: os.path.exists("late"))
    with socket.create_server(address):  # the place is another job's now
        results = job.wait()
    assert [r.code for r in results] == [0, 0], results
    said = "ddp-train: note: waiting for rank %d on "
    assert results[0].err.startswith(said % 1) and results[0].err.count("\n") == 1, results
    assert results[1].err == "", results


def rank_0_is_waited_for_and_rank_1_says_so():
    results = late_data(late=0).wait()
    assert [r.code for r in results] == [0, 0], results
    assert results[0].err == "" and "waiting for rank 0 on " in results[1].err, results


def a_rank_that_ends_while_it_reads_its_data_is_told_of():
    job = late_data()
    wait_until(lambda: os.path.exists("late"))
    job.signal(signal.SIGKILL, rank=1)
    first, _ = job.wait()
    assert first.code == 1 and "rank 1" in first.err and first.err.count("\n") == 1, first


main([a_late_rank_is_waited_for_as_long_as_was_asked, a_rank_that_reads_its_data_for_long_is_waited_for,
      rank_0_is_waited_for_and_rank_1_says_so, a_rank_that_ends_while_it_reads_its_data_is_told_of])
