"""How near the step times that `muster plan` predicts for the host come to those of ddp_step, for every preset at one and
two ranks of one thread each. The rate of products is ddp_step's own, measured in the same run; the link's is given.

    python3 step_time_bench.py BINARIES [LINK_GIGABYTES] [STEPS]

The bar is 15 % for each row, the median of five runs, on two idle cores. Where ranks outnumber cores, both sides share them.
"""

import os
import re
import statistics
import subprocess
import sys

PRESETS = ["ddp", "zero-1", "zero-2", "zero-3", "full-shard", "shard-grad-op", "hybrid-shard", "hybrid-shard-zero2", "mics",
           "zero-3-hpz"]
RUNS = 5


def run(command):
    environment = dict(os.environ, OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo")
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=True).stdout


def measure(binaries, preset, ranks, steps):
    """GFLOP/s of products and milliseconds of a step."""
    text = run([binaries + "/muster", "run", "--nproc_per_node=%d" % ranks, binaries + "/ddp_step", str(steps), preset])
    gemm = float(re.search(r"gemm ([0-9.]+) GFLOP/s", text).group(1))
    totals = [float(t) for t in re.findall(r"total ([0-9.]+)", text)]
    return gemm, statistics.median(totals[1:])


def predict(binaries, preset, ranks, gemm, link):
    text = run([binaries + "/muster", "plan", "--plan=" + preset, "--world_size=%d" % ranks, "--batch_size=4",
                "--gemm_gflops=%g" % gemm, "--link_gigabytes=%g" % link, "--cores=%d" % os.cpu_count()])
    return float(re.search(r"  total +([0-9.e+]+) ms", text).group(1))


def main():
    binaries, link = sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else 3.0
    steps = int(sys.argv[3]) if len(sys.argv) > 3 else 12
    print("%-20s %5s %10s %10s %10s %7s" % ("preset", "ranks", "GFLOP/s", "measured", "predicted", "error"))
    for preset in PRESETS:
        for ranks in (1, 2):
            rows = []
            for _ in range(RUNS):
                gemm, measured = measure(binaries, preset, ranks, steps)
                predicted = predict(binaries, preset, ranks, gemm, link)
                rows.append((predicted / measured - 1, gemm, measured, predicted))
            error, gemm, measured, predicted = sorted(rows)[RUNS // 2]
            print("%-20s %5d %10.1f %7.1f ms %7.1f ms %+6.1f%%" % (preset, ranks, gemm, measured, predicted, 100 * error), flush=True)


if __name__ == "__main__":
    main()
