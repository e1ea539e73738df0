"""Save and load of a checkpoint beside torch.distributed.checkpoint, in turn, to one disk.

checkpoint_bench.py --bin DIR --python PYTHON [--rounds N] [--json FILE]

Both write and read the same number of bytes with 2 and 4 ranks on this machine; ours hashes all of
them, which DCP does not. `--bin` has checkpoint_bench.
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile

DCP = """
import json, os, sys, time, torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
directory, total = sys.argv[1], int(sys.argv[2])
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
torch.set_num_threads(1)
state = {f"{rank}.{i}": torch.ones(total // size // 4 // 24) for i in range(24)}
times = []
for place in ("warm", "measured"):
    dist.barrier()
    began = time.monotonic()
    dcp.save(state, checkpoint_id=os.path.join(directory, place))
    dist.barrier()
    saved = time.monotonic()
    dcp.load(state, checkpoint_id=os.path.join(directory, place))
    dist.barrier()
    times = [saved - began, time.monotonic() - saved]
if rank == 0:
    print(json.dumps(times))
"""


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def of_dcp(python, directory, ranks, total):
    """Seconds of one save and one load."""
    port = str(free_port())
    started = []
    for rank in range(ranks):
        env = dict(os.environ, RANK=str(rank), WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1",
                   MASTER_PORT=port)
        command = [python, "-c", DCP, directory, str(total)]
        started.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE,
                                        stderr=subprocess.DEVNULL, text=True))
    texts = [process.communicate()[0] for process in started]
    if any(process.returncode != 0 for process in started):
        sys.exit("torch.distributed.checkpoint failed")
    return json.loads(texts[0])


def ours(bin_directory, directory, ranks):
    """(bytes, seconds of one save, of one load)."""
    out = os.path.join(directory, "ours.json")
    subprocess.run([os.path.join(bin_directory, "checkpoint_bench"), "--directory", directory,
                    "--ranks", str(ranks), "--rounds", "1", "--json", out],
                   check=True, stdout=subprocess.DEVNULL)
    with open(out) as file:
        (row,) = json.load(file)
    return row["bytes"], row["save"][0], row["load"][0]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", required=True)
    parser.add_argument("--python", required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json")
    options = parser.parse_args()
    rows = []
    for ranks in (2, 4):
        row = {"ranks": ranks, "save": [], "load": [], "dcp_save": [], "dcp_load": []}
        for _ in range(options.rounds):
            with tempfile.TemporaryDirectory(dir=os.path.dirname(options.json or "./")) as place:
                row["bytes"], save, load = ours(options.bin, place, ranks)
                dcp_save, dcp_load = of_dcp(options.python, place, ranks, row["bytes"])
            for key, seconds in (("save", save), ("load", load), ("dcp_save", dcp_save),
                                 ("dcp_load", dcp_load)):
                row[key].append(seconds)
        rows.append(row)
        for what in ("save", "load"):
            own, peer = (statistics.median(row[key]) for key in (what, "dcp_" + what))
            print(f"{what}  {ranks} ranks  {row['bytes'] / own / 1e6:7.0f} MB/s  "
                  f"DCP {row['bytes'] / peer / 1e6:7.0f} MB/s  {peer / own:.2f} times")
    if options.json:
        with open(options.json, "w") as file:
            json.dump(rows, file)


if __name__ == "__main__":
    main()
