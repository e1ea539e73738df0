"""How rank 0 of the scripts beside this one ends: `sys.argv` is SCRIPT, FOLDER, HOW."""
import os
import signal
import sys
import time

import torch
import torch.distributed as dist


def end():
    """Called by both ranks. The first attempt waits for FOLDER/go; HOW=kill ends it alone."""
    folder, how = sys.argv[1:]
    is_first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    other = torch.tensor([os.getpid()])
    dist.broadcast(other, src=1)
    if how != "kill":
        dist.destroy_process_group()  # Gloo may abort while Python ends
    if os.environ["RANK"] != "0":
        return
    while is_first and not os.path.exists(os.path.join(folder, "go")):
        time.sleep(0.02)
    if how == "kill":
        if is_first:
            os.kill(os.getpid(), signal.SIGKILL)
        return
    while os.path.exists("/proc/%d" % other):  # it has said all that it has to say
        time.sleep(0.02)
    if how == "exit":
        sys.exit(3)
    if how == "os_exit":
        sys.stdout.flush()
        os._exit(5)
    raise ValueError("rank 0 gives up")
