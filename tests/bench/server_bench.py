#!/usr/bin/env python3
"""How fast musterd commits checkpoints for the workers of one node, and how soon it is back.

commits    checkpoints per second that one worker can publish, one after the other, each a round
           trip from worker to agent to musterd
restart    time from the restart of a killed musterd --state_dir to the agent's first directive,
           seen as the first commit that is allowed. The workers run on.
"""
import argparse
import json
import os
import signal
import statistics
import subprocess
import time

from rendezvous_bench import DEADLINE_S, TOKEN, Daemon


class Worker:
    """commit_bench under `muster run` at a daemon."""

    def __init__(self, arguments, daemon):
        self.process = subprocess.Popen(
            [
                arguments.muster,
                "run",
                "--nnodes=1",
                "--nproc_per_node=1",
                "--rdzv_backend=c10d",
                "--rdzv_id=bench",
                f"--rdzv_endpoint=127.0.0.1:{daemon.port}",
                "--local_addr=127.0.0.1",
                os.path.join(arguments.bin, "commit_bench"),
                str(arguments.seconds),
            ],
            env=dict(os.environ, MUSTER_TOKEN=TOKEN),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=daemon.log,
            text=True,
        )

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.process.stdin.close()
        self.process.send_signal(signal.SIGINT)
        self.process.stdout.read()
        self.process.wait()

    def next(self, word):
        """The number behind the next `word`."""
        for line in self.process.stdout:
            if line.startswith(word + " "):
                return float(line.split()[1])
        raise RuntimeError(f"commit_bench ended before it said '{word}'")


def measure_restart(daemon, worker):
    daemon.process.kill()
    daemon.process.wait()
    worker.next("lost")
    begin = time.monotonic()
    daemon.start(daemon.port)
    return worker.next("back") - begin


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--bin", required=True, help="directory with muster, musterd and commit_bench"
    )
    parser.add_argument("--seconds", type=float, default=5, help="of commits")
    parser.add_argument("--restarts", type=int, default=10)
    parser.add_argument("--json")
    arguments = parser.parse_args()
    for name in ("muster", "musterd"):
        setattr(arguments, name, os.path.join(arguments.bin, name))

    signal.alarm(int(DEADLINE_S + arguments.seconds * 2 + arguments.restarts * DEADLINE_S))
    rates, restarts = {}, []
    print(f"load before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs")
    for name, options in (
        ("in memory", ()),
        ("with --state_dir", ("--state_dir={directory}/state",)),
    ):
        with Daemon(arguments.musterd, "on", options) as daemon, Worker(
            arguments, daemon
        ) as worker:
            rates[name] = worker.next("rate")
            print(f"commits, server {name}: {rates[name]:.0f} per second")
            if options:
                restarts = [measure_restart(daemon, worker) for _ in range(arguments.restarts)]
    print(
        f"server's restart to the agent's first directive: median "
        f"{statistics.median(restarts):.3f} s, worst {max(restarts):.3f} s, "
        f"{len(restarts)} runs"
    )
    if arguments.json:
        os.makedirs(os.path.dirname(arguments.json) or ".", exist_ok=True)
        with open(arguments.json, "w") as file:
            json.dump({"commits_per_second": rates, "restart_s": restarts}, file, indent=1)


if __name__ == "__main__":
    main()
