#!/usr/bin/env python3
"""What is left of a job's time where something dies all the time: four nodes of two ranks of
PyTorch (DDP over gloo), as processes of this machine, under a musterd --state_dir.

workers    a random worker is killed every 15 s.
nodes      a random node is killed every 60 s, with its agent, guardian and workers, and is back
           after 1 s.
fleet      eight nodes of one worker that only counts, elastic from one node on: a node is killed
           every 10 s, musterd every 60 s, each back after 1 s.

In workers and nodes a step takes 50 ms and more, so that what is lost is time. The job runs
undisturbed, with muster.survive (--warm=auto), and with restarts from a checkpoint of every 20
steps. "kept" is its steps by those of the undisturbed run; "up" is how many nodes have a rank that
trains, on average. The program fails where ranks end with different parameters, or a job gives up.
"""
import argparse
import collections
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from rendezvous_bench import TOKEN, Daemon, descendants

MODULES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "deploy", "python")
STARTS_S, ENDS_S = 120, 60

# Files in the job's folder: at.RANK (pid and steps done), end.RANK (the parameters' checksum, once
# `stop` is there), saved.
COMMON = """
import os, sys, time
folder = sys.argv[1]
def write(name, text):
    path = os.path.join(folder, name)
    with open("%s.%d" % (path, os.getpid()), "w") as file:
        file.write(text)
    os.rename(file.name, path)
def tell(rank, steps):
    write("at.%d" % rank, "%d %d" % (os.getpid(), steps))
def is_asked_to_stop():
    return os.path.exists(os.path.join(folder, "stop"))
"""
COUNTING = COMMON + """
steps = 0
while not is_asked_to_stop():
    time.sleep(0.05)
    steps += 1
    tell(int(os.environ["RANK"]), steps)
"""
MODEL = COMMON + """
import zlib
import torch, torch.distributed as dist
torch.set_num_threads(1)
torch.manual_seed(0)
module = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.Tanh(), torch.nn.Linear(256, 1))
optimizer = torch.optim.AdamW(module.parameters())
def update(model, step):
    draw = torch.Generator().manual_seed(1000 * step + dist.get_rank())
    x = torch.randn(16, 64, generator=draw)
    optimizer.zero_grad()
    (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
    time.sleep(0.05)
    stops = torch.tensor([float(is_asked_to_stop())])
    dist.all_reduce(stops)
    optimizer.step()
    return stops.item() > 0
def end():
    check = 0
    for parameter in module.parameters():
        check = zlib.crc32(parameter.detach().numpy().tobytes(), check)
    write("end.%d" % dist.get_rank(), str(check))
    dist.barrier()
    dist.destroy_process_group()
"""
SURVIVING = MODEL + """
from muster import survive
job = survive.Job(module, optimizer)
for step, stops in job.run(lambda step: update(job.model, step), 1 << 30):
    tell(job.rank, step + 1)
    if stops:
        break
end()
"""
RESTARTING = MODEL + """
dist.init_process_group("gloo")
saved = os.path.join(folder, "saved")
step, stops = 0, False
if os.path.exists(saved):
    state = torch.load(saved)
    module.load_state_dict(state["module"])
    optimizer.load_state_dict(state["optimizer"])
    step = state["step"]
model = torch.nn.parallel.DistributedDataParallel(module)
while not stops:
    stops = update(model, step)
    step += 1
    tell(dist.get_rank(), step)
    if step % 20 == 0 and dist.get_rank() == 0:
        torch.save({"module": module.state_dict(), "optimizer": optimizer.state_dict(),
                    "step": step}, saved + ".part")
        os.rename(saved + ".part", saved)
end()
"""

Soak = collections.namedtuple("Soak", "nodes ranks nnodes ways kill_every kills server_every")
SOAKS = {
    "workers": Soak(4, 2, "4", ("undisturbed", "survive", "restart"), 15, "worker", None),
    "nodes": Soak(4, 2, "4", ("undisturbed", "survive", "restart"), 60, "node", None),
    "fleet": Soak(8, 1, "1:8", ("fleet",), 10, "node", 60),
}
SCRIPTS = {"undisturbed": SURVIVING, "survive": SURVIVING, "restart": RESTARTING, "fleet": COUNTING}


def end_all(pids):
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


class Node:
    """An agent on this machine, which is started anew where it was killed."""

    def __init__(self, number, command, environment, log):
        self.number, self._command, self._environment, self._log = number, command, environment, log
        self.start()

    def start(self):
        self.agent = subprocess.Popen(self._command, env=self._environment, stdout=self._log,
                                      stderr=self._log)
        self.back_at = None

    def kill(self):
        try:
            end_all([self.agent.pid] + descendants(self.agent.pid))
        except FileNotFoundError:  # it has ended, and not by us
            pass
        if self.agent.wait() != -signal.SIGKILL:
            raise RuntimeError(f"node {self.number} has ended with {self.agent.returncode}")
        self.back_at = time.monotonic() + 1

    def step(self):
        if self.back_at is None:
            if self.agent.poll() is not None:
                raise RuntimeError(f"node {self.number} has ended with {self.agent.returncode}")
        elif time.monotonic() > self.back_at:
            self.start()

    def runs(self, pids):
        """Whether one of them is a process of this node."""
        if self.back_at is not None:
            return False
        try:
            return not pids.isdisjoint(descendants(self.agent.pid))
        except (FileNotFoundError, ProcessLookupError):
            return False


