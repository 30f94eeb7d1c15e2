"""test_mnist.py BUILD SOURCE - two ranks bring cnn to 98 % on MNIST's own digits"""
import os
import re
import sys

from ranks import main, run_ok

DATA = os.path.join(os.path.abspath(sys.argv[2]), "tests", "data", "mnist10k")


def cnn_reaches_98_percent():
    shown = run_ok(2, "--data", DATA, "--epochs", 10, "--schedule", "cosine", "--plot",
                   "none", "--target-accuracy", 98, "--check-replicas").out
    found = re.search(r"accuracy +([0-9.]+) % of 2,000 test images", shown)
    assert found and float(found[1]) >= 98, shown


main([cnn_reaches_98_percent])
