"""The talk of one trial: its inputs, given to an agent in a session, or to a room of its own.

Invariants: a talk never raises, but when the evaluation itself is cancelled; the room of a trial is
a copy of the evaluated one, so that no trial reads what another one was told.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import attrs
import trio

from motet.actors.agents.spec import AnyAgent
from motet.actors.host import Host
from motet.actors.hosting.inputs import RunStream
from motet.actors.rooms.definition import Room, member_session
from motet.actors.rooms.opening import OpenRoom
from motet.protocols.models import Usage
from motet.protocols.rooms import DEPTH, TURNS, RoomMessage, RoomResult
from motet.protocols.run import RunResult
from motet.protocols.sessions import HistoryRow, Principal, RunInfo, RunStatus
from motet.testing.evals.cases import EvalCase

__all__ = ["AgentTalk", "RoomTalk", "Talk", "is_of_trio"]

SETTLE = 5.0
"""Seconds in which the runs of a room that was stopped are looked up."""
PAGE = 200
MOST_RUNS = 1_000
_LIMITS = frozenset({TURNS, DEPTH})


class Talk:
    """The inputs of one trial, one after another.

    Attributes:
        session: its session, or the name of its room.
        scope: cancel it to end the talk; ``ended`` is set when it has ended.
        results: of the inputs so far; ``runs``: the ids of all runs.
        messages: in a room, what its agents have said.
        deps: what the tools were given.
        error: why it has not come to its end.
    """

    def __init__(self, host: Host, case: EvalCase, session: str) -> None:
        self.session = session
        self.scope = trio.CancelScope()
        self.ended = trio.Event()
        self.results: list[RunResult[Any]] = []
        self.runs: list[str] = []
        self.messages: list[RoomMessage] = []
        self.deps: object = None
        self.error = ""
        self._host = host
        self._case = case
        self._who = Principal(f"eval:{session}", "admin")

    @property
    def usage(self) -> Usage:
        """What all runs have used that have ended."""
        return sum((one.usage for one in self.results), Usage())

    @property
    def last(self) -> RunResult[Any] | None:
        """The result of the last run that has ended; None: none has."""
        return self.results[-1] if self.results else None

    async def hold(self) -> None:
        """Give all inputs. Never raises, but when the evaluation itself is cancelled."""
        try:
            with self.scope:
                try:
                    await self._begin()
                    for text in self._case.inputs:
                        self.results.append(await self._say(text))
                        if self.results[-1].status != "completed":
                            return
                except BaseException as error:
                    if is_of_trio(error):
                        raise
                    self.error = f"{type(error).__name__}: {error}"
        finally:
            self.ended.set()

    async def _begin(self) -> None:
        """Before the first input."""

    async def _say(self, text: str) -> RunResult[Any]:
        raise NotImplementedError


class AgentTalk(Talk):
    """A talk with an agent: a run for each input."""

    def __init__(
        self,
        host: Host,
        case: EvalCase,
        session: str,
        agent: AnyAgent,
        deps: Callable[[EvalCase], Any] | None,
    ) -> None:
        super().__init__(host, case, session)
        self._agent = agent
        self._make = deps
        self._views: list[RunStream[Any]] = []

    @property
    def usage(self) -> Usage:
        """What all runs have used that have ended."""
        return sum((one.usage for one in self._over()), Usage())

    @property
    def last(self) -> RunResult[Any] | None:
        """The result of the last run that has ended; None: none has."""
        over = self._over()
        return over[-1] if over else None

    async def _begin(self) -> None:
        if self._make is not None:
            self.deps = self._make(self._case)

    async def _say(self, text: str) -> RunResult[Any]:
        agent, deps, who = self._agent, cast("Any", self.deps), self._who  # of its own function
        async with self._host.stream(
            agent, text, deps=deps, session=self.session, principal=who
        ) as run:
            self.runs.append(run.id)
            self._views.append(run)
            return await run.wait()

    def _over(self) -> Sequence[RunResult[Any]]:
        return self.results or [view.result for view in self._views if _has_ended(view)]


class RoomTalk(Talk):
    """A talk with a room, in which a person says each input when the room waits for people."""

    def __init__(self, host: Host, case: EvalCase, name: str, room: Room) -> None:
        super().__init__(host, case, name)
        self._room = attrs.evolve(room, name=name)
        self._opened: OpenRoom | None = None
        self._used = Usage()

    @property
    def usage(self) -> Usage:
        """What all turns have used."""
        return self._used

    async def _begin(self) -> None:
        self._opened = await self._host.open_room(self._room, principal=self._who)

    async def _say(self, text: str) -> RunResult[Any]:
        assert self._opened is not None
        new: list[RunInfo] = []
        said: RoomResult | None = None
        try:
            said = await self._opened.run(text, user=self._who.user, role=self._who.role)
        finally:
            # Awaits while being cancelled, for a moment: what was spent is counted all the same.
            with trio.move_on_after(SETTLE, shield=True):
                new = await self._new_runs()
            self.runs += [run.run_id for run in new]
            self._used += sum((run.usage for run in new), Usage())
        self.messages += said.messages
        status, why = _end_of(said, new)
        return RunResult(
            new[-1].run_id if new else "",
            self.session,
            said.messages[-1].author if said.messages else self._room.name,
            status,
            said.text,
            sum((run.usage for run in new), Usage()),
            why if status == "limited" else "",
            why,
            rows=tuple(row.row for row in await self._rows(new)),
        )

    async def _new_runs(self) -> list[RunInfo]:
        """The turns since the last look, oldest first."""
        known, found = set(self.runs), list[RunInfo]()
        for session in self._sessions():
            found += await self._host.runs(session=session, limit=MOST_RUNS)
        new = [run for run in found if run.run_id not in known]
        return sorted(new, key=lambda run: run.created)

    async def _rows(self, runs: Sequence[RunInfo]) -> list[HistoryRow]:
        """The rows of these turns, in the order of time."""
        wanted, rows = {run.run_id for run in runs}, list[HistoryRow]()
        for session in {run.session for run in runs}:
            before: int | None = None
            while True:
                page = await self._host.history(session, before=before, limit=PAGE)
                rows += [row for row in page if row.run_id in wanted]
                if len(page) < PAGE:
                    break
                before = page[0].pos
        return sorted(rows, key=lambda row: (row.ts, row.pos))

    def _sessions(self) -> list[str]:
        names = [member.name for member in self._room.members]
        return [member_session(self._room.name, name) for name in names]


def _end_of(said: RoomResult, runs: Sequence[RunInfo]) -> tuple[RunStatus, str]:
    """How a round has ended, and why. A turn that failed fails it, whatever the others said."""
    for run in runs:
        if run.status not in ("completed", "steered", "dropped"):
            return run.status, f"the turn of {run.agent} was {run.status}: {run.detail}"
    if said.reason in _LIMITS:
        return "limited", said.reason
    return "completed", ""


def _has_ended(view: RunStream[Any]) -> bool:
    try:
        return bool(view.result)
    except RuntimeError:
        return False


def is_of_trio(error: BaseException) -> bool:
    """Whether an error is no error of the judged code: a cancellation, an interrupt."""
    if isinstance(error, BaseExceptionGroup):
        members = cast("BaseExceptionGroup[BaseException]", error).exceptions
        return any(map(is_of_trio, members))
    return isinstance(error, trio.Cancelled | KeyboardInterrupt | GeneratorExit)
