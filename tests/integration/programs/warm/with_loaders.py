"""DDP whose rows come from workers of each way to start them; see ends.py."""
import random

import numpy
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset, DistributedSampler, get_worker_info

from ends import end


class Rows(Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, index):
        worker = get_worker_info()
        draws = (random.random(), numpy.random.rand(), torch.rand(1).item())
        return torch.full((4,), float(index)), (index, worker.id, worker.seed, __name__, *draws)


def rows_and_draws(batch):
    return torch.stack([row for row, _ in batch]), [draw for _, draw in batch]


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(7 + dist.get_rank())
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for kind, num_workers in (("fork", 2), ("spawn", 1), ("forkserver", 1)):
        rows = Rows()
        sampler = DistributedSampler(rows, seed=7)
        loader = DataLoader(rows, batch_size=2, sampler=sampler, num_workers=num_workers,
                            multiprocessing_context=kind, collate_fn=rows_and_draws)
        for step, (x, draws) in enumerate(loader):
            if kind == "forkserver" and step == 3:
                end()
            loss = model(x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(dist.get_rank(), kind, step, loss.item(), draws, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
