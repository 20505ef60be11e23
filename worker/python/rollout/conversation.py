"""Owns: the arguments that a model's chat template gets for a request, as vLLM passes them.

Invariant: texts, tool calls and roles are what vLLM 0.32 makes of the same messages. Images, audio and video are
passed on as parts without contents, because only the model's processor knows their tokens.
Absent: rendering (`tokens`), and refusing the messages that vLLM would refuse.
"""

from __future__ import annotations

import json
from typing import Any

from rollout.failures import RowError
from rollout.template import KEY, object_of

# Kinds of parts that are text.
TEXTS = {"text", "input_text", "output_text", "refusal", "thinking"}
# Fields of a chat request that set template arguments, and override `chat_template_kwargs`.
SAID = ("add_generation_prompt", "continue_final_message", "documents", "reasoning_effort")
PROBE = "rollout-probe"


class Template:
    """The chat template of a tokenizer."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._takes_parts: bool | None = None

    def write(self, messages: list[Any], arguments: dict[str, Any]) -> str:
        """The text that the model reads for messages."""
        if self._takes_parts is None:
            self._takes_parts = takes_parts(self._tokenizer)
        told = [message_of(message, self._takes_parts) for message in messages]
        if any(message["role"] == "developer" for message in told) and not knows_developers(self._tokenizer):
            told = with_one_system(told)
        written: str = self._tokenizer.apply_chat_template(told, **{**arguments, "tokenize": False})
        return written


def request_arguments(body: dict[str, Any], completes: bool) -> dict[str, Any]:
    """The arguments that vLLM's handlers pass to the template for a request's body."""
    said = {name: body[name] for name in SAID if body.get(name) not in (None, "auto")}
    own = object_of(body.get(KEY), KEY)
    if "reasoning_effort" in said and "enable_thinking" not in own:
        said["enable_thinking"] = said["reasoning_effort"] != "none"
    tools = body.get("tools")
    if completes and isinstance(tools, list) and tools:
        said["tools"] = [tool_of(tool) for tool in tools]
    return {**own, "add_generation_prompt": completes, **said}


def tool_of(tool: Any) -> dict[str, Any]:
    """A tool, with the fields that vLLM's own objects serialize."""
    function = object_of(object_of(tool, "tools").get("function"), "tools")
    told = {name: function.get(name) for name in ("name", "description", "parameters")}
    more = {name: function[name] for name in ("strict",) if function.get(name) is not None}
    return {"type": "function", "function": {**told, **more}}


def message_of(message: Any, takes_parts: bool) -> dict[str, Any]:
    """A message, with its content in the form that the template expects."""
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise RowError("ROW_SHAPE", "a message has no role")
    role, content = message["role"], message.get("content")
    listed = content if isinstance(content, list) else [] if content is None else [content]
    parts = [told for told in map(part_of, listed) if told is not None]
    texts = [part["text"] for part in parts if part["type"] == "text"]
    told: dict[str, Any] = {"role": role, "content": parts if takes_parts else "\n".join(texts)}
    if role == "assistant":
        if message.get("tool_calls"):
            told["tool_calls"] = [call_of(call) for call in message["tool_calls"]]
        if message.get("reasoning") is not None:
            told["reasoning"] = told["reasoning_content"] = message["reasoning"]
    elif role == "tool":
        told.update({name: message[name] for name in ("tool_call_id",) if name in message})
        if len(texts) == len(parts):
            told["content"] = "\n".join(texts)
    elif role == "developer":
        told["tools"] = message.get("tools")
    return told | {name: message[name] for name in ("name", "task") if isinstance(message.get(name), str)}


def part_of(part: Any) -> dict[str, Any] | None:
    """A part of a message's content; None for an empty one."""
    if isinstance(part, str):
        return {"type": "text", "text": part}
    kind = object_of(part, "content").get("type", "text")
    if kind not in TEXTS:
        return {"type": str(kind).removesuffix("_url").removeprefix("input_")}
    text = part.get(kind, part.get("text"))
    return {"type": "text", "text": text} if isinstance(text, str) else None


def call_of(call: Any) -> dict[str, Any]:
    """A tool call, with its arguments as an object."""
    function = object_of(object_of(call, "tool_calls").get("function"), "tool_calls")
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError:
            arguments = None
    return {**call, "function": {**function, "arguments": arguments if isinstance(arguments, dict) else {}}}


def takes_parts(tokenizer: Any) -> bool:
    """Whether a template iterates over the parts of a message's content, or expects one text. vLLM reads the
    template's source; this test renders a part and gets the same result."""
    try:
        asked = [{"role": "user", "content": [{"type": "text", "text": PROBE}]}]
        written = tokenizer.apply_chat_template(asked, tokenize=False)
    except Exception:  # A template may raise any exception, and one that expects texts does.
        return False
    return PROBE in written and "'type'" not in written and '"type"' not in written


def knows_developers(tokenizer: Any) -> bool:
    """Whether a template supports the role `developer`."""
    template = str(getattr(tokenizer, "chat_template", None))
    return '"developer"' in template or "'developer'" in template


def with_one_system(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Merges developer messages into the system message, which comes first and only once."""
    all_of = [{**message, "role": "system"} if message["role"] == "developer" else message for message in messages]
    system = [message for message in all_of if message["role"] == "system"]
    if system == all_of[:1]:
        return all_of
    contents = [one["content"] for one in system]
    texts = [text if isinstance(text, str) else "\n".join(part.get("text", "") for part in text) for text in contents]
    others = [message for message in all_of if message["role"] != "system"]
    return [{"role": "system", "content": "\n\n".join(text for text in texts if text)}, *others]
