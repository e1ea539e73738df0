"""The same training in PyTorch's FSDP2 on two ranks with parameters of 16 bits: reads what
parity_probe left in DIR and prints one loss per step.

    python3 parity_fsdp.py DIR STEPS MICRO_BATCHES bf16|f16|f16-torch
"""

import sys

import parity_gpt as gpt
import torch
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

RANKS = 2
SCALE = {"bf16": 1.0, "f16": 65536.0}


def train(rank, ranks, directory, steps, micro_batches, dtype):
    torch.distributed.init_process_group("gloo")
    model = gpt.initial_gpt(directory)
    half = torch.bfloat16 if dtype == "bf16" else torch.float16
    scaler = torch.amp.GradScaler("cpu") if dtype == "f16-torch" else None
    policy = MixedPrecisionPolicy(param_dtype=half, reduce_dtype=torch.float32)
    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (ranks,))
    for block in model.h:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    optimizer = torch.optim.AdamW(gpt.weight_decay_groups(model.parameters()), **gpt.ADAMW)
    ids = gpt.read_batches(directory, steps, micro_batches)
    own = slice(rank * micro_batches // ranks, (rank + 1) * micro_batches // ranks)
    for step in range(steps):
        loss = gpt.loss_of(model(ids[step, own, 0].reshape(-1, gpt.CONTEXT)), ids[step, own, 1])
        optimizer.zero_grad()
        if scaler is not None:
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
        else:
            (loss * SCALE[dtype]).backward()
            for parameter in model.parameters():
                parameter.grad.div_(SCALE[dtype])
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if scaler is not None:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()
        gpt.print_mean(loss, ranks, rank)


if __name__ == "__main__":
    gpt.on_ranks(RANKS, train, sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
