"""The Trainer of transformers, with a small model of random parameters; see ends.py."""
import sys

import torch
from torch.distributed.elastic.multiprocessing.errors import record
from transformers import (
    GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments, set_seed)

from ends import end


class Says(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        print(args.process_index, state.global_step, logs, flush=True)

    def on_train_end(self, args, state, control, **kwargs):
        print(torch.rand(1).item(), flush=True)
        end()


@record
def main():
    arguments = TrainingArguments(
        output_dir=sys.argv[1], per_device_train_batch_size=2, max_steps=6,
        logging_steps=1, save_strategy="no", report_to=[], use_cpu=True, seed=7, disable_tqdm=True)
    set_seed(7)
    config = GPT2Config(vocab_size=64, n_positions=16, n_embd=32, n_layer=2, n_head=2)
    model = GPT2LMHeadModel(config)
    tokens = torch.arange(512).reshape(32, 16) * 7 % 64
    rows = [{"input_ids": row, "labels": row} for row in tokens]
    Trainer(model=model, args=arguments, train_dataset=rows, callbacks=[Says()]).train()


if __name__ == "__main__":
    main()
