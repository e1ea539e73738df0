"""An adapter of peft on a model of transformers, over DistributedDataParallel; see ends.py."""
import peft
import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record
from transformers import GPT2Config, GPT2LMHeadModel, set_seed

from ends import end


@record
def main():
    dist.init_process_group("gloo")
    set_seed(7)
    config = GPT2Config(vocab_size=64, n_positions=16, n_embd=32, n_layer=2, n_head=2)
    adapter = peft.LoraConfig(r=4, target_modules=["c_attn"], fan_in_fan_out=True)
    model = peft.get_peft_model(GPT2LMHeadModel(config), adapter)
    if dist.get_rank() == 0:
        model.print_trainable_parameters()
    model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(
        [tensor for tensor in model.parameters() if tensor.requires_grad], lr=1e-2)
    for step in range(4):
        tokens = torch.randint(0, 64, (2, 16))
        loss = model(input_ids=tokens, labels=tokens).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(dist.get_rank(), step, loss.item(), flush=True)
    end()


if __name__ == "__main__":
    main()
