"""Owns: the counters inside the engine: steps, tokens, how full its batches were, and aborted rows.

Invariant: counters only grow. They are taken where vLLM schedules and answers, not where rows come and go, so they
reflect what the engine did.
Absent: whether it could have had more rows; the agent knows that.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, NamedTuple

# How many aborted requests are remembered.
ABORTED_MAX = 65_536


class Counts(NamedTuple):
    """An engine's counters, in the order of the agent's protocol."""

    steps: int = 0
    tokens: int = 0
    # Steps with fewer running sequences than `max_num_seqs`, and those of them in which no other sequence waited in
    # the engine.
    steps_not_full: int = 0
    steps_hungry: int = 0
    # Sequences that started, and those that started while others were decoding.
    admitted: int = 0
    admitted_beside: int = 0
    # Sequences that were aborted, and tokens generated for them afterward.
    aborted: int = 0
    tokens_after_abort: int = 0


class Counters:
    """Counts what an engine does."""

    def __init__(self, engine: Any) -> None:
        self.counts = Counts()
        self.seats: int = engine.vllm_config.scheduler_config.max_num_seqs
        self._aborted: OrderedDict[str, None] = OrderedDict()
        self._engine = engine
        self._watch_answers(engine.engine_core)
        core = getattr(engine.engine_core, "engine_core", None)
        # For a core in a separate process only the front end's view is available: the unfinished requests that it
        # sent.
        self._scheduler = getattr(core, "scheduler", None)
        if self._scheduler is not None:
            self._watch_schedules(self._scheduler)

    def _add(self, **more: int) -> None:
        self.counts = self.counts._replace(**{name: getattr(self.counts, name) + n for name, n in more.items()})

    def _watch_answers(self, core: Any) -> None:
        get_output = core.get_output

        def counted() -> Any:
            outputs = get_output()
            tokens = late = 0
            for output in outputs.outputs:
                tokens += len(output.new_token_ids)
                if output.request_id in self._aborted:
                    late += len(output.new_token_ids)
            self._add(tokens=tokens, tokens_after_abort=late)
            return outputs

        core.get_output = counted

    def _watch_schedules(self, scheduler: Any) -> None:
        schedule = scheduler.schedule

        def counted(*args: Any, **kwargs: Any) -> Any:
            planned = schedule(*args, **kwargs)
            if planned.total_num_scheduled_tokens:
                running, waiting = scheduler.get_request_counts()
                new = len(planned.scheduled_new_reqs)
                decoding = len(planned.num_scheduled_tokens) - new > 0
                self._step(running, waiting)
                self._add(admitted=new, admitted_beside=new if decoding else 0)
            return planned

        scheduler.schedule = counted

    def _step(self, running: int, waiting: int) -> None:
        not_full = running < self.seats
        self._add(steps=1, steps_not_full=not_full, steps_hungry=not_full and waiting == 0)

    def before_step(self) -> None:
        """Call it before a step. For a core in another process, the front end's unfinished requests give the counts."""
        if self._scheduler is None:
            unfinished = self._engine.get_num_unfinished_requests()
            self._step(min(unfinished, self.seats), max(0, unfinished - self.seats))

    def added(self) -> None:
        """A request was given to the engine."""
        if self._scheduler is None:
            self._add(admitted=1, admitted_beside=self._engine.get_num_unfinished_requests() > 1)

    def abort(self, request_ids: list[str]) -> None:
        """Requests, by vLLM's own names, were aborted."""
        self._add(aborted=len(request_ids))
        self._aborted.update(dict.fromkeys(request_ids))
        while len(self._aborted) > ABORTED_MAX:
            self._aborted.popitem(last=False)
