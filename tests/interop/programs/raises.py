"""A rank that raises, as PyTorch's own examples are written: under @record."""
import os
import time

from torch.distributed.elastic.multiprocessing.errors import record


@record
def main():
    if os.environ["RANK"] == "1":
        raise ValueError("boom")
    time.sleep(100)


main()
