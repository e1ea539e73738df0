"""The same training in Accelerate on the host, by a configuration file: reads what parity_probe
left in DIR and prints one loss per step.

    accelerate launch --config_file FILE --num_processes N parity_accelerate.py DIR STEPS
"""

import os
import sys

import parity_gpt as gpt
import torch


def train(directory, steps):
    os.environ.update(DS_ACCELERATOR="cpu", GLOO_SOCKET_IFNAME="lo")
    torch.set_num_threads(1)
    import accelerate

    model = gpt.initial_gpt(directory)
    model._no_split_modules = ["Block"]
    optimizer = torch.optim.AdamW(gpt.weight_decay_groups(model.parameters()), **gpt.ADAMW)
    by_deepspeed = os.environ.get("ACCELERATE_USE_DEEPSPEED") == "true"
    if by_deepspeed:
        import deepspeed

        # A kernel for sums in shared memory, which would be compiled first.
        sys.modules[deepspeed.comm.__name__ + ".torch"].build_shm_op = lambda: None
    # Told of the host, Accelerate leaves DeepSpeed out; not told, it asks for a GPU's backend.
    gloo = accelerate.InitProcessGroupKwargs(backend="gloo")
    accelerator = accelerate.Accelerator(cpu=not by_deepspeed, kwargs_handlers=[gloo])
    if by_deepspeed:
        accelerator.state.deepspeed_plugin.deepspeed_config.update(
            train_micro_batch_size_per_gpu=gpt.ROWS, zero_allow_untested_optimizer=True)
    model, optimizer = accelerator.prepare(model, optimizer)
    accumulation = accelerator.gradient_accumulation_steps
    ranks, rank = accelerator.num_processes, accelerator.process_index
    ids = gpt.read_batches(directory, steps, ranks * accumulation)
    for step in range(steps):
        total = torch.zeros(())
        for index in range(accumulation):
            inputs, targets = ids[step, rank * accumulation + index]
            with accelerator.accumulate(model):
                loss = gpt.loss_of(model(inputs), targets)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
            total += loss.detach() / accumulation
        gpt.print_mean(total, ranks, rank)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    train(sys.argv[1], int(sys.argv[2]))
