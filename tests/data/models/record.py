"""Makes the models of this folder: small ones with random weights, as transformers saves them, and
what it computes with them.

  python3 record.py FOLDER    with torch and transformers; versions stand in each expected.json

FOLDER/<name>/config.json, model.safetensors or shards with an index, and expected.json:
  logits   of the first row of rows_of(0) at POSITIONS, [3, VOCABULARY], one after the other
  losses   the mean of each of STEPS steps of AdamW over rows_of(step)
"""

import json
import os
import sys

import torch
import transformers

VOCABULARY, CONTEXT, STEPS = 256, 16, 50
POSITIONS = [0, 7, 15]
ADAMW = {"lr": 1e-3, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}
SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4,
         "intermediate_size": 24, "vocab_size": VOCABULARY, "max_position_embeddings": 64}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 32}


def of(name, **fields):
    return getattr(transformers, name + "Config")(**{**SIZES, **fields})


# Name: configuration, type of the file, and the largest shard.
MODELS = {
    "gpt2": (transformers.GPT2Config(
        vocab_size=VOCABULARY, n_positions=64, n_embd=16, n_layer=2, n_head=4,
        resid_pdrop=0, embd_pdrop=0, attn_pdrop=0), torch.float32, None),
    "llama2": (of("Llama", num_key_value_heads=4), torch.float32, None),
    "llama3": (of("Llama", num_key_value_heads=2, tie_word_embeddings=True, rope_theta=500000.0,
                  rope_scaling=LLAMA3), torch.bfloat16, None),
    "mistral": (of("Mistral", num_key_value_heads=2, sliding_window=32), torch.float16, None),
    "qwen2": (of("Qwen2", num_key_value_heads=2), torch.float32, "20KB"),
    "qwen3": (of("Qwen3", num_key_value_heads=1, head_dim=8, tie_word_embeddings=True),
              torch.float32, None),
    "granite": (of("Granite", num_key_value_heads=2, embedding_multiplier=3.0,
                   residual_multiplier=0.5, attention_multiplier=0.3, logits_scaling=2.0,
                   tie_word_embeddings=True), torch.bfloat16, None),
}


def rows_of(step):
    """Inputs and targets of two rows."""
    ids = [[(step * 31 + row * 77 + t * 13 + step * t % 7 + t * t) % VOCABULARY
            for t in range(CONTEXT + 1)] for row in range(2)]
    ids = torch.tensor(ids)
    return ids[:, :-1], ids[:, 1:]


def record(folder, config, dtype, shard):
    torch.manual_seed(1)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    with torch.no_grad():
        for name, value in model.named_parameters():
            is_norm = value.dim() == 1 and name.endswith("weight")
            value.copy_(torch.randn(value.shape) * 0.2 + (1 if is_norm else 0))
    model.to(dtype)
    model.save_pretrained(folder, **({"max_shard_size": shard} if shard else {}))
    for name in os.listdir(folder):
        if name.startswith("generation_config"):
            os.remove(os.path.join(folder, name))
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager").train()
    inputs, _ = rows_of(0)
    with torch.no_grad():
        logits = model(input_ids=inputs).logits[0, POSITIONS]
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(
        [{"params": [p for p in parameters if p.dim() > 1]},
         {"params": [p for p in parameters if p.dim() == 1], "weight_decay": 0.0}], **ADAMW)
    losses = []
    for step in range(STEPS):
        inputs, targets = rows_of(step)
        out = model(input_ids=inputs).logits
        loss = torch.nn.functional.cross_entropy(out.view(-1, VOCABULARY), targets.reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        losses.append(loss.item())
    expected = {"transformers": transformers.__version__, "torch": torch.__version__,
                "losses": losses, "logits": [float("%.8g" % x) for x in logits.flatten().tolist()]}
    with open(os.path.join(folder, "expected.json"), "w") as file:
        json.dump(expected, file)
        file.write("\n")


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name, (config, dtype, shard) in MODELS.items():
        record(os.path.join(sys.argv[1], name), config, dtype, shard)
