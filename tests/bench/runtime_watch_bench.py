#!/usr/bin/env python3
"""What the hang watch costs programs on the runtime, and its agent.

step   wall time of a data-parallel training step of two ranks (ddp_step), and CPU time of the job
agent  CPU of the agent per rank at rest, in thousandths of a core, with eight sleeping workers

Watched and unwatched runs alternate, so that other load on the machine meets both.
"""
import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time

DEADLINE_S = 600
RANKS_AT_REST = 8


def command(arguments, watch, ranks, *rest):
    return [
        os.path.join(arguments.bin, "muster"),
        "run",
        f"--nproc_per_node={ranks}",
        f"--watch={watch}",
        "--no_python",
        *rest,
    ]


def step(arguments, watch):
    """Milliseconds of a step, and seconds of CPU time of the whole job: agent and workers."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        command(arguments, watch, 2, os.path.join(arguments.bin, "ddp_step"), str(arguments.steps)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        timeout=DEADLINE_S,
    )
    if done.returncode != 0:
        sys.exit(f"ddp_step ended with {done.returncode}: {done.stderr}")
    walls = [
        float(line.split()[-2]) for line in done.stdout.splitlines() if line.startswith("step ")
    ]
    if len(walls) < 3:
        sys.exit(f"no figures of steps: {done.stdout}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    # The first steps come to their memory.
    return (
        statistics.median(walls[2:]),
        after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
    )


def cpu_seconds(pid):
    """CPU time of all threads of the process.

    The kernel's ticks of utime and stime, 10 ms, are too coarse for a process at rest."""
    total = 0
    for thread in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{thread}/schedstat") as file:
            total += int(file.read().split()[0])
    return total / 1e9


def children(pid):
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/stat") as file:
                if int(file.read().rsplit(")", 1)[1].split()[1]) == pid:
                    found.append(int(entry))
        except OSError:
            pass
    return found


def workers_run(agent):
    """The guardian is the agent's child, and the workers are its."""
    return sum(len(children(guardian)) for guardian in children(agent)) >= RANKS_AT_REST


def agent_cpu(arguments, watch):
    """In thousandths of a core, of one rank; with its guardian."""
    process = subprocess.Popen(
        command(arguments, watch, RANKS_AT_REST, "/bin/sleep", str(int(arguments.seconds) + 60)),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + DEADLINE_S
        while not workers_run(process.pid):
            if process.poll() is not None or time.monotonic() > deadline:
                sys.exit("no job at rest")
            time.sleep(0.1)
        time.sleep(2)
        ours = [process.pid, *children(process.pid)]
        before, begin = sum(map(cpu_seconds, ours)), time.monotonic()
        time.sleep(arguments.seconds)
        return (
            (sum(map(cpu_seconds, ours)) - before)
            / (time.monotonic() - begin)
            / RANKS_AT_REST
            * 1000
        )
    finally:
        process.terminate()
        process.wait(DEADLINE_S)


def ratios(above, below):
    each = [a / b for a, b in zip(above, below)]
    return f"{statistics.median(each):.4f} times ({min(each):.4f} to {max(each):.4f})"


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bin", required=True, help="of a release build")
    parser.add_argument("--runs", type=int, default=7, help="pairs of steps")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=60, help="at rest")
    parser.add_argument("--json")
    arguments = parser.parse_args()

    print(f"load before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs")
    samples = {
        "step": {"report": [], "off": []},
        "cpu": {"report": [], "off": []},
        "agent": {"report": [], "off": []},
    }
    for run in range(arguments.runs):
        for watch in ("report", "off") if run % 2 == 0 else ("off", "report"):
            wall, cpu = step(arguments, watch)
            samples["step"][watch].append(wall)
            samples["cpu"][watch].append(cpu)
            if run < 2:
                samples["agent"][watch].append(agent_cpu(arguments, watch))
    for name, what in (("step", "ms of a step"), ("cpu", "s of processor time of the job")):
        on, off = samples[name]["report"], samples[name]["off"]
        print(
            f"{what}: {statistics.median(off):.2f} unwatched, {statistics.median(on):.2f} watched; "
            f"{ratios(on, off)}"
        )
    print(
        "agent at rest, thousandths of a core per rank: "
        f"{statistics.median(samples['agent']['off']):.2f} unwatched, "
        f"{statistics.median(samples['agent']['report']):.2f} watched"
    )
    if arguments.json:
        os.makedirs(os.path.dirname(arguments.json) or ".", exist_ok=True)
        with open(arguments.json, "w") as file:
            json.dump(samples, file, indent=1)


if __name__ == "__main__":
    main()
