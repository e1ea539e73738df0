#!/usr/bin/env python3
"""How soon ranks of PyTorch go on after the `kill -9` of one of them, all on one node: from the
kill until the last of them has done its first step (survive, torchft) or its first all-reduce.

survive    muster --warm=auto and muster.survive: the other ranks keep their processes.
torchft    torchft's DDP: a lighthouse, and a torchrun for each rank, a replica group of its own.
  without  the same jobs, until the first step that the others commit without the dead rank.
warm       muster --warm=auto: workers are forked by a process that has imported what they import.
cold       muster: new processes import for themselves.
torchrun   PyTorch's own launcher, with its default interval of looks.

The Trainers of transformers and Lightning follow, warm and cold, to the end of their first step.

With --cuda survive, warm, cold and torchrun alone, over NCCL; ranks may share a GPU.

Ways alternate; each sample is a job of its own. PYTHON is an interpreter with PyTorch; the row of
torchft is left out where it has none. A peer's job that does not come back is counted; one of ours
ends the program.
"""
import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import tempfile
import time

TIMEOUT_S = 120
WAYS = ("survive", "torchft", "warm", "cold", "torchrun")
PEERS = ("torchft", "torchrun")
TRAINERS = ("transformers warm", "transformers cold", "Lightning warm", "Lightning cold")
HERE = os.path.dirname(os.path.abspath(__file__))
# The modules lie in tests/gpu's bundle, else in this tree.
MODULES = next(filter(os.path.isdir, (os.path.join(HERE, "python"),
                                      os.path.join(HERE, "..", "..", "deploy", "python"))))
# tell(): at the end of a rank's first step with that many ranks in a round (an attempt, a quorum).
TELL = """
import os, sys, time
told = set()
def tell(a_round, rank, size):
    if (a_round, size) not in told:
        told.add((a_round, size))
        with open(os.path.join(sys.argv[1], "told.%d" % os.getpid()), "a") as file:
            file.write("%d %d %d %r\\n" % (a_round, rank, size, time.monotonic()))
def tell_of_attempt():
    tell(*(int(os.environ[name]) for name in ("TORCHELASTIC_RESTART_COUNT", "RANK", "WORLD_SIZE")))
"""
DEVICE = """
device = os.environ["BENCH_DEVICE"]
if device == "cuda":
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    os.environ["NCCL_HOSTID"] = str(os.getpid())  # NCCL refuses a GPU twice on one host
"""
RANK = TELL + """
import torch, torch.distributed as dist
""" + DEVICE + """
dist.init_process_group("nccl" if device == "cuda" else "gloo")
dist.all_reduce(torch.ones(4, device=device))
if device == "cuda":
    torch.cuda.synchronize()
tell_of_attempt()
time.sleep(600)
"""
TRAINER_RANK = TELL + """
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments
class Tells(TrainerCallback):
    def on_step_end(self, *args, **kwargs):
        tell_of_attempt()
config = GPT2Config(vocab_size=64, n_positions=16, n_embd=32, n_layer=2, n_head=2)
rows = [{"input_ids": row, "labels": row} for row in torch.arange(1024).reshape(64, 16) % 64]
arguments = TrainingArguments(sys.argv[1], max_steps=1000000, report_to=[], save_strategy="no",
                              use_cpu=True, disable_tqdm=True)
Trainer(GPT2LMHeadModel(config), arguments, train_dataset=rows, callbacks=[Tells()]).train()
"""
LIGHTNING_RANK = TELL + """
import lightning
from lightning.pytorch.demos.boring_classes import BoringModel
class Model(BoringModel):
    def on_train_batch_end(self, *args):
        tell_of_attempt()
lightning.Trainer(accelerator="cpu", devices=int(os.environ["LOCAL_WORLD_SIZE"]), strategy="ddp",
                  max_steps=-1, max_epochs=-1, logger=False, limit_val_batches=0,
                  enable_progress_bar=False, enable_checkpointing=False).fit(Model())
"""
MODEL = """
import torch, torch.distributed as dist
torch.set_num_threads(1)
""" + DEVICE + """
module = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.Tanh(), torch.nn.Linear(256, 1))
module.to(device)
optimizer = torch.optim.AdamW(module.parameters())
"""
SURVIVING_RANK = TELL + MODEL + """
from muster import survive
job = survive.Job(module, optimizer)
def train(step):
    time.sleep(0.002)
    optimizer.zero_grad()
    job.model(torch.randn(16, 64, device=device)).square().mean().backward()
    optimizer.step()
for step, _ in job.run(train, 1 << 30):
    tell(int(os.environ["TORCHELASTIC_RESTART_COUNT"]), job.rank, job.size)
"""
# The time-outs are those of torchft's own example and README.
LIGHTHOUSE = """
import time
from torchft.coordination import LighthouseServer
server = LighthouseServer(bind="[::]:0", min_replicas=1, join_timeout_ms=10000, quorum_tick_ms=100)
print(server.address(), flush=True)
time.sleep(600)
"""
TORCHFT_RANK = TELL + MODEL + """
from datetime import timedelta
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo
def save():
    return {"module": module.state_dict(), "optimizer": optimizer.state_dict()}
def load(state):
    module.load_state_dict(state["module"])
    optimizer.load_state_dict(state["optimizer"])
manager = Manager(pg=ProcessGroupGloo(timeout=timedelta(seconds=5)), min_replica_size=1,
                  load_state_dict=load, state_dict=save, timeout=timedelta(seconds=10),
                  replica_id="bench_" + os.environ["REPLICA_GROUP_ID"])
model = DistributedDataParallel(manager, module)
updates = Optimizer(manager, optimizer)
while True:
    time.sleep(0.002)
    before = manager.current_step()
    updates.zero_grad()
    model(torch.randn(16, 64)).square().mean().backward()
    updates.step()
    if manager.current_step() > before:
        tell(manager._quorum_id, int(os.environ["REPLICA_GROUP_ID"]), manager.num_participants())
"""
PROGRAMS = {"survive": SURVIVING_RANK, "torchft": TORCHFT_RANK, "transformers": TRAINER_RANK,
            "Lightning": LIGHTNING_RANK}


