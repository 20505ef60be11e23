"""Owns: vLLM as an engine of this process.

One engine in this very process where one device serves a slot, so that its death is this process's death and the
agent sees how; with more devices vLLM's own workers are its children and die with its group.
Invariant: rows are added and stopped between steps. A completion is what vLLM's own `LLM` gives for the same prompt
and parameters. What vLLM refuses is raised by `add`, and the engine goes on.
Absent: which rows, and their results' ways.
"""

from __future__ import annotations

import json
import os
from typing import Any

from rollout.failures import RowError

# vLLM starts more processes by spawn; a fork would copy threads' locks.
ENVIRONMENT = {
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    "VLLM_NO_USAGE_STATS": "1",
}
PARALLEL = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")


class VllmEngine:
    """vLLM, loaded."""

    def __init__(self, options: dict[str, Any]) -> None:
        arguments = dict(options.get("engine_args") or {})
        for name, value in ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        if all(arguments.get(name, 1) == 1 for name in PARALLEL):
            os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")

        from vllm import SamplingParams
        from vllm.engine.arg_utils import EngineArgs
        from vllm.sampling_params import RequestOutputKind
        from vllm.v1.engine.llm_engine import LLMEngine

        arguments.setdefault("disable_log_stats", True)
        arguments.setdefault("max_num_seqs", options["concurrency"])
        arguments["model"] = options["model"]
        if options.get("revision"):
            arguments["revision"] = options["revision"]
        self.steps = 0
        self.tokens = 0
        self._params = SamplingParams
        self._final_only = RequestOutputKind.FINAL_ONLY
        self._engine = LLMEngine.from_engine_args(EngineArgs(**arguments))
        config = self._engine.model_config
        self._room = config.max_model_len
        self._defaults = config.get_diff_sampling_param()
        self._count_tokens()

    def _count_tokens(self) -> None:
        """Final outputs say nothing of a row before its end: what each step generates is counted on its way."""
        core = self._engine.engine_core
        get_output = core.get_output

        def counted() -> Any:
            outputs = get_output()
            for output in outputs.outputs:
                self.tokens += len(output.new_token_ids)
            return outputs

        core.get_output = counted

    def add(self, ticket: int, task: str, sampling: dict[str, Any], row: dict[str, Any]) -> None:
        """Takes a row up; raises what vLLM raises of it."""
        if task != "generate":
            raise RowError("TASK_UNKNOWN", f"this engine has no task {task}")
        if row.get("lora") is not None:
            raise RowError("UNKNOWN_LORA", f"no adapter {row['lora']!r} here")
        own = row.get("sampling_params") or {}
        if not isinstance(own, dict):
            raise RowError("ROW_SHAPE", "the row's sampling_params is no object")
        prompt = self._rendered(row)
        fields = {**self._defaults, **sampling, **own}
        if fields.get("max_tokens") is None:
            # vLLM would stop after 16; what is meant is the model's room.
            fields["max_tokens"] = max(1, self._room - len(prompt["prompt_token_ids"]))
        params = self._params(**fields, output_kind=self._final_only)
        self._engine.add_request(str(ticket), prompt, params)

    def _rendered(self, row: dict[str, Any]) -> Any:
        renderer = self._engine.renderer
        text, messages = row.get("prompt"), row.get("messages")
        if isinstance(text, str):
            from vllm.renderers.inputs.preprocess import parse_model_prompt

            parsed = parse_model_prompt(self._engine.model_config, text)
            (rendered,) = renderer.render_cmpl([parsed], renderer.default_cmpl_tok_params)
            return rendered
        if not isinstance(messages, list):
            raise RowError("ROW_SHAPE", "a row needs a prompt or messages")
        from vllm.renderers import ChatParams

        extra = row.get("chat_template_kwargs") or {}
        if not isinstance(extra, dict):
            raise RowError("ROW_SHAPE", "the row's chat_template_kwargs is no object")
        arguments = {"add_generation_prompt": True, "continue_final_message": False, **extra}
        params = ChatParams(chat_template_kwargs={"tools": None, "tokenize": False, **arguments})
        # The template writes the special tokens itself.
        tokens = renderer.default_chat_tok_params.with_kwargs(add_special_tokens=False)
        _, (rendered,) = renderer.render_chat([messages], params, tokens)
        return rendered

    def stop(self, ticket: int) -> None:
        """Stops a row; one that has ended is no error."""
        self._engine.abort_request([str(ticket)])

    def running(self) -> bool:
        """Whether there is anything to step for."""
        return self._engine.has_unfinished_requests()

    def step(self) -> list[tuple[int, str, str, int, int, str]]:
        """One step: ticket, text, reason, tokens of the prompt and of the completion of every row that has ended."""
        self.steps += 1
        done = []
        for output in self._engine.step():
            if not output.finished:
                continue
            completion = output.outputs[0]
            all_texts = [
                {"index": one.index, "text": one.text, "finish_reason": one.finish_reason} for one in output.outputs
            ]
            done.append(
                (
                    int(output.request_id),
                    completion.text,
                    str(completion.finish_reason or ""),
                    len(output.prompt_token_ids or ()),
                    sum(len(one.token_ids) for one in output.outputs),
                    json.dumps({"completions": all_texts}) if len(all_texts) > 1 else "",
                )
            )
        return done
