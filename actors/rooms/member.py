"""The members of a room as runs of its host: their turns, the results, and messages on the way.

Invariants: the run of a turn has ended, with all that it started, or is suspended, when the turn's
task goes on (G1), or a thread that nothing can end holds it; a member acts for its room, never for
the person who spoke last (G16); the result of a turn is read from its run, which ends once, in
whatever host.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from math import inf

import attrs
import trio
from msgspec.structs import replace

from motet.actors.agents.spec import AgentSpec, AnyAgent
from motet.actors.errors.log import logger
from motet.actors.rooms.definition import acts_as, member_session
from motet.actors.rooms.history import RoomHistory
from motet.actors.rooms.publisher import show_above
from motet.actors.rooms.state import RoomSettings
from motet.actors.runs.queue import SuspendedRun
from motet.actors.runs.recall import recall
from motet.actors.runs.run import Run
from motet.actors.runs.services import Services
from motet.actors.sessions.intake import Intake
from motet.protocols.budget import Budget, OverBudget, RoomBudget
from motet.protocols.errors import MotetError, NotFound
from motet.protocols.escalations import ListEscalations, follow_up, with_history
from motet.protocols.events import EventRecord, Terminal
from motet.protocols.limits import MAX_DEPTH, Limits
from motet.protocols.models import Model, Usage, is_repeatable
from motet.protocols.policy import Subject
from motet.protocols.room_copies import CHOOSER, Fix, reader_of
from motet.protocols.room_floor import used_up
from motet.protocols.room_limits import ROOM, Planned, UnderWay, round_account
from motet.protocols.room_messages import line_of, newest_in
from motet.protocols.room_turns import Batch, Turn, at_limit, last_turn, room_instructions, turn_of
from motet.protocols.rooms import STOPPED, Due, Floor, RoomMessage, RoomState, Waiting
from motet.protocols.session_keys import sub_agent_key
from motet.protocols.sessions import (
    FINAL,
    GetRun,
    ListRuns,
    LoadTranscript,
    Principal,
    RunInfo,
    SessionStoreMessage,
)
from motet.protocols.storage import StorageError
from motet.runtime import ActorDead, ActorRef
from motet.runtime.outside import all_under_way, wall_time

LOOK = 30.0
"""Seconds between two reads of a run: its end may have been published but not readable yet."""
MOST_ENTERED = 200
_ENTERED = ("steered", "dropped")  # inputs for a run that was under way already
WAITS = "it waits for a person's approval"
STILL = "its last turn has not ended, since a tool of it does not return"
STUCK = 5.0
"""Seconds between two looks at a turn that was to end: a thread is given time for its clean-up."""
DELETED = "its session was deleted"


@attrs.frozen(eq=False)
class DetachedTurns:
    """The turns of one host that outlive the task that began them, by their sessions.

    Their runs wait for a person's approval outside of any task, or their host was killed before
    their message was stored in the room.
    """

    store: ActorRef[SessionStoreMessage]
    services: Services

    def is_active(self, session: str) -> bool:
        """Whether an earlier turn has not ended, or waits."""
        return session in self.services.table.suspended or bool(self.running(session))

    def running(self, session: str) -> list[Run]:
        runs = self.services.table.runs.values()
        return [run for run in runs if run.session == session and run.is_running]

    async def runs_since(self, session: str, state: RoomState | Waiting) -> list[RunInfo]:
        """The run of a member's last turn, and the inputs since then; newest first."""
        wanted = ListRuns(session=session, turn=state.turn, limit=MOST_ENTERED)
        found = await self.store.ask(wanted) if state.given else ()
        return [one for one in found if state.turn or one.created >= state.given]

    async def run_since(self, session: str, state: RoomState | Waiting) -> RunInfo | None:
        """The run of a member's last turn, if its input was stored.

        It is the one that has not ended, or has an answer, or else the first run since then: inputs
        that were to enter it came later, and may have been cut off too.
        """
        found = await self.runs_since(session, state)
        own = [one for one in found if one.status not in _ENTERED]
        going = [one for one in own if one.status not in FINAL]
        best = going or [one for one in own if one.status == "completed"] or own
        return best[-1] if best else None

    async def outcome(self, session: str, run_id: str) -> Turn:
        """The result of a run, as soon as it has ended. Cancelling is harmless."""
        published, people = trio.Event(), tuple[Principal, ...]()

        def notice(record: EventRecord) -> None:
            nonlocal people
            if record.run_id == run_id and (run := self.services.table.runs.get(run_id)):
                people = run.input.asked_by
            if record.run_id == run_id and isinstance(record.event, Terminal):
                published.set()

        detach = self.services.events.listen(session, notice)
        try:
            while (turn := await self._ended(session, run_id)) is None:
                with trio.move_on_after(LOOK):
                    await published.wait()
                    published = trio.Event()
            return attrs.evolve(turn, asked_by=people)
        finally:
            detach()

    async def _ended(self, session: str, run_id: str) -> Turn | None:
        try:
            with suppress(StorageError, ActorDead):
                info = await self.store.ask(GetRun(run_id))
                if info is None or info.status in FINAL:
                    return turn_of(await recall(run_id, session, self.store))
        except NotFound:
            return Turn(run_id, problem=DELETED)
        return None


