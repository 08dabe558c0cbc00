"""Tools that misbehave as they are told to: late, hanging, failing, deaf, or half done.

A plan says what is wrong with each call of a tool. What a call does to the outside world goes into
a :class:`Ledger`, so that a test can tell what happened from what was reported.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import Any, TypeAlias

import attrs
import trio

from motet.actors.tools.context import Context
from motet.actors.tools.schema import Function
from motet.actors.tools.tool import Tool, tool
from motet.protocols.chat import JsonObject
from motet.testing.choices import Source, choices_of
from motet.testing.history import Ledger

BEGUN = "begun"
"""What the ledger has of a call that did a half of its work: ``NAME: begun``."""
DONE = "done"

_PARAMETERS: JsonObject = {
    "type": "object",
    "properties": {"what": {"type": "string"}, "times": {"type": "integer", "minimum": 1}},
    "additionalProperties": False,
}


class FlakyToolError(Exception):
    """What a flaky tool raises that is not told what to raise."""


class Opaque:
    """A result that is no JSON data, nor anything like it."""


@attrs.frozen(kw_only=True)
class Flaw:
    """What is wrong with one call; without options nothing is. Options go together.

    Attributes:
        latency: seconds that its work takes.
        hang: it never ends by itself.
        deaf: seconds from its start in which it does not hear that it is cancelled, nor its
            time-out. It takes at least that long.
        error: raised with a message, before anything is done.
        half: a half of the work is done, and then the error is raised, or a FlakyToolError.
        size: characters of its result.
        opaque: its result is no data.
    """

    latency: float = 0.0
    hang: bool = False
    deaf: float = 0.0
    error: Callable[[str], BaseException] | None = None
    half: bool = False
    size: int | None = None
    opaque: bool = False

    def __repr__(self) -> str:
        fields = attrs.fields(Flaw)
        given = {
            f.name: getattr(self, f.name) for f in fields if getattr(self, f.name) != f.default
        }
        shown = {name: getattr(value, "__name__", repr(value)) for name, value in given.items()}
        return f"Flaw({', '.join(f'{name}={value}' for name, value in shown.items())})"


FINE = Flaw()
Plan: TypeAlias = Sequence[Flaw] | Callable[[Context[Any]], Flaw]
"""What is wrong with the first call, the second...; all is well with those after the last. Or a
function that says it, such as a :class:`FuzzPlan`."""


class FuzzPlan:
    """A plan that is drawn: something else is wrong with each call, and often nothing.

    ``source``: as of :class:`~motet.testing.FuzzModel`. The first choices draw no flaw. After
    ``limit`` calls all is well.

    Attributes:
        drawn: what was drawn, in order; it is a plan itself.
    """

    def __init__(self, source: Source, *, limit: int = 100) -> None:
        self.drawn: list[Flaw] = []
        self._choices = choices_of(source)
        self._limit = limit

    def __call__(self, _context: Context[Any]) -> Flaw:
        over = len(self.drawn) >= self._limit
        flaw = FINE if over else FLAWS[self._choices()(len(FLAWS))]
        self.drawn.append(flaw)
        return flaw


def flaky_tool(
    name: str,
    plan: Plan = (),
    *,
    ledger: Ledger | None = None,
    idempotent: bool = False,
    timeout: float = 60.0,
    description: str = "Does something outside.",
) -> Tool:
    """A tool that does something outside, in two halves, and misbehaves by ``plan``.

    The ledger has ``NAME: begun`` when a call begins its work and ``NAME: done`` at its end, of
    which its latency lies in front. It takes ``what`` and ``times``, which change nothing.
    """
    planned = _Planned(name, plan, ledger, idempotent)
    return Tool(
        name=name,
        description=description,
        parameters=_PARAMETERS,
        run=planned.run,
        effects="write",
        idempotent=idempotent,
        timeout=timeout,
    )


def with_flaws(made: Tool | Function, plan: Plan = (), *, ledger: Ledger | None = None) -> Tool:
    """A tool of one's own, or a function, that misbehaves by ``plan``.

    Its own work is done after the latency, or not at all: when it hangs, or raises without
    ``half``. With ``half`` it is done, and the error is raised in place of the result: done, and
    reported as failed. The ledger has ``NAME: done`` when it was done.
    """
    inner = made if isinstance(made, Tool) else tool(made)
    planned = _Planned(inner.name, plan, ledger, inner.idempotent, inner)
    return attrs.evolve(inner, run=planned.run)


@attrs.define
class _Planned:
    """The calls of one tool, each by its place in the plan; ``inner`` does the work, if given."""

    name: str
    plan: Plan
    ledger: Ledger | None
    repeatable: bool
    inner: Tool | None = None
    calls: int = 0

    async def run(self, ctx: Context[object], args: JsonObject) -> object:
        flaw = self._next(ctx)
        error = flaw.error or FlakyToolError
        if flaw.error is not None and not flaw.half:
            await _wait(flaw)
            raise error(f"{self.name} fails, as planned")
        value: object = DONE
        if self.inner is None:
            self._did(ctx, BEGUN)
        await _wait(flaw)
        if self.inner is not None:
            value = await self.inner.run(ctx, args)
        elif flaw.half:
            raise error(f"{self.name} fails when a half of it is done, as planned")
        self._did(ctx, DONE)
        if flaw.half:
            raise error(f"{self.name} fails when it is done, as planned")
        return _result(flaw, value)

    def _next(self, ctx: Context[object]) -> Flaw:
        self.calls += 1
        if callable(self.plan):
            return self.plan(ctx)
        return self.plan[self.calls - 1] if self.calls <= len(self.plan) else FINE

    def _did(self, ctx: Context[object], what: str) -> None:
        if self.ledger is not None:
            self.ledger.did(ctx, f"{self.name}: {what}", repeatable=self.repeatable)


async def _wait(flaw: Flaw) -> None:
    """The time that a call takes, in the first part of which it is deaf."""
    if flaw.deaf:
        with trio.CancelScope(shield=True):
            await trio.sleep(flaw.deaf)
    rest = inf if flaw.hang else flaw.latency - flaw.deaf
    if rest > 0 or not flaw.deaf:  # what was deaf until its end ends without having heard
        await trio.sleep(max(rest, 0))


def _result(flaw: Flaw, value: object) -> object:
    if flaw.opaque:
        return Opaque()
    return value if flaw.size is None else "x" * flaw.size


FLAWS: tuple[Flaw, ...] = (
    *[FINE] * 6,
    Flaw(latency=1),
    Flaw(error=FlakyToolError),
    Flaw(half=True),
    Flaw(latency=20),
    Flaw(error=ConnectionError, latency=3),
    Flaw(error=SystemExit),
    Flaw(half=True, latency=5, error=TimeoutError),
    Flaw(deaf=2),
    Flaw(deaf=3, latency=10),
    Flaw(size=0),
    Flaw(size=50_000),
    Flaw(opaque=True),
    Flaw(hang=True),
    Flaw(hang=True, deaf=1),
)
"""What is drawn, the simplest first."""
