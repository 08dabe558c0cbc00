"""The way of an input into the host: registered, stored and queued by its session, and waited for.

Invariant: a run is in the run table before anything of it is stored, so that a stop finds it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import asynccontextmanager

import trio
from msgspec.structs import replace

from motet.actors.agent import guard
from motet.actors.agent.definition import AnyAgent
from motet.actors.equipment import Equipment
from motet.actors.rooms.access import check_session
from motet.actors.sessions.arrivals import Arrival
from motet.actors.sessions.recall import recall
from motet.actors.sessions.router import Discard, Resolve
from motet.actors.sessions.session import Compact, Submit
from motet.actors.sessions.table import Run
from motet.actors.tree import Tree
from motet.protocols.errors import InputValidation
from motet.protocols.events import SessionCompacted
from motet.protocols.limits import Limits
from motet.protocols.queueing import QueueMode
from motet.protocols.sessions import LOCAL, Ack, Principal
from motet.runtime import ActorDead
from motet.runtime.outside import fresh_hex


class Intake:
    """Brings inputs to the sessions of one tree."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree

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
        kit: Equipment | None = None,
        arrival: Arrival | None = None,
    ) -> Run:
        """A run, not yet registered. Raises ``UnknownName``, ``ConfigError``, ``InputValidation``.

        What an input is not made of, such as half a surrogate pair, is replaced. ``arrival``: what
        was noted of the input when it came; ``kit``: what the run works with if the agent is its.
        """
        arrival = self.expect(session, principal, arrival)
        try:
            if isinstance(agent, str):
                agent, kit = await self.agent(agent), None
            elif kit is None or not kit.registry.has(agent):
                self._tree.registry.add(agent)
                kit = None
            if not text.strip():
                raise InputValidation("the input is empty: send some text")
            run_id = arrival.run_id
            key_of_session = arrival.session = session or f"{agent.name}:{run_id}"
            check_session(key_of_session, principal)
            safe = text.encode("utf-8", "replace").decode()
            limits = limits or agent.limits
            if max_turns is not None:
                limits = replace(limits, turns=max_turns)
            run = Run(run_id, key_of_session, agent, principal, safe, limits, deps, key)
            run.arrival, run.kit = arrival, kit or self._tree.services.kit
            self._screen(run, where)
            return run
        except BaseException:
            self.refuse(arrival)
            raise

    def expect(
        self,
        session: str | None,
        principal: Principal,
        noted: object = None,
        sender: str = "",
    ) -> Arrival:
        """The note of an input, made now if ``noted`` is none.

        To be called in the step in which the input comes, so that no stop misses it.
        """
        if isinstance(noted, Arrival):
            return noted
        return self._tree.table.arrivals.expect(session or "", principal, sender)

    def refuse(self, arrival: Arrival) -> None:
        """It was not taken: whoever keeps its error must not keep it for a stop to find."""
        self._tree.table.arrivals.leave(arrival)

    async def agent(self, name: str) -> AnyAgent:
        """The agent of that name. Raises ``UnknownName``, ``ConfigError``."""
        return await self._tree.resolver.resolve(name)

    def known(self) -> Iterable[tuple[str, str]]:
        """Name and description of each agent that needs not be looked up."""
        return ((info.name, info.description) for info in self._tree.registry.infos())

    async def steering(
        self, target: Run, text: str, mode: QueueMode, key: str | None, arrival: Arrival
    ) -> Run:
        """An input for a run that is live, not yet registered. Raises as :meth:`new_run` does.

        In the name of whom the run acts for, with what it was given, should it become its own run.
        """
        steers = target.id if mode == "steer" else None
        run = await self.new_run(
            target.agent,
            text,
            target.session,
            target.deps,
            target.limits,
            target.principal,
            key,
            where="injected" if steers else "message",
            kit=target.kit,
            arrival=arrival,
        )
        run.steers, run.mode = steers, mode
        return run

    def _screen(self, run: Run, where: guard.Where) -> None:
        """The input guard. Raises ``InputValidation`` when it blocks; then nothing is stored."""
        services = self._tree.services
        finding = guard.find(run.text, services.guard, where)
        if finding is not None:
            services.log_finding(run, finding)
            if finding.blocked:
                raise InputValidation(finding.told)

    @asynccontextmanager
    async def owned(self, run: Run) -> AsyncGenerator[Ack]:
        """A run that belongs to this block: it has ended when the block is left."""
        try:
            yield await self._deliver(run)
        finally:
            if run.generation and not run.ended.is_set():  # it was admitted, and goes on
                # Waits while being cancelled, without limit: bounded waiting would break G1.
                with trio.CancelScope(shield=True):
                    stop = self._tree.table.cancel_run(run, "its caller has gone")
                    await self.discard(stop.dropped)
                    await run.ended.wait()

    async def deliver(self, run: Run) -> Ack:
        """Have the session's actor store and queue the input, which is nobody's from then on."""
        run.durable = not run.only_enters
        return await self._deliver(run)

    async def _deliver(self, run: Run) -> Ack:
        table = self._tree.table
        table.admit(run)
        try:
            while True:
                session = table.actor(run.session)
                if session is None:
                    session = await self._tree.router.ask(Resolve(run.session))
                try:
                    return await session.ask(Submit(run.id))
                except ActorDead:
                    # Passivated in between, or the store has crashed: the input is not on disk. A
                    # session that cannot be started makes Resolve raise, so this ends.
                    await trio.lowlevel.checkpoint()
        except BaseException:
            table.refuse(run)
            raise

    async def compact(
        self, agent: AnyAgent, session: str, principal: Principal
    ) -> SessionCompacted | None:
        """Have a session summarised by its actor, in the name of a run that never starts."""
        run = Run(f"compact_{fresh_hex(6)}", session, agent, principal, "", agent.limits)
        runs = self._tree.table.runs
        runs[run.id] = run
        try:
            actor = await self._tree.router.ask(Resolve(session))
            return await actor.ask(Compact(run.id))
        finally:
            del runs[run.id]

    async def twin(self, run_id: str, resent: Run) -> Run:
        """The run that the resent input's key has started before: live, or as it was stored."""
        live = self._tree.table.runs.get(run_id)
        if live is not None:
            return live
        stored = Run(
            run_id,
            resent.session,
            resent.agent,
            resent.principal,
            resent.text,
            resent.limits,
        )
        stored.end(await recall(run_id, resent.session, self._tree.store, resent.agent.form))
        return stored

    async def discard(self, dropped: Sequence[Run]) -> None:
        for run in dropped:
            await self._tree.router.tell(Discard(run.id))
