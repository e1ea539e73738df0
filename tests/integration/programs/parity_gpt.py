"""The GPT of parity_probe in PyTorch and what the probe leaves in a directory, for the scripts that
train it beside ours.
"""

import json
import os
import socket
import struct

# AMX that a virtual machine shows and does not let be used ends PyTorch by SIGILL.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")

import numpy
import torch
import torch.multiprocessing as multiprocessing
from torch.nn import functional as F

LAYERS, HEADS, WIDTH, CONTEXT = 2, 4, 64, 32
ROWS = 3  # of a micro-batch, where nothing says another number
ADAMW = {"lr": 1e-3, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = torch.nn.LayerNorm(WIDTH), torch.nn.LayerNorm(WIDTH)
        self.attn = torch.nn.ModuleDict({"c_attn": torch.nn.Linear(WIDTH, 3 * WIDTH),
                                         "c_proj": torch.nn.Linear(WIDTH, WIDTH)})
        self.mlp = torch.nn.ModuleDict({"c_fc": torch.nn.Linear(WIDTH, 4 * WIDTH),
                                        "c_proj": torch.nn.Linear(4 * WIDTH, WIDTH)})

    def forward(self, x):
        batch, sequence, _ = x.shape
        parts = self.attn["c_attn"](self.ln_1(x)).split(WIDTH, 2)
        shape = (batch, sequence, HEADS, WIDTH // HEADS)
        q, k, v = (part.view(shape).transpose(1, 2) for part in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attn["c_proj"](y.transpose(1, 2).reshape(batch, sequence, WIDTH))
        hidden = F.gelu(self.mlp["c_fc"](self.ln_2(x)), approximate="tanh")
        return x + self.mlp["c_proj"](hidden)


class Gpt(torch.nn.Module):
    def __init__(self, vocabulary):
        super().__init__()
        self.wte = torch.nn.Embedding(vocabulary, WIDTH)
        self.wpe = torch.nn.Embedding(CONTEXT, WIDTH)
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
        if name == "__metadata__":
            continue
        assert info["dtype"] == "F32"
        begin, end = info["data_offsets"]
        array = numpy.frombuffer(data[begin:end], dtype="<f4").reshape(info["shape"])
        arrays[name] = torch.tensor(array)
    return arrays


def initial_values(directory):
    return read_safetensors(directory + "/initial/model.safetensors")


def initial_gpt(directory):
    arrays = initial_values(directory)
    model = Gpt(arrays["wte.weight"].shape[0])
    model.load_state_dict(arrays)
    return model


def weight_decay_groups(parameters):
    """Matrices, and vectors without weight decay."""
    parameters = list(parameters)
    return [{"params": [v for v in parameters if v.dim() > 1]},
            {"params": [v for v in parameters if v.dim() == 1], "weight_decay": 0.0}]


def read_batches(directory, steps, micro_batches, rows=ROWS):
    """[steps, micro_batches, inputs and targets, rows, CONTEXT]"""
    ids = numpy.fromfile(directory + "/batches.bin", dtype="<i4").astype("int64")
    return torch.tensor(ids.reshape(steps, micro_batches, 2, rows, CONTEXT))


def loss_of(logits, targets):
    return F.cross_entropy(logits.float().view(-1, logits.shape[-1]), targets.reshape(-1))


def print_mean(loss, ranks, rank):
    """Of one step, over the ranks."""
    mean = loss.detach().clone()
    torch.distributed.all_reduce(mean)
    if rank == 0:
        print("loss %.9g" % (mean.item() / ranks), flush=True)


def _begin(rank, train, port, ranks, arguments):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank),
                      WORLD_SIZE=str(ranks), LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(ranks),
                      GLOO_SOCKET_IFNAME="lo")
    torch.set_num_threads(1)
    train(rank, ranks, *arguments)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def on_ranks(ranks, train, *arguments):
    """Runs train(rank, ranks, *arguments) in processes that find the variables of a worker."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    multiprocessing.spawn(_begin, (train, port, ranks, arguments), nprocs=ranks)
