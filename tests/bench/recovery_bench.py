#!/usr/bin/env python3
"""Time from the `kill -9` of a rank to the next training step, four ranks on one node.

in process   muster-train --survive=yes: one process restarts and gets the survivors' state.
anew         all processes restart from the last checkpoint, which is at most ten steps old.

Ways alternate; each sample is a job of its own, since a job's second restart is held back.
"""
import argparse
import json
import os
import signal
import statistics
import subprocess
import tempfile
import time

RANK, STEPS_BEFORE, TIMEOUT_S = 2, 60, 60


def is_step(line):
    return line.startswith("step") and " loss " in line


def worker_of(rank, mark):
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/environ", "rb") as file:
                variables = file.read().split(b"\0")
            with open(f"/proc/{name}/comm") as file:
                program = file.read().strip()
        except OSError:
            continue
        if (
            program == "muster-train"
            and mark.encode() in variables
            and f"RANK={rank}".encode() in variables
        ):
            return int(name)
    raise RuntimeError(f"there is no worker of rank {rank}")


def measure(arguments, survives):
    with tempfile.TemporaryDirectory() as home:
        mark = f"RECOVERY_BENCH={home}"
        command = [
            f"{arguments.bin}/muster",
            "run",
            "--nproc_per_node=4",
            "--max_restarts=1",
            f"{arguments.bin}/muster-train",
            "--data",
            __file__,
            "--layers=2",
            "--heads=2",
            "--width=64",
            "--context=64",
            "--steps=100000000",
            "--sample_tokens=0",
            "--log_every=1",
            "--survive=" + ("yes" if survives else "no"),
        ]
        if not survives:
            command += ["--save", f"{home}/saved", "--resume", f"{home}/saved", "--save_every=10"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                              env=dict(os.environ, RECOVERY_BENCH=home)) as job:
            try:
                steps = 0
                for line in job.stdout:
                    steps += is_step(line)
                    if steps >= STEPS_BEFORE:
                        break
                # What is in the pipe by now is of before.
                victim = worker_of(RANK, mark)
                begin = last = time.monotonic()
                os.kill(victim, signal.SIGKILL)
                longest = at = 0
                for line in job.stdout:
                    now = time.monotonic()
                    if not is_step(line):
                        continue
                    if now - last > longest:
                        longest, at = now - last, now - begin
                    last = now
                    # The step behind the longest pause is the first of the next round.
                    if now - begin > max(1, 3 * at) or now - begin > TIMEOUT_S:
                        break
                return at
            finally:
                job.send_signal(signal.SIGINT)
                job.stdout.read()


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bin", required=True, help="directory with muster and muster-train")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--json")
    arguments = parser.parse_args()
    samples = {"in process": [], "anew": []}
    for _ in range(arguments.repeats):
        samples["in process"].append(measure(arguments, True))
        samples["anew"].append(measure(arguments, False))
    print(
        "\nfrom the kill of a rank to the next step, four ranks of one node (seconds, median and "
        "range)"
    )
    for way, seconds in samples.items():
        print(
            f"  {way:12s} {statistics.median(seconds):6.3f}   {min(seconds):.3f} to "
            f"{max(seconds):.3f}"
        )
    print(
        f"  {'ratio':12s} "
        f"{statistics.median(samples['anew']) / statistics.median(samples['in process']):6.1f}"
    )
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(samples, file, indent=1)


if __name__ == "__main__":
    main()
