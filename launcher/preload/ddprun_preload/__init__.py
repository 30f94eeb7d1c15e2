"""The preload helper: imports modules once per node; ranks are forked from it. Protocol, checks, and differences
from a fresh interpreter: doc/preload.md. Python 3.8 and later, standard library only.
"""
import os
import sys

LOADED = frozenset(sys.modules)  # modules of Python's start-up
HERE = os.path.dirname(os.path.dirname(__file__))  # in PYTHONPATH
RANK = os.path.join(HERE, "rank")


def vanish():
    """From here on no module of ours is found, as in a plain rank. Functions need none."""
    for name in [name for name in sys.modules if name.partition(".")[0] == __name__]:
        for folder in getattr(sys.modules.pop(name), "__path__", ()):
            sys.path_importer_cache.pop(folder, None)
