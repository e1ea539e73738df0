"""Says what a worker finds of itself; fails in its first attempt once the warm process is ready.

usage: warm_rank.py FOLDER [kill|exception|change MODULE_FILE]

In FOLDER each attempt of each rank leaves a JSON file of what it found. Rank 0's first attempt
waits for FOLDER/go, so that the starter of the job decides when it is over.
"""
import json
import multiprocessing
import os
import pickle
import random
import resource
import signal
import sys
import tempfile
import time

import bank  # of the test's own folder


class Kept:
    """Of __main__, which pickle finds by its name."""


def found():
    with open("/proc/self/status") as status:
        fields = dict(line.split(":", 1) for line in status.read().splitlines())
    return {
        "argv": sys.argv,
        "main": [__name__, __file__, __spec__ is None],
        "path": sys.path[0],
        "flags": list(sys.flags),
        "folder": os.getcwd(),
        "command_line": open("/proc/self/cmdline").read(),
        "leads": [os.getsid(0) == os.getpid(), os.getpgid(0) == os.getpid()],
        "open_files": resource.getrlimit(resource.RLIMIT_NOFILE),
        "cpus": sorted(os.sched_getaffinity(0)),
        "signals": [fields[name].strip() for name in ("SigBlk", "SigIgn", "SigCgt")],
        "descriptors": sorted(
            int(fd) for fd in os.listdir("/proc/self/fd") if os.path.exists("/proc/self/fd/" + fd)
        ),
        "streams": [os.fstat(fd).st_mode >> 12 for fd in range(3)],
        "outermost": sys._getframe(1).f_back is None,
        "pickled": len(pickle.dumps(Kept())),
        "variables": {
            name: value
            for name, value in os.environ.items()
            if name in ("RANK", "LOCAL_RANK", "WORLD_SIZE") or name.startswith("MUSTER_WARM")
        },
        "mine": os.environ.get("SET_BY_BANK"),
    }


def main():
    folder, rank = sys.argv[1], os.environ["RANK"]
    attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
    own = dict(pid=os.getpid(), parent=os.getppid(), random=random.random(), name=tempfile.mktemp(),
               imported_in=bank.PID, key=multiprocessing.current_process().authkey.hex(),
               has_dynamo="torch._dynamo" in sys.modules)
    path = os.path.join(folder, "%s.%s" % (attempt, rank))
    with open(path + ".part", "w") as file:
        json.dump({"same": found(), "own": own}, file)
    os.rename(path + ".part", path)
    print("rank %s speaks in attempt %s" % (rank, attempt), flush=True)
    if attempt != "0":
        return
    while not os.path.exists(os.path.join(folder, "go")):
        time.sleep(0.02)
    if rank == "0":
        if sys.argv[2] == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        raise ValueError("rank 0 gives up")
    time.sleep(300)


if __name__ == "__main__":
    main()
