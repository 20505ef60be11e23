"""Token counts of a row, with a tokenizer that makes a token of each letter, and templates that write their
arguments."""

from __future__ import annotations

import json
import unittest
from types import SimpleNamespace
from typing import Any

from rollout.tokens import APART, JOINED, NO_BOUND, SEPARATED, Counter, answer, scores_of


class Tokenizer:
    """A letter is a token, and one more is between two texts."""

    chat_template = "for texts"

    def __call__(self, text: str, pair: str | None = None, **_: Any) -> Any:
        return SimpleNamespace(input_ids=list(text) + (["|", *pair] if pair is not None else []))

    def apply_chat_template(self, messages: list[dict[str, Any]], tokenize: bool, **arguments: Any) -> str:
        self.arguments = arguments
        self.messages = messages
        return "".join(self.content(message) for message in messages)

    def content(self, message: dict[str, Any]) -> str:
        return message["content"] + ""


class PartsTokenizer(Tokenizer):
    """Its template iterates over a message's parts."""

    chat_template = "for 'developer'"

    def content(self, message: dict[str, Any]) -> str:
        return "".join(part.get("text", "") for part in message["content"])


def counted(row: dict[str, Any], task: str = "generate", sampling: dict[str, Any] | None = None, **more: Any) -> Any:
    """Tokens and bound of a row, or its error; the model has room for 40."""
    tokenizer = more.pop("tokenizer", None) or Tokenizer()
    said = answer(Counter(tokenizer, task, sampling or {}, 40, **more), json.dumps(row))
    return said.get("code") or (said["tokens"], said["most"])


def written(body: dict[str, Any], tokenizer: Tokenizer, url: str = "/v1/chat/completions") -> Any:
    """The messages and arguments that the template gets for a request."""
    error = counted(request(url, **body), "openai", tokenizer=tokenizer)
    assert isinstance(error, tuple), error
    return tokenizer.messages, tokenizer.arguments


def request(url: str, **body: Any) -> dict[str, Any]:
    return {"custom_id": "c", "method": "POST", "url": url, "body": body}


def chat(content: str = "four", **more: Any) -> Any:
    messages = [{"role": "user", "content": content}]
    return counted(request("/v1/chat/completions", messages=messages, **more), "openai")


def completion(prompt: Any, **more: Any) -> Any:
    return counted(request("/v1/completions", prompt=prompt, **more), "openai")


