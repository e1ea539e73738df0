"""The same training in PyTorch's FSDP2 on two ranks with parameters of 16 bits: reads what parity_probe left in DIR and
prints one loss per step.

    python3 parity_fsdp.py DIR STEPS MICRO_BATCHES bf16|f16|f16-torch
"""

import json
import os
import socket
import struct
import sys

# AMX that a virtual machine shows and does not let be used ends PyTorch by SIGILL.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import numpy
import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional as F

LAYERS, HEADS, WIDTH, CONTEXT, ROWS = 2, 4, 64, 32, 3
RANKS = 2
SCALE = {"bf16": 1.0, "f16": 65536.0}


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = torch.nn.LayerNorm(WIDTH), torch.nn.LayerNorm(WIDTH)
        self.attn = torch.nn.ModuleDict({"c_attn": torch.nn.Linear(WIDTH, 3 * WIDTH), "c_proj": torch.nn.Linear(WIDTH, WIDTH)})
        self.mlp = torch.nn.ModuleDict({"c_fc": torch.nn.Linear(WIDTH, 4 * WIDTH), "c_proj": torch.nn.Linear(4 * WIDTH, WIDTH)})

    def forward(self, x):
        batch, sequence, _ = x.shape
        parts = self.attn["c_attn"](self.ln_1(x)).split(WIDTH, 2)
        q, k, v = (part.view(batch, sequence, HEADS, WIDTH // HEADS).transpose(1, 2) for part in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attn["c_proj"](y.transpose(1, 2).reshape(batch, sequence, WIDTH))
        return x + self.mlp["c_proj"](F.gelu(self.mlp["c_fc"](self.ln_2(x)), approximate="tanh"))


class Gpt(torch.nn.Module):
    def __init__(self, vocabulary):
        super().__init__()
        self.wte, self.wpe = torch.nn.Embedding(vocabulary, WIDTH), torch.nn.Embedding(CONTEXT, WIDTH)
        self.h = torch.nn.ModuleList(Block() for _ in range(LAYERS))
        self.ln_f = torch.nn.LayerNorm(WIDTH)

    def forward(self, inputs):
        x = self.wte(inputs) + self.wpe.weight[: inputs.shape[1]]
        for block in self.h:
            x = block(x)
        return self.ln_f(x) @ self.wte.weight.t()


def read_safetensors(path):
    with open(path, "rb") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(size))
        data = file.read()
    arrays = {}
    for name, info in header.items():
        if name != "__metadata__":
            begin, end = info["data_offsets"]
            arrays[name] = torch.tensor(numpy.frombuffer(data[begin:end], dtype="<f4").reshape(info["shape"]))
    return arrays


def train(rank, port, directory, steps, micro_batches, dtype):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(RANKS), GLOO_SOCKET_IFNAME="lo")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    arrays = read_safetensors(directory + "/step_00000000/model.safetensors")
    model = Gpt(arrays["wte.weight"].shape[0])
    model.load_state_dict(arrays)
    half = torch.bfloat16 if dtype == "bf16" else torch.float16
    scaler = torch.amp.GradScaler("cpu") if dtype == "f16-torch" else None
    policy = MixedPrecisionPolicy(param_dtype=half, reduce_dtype=torch.float32)
    mesh = dist.device_mesh.init_device_mesh("cpu", (RANKS,))
    for block in model.h:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    decayed = [v for v in model.parameters() if v.dim() > 1]
    others = [v for v in model.parameters() if v.dim() == 1]
    optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0}],
                                  lr=1e-3, betas=(0.9, 0.95), eps=1e-8)
    ids = numpy.fromfile(directory + "/batches.bin", dtype="<i4").astype("int64")
    ids = torch.tensor(ids.reshape(steps, micro_batches, 2, ROWS, CONTEXT))
    own = slice(rank * micro_batches // RANKS, (rank + 1) * micro_batches // RANKS)
    for step in range(steps):
        logits = model(ids[step, own, 0].reshape(-1, CONTEXT))
        loss = F.cross_entropy(logits.float().view(-1, logits.shape[-1]), ids[step, own, 1].reshape(-1))
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
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        if rank == 0:
            print("%.9g" % (mean.item() / RANKS), flush=True)
    dist.destroy_process_group()


def main():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    arguments = (port, sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
    multiprocessing.spawn(train, arguments, nprocs=RANKS)


if __name__ == "__main__":
    main()
