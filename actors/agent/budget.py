"""What a run and all runs below it may still spend: one budget per run, in one tree.

Invariants: what a run spends is spent at every level above it too, so a level's sums are those of
its subtree. A model request is begun only when what is expected of it fits at every level, beside
all that is expected of the requests in flight; so a limit is exceeded only by what requests cost
beyond expectation, one of them when they come one after another. Turns are each run's own.

An unknown price can't be checked. It is warned of, once per tree, and what is known still counts:
a price list is always behind the models, and a host that refused each new or local one would
teach its users to drop the limit. Tokens are counted everywhere. Source: api.md, section 4.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from math import inf
from typing import Literal, TypeAlias

import attrs

from motet.protocols.limits import Limits
from motet.protocols.models import Usage

LimitName: TypeAlias = Literal["turns", "tool_calls", "tokens", "usd", "wall", "depth", "children"]

NOTHING = Usage()


class OverBudget(Exception):
    """What was asked for is not there to be spent; ``limit`` is the one that forbids it."""

    def __init__(self, limit: LimitName) -> None:
        super().__init__(f"the limit {limit!r} does not allow it")
        self.limit = limit


@attrs.define(eq=False)
class Budget:
    """The budget of one run. Touched by one Trio thread only; nothing here awaits.

    Attributes:
        started: when the run began, on the clock of :attr:`deadline`.
        turns: model requests of this run alone.
        tool_calls: calls of this run and those below it.
        usage: tokens and dollars of this run and those below it.
        usd: the dollars that are known of, also when ``usage.cost`` is not.
        children: those that are alive now.
    """

    limits: Limits
    parent: Budget | None = None
    started: float = 0.0
    turns: int = attrs.field(default=0, init=False)
    tool_calls: int = attrs.field(default=0, init=False)
    usage: Usage = attrs.field(default=NOTHING, init=False)
    usd: float = attrs.field(default=0.0, init=False)
    children: int = attrs.field(default=0, init=False)
    _above: tuple[Budget, ...] = attrs.field(init=False)
    _held: list[Usage] = attrs.field(factory=list[Usage], init=False)
    _largest_answer: int = attrs.field(default=0, init=False)
    _unpriced: bool = attrs.field(default=False, init=False)
    _warned: bool = attrs.field(default=False, init=False)
    _closed: bool = attrs.field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        self._above = self.parent.lineage if self.parent else ()

    def __repr__(self) -> str:
        return (
            f"<Budget turns={self.turns} calls={self.tool_calls} "
            f"tokens={self.usage.total_tokens} usd={self.usd:g} children={self.children}>"
        )

    @property
    def lineage(self) -> tuple[Budget, ...]:
        """This budget, its parent's, and so on to the root's."""
        return (self, *self._above)

    @property
    def deadline(self) -> float:
        """When the wall time of this run, or of one above it, is over; ``inf`` without a limit."""
        return min(
            level.started + (inf if level.limits.wall is None else level.limits.wall)
            for level in self.lineage
        )

    # Model requests

    def exhausted(self, now: float | None = None) -> LimitName | None:
        """The limit that forbids any further model request. ``now``: to look at the clock too."""
        if now is not None and now >= self.deadline:
            return "wall"
        if self.turns >= self.limits.turns:
            return "turns"
        return self.refuses(NOTHING)

    def refuses(self, expected: Usage) -> LimitName | None:
        """The limit that a request using this much would break, at whatever level."""
        for level in self.lineage:
            if (name := level._breaks(expected)) is not None:
                return name
        return None

    def expects(self, prompt_tokens: int, most: int | None = None) -> Usage:
        """What a request with this prompt is likely to use, from what the run has used so far.

        ``most``: the greatest length of the answer that the request allows.
        """
        known = next((level for level in self.lineage if level.usage.total_tokens), None)
        if known is None:
            return Usage(prompt_tokens, most or 0)
        answer = known._largest_answer if most is None else most
        share = (prompt_tokens + answer) / known.usage.total_tokens
        return Usage(prompt_tokens, answer, cost=known.usd * share)

    @contextmanager
    def held(self, expected: Usage) -> Generator[None]:
        """Keep so much free of other runs while a request of this run is going on.

        Raises :class:`OverBudget` when it is not there.
        """
        if (name := self.refuses(expected)) is not None:
            raise OverBudget(name)
        for level in self.lineage:
            level._held.append(expected)
        try:
            yield
        finally:
            for level in self.lineage:
                level._held.remove(expected)

    def spend_turn(self) -> int:
        """Count a model request that is about to be made; its number, from 1."""
        self.turns += 1
        return self.turns

    def spend(self, usage: Usage) -> None:
        """Count what a model request used, also one for a summary or a flush."""
        for level in self.lineage:
            level.usage += usage
            level.usd += usage.cost or 0.0
            level._largest_answer = max(level._largest_answer, usage.output_tokens)
            level._unpriced = level._unpriced or usage.unpriced

    def warning(self) -> str:
        """What to say of a price that is unknown and should be checked: once per tree."""
        root = self.lineage[-1]
        unchecked = [one for one in self.lineage if one._unpriced and one.limits.usd is not None]
        if not unchecked or root._warned:
            return ""
        root._warned = True
        return (
            "limits.usd cannot be checked: the price of a model that was used is unknown. What is "
            "known counts; limits.tokens can always be checked (motet[prices] knows most prices)"
        )

    # Calls and children

    def calls_left(self) -> int | None:
        """How many more calls there may be; None for any number."""
        limited = [level for level in self.lineage if level.limits.tool_calls is not None]
        return min(
            (max(0, (one.limits.tool_calls or 0) - one.tool_calls) for one in limited), default=None
        )

    def spend_calls(self, calls: int) -> None:
        for level in self.lineage:
            level.tool_calls += calls

    def refuses_child(self) -> LimitName | None:
        """The limit that forbids a further child now: how deep it would be, or its siblings."""
        if any(level.limits.depth < below for below, level in enumerate(self.lineage, start=1)):
            return "depth"
        return "children" if self.children >= self.limits.children else None

    def child(self, limits: Limits, started: float = 0.0) -> Budget:
        """The budget of a child, until it is closed. Raises :class:`OverBudget`."""
        if (name := self.refuses_child()) is not None:
            raise OverBudget(name)
        self.children += 1
        return Budget(limits, self, started)

    def close(self) -> None:
        """The run has ended: its place among its parent's children is free. Idempotent."""
        if self.parent is not None and not self._closed:
            self.parent.children -= 1
        self._closed = True

    def _breaks(self, expected: Usage) -> LimitName | None:
        """A limit of this level alone: one that is used up, or would be with what is expected."""
        tokens, usd = self.limits.tokens, self.limits.usd
        if tokens is usd is None:
            return None
        coming = [*self._held, expected]
        used = self.usage.total_tokens
        if tokens is not None:
            due = used + sum(one.total_tokens for one in coming)
            if used >= tokens or due > tokens:
                return "tokens"
        if usd is not None:
            due_usd = self.usd + sum(one.cost or 0.0 for one in coming)
            if self.usd >= usd or due_usd > usd:
                return "usd"
        return None
