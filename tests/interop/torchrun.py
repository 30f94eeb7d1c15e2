"""Under torchrun: the bundled worker works there, and ddprun does not make N worlds of one.

   torchrun.py DDPRUN DDP_TRAIN
"""
import subprocess
import sys

import jobs

ddprun, ddp_train = sys.argv[1:]
# one start: importing PyTorch is what takes the time
SCRIPT = f"""{ddp_train} --model toy --epochs 1 --plot none --check-replicas || exit 3
{ddprun} echo a world"""
torches = jobs.find_torches()
version = max(torches)
done = subprocess.run(
    [torches[version], "-m", "torch.distributed.run", "--nproc_per_node", "2", "--standalone",
     "--no_python", "sh", "-c", SCRIPT],
    stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=jobs.JOB_SECONDS)
right = "2 alike" in done.stdout and "a world" not in done.stdout and \
    "ddprun or torchrun has started 2 instances of ddprun (WORLD_SIZE=2)" in done.stderr
print(f"PyTorch {version}: {'right' if right else done.stdout + done.stderr}")
sys.exit(0 if right else 1)
