#!/usr/bin/env python3
"""The start of a job on one node with what is done for the network, beside --network=off.

A job of one node has no network to check, so the two must be alike: the ratio of the medians is to
be at most 1.2. Both start the same tiny workers (exec_probe.cc), in turn.
"""
import argparse
import json
import statistics

import launch_bench


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--muster", required=True)
    parser.add_argument("--probe", required=True)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--repeat", type=int, default=15)
    parser.add_argument("--json")
    arguments = parser.parse_args()
    samples = {"auto": [], "off": []}
    for _ in range(arguments.repeat):
        for network, values in samples.items():
            command = [arguments.muster, "run", f"--nproc_per_node={arguments.workers}",
                       "--standalone", "--max_restarts=1", "--no_python", f"--network={network}",
                       arguments.probe]
            values.append(launch_bench.measure(command, arguments.workers)["start_ms"])
    auto, off = (statistics.median(samples[network]) for network in ("auto", "off"))
    print(f"start of {arguments.workers} workers on one node: --network=auto {auto:.1f} ms, "
          f"off {off:.1f} ms, ratio {auto / off:.2f} (at most 1.2 is to be reached)")
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(samples, file, indent=1)


if __name__ == "__main__":
    main()
