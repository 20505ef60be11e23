"""What is counted of a row, with a tokenizer that makes a token of each letter."""

from __future__ import annotations

import json
import unittest
from types import SimpleNamespace
from typing import Any

from rollout.tokens import NO_BOUND, Counter, answer


class Tokenizer:
    def __call__(self, text: str, **_: Any) -> Any:
        return SimpleNamespace(input_ids=list(text))

    def apply_chat_template(self, messages: list[dict[str, str]], **_: Any) -> str:
        return "".join(message["content"] for message in messages)


def counted(row: dict[str, Any], task: str = "generate", sampling: dict[str, Any] | None = None) -> Any:
    """Tokens and bound of a row, or why it has none; the model has room for 40."""
    said = answer(Counter(Tokenizer(), task, sampling or {}, 40), json.dumps(row))
    return said.get("code") or (said["tokens"], said["most"])


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

    def test_what_makes_no_completions_has_no_bound_to_miss(self) -> None:
        self.assertEqual(counted({"prompt": "abc"}, "embed"), (3, 0))
        self.assertEqual(counted({"query": "ab", "document": "c"}, "score"), (3, 0))
        self.assertEqual(counted(request("/v1/embeddings", input=["ab", "c"]), "openai"), (3, 0))

    def test_too_long_is_what_the_engine_would_refuse(self) -> None:
        self.assertEqual(counted({"prompt": "x" * 39}), (39, None))
        self.assertEqual(counted({"prompt": "x" * 40}), "TOO_LONG")
        self.assertEqual(counted({"prompt": "x" * 40}, "embed"), (40, 0))
        # A completion of ours ends where the room does.
        self.assertEqual(counted({"prompt": "x" * 30}, sampling={"max_tokens": 20}), (30, 20))
        self.assertEqual(chat("x" * 30, max_tokens=10), (30, 10))
        self.assertEqual(chat("x" * 30, max_tokens=11), "TOO_LONG")
        self.assertEqual(completion("x" * 24), (24, 16))
        self.assertEqual(completion("x" * 25), "TOO_LONG")

    def test_null_is_what_is_not_there(self) -> None:
        messages = [{"role": "user", "content": "four"}]
        self.assertEqual(counted({"prompt": None, "messages": messages}), (4, None))
        self.assertEqual(counted({"prompt": "abc", "sampling_params": None}), (3, None))
        self.assertEqual(counted({"query": None, "queries": "ab", "text_2": "c"}, "score"), (3, 0))

    def test_each_line_is_answered_whatever_it_is(self) -> None:
        self.assertEqual(counted({"prompt": ""}), "EMPTY")
        self.assertEqual(counted({"prompt": 7}), "ROW_SHAPE")
        self.assertEqual(counted({}), "ROW_SHAPE")
        self.assertEqual(counted({"prompt": "a", "sampling_params": "none"}), "ROW_SHAPE")
        self.assertEqual(counted({"body": 7}, "openai"), "ROW_SHAPE")
        self.assertEqual(answer(Counter(Tokenizer(), "generate", {}, None), "no json")["code"], "JSONDecodeError")


if __name__ == "__main__":
    unittest.main()
