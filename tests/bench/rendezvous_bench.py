#!/usr/bin/env python3
"""The rendezvous with thousands of agents, and how long the loss of a node takes.

crowd      what musterd uses for so many agents (agent_crowd.cc), each with a TCP connection of its
           own, joined, at rest and restarted. The agents share this machine's CPUs with the server.
real       the same figures for as many processes `muster run`, each with a worker; they must not
           differ from the crowd's.
node loss  time from the `kill -9` of the agent, guardian and workers of one node of three to the
           start of the survivors' next round; worst of all runs. The lease is 6 s.
agent loss the same where the agent alone is killed, and its guardian tells of it.
"""
import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

TOKEN = 64 * "b"  # for benchmarks, of no use elsewhere
DEADLINE_S = 60
YOUNG_S = 7  # a musterd completes no round in its first lease (rendezvous/README.md)


class Daemon:
    """A musterd on a free port of the loopback address."""

    def __init__(self, binary, tls, options=()):
        self.directory = tempfile.mkdtemp(prefix="rendezvous_bench.")
        port_file = self.directory + "/port"
        self.log = open(self.directory + "/log", "wb")
        self.argv = [
            binary,
            f"--tls={tls}",
            *(option.format(directory=self.directory) for option in options),
        ]
        self.start(0, f"--port_file={port_file}")
        wait_until(lambda: os.path.exists(port_file), "musterd listens")
        self.port = int(open(port_file).read())

    def start(self, port, *more):
        self.process = subprocess.Popen(
            self.argv + [f"--listen=127.0.0.1:{port}", *more],
            env=dict(os.environ, MUSTER_TOKEN=TOKEN),
            stdout=self.log,
            stderr=self.log,
        )

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.process.terminate()
        self.process.wait()
        self.log.close()
        shutil.rmtree(self.directory, ignore_errors=True)


def wait_until(condition, what):
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError("waited in vain: " + what)
        time.sleep(0.005)


