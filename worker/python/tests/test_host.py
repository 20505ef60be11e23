"""The engine host's own parts, without vLLM: the outcome of a row for any result of an engine."""

from __future__ import annotations

import json
import unittest
from types import SimpleNamespace
from typing import Any

from rollout import failures
from rollout.engine_host import serve
from rollout.outcome import LEAST_LOGPROB, as_json, of_completion

NAN, INFINITY = float("nan"), float("inf")


def logprob(value: float) -> Any:
    return SimpleNamespace(logprob=value, rank=1, decoded_token="t")


def output(values: list[float], prompt: list[float] | None = None) -> Any:
    """A finished request whose tokens have these log probabilities."""
    one = SimpleNamespace(
        index=0,
        text="t" * len(values),
        token_ids=list(range(len(values))),
        logprobs=[{n: logprob(value)} for n, value in enumerate(values)],
        finish_reason="length",
        stop_reason=None,
    )
    told = None if prompt is None else [None, *({0: logprob(value)} for value in prompt)]
    return SimpleNamespace(outputs=[one], prompt_logprobs=told, prompt_token_ids=[1, 2], finished=True)


class Outcomes(unittest.TestCase):
    def test_a_log_probability_that_is_no_number_is_null(self) -> None:
        outcome = of_completion(7, output([-0.5, NAN, INFINITY, -INFINITY], [NAN, -1.0]))
        extra = json.loads(outcome.extra)
        chosen = [-0.5, None, None, LEAST_LOGPROB]
        self.assertEqual(extra["logprobs"]["token_logprobs"], chosen)
        self.assertEqual([list(at.values()) for at in extra["logprobs"]["top_logprobs"]], [[one] for one in chosen])
        self.assertEqual([at and at["0"]["logprob"] for at in extra["prompt_logprobs"]], [None, None, -1.0])

    def test_a_completion_that_vllm_gave_up_is_the_rows_failure_and_worth_another_try(self) -> None:
        for reason in ["error", "abort"]:
            given_up = output([-0.5])
            given_up.outputs.append(SimpleNamespace(**{**vars(given_up.outputs[0]), "index": 1, "finish_reason": reason}))
            with self.assertRaises(failures.RowError) as raised:
                of_completion(7, given_up)
            self.assertEqual(failures.classify(raised.exception)[:2], ("transient", "GENERATION_FAILED"))
        for reason in ["stop", "length", "repetition", None]:
            ended = output([-0.5])
            ended.outputs[0].finish_reason = reason
            self.assertEqual(of_completion(7, ended).finish_reason, reason or "")

    def test_a_vector_that_is_no_numbers_is_the_rows_failure(self) -> None:
        with self.assertRaises(failures.RowError) as raised:
            as_json({"embedding": [0.5, NAN]})
        self.assertEqual(failures.classify(raised.exception)[:2], ("invalid", "RESULT_NOT_FINITE"))


class Refusals(unittest.TestCase):
    def shortened(self, body: Any) -> tuple[dict[str, Any], int]:
        answer = json.dumps({"response": {"status_code": 400, "request_id": "r", "body": body}}, ensure_ascii=False)
        text = failures.shortened_answer(answer)
        # Nothing more is cut off on the way.
        self.assertEqual(failures.shortened(text), text)
        return json.loads(text)["response"], len(text.encode())

    def test_an_answer_that_is_too_long_stays_one_and_keeps_as_much_of_its_message_as_there_is_room_for(self) -> None:
        for letter, bytes_of_it in [("x", 1), ("é", 2), ('"', 2), ("\n", 2), ("\x01", 6), ("🦀", 4)]:
            error = {"message": letter * 20_000, "type": "BadRequestError", "param": None, "code": 400}
            response, length = self.shortened({"error": error})
            message = response["body"]["error"].pop("message")
            self.assertEqual(response["body"]["error"], {"type": "BadRequestError", "param": None, "code": 400})
            self.assertEqual((response["status_code"], response["request_id"]), (400, "r"))
            self.assertEqual(message.strip(letter), failures.CUT)
            if bytes_of_it == 1:
                self.assertEqual(length, failures.MESSAGE_BYTES_MAX)

    def test_an_answer_that_is_too_long_for_other_reasons_keeps_the_parts_that_fit(self) -> None:
        error = {"message": "short", "type": "T", "param": "p" * 20_000, "code": 400}
        response, _ = self.shortened({"error": error})
        self.assertEqual(response["body"], {"error": {"message": "short", "type": "T", "code": 400}})
        for body in [{"detail": "x" * 20_000}, ["x" * 20_000], {"error": "x" * 20_000}, {"error": {"x": 1, "message": "x" * 9**5}}]:
            response, _ = self.shortened(body)
            self.assertIn("xxx", response["body"]["error"]["message"])

    def test_an_answer_that_fits_is_left_as_it_is(self) -> None:
        answer = '{"response": {"body":{ "error":{"message":"m" }}}}'
        self.assertEqual(failures.shortened_answer(answer), answer)


