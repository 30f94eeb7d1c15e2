"""First in the PYTHONPATH of the preload helper (doc/preload.md), which ddprun-agent runs as the user's command
line, so Python's start-up imports this file before it reads the script. In the helper begin() serves the
agent; in a rank that is forked there it returns, and the interpreter continues with the script as usual.

Processes that imports start load this file, too: only the agent's own child is the helper.
"""
import os
import sys

HERE = os.path.dirname(__file__)


def load_rank():
    """What each rank does, forked or not. No module: a rank has none of ours."""
    path, space = os.path.join(HERE, "rank", "sitecustomize.py"), {"__name__": "rank"}
    with open(path, encoding="utf-8") as f:
        exec(compile(f.read(), path, "exec"), space)
    return type(sys.implementation)(**space)


def begin():
    """Returns the exception if the user has no sitecustomize, for Python to ignore."""
    agent = os.getppid()
    if os.environ.get("DDPRUN_PRELOAD") != str(agent):
        return load_rank().remove_folder(HERE, os.path.join(HERE, "rank"))
    try:
        from ddprun_preload.helper import Helper
        helper = Helper(agent, load_rank())
    except BaseException:  # Python 2, or a file that cannot be read
        os._exit(1)  # else Python would run the script here, once more than there are ranks
    helper.serve()
    return helper.missing


missing = begin()
if missing is not None:
    raise missing
