"""The same training of a model of transformers: reads what parity_probe left in DIR and prints one
loss per step.

    python3 parity_transformers.py DIR STEPS MICRO_BATCHES RATE llama|qwen2|qwen3|granite
"""

import sys

import parity_gpt as gpt
import torch
import transformers

HEADS, KEY_HEADS, HEAD_SIZE, MLP = 4, 2, 16, 96
SIZES = dict(hidden_size=gpt.WIDTH, num_hidden_layers=gpt.LAYERS, num_attention_heads=HEADS,
             num_key_value_heads=KEY_HEADS, intermediate_size=MLP,
             max_position_embeddings=gpt.CONTEXT, attn_implementation="eager", use_cache=False,
             pad_token_id=None, bos_token_id=None, eos_token_id=None)
LLAMA3 = dict(rope_type="llama3", factor=32.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=8192)


def model_of(family, vocabulary):
    if family == "llama":
        config = transformers.LlamaConfig(
            vocab_size=vocabulary, rms_norm_eps=1e-5, rope_theta=500000.0, rope_scaling=LLAMA3,
            tie_word_embeddings=True, **SIZES)
        return transformers.LlamaForCausalLM(config)
    if family == "qwen2":
        config = transformers.Qwen2Config(vocab_size=vocabulary, rms_norm_eps=1e-6, rope_theta=1e6,
                                          tie_word_embeddings=False, **SIZES)
        return transformers.Qwen2ForCausalLM(config)
    if family == "qwen3":
        config = transformers.Qwen3Config(vocab_size=vocabulary, rms_norm_eps=1e-6, rope_theta=1e6,
                                          head_dim=2 * HEAD_SIZE, tie_word_embeddings=True, **SIZES)
        return transformers.Qwen3ForCausalLM(config)
    config = transformers.GraniteConfig(
        vocab_size=vocabulary, rms_norm_eps=1e-5, rope_theta=10000.0, tie_word_embeddings=True,
        embedding_multiplier=12.0, residual_multiplier=0.22, attention_multiplier=0.015625,
        logits_scaling=8.0, **SIZES)
    return transformers.GraniteForCausalLM(config)


def names_of_theirs(arrays, model):
    """Our arrays by the names of transformers, fused ones cut."""
    heads = model.config.num_attention_heads * model.model.layers[0].self_attn.head_dim
    keys = model.config.num_key_value_heads * model.model.layers[0].self_attn.head_dim
    theirs = {"model.embed_tokens.weight": arrays["wte.weight"],
              "model.norm.weight": arrays["ln_f.weight"],
              "lm_head.weight": arrays.get("lm_head.weight", arrays["wte.weight"])}
    for layer in range(gpt.LAYERS):
        ours, to = "h.%d." % layer, "model.layers.%d." % layer
        theirs[to + "input_layernorm.weight"] = arrays[ours + "ln_1.weight"]
        theirs[to + "post_attention_layernorm.weight"] = arrays[ours + "ln_2.weight"]
        theirs[to + "self_attn.o_proj.weight"] = arrays[ours + "attn.c_proj.weight"]
        theirs[to + "mlp.down_proj.weight"] = arrays[ours + "mlp.c_proj.weight"]
        gate, up = arrays[ours + "mlp.c_fc.weight"].chunk(2)
        theirs[to + "mlp.gate_proj.weight"], theirs[to + "mlp.up_proj.weight"] = gate, up
        for kind in ("weight", "bias"):
            if ours + "attn.c_attn." + kind not in arrays:
                continue
            parts = arrays[ours + "attn.c_attn." + kind].split([heads, keys, keys])
            for name, part in zip("qkv", parts):
                theirs[to + "self_attn.%s_proj.%s" % (name, kind)] = part
        for name in ("q_norm", "k_norm"):
            if ours + "attn." + name + ".weight" in arrays:
                theirs[to + "self_attn." + name + ".weight"] = arrays[
                    ours + "attn." + name + ".weight"]
    return theirs


def main():
    directory, steps, micro_batches = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    arrays = gpt.initial_values(directory)
    model = model_of(sys.argv[5], arrays["wte.weight"].shape[0])
    model.load_state_dict(names_of_theirs(arrays, model), strict=True)
    ids = gpt.read_batches(directory, steps, micro_batches)
    optimizer = torch.optim.AdamW(gpt.weight_decay_groups(model.parameters()),
                                  **dict(gpt.ADAMW, lr=float(sys.argv[4])))
    for step in range(steps):
        inputs = ids[step, :, 0].reshape(-1, gpt.CONTEXT)
        targets = ids[step, :, 1].reshape(-1, gpt.CONTEXT)
        loss = gpt.loss_of(model(input_ids=inputs).logits, targets)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        print("loss %.9g" % loss.item(), flush=True)


main()
