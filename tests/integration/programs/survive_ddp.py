"""Trains a small model under DDP with muster.survive, and leaves what each rank saw.

usage: survive_ddp.py FOLDER STEPS [half|slow|ill]

A rank waits in each step for FOLDER/go.STEP where the test has made FOLDER/hold.STEP. In FOLDER,
`at.ATTEMPT.RANK` holds the rank's pid and the step that it has begun last, `losses.RANK` a line
for each step of the newest attempt, `end.RANK` the checksum of its parameters and `traceback.RANK`
what a traceback looks like. `ill`: processes of attempts 1 and 2 die as they join. `slow`: five
steps a second, until the last is let go.
"""
import contextlib
import io
import os
import signal
import sys
import threading
import time
import zlib

import torch
import torch.distributed as dist

from muster import survive

FOLDER, STEPS = sys.argv[1], int(sys.argv[2])
HOW = sys.argv[3] if len(sys.argv) > 3 else ""
LAST = os.path.join(FOLDER, f"go.{STEPS - 1}")


def write(name, text):
    path = os.path.join(FOLDER, name)
    with open(path + ".part", "w") as file:
        file.write(text)
    os.rename(path + ".part", path)


def hold(job, step):
    attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
    write(f"at.{attempt}.{job.rank}", f"{os.getpid()} {step}")
    held = os.path.join(FOLDER, f"hold.{step}")
    while os.path.exists(held) and not os.path.exists(os.path.join(FOLDER, f"go.{step}")):
        time.sleep(0.005)


def tell_what_is_held(job, told=set()):
    """Once in each attempt, as its first step ends: `held.ATTEMPT.RANK` has the pid, and how many
    descriptors, threads and KiB of resident memory the process has."""
    attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
    if attempt in told:
        return
    told.add(attempt)
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[1])
    held = (os.getpid(), len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")),
            pages * os.sysconf("SC_PAGESIZE") >> 10)
    write(f"held.{attempt}.{job.rank}", " ".join(map(str, held)))


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def die_once_gloo_listens(before):
    while survive._listening_ports() == before:
        pass
    die()


def main():
    attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
    if HOW == "ill" and attempt in "12":
        time.sleep(0.5)  # for the others to wait for this one
        if attempt == "1":
            die()
        before = survive._listening_ports()
        threading.Thread(target=die_once_gloo_listens, args=(before,)).start()
    torch.set_num_threads(1)
    torch.manual_seed(int(os.environ["TORCHELASTIC_RESTART_COUNT"]))  # the replacement has others
    module = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.BatchNorm1d(64), torch.nn.Tanh(),
                                 torch.nn.Linear(64, 1))
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, max(10, STEPS // 20), 0.5)
    job = survive.Job(module, optimizer, scheduler)

    def train(step):
        hold(job, step)
        if HOW == "slow" and job.rank == step % job.size and not os.path.exists(LAST):
            time.sleep(0.2)
        draw = torch.Generator().manual_seed(1000 * step + job.rank)
        x = torch.randn(8, 16, generator=draw)
        loss = ((job.model(x) - x.sum(1, keepdim=True)) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        total = loss.detach().clone()
        if HOW != "half":
            dist.all_reduce(total)
        optimizer.step()
        scheduler.step()
        if HOW == "half":  # not as the module asks for
            hold(job, step + 1000)
            dist.all_reduce(total)
        return total

    losses = {}
    for step, loss in job.run(train, STEPS):
        losses[step] = loss.item()
        tell_what_is_held(job)
    write(f"losses.{job.rank}", "".join(f"{step} {loss!r}\n" for step, loss in losses.items()))
    sum_of_all = 0
    for parameter in module.parameters():
        sum_of_all = zlib.crc32(parameter.detach().numpy().tobytes(), sum_of_all)
    write(f"end.{job.rank}", str(sum_of_all))
    with contextlib.redirect_stderr(io.StringIO()) as printed:
        sys.excepthook(ValueError, ValueError("a fault"), None)
    write(f"traceback.{job.rank}", printed.getvalue())
    dist.destroy_process_group()


main()
