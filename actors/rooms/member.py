"""The tool by which whoever has the floor of a room hands it over.

It decides nothing: the room reads the call in the turn's transcript when the turn has ended, so
that what was handed over is on disk with the turn, and a turn that fails hands over nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from time import time
from typing import TYPE_CHECKING

import attrs
import msgspec
import trio
from msgspec.structs import replace

from motet.actors.agents.spec import AgentSpec, AnyAgent
from motet.actors.errors.log import logger
from motet.actors.rooms.definition import CHANNEL, acts_as, member_session
from motet.actors.rooms.publisher import line_of, manners
from motet.actors.runs.budget import Budget, OverBudget
from motet.actors.runs.recall import recall
from motet.actors.runs.run import Run
from motet.actors.tools.context import Context
from motet.actors.tools.tool import Tool, ToolRetry, tool
from motet.protocols.chat import AssistantMessage, ChatMessage, ToolMessage, UserMessage
from motet.protocols.errors import MotetError, NotFound
from motet.protocols.events import EventRecord, Terminal
from motet.protocols.limits import MAX_DEPTH, Limits
from motet.protocols.models import Model, Usage
from motet.protocols.rooms import STOPPED, MemberInfo, RoomMessage, RoomState
from motet.protocols.run import RunResult
from motet.protocols.session_keys import sub_agent_key
from motet.protocols.sessions import FINAL, GetRun, ListRuns, LoadTranscript, RunInfo
from motet.protocols.storage import StorageError
from motet.runtime import ActorDead, ActorRef

if TYPE_CHECKING:
    from motet.actors.rooms.definition import Room
    from motet.actors.runs.services import Services
    from motet.actors.sessions.intake import Intake
    from motet.protocols.sessions import SessionStoreMessage


GIVE_FLOOR = "give_floor"
GROUP = {"group:rooms": (GIVE_FLOOR,)}

_DESCRIPTION = (
    "In a group chat, have another member speak after your turn. What you answer after this call "
    "is said first. Call it once, with the member's name as it stands in your instructions."
)


class _Arguments(msgspec.Struct, frozen=True):
    to: str


def floor_tool() -> Tool:
    """``give_floor``, for agents that take part in rooms."""

    async def give_floor(ctx: Context[object], to: str) -> str:
        if not ctx.principal.user.startswith(f"{CHANNEL}:"):
            raise ToolRetry("This is no group chat: there is no floor to give. Just answer.")
        return f"{to} speaks after your turn. Finish it now."

    return tool(give_floor, name=GIVE_FLOOR, description=_DESCRIPTION)


def handed_to(rows: Sequence[ChatMessage]) -> str:
    """The name that a turn has given the floor to, the last one; empty if to nobody."""
    done = {row.call_id for row in rows if isinstance(row, ToolMessage) and row.outcome == "done"}
    calls = [call for row in rows if isinstance(row, AssistantMessage) for call in row.calls]
    given = [call for call in calls if call.name == GIVE_FLOOR and call.id in done]
    return _to(given[-1].arguments) if given else ""


def _to(arguments: str) -> str:
    try:
        return msgspec.json.decode(arguments, type=_Arguments).to.lstrip("@")
    except msgspec.DecodeError:
        return ""  # what it has become when it was repaired is not in the transcript


# What came of a member's turn, and turns that outlive the task that began them.
#
# Those wait for a person's approval outside of any task, or their host was killed before what they
# said was stored in the room. Invariant: what came of one is read from its run, which ends once, in
# whatever host.


LOOK = 30.0
"""Seconds after which a run is looked at again whose end was told and could not be read."""
_LATELY = 200
_ENTERED = ("steered", "dropped")  # what people said to it on its way
WAITS = "it waits for a person's approval"
DELETED = "its session was deleted"


@attrs.frozen
class Turn:
    """What came of a turn.

    Attributes:
        run_id: of its run, if that has begun: then its member was told what it was to answer.
        problem: why nothing, in words that are fit for the room.
        given: the name that it has given the floor to.
        waits: nothing yet: its run is suspended until a person has decided.
        usage: of its run, so far.
    """

    run_id: str = ""
    text: str = ""
    problem: str = ""
    given: str = ""
    waits: bool = False
    usage: Usage = attrs.field(factory=Usage)


def turn_of(result: RunResult[object]) -> Turn:
    if result.status == "completed":
        given = handed_to(result.rows)
        return Turn(result.run_id, result.text, given=given, usage=result.usage)
    if result.status == "waiting":
        return Turn(result.run_id, waits=True, usage=result.usage)
    why = f"{result.status}, {result.limit}" if result.limit else result.status
    begun = result.run_id if result.status != "dropped" else ""
    return Turn(begun, problem=why, usage=result.usage)


def more(after: Usage, before: Usage) -> Usage:
    """What was used in between."""
    cost = None if after.cost is None else after.cost - (before.cost or 0.0)
    return Usage(
        after.input_tokens - before.input_tokens,
        after.output_tokens - before.output_tokens,
        after.cached_tokens - before.cached_tokens,
        cost,
        after.cache_write_tokens - before.cache_write_tokens,
    )


@attrs.frozen(eq=False)
class Late:
    """The turns of one host that do not end in the task that began them, by their sessions."""

    store: ActorRef[SessionStoreMessage]
    services: Services

    def goes_on(self, session: str) -> bool:
        """Whether an earlier turn has not ended, or waits."""
        return session in self.services.table.suspended or bool(self._at_work(session))

    def wake(self, session: str) -> list[Run]:
        """The runs at work in a session. Suspended ones are resumed, so that they can be stopped.

        Nothing is awaited in between.
        """
        services = self.services
        if services.suspended_runs is not None:
            for one in tuple(services.table.suspended.get(session, {}).values()):
                services.suspended_runs.resume_to_stop(one)
        return self._at_work(session)

    def _at_work(self, session: str) -> list[Run]:
        runs = self.services.table.runs.values()
        return [run for run in runs if run.session == session and run.state == "running"]

    async def last(self, session: str, since: float) -> RunInfo | None:
        """The run that a turn of then has become, if its input was stored. 0: nobody knows when.

        It is the first since then: what was to enter it came later, and may have been cut off too.
        """
        if not since:
            return None
        found = await self.store.ask(ListRuns(session=session, limit=_LATELY))
        own = [one for one in found if one.status not in _ENTERED and one.created >= since]
        return own[-1] if own else None

    async def outcome(self, session: str, run_id: str) -> Turn:
        """What came of it, as soon as it has ended. Cancelling is harmless."""
        news = trio.Event()

        def heard(record: EventRecord) -> None:
            if record.run_id == run_id and isinstance(record.event, Terminal):
                news.set()

        leave = self.services.events.listen(session, heard)
        try:
            while (turn := await self._ended(session, run_id)) is None:
                with trio.move_on_after(LOOK):
                    await news.wait()
                    news = trio.Event()
            return turn
        finally:
            leave()

    async def _ended(self, session: str, run_id: str) -> Turn | None:
        try:
            with suppress(StorageError, ActorDead):
                info = await self.store.ask(GetRun(run_id))
                if info is None or info.status in FINAL:
                    return turn_of(await recall(run_id, session, self.store))
        except NotFound:
            return Turn(run_id, problem=DELETED)
        return None


# Has a member of a room take its turn: a run like any other, paid by the round.
#
# Invariants: a turn's run has ended, with all that it started, or is suspended, when its task goes
# on (G1); a member acts for its room, never for the person who spoke last (G16).


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
            self._choosers[key] = AgentSpec(name, model=model, instructions=system)
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
        """The runs of this room that have not ended, except those that are suspended."""
        return tuple(run for run in self._runs if run.result is None)

    def wake(self) -> tuple[Run, ...]:
        """As :meth:`live`, with those that were suspended, which are to be stopped."""
        woken = [run for one in self.members for run in self.late.wake(self.session(one.name))]
        return tuple(dict.fromkeys((*self.live(), *woken)))

    def stop(self, why: str) -> tuple[str, ...]:
        """Ask whoever speaks to end; the ids of their runs. Needs no actor and no disk."""
        return tuple(run.id for run in self.wake() if run.cancel(why, by_user=True))


# What people say to members who have the floor, in a room whose mode is ``steer``.
#
# It enters their runs as what steers any run does, on disk and past its gates. Invariants: it
# enters in the order in which it was said, and nothing of it when what was said before it has not
# entered; what enters nobody is not lost: it opens the next round.


_log = logger("motet.rooms")


class Interjections:
    """Of the turns that go on in one room. :meth:`run` is to go on while something waits."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, RoomMessage]] = deque()
        self._through: dict[str, int] = {}
        self._begun = 0
        self._given: dict[str, list[tuple[int, Run]]] = {}
        self._heard: set[int] = set()
        self._running = False

    def begin(self, heard: int) -> None:
        """Others have the floor; what people said up to number ``heard`` is told to them then."""
        self._waiting.clear()
        self._through.clear()
        self._begun = heard
        self._given.clear()
        self._heard.clear()

    def add(self, message: RoomMessage, before: int) -> bool:
        """Whether :meth:`run` has to be started for it; ``before``: what people said before it."""
        self._waiting.append((before, message))
        return not self._running

    async def run(self, speaker: Speaker) -> None:
        """Give what waits to whoever speaks."""
        if self._running:
            return
        self._running = True
        try:
            while self._waiting:
                before, message = self._waiting.popleft()
                for member, run in speaker.at_work().items():
                    if self._through.get(member, self._begun) >= before:
                        await self._give(speaker, member, run, message)
        finally:
            self._running = False

    async def _give(self, speaker: Speaker, member: str, run: Run, message: RoomMessage) -> None:
        try:
            entering = await speaker.entering(run, line_of(message))
            self._given.setdefault(member, []).append((message.seq, entering))
            await speaker.enter(entering)
            self._through[member] = message.seq
        except Exception as error:
            _log.info("a message waits for the next round", room=speaker.room.name, why=str(error))

    def spoken(self, member: str) -> Collection[int]:
        """The numbers of what has entered the turn of a member, which is over."""
        given = self._given.get(member, ())
        entered = {seq for seq, run in given if run.result and run.result.status == "steered"}
        self._heard |= entered
        return entered

    def heard(self, unheard: Sequence[RoomMessage], before: int) -> int:
        """Up to which number people were heard, if that was ``before`` and these came then."""
        return prefix(unheard, self._heard, before)


def prefix(messages: Sequence[RoomMessage], numbers: Collection[int], before: int) -> int:
    """The last of the ``messages`` before the first that is not among the ``numbers``."""
    for message in messages:
        if message.seq not in numbers:
            break
        before = message.seq
    return before
