"""TensorFlow's workers find each other by TF_CONFIG, or as in a step of Slurm."""
import sys

import tensorflow as tf

cluster = tf.distribute.cluster_resolver
if sys.argv[1] == "slurm":
    resolver = cluster.SlurmClusterResolver(port_base=int(sys.argv[2]), gpus_per_node=2,
                                            gpus_per_task=1, auto_set_gpu=False)
else:
    resolver = cluster.TFConfigClusterResolver()
strategy = tf.distribute.MultiWorkerMirroredStrategy(cluster_resolver=resolver)


@tf.function
def total():
    def one():
        mine = tf.constant(float(resolver.task_id + 1))
        return tf.distribute.get_replica_context().all_reduce("sum", mine)
    return strategy.run(one)


print(f"held: rank {resolver.task_id} of {strategy.num_replicas_in_sync} sum {int(total())}",
      flush=True)
