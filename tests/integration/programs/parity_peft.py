"""The same adapters by PEFT: reads what parity_probe left in DIR and prints one loss per step.

    python3 parity_peft.py DIR STEPS MICRO_BATCHES RANK RATE [bf16]

With bf16 the model beneath is in it, and PEFT keeps adapters in f32.
"""

import sys

import parity_gpt as gpt
import peft
import torch


def adapted_gpt(directory, rank, dtype):
    arrays = gpt.initial_values(directory)
    base = {name: array for name, array in arrays.items() if ".lora." not in name}
    model = gpt.Gpt(base["wte.weight"].shape[0])
    model.load_state_dict(base)
    model.to(dtype)
    config = peft.LoraConfig(r=rank, lora_alpha=rank, lora_dropout=0.0, bias="none",
                             target_modules=["c_attn", "c_proj", "c_fc"])
    model = peft.get_peft_model(model, config)
    state = model.state_dict()
    for name, array in arrays.items():
        if ".lora." in name:
            layer, _, side = name.rpartition(".lora.")
            side = {"down": "lora_A", "up": "lora_B"}[side]
            state["base_model.model.%s.%s.default.weight" % (layer, side)].copy_(array)
    return model


def main():
    directory, steps, micro_batches, rank = sys.argv[1], *map(int, sys.argv[2:5])
    torch.set_num_threads(1)
    model = adapted_gpt(directory, rank,
                        torch.bfloat16 if sys.argv[6:] == ["bf16"] else torch.float32)
    learned = [parameter for parameter in model.parameters() if parameter.requires_grad]
    assert all(parameter.dtype == torch.float32 for parameter in learned)
    ids = gpt.read_batches(directory, steps, micro_batches)
    optimizer = torch.optim.AdamW(gpt.weight_decay_groups(learned),
                                  **dict(gpt.ADAMW, lr=float(sys.argv[5])))
    for step in range(steps):
        inputs = ids[step, :, 0].reshape(-1, gpt.CONTEXT)
        targets = ids[step, :, 1].reshape(-1, gpt.CONTEXT)
        loss = gpt.loss_of(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(learned, 1.0)
        optimizer.step()
        print("loss %.9g" % loss.item(), flush=True)


main()
