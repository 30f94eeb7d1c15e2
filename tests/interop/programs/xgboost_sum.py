"""XGBoost's workers meet at a tracker, which rank 0 starts where DMLC_* says."""
import os

import numpy
import xgboost
from xgboost.tracker import RabitTracker

uri, port = os.environ["DMLC_TRACKER_URI"], int(os.environ["DMLC_TRACKER_PORT"])
if os.environ["DMLC_TASK_ID"] == "0":
    tracker = RabitTracker(host_ip=uri, port=port, n_workers=int(os.environ["DMLC_NUM_WORKER"]))
    tracker.start()
with xgboost.collective.CommunicatorContext(dmlc_tracker_uri=uri, dmlc_tracker_port=port,
                                            dmlc_task_id=os.environ["DMLC_TASK_ID"]):
    rank, size = xgboost.collective.get_rank(), xgboost.collective.get_world_size()
    total = xgboost.collective.allreduce(numpy.ones(1) * (rank + 1), xgboost.collective.Op.SUM)
    print(f"held: rank {rank} of {size} sum {total[0]:.0f}", flush=True)
if rank == 0:
    tracker.wait_for()
