"""Makes a slow Llama with random weights: `bench_model.py DIR HIDDEN LAYERS`. Needs no network."""

import sys

import tiny_model
import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM


def main(directory: str, hidden: str, layers: str) -> None:
    tiny_model.main(directory)
    tokenizer = AutoTokenizer.from_pretrained(directory)
    torch.manual_seed(20261121)
    width = int(hidden)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=width * 11 // 4,
        num_hidden_layers=int(layers),
        num_attention_heads=width // 64,
        num_key_value_heads=max(1, width // 128),
        max_position_embeddings=2048,
        bos_token_id=0,
        eos_token_id=1,
        dtype="float32",
    )
    LlamaForCausalLM(config).save_pretrained(directory)


if __name__ == "__main__":
    main(*sys.argv[1:])