def measure_crowd(arguments, agents, tls):
    with Daemon(arguments.musterd, tls) as daemon:
        time.sleep(YOUNG_S)
        done = subprocess.run(
            [
                arguments.crowd,
                str(daemon.process.pid),
                "127.0.0.1",
                str(daemon.port),
                str(agents),
                tls,
                str(arguments.rest),
            ],
            env=dict(os.environ, MUSTER_TOKEN=TOKEN),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    if done.returncode != 0:
        raise RuntimeError("agent_crowd failed:\n" + done.stderr[-2000:])
    return dict(json.loads(done.stdout), tls=tls)


def usage(pid):
    """CPU seconds and resident KiB of a process."""
    fields = open(f"/proc/{pid}/stat").read().rpartition(") ")[2].split()
    return ((int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"),
            int(fields[21]) * os.sysconf("SC_PAGE_SIZE") / 1024)


def measure_real(arguments, agents, tls):
    with Daemon(arguments.musterd, tls) as daemon:
        time.sleep(YOUNG_S)
        script = daemon.directory + "/train.sh"
        with open(script, "w") as file:
            file.write(f"#!/bin/sh\ntouch {daemon.directory}/up.$RANK\nexec sleep 1000\n")
        os.chmod(script, 0o755)
        cpu, memory = usage(daemon.process.pid)
        begin = time.monotonic()
        nodes = [
            subprocess.Popen(
                [
                    arguments.muster,
                    "run",
                    f"--nnodes={agents}",
                    "--rdzv_backend=c10d",
                    "--rdzv_id=real",
                    f"--tls={tls}",
                    "--max_restarts=1",
                    "--rdzv_conf=join_timeout=600",
                    f"--rdzv_endpoint=127.0.0.1:{daemon.port}",
                    f"--local_addr=127.1.{node // 250}.{node % 250 + 1}",
                    script,
                ],
                env=dict(os.environ, MUSTER_TOKEN=TOKEN),
                stdout=daemon.log,
                stderr=daemon.log,
            )
            for node in range(agents)
        ]
        try:
            deadline = begin + 600
            while sum(name.startswith("up.") for name in os.listdir(daemon.directory)) < agents:
                if time.monotonic() > deadline:
                    raise RuntimeError("not all real agents run")
                time.sleep(0.1)
            ranked = time.monotonic() - begin
            cpu_joined, memory_joined = usage(daemon.process.pid)
            time.sleep(arguments.rest / 4)
            cpu_rest, _ = usage(daemon.process.pid)
            time.sleep(arguments.rest)
            cpu_end, _ = usage(daemon.process.pid)
        finally:
            for node in nodes:
                node.send_signal(signal.SIGINT)
            for node in nodes:
                node.wait()
    return {
        "agents": agents,
        "tls": tls,
        "ranked_s": ranked,
        "join_cpu_ms": (cpu_joined - cpu) / agents * 1e3,
        "join_kib": (memory_joined - memory) / agents,
        "rest_cores": (cpu_end - cpu_rest) / arguments.rest,
    }


def descendants(pid):
    children = []
    for task in os.listdir(f"/proc/{pid}/task"):
        children += [
            int(child) for child in open(f"/proc/{pid}/task/{task}/children").read().split()
        ]
    return children + [below for child in children for below in descendants(child)]


def measure_node_loss(arguments, kills_guardian):
    """Seconds from the kill of one node of three to the survivors' workers of the next round."""
    with Daemon(arguments.musterd, "on") as daemon:
        out = daemon.directory
        script = out + "/train.sh"
        with open(script, "w") as file:
            file.write(
                f"#!/bin/sh\ntouch {out}/$TORCHELASTIC_RESTART_COUNT.$WORLD_SIZE.$RANK\n"
                "exec sleep 1000\n"
            )
        os.chmod(script, 0o755)
        agents = [
            subprocess.Popen(
                [
                    arguments.muster,
                    "run",
                    "--nnodes=2:3",
                    "--rdzv_backend=c10d",
                    "--rdzv_id=loss",
                    f"--rdzv_endpoint=127.0.0.1:{daemon.port}",
                    f"--local_addr=127.0.0.{node}",
                    "--rdzv_conf=last_call_timeout=30",
                    script,
                ],
                env=dict(os.environ, MUSTER_TOKEN=TOKEN),
                stdout=daemon.log,
                stderr=daemon.log,
            )
            for node in (1, 2, 3)
        ]
        try:
            wait_until(
                lambda: all(os.path.exists(f"{out}/0.3.{rank}") for rank in range(3)),
                "three nodes run",
            )
            begin = time.monotonic()
            below = descendants(agents[2].pid) if kills_guardian else []
            for pid in [agents[2].pid] + below:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:  # the guardian was quicker
                    pass
            wait_until(
                lambda: all(os.path.exists(f"{out}/1.2.{rank}") for rank in range(2)),
                "two nodes run again",
            )
            return time.monotonic() - begin
        finally:
            for agent in agents:
                if agent.poll() is None:
                    agent.send_signal(signal.SIGINT)
            for agent in agents:
                agent.wait()


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--bin", required=True, help="directory with muster, musterd and agent_crowd"
    )
    parser.add_argument("--agents", type=int, nargs="*", default=[400, 10000])
    parser.add_argument("--real", type=int, nargs="*", default=[100],
                        help="nodes that are real processes, of some 20 MB each")
    parser.add_argument("--rest", type=float, default=30, help="seconds at rest that are measured")
    parser.add_argument("--losses", type=int, default=20)
    parser.add_argument("--tls", nargs="*", default=["off", "on"])
    parser.add_argument("--json")
    arguments = parser.parse_args()
    for name in ("muster", "musterd"):
        setattr(arguments, name, os.path.join(arguments.bin, name))
    arguments.crowd = os.path.join(arguments.bin, "agent_crowd")

    rows = []
    print(
        f"{'agents':>7} {'TLS':>4} {'ranked':>8} {'CPU/join':>9} {'memory':>8} {'at rest':>10} "
        f"{'restart':>8} "
        f"{'CPU/agent':>9}"
    )
    for agents in arguments.agents:
        for tls in arguments.tls:
            row = measure_crowd(arguments, agents, tls)
            rows.append(row)
            print(
                f"{agents:>7} {tls:>4} {row['ranked_s']:>6.1f} s {row['join_cpu_ms']:>6.2f} ms "
                f"{row['join_kib']:>4.0f} KiB {row['rest_cores']:>5.3f} cores "
                f"{row['restart_s']:>6.1f} s "
                f"{row['restart_cpu_ms']:>6.2f} ms",
                flush=True,
            )
    real = [
        measure_real(arguments, agents, tls) for agents in arguments.real for tls in arguments.tls
    ]
    for row in real:
        print(
            f"{row['agents']:>7} {row['tls']:>4} {row['ranked_s']:>6.1f} s "
            f"{row['join_cpu_ms']:>6.2f} ms "
            f"{row['join_kib']:>4.0f} KiB {row['rest_cores']:>5.3f} cores, real processes",
            flush=True,
        )
    losses = {"node": [], "agent": []}
    for unused in range(arguments.losses):
        losses["node"].append(measure_node_loss(arguments, kills_guardian=True))
        losses["agent"].append(measure_node_loss(arguments, kills_guardian=False))
    for name, seconds in losses.items():
        if seconds:
            print(
                f"{name} loss, {len(seconds)} times: median {statistics.median(seconds):.2f} s, "
                f"worst {max(seconds):.2f} s"
            )
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(
                {
                    "crowd": rows,
                    "real": real,
                    "node_loss_s": losses["node"],
                    "agent_loss_s": losses["agent"],
                },
                file,
                indent=1,
            )


if __name__ == "__main__":
    sys.exit(main())
