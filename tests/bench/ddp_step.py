"""The peer of ddp_step.cc: the same step of the same GPT under PyTorch's DistributedDataParallel on
Gloo or, where this PyTorch has them, FSDP2 (fully_shard of each block, then of the whole) and
tensor parallel (parallelize_module of each block, column- and row-wise, with queries, keys and
values in matrices of their own, which torch can cut).

    muster run --nproc_per_node=2 ddp_step.py [steps] [ddp|fsdp2|tp]
"""

import functools
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from step_bench import BATCH, CONTEXT, HEADS, VOCABULARY, WIDTH, Gpt


def shard(gpt):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in gpt.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(gpt, mesh=mesh)


def attention(block, heads, x):
    batch, sequence, width = x.shape
    shape = (batch, sequence, heads, width // HEADS)
    q, k, v = (part(x).view(shape).transpose(1, 2) for part in (block.q, block.k, block.v))
    y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    return block.proj(y.transpose(1, 2).reshape(batch, sequence, -1))


def share(gpt):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import (ColwiseParallel, RowwiseParallel,
                                                   parallelize_module)
    ranks = dist.get_world_size()
    mesh = init_device_mesh("cpu", (ranks,))
    for block in gpt.blocks:
        del block.c_attn
        for name in ("q", "k", "v"):
            setattr(block, name, torch.nn.Linear(WIDTH, WIDTH))
        wide = {name: ColwiseParallel() for name in ("q", "k", "v", "c_fc")}
        narrow = {name: RowwiseParallel() for name in ("proj", "c_proj")}
        parallelize_module(block, mesh, {**wide, **narrow})
        block.attention = functools.partial(attention, block, HEADS // ranks)
    return gpt


def optimizers_of(model):
    """One of cut parameters and one of the others, which torch does not update in one call."""
    fused = {"fused": True} if torch.__version__ >= "2.5" else {"foreach": True}
    kinds = {}
    for parameter in model.parameters():
        kinds.setdefault(type(parameter.data), []).append(parameter)
    optimizers = []
    for parameters in kinds.values():
        decayed = [p for p in parameters if p.dim() > 1]
        others = [p for p in parameters if p.dim() <= 1]
        groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
        optimizers.append(torch.optim.AdamW(groups, lr=1e-4, **fused))
    return optimizers, list(kinds.values())


def main():
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(1)
    gpt = Gpt()
    for module in gpt.modules():  # Gloo cannot broadcast buffers of bool, and these are constants
        if "mask" in module._buffers:
            module.mask = module._buffers.pop("mask")
    kind = sys.argv[2] if len(sys.argv) > 2 else "ddp"
    if kind == "ddp":
        model = DistributedDataParallel(gpt, gradient_as_bucket_view=True)
    else:
        model = shard(gpt) if kind == "fsdp2" else share(gpt)
    optimizers, kinds = optimizers_of(model)
    torch.manual_seed(2 if kind == "tp" else 2 + rank)
    text = torch.randint(0, VOCABULARY, (BATCH * CONTEXT + 1,))
    tokens, targets = text[:-1].view(BATCH, CONTEXT), text[1:].view(BATCH, CONTEXT)
    if rank == 0:
        blas = [
            line.strip(" -")
            for line in torch.__config__.show().split("\n")
            if "BLAS_INFO" in line or "CPU capability" in line
        ]
        isa = torch.backends.cpu.get_cpu_capability() if hasattr(torch.backends, "cpu") else "?"
        info = blas[-1].split("BLAS_INFO=")[-1].split(",")[0] if blas else "?"
        print("torch %s blas %s isa %s mkldnn %s" % (torch.__version__, info, isa,
              torch.backends.mkldnn.is_available()), flush=True)
    for step in range(1, steps + 1):
        start = time.perf_counter()
        for optimizer in optimizers:
            optimizer.zero_grad(set_to_none=True)
        loss = model(tokens, targets)
        forward = time.perf_counter()
        loss.backward()
        backward = time.perf_counter()
        for parameters in kinds:
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        for optimizer in optimizers:
            optimizer.step()
        end = time.perf_counter()
        if rank == 0:
            print("step %d loss %.6f forward %.1f backward %.1f update %.1f total %.1f ms"
                  % (step, loss.item(), 1e3 * (forward - start), 1e3 * (backward - forward),
                     1e3 * (end - backward), 1e3 * (end - start)), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
