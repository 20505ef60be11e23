"""Makes a tiny Llama with random weights and a byte-level tokenizer: `tiny_model.py DIR`. Needs no network."""

import json
import sys

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

CHAT_TEMPLATE = (
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}</s>{% endfor %}"
    "{% if tone %}{{ tone }}{% endif %}{% if add_generation_prompt %}<assistant>{% endif %}"
)


def main(directory: str) -> None:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {"<s>": 0, "</s>": 1, **{letter: 2 + n for n, letter in enumerate(alphabet)}}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token=None))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", chat_template=CHAT_TEMPLATE
    )
    fast.save_pretrained(directory)
    torch.manual_seed(20261121)
    config = LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        bos_token_id=0,
        eos_token_id=1,
        dtype="float32",
    )
    model = LlamaForCausalLM(config)
    # Random weights of the usual size give nearly equal logits, whose order rounding decides. Completions must be
    # valid text, so that no two of them look alike because of invalid UTF-8.
    printable = {token for letter, token in vocabulary.items() if len(letter) == 1 and " " < letter < "\x7f"}
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4.0)
        for token in range(len(vocabulary)):
            if token not in printable and token != vocabulary["</s>"]:
                model.lm_head.weight[token] = 0.0
    model.save_pretrained(directory)
    print(json.dumps({"model": directory, "vocabulary": len(vocabulary)}))


if __name__ == "__main__":
    main(sys.argv[1])
