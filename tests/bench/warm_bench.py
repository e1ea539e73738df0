#!/usr/bin/env python3
"""How soon a rank of PyTorch computes with the others again after the `kill -9` of one of two on a
node: from the kill to the end of the first all-reduce of the next attempt.

survive    muster --warm=auto and muster.survive: the other rank keeps its process, and steps count,
           not all-reduces.
warm       muster --warm=auto: workers are forked by a process that has imported what they import.
cold       muster: new processes import for themselves.
torchrun   PyTorch's own launcher, with its default interval of looks.

Ways alternate; each sample is a job of its own. PYTHON is an interpreter with PyTorch.
"""
import argparse
import json
import os
import signal
import statistics
import subprocess
import tempfile
import time

TIMEOUT_S = 120
WAYS = ("survive", "warm", "cold", "torchrun")
MODULES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "deploy", "python")
RANK = """
import os, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(4))
done = time.monotonic()
attempt, rank = os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["RANK"]
path = os.path.join(sys.argv[1], attempt + "." + rank)
with open(path + ".part", "w") as file:
    file.write("%d %r" % (os.getpid(), done))
os.rename(path + ".part", path)
if attempt == "0":
    time.sleep(600)
"""
SURVIVING_RANK = """
import os, sys, time
import torch, torch.distributed as dist
from muster import survive
job = survive.Job(torch.nn.Linear(4, 4))
def train(step):
    time.sleep(0.002)
    is_again = torch.tensor([float(os.environ["TORCHELASTIC_RESTART_COUNT"] != "0")])
    dist.all_reduce(is_again)
    return int(is_again.item() == job.size)
told = set()
for step, attempt in job.run(train, 1 << 30):
    if attempt not in told:
        told.add(attempt)
        path = os.path.join(sys.argv[1], "%d.%d" % (attempt, job.rank))
        with open(path + ".part", "w") as file:
            file.write("%d %r" % (os.getpid(), time.monotonic()))
        os.rename(path + ".part", path)
    if attempt == 1:
        break
dist.destroy_process_group()
"""


def wait_for(condition, job, what):
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        if job.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError("the job has ended, or does not get on: " + what)
        time.sleep(0.005)


def measure(arguments, way):
    with tempfile.TemporaryDirectory() as home:
        script, log = os.path.join(home, "rank.py"), os.path.join(home, "log")
        with open(script, "w") as file:
            file.write(SURVIVING_RANK if way == "survive" else RANK)
        rest = ["--nproc_per_node=2", "--max_restarts=1", script, home]
        if way == "torchrun":
            command = [arguments.python, "-m", "torch.distributed.run", "--rdzv-backend=c10d",
                       "--rdzv-endpoint=localhost:0"] + rest
        else:
            options = ["--warm=auto"] if way in ("survive", "warm") else []
            command = [arguments.muster, "run"] + options + rest
        environment = dict(os.environ, PYTHON_EXEC=arguments.python, GLOO_SOCKET_IFNAME="lo",
                           OMP_NUM_THREADS="1", PYTHONPATH=MODULES, PYTHONDONTWRITEBYTECODE="1")

        def said(attempt, rank):
            try:
                with open(os.path.join(home, f"{attempt}.{rank}")) as file:
                    pid, done = file.read().split()
                    return int(pid), float(done)
            except FileNotFoundError:
                return None

        def is_warm():
            with open(log) as file:
                return "the warm process is ready" in file.read()

        with open(log, "w") as output, subprocess.Popen(
            command, stdout=output, stderr=output, env=environment
        ) as job:
            try:
                wait_for(lambda: said(0, 0) and said(0, 1), job, "its first attempt")
                if way in ("survive", "warm"):
                    wait_for(is_warm, job, "its warm process")
                begin = time.monotonic()
                os.kill(said(0, 1)[0], signal.SIGKILL)
                if job.wait(TIMEOUT_S) != 0:
                    with open(log) as file:
                        raise RuntimeError("the job has failed:\n" + file.read())
                return max(said(1, 0)[1], said(1, 1)[1]) - begin
            finally:
                if job.poll() is None:
                    job.send_signal(signal.SIGINT)
                    job.wait(TIMEOUT_S)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--muster", required=True)
    parser.add_argument("--python", required=True)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json")
    arguments = parser.parse_args()
    samples = {way: [] for way in WAYS}
    for _ in range(arguments.repeats):
        for way in WAYS:
            samples[way].append(measure(arguments, way))
    print("\nfrom the kill of a rank of PyTorch to the next step or all-reduce (s, median, range)")
    for way, seconds in samples.items():
        print(f"  {way:10s} {statistics.median(seconds):6.3f}   "
              f"{min(seconds):.3f} to {max(seconds):.3f}")
    theirs = statistics.median(samples["torchrun"])
    for way in ("survive", "warm"):
        ratio = theirs / statistics.median(samples[way])
        print(f"  torchrun needs {ratio:.1f} times as long as {way}")
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(samples, file, indent=1)


if __name__ == "__main__":
    main()
