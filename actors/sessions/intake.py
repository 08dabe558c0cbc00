"""Takes inputs in: a run is registered, its input is stored and queued, its caller may wait.

Invariants: a run is in the run table before anything of it is stored, so that a stop finds it; an
input is acknowledged only when it is on disk (G15), and from then on it is in its session's queue.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from hashlib import sha256
from typing import Any

import attrs
import msgspec
import trio
from msgspec.structs import replace

from motet.actors.agents.registry import Resolver
from motet.actors.agents.spec import AnyAgent
from motet.actors.agents.toolkit import Toolkit
from motet.actors.runs.queue import SuspendedRun
from motet.actors.runs.recall import recall
from motet.actors.runs.run import Input, PendingInput, Placement, Run
from motet.actors.runs.runner import Runner
from motet.actors.runs.services import Services
from motet.actors.runs.table import RunTable, SessionActors
from motet.actors.sessions.router import Discard, Resolve, RouterMessage
from motet.actors.sessions.session import is_to_summarise, note_end
from motet.actors.transcript import guards as guard
from motet.protocols.errors import InputValidation
from motet.protocols.events import InputAccepted, SessionCompacted
from motet.protocols.limits import Limits
from motet.protocols.queueing import QueueMode
from motet.protocols.recovery import InputOptions
from motet.protocols.session_keys import check_session
from motet.protocols.sessions import (
    LOCAL,
    Accepted,
    AcceptInput,
    Ack,
    Compact,
    NewInput,
    Principal,
    QueueFull,
    SessionBusy,
    SessionStoreMessage,
    ShuttingDown,
)
from motet.runtime import ActorDead, ActorRef


def body_hash(session: str, agent: str, text: str) -> str:
    """The fingerprint that tells a resend from another input under the same idempotency key.

    Equal for equal inputs only: the parts are framed, so they cannot run into each other. An input
    has no agent there (``NewInput.old_hash`` has it), a row that is put into a session its role.
    """
    return sha256(msgspec.msgpack.encode((session, agent, text))).hexdigest()


CALLER_GONE = "its caller has gone"


@attrs.frozen(eq=False)
class Intake:
    """Brings inputs to the sessions of one host."""

    _table: RunTable
    _store: ActorRef[SessionStoreMessage]
    _router: ActorRef[RouterMessage]
    _resolver: Resolver
    _services: Services
    _actors: SessionActors

    async def new_run(
        self,
        agent: AnyAgent | str,
        text: str,
        session: str | None = None,
        deps: object = None,
        limits: Limits | None = None,
        principal: Principal = LOCAL,
        key: str | None = None,
        max_turns: int | None = None,
        *,
        where: guard.Where = "message",
        toolkit: Toolkit | None = None,
        arrival: PendingInput | None = None,
        sender: str = "",
        method: str = "chat.send",
        extra: str = "",
        placement: Placement | None = None,
    ) -> Run:
        """A run, not yet registered. Raises ``UnknownName``, ``ConfigError``, ``InputValidation``.

        A lone surrogate in the text is replaced. ``arrival``: the note of the input, made when it
        came; ``toolkit``: of the run, if the agent is in it.
        """
        arrival = self.expect(session, principal, arrival)
        try:
            if isinstance(agent, str):
                agent, toolkit = await self.agent(agent), None
            elif toolkit is None or not toolkit.registry.has(agent):
                self._services.toolkits.current.registry.add(agent)
                toolkit = None
            if not text.strip():
                raise InputValidation("the input is empty: send some text")
            run_id = arrival.run_id
            key_of_session = arrival.session = session or f"{agent.name}:{run_id}"
            check_session(key_of_session, principal.user)
            safe = text.encode("utf-8", "replace").decode()
            limits = limits or agent.limits
            if max_turns is not None:
                limits = replace(limits, turns=max_turns)
            said = Input(run_id, key_of_session, principal, safe, deps, key, sender, method, extra)
            toolkit = toolkit or self._services.toolkits.current
            run = Run(said, agent, limits, toolkit, arrival, placement=placement or Placement())
            self._screen(run, where)
            return run
        except BaseException:
            self.forget(arrival)
            raise

    def expect(
        self, session: str | None, principal: Principal, noted: object = None, sender: str = ""
    ) -> PendingInput:
        """The note of an input that has come; made now if ``noted`` is none.

        To be called in the step in which the input comes, so that no stop misses it.
        """
        if isinstance(noted, PendingInput):
            return noted
        return self._table.pending_inputs.expect(session or "", principal, sender)

    def forget(self, arrival: PendingInput) -> None:
        """The input was refused: a stop must not find it, even while its error is alive."""
        self._table.pending_inputs.remove(arrival)

    async def agent(self, name: str) -> AnyAgent:
        """The agent of that name. Raises ``UnknownName``, ``ConfigError``."""
        return await self._resolver.resolve(name)

    def known_agents(self) -> Iterable[tuple[str, str]]:
        """Names and descriptions of the agents in memory."""
        return (
            (info.name, info.description)
            for info in self._services.toolkits.current.registry.infos()
        )

    async def new_steering(
        self,
        target: Run | SuspendedRun,
        text: str,
        mode: QueueMode,
        key: str | None,
        arrival: PendingInput,
    ) -> Run:
        """An input for a run under way, not yet registered. Raises as :meth:`new_run` does.

        It has the principal, sender and deps of that run, in case it becomes a run of its own. The
        role that a suspended run has is on disk: its own user gives theirs, others none.
        """
        agent: AnyAgent | str
        if isinstance(target, SuspendedRun):
            agent, deps, limits, toolkit = target.code or target.agent, target.deps, None, None
            sender = target.sender
            mine = arrival.principal.user == target.user
            who = arrival.principal if mine else Principal(target.user)
        else:
            said, limits, toolkit = target.input, target.limits, target.toolkit
            agent, deps, who, sender = target.agent, said.deps, said.principal, said.sender
        steers = target.id if mode == "steer" else None
        where: guard.Where = "injected" if steers else "message"
        new = partial(self.new_run, placement=Placement(mode, steers), arrival=arrival)
        of_it = partial(new, agent, text, target.session, deps, limits, who, key, sender=sender)
        return await of_it(where=where, toolkit=toolkit)

    def _screen(self, run: Run, where: guard.Where) -> None:
        """The input guard. Raises ``InputValidation`` when it blocks; then nothing is stored."""
        services = self._services
        finding = guard.check(run.input.text, services.toolkits.current.guard, where)
        if finding is not None:
            services.events.log_finding(run, finding)
            if finding.blocked:
                raise InputValidation(finding.refusal)

    async def run_to_end(self, run: Run) -> Run:
        """Run an input to its end; a resend gives its first run.

        Cancelling ends it and waits for its clean-up. Raises as :meth:`motet.Host.run` always does.
        """
        first = run
        try:
            ack = await self._accept(run)
            if ack.status == "duplicate":
                first = await self.first_run(ack.run_id, run)
            elif self._may_be_alone(run):
                await self._run_alone(run)
            else:
                self._wake(run)
            if not first.ended.is_set():  # a checkpoint after its end would be a step for nothing
                await first.ended.wait()
        finally:
            await self._end(run)
        return first

    def _may_be_alone(self, run: Run) -> bool:
        """Whether an input is all that its session has to do, so that it needs no actor for it."""
        # Other work of the session needs its actor, and would wait until this run has ended.
        queue, hooks = self._table.queue(run.session), self._services.hooks.hooks
        return (
            queue.starting == [run]
            and not (run.placement.joined or queue.inputs or queue.dropped or queue.unsaved)
            and self._router.is_alive
            and self._actors.find(run.session) is None
            and hooks.points.isdisjoint(("session_start", "session_end"))
        )

    async def _run_alone(self, run: Run) -> None:
        """Carry a run to its result in its caller's task.

        An actor starts when there is work for it: another input, a child beside the run, an end
        that could not be stored, a summary.
        """
        queue, actors, dropped = self._table.queue(run.session), self._actors, list[Run]()
        queue.starting.clear()
        actors.count(len(self._table.queues))

        def cut_off() -> None:
            if not run.is_cut:  # else its host is closing
                dropped.extend(self._table.cancel_run(run, CALLER_GONE).dropped)

        beside: list[Callable[[Any], None]] = []

        def start_soon(fn: Callable[..., Awaitable[object]], *args: object, name: str) -> None:
            beside.append(lambda session: session.start_soon(fn, *args, name=name))
            queue.tasks.append(beside[-1])
            actors.wake(run.session)

        run.lineage.start_soon = start_soon
        try:
            actors.alone[run] = None  # the end of the router reaches it through its own scope
            runner = Runner(run, queue, self._services, cut_off=cut_off)
            await runner.execute()
            if not run.is_cut:
                note_end(runner)
                if is_to_summarise(runner):
                    queue.tasks.append(lambda one: one.start_soon(one.summarise, runner))
        finally:
            del actors.alone[run]
            run.lineage.start_soon = None  # it refers to the run
            # Its children have ended: a task that no actor has taken up has nothing to do any more.
            if beside:
                queue.tasks[:] = [task for task in queue.tasks if task not in beside]
            if not run.ended.is_set():  # a bug: nobody may wait for its end for ever
                self._table.finish(run, run.ends_as("interrupted", "it broke off"))
            if dropped:
                with trio.CancelScope(shield=True):
                    await self.discard(dropped)
            if queue.has_work:
                actors.wake(run.session)

    @asynccontextmanager
    async def owned(self, run: Run) -> AsyncGenerator[Ack]:
        """A block that owns the run: it has ended when the block is left."""
        try:
            yield await self._deliver(run)
        finally:
            await self._end(run)

    async def _end(self, run: Run) -> None:
        if run.admission and not run.ended.is_set():  # it was admitted, and has not ended
            # Waits while being cancelled, without limit: bounded waiting would break G1.
            with trio.CancelScope(shield=True):
                stop = self._table.cancel_run(run, CALLER_GONE)
                await self.discard(stop.dropped)
                await run.ended.wait()

    async def deliver(self, run: Run) -> Ack:
        """Store and queue an input that no caller waits for."""
        run.carried.durable = run.placement.only_enters is None
        return await self._deliver(run)

    async def _deliver(self, run: Run) -> Ack:
        ack = await self._accept(run)
        if ack.status != "duplicate":
            self._wake(run)
        return ack

    async def _accept(self, run: Run) -> Ack:
        """Store and queue an input. Call :meth:`_wake` in the same step, unless it is known."""
        # Admitted before it is stored: a stop that comes while the disk works has to find the run.
        # In the other order it would be acknowledged, and run, after the stop.
        table = self._table
        try:
            table.admit(run)
        except (QueueFull, SessionBusy, ShuttingDown):
            # A resend is told of its first run before all else: its sender may not know of it.
            first = await self._services.runs.first_of(_input(run))
            if first is None:
                raise
            return Ack(first, "duplicate")
        try:
            accepted = await self._store_input(run)
        except BaseException:
            table.refuse(run)
            raise
        if accepted.duplicate:
            table.refuse(run)
            return Ack(accepted.run_id, "duplicate")
        # It is on disk. Nothing awaits from here on, so that no cancellation comes in between.
        way = table.enqueue(run)
        queue = table.queue(run.session)
        table.advance(queue)
        return queue.ack(run, way, table.runs, table.suspended.get(run.session, {}))

    def _wake(self, run: Run) -> None:
        """Have the session's actor take up an input."""
        if not self._actors.wake(run.session) and not self._router.is_alive:
            self._table.finish(run, run.ends_as("interrupted", "no session is run any more"))
            raise ActorDead(self._router.path, "no session is run any more")

    async def _store_input(self, run: Run) -> Accepted:
        """Store the input and publish it. Cancelled, it is not stored, or it is accepted."""
        await trio.lowlevel.checkpoint()  # a database in memory makes none
        accepted = await self._services.runs.accept(AcceptInput(_input(run)))
        if not accepted.duplicate:
            services = self._services
            event = InputAccepted(run.input.text, run.input.principal.user, run.input.key)
            if not services.events.put(run, event):
                # It is accepted now: a cancelled caller must not keep it from being queued.
                with trio.CancelScope(shield=True):
                    await services.events.emit(run, event)
        return accepted

    async def compact(
        self,
        agent: AnyAgent,
        session: str,
        principal: Principal,
        generation: str | None,
        noted: PendingInput,
    ) -> SessionCompacted | None:
        """Have the session's actor summarise it; None also when that was stopped."""
        with self._table.summarising(agent, session, principal, noted) as run:
            actor = await self._router.ask(Resolve(session))
            return await actor.ask(Compact(run.id, generation))
        return None

    async def first_run(self, run_id: str, resent: Run) -> Run:
        """The run that a resent input has started before: live, or as it was stored."""
        live = self._table.runs.get(run_id)
        if live is not None:
            return live
        stored = Run(attrs.evolve(resent.input, id=run_id), resent.agent, resent.limits)
        late = self._table.unsaved().get(run_id)
        stored.end(await recall(run_id, resent.session, self._store, resent.agent.form, late))
        return stored

    async def discard(self, dropped: Sequence[Run]) -> None:
        for run in dropped:
            await self._router.tell(Discard(run.id))


def _input(run: Run) -> NewInput:
    """The stored form of an input."""
    agent, key = run.agent.name, run.input.key
    return NewInput(
        run_id=run.id,
        session=run.session,
        agent=agent,
        user=run.input.principal.user,
        text=run.input.text,
        key=key,
        body_hash="" if key is None else body_hash(run.session, "", run.input.text),
        old_hash="" if key is None else body_hash(run.session, agent, run.input.text),
        method=run.input.method,
        parent=caller[0] if (caller := run.lineage.caller) else None,
        beside=run.lineage.in_background,
        given=_given(run),
        answers=run.input.answers,
    )


def _given(run: Run) -> str:
    """The data that the next host needs to answer the input, or to send it again."""
    place = run.placement
    kept = run.carried.durable or run.input.key is not None or place.only_enters is not None
    limits = None if run.limits is run.agent.limits else run.limits
    given = InputOptions(
        role=run.input.principal.role,
        limits=limits,
        deps=run.input.deps is not None,
        steers=place.steers,
        sender=run.input.sender,
        mode=place.mode,
        only_enters=place.only_enters is not None,
        waited=not kept,
        payers=run.input.payers,
        turn=run.input.turn,
        round=run.input.round,
    )
    return msgspec.json.encode(given).decode()
