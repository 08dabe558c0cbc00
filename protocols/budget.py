"""The budget of a run and of all runs below it: one for each run, in one tree.

Invariants: what a run spends is spent at every level above it too, so a level's sums are those of
its subtree. A model request is begun only when what is expected of it fits at every level, beside
all that is expected of the requests in flight; so a limit is exceeded only by what requests cost
beyond expectation, one of them when they come one after another. Turns are each run's own.

An unknown price can't be checked. It is warned of, once per tree, and what is known still counts:
a price list is always behind the models, and a host that refused each new or local one would
teach its users to drop the limit. Tokens are counted everywhere. Source: api.md, section 4.
"""

from __future__ import annotations

from math import inf
from typing import ClassVar, Literal, TypeAlias

import msgspec

from motet.protocols.approvals import Resumption
from motet.protocols.limits import Limits
from motet.protocols.models import Usage

LimitName: TypeAlias = Literal["turns", "tool_calls", "tokens", "usd", "wall", "depth", "children"]

NOTHING = Usage()


class OverBudget(Exception):
    """A request or call exceeds the budget; ``limit`` is the exceeded limit."""

    def __init__(self, limit: LimitName) -> None:
        super().__init__(f"the limit {limit!r} does not allow it")
        self.limit = limit


class Budget(msgspec.Struct, eq=False):
    """The budget of one run. Touched by one Trio thread only; nothing here awaits.

    Attributes:
        started: when the run began, on the clock of :attr:`deadline`.
        turns: model requests of this run alone.
        tool_calls: calls of this run and those below it.
        usage: tokens and dollars of this run and those below it.
        usd: the dollars that are known of, also when ``usage.cost`` is not.
        children: those that are alive now.
    """

    step: ClassVar[int] = 1
    """By how much deeper than its parent it is."""

    limits: Limits
    parent: Budget | None = None
    started: float = 0.0
    turns: int = 0
    tool_calls: int = 0
    usage: Usage = NOTHING
    usd: float = 0.0
    children: int = 0
    metered: bool = False
    """Whether a limit of this run, or of one above it, counts tokens or dollars."""
    _held: list[Usage] = []
    _largest_answer: int = 0
    _unpriced: bool = False
    _warned: bool = False
    _closed: bool = False
    _paused: tuple[int, float] = (0, 0.0)
    """How often its wall time was asked to stand still, and since when it does."""

    def __post_init__(self) -> None:
        own = self.limits.tokens is not None or self.limits.usd is not None
        self.metered = own or (self.parent is not None and self.parent.metered)

    def __repr__(self) -> str:
        return (
            f"<Budget turns={self.turns} calls={self.tool_calls} "
            f"tokens={self.usage.total_tokens} usd={self.usd:g} children={self.children}>"
        )

    @property
    def lineage(self) -> tuple[Budget, ...]:
        """This budget, its parent's, and so on to the root's."""
        return (self, *self.parent.lineage) if self.parent is not None else (self,)

    @property
    def deadline(self) -> float:
        """When the wall time of this run, or of one above it, is over; ``inf`` without a limit."""
        own, above = self.own_deadline, self.parent
        return own if above is None else min(own, above.deadline)

    @property
    def own_deadline(self) -> float:
        """When its own wall time is over; ``inf`` while that stands still."""
        wall = self.limits.wall
        return inf if wall is None or self._paused[0] else self.started + wall

    def pause(self, now: float) -> None:
        """Let its wall time stand still, until as many calls of :meth:`resume`."""
        count, since = self._paused
        self._paused = count + 1, since if count else now

    def resume(self, now: float) -> None:
        count, since = self._paused
        self._paused = count - 1, since
        if count == 1:
            self.started += now - since

    def elapsed(self, now: float) -> float:
        """Seconds of its wall time so far; while that stands still, those before it did."""
        count, since = self._paused
        return (since if count else now) - self.started

    # Model requests

    def exhausted(self, now: float | None = None) -> LimitName | None:
        """The limit that forbids any further model request. ``now``: to look at the clock too."""
        if now is not None and now >= self.deadline:
            return "wall"
        if self.turns >= self.limits.turns:
            return "turns"
        return self.refuses(NOTHING) if self.metered else None

    def refuses(self, expected: Usage) -> LimitName | None:
        """The limit that a request using this much would break, at whatever level."""
        if not self.metered:
            return None
        above = self.parent
        return self._breaks(expected) or (None if above is None else above.refuses(expected))

    def expects(self, prompt_tokens: int, most: int | None = None) -> Usage:
        """The expected usage of a request with this prompt, from the usage of the run so far.

        ``most``: the greatest length of the answer that the request allows. Where no limit counts
        it, nothing.
        """
        if not self.metered:
            return NOTHING
        if used := self.usage.total_tokens:
            answer = self._largest_answer if most is None else most
            share = (prompt_tokens + answer) / used
            return Usage(prompt_tokens, answer, cost=self.usd * share)
        if self.parent is not None and self.parent.metered:
            return self.parent.expects(prompt_tokens, most)
        return Usage(prompt_tokens, most or 0)

    def hold(self, expected: Usage) -> None:
        """Keep so much free of other runs while a request is going on, until :meth:`release`.

        Raises :class:`OverBudget` when it is not there; then nothing is held.
        """
        if not self.metered:
            return
        if (name := self.refuses(expected)) is not None:
            raise OverBudget(name)
        for level in self.lineage:
            level._held.append(expected)

    def release(self, expected: Usage) -> None:
        """The request is over; what it really used was spent."""
        if self.metered:
            for level in self.lineage:
                level._held.remove(expected)

    def spend_turn(self) -> int:
        """Count a model request that is about to be made; its number, from 1."""
        self.turns += 1
        return self.turns

    def spend(self, usage: Usage) -> None:
        """Count what a model request used, also one for a summary or a flush."""
        self.usage += usage
        self.usd += usage.cost or 0.0
        self._largest_answer = max(self._largest_answer, usage.output_tokens)
        self._unpriced = self._unpriced or usage.unpriced
        if self.parent is not None:
            self.parent.spend(usage)

    def warning(self) -> str:
        """The warning about an unknown price that a limit depends on: once per tree."""
        if not self.metered:
            return ""
        lineage = self.lineage
        root = lineage[-1]
        unchecked = any(one._unpriced and one.limits.usd is not None for one in lineage)
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
        limit = self.limits.tool_calls
        own = None if limit is None else max(0, limit - self.tool_calls)
        above = None if self.parent is None else self.parent.calls_left()
        return own if above is None else above if own is None else min(own, above)

    def spend_calls(self, calls: int) -> None:
        self.tool_calls += calls
        if self.parent is not None:
            self.parent.spend_calls(calls)

    def refuses_child(self) -> LimitName | None:
        """The limit that forbids a further child now: how deep it would be, or its siblings."""
        if self.too_deep():
            return "depth"
        return "children" if self.children >= self.limits.children else None

    def too_deep(self, below: int = 1) -> bool:
        """Whether a run so many levels below this one is more than one above it allows."""
        if self.limits.depth < below:
            return True
        return self.parent is not None and self.parent.too_deep(below + self.step)

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


class RoomBudget(Budget, eq=False):
    """The budget of a round. A room is no run: its members are one level below its parent."""

    step: ClassVar[int] = 0


def starting_budget(limits: Limits, resumption: Resumption | None, now: float) -> Budget:
    """The budget of a run that starts ``now``; a resumed run has spent what it had spent."""
    budget = Budget(limits, started=now)
    if resumption is not None:
        left = resumption.suspended
        budget.started -= left.elapsed
        budget.turns, budget.tool_calls = left.turn.turns, left.turn.tool_calls
        budget.usage, budget.usd = left.turn.spent, left.turn.usd
    return budget