class Counts(unittest.TestCase):
    def test_the_bound_is_that_of_all_completions_and_of_numbers_alone(self) -> None:
        sampling = {"max_tokens": 5, "n": 2}
        self.assertEqual(counted({"prompt": "abc"}), (3, None))
        self.assertEqual(counted({"prompt": "abc"}, sampling=sampling), (3, 10))
        own = {"prompt": "abc", "sampling_params": {"max_tokens": 7}}
        self.assertEqual(counted(own, sampling=sampling), (3, 14))
        for odd in [-1, "9", 2.0, None, True, [9]]:
            self.assertEqual(chat(max_tokens=odd), (4, None), odd)
            self.assertEqual(counted({"prompt": "abc"}, sampling={"max_tokens": odd}), (3, None), odd)
        self.assertEqual(counted({"prompt": "abc"}, sampling={"max_tokens": 2**70, "n": 2**70}), (3, NO_BOUND))
        self.assertEqual(chat(max_tokens=9, n=3), (4, 27))
        self.assertEqual(chat(max_tokens=9, max_completion_tokens=6), (4, 6))
        self.assertEqual(chat(max_tokens=9, max_completion_tokens=None), (4, 9))

    def test_a_request_for_completions_has_the_servers_bound_for_each_of_its_prompts(self) -> None:
        self.assertEqual(completion("abc"), (3, 16))
        self.assertEqual(completion(["ab", "cde"], max_tokens=5, n=2), (5, 20))
        self.assertEqual(completion([1, 2, 3], max_tokens=5), (3, 5))
        self.assertEqual(completion([[1, 2, 3], [4]], max_tokens=5), (4, 10))

    def test_tasks_without_completions_have_no_completion_tokens(self) -> None:
        self.assertEqual(counted({"prompt": "abc"}, "embed"), (3, 0))
        self.assertEqual(counted({"query": "ab", "document": "c"}, "score"), (3, 0))
        self.assertEqual(counted(request("/v1/embeddings", input=["ab", "c"]), "openai"), (3, 0))

    def test_a_row_is_too_long_if_the_engine_would_refuse_it(self) -> None:
        self.assertEqual(counted({"prompt": "x" * 39}), (39, None))
        self.assertEqual(counted({"prompt": "x" * 40}), "TOO_LONG")
        self.assertEqual(counted({"prompt": "x" * 40}, "embed"), (40, 0))
        # A completion ends where the room does.
        self.assertEqual(counted({"prompt": "x" * 30}, sampling={"max_tokens": 50}), (30, 50))
        for ask in [chat, completion]:
            self.assertEqual(ask("x" * 39, max_tokens=40), (39, 40))
            self.assertEqual(ask("x" * 40, max_tokens=1), "TOO_LONG")
            self.assertEqual(ask("x" * 40), "TOO_LONG")
            # More than there is room for without any prompt.
            self.assertEqual(ask("x", max_tokens=41), "TOO_LONG")
        self.assertEqual(completion("x" * 39), (39, 16))
        self.assertEqual(counted(request("/v1/embeddings", input="x" * 40), "openai"), (40, 0))
        self.assertEqual(counted(request("/v1/embeddings", input="x" * 41), "openai"), "TOO_LONG")

    def test_a_truncated_prompt_counts_with_its_remaining_length(self) -> None:
        self.assertEqual(completion("x" * 99, truncate_prompt_tokens=7), (7, 16))
        self.assertEqual(completion("x" * 99, truncate_prompt_tokens=-1), (39, 16))
        self.assertEqual(completion("x" * 5, truncate_prompt_tokens=-1), (5, 16))
        # For a chat without a bound vLLM leaves as many tokens as the model has room for, and then none for a
        # completion.
        self.assertEqual(chat("x" * 99, truncate_prompt_tokens=-1), "TOO_LONG")
        self.assertEqual(chat("x", truncate_prompt_tokens=41), "TOO_LONG")
        self.assertEqual(chat("x", truncate_prompt_tokens=0), "EMPTY")
        embedding = request("/v1/embeddings", input="x" * 99, truncate_prompt_tokens=-1)
        self.assertEqual(counted(embedding, "openai"), (40, 0))

    def test_texts_are_scored_apart_or_as_one_as_the_model_does(self) -> None:
        row = {"query": "x" * 30, "document": "y" * 20}
        self.assertEqual(counted(row, "score"), (50, 0))
        self.assertEqual(counted(row, "score", scores=SEPARATED), "TOO_LONG")
        several = request("/score", queries="ab", documents=["c", "def"])
        self.assertEqual(counted(several, "openai"), (6, 0))
        self.assertEqual(counted(several, "openai", scores=JOINED), (3 + 5, 0))
        self.assertEqual(counted(several, "openai", scores=SEPARATED), (4 + 6, 0))
        as_many = request("/v1/score", text_1=["a", "b"], text_2=["c", "def"])
        self.assertEqual(counted(as_many, "openai", scores=JOINED), (2 + 4, 0))
        self.assertEqual(counted(request("/score", queries=["a", "b"], documents=["c"]), "openai"), "ROW_SHAPE")
        config = SimpleNamespace(architectures=["LlamaForCausalLM"])
        self.assertEqual((scores_of(None), scores_of(config)), (APART, APART))
        config.architectures = ["Qwen3ForSequenceClassification"]
        self.assertEqual(scores_of(config), SEPARATED)
        config.use_sep_token = False
        self.assertEqual(scores_of(config), JOINED)

    def test_a_sound_has_no_tokens_and_is_no_error(self) -> None:
        self.assertEqual(counted(request("/v1/audio/transcriptions", file_url="http://h/a.wav"), "openai"), (0, None))

    def test_a_request_for_a_response_is_not_counted_and_is_no_error(self) -> None:
        for given in ["x" * 99, [{"role": "user", "content": [{"type": "input_text", "text": "ab"}]}]]:
            self.assertEqual(counted(request("/v1/responses", input=given), "openai"), (0, None))

    def test_null_counts_as_missing(self) -> None:
        messages = [{"role": "user", "content": "four"}]
        self.assertEqual(counted({"prompt": None, "messages": messages}), (4, None))
        self.assertEqual(counted({"prompt": "abc", "sampling_params": None}), (3, None))
        self.assertEqual(counted({"query": None, "queries": "ab", "text_2": "c"}, "score"), (3, 0))

    def test_every_line_gets_an_answer(self) -> None:
        self.assertEqual(counted({"prompt": ""}), "EMPTY")
        self.assertEqual(counted({"prompt": 7}), "ROW_SHAPE")
        self.assertEqual(counted({}), "ROW_SHAPE")
        self.assertEqual(counted({"prompt": "a", "sampling_params": "none"}), "ROW_SHAPE")
        self.assertEqual(counted({"body": 7}, "openai"), "ROW_SHAPE")
        self.assertEqual(answer(Counter(Tokenizer(), "generate", {}, None), "no json")["code"], "JSONDecodeError")


