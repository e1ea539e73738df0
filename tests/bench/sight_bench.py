#!/usr/bin/env python3
"""What it costs a job that somebody looks at it: `muster top`, and a scrape of its metrics.

agent  CPU of the agent with eight sleeping workers, in thousandths of a core
step   wall time of a data-parallel training step of two ranks (ddp_step)

Jobs that are looked at and others take turns, so that other load on the machine meets both.
"""
import argparse
import contextlib
import json
import os
import pty
import socket
import statistics
import subprocess
import sys
import threading
import time
import urllib.request

from runtime_watch_bench import (
    DEADLINE_S, RANKS_AT_REST, children, cpu_seconds, ratios, workers_run)

LOOKS = {"nobody": (), "top": ("top",), "scrape": ("scrape",), "both": ("top", "scrape")}


def free_port():
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return held.getsockname()[1]


class Job:
    """A job whose metrics are served, whoever asks for them."""

    def __init__(self, arguments, name, ranks, *program, **streams):
        self.muster = os.path.join(arguments.bin, "muster")
        self.name, self.port = name, free_port()
        self.process = subprocess.Popen(
            [self.muster, "run", f"--rdzv_id={name}", f"--nproc_per_node={ranks}", "--no_python",
             f"--metrics={self.port}", *program], **streams)

    @contextlib.contextmanager
    def looked_at(self, looks, every):
        over = threading.Event()
        acts = [threading.Thread(target=getattr(self, look), args=(over, every)) for look in looks]
        for act in acts:
            act.start()
        try:
            yield
        finally:
            over.set()
            for act in acts:
                act.join()

    def top(self, over, _):
        master, slave = pty.openpty()
        screen = subprocess.Popen([self.muster, "top", self.name], stdin=slave, stdout=slave,
                                  stderr=slave, env={**os.environ, "TERM": "xterm"})
        os.close(slave)
        os.set_blocking(master, False)
        shown = 0
        while not over.wait(0.1):
            with contextlib.suppress(BlockingIOError, OSError):
                shown += len(os.read(master, 1 << 16))
        os.write(master, b"q")
        screen.wait(DEADLINE_S)
        os.close(master)
        if not shown:
            print("muster top has shown nothing")

    def scrape(self, over, every):
        token = subprocess.run([self.muster, "metrics_token"], capture_output=True, text=True,
                               check=True).stdout.strip()
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/metrics",
                                         headers={"Authorization": f"Bearer {token}"})
        while not over.wait(every):
            with contextlib.suppress(OSError), urllib.request.urlopen(request, timeout=5) as answer:
                answer.read()


def agent_cpu(arguments, looks):
    """In thousandths of a core, with its guardian."""
    job = Job(arguments, "rests", RANKS_AT_REST, "/bin/sleep", str(int(arguments.seconds) + 60),
              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + DEADLINE_S
        while not workers_run(job.process.pid):
            if job.process.poll() is not None or time.monotonic() > deadline:
                sys.exit("no job at rest")
            time.sleep(0.1)
        time.sleep(2)
        ours = [job.process.pid, *children(job.process.pid)]
        with job.looked_at(looks, arguments.every):
            before, begin = sum(map(cpu_seconds, ours)), time.monotonic()
            time.sleep(arguments.seconds)
            spent = sum(map(cpu_seconds, ours)) - before
            return spent / (time.monotonic() - begin) * 1000
    finally:
        job.process.terminate()
        job.process.wait(DEADLINE_S)


def step(arguments, looks):
    """Milliseconds."""
    job = Job(arguments, "steps", 2, os.path.join(arguments.bin, "ddp_step"), str(arguments.steps),
              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    with job.looked_at(looks, arguments.every):
        out, _ = job.process.communicate(timeout=DEADLINE_S)
    walls = [float(line.split()[-2]) for line in out.splitlines() if line.startswith("step ")]
    if job.process.returncode != 0 or len(walls) < 3:
        sys.exit(f"ddp_step ended with {job.process.returncode}: {out}")
    return statistics.median(walls[2:])  # the first steps come to their memory


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", required=True, help="of a release build")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=30, help="at rest")
    parser.add_argument("--every", type=float, default=5, help="seconds between two scrapes")
    parser.add_argument("--json")
    arguments = parser.parse_args()

    print(f"load before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs")
    agent = {name: agent_cpu(arguments, looks) for name, looks in LOOKS.items()}
    print("agent with eight workers at rest, thousandths of a core: " +
          ", ".join(f"{name} {cpu:.2f}" for name, cpu in agent.items()))
    steps = {"nobody": [], "both": []}
    for run in range(arguments.runs):
        for name in ("nobody", "both") if run % 2 == 0 else ("both", "nobody"):
            steps[name].append(step(arguments, LOOKS[name]))
    print(f"ms of a step: {statistics.median(steps['nobody']):.2f} alone, "
          f"{statistics.median(steps['both']):.2f} looked at; "
          f"{ratios(steps['both'], steps['nobody'])}")
    if arguments.json:
        os.makedirs(os.path.dirname(arguments.json) or ".", exist_ok=True)
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump({"agent": agent, "step": steps}, file, indent=1)


if __name__ == "__main__":
    main()
