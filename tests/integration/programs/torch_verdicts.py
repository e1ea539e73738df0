"""PyTorch programs over any number of ranks that hang, each with one rank at fault, and their
healthy twins, which only take long.

torch_verdicts.py <how>: the last rank is at fault. What waits for a file of the test's does so for
$SECONDS where those are given.
"""
import os
import signal
import sys
import time

import torch
import torch.distributed as dist

HOW = sys.argv[1]
RANK = int(os.environ["RANK"])
SIZE = int(os.environ["WORLD_SIZE"])
ODD = SIZE - 1
IS_ODD = RANK == ODD
STEPS = 5
FOR_EVER = 1000
END = time.monotonic() + float(os.environ.get("SECONDS", "inf"))


def step(elements=1024):
    dist.all_reduce(torch.ones(elements))


def fetch():
    time.sleep(FOR_EVER)


def operation():
    if IS_ODD:
        dist.broadcast(torch.ones(8), src=ODD)
    step()


def size():
    try:
        step(2048 if IS_ODD else 1024)
    except RuntimeError:
        time.sleep(FOR_EVER)


def skips():
    if not IS_ODD:
        step()
    fetch()


def new_group():
    if not IS_ODD:
        dist.new_group(list(range(SIZE)))
    step()


def receive():
    """The rank before the last sends to it, and it goes on to the step's all_reduce."""
    if RANK == ODD - 1:
        dist.send(torch.ones(8), dst=ODD)
    step()


def subgroup():
    """The last rank is missing from a group of the last two; the others wait in the world."""
    pair = dist.new_group([ODD - 1, ODD])
    if IS_ODD:
        fetch()
    if RANK == ODD - 1:
        dist.all_reduce(torch.ones(8), group=pair)
    step()


def orders():
    groups = [dist.new_group(list(range(SIZE))) for _ in range(2)]
    for group in reversed(groups) if IS_ODD else groups:
        dist.all_reduce(torch.ones(8), group=group)


def stops():
    if IS_ODD:
        os.kill(os.getpid(), signal.SIGSTOP)
    step()


def first():
    """It has not called an operation yet."""
    if IS_ODD:
        fetch()
    step()


def slow():
    """It comes last to every step, by more than the others are apart, however busy the machine.

    It goes on until the test has seen what is said of it, since nodes that answer late cannot tell
    who came last, and then for some more windows, in which nothing must be said again.
    """
    number, end = 0, None
    while end is None or number < end:
        if IS_ODD:
            came = [came_at(number, rank) for rank in range(SIZE) if rank != ODD]
            time.sleep(max(0.4, 4 * (max(came) - min(came))))
        else:
            with open(mark(number, RANK) + ".new", "w") as file:
                file.write(repr(time.monotonic()))
            os.rename(mark(number, RANK) + ".new", mark(number, RANK))
        unseen = torch.ones(1)
        if has_test("seen"):
            unseen.zero_()
        dist.all_reduce(unseen, op=dist.ReduceOp.MIN)
        number += 1
        if end is None and unseen.item() == 0:
            end = number + 50


def mark(number, rank):
    return os.path.join(os.environ["OUT"], f"{HOW}-{SIZE}-{number}-{rank}")


def has_test(said):
    """Whether the test has written this file."""
    return time.monotonic() > END or os.path.exists(os.path.join(os.environ["OUT"], said))


def came_at(number, rank):
    """When the rank has come to the step, for which it is waited."""
    while not os.path.exists(mark(number, rank)):
        time.sleep(0.005)
    with open(mark(number, rank)) as file:
        return float(file.read())


# --- A loop that one rank leaves early


def model():
    torch.manual_seed(0)
    return torch.nn.Linear(8, 8)


def accelerate():
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    net = model()
    net, optimizer = accelerator.prepare(net, torch.optim.SGD(net.parameters(), lr=0.1))
    for number in range(STEPS):
        if IS_ODD and number == 3:
            break
        accelerator.backward(net(torch.ones(2, 8)).sum())
        optimizer.step()
    accelerator.wait_for_everyone()


