"""The peer of step_bench.cc: wall and CPU time of the same training step in PyTorch, one thread.

    python3 step_bench.py [steps]
"""

import math
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

LAYERS, HEADS, WIDTH, CONTEXT, VOCABULARY, BATCH = 6, 6, 384, 256, 256, 4


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1 = nn.LayerNorm(WIDTH)
        self.c_attn = nn.Linear(WIDTH, 3 * WIDTH)
        self.proj = nn.Linear(WIDTH, WIDTH)
        self.ln_2 = nn.LayerNorm(WIDTH)
        self.c_fc = nn.Linear(WIDTH, 4 * WIDTH)
        self.c_proj = nn.Linear(4 * WIDTH, WIDTH)
        mask = torch.ones(CONTEXT, CONTEXT, dtype=torch.bool).tril()
        self.register_buffer("mask", ~mask)

    def attention(self, x):
        batch, sequence, width = x.shape
        shape = (batch, sequence, HEADS, width // HEADS)
        q, k, v = (part.view(shape).transpose(1, 2) for part in self.c_attn(x).split(width, 2))
        if hasattr(F, "scaled_dot_product_attention"):
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = (q @ k.transpose(-2, -1)) / math.sqrt(width // HEADS)
            scores = scores.masked_fill(self.mask[:sequence, :sequence], float("-inf"))
            y = F.softmax(scores, dim=-1) @ v
        return self.proj(y.transpose(1, 2).reshape(batch, sequence, width))

    def forward(self, x):
        x = x + self.attention(self.ln_1(x))
        return x + self.c_proj(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte = nn.Embedding(VOCABULARY, WIDTH)
        self.wpe = nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*[Block() for _ in range(LAYERS)])
        self.ln_f = nn.LayerNorm(WIDTH)
        nn.init.normal_(self.wte.weight, std=0.02)
        nn.init.normal_(self.wpe.weight, std=0.02)

    def forward(self, tokens, targets):
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1]))
        logits = F.linear(self.ln_f(self.blocks(x)), self.wte.weight)
        return F.cross_entropy(logits.view(-1, VOCABULARY), targets.view(-1))


def main():
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = Gpt()
    decayed = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() <= 1]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-4, foreach=True)
    text = torch.randint(0, VOCABULARY, (BATCH * CONTEXT + 1,))
    tokens, targets = text[:-1].view(BATCH, CONTEXT), text[1:].view(BATCH, CONTEXT)
    print("torch", torch.__version__, torch.backends.cpu.get_cpu_capability()
          if hasattr(torch.backends, "cpu") else "")
    totals = []
    for step in range(1, steps + 1):
        start = time.process_time()
        optimizer.zero_grad(set_to_none=True)
        loss = model(tokens, targets)
        forward = time.process_time()
        loss.backward()
        backward = time.process_time()
        optimizer.step()
        end = time.process_time()
        times = [
            1e3 * t for t in (forward - start, backward - forward, end - backward, end - start)
        ]
        print("step %d loss %.6f forward %.1f ms backward %.1f ms update %.1f ms total %.1f ms"
              % (step, loss.item(), *times))
        totals.append(times[-1])
    totals.sort()
    print("median %.1f ms, fastest %.1f ms" % (totals[len(totals) // 2], totals[0]))


if __name__ == "__main__":
    main()
