"""Trains a small model with muster.survive, under DDP or FSDP2, and leaves what each rank saw.

usage: survive_torch.py FOLDER STEPS [HOW…]

A rank waits in each step for FOLDER/go.STEP where the test has made FOLDER/hold.STEP. In FOLDER,
`at.ATTEMPT.RANK` holds the rank's pid and the step that it has begun last, `losses.RANK` a line
for each step of the newest attempt, `end.RANK` the checksum of its parameters and `traceback.RANK`
what a traceback looks like.

ill      processes of attempts 1 and 2 die as they join; on a GPU that of attempt 3 does as well.
unready  rank 1 of the first attempt dies as it is about to copy rank 0's parameters.
half     reduces the loss behind the update, not before; hold.1004 is before that of step 4.
damaged  rank 2 of the first attempt has another parameter from step 3 on.
slow     five steps a second, until the last is let go.
hsdp     two shards, with as many replicas as there are ranks for.
fsdp     a shard per rank, with a checkpoint of each in `saved.STEP.RANK`.
silent   over silent_backend.py.
cuda     on a GPU, over NCCL. All ranks may have the same.
scaled   by a GradScaler, whose last scale is in `scale.RANK`.
masked   what fails in a step, the program tells in its own words.

hold.2004 is before the update of step 4; so is hold.3004, behind which rank 3 fails.
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
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

import silent_backend
from muster import survive
from muster._links import ABORTABLE, ends

FOLDER, STEPS = sys.argv[1], int(sys.argv[2])
HOW = sys.argv[3:]
DEVICE = "cuda" if "cuda" in HOW else "cpu"
LAST = os.path.join(FOLDER, f"go.{STEPS - 1}")


def write(name, text):
    path = os.path.join(FOLDER, name)
    with open(path + ".part", "w") as file:
        file.write(text)
    os.rename(path + ".part", path)


def hold(job, step):
    attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
    write(f"at.{attempt}.{job.rank}", f"{os.getpid()} {step}")
    while is_held(step):
        time.sleep(0.005)


def is_held(step):
    return (os.path.exists(os.path.join(FOLDER, f"hold.{step}"))
            and not os.path.exists(os.path.join(FOLDER, f"go.{step}")))


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


def shard(module):
    ranks = dist.get_world_size()
    if "hsdp" in HOW:
        mesh = init_device_mesh(DEVICE, (ranks // 2, 2), mesh_dim_names=("replicate", "shard"))
    else:
        mesh = init_device_mesh(DEVICE, (ranks,))
    fully_shard(module[0], mesh=mesh)
    fully_shard(module, mesh=mesh)


def local(tensor):
    return tensor.detach().to_local() if isinstance(tensor, DTensor) else tensor.detach()


def save(step, job):
    optimizer, scheduler = job.stateful
    state = {"module": [local(value) for value in job.model.state_dict().values()],
             "optimizer": [{key: local(value) for key, value in optimizer.state[parameter].items()}
                           for parameter in job.model.parameters()],
             "scheduler": scheduler.state_dict()}
    path = os.path.join(FOLDER, f"saved.{step}.{job.rank}")
    torch.save(state, path + ".part")
    os.rename(path + ".part", path)


def newest_checkpoint():
    steps = [int(name.split(".")[1]) for name in os.listdir(FOLDER) if name.endswith(".0")
             and name.startswith("saved.")]
    ranks = range(int(os.environ["WORLD_SIZE"]))
    return max((step for step in steps if all(
        os.path.exists(os.path.join(FOLDER, f"saved.{step}.{rank}")) for rank in ranks)), default=0)


def load(step, module, optimizer, scheduler):
    state = torch.load(os.path.join(FOLDER, f"saved.{step}.{dist.get_rank()}"))
    with torch.no_grad():
        for value, its_saved in zip(module.state_dict().values(), state["module"]):
            local(value).copy_(its_saved)
    for parameter, its_saved in zip(module.parameters(), state["optimizer"]):
        optimizer.state[parameter] = {
            key: DTensor.from_local(value, parameter.device_mesh, parameter.placements,
                                    shape=parameter.shape, stride=parameter.stride())
            if value.dim() else value for key, value in its_saved.items()}
    scheduler.load_state_dict(state["scheduler"])
    for group, rate in zip(optimizer.param_groups, scheduler.get_last_lr()):
        group["lr"] = rate


def tell_of_rounds():
    """`awaits.ROUND.RANK` as a survivor has left a round, and `joins.ROUND.RANK` as any process is
    about to join one, with the pid. Where there is a `hold.joins.PID`, it stays so."""
    next_round, init_process_group = survive.muster_job.next_round, dist.init_process_group

    def awaits(patience):
        write(f"awaits.{os.environ['MUSTER_ROUND']}.{os.environ['RANK']}", str(os.getpid()))
        return next_round(patience)

    def joins(*arguments):
        write(f"joins.{os.environ['MUSTER_ROUND']}.{os.environ['RANK']}", str(os.getpid()))
        while os.path.exists(os.path.join(FOLDER, f"hold.joins.{os.getpid()}")):
            time.sleep(0.005)
        return init_process_group(*arguments)

    survive.muster_job.next_round, dist.init_process_group = awaits, joins


def listening_ports():
    return {port for port, peer in ends() if peer is None}


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def die_once_there_are_listeners_but(before):
    while listening_ports() <= before:
        pass
    die()


def die_behind(before):
    threading.Thread(target=die_once_there_are_listeners_but, args=(before,)).start()


def die_as_nccl_connects():
    found = survive.Links.found

    def found_and_dies(self, *ports):
        found(self, *ports)
        die_behind(listening_ports())

    survive.Links.found = found_and_dies


def main():
    attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
    if "ill" in HOW and attempt in "12":
        time.sleep(0.5)  # for the others to wait for this one
        if attempt == "1":
            die()
        die_behind(listening_ports())
    if "ill" in HOW and "cuda" in HOW and attempt == "3":
        die_as_nccl_connects()
    tell_of_rounds()
    torch.set_num_threads(1)
    if "silent" in HOW:
        silent_backend.register()
        ABORTABLE.add("silent")
    if "cuda" in HOW:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        os.environ["NCCL_HOSTID"] = str(os.getpid())  # NCCL refuses a GPU twice on one host
    is_sharded = "hsdp" in HOW or "fsdp" in HOW
    saved = newest_checkpoint()

    def build():
        torch.manual_seed(int(attempt))  # the replacement has others
        module = torch.nn.Sequential(torch.nn.Linear(16, 65), torch.nn.BatchNorm1d(65),
                                     torch.nn.Tanh(), torch.nn.Linear(65, 1)).to(DEVICE)
        if is_sharded:
            shard(module)
        optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, max(10, STEPS // 20), 0.5)
        if "scaled" in HOW:
            return module, optimizer, scheduler, torch.amp.GradScaler(DEVICE)
        if saved:
            load(saved, module, optimizer, scheduler)
        return module, optimizer, scheduler

    if "unready" in HOW and (attempt, os.environ["RANK"]) == ("0", "1"):
        torch.nn.parallel.DistributedDataParallel = lambda *_, **__: die()
    if is_sharded:
        job = survive.Job(build, step=saved)
    else:
        job = survive.Job(*build(), backend="silent" if "silent" in HOW else None)

    def train(step):
        if "damaged" in HOW and (attempt, job.rank, step) == ("0", 2, 3):
            local(next(job.model.parameters())).add_(1)
        hold(job, step)
        if "slow" in HOW and job.rank == step % job.size and not os.path.exists(LAST):
            time.sleep(0.2)
        draw = torch.Generator().manual_seed(1000 * step + job.rank)
        x = torch.randn(8, 16, generator=draw).to(DEVICE)
        optimizer, scheduler, *scalers = job.stateful
        loss = ((job.model(x) - x.sum(1, keepdim=True)) ** 2).mean()
        optimizer.zero_grad()
        (scalers[0].scale(loss) if scalers else loss).backward()
        if scalers:
            scalers[0].unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(job.model.parameters(), 20.0)
        total = loss.detach().clone()
        if "half" not in HOW:
            dist.all_reduce(total)
        if is_held(step + 2000):
            hold(job, step + 2000)
        if is_held(step + 3000):
            hold(job, step + 3000)
            if job.rank == 3:
                dist.recv(torch.zeros(1, device=DEVICE), src=1)  # which is dead
        if scalers:
            scalers[0].step(optimizer)
            scalers[0].update()
        else:
            optimizer.step()
        scheduler.step()
        if "half" in HOW:  # not as the module asks for
            hold(job, step + 1000)
            dist.all_reduce(total)
        return total

    def train_masked(step):
        try:
            return train(step)
        except RuntimeError:
            raise RuntimeError("the step has failed") from None

    losses = {}
    for step, loss in job.run(train_masked if "masked" in HOW else train, STEPS):
        losses[step] = loss.item()
        tell_what_is_held(job)
        if "fsdp" in HOW and step % 4 == 3:
            save(step + 1, job)
    write(f"losses.{job.rank}", "".join(f"{step} {loss!r}\n" for step, loss in losses.items()))
    sum_of_all = 0
    for parameter in job.model.parameters():
        sum_of_all = zlib.crc32(local(parameter).cpu().numpy().tobytes(), sum_of_all)
    write(f"end.{job.rank}", str(sum_of_all))
    if "scaled" in HOW:
        write(f"scale.{job.rank}", str(job.stateful[-1].get_scale()))
    with contextlib.redirect_stderr(io.StringIO()) as printed:
        sys.excepthook(ValueError, ValueError("a fault"), None)
    write(f"traceback.{job.rank}", printed.getvalue())
    dist.destroy_process_group()


main()
