"""PyTorch programs over any number of ranks that wait for something that no recorder has: futures,
threads, RPC, keys of a store, the end of a job.

torch_waits.py <how>: the last rank is at fault where one is. The healthy ones wait until the file
`seen` is in $OUT, which the test writes; with $SECONDS instead, for so long.
"""
import atexit
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
END = time.monotonic() + float(os.environ.get("SECONDS", "inf"))


def step():
    dist.all_reduce(torch.ones(1024))


def is_seen():
    return time.monotonic() > END or os.path.exists(os.path.join(os.environ["OUT"], "seen"))


def poll():
    """Idles by intention."""
    while not is_seen():
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
        end = torch.tensor(float(is_seen()))
        dist.all_reduce(end, op=dist.ReduceOp.MAX, group=trainers)


def rpc_long():
    with_rpc(poll)


def rpc_server():
    """The last rank serves, and waits in shutdown for ranks that call it all the time."""
    start_rpc()
    if not IS_ODD:
        while not is_seen():
            rpc.rpc_sync(f"worker{ODD}", torch.add, args=(torch.ones(4), 1))
            time.sleep(0.05)
    rpc.shutdown()


def store():
    return dist.distributed_c10d._get_default_store()


def key_late():
    """The first rank sets it when it is done with something."""
    if RANK == 0:
        poll()
        store().set("done", "1")
    store().wait(["done"])
    step()


def saver_works():
    with concurrent.futures.ThreadPoolExecutor() as threads:
        while not all(threads.map(lambda _: time.sleep(1) or is_seen(), range(2))):
            pass


def end_late():
    """It has something to do when the others are through."""
    dist.destroy_process_group()
    if IS_ODD:
        poll()


# --- One that is at fault


def monitored_barrier():
    if not IS_ODD:
        dist.monitored_barrier()
    never()


def monitored_pair():
    pair = dist.new_group([0, ODD])
    if RANK in (0, ODD):
        dist.all_reduce(torch.ones(8), group=pair)
    if RANK == 0:
        dist.monitored_barrier(pair)
    never()


def monitored_all():
    """The second one, whose first rank hears of all others before it says who is missing."""
    dist.monitored_barrier()
    if not IS_ODD:
        dist.monitored_barrier(wait_all_ranks=True)
    never()


# gloo's trees let rank 1 as the other root pass where there are more than three ranks.
def roots():
    dist.broadcast(torch.ones(1 << 22), src=ODD if IS_ODD else 0)
    step()


def roots_reduce():
    dist.reduce(torch.ones(1 << 22), dst=ODD if IS_ODD else 0)
    step()


def roots_gather():
    root, ones = ODD if IS_ODD else 0, torch.ones(1 << 20)
    dist.gather(ones, [ones.clone() for _ in range(SIZE)] if RANK == root else None, dst=root)
    step()


def mesh(skips=False):
    """A group of each column and of each row; the last rank uses the second twice."""
    both = dist.device_mesh.init_device_mesh("cpu", (2, SIZE // 2))
    groups = [both.get_group(dimension) for dimension in range(2)]
    for group in groups:
        dist.all_reduce(torch.ones(8), group=group)
    if IS_ODD and skips:
        never()
    for group in groups[1:] * 2 if IS_ODD else groups:
        dist.all_reduce(torch.ones(8), group=group)
    step()


def mesh_skips():
    mesh(skips=True)


def mesh_rows():
    """The last rank uses the first twice, and the second not at all."""
    both = dist.device_mesh.init_device_mesh("cpu", (2, SIZE // 2))
    groups = [both.get_group(dimension) for dimension in range(2)]
    for group in groups[:1] * 2 if IS_ODD else groups:
        dist.all_reduce(torch.ones(8), group=group)
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


def rpc_moves_on():
    """The main thread of the one that does not answer goes on."""
    start_rpc()
    if RANK == 0:
        rpc.rpc_sync(f"worker{ODD}", never, timeout=0)
    step()
    rpc.shutdown()


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


def saver_group():
    """Threads save together, without the last rank's."""
    savers = dist.new_group(list(range(SIZE)))

    def save():
        never() if IS_ODD else dist.all_reduce(torch.ones(8), group=savers)

    concurrent.futures.ThreadPoolExecutor(thread_name_prefix="Saver").submit(save).result()


def loss():
    """It is computed in a thread, which waits for a lock."""
    lock, results = threading.Lock(), queue.Queue()
    if IS_ODD:
        lock.acquire()

    def compute():
        with lock:
            results.put(1)

    threading.Thread(target=compute, name="Loss").start()
    results.get()
    step()


def key():
    if IS_ODD:
        store().get("done")
    step()


def key_below():
    """Below a prefix, as libraries keep theirs."""
    if IS_ODD:
        dist.PrefixStore("mine", store()).wait(["done"])
    step()


def own_store():
    """Of the program, at a port of its own; all ranks but the first wait for two keys."""
    own = dist.FileStore(os.path.join(os.environ["OUT"], "store-%d" % SIZE), SIZE)
    own.wait([f"part {number}" for number in range(2)]) if RANK > 0 else never()


def own_receive():
    """By a call of its own; who sends is not known."""
    if IS_ODD:
        work = dist.irecv(torch.ones(8), src=0)
        work.wait()
    step()


def hang_in_destroy():
    """As a back end that does not end: no frame of the program is below PyTorch's."""
    dist.ProcessGroup.shutdown = queue.Queue().get
    dist.destroy_process_group()


def end_destroy():
    if IS_ODD:
        hang_in_destroy()


def end_elsewhere():
    if IS_ODD:
        never()
    hang_in_destroy()


def end_atexit():
    if IS_ODD:
        atexit.register(never)


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
