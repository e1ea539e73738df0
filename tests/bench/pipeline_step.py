"""The peer of muster-train's pipelines: a step of the GPT of step_bench.py, with more layers, under
a schedule of PyTorch's torch.distributed.pipelining, on Gloo and one thread per rank.

    muster run --nproc_per_node=4 pipeline_step.py STEPS LAYERS MICRO_BATCHES SCHEDULE

SCHEDULE is muster-train's name for it. A micro-batch is one sequence.
"""

import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining import schedules
from torch.nn import functional as F

import step_bench
from step_bench import CONTEXT, VOCABULARY, Gpt

# Of each of our names PyTorch's class, its stages per rank, and whether they lie in a V. Its zero
# bubble with one stage per rank is ZB1P, whose order of passes zb-h1 has.
SCHEDULES = {
    "gpipe": (schedules.ScheduleGPipe, 1, False),
    "1f1b": (schedules.Schedule1F1B, 1, False),
    "interleaved": (schedules.ScheduleInterleaved1F1B, 2, False),
    "zb-h1": (schedules.ScheduleInterleavedZeroBubble, 1, False),
    "zbv": (schedules.ScheduleZBVZeroBubble, 2, True),
    "dualpipev": (schedules.ScheduleDualPipeV, 2, True),
}


class Stage(nn.Module):
    """A share of the blocks, behind the embeddings in the first stage, before the loss's logits in
    the last."""

    def __init__(self, gpt, index, stages):
        super().__init__()
        blocks = len(gpt.blocks) // stages
        self.blocks = gpt.blocks[index * blocks : (index + 1) * blocks]
        self.is_first, self.is_last = index == 0, index == stages - 1
        if self.is_first:
            self.wte, self.wpe = gpt.wte, gpt.wpe
        if self.is_last:
            self.ln_f = gpt.ln_f
            self.head = nn.Parameter(gpt.wte.weight.detach().clone())  # tied: see Tie

    def forward(self, x):
        if self.is_first:
            x = self.wte(x) + self.wpe(torch.arange(x.shape[1]))
        x = self.blocks(x)
        return F.linear(self.ln_f(x), self.head) if self.is_last else x


class Tie:
    """Adds the gradients of the two copies of the table, in the first stage and in the last."""

    def __init__(self, stages, rank_of_last):
        self.group = dist.new_group([0, rank_of_last]) if rank_of_last else None
        self.tables = [s.wte.weight for s in stages if s.is_first]
        self.tables += [s.head for s in stages if s.is_last]

    def add(self):
        if self.group is not None:
            for table in self.tables:
                dist.all_reduce(table.grad, group=self.group)
        elif self.tables:
            first, last = self.tables
            first.grad += last.grad
            last.grad.copy_(first.grad)


def clip(stages):
    """To a norm of 1 over all stages, in which a table counts once."""
    counted = [p.grad for s in stages for name, p in s.named_parameters() if name != "head"]
    squares = torch.nn.utils.get_total_norm(counted) ** 2
    dist.all_reduce(squares)
    parameters = [p for s in stages for p in s.parameters()]
    torch.nn.utils.clip_grads_with_norm_(parameters, 1.0, squares.sqrt())


def optimizer_of(stages):
    parameters = [p for s in stages for p in s.parameters()]
    groups = [
        {"params": [p for p in parameters if p.dim() > 1], "weight_decay": 0.1},
        {"params": [p for p in parameters if p.dim() <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=3e-4, betas=(0.9, 0.95), fused=True)


def loss_of(logits, targets):
    return F.cross_entropy(logits.reshape(-1, VOCABULARY), targets.reshape(-1))


def main():
    steps, layers, micro_batches = (int(text) for text in sys.argv[1:4])
    schedule_class, stages_per_rank, is_v = SCHEDULES[sys.argv[4]]
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    step_bench.LAYERS = layers
    gpt = Gpt()
    indices = [rank, 2 * ranks - 1 - rank] if is_v else range(rank, stages_per_rank * ranks, ranks)
    num_stages = stages_per_rank * ranks
    stages = [Stage(gpt, index, num_stages) for index in indices]
    del gpt
    tie = Tie(stages, 0 if is_v else ranks - 1)
    parts = [
        PipelineStage(stage, index, num_stages, torch.device("cpu"))
        for stage, index in zip(stages, indices)
    ]
    is_single = issubclass(schedule_class, schedules.PipelineScheduleSingle)
    schedule = schedule_class(parts[0] if is_single else parts, micro_batches, loss_fn=loss_of)
    optimizer = optimizer_of(stages)
    text = torch.randint(0, VOCABULARY, (micro_batches * CONTEXT + 1,))
    shape = (micro_batches, CONTEXT)
    inputs = [text[:-1].view(shape)] if any(s.is_first for s in stages) else []
    holds_last = any(s.is_last for s in stages)
    target = text[1:].view(shape) if holds_last else None
    if rank == 0:
        print("torch %s" % torch.__version__, flush=True)
    for step in range(1, steps + 1):
        start = time.perf_counter()
        losses = [] if holds_last else None
        optimizer.zero_grad(set_to_none=True)
        schedule.step(*inputs, target=target, losses=losses, return_outputs=False)
        tie.add()
        clip(stages)
        optimizer.step()
        took = time.perf_counter() - start
        if rank == 0:
            print("step %d %.1f ms" % (step, 1e3 * took), flush=True)
        if holds_last:
            print("loss %.4f" % (sum(loss.item() for loss in losses) / micro_batches), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
