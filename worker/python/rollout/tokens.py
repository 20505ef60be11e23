"""Owns: counting the tokens of rows before they are submitted, with the model's own tokenizer and chat template.

`python -m rollout.tokens --model DIR [--revision REVISION] [--task TASK] [--sampling JSON] [--max-model-len N]` reads
one row a line and writes one JSON object a line: first `{"model_len": N}` (null if unknown), then for each row
`{"tokens": N}` with `"most"`, the most tokens that its completions may have together (null: the model's room), or
`{"code": …, "error": …}`.
Invariant: a row's answer is one line, whatever the row is. Only answers are written to the standard output. A row that
vLLM 0.32 accepts is not an error, as far as its prompt's length decides.
Absent: vLLM. Problems that only an engine detects are not found here. Images and other media have no tokens.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from typing import Any

from rollout.conversation import Template, request_arguments
from rollout.failures import RowError
from rollout.template import object_of, template_arguments

# Tokenizers without a limit report a number like this.
NO_BOUND = 1 << 40
# vLLM's server's default for requests to `/v1/completions` without a bound.
SERVERS_MAX_TOKENS = 16
COMPLETIONS = "/v1/completions"
CHATS = "/v1/chat/completions"
# Transcriptions and translations, whose files are not read.
SOUNDS = "/v1/audio/"
# The items of its input are not the messages that the chat template gets.
RESPONSES = "/v1/responses"
# How a model scores a query with a document: each alone, or both in one text, with or without a separator.
APART, SEPARATED, JOINED = "apart", "separated", "joined"


class Counter:
    """Counts for one model."""

    def __init__(
        self, tokenizer: Any, task: str, sampling: dict[str, Any], model_len: int | None, scores: str = APART
    ) -> None:
        self._tokenizer = tokenizer
        self._template = Template(tokenizer)
        self._task = task
        # A request of the OpenAI format has everything in its body; vectors and scores are not sampled.
        self._sampling = sampling if task == "generate" else {}
        self._model_len = model_len
        self._scores = scores

    def count(self, row: dict[str, Any]) -> dict[str, Any]:
        """A row's answer; raises an error if the row would be refused."""
        openai = self._task == "openai"
        body = object_of(row.get("body"), "body") if openai else row
        if openai and str(row.get("url")).startswith((SOUNDS, RESPONSES)):
            return {"tokens": 0, "most": None}
        most, several = self._completions(row, body)
        completes = several > 0
        tokens = self._prompts(body, completes)
        if openai:
            tokens = [self._kept(count, body.get("truncate_prompt_tokens"), most) for count in tokens]
        if not tokens or 0 in tokens:
            raise RowError("EMPTY", "nothing to go on from")
        # A completion ends where the room does, and needs room for a token; a vector needs none.
        if self._model_len is not None and max(tokens) > self._model_len - completes:
            raise RowError("TOO_LONG", f"{max(tokens)} tokens, and the model has room for {self._model_len}")
        # vLLM's server refuses a bound above the room, whatever the prompt.
        if openai and self._model_len is not None and (most or 0) > self._model_len:
            raise RowError("TOO_LONG", f"{most} tokens asked for, and the model has room for {self._model_len}")
        bound = None if most is None else min(most * several * len(tokens), NO_BOUND)
        return {"tokens": sum(tokens), "most": bound}

    def _completions(self, row: dict[str, Any], body: dict[str, Any]) -> tuple[int | None, int]:
        """The tokens that a completion may have, and the number of completions of a prompt; none for other tasks."""
        if self._task == "generate":
            asked = {**self._sampling, **object_of(row.get("sampling_params"), "sampling_params")}
            return whole(asked.get("max_tokens")), whole(asked.get("n")) or 1
        url = row.get("url") if self._task == "openai" else None
        if url not in (CHATS, COMPLETIONS):
            return 0, 0
        most = body.get("max_tokens")
        if url == CHATS and body.get("max_completion_tokens") is not None:
            most = body["max_completion_tokens"]
        if url == COMPLETIONS and most is None:
            most = SERVERS_MAX_TOKENS
        return whole(most), whole(body.get("n")) or 1

    def _prompts(self, body: dict[str, Any], completes: bool) -> list[int]:
        """The tokens of each text that the model reads for a row."""
        special = body.get("add_special_tokens") if self._task == "openai" else None
        messages = body.get("messages") if body.get("prompt") is None else None
        if isinstance(messages, list):
            if self._task == "generate":
                arguments = {"add_generation_prompt": True, **template_arguments(self._sampling, body)}
            else:
                arguments = request_arguments(body, completes)
            return [self._text(self._template.write(messages, arguments), special is True)]
        one = given(body, "prompt", "input")
        if one is not None:
            several = isinstance(one, list) and one and not isinstance(one[0], int)
            return [self._tokens(text, special is not False) for text in (one if several else [one])]
        queries = listed(given(body, "query", "queries", "text_1", "data_1"))
        documents = listed(given(body, "document", "documents", "items", "text_2", "data_2"))
        return self._scored(queries, documents)

    def _scored(self, queries: list[str], documents: list[str]) -> list[int]:
        if not queries or not documents or len(queries) not in (1, len(documents)):
            raise RowError("ROW_SHAPE", "no prompt, messages, or query with a document, one or as many as documents")
        if self._scores == APART:
            return [self._text(text) for text in queries + documents]
        pairs = zip(queries * (len(documents) // len(queries)), documents, strict=True)
        if self._scores == JOINED:
            return [self._text(query + document) for query, document in pairs]
        return [len(self._tokenizer(query, document).input_ids) for query, document in pairs]

    def _kept(self, tokens: int, bound: Any, most: int | None) -> int:
        """The remaining tokens of a prompt that its request truncates; -1 means the model's room."""
        if type(bound) is not int:
            return tokens
        room = self._model_len
        if room is not None and bound > room:
            raise RowError("TOO_LONG", f"truncate_prompt_tokens is {bound}, and the model has room for {room}")
        if bound < 0:
            # vLLM reserves room for a completion with a known bound.
            return tokens if room is None else min(tokens, room - 1 if most else room)
        return min(tokens, bound)

    def _tokens(self, text: Any, special: bool) -> int:
        if isinstance(text, list) and text and all(isinstance(token, int) for token in text):
            return len(text)
        if not isinstance(text, str):
            raise RowError("ROW_SHAPE", "neither a text nor messages")
        return self._text(text, special)

    def _text(self, text: str, special: bool = True) -> int:
        return len(self._tokenizer(text, add_special_tokens=special).input_ids)


def given(body: dict[str, Any], *names: str) -> Any:
    """The first of these fields that is set and not null."""
    return next((body[name] for name in names if body.get(name) is not None), None)


def whole(value: Any) -> int | None:
    """A number of tokens or completions, if it is valid; an engine may refuse anything else."""
    return min(value, NO_BOUND) if type(value) is int and value >= 0 else None


def listed(value: Any) -> list[str]:
    """A list of texts, from a list or a single text."""
    values = value if isinstance(value, list) else [value]
    return [text for text in values if isinstance(text, str)]


def answer(counter: Counter, line: str) -> dict[str, Any]:
    """The answer to a row's line."""
    try:
        return counter.count(json.loads(line))
    except RowError as refused:
        return {"code": refused.code, "error": str(refused)}
    except Exception as error:  # A template may raise any exception.
        return {"code": type(error).__name__, "error": str(error) or type(error).__name__}


def config_of(model: str, revision: str | None) -> Any:
    """The configuration in a model's files, if they can be read."""
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(model, revision=revision)
    except (OSError, ValueError):
        return None


def length_of(config: Any, tokenizer: Any) -> int | None:
    """The model's limit of tokens, if its files give it."""
    bounds = [tokenizer.model_max_length]
    with contextlib.suppress(AttributeError, ValueError):
        bounds.append(config.get_text_config().max_position_embeddings)
    known = [bound for bound in bounds if isinstance(bound, int) and 0 < bound < NO_BOUND]
    return min(known) if known else None


def scores_of(config: Any) -> str:
    """How vLLM has a model score: a classifying model reads both texts at once."""
    classifies = any(name.endswith("ForSequenceClassification") for name in getattr(config, "architectures", None) or ())
    if not classifies:
        return APART
    # The older name takes precedence.
    separated = getattr(config, "use_pad_token", None)
    separated = getattr(config, "use_sep_token", True) if separated is None else separated
    return SEPARATED if separated else JOINED


def main() -> int:
    """Answers the rows of the standard input."""
    parser = argparse.ArgumentParser(prog="rollout.tokens")
    parser.add_argument("--model", required=True)
    parser.add_argument("--revision")
    parser.add_argument("--task", default="generate")
    parser.add_argument("--sampling", default="{}", type=json.loads)
    parser.add_argument("--max-model-len", type=int)
    args = parser.parse_args()
    from transformers import AutoTokenizer
    from transformers.utils import logging

    logging.set_verbosity_error()
    try:
        tokenizer = AutoTokenizer.from_pretrained(args.model, revision=args.revision)
    except (OSError, ValueError) as error:
        print(f"rollout.tokens: no tokenizer for {args.model}: {error}", file=sys.stderr)
        return 2
    config = config_of(args.model, args.revision)
    model_len = args.max_model_len or length_of(config, tokenizer)
    print(json.dumps({"model_len": model_len}), flush=True)
    counter = Counter(tokenizer, args.task, args.sampling, model_len, scores_of(config))
    for line in sys.stdin:
        print(json.dumps(answer(counter, line)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
