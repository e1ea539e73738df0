"""What job_probe.c does, by deploy/python/muster_job.py, whose folder is $JOB_MODULE."""
import os
import sys
import threading
import time

sys.path.insert(0, os.environ["JOB_MODULE"])
import muster_job

out = os.environ["OUT"]
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def note(name, line):
    with open(f"{out}/{name}", "a") as file:
        file.write(line)


def step_together(step):
    note(f"step.{step}.{rank}", "")
    while not all(os.path.exists(f"{out}/step.{step}.{other}") for other in range(size)):
        time.sleep(0.001)


def stop():
    step = 0
    step_together(step)
    while not muster_job.should_stop(step):
        step += 1
        step_together(step)
    print(f"left after step {step}: {muster_job.stop_reason()}")


def commit():
    step = 0
    while not os.path.exists(f"{out}/done"):
        step += 1
        if rank == 0:
            name = {"yes": "commits", "not now": "refused", "never": "never"}[
                muster_job.commit_checkpoint(step)
            ]
            note(name, f"{os.environ['NODE']} {os.environ['MUSTER_ROUND']} {step}\n")
        time.sleep(0.05)


def rounds():
    while True:
        is_over = threading.Event()
        muster_job.survive_rounds(is_over.set)
        place = "round{TORCHELASTIC_RESTART_COUNT}.rank{RANK}".format(**os.environ)
        note(place, f"{os.getpid()} {os.environ['WORLD_SIZE']}")
        note(place + ".there", "")
        while not is_over.wait(0.005) and not os.path.exists(f"{out}/done"):
            pass
        if not is_over.is_set():
            return
        muster_job.next_round(30)


{"stop": stop, "commit": commit, "rounds": rounds}[(sys.argv[1:] or ["stop"])[0]]()