@attrs.frozen
class Given:
    """One turn of a batch.

    Results are stored in the order in which the floor was given: each turn waits for ``before``,
    which is set when the one before it is stored, and sets its own ``done``, or fails with an error
    of the program's.
    """

    due: Due
    text: str
    batch: Batch
    before: trio.Event | None
    done: trio.Event = attrs.field(factory=trio.Event)
    failed: list[Exception] = attrs.field(factory=list[Exception])


class MemberRunner:
    """Runs the turns of one room's members, which the round's budget pays for.

    ``above``: the run that the room works for, and its call. The turns are children of that run: a
    stop of it asks them to end in the same step, and it pays for them.
    """

    def __init__(
        self,
        settings: RoomSettings,
        intake: Intake,
        sessions: ActorRef[SessionStoreMessage],
        detached: DetachedTurns,
        above: tuple[Run, str] | None = None,
    ) -> None:
        self.detached = detached
        self._above = above
        self._settings = settings
        self._runs: set[Run] = set()
        self._fixes: list[tuple[Fix, tuple[Principal, ...]]] = []
        self._intake = intake
        self._sessions = sessions
        self._budget = RoomBudget(settings.room.limits, self._pays)
        self._refused = ""
        self._choosers: dict[tuple[str, str], AnyAgent] = {}
        self.account = ""
        self._payers: tuple[str, ...] = ()
        self.planned: dict[str, UnderWay] = {}
        self.over: dict[str, str] = {}

    @property
    def usage(self) -> Usage:
        """The usage of the round so far."""
        return self._budget.usage

    @property
    def _pays(self) -> Budget | None:
        return self._above[0].lineage.budget if self._above else None

    def session(self, member: str) -> str:
        return member_session(self._settings.name, member)

    def asks(self, member: str) -> bool:
        """Whether a turn that waits outside of any task has no answer yet."""
        suspended = self.detached.services.table.suspended_in(self.session(member))
        return any(not one.due or one.blocked for one in suspended)

    @property
    def elapsed(self) -> float:
        """Seconds of the round so far, but for waits, by a clock that does not jump."""
        return trio.current_time() - self._budget.started

    def begin_round(self, limits: Limits, state: RoomState, elapsed: float = 0.0) -> None:
        """Give a round its budget, less its time and usage before a restart."""
        # The members limit what their own children may do.
        limits = replace(limits, depth=MAX_DEPTH, children=1 << 30)
        self._budget = RoomBudget(limits, self._pays, trio.current_time() - elapsed)
        self._budget.spend(state.usage)
        self._refused = ""
        self.over = {}
        room = self._settings.room
        self.account = round_account(room.name, state.floor.round, room.budgets)
        self._payers = tuple(dict.fromkeys(who.user for who in state.floor.asked_by))

    def begin_batch(self) -> None:
        """What members read in their next turns is not rendered yet."""
        self._fixes.clear()

    def readers(self, user: str) -> list[Run | SuspendedRun]:
        """The runs of a room that have not ended, in which a message may have been read."""
        table = self.detached.services.table
        live = (one for one in table.runs.values() if one.input.principal.user == user)
        left = (one for one in table.all_suspended() if one.user == user)
        return [*(one for one in live if one.result is None), *left]

    def reads(self) -> bool:
        """Whether there are any, or ends of some, or errors, that are not stored."""
        user, queues = acts_as(self._settings.name).user, self.detached.services.table.queues
        ended = any(queue.correct(user, None) for queue in queues.values())
        spool = self.detached.services.errors.spool
        waits = spool is not None and not spool.is_idle
        return ended or waits or bool(self._runs or self.readers(user))

    def correct(self, message: RoomMessage, before: str, room: str) -> None:
        """Have the runs of a room, this or one below, read a message anew, whose text was
        ``before``. A turn that has not begun reads it as it is now, too.
        """
        fix, user = reader_of(message, before), acts_as(room).user
        people = () if message.deleted else message.principals
        if room == self._settings.name:
            self._fixes.append((fix, people))
        for run in self._runs:
            if run.result is None and run.id not in self.detached.services.table.runs:  # not yet
                run.correct(fix, people)
        for one in self.readers(user):
            one.correct(fix, people)
            self.detached.services.journal.correct(one.id, fix)
        for queue in self.detached.services.table.queues.values():
            queue.correct(user, fix)
        self.detached.services.models.correct(user, fix)
        self.detached.services.tracer.correct(user, fix)
        if spool := self.detached.services.errors.spool:
            spool.changed.keep(user, message, before)

    def _as_now(self, run: Run) -> Run:
        """A run whose text was rendered before messages were changed."""
        for fix, people in self._fixes:
            run.correct(fix, people)
        return run

    def add_detached(self, used: Usage, began: float = inf) -> float:
        """Count the usage of a run that this budget has not paid for, and do not count the time in
        which the round waited for it since it ``began`` to, by Trio's clock; returns that time.
        """
        seconds = max(0.0, trio.current_time() - max(began, self._budget.started))
        self._budget.started += seconds
        self._budget.spend(used)
        for run in self.live():
            run.follow_budget()
        return seconds

    def exhausted(self, floor: Floor) -> str:
        """The limit that allows no further turn of the round, if there is one."""
        own = self._refused or self._budget.exhausted(trio.current_time())
        return own or used_up(floor, self.over)

    async def take_turn(
        self,
        member: str,
        text: str,
        sender: str,
        asked_by: tuple[Principal, ...],
        too_late: Callable[[], bool],
        turn: str,
        *,
        again: bool = False,
    ) -> Turn:
        """Have a member answer ``text``, unless it is too late. A failed run does not raise.

        ``sender``: the person whose round it is; failures of its tools count for that person.
        ``asked_by``: all people whose words it answers; it calls no tool that one of them may not.
        ``again``: another run of the turn has had the text.
        """
        room = self._settings.room
        agent = next(one.agent for one in room.members if one.name == member)
        session = self.session(member)
        if self.detached.is_active(session):
            suspended = session in self.detached.services.table.suspended
            return Turn(problem=WAITS if suspended else STILL)
        extra = room_instructions(room.name, member, self._settings.members)
        try:
            if f"@{member} " in text and not again:
                text = await self._with_history(session, text)
            seconds, way = room.turn_timeout, self.planned.get(member) or UnderWay()
            taken = await self._run(
                agent, text, session, extra, too_late, seconds, way, sender, asked_by, turn
            )
        except (MotetError, OverBudget) as error:
            return Turn(problem=str(error))
        return taken or Turn(problem=STOPPED)

    async def _with_history(self, session: str, text: str) -> str:
        """The text; if it answers an escalation, with the failed calls that led to that."""
        for last in await self._sessions.ask(ListEscalations(session=session, limit=1)):
            told = follow_up(last.decision, last.note, last.tool) if last.decision else None
            return with_history(text, last.error_history) if told and told in text else text
        return text

    async def ask_model(
        self, too_late: Callable[[], bool], model: str | Model, system: str, text: str
    ) -> str:
        """One answer of a model, which the round pays for; empty if it has failed."""
        key = model if isinstance(model, str) else f"{model.name}-{id(model)}", system
        if key not in self._choosers:
            name = f"{CHOOSER}.{self._settings.name[:40]}.{len(self._choosers)}"
            self._choosers[key] = AgentSpec(name, model=model, instructions=system)
        agent = self._choosers[key]
        session = sub_agent_key(agent.name, f"{self._settings.name}-{wall_time():.6f}")
        # A policy may ask twice, and then know what to do without the model.
        seconds = self._settings.room.turn_timeout / 3
        way = UnderWay(Planned(self._payers))
        taken = await self._run(agent, text, session, "", too_late, seconds, way)
        return taken.text if taken else ""

    async def summarise(self, system: str, text: str) -> str:
        """A summary by the model of the first member, as :meth:`ask_model`."""
        first = self._settings.room.members[0].agent
        agent = await self._intake.agent(first) if isinstance(first, str) else first
        return await self.ask_model(lambda: False, agent.model, system, text)

    async def may_repeat(self, member: str, state: RoomState) -> bool:
        """Whether a turn that was cut off had no effects (G15): it has begun no call."""
        session = self.session(member)
        called, text = last_turn(await self._sessions.ask(LoadTranscript(session)))
        # Or it is the turn before, which shows only what the member had read by its end, and no
        # run has begun since the floor was given.
        read = max(state.seen.get(member, 0), state.told.get(member, 0))
        if called and state.given and 0 < newest_in(text) <= read:
            return await self.detached.run_since(session, state) is None
        return not called

    async def repeats(self, member: str, run: RunInfo, state: RoomState | Waiting) -> bool:
        """Whether another run makes a turn again that the end of its host has cut off: it would
        make the same calls, and these may be made again (G15).
        """
        here = any(one.name == member for one in self._settings.members)
        if run.status != "interrupted" or not here or await self.entered(member, state):
            return False
        agent = await self._intake.agent(run.agent)
        called, _ = last_turn(await self._sessions.ask(LoadTranscript(run.session)))
        tools = self.detached.services.toolkits.current.catalog.tools(agent.name)
        may = {one.name for one in tools if one.idempotent}
        return is_repeatable(agent.model) and called <= may

    async def outcome(
        self, member: str, waits: Waiting, too_late: Callable[[], bool], *, again: bool
    ) -> Turn:
        """The result of a turn that has outlived its task or its host, of whichever run.

        ``again``: another run may repeat it; cancelling ends that one, and waits for it.
        """
        session, run_id = self.session(member), waits.run_id
        with suppress(StorageError, ActorDead, MotetError):
            run = await self.detached.run_since(session, waits)
            if run is not None and again and await self.repeats(member, run, waits):
                sender = waits.asked_by[-1].user if waits.asked_by else ""
                self.planned = {**self.planned, member: UnderWay(waits.planned)}
                begin = member, run.text, sender, waits.asked_by, too_late, waits.turn
                turn = await self.take_turn(*begin, again=True)
                if not turn.suspended:
                    return attrs.evolve(turn, repeated=True)
                run_id = turn.run_id
            elif run is not None:
                run_id = run.run_id
        return await self.detached.outcome(session, run_id)

    async def entered(self, member: str, state: RoomState | Waiting) -> int:
        """How many messages have entered the last turn of a member, from the first on."""
        found = await self.detached.runs_since(self.session(member), state)
        own = [one.status for one in reversed(found) if one.status in _ENTERED]
        return [*own, "dropped"].index("dropped")

    async def _run(
        self,
        agent: AnyAgent | str,
        text: str,
        session: str,
        extra: str,
        too_late: Callable[[], bool],
        seconds: float,
        way: UnderWay,
        sender: str = "",
        asked_by: tuple[Principal, ...] = (),
        turn: str = "",
    ) -> Turn | None:
        """A run of at most so many seconds; None: it was too late to begin.

        Cancelling ends it and waits for it.
        """
        who = acts_as(self._settings.name)
        run = await self._intake.new_run(
            agent, text, session, None, None, who, None, extra=extra, sender=sender
        )
        # In the run's own limits, so that they hold when it is resumed, also by another host.
        own, planned = run.limits, way.planned
        run.limits = replace(planned.lowered(own), wall=min(seconds, own.wall or seconds))
        run.input = attrs.evolve(run.input, payers=planned.payers, turn=turn, round=self.account)
        for one in asked_by:
            run.ask_also(one)
        if self._above is not None:
            above, call = self._above
            run.lineage.caller, run.lineage.ancestors = (above.id, call), above.subjects
        elif owner := self._settings.owner:
            run.lineage.ancestors = (Subject(run.agent.name, owner, who.role, session),)
        if too_late():  # from here to its place in the run table nothing awaits
            return None
        run.lineage.budget = self._budget.child(run.limits, started=trio.current_time())
        way.run, way.budget = run, run.lineage.budget
        self._runs.add(self._as_now(run))
        end_showing = show_above(self.detached.services.events, self._above, run)
        try:
            await self._intake.run_to_end(run)
        finally:
            run.lineage.budget.close()
            self._runs.discard(run)
            await end_showing()
        assert run.result is not None
        return self._notice(turn_of(run.result), own, planned.bound(own))

    def _notice(self, turn: Turn, own: Limits, planned: Planned) -> Turn:
        """A turn that ends at a limit of the room, and not at its own, ends the round."""
        if turn.limit in ("tokens", "usd") and getattr(own, turn.limit) is None:
            whose, told = planned.why.get(turn.limit, (ROOM, turn.limit))
            self._refused = told if whose == ROOM else self._refused
        return at_limit(turn, planned, self.over)

    def running_members(self) -> dict[str, Run]:
        """The runs under way of members who have the floor, by name."""
        names = {self.session(member.name): member.name for member in self._settings.members}
        admitted = (run for run in self.live() if run.admission)
        return {names[run.session]: run for run in admitted if run.session in names}

    async def steering_input(self, run: Run, text: str, who: Principal) -> Run:
        """The input by which a person's text enters a run; see :meth:`steer`.

        Raises ``MotetError``.
        """
        run.ask_also(who)  # before the text can enter; if it does not, the run may do less
        arrival = self._intake.expect(run.session, run.input.principal)
        made = await self._intake.new_steering(run, text, "steer", None, arrival)
        made.placement.only_enters = run
        return self._as_now(made)

    async def steer(self, entering: Run) -> None:
        """Have an input enter its run before the next model request.

        It ends as ``steered`` if it has, else as ``dropped``. Raises ``MotetError``: it has not.
        """
        await self._intake.deliver(entering)

    def stuck(self, member: str) -> list[str]:
        """What holds the turn of a member, which was to end by now: its tools, or its model.

        Nothing can end a thread, or a task behind a shield: the room goes on without it.
        """
        run = next((one for one in self.live() if one.session == self.session(member)), None)
        if run is None or not (run.stop_reason or run.scope.cancel_called):
            return []
        owners = {run.id}
        for one in self.detached.services.table.runs.values():  # callers come first
            if one.lineage.caller and one.lineage.caller[0] in owners:
                owners.add(one.id)
        found = [one.what for one in all_under_way() if one.owner in owners]
        return found or [f"model {run.model_name!r}"]

    def live(self) -> tuple[Run, ...]:
        """The runs of this room that have not ended, except those that are suspended."""
        return tuple(run for run in self._runs if run.result is None)

    def runs_to_stop(self) -> tuple[Run, ...]:
        """As :meth:`live`, with the suspended runs, also of former members: these are resumed, so
        that they can be stopped. Nothing is awaited in between.
        """
        table, user = self.detached.services.table, acts_as(self._settings.name).user
        left = [table.resume_to_stop(one) for one in table.all_suspended() if one.user == user]
        sessions = [self.session(one.name) for one in self._settings.members]
        at_work = [run for one in sessions for run in self.detached.running(one)]
        return tuple(dict.fromkeys((*self.live(), *at_work, *left)))

    def stop(self, why: str, runs: tuple[Run, ...] = ()) -> tuple[str, ...]:
        """Ask runs of members to end, by default all; the ids of those that this call was the first
        to ask. Needs no actor and no disk.
        """
        runs = runs or self.runs_to_stop()
        return tuple(run.id for run in runs if run.cancel(why, by_user=True))


