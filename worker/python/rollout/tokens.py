"""Owns: counting the tokens of rows before they are submitted, with the model's own tokenizer and chat template.

`python -m rollout.tokens --model DIR [--task TASK] [--sampling JSON] [--max-model-len N]` reads one row a line and writes
one JSON object a line: first `{"model_len": N}` (null where nobody knows), then for each row `{"tokens": N}` with
`"most"`, the tokens that its completions may have together at most (null: the model's room), or `{"code": …, "error": …}`.
Invariant: a row's answer is one line, whatever the row is. Nothing but answers is written to the standard output.
Absent: vLLM. What only an engine can refuse is not found here.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from rollout.failures import RowError
from rollout.template import object_of, template_arguments

# Tokenizers without a bound say a number like this.
NO_BOUND = 1 << 40
# What vLLM's server gives to `/v1/completions` that name no bound.
SERVERS_MAX_TOKENS = 16


class Counter:
    """Counts for one model."""

    def __init__(self, tokenizer: Any, task: str, sampling: dict[str, Any], model_len: int | None) -> None:
        self._tokenizer = tokenizer
        self._task = task
        self._sampling = sampling
        self._model_len = model_len

    def count(self, row: dict[str, Any]) -> dict[str, Any]:
        """A row's answer; raises where it would be refused."""
        openai = self._task == "openai"
        body = object_of(row.get("body"), "body") if openai else row
        # A request of the OpenAI format says everything in its body.
        sampling = {} if openai else self._sampling
        template = template_arguments(sampling, body)
        tokens = [self._tokens(text, template) for text in texts(body)]
        if not tokens or 0 in tokens:
            raise RowError("EMPTY", "nothing to go on from")
        most, several = self._completions(row, body)
        longest = max(tokens)
        # vLLM's server wants room for all that is asked for; a completion of ours ends where the room does, and needs room
        # for a token; a vector needs none.
        room = self._model_len and self._model_len - ((most or 0) if openai else int(self._task == "generate"))
        if room is not None and longest > room:
            raise RowError("TOO_LONG", self._too_long(longest, most if openai else None))
        bound = None if most is None else min(most * several * len(tokens), NO_BOUND)
        return {"tokens": sum(tokens), "most": bound}

    def _completions(self, row: dict[str, Any], body: dict[str, Any]) -> tuple[int | None, int]:
        """The tokens that a completion may have, and the completions of a prompt."""
        if self._task == "generate":
            asked = {**self._sampling, **object_of(row.get("sampling_params"), "sampling_params")}
            return whole(asked.get("max_tokens")), whole(asked.get("n")) or 1
        url = row.get("url") if self._task == "openai" else None
        if url == "/v1/chat/completions":
            most = body.get("max_completion_tokens")
            most = body.get("max_tokens") if most is None else most
        elif url == "/v1/completions":
            most = body.get("max_tokens")
            most = SERVERS_MAX_TOKENS if most is None else most
        else:
            return 0, 1
        return whole(most), whole(body.get("n")) or 1

    def _too_long(self, longest: int, most: int | None) -> str:
        asked = f" and {most} asked for" if most else ""
        return f"{longest} tokens{asked}, and the model has room for {self._model_len}"

    def _tokens(self, text: Any, template: dict[str, Any]) -> int:
        if isinstance(text, str):
            return len(self._tokenizer(text).input_ids)
        if not isinstance(text, list):
            raise RowError("ROW_SHAPE", "neither a text nor messages")
        if all(isinstance(token, int) for token in text):
            return len(text)
        arguments = {"add_generation_prompt": True, **template, "tokenize": False}
        written = self._tokenizer.apply_chat_template(text, **arguments)
        return len(self._tokenizer(written, add_special_tokens=False).input_ids)


def texts(body: dict[str, Any]) -> list[Any]:
    """What a model reads of a row: prompts, messages, queries with documents."""
    one = given(body, "prompt", "messages", "input")
    if one is not None:
        several = isinstance(one, list) and one and all(isinstance(text, str) for text in one)
        return one if several else [one]
    queries = listed(given(body, "query", "queries", "text_1"))
    documents = listed(given(body, "document", "documents", "text_2"))
    if not queries or not documents:
        raise RowError("ROW_SHAPE", "no prompt, messages, or query with a document")
    return [query + document for query in queries for document in documents]


def given(body: dict[str, Any], *names: str) -> Any:
    """The first of these fields that is there; null is not."""
    return next((body[name] for name in names if body.get(name) is not None), None)


def whole(value: Any) -> int | None:
    """A number of tokens or completions, where it is one; what else is there, an engine may refuse."""
    return min(value, NO_BOUND) if type(value) is int and value >= 0 else None


def listed(value: Any) -> list[str]:
    """Texts, of which there may be one alone."""
    values = value if isinstance(value, list) else [value]
    return [text for text in values if isinstance(text, str)]


def answer(counter: Counter, line: str) -> dict[str, Any]:
    """A row's line, answered."""
    try:
        return counter.count(json.loads(line))
    except RowError as refused:
        return {"code": refused.code, "error": str(refused)}
    except Exception as error:  # A template may raise anything.
        return {"code": type(error).__name__, "error": str(error) or type(error).__name__}


def length_of(model: str, tokenizer: Any) -> int | None:
    """The tokens that a model has room for, if its files say so."""
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(model).get_text_config()
        bounds = [getattr(config, "max_position_embeddings", None), tokenizer.model_max_length]
    except (OSError, ValueError):
        bounds = [tokenizer.model_max_length]
    known = [bound for bound in bounds if isinstance(bound, int) and 0 < bound < NO_BOUND]
    return min(known) if known else None


def main() -> int:
    """Answers the rows of the standard input."""
    parser = argparse.ArgumentParser(prog="rollout.tokens")
    parser.add_argument("--model", required=True)
    parser.add_argument("--task", default="generate")
    parser.add_argument("--sampling", default="{}", type=json.loads)
    parser.add_argument("--max-model-len", type=int)
    args = parser.parse_args()
    from transformers import AutoTokenizer
    from transformers.utils import logging

    logging.set_verbosity_error()
    try:
        tokenizer = AutoTokenizer.from_pretrained(args.model)
    except (OSError, ValueError) as error:
        print(f"rollout.tokens: no tokenizer for {args.model}: {error}", file=sys.stderr)
        return 2
    model_len = args.max_model_len or length_of(args.model, tokenizer)
    print(json.dumps({"model_len": model_len}), flush=True)
    counter = Counter(tokenizer, args.task, args.sampling, model_len)
    for line in sys.stdin:
        print(json.dumps(answer(counter, line)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
