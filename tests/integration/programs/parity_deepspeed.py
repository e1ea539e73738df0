"""The same training in DeepSpeed on the host, by the same configuration file: reads what parity_probe left in DIR and
prints one loss per step. Types of 16 bits are switched off; AdamW is PyTorch's, since DeepSpeed's own is compiled first.

    python3 parity_deepspeed.py DIR STEPS FILE RANKS
"""

import json
import os
import socket
import struct
import sys

import numpy
import torch
import torch.multiprocessing as multiprocessing
from torch.nn import functional as F

LAYERS, HEADS, WIDTH, CONTEXT = 2, 4, 64, 32
ROWS_WITHOUT_BATCH = 3


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


def config_of(path):
    with open(path) as file:
        config = json.load(file)
    config.get("fp16", {})["enabled"] = False
    if "train_batch_size" not in config:
        config["train_micro_batch_size_per_gpu"] = ROWS_WITHOUT_BATCH
    if "optimizer" in config:
        config["optimizer"]["params"]["torch_adam"] = True
    config.update(zero_allow_untested_optimizer=True, zero_force_ds_cpu_optimizer=False)
    return config


def train(rank, port, directory, steps, path, ranks):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(ranks),
                      LOCAL_RANK=str(rank), GLOO_SOCKET_IFNAME="lo", DS_ACCELERATOR="cpu")
    import deepspeed

    # A kernel for sums in shared memory, which would be compiled first.
    sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None
    torch.set_num_threads(1)
    arrays = read_safetensors(directory + "/step_00000000/model.safetensors")
    model = Gpt(arrays["wte.weight"].shape[0])
    model.load_state_dict(arrays)
    config = config_of(path)
    groups = [{"params": [v for v in model.parameters() if v.dim() > 1]},
              {"params": [v for v in model.parameters() if v.dim() == 1], "weight_decay": 0.0}]
    optimizer = None
    if "optimizer" not in config:
        optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    engine, _, _, _ = deepspeed.initialize(model=model, model_parameters=groups if optimizer is None else None,
                                           optimizer=optimizer, config=config)
    rows, accumulation = engine.train_micro_batch_size_per_gpu(), engine.gradient_accumulation_steps()
    ids = numpy.fromfile(directory + "/batches.bin", dtype="<i4").astype("int64")
    ids = torch.tensor(ids.reshape(steps, ranks * accumulation, 2, rows, CONTEXT))
    for step in range(steps):
        total = torch.zeros(())
        for index in range(accumulation):
            inputs, targets = ids[step, rank * accumulation + index]
            logits = engine(inputs)
            loss = F.cross_entropy(logits.float().view(-1, logits.shape[-1]), targets.reshape(-1))
            engine.backward(loss)
            engine.step()
            total += loss.detach() / accumulation
        torch.distributed.all_reduce(total)
        if rank == 0:
            print("loss %.9g" % (total.item() / ranks), flush=True)
    torch.distributed.destroy_process_group()


def main():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ranks = int(sys.argv[4])
    multiprocessing.spawn(train, (port, sys.argv[1], int(sys.argv[2]), sys.argv[3], ranks), nprocs=ranks)


if __name__ == "__main__":
    main()
