"""The same training in DeepSpeed on the host, by the same configuration file: reads what
parity_probe left in DIR and prints one loss per step. AdamW is PyTorch's, since DeepSpeed's own is
compiled first.

    python3 parity_deepspeed.py DIR STEPS FILE RANKS f32|own

f32: the file's types of 16 bits are switched off; own: they are as the file has them.
"""

import json
import os
import sys

import parity_gpt as gpt
import torch


def config_of(path, dtype):
    with open(path) as file:
        config = json.load(file)
    if dtype == "f32":
        config.get("fp16", {})["enabled"] = False
    if "train_batch_size" not in config:
        config["train_micro_batch_size_per_gpu"] = gpt.ROWS
    if "optimizer" in config:
        config["optimizer"]["params"]["torch_adam"] = True
    config.update(zero_allow_untested_optimizer=True, zero_force_ds_cpu_optimizer=False)
    return config


def train(rank, ranks, directory, steps, path, dtype):
    os.environ["DS_ACCELERATOR"] = "cpu"
    import deepspeed

    # A kernel for sums in shared memory, which would be compiled first.
    sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None
    model = gpt.initial_gpt(directory)
    config = config_of(path, dtype)
    groups = gpt.weight_decay_groups(model.parameters())
    optimizer = None if "optimizer" in config else torch.optim.AdamW(groups, **gpt.ADAMW)
    engine, _, _, _ = deepspeed.initialize(
        model=model, model_parameters=groups if optimizer is None else None, optimizer=optimizer,
        config=config)
    rows = engine.train_micro_batch_size_per_gpu()
    accumulation = engine.gradient_accumulation_steps()
    ids = gpt.read_batches(directory, steps, ranks * accumulation, rows)
    for step in range(steps):
        total = torch.zeros(())
        for index in range(accumulation):
            inputs, targets = ids[step, rank * accumulation + index]
            loss = gpt.loss_of(engine(inputs), targets)
            engine.backward(loss)
            engine.step()
            total += loss.detach() / accumulation
        gpt.print_mean(total, ranks, rank)


if __name__ == "__main__":
    _, directory, steps, file, ranks, dtype = sys.argv
    gpt.on_ranks(int(ranks), train, directory, int(steps), file, dtype)