class Agent:
    """Returns the messages that it was made with, and records the answers."""

    def __init__(self, events: list[Any]) -> None:
        self.events = events
        self.told: list[tuple[Any, ...]] = []

    def poll(self, limit: int, timeout_ms: int | None) -> list[Any]:
        if not self.events and timeout_ms is None:
            raise EOFError
        taken, self.events = self.events[:limit], self.events[limit:]
        return taken

    def finish(self, *outcome: Any) -> None:
        self.told.append(("finished", *outcome))

    def fail(self, *failure: Any) -> None:
        self.told.append(("failed", *failure))

    def stopped(self, ticket: int) -> None:
        self.told.append(("stopped", ticket))

    def progress(self, *counts: int) -> None: ...

    def flush(self) -> None: ...


class Engine:
    """Ends a row at the second step after it arrived, or refuses it on request."""

    REFUSALS: dict[str, type[Exception]] = {"value": ValueError, "bug": KeyError, "memory": MemoryError}

    def __init__(self) -> None:
        self.counts: tuple[int, ...] = (0,)
        self.rows: dict[int, int] = {}
        self.beside: list[int] = []

    def add(self, ticket: int, task: str, model: str, sampling: dict[str, Any], row: dict[str, Any]) -> None:
        if row["prompt"] in self.REFUSALS:
            raise self.REFUSALS[row["prompt"]]("refused")
        self.beside.append(len(self.rows))
        self.rows[ticket] = row.get("steps", 1)

    def stop(self, ticket: int) -> None:
        self.rows.pop(ticket, None)

    def running(self) -> bool:
        return bool(self.rows)

    def step(self) -> tuple[list[Any], list[Any]]:
        self.rows = {ticket: left - 1 for ticket, left in self.rows.items()}
        ended = [ticket for ticket, left in self.rows.items() if left <= 0]
        for ticket in ended:
            del self.rows[ticket]
        return [(ticket, "text", "stop", 1, 1, "") for ticket in ended], []


def start(ticket: int, prompt: str, steps: int = 1) -> tuple[Any, ...]:
    row = json.dumps({"prompt": prompt, "steps": steps}).encode()
    return (ticket, "generate", "m", "{}", row)


class Serving(unittest.TestCase):
    def served(self, events: list[Any]) -> tuple[list[tuple[Any, ...]], Engine]:
        agent, engine = Agent(events), Engine()
        with self.assertRaises(EOFError):
            serve(agent, engine)
        return agent.told, engine

    def test_short_rows_end_before_long_ones_that_came_first(self) -> None:
        told, engine = self.served([start(1, "long", 9), start(2, "short"), start(3, "short")])
        self.assertEqual([(kind, ticket) for kind, ticket, *_ in told], [("finished", 2), ("finished", 3), ("finished", 1)])
        self.assertEqual(engine.beside, [0, 1, 2])

    def test_the_class_of_a_refused_row_gives_the_reason(self) -> None:
        told, _ = self.served([start(1, "value"), start(2, "bug"), (3, "generate", "m", "{}", b"no json"), start(4, "good")])
        self.assertEqual(
            [(kind, ticket, what) for kind, ticket, what, *_ in told],
            [("failed", 1, "invalid"), ("failed", 2, "transient"), ("failed", 3, "invalid"), ("finished", 4, "text")],
        )

    def test_a_row_that_is_stopped_is_answered_so_and_never_finishes(self) -> None:
        told, _ = self.served([start(1, "long", 3), start(2, "long", 3), 1])
        self.assertEqual([(kind, ticket) for kind, ticket, *_ in told], [("stopped", 1), ("finished", 2)])

    def test_memory_that_ran_out_is_the_engines_end(self) -> None:
        with self.assertRaises(MemoryError):
            serve(Agent([start(1, "memory")]), Engine())


if __name__ == "__main__":
    unittest.main()