_log = logger("motet.rooms")


class Steering:
    """Delivers messages of people to the members that have the floor, in mode ``steer``.

    They enter the members' runs as any steering input does, on disk and past its gates. Messages
    are delivered in order; one is held back until all earlier ones are delivered. A message that
    enters no run is not lost: it opens the next round.
    """

    def __init__(self, members: MemberRunner, room: str) -> None:
        self._members = members
        self._room = room
        self._waiting: list[tuple[int, RoomMessage]] = []
        self._through: dict[str, int] = {}
        self._begun = 0
        self._given: dict[str, list[tuple[int, Run]]] = {}
        self._heard = 0
        self._running = False

    def begin_batch(self, heard: int) -> None:
        """Other members get the floor, with the messages of people up to number ``heard``."""
        self._waiting.clear()
        self._through.clear()
        self._begun = self._heard = heard
        self._given.clear()

    def add(self, message: RoomMessage, before: int) -> bool:
        """Queue a message; whether :meth:`run` has to be started for it.

        ``before``: number of the message of a person before it.
        """
        self._waiting.append((before, message))
        return not self._running

    def correct(self, message: RoomMessage) -> None:
        """A message is another one now: that is delivered."""
        queued = self._waiting
        self._waiting = [(n, message if m.seq == message.seq else m) for n, m in queued]

    async def run(self, history: RoomHistory) -> None:
        """Deliver the queued messages to the members who have the floor."""
        if self._running:
            return
        self._running = True
        try:
            while self._waiting:
                before, message = self._waiting.pop(0)
                await history.record(lambda state: state)  # with the people whose words these are
                for member, run in self._members.running_members().items():
                    if before <= self._through.get(member, self._begun) < message.seq:
                        await self._deliver(member, run, message)
        finally:
            self._running = False

    async def _deliver(self, member: str, run: Run, message: RoomMessage) -> None:
        try:
            (who,), line = message.principals, line_of(message)
            entering = await self._members.steering_input(run, line, who)
            self._given.setdefault(member, []).append((message.seq, entering))
            await self._members.steer(entering)
            self._through[member] = message.seq
        except Exception as error:
            _log.info("a message waits for the next round", room=self._room, why=str(error))

    def entered(self, member: str) -> int:
        """The number up to which messages have entered the turn of a member, which is over."""
        before = self._begun
        for number, run in self._given.get(member, ()):
            if not (run.result and run.result.status == "steered"):
                break
            before = number
        self._heard = max(self._heard, before)
        return before

    def heard(self, before: int) -> int:
        """The number up to which all messages of people have entered turns."""
        return max(before, self._heard)
