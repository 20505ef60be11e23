"""vLLM's own results: `reference.py TASK MODEL INPUT OPTIONS` prints one JSON object per row, in order.

OPTIONS is a JSON object: `engine_args`, `sampling`, `loras` (paths by name).
"""

import json
import os
import sys

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")

from vllm import LLM, SamplingParams
from vllm.lora.request import LoRARequest
from vllm.sampling_params import StructuredOutputsParams

ENGINE_ARGS = {"dtype": "float32", "enforce_eager": True, "max_model_len": 640}


def params_of(sampling: dict, row: dict) -> SamplingParams:
    fields = {**sampling, **row.get("sampling_params", {})}
    if "structured_outputs" in fields:
        fields["structured_outputs"] = StructuredOutputsParams(**fields["structured_outputs"])
    return SamplingParams(**fields)


def chosen(one) -> list | None:
    if one.logprobs is None:
        return None
    return [at[token].logprob for token, at in zip(one.token_ids, one.logprobs)]


def generated(llm: LLM, rows: list[dict], options: dict) -> list[dict]:
    paths = sorted(options.get("loras", {}).items())
    loras = {name: LoRARequest(name, number, path) for number, (name, path) in enumerate(paths, 1)}
    params = [params_of(options["sampling"], row) for row in rows]
    adapters = [loras.get(row.get("lora")) for row in rows]
    outputs = llm.generate(
        [row["prompt"] for row in rows], params, lora_request=adapters if loras else None, use_tqdm=False
    )
    return [
        {
            "texts": [one.text for one in output.outputs],
            "tokens": sum(len(one.token_ids) for one in output.outputs),
            "reason": output.outputs[0].finish_reason,
            "logprobs": chosen(output.outputs[0]),
        }
        for output in outputs
    ]


def main(task: str, model: str, file: str, told: str) -> None:
    options = json.loads(told)
    with open(file, encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    arguments = {**ENGINE_ARGS, **options.get("engine_args", {})}
    if options.get("loras"):
        # One slot more than adapters: vLLM's CPU kernels give rows without an adapter the last slot's.
        arguments |= {"enable_lora": True, "max_loras": len(options["loras"]) + 1, "max_lora_rank": 8}
    llm = LLM(model=model, **arguments)
    if task == "generate":
        results = generated(llm, rows, options)
    elif task == "embed":
        outputs = llm.embed([row["prompt"] for row in rows], use_tqdm=False)
        results = [{"embedding": output.outputs.embedding} for output in outputs]
    else:
        pairs = [(row["query"], row["document"]) for row in rows]
        results = [{"score": llm.score(query, text, use_tqdm=False)[0].outputs.score} for query, text in pairs]
    for result in results:
        print("ROW " + json.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
