"""Training beside PyTorch: a data-parallel step of a small GPT, and all-reduce by size.

    training_bench.py --bin DIR [--python PYTHON] [--rounds 3] [--steps 12] [--json FILE]

Ours and the peer take turns, so that what else the machine does meets both; medians are over all steps but
the first two of every round.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
KINDS = ("forward", "backward", "wait", "update", "communication", "total")


def run(muster, worker, arguments, python=None):
    """The lines that rank 0 printed."""
    environment = dict(os.environ, GLOO_SOCKET_IFNAME="lo", OMP_NUM_THREADS="1")
    if python:
        environment["PYTHON_EXEC"] = python
    command = [muster, "run", "--nproc_per_node=2", worker] + arguments
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    if result.returncode != 0:
        sys.exit("%s failed:\n%s%s" % (" ".join(command), result.stdout, result.stderr))
    return [re.sub(r"^\[[^\]]*\] ?", "", line) for line in result.stdout.splitlines()]


def times_of(lines):
    """By kind of work, the milliseconds of each step but the first two."""
    steps = [line for line in lines if line.startswith("step ")][2:]
    found = {}
    for line in steps:
        for kind, value in re.findall(r"(\w+) ([0-9.]+)", line):
            if kind in KINDS:
                found.setdefault(kind, []).append(float(value))
    return found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    parser.add_argument("--python", default="/usr/bin/python3")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--json")
    options = parser.parse_args()
    muster = os.path.join(options.bin, "muster")
    has_peer = subprocess.run([options.python, "-c", "import torch.distributed"], capture_output=True).returncode == 0
    samples = {"muster": {}, "torch": {}}
    headers = {}
    bounds = []  # the first lines of all our runs: each measures the machine's rate anew
    for _ in range(options.rounds):
        for name in ("muster", "torch") if has_peer else ("muster",):
            ours = name == "muster"
            worker = os.path.join(options.bin, "ddp_step") if ours else os.path.join(HERE, "ddp_step.py")
            lines = run(muster, worker, [str(options.steps)], None if ours else options.python)
            headers[name] = lines[0]
            if ours:
                bounds.append(lines[0])
            for kind, values in times_of(lines).items():
                samples[name].setdefault(kind, []).extend(values)

    print("data-parallel step: GPT 6 layers, 6 heads, hidden size 384, context 256, micro-batch 4, fp32, 2 ranks of 1 thread")
    medians = {name: {kind: statistics.median(values) for kind, values in kinds.items()}
               for name, kinds in samples.items() if kinds}
    print("  %-8s" % "" + "".join("%15s" % kind for kind in KINDS) + "   (ms, medians)")
    for name, kinds in medians.items():
        print("  %-8s" % name + "".join("%15s" % ("%.1f" % kinds[kind] if kind in kinds else "-") for kind in KINDS)
              + "   " + headers[name])
    bound = [float(ms) for ms in re.findall(r"bound ([0-9.]+) ms", " ".join(bounds))]
    print("  products alone at this machine's rate: %.1f ms; the step reaches %.0f %% of it (to reach: 90 %%)"
          % (statistics.median(bound), 100 * statistics.median(bound) / medians["muster"]["total"]))
    communication = medians["muster"]["communication"]
    if communication > 0:
        print("  hidden communication: %.0f %%" % (100 * (1 - min(1, medians["muster"]["wait"] / communication))))
    if has_peer:
        print("  torch / muster: %.2f (to reach: 1.2)" % (medians["torch"]["total"] / medians["muster"]["total"]))
    else:
        print("  no PyTorch: %s cannot import torch.distributed" % options.python)

    print("\nall-reduce over gloo, 2 ranks")
    table = run(muster, os.path.join(options.bin, "all_reduce_perf"), ["-b", "8", "-e", "64M", "-f", "8"])
    print("\n".join(table))
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"samples": samples, "headers": headers, "all_reduce": table}, file, indent=1)


if __name__ == "__main__":
    main()
