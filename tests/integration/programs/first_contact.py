"""Finds its group in every way that tutorials show, in one process. Prints a line per group."""
import os
import sys

import torch
import torch.distributed as dist


def say(what):
    os.write(
        1, f"rank {os.environ.get('RANK', '-')} {what}\n".encode()
    )  # at once, so that no line is torn


def check(what, rank, world_size):
    total = torch.ones(1)
    dist.all_reduce(total)
    assert total.item() == world_size, total
    dist.destroy_process_group()
    say(f"{what}: {rank} of {world_size}")


def setup(address, rank, world_size):
    """The function of this name in the tutorial about DDP."""
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = address
    dist.init_process_group("gloo", rank=rank, world_size=world_size)


def meetings(folder, tcp):
    """Each rank uses the tutorial's address, the launcher's, both again, and explicit methods."""
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    own = os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]
    before = os.environ.get("TORCHELASTIC_USE_AGENT_STORE")
    for what, address in (("tutorial", ("localhost", "12355")), ("again", ("localhost", "12356")),
                          ("launcher", own), ("tutorial, again", ("localhost", "12355"))):
        setup(address, rank, world_size)
        assert (os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]) == address
        assert os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == before
        check(what, rank, world_size)
    for what, method in (("tcp", tcp), ("file", f"file://{folder}/meet")):
        dist.init_process_group("gloo", init_method=method, rank=rank, world_size=world_size)
        check(what, rank, world_size)


def spawned(rank, world_size, port):
    setup(("localhost", port), rank, world_size)
    check("spawned", rank, world_size)


def spawn(port):
    """By itself: mp.spawn starts the ranks, whatever the launcher has started."""
    import torch.multiprocessing as mp

    mp.spawn(spawned, args=(2, port), nprocs=2)
    say("all spawned")


def alone(port):
    """A group of one that the script numbers by itself, and DataParallel."""
    os.environ["WORLD_SIZE"], os.environ["RANK"] = "1", "0"
    setup(("localhost", str(int(port) + int(os.environ.get("LOCAL_RANK", "0")))), 0, 1)
    model = torch.nn.DataParallel(torch.nn.Linear(2, 2))
    assert model(torch.ones(3, 2)).shape == (3, 2)
    check("alone", 0, 1)


def features():
    """What DDP is used with, on the launcher's group."""
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
    from torch.nn.parallel import DistributedDataParallel as DDP

    dist.init_process_group("gloo")
    rank = dist.get_rank()

    class Branches(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.unused = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)

        def forward(self, x):
            return self.used(x)

    def step(model):
        model(torch.full((1, 2), rank + 1.0)).sum().backward()
        weight = next(p for p in model.parameters() if p.grad is not None)
        return [round(value, 4) for value in weight.grad.flatten().tolist()]

    torch.manual_seed(0)
    say(f"find_unused {step(DDP(Branches(), find_unused_parameters=True))}")
    say(f"static_graph {step(DDP(torch.nn.Linear(2, 2), static_graph=True))}")
    model = DDP(torch.nn.Linear(2, 2))
    with model.no_sync():
        step(model)
    say(f"no_sync {step(model)}")
    model = DDP(torch.nn.Linear(2, 2))
    model.register_comm_hook(None, allreduce_hook)
    say(f"hook {step(model)}")
    model = DDP(torch.nn.Linear(2, 2))
    with model.join():
        for _ in range(1 + rank):
            step(model)
    say("join")
    dist.destroy_process_group()


def waits(refused, served):
    """One rank asks where nobody listens, one listens in vain, one is silent, one opens a store."""
    which = os.environ["LOCAL_RANK"]
    if which == "0":
        setup(("localhost", refused), 1, 2)
    elif which == "1":
        setup(("localhost", served), 0, 2)
    elif which == "3":
        dist.TCPStore("localhost", int(refused), 2, False)
    else:
        import time

        time.sleep(600)


globals()[sys.argv[1]](*sys.argv[2:]) if __name__ == "__main__" else None
