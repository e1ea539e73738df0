"""Trains a small model with DistributedDataParallel over env://, exactly as under torchrun.

With --fail-once, rank 1 ends with an error in the first attempt, after the first step.
"""
import os
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def train(rank, fail_after_first_step):
    torch.manual_seed(rank)  # DistributedDataParallel must make the parameters equal
    model = DistributedDataParallel(torch.nn.Linear(8, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        optimizer.zero_grad()
        model(torch.randn(16, 8)).square().mean().backward()
        optimizer.step()
        if fail_after_first_step:
            sys.exit("failing once")
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def main():
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    first_attempt = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    mine = train(rank, "--fail-once" in sys.argv and first_attempt and rank == 1)
    everyones = [torch.empty_like(mine) for _ in range(world_size)]
    dist.all_gather(everyones, mine)
    agree = all(torch.equal(mine, other) for other in everyones)
    print(f"rank {rank} of {world_size}: parameters {'agree' if agree else 'differ'}")
    dist.destroy_process_group()
    sys.exit(0 if agree else 1)


if __name__ == "__main__":
    main()
