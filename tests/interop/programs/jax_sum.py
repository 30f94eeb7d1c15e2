"""JAX as its documentation writes it: initialize() finds coordinator, size and rank."""
import os
import sys

import jax

if "mpi4py" in sys.argv:
    from mpi4py import MPI

os.environ.setdefault("JAX_PLATFORMS", "cpu")
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize()
from jax.experimental import multihost_utils  # noqa: E402

total = multihost_utils.process_allgather(jax.numpy.array([jax.process_index() + 1])).sum()
mpi = MPI.COMM_WORLD.allreduce(1) if "mpi4py" in sys.argv else 0
print(f"held: rank {jax.process_index()} of {jax.process_count()} sum {total} mpi {mpi}", flush=True)
jax.distributed.shutdown()
