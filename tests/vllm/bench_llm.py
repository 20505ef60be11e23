"""The arm without rollout: `bench_llm.py MODEL INPUT ENGINE_ARGS SAMPLING` completes a file's rows with
`LLM.generate` and prints one JSON object: seconds, tokens, and the completions' texts in order. Loading and one
short warm-up round do not count."""

import json
import os
import sys
import time

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")

from vllm import LLM, SamplingParams


def main(model: str, file: str, engine_args: str, sampling: str) -> None:
    with open(file, encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    llm = LLM(model=model, **json.loads(engine_args))
    fields = json.loads(sampling)
    warm = [SamplingParams(**{**fields, "max_tokens": 8}) for _ in rows[:64]]
    llm.generate([row["prompt"] for row in rows[:64]], warm, use_tqdm=False)
    llm.reset_prefix_cache()
    params = [SamplingParams(**{**fields, **row["sampling_params"]}) for row in rows]
    prompts = [row["prompt"] for row in rows]
    began = time.monotonic()
    outputs = llm.generate(prompts, params, use_tqdm=False)
    seconds = time.monotonic() - began
    told = {
        "seconds": seconds,
        "prompt_tokens": sum(len(output.prompt_token_ids) for output in outputs),
        "completion_tokens": sum(len(output.outputs[0].token_ids) for output in outputs),
        "texts": [output.outputs[0].text for output in outputs],
    }
    print("RESULT " + json.dumps(told))


if __name__ == "__main__":
    main(*sys.argv[1:])
