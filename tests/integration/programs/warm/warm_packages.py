"""Trains a few steps with every package that a warm process imports by itself, and says how.

Rank 0 dies in the first attempt once FOLDER/go is there; the second must say the same.
"""
import os
import signal
import sys
import time

import accelerate
import numpy
import torch
import transformers

rank, attempt = int(os.environ["RANK"]), os.environ["TORCHELASTIC_RESTART_COUNT"]
accelerate.utils.set_seed(7)
accelerator = accelerate.Accelerator(cpu=True)
config = transformers.GPT2Config(vocab_size=64, n_positions=16, n_embd=32, n_layer=2, n_head=2)
model = transformers.GPT2LMHeadModel(config)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
model, optimizer = accelerator.prepare(model, optimizer)
losses = []
for _ in range(3):
    tokens = torch.from_numpy(numpy.random.randint(0, 64, (2, 16)))
    loss = model(input_ids=tokens, labels=tokens).loss
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    losses.append(accelerator.gather(loss.detach()).tolist())
threads = (torch.get_num_threads(), torch.get_num_interop_threads())
said = (rank, attempt, losses, threads, accelerator.num_processes)
print("rank %d attempt %s: losses %r, threads %r, %d processes" % said, flush=True)
if attempt == "0":
    while not os.path.exists(os.path.join(sys.argv[1], "go")):
        time.sleep(0.02)
    if rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(300)
