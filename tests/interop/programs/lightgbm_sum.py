"""LightGBM's own sockets, without Dask. It reads no variable: the script passes it the list of
workers that TF_CONFIG has. Each rank trains on its own rows."""
import json
import os
import socket

import lightgbm
import numpy

ROWS = 200
cluster = json.loads(os.environ["TF_CONFIG"])["cluster"]["worker"]
machines = [(socket.gethostbyname(host), port) for host, _, port in (w.rpartition(":") for w in cluster)]
rank, size = int(os.environ["RANK"]), len(machines)
rows = ROWS * (rank + 1)
x = numpy.random.default_rng(rank).random((rows, 2))
model = lightgbm.train(
    {"objective": "regression", "tree_learner": "data", "num_threads": 1, "verbosity": -1,
     "pre_partition": True, "num_machines": size,
     "machines": ",".join(":".join(m) for m in machines), "local_listen_port": int(machines[rank][1])},
    lightgbm.Dataset(x, x[:, 0] > 0.5), num_boost_round=2)
# the first split counts the rows of all ranks
counted = model.dump_model()["tree_info"][0]["tree_structure"]["internal_count"]
print(f"held: rank {rank} of {size} sum {counted / ROWS:.0f}", flush=True)
