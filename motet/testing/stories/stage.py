"""Who stands in while a program is played: models that follow its script, and tools that are seen.

Invariant: each call that reaches a tool is on record with its end, and all that it starts carries
the id of its run, so that what outlives the run can be named.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextvars import ContextVar

import attrs
import msgspec
import trio

from motet.actors.tools.context import Context
from motet.actors.tools.tool import Tool
from motet.protocols.chat import JsonObject
from motet.protocols.models import ModelRequest
from motet.testing.history import History
from motet.testing.invariants.snapshot import Ran
from motet.testing.playing import StepModel
from motet.testing.steps import Slow, Step
from motet.testing.stories.program import Mishap
from motet.testing.turns import plain_answer

__all__ = ["Player", "Stage", "run_of"]

DONE = "ok"

PATIENCE = 20
"""Answers beyond the script that agents may want, besides those for each input."""
PER_INPUT = 10

_run: ContextVar[str] = ContextVar("motet_testing_run", default="")


def run_of(task: trio.lowlevel.Task) -> str:
    """The run whose tool has started a task, or one that has started that; empty: none's."""
    return task.context.get(_run, "")


@attrs.define(eq=False)
class Stage:
    """What the models and tools of one program share.

    ``beyond`` counts the answers that no script has; more than ``allowed`` of them never come.
    """

    history: History
    mishaps: dict[int, Mishap]
    allowed: int
    calls: int = 0
    beyond: int = 0
    ran: list[Ran] = attrs.field(factory=list[Ran])

    @property
    def endless(self) -> bool:
        """Agents keep each other going, without anybody having said anything more."""
        return self.beyond > self.allowed

    def watched(self, tool: Tool) -> Tool:
        """The tool, seen from outside, with the mishaps of the program."""

        async def run(ctx: Context[object], args: JsonObject) -> object:
            self.calls += 1
            mishap = self.mishaps.get(self.calls) or Mishap(self.calls)
            place = self._begun(tool, ctx)
            before = _run.set(ctx.run_id)
            try:
                if mishap.late:
                    await trio.sleep(mishap.late)
                if mishap.fails and not mishap.after:
                    raise RuntimeError(mishap.fails)
                value = await tool.run(ctx, args)
                if mishap.fails:
                    raise RuntimeError(mishap.fails)
                return value
            finally:
                _run.reset(before)
                self._over(place)

        return attrs.evolve(tool, run=run)

    def _begun(self, tool: Tool, ctx: Context[object]) -> int:
        self.ran.append(
            Ran(
                self.history.next_at(),
                ctx.run_id,
                ctx.call_id,
                tool.name,
                ctx.session,
                ctx.principal.user,
                ended=False,
                gated=tool.approval is True,
            )
        )
        return len(self.ran) - 1

    def _over(self, place: int) -> None:
        self.ran[place] = msgspec.structs.replace(self.ran[place], ended=True)


class Player(StepModel):
    """Answers by a script, over all sessions and crashes; when it has ended, it says ``ok``."""

    def __init__(self, name: str, script: Sequence[Step], stage: Stage) -> None:
        super().__init__(name)
        self._script: Iterator[Step] = iter(script)
        self._stage = stage

    def _step(self, request: ModelRequest) -> Step:
        step = next(self._script, None)
        if step is not None:
            return step
        self._stage.beyond += 1
        done = plain_answer(request, DONE)
        return Slow(done, float("inf")) if self._stage.endless else done