def trainer():
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = model()

        def forward(self, x, labels=None):
            return {"loss": self.linear(x).sum()}

    class Leaves(TrainerCallback):
        def on_step_end(self, args, state, control, **more):
            control.should_training_stop = IS_ODD and state.global_step == 3

    data = [{"x": torch.ones(8), "labels": torch.ones(1)} for _ in range(64 * SIZE)]
    arguments = TrainingArguments(
        output_dir=os.environ["OUT"], use_cpu=True, report_to=[], save_strategy="no", max_steps=8,
        per_device_train_batch_size=2, disable_tqdm=True,
    )
    Trainer(Net(), arguments, train_dataset=data, callbacks=[Leaves()]).train()
    dist.barrier()


def lightning():
    from lightning.fabric import Fabric

    fabric = Fabric(accelerator="cpu", strategy="ddp", devices=SIZE)
    fabric.launch()
    net = model()
    net, optimizer = fabric.setup(net, torch.optim.SGD(net.parameters(), lr=0.1))
    for number in range(STEPS):
        if IS_ODD and number == 3:
            break
        fabric.backward(net(torch.ones(2, 8)).sum())
        optimizer.step()
    fabric.barrier()


def fsdp():
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.device_mesh import init_device_mesh

    net = torch.nn.Sequential(model(), model())
    mesh = init_device_mesh("cpu", (SIZE,))
    for layer in net:
        fully_shard(layer, mesh=mesh)
    fully_shard(net, mesh=mesh)
    for number in range(STEPS):
        if IS_ODD and number == 3:
            break
        net(torch.ones(2, 8)).sum().backward()
    dist.barrier()


def quiet():
    """All of them sleep, and no operation is pending, until the test has seen what is said."""
    while not has_test("seen"):
        time.sleep(0.5)


# --- Files that do not come for a while


def read_data():
    with open(os.environ["DATA"]) as file:
        return torch.tensor(float(file.read()))


def data():
    if IS_ODD:
        read_data()
    step()


def loader():
    """A process that loads the last rank's data waits for them, and it for that process."""

    class Files(torch.utils.data.Dataset):
        def __len__(self):
            return 1

        def __getitem__(self, index):
            return read_data()

    if IS_ODD:
        next(iter(torch.utils.data.DataLoader(Files(), num_workers=1)))
    step()


# --- What is well, and takes long


def compute(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sum(range(10000))


def compile_a_part(seconds):
    compute(0)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sum(range(10000))


def checkpoint():
    """The last rank computes and writes for 15 seconds while the others wait in a barrier."""
    if IS_ODD:
        with open(os.path.join(os.environ["OUT"], "checkpoint"), "wb") as file:
            end = time.monotonic() + 16
            while time.monotonic() < end:
                file.seek(0)
                file.write(os.urandom(1 << 20))
    dist.barrier()


def first_step():
    """Nearly the minute for which nothing is said of a rank that computes in several functions."""
    if IS_ODD:
        for _ in range(110):
            compute(0.25)
            compile_a_part(0.25)
    step()


def short_pause():
    for _ in range(3):
        time.sleep(2 if IS_ODD else 0)
        step()


def long_pause():
    """The last rank sleeps until the test has seen that this was noticed, and then they all go on
    until it has seen that as well.
    """
    while IS_ODD and not has_test("noticed"):
        time.sleep(0.1)
    have_all = 0
    while not have_all:
        time.sleep(0.1)
        mine = torch.full((1024,), float(has_test("seen_going_on")))
        dist.all_reduce(mine, op=dist.ReduceOp.MIN)
        have_all = mine[0].item()


def uneven():
    """Ranks with more data than others, which join makes up for."""
    from torch.distributed.algorithms.join import Join

    net = torch.nn.parallel.DistributedDataParallel(model())
    with Join([net]):
        for _ in range(2 + RANK):
            time.sleep(0.5)
            net(torch.ones(2, 8)).sum().backward()


INITIALIZES_ITSELF = ("accelerate", "trainer", "lightning")


def main():
    if HOW not in INITIALIZES_ITSELF:
        dist.init_process_group("gloo")
    if HOW not in INITIALIZES_ITSELF + ("first", "first_step", "fsdp"):
        for _ in range(STEPS):
            step()
    globals()[HOW]()
    if dist.is_initialized():
        dist.destroy_process_group()


main()
