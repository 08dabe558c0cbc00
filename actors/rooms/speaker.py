"""Has a member of a room take its turn: a run like any other, paid by the round.

Invariants: a turn's run has ended, with all that it started, or is parked, when its task goes on
(G1); a member acts for its room, never for the person who spoke last (G16).
"""

from __future__ import annotations

from collections.abc import Callable
from time import time
from typing import TYPE_CHECKING

import trio
from msgspec.structs import replace

from motet.actors.agent.budget import Budget, OverBudget
from motet.actors.agent.definition import Agent, AnyAgent
from motet.actors.rooms.access import acts_as, member_session
from motet.actors.rooms.told import manners
from motet.actors.rooms.turns import WAITS, Late, Turn, turn_of
from motet.actors.sessions.keys import sub_agent_key
from motet.actors.sessions.run import Run
from motet.protocols.chat import AssistantMessage, UserMessage
from motet.protocols.errors import MotetError
from motet.protocols.limits import MAX_DEPTH, Limits
from motet.protocols.models import Model, Usage
from motet.protocols.rooms import STOPPED, MemberInfo, RoomState
from motet.protocols.sessions import LoadTranscript
from motet.runtime import ActorRef

if TYPE_CHECKING:
    from motet.actors.intake import Intake
    from motet.actors.result import RunResult
    from motet.actors.rooms.definition import Room
    from motet.actors.sessions.store import SessionStoreMessage

CHOOSER = "room.selector"


class Speaker:
    """The members of one room as runs of its host."""

    def __init__(
        self,
        room: Room,
        members: tuple[MemberInfo, ...],
        intake: Intake,
        sessions: ActorRef[SessionStoreMessage],
        late: Late,
    ) -> None:
        self.room = room
        self.members = members
        self._runs: set[Run] = set()
        self._intake = intake
        self._sessions = sessions
        self.late = late
        self._budget = Budget(room.limits)
        self._refused = ""
        self._choosers: dict[str, AnyAgent] = {}

    @property
    def usage(self) -> Usage:
        """What the round has used."""
        return self._budget.usage

    def become(self, room: Room, members: tuple[MemberInfo, ...]) -> None:
        """Work for what the room is from now on."""
        self.room, self.members = room, members

    def session(self, member: str) -> str:
        return member_session(self.room.name, member)

    def begin(self, limits: Limits, state: RoomState) -> None:
        """A round's budget, less what it has used before a restart."""
        # What the members' own children may do is theirs to limit.
        limits = replace(limits, depth=MAX_DEPTH, children=1 << 30)
        elapsed = max(0.0, time() - state.opened) if state.opened else 0.0
        self._budget = Budget(limits, started=trio.current_time() - elapsed)
        self._budget.spend(state.usage)
        self._refused = ""

    def waited(self, seconds: float, used: Usage) -> None:
        """The round has stood still, and what its member used afterwards was not counted here."""
        self._budget.started += seconds
        self._budget.spend(used)

    def exhausted(self) -> str:
        """The limit of the round that allows no further turn, if there is one."""
        return self._refused or self._budget.exhausted(trio.current_time()) or ""

    async def turn(self, member: str, text: str, too_late: Callable[[], bool]) -> Turn:
        """Have a member answer ``text``, unless it is too late. A failed run does not raise."""
        agent = next(one.agent for one in self.room.members if one.name == member)
        session = self.session(member)
        if self.late.goes_on(session):
            return Turn(problem=WAITS)
        extra = manners(self.room.name, member, self.members)
        try:
            result = await self._run(agent, text, session, extra, too_late)
        except (MotetError, OverBudget) as error:
            return Turn(problem=str(error))
        return Turn(problem=STOPPED) if result is None else turn_of(result)

    async def ask(
        self, too_late: Callable[[], bool], model: str | Model, system: str, text: str
    ) -> str:
        """One answer of a model about this room, paid by the round; empty when there is none."""
        key = model if isinstance(model, str) else f"{model.name}-{id(model)}"
        if key not in self._choosers:
            name = f"{CHOOSER}.{self.room.name[:40]}.{len(self._choosers)}"
            self._choosers[key] = Agent(name, model=model, instructions=system)
        agent = self._choosers[key]
        session = sub_agent_key(agent.name, f"{self.room.name}-{time():.6f}")
        result = await self._run(agent, text, session, "", too_late)
        return result.text if result and result.status == "completed" else ""

    async def may_repeat(self, member: str) -> bool:
        """Whether a turn that the end of a host cut off has called nothing, so that it had no
        effects (G15).
        """
        rows = await self._sessions.ask(LoadTranscript(self.session(member)))
        for row in reversed(rows):
            if isinstance(row, AssistantMessage) and row.calls:
                return False
            if isinstance(row, UserMessage) and not row.note:
                break
        return True

    async def _run(
        self,
        agent: AnyAgent | str,
        text: str,
        session: str,
        extra: str,
        too_late: Callable[[], bool],
    ) -> RunResult[object] | None:
        """Cancelling ends the run and waits for it. None: it was too late to begin."""
        who = acts_as(self.room.name)
        run = await self._intake.new_run(agent, text, session, None, None, who, None)
        if too_late():  # from here to its place in the run table nothing awaits
            return None
        run.extra = extra
        run.budget = self._budget.child(run.limits, started=trio.current_time())
        self._runs.add(run)
        try:
            async with self._intake.owned(run):
                await run.ended.wait()
        finally:
            run.budget.close()
            self._runs.discard(run)
        assert run.result is not None
        self._notice(run.result.limit, run.limits)
        return run.result

    def _notice(self, limit: str, own: Limits) -> None:
        """A run has ended for want of what the round has not got either: so does the round."""
        if limit in ("tokens", "usd", "wall") and getattr(own, limit) is None:
            self._refused = limit

    def at_work(self) -> dict[str, Run]:
        """The runs that go on of members who have the floor, by name."""
        names = {self.session(member.name): member.name for member in self.members}
        admitted = (run for run in self.live() if run.generation)
        return {names[run.session]: run for run in admitted if run.session in names}

    async def entering(self, run: Run, text: str) -> Run:
        """The input as which a text is to enter a run: see :meth:`enter`. Raises ``MotetError``."""
        arrival = self._intake.expect(run.session, run.principal)
        made = await self._intake.steering(run, text, "steer", None, arrival)
        made.only_enters = True
        return made

    async def enter(self, entering: Run) -> None:
        """Have it enter before the run's next model request.

        It ends as ``steered`` if it has, else as ``dropped``. Raises ``MotetError``: it has not.
        """
        await self._intake.deliver(entering)

    def live(self) -> tuple[Run, ...]:
        """The runs of this room that have not ended, except those that are parked."""
        return tuple(run for run in self._runs if run.result is None)

    def wake(self) -> tuple[Run, ...]:
        """As :meth:`live`, with those that were parked, which are to be stopped."""
        woken = [run for one in self.members for run in self.late.wake(self.session(one.name))]
        return tuple(dict.fromkeys((*self.live(), *woken)))

    def stop(self, why: str) -> tuple[str, ...]:
        """Ask whoever speaks to end; the ids of their runs. Needs no actor and no disk."""
        return tuple(run.id for run in self.wake() if run.cancel(why, by_user=True))
