"""The test doubles of a program: models that follow its script, recorded tools, and the replay.

Invariant: each call that reaches a tool is recorded with its end, and all tasks that it starts
carry the id of its run, so that a task that outlives its run can be named.
"""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import cast

import attrs
import msgspec
import trio

from motet.actors.tools.context import Context
from motet.actors.tools.tool import Tool
from motet.protocols.chat import JsonObject
from motet.protocols.models import ModelRequest
from motet.runtime.testing.replay import ReplayDiverged, difference
from motet.testing.history import History
from motet.testing.invariants.snapshot import Ran
from motet.testing.models import plain_answer
from motet.testing.scripted import Answer, Cut, Slow, Step, StepModel
from motet.testing.stories.acts import SourceRepr
from motet.testing.stories.references import Results, plain, resolved

__all__ = [
    "Mishap",
    "Player",
    "Replay",
    "Stage",
    "being_replayed",
    "hash_of",
    "replay_of",
    "run_of",
]

DONE = "ok"

PATIENCE = 20
"""Allowed answers beyond the script, in addition to ``PER_INPUT`` for each input."""
PER_INPUT = 10

_run: ContextVar[str] = ContextVar("motet_testing_run", default="")


def run_of(task: trio.lowlevel.Task) -> str:
    """The run whose tool has started a task, directly or indirectly; empty: none."""
    return task.context.get(_run, "")


class Mishap(SourceRepr, frozen=True, omit_defaults=True):
    """A fault in one call of a tool.

    Attributes:
        call: the number of the call, from 1, over all calls that reach a tool in the program.
        late: virtual seconds before the function is called.
        fails: the message of its failure; empty: it does not fail.
        after: it fails after the function has done its work, so that the effect is there.
    """

    call: int
    late: float = 0.0
    fails: str = ""
    after: bool = False


class Replay:
    """The recorded execution that a program must repeat, line by line."""

    def __init__(
        self, path: Path, digest: str, trace: Sequence[str], versions: dict[str, str]
    ) -> None:
        self.path = path
        self.times = 0
        self._digest, self._trace, self._versions = digest, trace, versions

    def compare(self, trace: Sequence[str]) -> None:
        """Raise ``ReplayDiverged`` when a trace differs from the recorded one."""
        self.times += 1
        if hash_of(trace) != self._digest:
            found = difference(self.path, self._trace, trace, self._versions)
            raise found or ReplayDiverged(
                self.path, len(trace), "another hash", "this trace", "the file was edited"
            )


_replays: list[Replay] = []


@contextmanager
def replay_of(replay: Replay) -> Generator[None]:
    """Compare every program that is executed in the block."""
    _replays.append(replay)
    try:
        yield
    finally:
        _replays.remove(replay)


def being_replayed() -> Replay | None:
    """The innermost replay; None when programs are executed for the first time."""
    return _replays[-1] if _replays else None


def hash_of(trace: Sequence[str]) -> str:
    """The SHA-256 of all lines, as that of a :class:`~motet.runtime.testing.Trace`."""
    return hashlib.sha256("".join(f"{line}\n" for line in trace).encode()).hexdigest()


@attrs.define(eq=False)
class Stage:
    """The state that the models and tools of one program share.

    ``beyond`` counts the answers beyond the scripts; after ``allowed`` of them models fall silent.
    """

    history: History
    mishaps: dict[int, Mishap]
    allowed: int
    calls: int = 0
    beyond: int = 0
    results: list[tuple[str, object]] = attrs.field(factory=list[tuple[str, object]])
    ran: list[Ran] = attrs.field(factory=list[Ran])

    @property
    def endless(self) -> bool:
        """Agents keep each other busy without any further input."""
        return self.beyond > self.allowed

    def watched(self, tool: Tool) -> Tool:
        """Wrap a tool: record its calls and apply the program's mishaps."""

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
                self.results.append((tool.name, plain(value)))
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
    """Answers by a script, across all sessions and crashes, and then with ``ok``."""

    def __init__(self, name: str, script: Sequence[Step], stage: Stage) -> None:
        super().__init__(name)
        self._script: Iterator[Step] = iter(script)
        self._stage = stage

    def _step(self, request: ModelRequest) -> Step:
        step = next(self._script, None)
        if step is not None:
            return told(step, request, self._stage.results)
        self._stage.beyond += 1
        done = plain_answer(request, DONE)
        return Slow(done, float("inf")) if self._stage.endless else done


def told(step: Step, request: ModelRequest, results: Results) -> Step:
    """The step with the values of its references to earlier results."""
    match step:
        case Slow(inner, seconds):
            return Slow(cast("Answer | Cut", told(inner, request, results)), seconds)
        case Cut(answer, after):
            return Cut(cast("Answer", told(answer, request, results)), after)
        case Answer(text, calls):
            schemas = {tool.name: tool.parameters for tool in request.tools}
            known = tuple(
                (one[0], resolved(one[1], schemas.get(one[0], {}), results))
                if isinstance(one, tuple)
                else one
                for one in calls
            )
            return Answer(text, known)
        case _:
            return step
