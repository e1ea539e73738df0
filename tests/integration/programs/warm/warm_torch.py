"""A rank of PyTorch: rank 0 dies in its first attempt once FOLDER/go is there; all sum."""
import os
import random
import signal
import sys
import time

import numpy
import torch
import torch.distributed as dist

is_dynamo_there = "torch._dynamo" in sys.modules  # which optimizers import
dist.init_process_group("gloo")
rank, attempt = dist.get_rank(), os.environ["TORCHELASTIC_RESTART_COUNT"]
drawn = (random.random(), numpy.random.rand(), torch.rand(1).item())
print("rank %d drawn %r %r %r" % (rank, *drawn), flush=True)
torch.manual_seed(7)
print("rank %d seeded %r" % (rank, torch.rand(3).tolist()), flush=True)
of_rank = torch.full((4,), float(rank))
dist.all_reduce(of_rank)
if attempt == "0":
    while not os.path.exists(os.path.join(sys.argv[1], "go")):
        time.sleep(0.02)
    if rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(300)
with open("/proc/self/environ", "rb") as environ:
    is_forked = b"MUSTER_WARM=" in environ.read()
said = (rank, dist.get_world_size(), of_rank[0].item(), is_forked, is_dynamo_there)
print("rank %d of %d: sum %d, forked %s, dynamo %s" % said, flush=True)
dist.destroy_process_group()
