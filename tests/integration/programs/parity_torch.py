"""The same training in PyTorch: reads what parity_probe left in DIR and prints one loss per step.

    python3 parity_torch.py DIR STEPS MICRO_BATCHES
"""

import json
import math
import struct
import sys

import numpy
import torch
from torch.nn import functional as F

LAYERS, HEADS, WIDTH, CONTEXT, ROWS = 2, 4, 64, 32, 3


def read_safetensors(path):
    with open(path, "rb") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(size))
        data = file.read()
    arrays = {}
    for name, info in header.items():
        if name == "__metadata__":
            continue
        assert info["dtype"] == "F32"
        begin, end = info["data_offsets"]
        array = numpy.frombuffer(data[begin:end], dtype="<f4").reshape(info["shape"])
        arrays[name] = torch.nn.Parameter(torch.tensor(array))
    return arrays


def loss_of(p, inputs, targets):
    x = p["wte.weight"][inputs] + p["wpe.weight"][: inputs.shape[1]]
    batch, sequence, _ = x.shape
    mask = torch.ones(sequence, sequence, dtype=torch.bool).tril()

    def norm(x, name):
        return F.layer_norm(x, (WIDTH,), p[name + ".weight"], p[name + ".bias"])

    def linear(x, name):
        return F.linear(x, p[name + ".weight"], p[name + ".bias"])

    for layer in range(LAYERS):
        h = f"h.{layer}."
        qkv = linear(norm(x, h + "ln_1"), h + "attn.c_attn")
        shape = (batch, sequence, HEADS, WIDTH // HEADS)
        q, k, v = (part.view(shape).transpose(1, 2) for part in qkv.split(WIDTH, 2))
        scores = (q @ k.transpose(-2, -1)) / math.sqrt(WIDTH // HEADS)
        y = F.softmax(scores.masked_fill(~mask, float("-inf")), dim=-1) @ v
        x = x + linear(y.transpose(1, 2).reshape(batch, sequence, WIDTH), h + "attn.c_proj")
        hidden = F.gelu(linear(norm(x, h + "ln_2"), h + "mlp.c_fc"), approximate="tanh")
        x = x + linear(hidden, h + "mlp.c_proj")
    logits = norm(x, "ln_f") @ p["wte.weight"].t()
    return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.reshape(-1))


def main():
    directory, steps, micro_batches = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    parameters = read_safetensors(directory + "/step_00000000/model.safetensors")
    ids = numpy.fromfile(directory + "/batches.bin", dtype="<i4").astype("int64")
    ids = torch.tensor(ids.reshape(steps, micro_batches, 2, ROWS, CONTEXT))
    decayed = [v for v in parameters.values() if v.dim() > 1]
    others = [v for v in parameters.values() if v.dim() == 1]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0}],
        lr=1e-3, betas=(0.9, 0.95), eps=1e-8)
    for step in range(steps):
        inputs = ids[step, :, 0].reshape(-1, CONTEXT)
        targets = ids[step, :, 1].reshape(-1, CONTEXT)
        loss = loss_of(parameters, inputs, targets)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters.values(), 1.0)
        optimizer.step()
        print("%.9g" % loss.item(), flush=True)


main()
