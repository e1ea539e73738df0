#!/usr/bin/env python3
"""Start and restart times of `muster run` beside torchrun and a floor, on the same machine.

All of them start the same tiny worker (exec_probe.cc), taking turns, and the medians are compared:
  start    launcher's exec to the exec of the last worker
  restart  SIGKILL of one worker to the exec of the last replacement
  memory   resident memory of the launcher, alone and with its guardian, while the workers run
The floor is a bare loop of fork and exec (exec_floor.cc): no launcher can be faster.

What a user sees of a start is measured beside them, with two Python workers under one interpreter:
  first lines  the command to the last worker's first line, of the wheel's muster, the build's and
               torchrun
"""
import argparse
import json
import os
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

DEADLINE_S = 60


class Job:
    """One run of a launcher with probes as workers."""

    def __init__(self, command, workers):
        self.workers = workers
        self.directory = tempfile.mkdtemp(prefix="launch_bench.")
        os.mkfifo(self.directory + "/release")
        environment = dict(os.environ, PROBE_DIRECTORY=self.directory)
        self.output = open(self.directory + "/output", "wb")
        self.begin_ns = time.monotonic_ns()
        self.process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL,
                                        stdout=self.output, stderr=self.output)

    def notes(self, attempt):
        """(time in ns, pid) of every worker of `attempt`, once all have begun."""
        paths = [f"{self.directory}/{attempt}.{rank}" for rank in range(self.workers)]
        deadline = time.monotonic() + DEADLINE_S
        while not all(os.path.exists(path) for path in paths):
            if time.monotonic() > deadline or self.process.poll() is not None:
                raise RuntimeError(f"attempt {attempt} did not start:\n" + self.text())
            time.sleep(0.002)
        return [tuple(int(word) for word in open(path).read().split()) for path in paths]

    def text(self):
        return open(self.directory + "/output", errors="replace").read()

    def memory_kib(self):
        """Resident KiB of the launcher, alone and with its children other than workers."""
        pid = self.process.pid
        launcher = resident_kib(pid)
        children = open(f"/proc/{pid}/task/{pid}/children").read().split()
        others = [
            child for child in children if "exec_probe" not in open(f"/proc/{child}/comm").read()
        ]
        return launcher, launcher + sum(resident_kib(child) for child in others)

    def finish(self):
        """Releases the workers, and expects a good end."""
        release = os.open(self.directory + "/release", os.O_RDWR)
        try:
            if self.process.wait(DEADLINE_S) != 0:
                raise RuntimeError(f"exit code {self.process.returncode}:\n" + self.text())
        finally:
            os.close(release)

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.output.close()
        shutil.rmtree(self.directory, ignore_errors=True)


def resident_kib(pid):
    for line in open(f"/proc/{pid}/status"):
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    return 0


def measure(command, workers):
    job = Job(command, workers)
    try:
        first = job.notes(0)
        launcher_kib, total_kib = job.memory_kib()
        killed_ns = time.monotonic_ns()
        os.kill(first[0][1], signal.SIGKILL)
        second = job.notes(1)
        job.finish()
        return {
            "start_ms": (max(ns for ns, _ in first) - job.begin_ns) / 1e6,
            "restart_ms": (max(ns for ns, _ in second) - killed_ns) / 1e6,
            "launcher_mib": launcher_kib / 1024,
            "with_guardian_mib": total_kib / 1024,
        }
    finally:
        job.close()


def torchrun(python):
    """The torchrun command of `python` and PyTorch's version; (None, "") without PyTorch."""
    found = subprocess.run(
        [python, "-c", "import torch; print(torch.__version__)"], capture_output=True, text=True
    )
    if found.returncode != 0:
        return None, ""
    # PyTorch 1.13 under Python 3.11 fails on its own default "0" of redirects and tee; a map works
    # everywhere. It polls every 5 s by default, newer versions every 0.1 s.
    options = ["--redirects=0:1", "--tee=0:1", "--monitor_interval=0.1"]
    beside = os.path.join(os.path.dirname(os.path.abspath(python)), "torchrun")
    command = [beside] if os.access(beside, os.X_OK) else [python, "-m", "torch.distributed.run"]
    return command + options, found.stdout.strip()


# On stderr: see torchrun, whose stdout of rank 0 goes through a file.
SAYS_RANK = "import os, sys; print('rank', os.environ['RANK'], 'begins', file=sys.stderr)"
NUM_SPEAKERS = 2


