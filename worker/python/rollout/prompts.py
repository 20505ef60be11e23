"""Owns: the conversion of a row's prompt or messages to the input of vLLM's engine.

Invariant: a prompt becomes what `LLM.generate` makes of it, messages what `LLM.chat` makes of them.
Absent: requests of the OpenAI format (`serving`).
"""

from __future__ import annotations

from typing import Any

from vllm.renderers import ChatParams
from vllm.renderers.inputs.preprocess import parse_model_prompt

from rollout.failures import RowError
from rollout.template import template_arguments


def rendered(engine: Any, sampling: dict[str, Any], row: dict[str, Any]) -> Any:
    """The engine's input for a row of a run with this sampling."""
    text, messages = row.get("prompt"), row.get("messages")
    if isinstance(text, str):
        parsed = parse_model_prompt(engine.model_config, text)
        (prompt,) = engine.renderer.render_cmpl([parsed], engine.renderer.default_cmpl_tok_params)
        return prompt
    if not isinstance(messages, list):
        raise RowError("ROW_SHAPE", "a row needs a prompt or messages")
    extra = template_arguments(sampling, row)
    arguments = {"add_generation_prompt": True, "continue_final_message": False, **extra}
    params = ChatParams(chat_template_kwargs={"tools": None, "tokenize": False, **arguments})
    # The template writes the special tokens itself.
    tokens = engine.renderer.default_chat_tok_params.with_kwargs(add_special_tokens=False)
    _, (prompt,) = engine.renderer.render_chat([messages], params, tokens)
    return prompt
