"""Rank 1 raises; @record writes the exception to TORCHELASTIC_ERROR_FILE. The others wait."""
import os
import time

from torch.distributed.elastic.multiprocessing.errors import record


@record
def main():
    if os.environ["RANK"] == "1":
        raise ValueError("loss is NaN at step 3")
    time.sleep(1000)


if __name__ == "__main__":
    main()
