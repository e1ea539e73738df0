"""A training program of PyTorch that knows nothing of Muster, and hangs in one of many ways.

torch_hangs.py <how>: rank 1 is at fault where one rank is; every attempt after the first succeeds.
"""
import os
import signal
import sys
import threading
import time

import torch
import torch.distributed as dist

HOW = sys.argv[1]
RANK = int(os.environ["RANK"])
IS_FIRST = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
STEPS = 5
FOR_EVER = 1000


def step(value=1.0):
    gradient = torch.full((1024,), value)
    dist.all_reduce(gradient)


class Hangs(torch.utils.data.Dataset):
    def __len__(self):
        return 2

    def __getitem__(self, index):
        time.sleep(FOR_EVER)


def hang_of_a_child():
    for _ in torch.utils.data.DataLoader(Hangs(), num_workers=1):
        pass


def lock_for_ever():
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def hold_python():
    import ctypes

    ctypes.PyDLL(None).sleep(FOR_EVER)


def spin():
    while True:
        pass


def next_batch():
    if HOW == "sleeps":
        time.sleep(FOR_EVER)
    elif HOW == "child":
        hang_of_a_child()
    elif HOW == "spins":
        spin()
    elif HOW == "holds_python":
        hold_python()
    elif HOW == "lock":
        lock_for_ever()
    elif HOW == "stops":
        os.kill(os.getpid(), signal.SIGSTOP)


def hang(group_a, group_b):
    if HOW == "skips":
        if RANK == 0:
            step()
        else:
            time.sleep(FOR_EVER)
    elif HOW == "operation":
        if RANK == 0:
            step()
        else:
            dist.broadcast(torch.ones(8), src=1)
    elif HOW == "size":
        try:
            dist.all_reduce(torch.ones(1024 if RANK == 0 else 2048))
        except RuntimeError:
            time.sleep(FOR_EVER)
    elif HOW == "size_ends":
        dist.all_reduce(torch.ones(1024 if RANK == 0 else 2048))
    elif HOW == "runs_out":
        if RANK == 0:
            step()
        else:
            dist.barrier()
    elif HOW == "orders":
        ones = torch.ones(8)
        for group in (group_a, group_b) if RANK == 0 else (group_b, group_a):
            dist.all_reduce(ones, group=group)
    elif HOW == "subgroup":
        if RANK == 0:
            dist.all_reduce(torch.ones(8), group=group_a)
        else:
            time.sleep(FOR_EVER)
    elif HOW == "new_group":
        if RANK == 0:
            dist.new_group([0, 1])
        else:
            time.sleep(FOR_EVER)
    elif HOW == "recv":
        if RANK == 0:
            time.sleep(FOR_EVER)
        else:
            dist.recv(torch.ones(8), src=0)
    elif HOW == "pipeline":
        # Rank 0 has not sent what rank 1 waits for, and goes on.
        if RANK == 0:
            step()
        else:
            dist.irecv(torch.ones(8), src=0).wait()
    elif HOW == "store_barrier":
        if RANK == 0:
            address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
            store = dist.TCPStore(*address, is_master=False, wait_for_workers=False)
            store.barrier("between epochs", dist.get_world_size())
        else:
            time.sleep(FOR_EVER)
    elif HOW == "checkpoint":
        if RANK == 0:
            time.sleep(25)
    elif RANK == 1:
        next_batch()


def main():
    if HOW == "never_comes" and RANK == 1 and IS_FIRST:
        time.sleep(FOR_EVER)
    if HOW == "comes_late" and RANK == 1:
        time.sleep(90)
    dist.init_process_group("gloo")
    groups = [dist.new_group(list(range(dist.get_world_size()))) for _ in range(2)]
    if HOW == "first_step" and RANK == 1:
        time.sleep(20)
    for number in range(STEPS):
        step()
        if HOW == "straggler" and RANK == 1:
            time.sleep(7)
    if IS_FIRST:
        hang(*groups)
    step()
    dist.destroy_process_group()


main()
