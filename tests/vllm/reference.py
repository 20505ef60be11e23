"""What vLLM itself completes: `reference.py MODEL INPUT MAX_TOKENS ENGINE_ARGS` prints one JSON object a row, in order."""

import json
import os
import sys

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")

from vllm import LLM, SamplingParams


def main(model: str, file: str, max_tokens: str, engine_args: str) -> None:
    with open(file, encoding="utf-8") as lines:
        prompts = [json.loads(line)["prompt"] for line in lines]
    llm = LLM(model=model, **json.loads(engine_args))
    params = SamplingParams(temperature=0, max_tokens=int(max_tokens))
    for output in llm.generate(prompts, params, use_tqdm=False):
        (completion,) = output.outputs
        row = {"text": completion.text, "tokens": len(completion.token_ids), "reason": completion.finish_reason}
        print("ROW " + json.dumps(row))


if __name__ == "__main__":
    main(*sys.argv[1:])