class Job:
    def __init__(self, arguments, soak, way, daemon, home):
        self._home, self._soak = home, soak
        script = os.path.join(home, "rank.py")
        with open(script, "w") as file:
            file.write(SCRIPTS[way])
        environment = dict(os.environ, PYTHON_EXEC=arguments.python, GLOO_SOCKET_IFNAME="lo",
                           OMP_NUM_THREADS="1", PYTHONPATH=MODULES, PYTHONDONTWRITEBYTECODE="1",
                           MUSTER_TOKEN=TOKEN, TMPDIR=home)
        self.log = open(os.path.join(home, "log"), "w")
        options = ["--warm=auto"] if SCRIPTS[way] is SURVIVING else []
        self.nodes = [
            Node(number,
                 [os.path.join(arguments.bin, "muster"), "run", f"--nnodes={soak.nnodes}",
                  f"--nproc_per_node={soak.ranks}", "--rdzv_backend=c10d", "--rdzv_id=soak",
                  f"--rdzv_endpoint=127.0.0.1:{daemon.port}", f"--local_addr=127.0.0.{number + 1}",
                  "--max_restarts=100000"] + options + [script, home], environment, self.log)
            for number in range(soak.nodes)]

    def at(self):
        """Of each rank that has told: its pid and its steps."""
        told = {}
        for name in os.listdir(self._home):
            if name.startswith("at.") and name.count(".") == 1:
                with open(os.path.join(self._home, name)) as file:
                    pid, steps = file.read().split()
                told[int(name[3:])] = int(pid), int(steps)
        return told

    def step(self):
        for node in self.nodes:
            node.step()

    def share_up(self):
        pids = {pid for pid, _ in self.at().values()}
        return sum(node.runs(pids) for node in self.nodes) / len(self.nodes)

    def stop(self):
        """Asks the job to end, waits, and compares the ranks' parameters."""
        with open(os.path.join(self._home, "stop"), "w"):
            pass
        deadline = time.monotonic() + ENDS_S
        while any(node.agent.poll() is None for node in self.nodes):
            if time.monotonic() > deadline:
                raise RuntimeError("the job does not end")
            for node in self.nodes:
                if node.back_at is not None:
                    node.step()
            time.sleep(0.05)
        codes = [node.agent.returncode for node in self.nodes]
        if any(codes):
            raise RuntimeError(f"the nodes have ended with {codes}")
        sums = set()
        for name in os.listdir(self._home):
            if name.startswith("end.") and name.count(".") == 1:
                with open(os.path.join(self._home, name)) as file:
                    sums.add(file.read())
        if len(sums) > 1:
            raise RuntimeError(f"the ranks' parameters differ: {sums}")

    def end(self):
        for node in self.nodes:
            if node.agent.poll() is None:
                end_all([node.agent.pid] + descendants(node.agent.pid))
                node.agent.wait()
        self.log.close()


def measure(arguments, soak, way, home):
    draw = random.Random(arguments.seed)
    kills_every = None if way == "undisturbed" else soak.kill_every
    with Daemon(os.path.join(arguments.bin, "musterd"), "on", ("--state_dir={directory}/state",)
                ) as daemon:
        job = Job(arguments, soak, way, daemon, home)
        try:
            begin = time.monotonic()
            while len(job.at()) < soak.nodes * soak.ranks:
                job.step()
                if time.monotonic() > begin + STARTS_S:
                    raise RuntimeError("the job does not start")
                time.sleep(0.1)
            begin = time.monotonic()
            first = max(steps for _, steps in job.at().values())
            next_kill = begin + kills_every if kills_every else float("inf")
            next_server = begin + soak.server_every if soak.server_every else float("inf")
            server_back, kills, shares = None, 0, []
            while (now := time.monotonic()) < begin + arguments.seconds:
                job.step()
                shares.append(job.share_up())
                if now > next_kill:
                    next_kill, kills = next_kill + kills_every, kills + 1
                    if soak.kills == "node":
                        draw.choice([node for node in job.nodes if node.back_at is None]).kill()
                    else:
                        end_all([draw.choice(sorted(job.at().items()))[1][0]])
                if now > next_server:
                    next_server, server_back = next_server + soak.server_every, now + 1
                    daemon.process.kill()
                    daemon.process.wait()
                if server_back and now > server_back:
                    server_back = None
                    daemon.start(daemon.port)
                time.sleep(0.2)
            steps = max(steps for _, steps in job.at().values()) - first
            if way != "fleet":
                job.stop()
        except BaseException:
            with tempfile.NamedTemporaryFile(prefix="soak_bench_", delete=False) as kept:
                shutil.copy(os.path.join(home, "log"), kept.name)
            print(f"the job's output: {kept.name}", file=sys.stderr)
            raise
        finally:
            job.end()
    return {"way": way, "steps": steps, "kills": kills, "up": sum(shares) / len(shares)}


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("soaks", nargs="*", default=list(SOAKS), metavar="SOAK",
                        help=", ".join(SOAKS))
    parser.add_argument("--bin", required=True, help="directory with muster and musterd")
    parser.add_argument("--python", required=True, help="an interpreter with PyTorch")
    parser.add_argument("--seconds", type=float, default=150, help="of each way")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json")
    arguments = parser.parse_args()
    print(f"load before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs")
    results = {}
    for name in arguments.soaks:
        soak, rows = SOAKS[name], []
        print(f"{name}: a {soak.kills} every {soak.kill_every} s, for {arguments.seconds:g} s")
        for way in soak.ways:
            with tempfile.TemporaryDirectory(prefix="soak_bench.") as home:
                row = measure(arguments, soak, way, home)
            rows.append(row)
            kept = "" if way == "fleet" else (
                f"{row['steps']:6d} steps, kept {row['steps'] / rows[0]['steps']:6.1%}   ")
            print(f"  {way:11s} {kept}{row['kills']:3d} kills   "
                  f"up {row['up'] * soak.nodes:.2f} of {soak.nodes} nodes", flush=True)
        results[name] = rows
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(results, file, indent=1)


if __name__ == "__main__":
    main()