class NotBack(Exception):
    """A job has ended, or does not get on."""


class Told:
    """What ranks have told, newest last: (round, rank, size, time, pid)."""

    def __init__(self, home):
        self._home = home

    def read(self):
        lines = []
        for name in os.listdir(self._home):
            if name.startswith("told."):
                with open(os.path.join(self._home, name)) as file:
                    text = file.read()
                for line in text[: text.rfind("\n") + 1].splitlines():
                    a_round, rank, size, when = line.split()
                    lines.append((int(a_round), int(rank), int(size), float(when),
                                  int(name.split(".")[1])))
        return sorted(lines, key=lambda line: line[3])

    def complete(self, ranks, since):
        """The pid of the last rank and the time of the first round that all `ranks` were in."""
        lines = [line for line in self.read() if line[3] > since and line[2] == ranks]
        for a_round in sorted({line[0] for line in lines}):
            of_round = {line[1]: line for line in lines if line[0] == a_round}
            if len(of_round) == ranks:
                return of_round[ranks - 1][4], max(line[3] for line in of_round.values())
        return None

    def first_smaller(self, ranks, since):
        return min((line[3] for line in self.read() if line[3] > since and line[2] < ranks),
                   default=None)


def wait_for(condition, jobs, what, log):
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        found = condition()
        if found:
            return found
        if any(job.poll() is not None for job in jobs) or time.monotonic() > deadline:
            with open(log) as file:
                raise NotBack(f"the job has ended, or does not get on: {what}\n{file.read()}")
        time.sleep(0.005)


def uses_warm(way):
    return way == "survive" or way.endswith("warm")


