"""PaddlePaddle's ranks find each other by PADDLE_*, at a store that rank 0 serves."""
import paddle
from paddle import distributed

paddle.device.set_device("cpu")
distributed.init_parallel_env()
rank, size = distributed.get_rank(), distributed.get_world_size()
total = paddle.to_tensor([rank + 1.0])
distributed.all_reduce(total)
print(f"held: rank {rank} of {size} sum {int(total.item())}", flush=True)
