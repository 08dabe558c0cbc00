"""Inputs of people and programs: submitted, steered into runs, sent again, put into transcripts.

Invariant: an interrupted input is sent again at most once.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Generic, Literal, Self

import attrs
import trio
from typing_extensions import TypeVar

from motet.actors.agents.registry import AgentRegistry
from motet.actors.hosting.answers import Access
from motet.actors.runs.run import Placement, Run
from motet.actors.runs.services import Services
from motet.actors.runs.table import RunTable
from motet.actors.sessions.intake import Intake, body_hash
from motet.actors.storage.idempotency import is_used
from motet.actors.storage.readers import Readers
from motet.actors.storage.recovery import OPTIONS, input_options
from motet.actors.storage.tables import storable
from motet.actors.storage.tokens import ROLES
from motet.actors.telemetry.subscription import Subscription
from motet.actors.transcript import guards as guard
from motet.actors.transcript.history import with_author
from motet.protocols.errors import InputValidation, UnknownName
from motet.protocols.events import AnyEvent, MessageAdded, RunWaiting, Terminal
from motet.protocols.host import Expected
from motet.protocols.queueing import MODES, QueueMode, SetQueueMode
from motet.protocols.recovery import InputOptions
from motet.protocols.run import RunResult
from motet.protocols.session_keys import is_chat, is_group
from motet.protocols.sessions import (
    RESEND,
    Ack,
    InjectRows,
    Principal,
    Role,
    SessionStoreMessage,
    SetSessionModel,
    exchange,
)
from motet.runtime import ActorRef
from motet.runtime.outside import fresh_hex

# How long the terminal event may lag behind the run's end before the stream closes without it:
# the bus first tries to journal it, and a locked database is waited for, twice over.
_LAG = 15.0

O_co = TypeVar("O_co", covariant=True, default=str)


class RunView(Generic[O_co]):
    """The part of a view that needs no loop: for any thread, nothing waits."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} {self._run.state}>"

    @property
    def id(self) -> str:
        return self._run.id

    @property
    def session(self) -> str:
        return self._run.session

    @property
    def result(self) -> RunResult[O_co]:
        """The result. Raises ``RuntimeError`` while the run goes on."""
        if self._run.result is None:
            raise RuntimeError(f"run {self.id} has not ended: await wait() first")
        return self._run.result


class RunStream(RunView[O_co]):
    """Iterate its events; the last one is terminal, or says that the run waits for a person.

    Only this run's events are seen.

    Leaving the ``async with`` block early cancels the run and waits until it has ended.
    """

    def __init__(self, run: Run, subscription: Subscription) -> None:
        super().__init__(run)
        self._subscription = subscription
        self._over = False

    async def wait(self) -> RunResult[O_co]:
        """Wait until the run and all it started have ended. Cancelling the wait leaves the run."""
        await self._run.ended.wait()
        return self.result

    def cancel(self, mode: Literal["now", "after_turn"] = "now") -> None:
        """Ask the run to end: at once, or before its next model request. It is a request only."""
        if mode == "after_turn":
            self._run.soft_stop = True
        else:
            self._run.cancel("cancelled by the caller", by_user=True)

    def events(self) -> Self:
        """Itself: ``async for event in run.events()`` is ``async for event in run``."""
        return self

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> AnyEvent:
        event = None if self._over else await self._next()
        if event is None:
            raise StopAsyncIteration
        self._over = isinstance(event, Terminal)
        if isinstance(event, RunWaiting):
            # If the caller leaves the block now, it must not cancel a run that is being suspended.
            await self._run.ended.wait()
            self._over = self.result.status == "waiting"
        return event

    async def _next(self) -> AnyEvent | None:
        """The run's next event; None when the bus has lost the end of a run that has ended."""
        while True:
            over = self._run.ended.is_set()
            with trio.move_on_after(_LAG):
                record = await anext(self._subscription)
                if record.run_id == self.id:
                    return record.event
                continue
            if over:
                return None


RESENDABLE = ("interrupted", "dropped")
_NAME = re.compile(r"[^\[\]\x00-\x1f\x7f]{1,64}")


