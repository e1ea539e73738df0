"""The same training in PyTorch: reads what parity_probe left in DIR and prints one loss per step.

    python3 parity_torch.py DIR STEPS MICRO_BATCHES
"""

import math
import sys

import parity_gpt as gpt
import torch
from torch.nn import functional as F


def loss_of(p, inputs, targets):
    x = p["wte.weight"][inputs] + p["wpe.weight"][: inputs.shape[1]]
    batch, sequence, _ = x.shape
    mask = torch.ones(sequence, sequence, dtype=torch.bool).tril()

    def norm(x, name):
        return F.layer_norm(x, (gpt.WIDTH,), p[name + ".weight"], p[name + ".bias"])

    def linear(x, name):
        return F.linear(x, p[name + ".weight"], p[name + ".bias"])

    for layer in range(gpt.LAYERS):
        h = f"h.{layer}."
        qkv = linear(norm(x, h + "ln_1"), h + "attn.c_attn")
        shape = (batch, sequence, gpt.HEADS, gpt.WIDTH // gpt.HEADS)
        q, k, v = (part.view(shape).transpose(1, 2) for part in qkv.split(gpt.WIDTH, 2))
        scores = (q @ k.transpose(-2, -1)) / math.sqrt(gpt.WIDTH // gpt.HEADS)
        y = F.softmax(scores.masked_fill(~mask, float("-inf")), dim=-1) @ v
        x = x + linear(y.transpose(1, 2).reshape(batch, sequence, gpt.WIDTH), h + "attn.c_proj")
        hidden = F.gelu(linear(norm(x, h + "ln_2"), h + "mlp.c_fc"), approximate="tanh")
        x = x + linear(hidden, h + "mlp.c_proj")
    logits = norm(x, "ln_f") @ p["wte.weight"].t()
    return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.reshape(-1))


def main():
    directory, steps, micro_batches = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    parameters = {name: torch.nn.Parameter(array)
                  for name, array in gpt.initial_values(directory).items()}
    ids = gpt.read_batches(directory, steps, micro_batches)
    optimizer = torch.optim.AdamW(gpt.weight_decay_groups(parameters.values()), **gpt.ADAMW)
    for step in range(steps):
        inputs = ids[step, :, 0].reshape(-1, gpt.CONTEXT)
        targets = ids[step, :, 1].reshape(-1, gpt.CONTEXT)
        loss = loss_of(parameters, inputs, targets)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters.values(), 1.0)
        optimizer.step()
        print("loss %.9g" % loss.item(), flush=True)


main()
