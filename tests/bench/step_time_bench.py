"""How near the step times that `muster plan` predicts for the host come to muster-train's own, for
every preset at one and two ranks of one thread each.

    python3 step_time_bench.py BINARIES [--steps=N] [--runs=N] [--json=FILE] [--model NAME=X ...]

Rates (machine_rates) and steps take turns. The bar is 15 % in time that passes, the median of five
runs on two idle cores. On a busy machine others count in that time, so the table has the same in
time of processors, per rank: its least step beside the best rates, which is what comes nearest to
an idle machine.

Seen on two cores of a shared machine, 2026-11-27: -9 to +4 % of the time that passes, -4 to +1 % of
that of processors.
"""

import argparse
import glob
import json
import os
import re
import statistics
import subprocess
import time

PRESETS = ["ddp", "zero-1", "zero-2", "zero-3", "full-shard", "shard-grad-op", "hybrid-shard",
           "hybrid-shard-zero2", "mics", "zero-3-hpz"]
TEXT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../data/prose.txt")
ENVIRONMENT = dict(os.environ, OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo")


def under(binaries, ranks, command):
    """Started by the launcher where there are several."""
    launch = [binaries + "/muster", "run", "--nproc_per_node=%d" % ranks] if ranks > 1 else []
    return launch + [binaries + "/" + command[0]] + command[1:]


def output(command):
    return subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=600,
                          check=True).stdout


def parent_of(process):
    with open("/proc/%d/stat" % process) as file:
        return int(file.read().rpartition(")")[2].split()[1])


def workers_below(ancestor):
    """The processes of muster-train."""
    found = []
    for path in glob.glob("/proc/[0-9]*"):
        process = int(path[6:])
        try:
            if not os.readlink(path + "/exe").endswith("/muster-train"):
                continue
            above = process
            while above > 1 and above != ancestor:
                above = parent_of(above)
        except OSError:
            continue  # it has ended
        if above == ancestor:
            found.append(process)
    return found


def processor_seconds(processes):
    """Of their threads, those that have ended among them."""
    return sum(time.clock_gettime(cpu_clock_of(process)) for process in processes)


def cpu_clock_of(process):
    """As clock_getcpuclockid(3) makes it: the number, inverted, above CPUCLOCK_SCHED."""
    return ~process << 3 | 2


def measure(binaries, options, ranks, steps):
    """Milliseconds of steps: that pass, and of a rank's processor."""
    command = ["muster-train", "--steps=%d" % (steps + 2), "--log_every=1", "--sample_tokens=0",
               "--data=" + TEXT] + options
    seen = []
    with subprocess.Popen(under(binaries, ranks, command), env=ENVIRONMENT, text=True,
                          stdout=subprocess.PIPE) as training:
        for line in training.stdout:
            if not re.search(r"\bstep +\d+/", line):
                continue
            workers = workers_below(training.pid)
            if len(workers) == ranks:  # none has ended
                seen.append((time.monotonic(), processor_seconds(workers) / ranks))
    assert len(seen) >= steps, seen
    differences = [(1e3 * (b[0] - a[0]), 1e3 * (b[1] - a[1])) for a, b in zip(seen, seen[1:])]
    return [passed for passed, _ in differences], [worked for _, worked in differences]


def predict(binaries, options, ranks, rates):
    text = output([binaries + "/muster", "plan", "--world_size=%d" % ranks,
                   "--cores=%d" % os.cpu_count()] + rates + options)
    return float(re.search(r"  total +([0-9.e+]+) ms", text).group(1))


def option_of(rates):
    """Of many measurements, (gemm, link), one."""
    link = ["--link_gigabytes=%g" % rates[1]] if len(rates) > 1 else ["--link_gigabytes=1"]
    return ["--gemm_gflops=%g" % rates[0]] + link  # one rank has no link, and nothing travels


def row_of(binaries, preset, ranks, model, steps, runs):
    options = ["--plan=" + preset] + model
    rates, passed, worked = [], [], []
    for _ in range(runs):
        for _ in range(steps):  # as many of both
            printed = output(under(binaries, ranks, ["machine_rates"]))
            rates.append([float(rate) for rate in re.findall(r"=([0-9.e+]+)", printed)])
        times = measure(binaries, options, ranks, steps)
        passed.append(statistics.median(times[0]))
        worked += times[1]
    usual = [statistics.median(column) for column in zip(*rates)]
    best = [max(column) for column in zip(*rates)]
    return {"preset": preset, "ranks": ranks, "rates": rates,
            "passed": statistics.median(passed), "worked": min(worked), "all_worked": worked,
            "predicted": predict(binaries, options, ranks, option_of(usual)),
            "predicted_best": predict(binaries, options, ranks, option_of(best))}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("binaries")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--presets", nargs="*", default=PRESETS)
    parser.add_argument("--json")
    parser.add_argument("--model", nargs="*", default=[])
    asked = parser.parse_args()
    model = ["--" + option for option in asked.model]
    print("%20s %5s   %s   %s" % ("", "", "time that passes, median".ljust(31),
                                  "time of processors, best"))
    columns = "   %10s %12s %7s" % ("measured", "predicted", "error")
    print("%-20s %5s" % ("preset", "ranks") + 2 * columns)
    rows = []
    for preset in asked.presets:
        for ranks in (1, 2):
            row = row_of(asked.binaries, preset, ranks, model, asked.steps, asked.runs)
            rows.append(row)
            text = "%-20s %5d" % (preset, ranks)
            for measured, predicted in (("passed", "predicted"), ("worked", "predicted_best")):
                text += "   %7.1f ms %9.1f ms %+6.1f%%" % (
                    row[measured], row[predicted], 100 * (row[predicted] / row[measured] - 1))
            print(text, flush=True)
    if asked.json:
        with open(asked.json, "w") as file:
            json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()