def commands(arguments, way, script, home, environment, stack):
    """Of each program of the job: its command, and the variables that it gets beside the others."""
    rest = ["--max_restarts=1", script, home]
    torchrun = [arguments.python, "-m", "torch.distributed.run", "--rdzv-backend=c10d",
                "--rdzv-endpoint=localhost:0"]
    if way == "torchft":
        lighthouse = stack.enter_context(subprocess.Popen(
            [arguments.python, "-c", LIGHTHOUSE], stdout=subprocess.PIPE, text=True,
            env=environment))
        stack.callback(lighthouse.terminate)
        address = lighthouse.stdout.readline().strip()
        return [(torchrun + ["--nproc_per_node=1"] + rest,
                 {"TORCHFT_LIGHTHOUSE": address, "REPLICA_GROUP_ID": str(group)})
                for group in range(arguments.ranks)]
    rest.insert(0, f"--nproc_per_node={arguments.ranks}")
    if way == "torchrun":
        return [(torchrun + rest, {})]
    options = ["--warm=auto"] if uses_warm(way) else []
    return [([arguments.muster, "run"] + options + rest, {})]


def measure(arguments, way):
    """Seconds by row."""
    with tempfile.TemporaryDirectory() as home, contextlib.ExitStack() as stack:
        script, log = os.path.join(home, "rank.py"), os.path.join(home, "log")
        with open(script, "w") as file:
            file.write(PROGRAMS.get(way.split()[0], RANK))
        environment = dict(os.environ, PYTHON_EXEC=arguments.python, GLOO_SOCKET_IFNAME="lo",
                           OMP_NUM_THREADS="1", PYTHONPATH=MODULES, PYTHONDONTWRITEBYTECODE="1",
                           RUST_LOG="error", BENCH_DEVICE="cuda" if arguments.cuda else "cpu")
        if arguments.cuda:
            environment.update(NCCL_SOCKET_IFNAME="lo", NCCL_IB_DISABLE="1", NCCL_MAX_CTAS="2")
        jobs, told = [], Told(home)
        output = stack.enter_context(open(log, "w"))
        for command, own in commands(arguments, way, script, home, environment, stack):
            job = stack.enter_context(subprocess.Popen(command, stdout=output, stderr=output,
                                                       env=dict(environment, **own)))
            stack.callback(job.send_signal, signal.SIGINT)
            jobs.append(job)

        def is_warm():
            with open(log) as file:
                return "the warm process is ready" in file.read()

        victim, _ = wait_for(lambda: told.complete(arguments.ranks, 0), jobs, "its start", log)
        if uses_warm(way):
            wait_for(is_warm, jobs, "its warm process", log)
        begin = time.monotonic()
        os.kill(victim, signal.SIGKILL)
        _, end = wait_for(lambda: told.complete(arguments.ranks, begin), jobs, "its recovery", log)
        seconds = {way: end - begin}
        if way == "torchft":
            without = told.first_smaller(arguments.ranks, begin)
            seconds["  without"] = (without or end) - begin
        return seconds


def has_torchft(python):
    return subprocess.run([python, "-c", "import torchft"], stderr=subprocess.DEVNULL,
                          check=False).returncode == 0


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--muster", required=True)
    parser.add_argument("--python", required=True)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--cuda", action="store_true")
    parser.add_argument("--json")
    arguments = parser.parse_args()
    ways = [way for way in WAYS + TRAINERS if way != "torchft" or has_torchft(arguments.python)]
    if arguments.cuda:
        ways = [way for way in WAYS if way != "torchft"]
    samples, lost = {}, {}
    for _ in range(arguments.repeats):
        for way in ways:
            try:
                for row, seconds in measure(arguments, way).items():
                    samples.setdefault(row, []).append(seconds)
            except NotBack:
                if way not in PEERS:
                    raise
                lost[way] = lost.get(way, 0) + 1
    print(f"\nfrom the kill of one of {arguments.ranks} ranks of PyTorch until all go on "
          "(s, median, range; times that of survive)")
    best = statistics.median(samples["survive"])
    for row, seconds in samples.items():
        median = statistics.median(seconds)
        print(f"  {row:17s} {median:6.3f}   {min(seconds):.3f} to {max(seconds):.3f}"
              f"{median / best:9.1f}")
    for way, count in lost.items():
        print(f"  {way}: {count} of {arguments.repeats} jobs did not come back")
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(samples, file, indent=1)


if __name__ == "__main__":
    main()
