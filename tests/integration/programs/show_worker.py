"""Writes its arguments and the launcher's variables to $OUT, one file per rank and attempt.

With --fail=CODE it then fails. With --fail_once rank 1 fails in the first attempt, and the other
ranks wait to be stopped.
"""
import json
import os
import sys
import time

NAMES = """RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE ROLE_NAME
ROLE_RANK ROLE_WORLD_SIZE TORCHELASTIC_RESTART_COUNT TORCHELASTIC_MAX_RESTARTS TORCHELASTIC_RUN_ID
OMP_NUM_THREADS CUDA_VISIBLE_DEVICES HIP_VISIBLE_DEVICES TF_CONFIG TORCH_NCCL_ASYNC_ERROR_HANDLING
MASTER_ADDR TORCHELASTIC_TIMER_FILE""".split()

def out(name):
    return os.path.join(os.environ["OUT"], name)


def fail_once():
    if os.path.exists(out("failed")):
        return
    if os.environ["RANK"] == "1":
        while not os.path.exists(out("waits")):
            time.sleep(0.05)
        open(out("failed"), "w").close()
        sys.exit(1)
    open(out("waits"), "w").close()
    time.sleep(600)


seen = {name: os.environ[name] for name in NAMES if name in os.environ}
seen["arguments"] = sys.argv[1:]
attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
path = out(f"worker-{attempt}-{int(os.environ['RANK']):04}.json")
with open(path + ".new", "w") as file:
    json.dump(seen, file)
os.rename(path + ".new", path)
for argument in sys.argv[1:]:
    if argument.startswith("--fail="):
        sys.exit(int(argument[7:]))
    if argument == "--fail_once":
        fail_once()
