"""Makes an adapter with random weights for the tiny model: `tiny_lora.py MODEL SEED DIR`. Needs no network."""

import json
import os
import sys

import torch
from safetensors.torch import save_file
from transformers import LlamaConfig

RANK = 8


def main(model: str, seed: str, directory: str) -> None:
    config = LlamaConfig.from_pretrained(model)
    os.makedirs(directory, exist_ok=True)
    torch.manual_seed(int(seed))
    head = config.hidden_size // config.num_attention_heads
    widths = {"q_proj": config.hidden_size, "v_proj": head * config.num_key_value_heads}
    weights = {}
    for layer in range(config.num_hidden_layers):
        for name, width in widths.items():
            prefix = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            weights[f"{prefix}.lora_A.weight"] = torch.randn(RANK, config.hidden_size)
            weights[f"{prefix}.lora_B.weight"] = torch.randn(width, RANK)
    save_file(weights, os.path.join(directory, "adapter_model.safetensors"))
    settings = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": model,
        "r": RANK,
        "lora_alpha": RANK,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": sorted(widths),
    }
    with open(os.path.join(directory, "adapter_config.json"), "w", encoding="utf-8") as file:
        json.dump(settings, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
