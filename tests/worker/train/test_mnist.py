"""test_mnist.py BUILD SOURCE - two ranks bring cnn to 98 % on MNIST's own digits

The 8,000 training and 2,000 test images of ../shared/data/mnist10k; skipped without them.
"""
import os
import re
import sys

from ranks import main, run_ok

SHARED = os.environ.get("DDPRUN_SHARED", os.path.join(sys.argv[2], "..", "shared"))
DATA = os.path.abspath(os.path.join(SHARED, "data", "mnist10k"))


def cnn_reaches_98_percent():
    shown = run_ok(2, "--data", DATA, "--epochs", 10, "--schedule", "cosine", "--plot",
                   "none", "--target-accuracy", 98, "--check-replicas").out
    found = re.search(r"accuracy +([0-9.]+) % of 2,000 test images", shown)
    assert found and float(found[1]) >= 98, shown


if not os.path.isdir(DATA):
    print(f"skipped: no MNIST digits in '{DATA}' (DDPRUN_SHARED names another place)")
    sys.exit(77)
main([cnn_reaches_98_percent])
