"""PyTorch programs whose ranks wait for something that no recorder has: futures, threads, RPC,
meetings at a store.

torch_waits.py <how>: the last rank is at fault where one is. The healthy ones wait until the file
`seen` is in $OUT, which the test writes.
"""
import concurrent.futures
import os
import queue
import sys
import threading
import time

import torch
import torch.distributed as dist
from torch.distributed import rpc

HOW = sys.argv[1]
RANK = int(os.environ["RANK"])
SIZE = int(os.environ["WORLD_SIZE"])
ODD = SIZE - 1
IS_ODD = RANK == ODD
FOR_EVER = 1000


def step():
    dist.all_reduce(torch.ones(1024))


def poll():
    """Idles by intention."""
    while not os.path.exists(os.path.join(os.environ["OUT"], "seen")):
        time.sleep(0.2)


def never():
    time.sleep(FOR_EVER)


# --- A rank that waits for something of its own, beside others that idle


def future():
    mine = torch.futures.Future()
    threading.Thread(target=lambda: (poll(), mine.set_result(1))).start()
    mine.wait() if RANK == 0 else poll()


def pool():
    with concurrent.futures.ThreadPoolExecutor() as threads:
        threads.submit(poll).result() if RANK == 0 else poll()


def event():
    mine, results = threading.Event(), queue.Queue()
    threading.Thread(target=lambda: (poll(), mine.set(), results.put(1))).start()
    {0: mine.wait, 1: results.get}.get(RANK, poll)()


def after_send():
    """It has sent before, so that its wait may be for another one."""
    if RANK == 0:
        dist.send(torch.ones(8), dst=1)
    elif RANK == 1:
        dist.recv(torch.ones(8), src=0)
    future()


def evaluator():
    """The last rank is in no group with those that train."""
    trainers = dist.new_group(list(range(ODD)))
    if IS_ODD:
        return poll()
    end = torch.zeros(1)
    while not end.item():
        time.sleep(0.2)
        end = torch.tensor(float(os.path.exists(os.path.join(os.environ["OUT"], "seen"))))
        dist.all_reduce(end, group=trainers)


def rpc_long():
    with_rpc(poll)


def rpc_server():
    """The last rank serves, and waits in shutdown for ranks that call it all the time."""
    start_rpc()
    if not IS_ODD:
        while not os.path.exists(os.path.join(os.environ["OUT"], "seen")):
            rpc.rpc_sync(f"worker{ODD}", torch.add, args=(torch.ones(4), 1))
            time.sleep(0.05)
    rpc.shutdown()


# --- One that is at fault


def monitored_barrier():
    if not IS_ODD:
        dist.monitored_barrier()
    never()


def roots():
    dist.broadcast(torch.ones(1 << 22), src=1 if IS_ODD else 0)
    step()


def start_rpc():
    rpc.init_rpc(f"worker{RANK}", rank=RANK, world_size=SIZE)


def with_rpc(function):
    start_rpc()
    if RANK == 0:
        rpc.rpc_sync(f"worker{ODD}", function, timeout=0)
    rpc.shutdown()


def rpc_never():
    with_rpc(never)


def rpc_alone():
    """Without a process group."""
    with_rpc(never)


def rpc_shutdown():
    start_rpc()
    if IS_ODD:
        never()
    rpc.shutdown()


def saver():
    """A thread saves, and the main one waits for it."""
    if IS_ODD:
        concurrent.futures.ThreadPoolExecutor(thread_name_prefix="Saver").submit(never).result()
    step()


def no_member():
    """Beside a group that the rank at fault is not in."""
    dist.new_group([0, 1])
    if IS_ODD:
        never()
    step()


def main():
    if HOW != "rpc_alone":
        dist.init_process_group("gloo")
        for _ in range(5):
            step()
    globals()[HOW]()
    if dist.is_initialized():
        dist.destroy_process_group()


main()
