"""The figures of a host that its metrics show: histograms of durations, and sums. Pure.

They count since the host began. Runs, model calls and tool calls are read from the traces that
have been stored, so that they cost a turn nothing; a figure is up to a second late, and a run that
a kill has cut off is in none. Invariant: no figure has the name of a user, session, run or tool, so
that their number is bounded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

import attrs

from motet.protocols.sessions import FINAL
from motet.protocols.storage import COMMIT_SECONDS, Histogram
from motet.protocols.traces import Span, TraceBatch, TraceInfo

TURN_SECONDS: Final = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 900.0)
CALL_SECONDS: Final = (0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


@attrs.define(eq=False)
class Meters:
    """The figures of one host. Touched by one thread, but for ``commits``, which the writer fills.

    Attributes:
        turns: seconds of runs from their begin to their end, waits for people included.
        first_tokens: seconds from a model call to the first part of its answer.
        outcomes: ended runs by status.
        calls: ended calls by kind (``model``, ``tool``) and status of the span.
        tokens: by kind; ``cached`` and ``cache_write`` are part of ``input``.
        dollars: of the model calls whose price is known.
        unpriced: model calls whose price is not known.
        lost_traces: traces that could not be stored.
        lost_exports: spans that a collector of traces did not get.
    """

    commits: Histogram = attrs.field(factory=lambda: Histogram(COMMIT_SECONDS))
    turns: Histogram = attrs.field(factory=lambda: Histogram(TURN_SECONDS), init=False)
    models: Histogram = attrs.field(factory=lambda: Histogram(CALL_SECONDS), init=False)
    first_tokens: Histogram = attrs.field(factory=lambda: Histogram(CALL_SECONDS), init=False)
    tools: Histogram = attrs.field(factory=lambda: Histogram(CALL_SECONDS), init=False)
    outcomes: Counter[str] = attrs.field(factory=Counter[str], init=False)
    calls: Counter[tuple[str, str]] = attrs.field(factory=Counter[tuple[str, str]], init=False)
    tokens: Counter[str] = attrs.field(factory=Counter[str], init=False)
    dollars: float = attrs.field(default=0.0, init=False)
    unpriced: int = attrs.field(default=0, init=False)
    lost_traces: int = attrs.field(default=0, init=False)
    lost_exports: int = attrs.field(default=0, init=False)

    def note(self, batches: Iterable[TraceBatch]) -> None:
        """Count what has ended in stored batches, each of which is noted once."""
        for batch in batches:
            self._run(batch.info)
            for span in batch.spans:
                if span.ended is not None and span.kind in ("model", "tool"):
                    self._call(span, span.ended - span.started)

    def _run(self, info: TraceInfo) -> None:
        # A suspended run has ended its trace, which goes on; the error store has traces of its own.
        if info.ended is not None and info.agent and info.status in FINAL:
            self.outcomes[info.status] += 1
            self.turns.observe(max(0.0, info.ended - info.started))

    def _call(self, span: Span, seconds: float) -> None:
        self.calls[span.kind, span.status] += 1
        if span.kind == "tool":
            self.tools.observe(max(0.0, seconds))
            return
        self.models.observe(max(0.0, seconds))
        if span.first_token is not None:
            self.first_tokens.observe(max(0.0, span.first_token))
        if (used := span.usage) is not None:
            self.tokens["input"] += used.input_tokens
            self.tokens["output"] += used.output_tokens
            self.tokens["cached"] += used.cached_tokens
            self.tokens["cache_write"] += used.cache_write_tokens
            self.dollars += used.cost or 0.0
            self.unpriced += used.unpriced


@attrs.frozen
class Figures:
    """The meters, and what is counted at the moment of a look.

    Attributes:
        approvals: calls that wait for a person.
        breakers: circuit breakers that are open or half open, of all tools, agents and people.
        lost_traces: traces that were not stored, since too many waited or they could not be.
    """

    meters: Meters
    approvals: int = 0
    breakers: int = 0
    lost_traces: int = 0
