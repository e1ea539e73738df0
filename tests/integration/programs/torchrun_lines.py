"""Runs command lines through the real torchrun and says what came of each.

Reads a JSON list of jobs from the file it is given: {"seconds": ..., "nodes": [{"args": [...],
"environment": {...}, "out": directory}, ...]}. Writes a list of exit codes for each (null: still
running after so many seconds). PyTorch is imported once; each node runs in a process forked after
that, in a session of its own, with exactly the environment given.
"""
import json
import os
import signal
import sys
import time

import torch.distributed.run as run

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


class Job:
    def __init__(self, request):
        self.codes = [None] * len(request["nodes"])
        self.pids = {start(node): i for i, node in enumerate(request["nodes"])}
        self.deadline = time.monotonic() + request["seconds"]

    def ended(self, pid, status):
        self.codes[self.pids.pop(pid)] = os.waitstatus_to_exitcode(status)

    def give_up(self):
        for pid in self.pids:
            os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        self.pids = {}


def main():
    with open(sys.argv[1]) as file:
        waiting = json.load(file)
    jobs = []
    running = []
    while waiting or running:
        while waiting and len(running) < AT_ONCE:
            running.append(Job(waiting.pop(0)))
            jobs.append(running[-1])
        pid, status = os.waitpid(-1, os.WNOHANG)
        for job in running:
            if pid in job.pids:
                job.ended(pid, status)
            if time.monotonic() > job.deadline:
                job.give_up()
        running = [job for job in running if job.pids]
        if pid == 0:
            time.sleep(0.02)
    json.dump([job.codes for job in jobs], sys.stdout)


if __name__ == "__main__":
    main()
