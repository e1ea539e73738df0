"""Two ranks on one GPU over NCCL that hang at step 200: `sleep`, one of them sleeps; `mismatch`,
one of them calls something else."""
import os
import sys
import time

import torch
import torch.distributed as dist

os.environ["NCCL_HOSTID"] = str(os.getpid())  # NCCL refuses a GPU twice on one host
torch.cuda.set_device(0)
dist.init_process_group("nccl")
x = torch.ones(1 << 20, device="cuda")
for step in range(100000):
    if step == 200 and dist.get_rank() == 1:
        if sys.argv[1] == "mismatch":
            dist.broadcast(x, 0)
            torch.cuda.synchronize()
        time.sleep(600)
    dist.all_reduce(x)
    torch.cuda.synchronize()
