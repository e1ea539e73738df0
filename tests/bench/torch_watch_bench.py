#!/usr/bin/env python3
"""What the hang watch costs unmodified PyTorch programs.

all-reduce  microseconds of one all-reduce of 1024 floats over Gloo between two ranks: with
            PyTorch's flight recorder off, as the watch sets it up, and as it is without the watch
import      seconds of `import torch` without and with the import hook
agent       CPU of the agent per rank at rest, in thousandths of a core, without and with the watch;
            four ranks with a step every 50 ms

The runs of a pair alternate, so that other load on the machine meets both.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import time

DEADLINE_S = 300
STEPS = 2000
RANKS_AT_REST = 4

ALL_REDUCE = """
import time, torch, torch.distributed as dist
torch.set_num_threads(1)
dist.init_process_group("gloo")
ones = torch.ones(1024)
for count in (200, %d):
    dist.barrier()
    begin = time.perf_counter()
    for _ in range(count):
        dist.all_reduce(ones)
    took = time.perf_counter() - begin
if dist.get_rank() == 0:
    print("us", took / count * 1e6, flush=True)
dist.destroy_process_group()
""" % STEPS

AT_REST = """
import sys, time, torch, torch.distributed as dist
torch.set_num_threads(1)
dist.init_process_group("gloo")
ones = torch.ones(1024)
# The recorder is to be full.
for _ in range(600):
    dist.all_reduce(ones)
dist.barrier()
print("resting", flush=True)
end = time.monotonic() + float(sys.argv[1])
while True:
    time.sleep(0.05)
    over = torch.tensor([float(time.monotonic() > end)])
    dist.all_reduce(over)
    if over.item():
        break
dist.destroy_process_group()
"""


def environment(**changes):
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("TORCH_")}
    return dict(inherited, **changes)


def job(arguments, ranks, program, watch, *rest, **changes):
    return subprocess.Popen(
        [
            arguments.muster,
            "run",
            f"--nproc_per_node={ranks}",
            f"--watch={watch}",
            f"--log_dir={arguments.directory}",
            program,
            *rest,
        ],
        env=environment(PYTHON_EXEC=arguments.python, OMP_NUM_THREADS="1", **changes),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def all_reduce(arguments, watch, **changes):
    process = job(arguments, 2, arguments.all_reduce, watch, **changes)
    out, err = process.communicate(timeout=DEADLINE_S)
    for line in out.splitlines():
        if line.startswith("us "):
            return float(line.split()[1])
    sys.exit(f"no figure of an all-reduce: {err}")


def import_time(arguments, **changes):
    begin = time.perf_counter()
    subprocess.run([arguments.python, "-c", "import torch"], env=environment(**changes), check=True)
    return time.perf_counter() - begin


def cpu_seconds(pid):
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def agent_cpu(arguments, watch):
    """In thousandths of a core, of one rank."""
    process = job(arguments, RANKS_AT_REST, arguments.at_rest, watch, str(arguments.seconds + 4))
    for _ in range(RANKS_AT_REST):
        for line in process.stdout:
            if line.startswith("resting"):
                break
        else:
            sys.exit(f"no job at rest: {process.stderr.read()}")
    time.sleep(2)
    before, begin = cpu_seconds(process.pid), time.monotonic()
    time.sleep(arguments.seconds)
    used = (cpu_seconds(process.pid) - before) / (time.monotonic() - begin)
    process.communicate(timeout=DEADLINE_S)
    return used / RANKS_AT_REST * 1000


def hook(arguments):
    """The hook's folder, with what makes it look for its module."""
    folder = os.path.join(arguments.directory, "hook")
    os.makedirs(folder, exist_ok=True)
    source = os.path.join(os.path.dirname(__file__), "../../agent/watch/torch_hook.py")
    with open(source) as text, open(os.path.join(folder, "sitecustomize.py"), "w") as copy:
        copy.write(text.read())
    return {"PYTHONPATH": folder, "MUSTER_TORCH_SERVER": os.path.join(folder, "s")}


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--muster", required=True)
    parser.add_argument(
        "--python", required=True, help="with a PyTorch that has a worker server, 2.15 or so"
    )
    parser.add_argument("--directory", default="/tmp/torch_watch_bench")
    parser.add_argument("--runs", type=int, default=7, help="of each of a pair")
    parser.add_argument("--seconds", type=float, default=20, help="at rest")
    parser.add_argument("--json")
    arguments = parser.parse_args()
    os.makedirs(arguments.directory, exist_ok=True)
    for name, text in (("all_reduce", ALL_REDUCE), ("at_rest", AT_REST)):
        setattr(arguments, name, os.path.join(arguments.directory, name + ".py"))
        with open(getattr(arguments, name), "w") as file:
            file.write(text)

    print(f"load before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs")
    hooked = hook(arguments)
    ways = {
        "recorder off": lambda: all_reduce(arguments, "off", TORCH_FR_BUFFER_SIZE="0"),
        "watched": lambda: all_reduce(arguments, "report"),
        "watch off": lambda: all_reduce(arguments, "off"),
        "import": lambda: import_time(arguments),
        "import with the hook": lambda: import_time(arguments, **hooked),
        "agent, watch off": lambda: agent_cpu(arguments, "off"),
        "agent, watched": lambda: agent_cpu(arguments, "report"),
    }
    samples = {name: [] for name in ways}
    for run in range(arguments.runs):
        for name, measure in ways.items():
            if not name.startswith("agent") or run < 2:
                samples[name].append(measure())
    middle = {name: statistics.median(values) for name, values in samples.items()}

    def ratios(name, base):
        each = [a / b for a, b in zip(samples[name], samples[base])]
        return f"{statistics.median(each):.2f} times ({min(each):.2f} to {max(each):.2f})"

    print(
        f"all-reduce of 1024 floats: {middle['recorder off']:.0f} us without the recorder; watched "
        f"{middle['watched']:.0f} us, "
        f"{ratios('watched', 'recorder off')}; watch off {middle['watch off']:.0f} us, "
        f"{ratios('watch off', 'recorder off')}"
    )
    print(
        f"import torch: {middle['import']:.2f} s; with the hook "
        f"{middle['import with the hook']:.2f} s, "
        f"{ratios('import with the hook', 'import')}"
    )
    print(
        f"agent at rest, thousandths of a core per rank: {middle['agent, watch off']:.2f} "
        f"unwatched, "
        f"{middle['agent, watched']:.2f} watched"
    )
    if arguments.json:
        os.makedirs(os.path.dirname(arguments.json) or ".", exist_ok=True)
        with open(arguments.json, "w") as file:
            json.dump(samples, file, indent=1)


if __name__ == "__main__":
    main()
