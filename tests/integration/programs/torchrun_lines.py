"""Runs command lines through the real torchrun and says what came of each.

Reads a JSON list of {"args": [...], "environment": {...}, "out": directory} from the file it is given and writes a list of exit
codes (null: still running at the deadline). PyTorch is imported once; each line runs in a process forked after that, in a
session of its own, with exactly the environment given.
"""
import json
import os
import signal
import sys
import time

import torch.distributed.run as run

SECONDS_PER_LINE = 60
AT_ONCE = 2


def start(line):
    pid = os.fork()
    if pid != 0:
        return pid
    os.setsid()
    os.makedirs(line["out"], exist_ok=True)
    os.chdir(line["out"])
    output = os.open("launcher.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.environ.clear()
    os.environ.update(line["environment"])
    sys.argv = ["torchrun"] + line["args"]
    code = 1
    try:
        run.main(line["args"])
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else (0 if end.code is None else 1)
    except BaseException as error:  # what the interpreter would print before it ends with 1
        print(f"{type(error).__name__}: {error}", flush=True)
    finally:
        os._exit(code)


def main():
    with open(sys.argv[1]) as file:
        lines = json.load(file)
    codes = [None] * len(lines)
    waiting = list(range(len(lines)))
    running = {}
    while waiting or running:
        while waiting and len(running) < AT_ONCE:
            index = waiting.pop(0)
            running[start(lines[index])] = (index, time.monotonic() + SECONDS_PER_LINE)
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid in running:
            index, _ = running.pop(pid)
            codes[index] = os.waitstatus_to_exitcode(status)
        for late in [p for p, (_, deadline) in running.items() if time.monotonic() > deadline]:
            os.killpg(late, signal.SIGKILL)
            os.waitpid(late, 0)
            running.pop(late)
        if pid == 0:
            time.sleep(0.02)
    json.dump(codes, sys.stdout)


if __name__ == "__main__":
    main()
