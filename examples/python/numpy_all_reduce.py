"""numpy_all_reduce.py - average an array over all ranks, without pip

    ddprun -np 4 python3 examples/python/numpy_all_reduce.py
"""
import os
import sys

import numpy as np

# in a clone; nothing where ddprun is installed
sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../packaging/python"))
import ddpgroup  # noqa: E402

group = ddpgroup.Group()
x = group.array(1000, "float32")  # shared by the ranks of a host: nothing is copied
x[:] = np.arange(1000) * (group.rank + 1)
group.all_reduce(x, "avg")
assert np.allclose(x, np.arange(1000) * (group.size + 1) / 2)
if group.rank == 0:
    print(f"{group.size} ranks ({group.backend}) agree: the last element is {x[-1]:g}")
group.close()