@attrs.frozen(eq=False)
class Inputs:
    """See the methods of these names of :class:`motet.Host`."""

    _intake: Intake
    _access: Access
    _table: RunTable
    _store: ActorRef[SessionStoreMessage]
    _services: Services
    _registry: Callable[[], AgentRegistry]
    _readers: Readers

    async def submit(
        self,
        text: str,
        session: str,
        agent: str | None,
        mode: QueueMode | None,
        principal: Principal,
        key: str | None,
        sender: str = "",
        debounce: float | None = None,
        expected: Expected | None = None,
    ) -> Ack:
        known = mode and _known(mode)
        arrival = self._intake.expect(session, principal, expected, sender)
        try:
            if agent is None:
                info = await self._access.find_session(session, principal)
                agent = info.agent if info else self._registry().first().name
            signed = _signed(text, session, sender)
        except BaseException:
            self._intake.forget(arrival)
            raise
        run = await self._intake.new_run(
            agent, signed, session, None, None, principal, key, arrival=arrival, sender=sender
        )
        rules, chat = self._table.rules, is_chat(session)
        # Chats of channels have a default mode and a pause; other sessions only what was set.
        usual = (rules.group if is_group(session) else rules.direct) if chat else None
        run.placement.mode = (
            known or self._services.settings.of(session, principal.user).mode or usual or "followup"
        )
        pause = rules.debounce if chat else 0.0
        run.placement.pause = pause if debounce is None else max(0.0, debounce)
        return await self._intake.deliver(run)

    async def is_resend(self, method: str, key: str, user: str) -> bool:
        return await is_used(self._readers, user, method, key)

    def expect(self, session: str, sender: str, principal: Principal) -> Expected:
        return self._intake.expect(session, principal, None, sender)

    async def send(
        self,
        text: str,
        run_id: str | None,
        session: str | None,
        mode: QueueMode,
        principal: Principal,
        key: str | None,
    ) -> Ack:
        mode = _known(mode)
        if (run_id is None) == (session is None):
            raise TypeError("send() needs either run_id=... or session=...")
        arrival = self._intake.expect(session, principal)
        table = self._table
        if run_id is None:
            target = table.active(str(session), principal.user)
        else:
            target = table.find(run_id)
        if target is not None and table.may(principal, target):
            run = await self._intake.new_steering(target, text, mode, key, arrival)
            return await self._intake.deliver(run)
        if run_id is None:
            return await self.submit(
                text, str(session), None, mode, principal, key, debounce=0.0, expected=arrival
            )
        try:
            ended = await self._access.run(run_id, principal)
        except BaseException:
            self._intake.forget(arrival)
            raise
        mode, owner = "followup" if mode == "steer" else mode, Principal(ended.user)
        return await self.submit(text, ended.session, ended.agent, mode, owner, key, debounce=0.0)

    async def resubmit(self, run_id: str, principal: Principal) -> Ack:
        info = await self._access.run(run_id, principal)
        if info.status not in RESENDABLE:
            raise InputValidation(
                f"the run {run_id} is {info.status}: only one that was {' or '.join(RESENDABLE)} "
                "is sent again"
            )
        role: Role = principal.role if info.user == principal.user else "operator"
        first = input_options(await self._readers.read(OPTIONS, (run_id,))) or InputOptions(role)
        if first.deps or first.only_enters:
            why = "had deps, which are not stored" if first.deps else "was to enter another run"
            raise InputValidation(f"the run {run_id} {why}: only its sender can send it again")
        # As it was, but with no right that the one who asks for it does not have.
        rank = min(ROLES.index(first.role), ROLES.index(principal.role))
        owner = Principal(info.user, ROLES[rank])
        arrival = self._intake.expect(info.session, owner, sender=first.sender)
        run = await self._intake.new_run(
            info.agent,
            info.text,
            info.session,
            None,
            first.limits,
            owner,
            f"resend:{run_id}",
            arrival=arrival,
            sender=first.sender,
            method=RESEND,
            placement=Placement(first.mode),
        )
        return await self._intake.deliver(run)

    async def inject(
        self,
        text: str,
        session: str,
        role: Literal["user", "assistant"],
        key: str,
        principal: Principal,
    ) -> Ack:
        info = await self._access.session(session, principal)
        if not text.strip():
            raise InputValidation("the text is empty")
        finding = guard.check(text, self._services.toolkits.current.guard, "injected")
        if finding is not None and finding.blocked:
            raise InputValidation(finding.refusal)
        text, row_id = storable(text), f"inj_{fresh_hex(6)}"
        hashed = body_hash(session, role, text)
        rows = exchange(text, role)
        request = InjectRows(row_id, session, principal.user, rows, key, hashed, info.generation)
        accepted = await self._store.ask(request)
        if accepted.duplicate:
            return Ack(accepted.run_id, "duplicate")
        author = principal.user if role == "user" else info.agent
        await self._services.events.emit_to(
            session, info.owner, MessageAdded(role, author, text), row_id
        )
        return Ack(row_id, "accepted")

    async def set_queue(self, session: str, mode: QueueMode | None, principal: Principal) -> None:
        known = mode and _known(mode)
        info = await self._access.session(session, principal)
        await self._store.ask(SetQueueMode(session, known, info.generation))
        self._services.settings.change(info, mode=known)

    async def set_model(self, session: str, model: str | None, principal: Principal) -> None:
        known = self._registry().models()
        if model is not None and model not in known:
            raise UnknownName("model", model, known)
        info = await self._access.session(session, principal)
        await self._store.ask(SetSessionModel(session, model, info.generation))
        self._services.settings.change(info, model=model or "")


def _known(mode: QueueMode) -> QueueMode:
    if mode not in MODES:
        raise UnknownName("mode", mode, MODES)
    return mode


def _signed(text: str, session: str, sender: str) -> str:
    """The text with its sender's name in front, if the session is a group."""
    if sender and _NAME.fullmatch(sender) is None:
        raise InputValidation(
            f"{sender[:80]!r} is not a valid sender: give 1 to 64 characters in one line, "
            "without square brackets"
        )
    return with_author(sender, text) if sender and text.strip() and is_group(session) else text
