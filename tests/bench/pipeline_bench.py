"""Pipelines beside PyTorch's: a step of a GPT in four stages, or eight where a rank has two, under
each schedule that muster-train has by name and torch.distributed.pipelining too.

    pipeline_bench.py --bin DIR --python PYTHON [--rounds 3] [--steps 7] [--json FILE]

Ours and the peer take turns, so that other load on the machine meets both: same model, same cut,
same order of passes, Gloo, one thread per rank. Medians are over all steps but the first two of
every round. On fewer than four cores ranks share them, and what a schedule waits for is hidden.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
SCHEDULES = ("gpipe", "1f1b", "interleaved", "zb-h1", "zbv", "dualpipev")
RANKS = 4
LAYERS = 8  # one per stage where a rank has two
MICRO_BATCHES = 8
PEER = "import torch.distributed.pipelining"


def run(options, worker, arguments):
    """What the ranks printed."""
    environment = dict(os.environ, GLOO_SOCKET_IFNAME="lo", OMP_NUM_THREADS="1",
                       PYTHON_EXEC=options.python)
    muster = os.path.join(options.bin, "muster")
    command = [muster, "run", "--nproc_per_node=%d" % RANKS, worker] + arguments
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    if result.returncode != 0:
        sys.exit("%s failed:\n%s%s" % (" ".join(command), result.stdout, result.stderr))
    return result.stdout


def of_muster(options, schedule):
    printed = run(options, os.path.join(options.bin, "muster-train"), [
        "--stages=%d" % RANKS, "--stage_schedule=" + schedule, "--num_layers=%d" % LAYERS,
        "--batch_size=1", "--gradient_accumulation_steps=%d" % MICRO_BATCHES,
        "--steps=%d" % options.steps, "--log_every=1", "--sample_tokens=0",
        "--data=" + os.path.join(HERE, "../data/prose.txt")])
    milliseconds = {"ms": 1, "s": 1e3}
    return [float(number) * milliseconds[unit]
            for number, unit in re.findall(r"step +\d+/.* ([0-9.]+) (m?s)/step", printed)]


def of_torch(options, schedule):
    printed = run(options, os.path.join(HERE, "pipeline_step.py"),
                  [str(options.steps), str(LAYERS), str(MICRO_BATCHES), schedule])
    return [float(number) for number in re.findall(r"step \d+ ([0-9.]+) ms", printed)]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    parser.add_argument("--python", required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=7)
    parser.add_argument("--json")
    options = parser.parse_args()
    if subprocess.run([options.python, "-c", PEER], capture_output=True).returncode != 0:
        sys.exit("no peer: %s fails in %s" % (PEER, options.python))
    samples = {schedule: {"muster": [], "torch": []} for schedule in SCHEDULES}
    for _ in range(options.rounds):
        for schedule, by_program in samples.items():
            for program, measure in (("muster", of_muster), ("torch", of_torch)):
                times = measure(options, schedule)
                if len(times) != options.steps:
                    sys.exit("%s under %s printed %d steps" % (program, schedule, len(times)))
                by_program[program] += times[2:]

    print(
        "pipelines: GPT %d layers, 6 heads, hidden size 384, context 256, %d micro-batches of one "
        "sequence, fp32, %d ranks of 1 thread on %d cores; load average %.1f"
        % (LAYERS, MICRO_BATCHES, RANKS, os.cpu_count(), os.getloadavg()[0])
    )
    print("  %-13s%14s%14s%16s   (ms per step, medians)"
          % ("", "muster", "torch", "torch / muster"))
    for schedule, by_program in samples.items():
        ours, peer = (statistics.median(by_program[program]) for program in ("muster", "torch"))
        print("  %-13s%14.1f%14.1f%16.2f" % (schedule, ours, peer, peer / ours))
    if options.json:
        with open(options.json, "w") as file:
            json.dump(samples, file, indent=1)


if __name__ == "__main__":
    main()
