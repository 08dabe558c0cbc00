"""Tools with planned faults: late, hanging, failing, uncancellable, or half done.

A plan has a flaw for each call of a tool. The effects of calls go into a :class:`Ledger`, so that a
test can compare what happened with what was reported.
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
"""The ledger's entry for a half-done call: ``NAME: begun``."""
DONE = "done"

_PARAMETERS: JsonObject = {
    "type": "object",
    "properties": {"what": {"type": "string"}, "times": {"type": "integer", "minimum": 1}},
    "additionalProperties": False,
}


class FlakyToolError(Exception):
    """The default error of a flaky tool."""


class Opaque:
    """A result that cannot be converted to JSON."""


@attrs.frozen(kw_only=True)
class Flaw:
    """The faults of one call; without options none. Options can be combined.

    Attributes:
        latency: seconds that its work takes.
        hang: it never ends by itself.
        deaf: seconds from its start in which it cannot be cancelled, not even by its timeout. It
            takes at least that long.
        error: raised with a message, before any work.
        half: half of the work is done, and then ``error`` or a ``FlakyToolError`` is raised.
        size: characters of its result.
        opaque: its result is not JSON data.
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
"""The flaws of the first call, the second...; later calls have none. Or a function that returns the
flaw of a call, such as a :class:`FuzzPlan`."""


class FuzzPlan:
    """A plan with a drawn flaw for each call, often none.

    ``source``: see :class:`~motet.testing.FuzzModel`. The first choice is no flaw. Calls after
    ``limit`` have none.

    Attributes:
        drawn: the drawn flaws in order; it is a plan itself.
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
    """A tool with an effect on the outside world, in two halves, and the faults of ``plan``.

    A call records ``NAME: begun`` in the ledger, waits for its latency, and records ``NAME: done``.
    Its parameters ``what`` and ``times`` have no effect.
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
    """Wrap an existing tool or function with the faults of ``plan``.

    The tool's own work runs after the latency, or not at all if the call hangs or raises without
    ``half``. With ``half`` the work is done and the error replaces the result: done, but reported
    as failed. The ledger gets ``NAME: done`` when the work was done.
    """
    inner = made if isinstance(made, Tool) else tool(made)
    planned = _Planned(inner.name, plan, ledger, inner.idempotent, inner)
    return attrs.evolve(inner, run=planned.run)


@attrs.define
class _Planned:
    """Runs the calls of one tool by its plan; ``inner`` does the work, if given."""

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
    """Wait for the latency of a call; the first part, ``deaf``, cannot be cancelled."""
    if flaw.deaf:
        with trio.CancelScope(shield=True):
            await trio.sleep(flaw.deaf)
    rest = inf if flaw.hang else flaw.latency - flaw.deaf
    if rest > 0 or not flaw.deaf:  # a call that is deaf to its end never sees the cancellation
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
"""The flaws to draw from, the simplest first."""