class Messages(unittest.TestCase):
    """As vLLM's `parse_chat_messages` returns them."""

    def test_parts_are_one_text_or_parts_as_the_template_has_it(self) -> None:
        parts = [{"type": "text", "text": "ab"}, "c", {"type": "input_text", "text": "d"}, {"type": "text", "text": None}]
        image = {"type": "image_url", "image_url": {"url": "http://h/i.png"}}
        body = {"messages": [{"role": "user", "content": [*parts, image]}]}
        (message,), _ = written(body, Tokenizer())
        self.assertEqual(message["content"], "ab\nc\nd")
        (message,), _ = written(body, PartsTokenizer())
        texts = [{"type": "text", "text": text} for text in ["ab", "c", "d"]]
        self.assertEqual(message["content"], [*texts, {"type": "image"}])
        self.assertEqual(counted({"messages": body["messages"]}), (6, None))
        self.assertEqual(counted({"messages": body["messages"]}, tokenizer=PartsTokenizer()), (4, None))

    def test_arguments_of_a_call_are_an_object_and_its_message_may_say_nothing(self) -> None:
        for arguments, read in [('{"a": 1}', {"a": 1}), ({"a": 1}, {"a": 1}), ("no json", {}), ("[1]", {}), (None, {})]:
            call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
            messages = [
                {"role": "user", "content": "x"},
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "1", "content": [{"type": "text", "text": "y"}]},
            ]
            (_, called, result), _ = written({"messages": messages}, Tokenizer())
            self.assertEqual(called["tool_calls"][0]["function"], {"name": "f", "arguments": read})
            self.assertEqual((called["content"], result["content"], result["tool_call_id"]), ("", "y", "1"))

    def test_the_template_gets_the_tools_in_vllms_form_and_the_arguments_of_the_request(self) -> None:
        messages = [{"role": "user", "content": "x"}]
        tools = [{"type": "function", "function": {"name": "f", "strict": True, "parameters": {"type": "object"}}}]
        body = {"messages": messages, "tools": tools, "reasoning_effort": "none", "documents": None}
        body["chat_template_kwargs"] = {"tone": "kind", "add_generation_prompt": False}
        _, arguments = written(body, Tokenizer())
        function = {"name": "f", "description": None, "parameters": {"type": "object"}, "strict": True}
        said = {"add_generation_prompt": True, "reasoning_effort": "none", "enable_thinking": False, "tone": "kind"}
        self.assertEqual(arguments, {**said, "tools": [{"type": "function", "function": function}]})
        _, arguments = written({"messages": messages, "tools": tools}, Tokenizer(), "/v1/embeddings")
        self.assertEqual(arguments, {"add_generation_prompt": False})

    def test_a_developer_is_the_system_where_the_template_knows_none(self) -> None:
        said = [("system", "a"), ("user", "x"), ("developer", "b")]
        body = {"messages": [{"role": role, "content": content} for role, content in said]}
        messages, _ = written(body, Tokenizer())
        self.assertEqual([(one["role"], one["content"]) for one in messages], [("system", "a\n\nb"), ("user", "x")])
        messages, _ = written(body, PartsTokenizer())
        self.assertEqual([one["role"] for one in messages], ["system", "user", "developer"])


if __name__ == "__main__":
    unittest.main()
