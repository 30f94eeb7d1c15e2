#!/usr/bin/env python3
"""pytorch_tests.py LIBDDPGROUP [BACKEND [NAME...]]: PyTorch's own tests of a backend, with "ddp"

The wheel of PyTorch contains them. `gloo` as BACKEND shows which of them fail with any.
"""
import os
import sys

import jobs

HERE = os.path.dirname(os.path.abspath(__file__))
os.environ["PYTHONPATH"] = os.path.join(HERE, "../../packaging/python")
os.environ["DDPGROUP_LIBRARY"] = os.path.abspath(sys.argv[1])
python = jobs.newest_torch() or jobs.skip("no PyTorch 2.15 on this machine; needs torch")
os.execv(python, [python, os.path.join(HERE, "programs/pytorch_tests.py"), *(sys.argv[2:] or ["ddp"])])