def first_lines(command, script, python):
    """ms from the command to the first line of the last of its workers."""
    waiting = {f"rank {rank} begins" for rank in range(NUM_SPEAKERS)}
    heard = []
    begin_ns = time.monotonic_ns()
    with subprocess.Popen(command + ["--standalone", f"--nproc_per_node={NUM_SPEAKERS}", script],
                          env=dict(os.environ, PYTHON_EXEC=python), stdin=subprocess.DEVNULL,
                          stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        deadline = threading.Timer(DEADLINE_S, process.kill)
        deadline.start()
        for line in process.stderr:
            heard.append(line)
            waiting = {text for text in waiting if text not in line}
            if not waiting:
                break
        end_ns = time.monotonic_ns()
        heard.append(process.stderr.read())
        deadline.cancel()
    if waiting or process.returncode != 0:
        raise RuntimeError(f"exit code {process.returncode}:\n" + "".join(heard))
    return (end_ns - begin_ns) / 1e6


def run_first_lines(arguments, peer):
    """Samples by name, of `muster`, of `installed` and of torchrun, where they are there."""
    commands = {"muster": [arguments.muster, "run"]}
    if arguments.installed:
        commands["installed"] = [arguments.installed, "run"]
    if peer:
        commands["torchrun"] = peer
    samples = {name: [] for name in commands}
    with tempfile.TemporaryDirectory(prefix="launch_bench.") as folder:
        script = os.path.join(folder, "says_rank.py")
        with open(script, "w") as file:
            file.write(SAYS_RANK)
        for turn in range(arguments.repeat):
            for name, command in commands.items():
                if name != "torchrun" or turn < arguments.peer_repeat:
                    samples[name].append(first_lines(command, script, arguments.python))
    return samples


def run(arguments):
    peer, peer_version = torchrun(arguments.python)
    options = [
        f"--nproc_per_node={arguments.workers}",
        "--standalone",
        "--max_restarts=1",
        "--no_python",
        arguments.probe,
    ]
    commands = {"muster": [arguments.muster, "run"] + options,
                "floor": [arguments.floor, str(arguments.workers), arguments.probe]}
    if arguments.installed:
        commands["installed"] = [arguments.installed, "run"] + options
    repeats = {name: arguments.repeat for name in commands}
    if peer:
        commands["torchrun"] = peer + options
        repeats["torchrun"] = min(arguments.repeat, arguments.peer_repeat)
    samples = {name: [] for name in commands}
    for turn in range(arguments.repeat):
        for name, command in commands.items():
            if turn < repeats[name]:
                samples[name].append(measure(command, arguments.workers))
    medians = {name: {key: statistics.median(s[key] for s in list_) for key in list_[0]}
               for name, list_ in samples.items()}
    return {
        "workers": arguments.workers, "cpus": os.cpu_count(), "kernel": platform.release(),
        "torch": peer_version, "runs": {name: len(list_) for name, list_ in samples.items()},
        "median": medians, "samples": samples, "first_lines_ms": run_first_lines(arguments, peer),
    }


# Key, what it is, unit, and what is to be reached: so much above the floor, or so much.
ROWS = [("start_ms", "launcher start to last worker's exec", "ms", "floor", 6),
        ("restart_ms", "worker death to last replacement's exec", "ms", "floor", 2),
        ("launcher_mib", "launcher resident", "MiB", "", 15),
        ("with_guardian_mib", "launcher and guardian resident", "MiB", "", None)]


def print_table(result):
    ours, floor, peer = (result["median"].get(name) for name in ("muster", "floor", "torchrun"))
    runs = ", ".join(f"{count} of {name}" for name, count in result["runs"].items())
    print(f"{result['workers']} workers, {result['cpus']} CPUs, medians of {runs}"
          + (f" (PyTorch {result['torch']})" if peer else "; torchrun is not installed"))
    print(f"{'':42}{'muster':>10}{'floor':>10}{'torchrun':>10}{'ratio':>8}{'to reach':>14}")
    for key, text, unit, base, goal in ROWS:
        least = f"{floor[key]:.1f}" if base else "-"
        theirs = f"{peer[key]:.1f}" if peer else "-"
        ratio = f"{peer[key] / ours[key]:.0f}x" if peer and ours[key] else "-"
        reach = "" if goal is None else f"<= {floor[key] + goal:.1f}" if base else f"<= {goal}"
        print(
            f"{text + ', ' + unit:42}{ours[key]:10.1f}{least:>10}{theirs:>10}{ratio:>8}{reach:>14}"
        )
    installed = result["median"].get("installed")
    if installed:
        reach = f"<= {ours['start_ms'] + 1:.1f}"
        ratio = f"{installed['start_ms'] / ours['start_ms']:.2f}x"  # of the build's, in this run
        print(f"{'start of the program that pip installed, ms':42}{installed['start_ms']:10.1f}"
              f"{'':20}{ratio:>8}{reach:>14}")
    print_first_lines({name: statistics.median(samples)
                       for name, samples in result["first_lines_ms"].items()})


def print_first_lines(medians):
    """Beside each median, what it is of the build's, and how many times as long torchrun takes."""
    title = f"command to first line of all {NUM_SPEAKERS} workers, ms"
    print(f"{title:42}{'median':>10}{'of build':>10}{'ratio':>8}")
    names = {"muster": "the build's muster", "installed": "the wheel's", "torchrun": "torchrun"}
    for name, median in medians.items():
        ratios = [f"{median / medians['muster']:.2f}x",
                  f"{medians['torchrun'] / median:.1f}x" if "torchrun" in medians else "-"]
        print(f"  {names[name]:40}{median:10.1f}{ratios[0]:>10}{ratios[1]:>8}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--muster", required=True, help="the program to measure")
    parser.add_argument("--probe", required=True, help="the built exec_probe")
    parser.add_argument("--floor", required=True, help="the built exec_floor")
    parser.add_argument("--installed", help="the same program, as pip has installed it")
    parser.add_argument(
        "--python", default="/usr/bin/python3", help="the Python whose torchrun is the peer"
    )
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--repeat", type=int, default=15)
    parser.add_argument("--peer_repeat", type=int, default=5, help="torchrun takes seconds")
    parser.add_argument("--json", help="where to write all samples")
    arguments = parser.parse_args()
    result = run(arguments)
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(result, file, indent=2)
    print_table(result)


if __name__ == "__main__":
    sys.exit(main())
