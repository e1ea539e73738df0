"""Training beside PyTorch: a step of a small GPT under every preset that two ranks can share, and
with its layers cut over both, beside DistributedDataParallel, FSDP2 and parallelize_module;
all-reduce by size; the initial values of GPT-2's 1.5 billion parameters.

    training_bench.py --bin DIR [--python PYTHON] [--rounds 3] [--steps 12] [--json FILE]

Ours and the peer take turns, so that other load on the machine meets both. Medians are over all
steps but the first two of every round.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
OURS = ("ddp", "zero-1", "zero-2", "zero-3", "full-shard", "shard-grad-op", "1f1b", "tp")
# Whom each is compared with: those who hold parameters whole, or in shards.
PEER_OF = {
    "ddp": "ddp",
    "zero-1": "ddp",
    "zero-2": "ddp",
    "zero-3": "fsdp2",
    "full-shard": "fsdp2",
    "shard-grad-op": "fsdp2",
    "1f1b": "ddp",
    "tp": "tp",
}
HAS = {
    "ddp": "import torch.distributed",
    "fsdp2": "from torch.distributed.fsdp import fully_shard",
    "tp": "from torch.distributed.tensor.parallel import parallelize_module",
}
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
    peers = [peer for peer, line in HAS.items()
             if subprocess.run([options.python, "-c", line], capture_output=True).returncode == 0]
    samples, headers = {}, {}
    bounds = []  # the first lines of all our runs: each measures the machine's rate again
    for _ in range(options.rounds):
        for name in ["muster " + preset for preset in OURS] + ["torch " + peer for peer in peers]:
            who, plan = name.split()
            ours = who == "muster"
            worker = (
                os.path.join(options.bin, "ddp_step") if ours else os.path.join(HERE, "ddp_step.py")
            )
            lines = run(
                muster, worker, [str(options.steps), plan], None if ours else options.python
            )
            headers[name] = lines[0]
            if ours:
                bounds.append(lines[0])
            for kind, values in times_of(lines).items():
                samples.setdefault(name, {}).setdefault(kind, []).extend(values)

    print(
        "step: GPT 6 layers, 6 heads, hidden size 384, context 256, micro-batch 4, fp32, 2 ranks "
        "of 1 thread; load average %.1f"
        % os.getloadavg()[0]
    )
    medians = {
        name: {kind: statistics.median(values) for kind, values in kinds.items()}
        for name, kinds in samples.items()
    }
    bound = statistics.median(
        float(ms) for ms in re.findall(r"bound ([0-9.]+) ms", " ".join(bounds))
    )
    print(
        "  %-21s" % ""
        + "".join("%14s" % kind for kind in KINDS)
        + "%10s%16s" % ("of bound", "torch / muster")
        + "   (ms, medians)"
    )
    for name, kinds in medians.items():
        who, plan = name.split()
        peer = medians.get("torch " + PEER_OF.get(plan, "")) if who == "muster" else None
        print(
            "  %-21s" % name
            + "".join("%14s" % ("%.1f" % kinds[kind] if kind in kinds else "-") for kind in KINDS)
            + "%10s%16s"
            % (
                "%.0f %%" % (100 * bound / kinds["total"]),
                "%.2f" % (peer["total"] / kinds["total"]) if peer else "-",
            )
        )
    print(
        "  products alone at this machine's rate: %.1f ms (to reach: 90 %% of it; torch / muster: "
        "1.2)"
        % bound
    )
    ddp = medians["muster ddp"]
    if ddp["communication"] > 0:
        print(
            "  hidden communication of ddp: %.0f %%"
            % (100 * (1 - min(1, ddp["wait"] / ddp["communication"])))
        )
    for peer in set(HAS) - set(peers):
        print("  no %s: %s fails in %s" % (peer, HAS[peer], options.python))

    print("\nall-reduce over gloo, 2 ranks")
    table = run(muster, os.path.join(options.bin, "all_reduce_perf"),
                ["-b", "8", "-e", "64M", "-f", "8", "-w", "5"])
    print("\n".join(table))
    initial = subprocess.run(
        [os.path.join(options.bin, "initialize_bench")], capture_output=True, text=True, timeout=600
    )
    print("\n" + initial.stdout.strip() + initial.stderr.strip())
    if options.json:
        with open(options.json, "w") as file:
            json.dump(
                {
                    "samples": samples,
                    "headers": headers,
                    "all_reduce": table,
                    "initial": initial.stdout,
                },
                file,
                indent=1,
            )


if __name__ == "__main__":
    main()
