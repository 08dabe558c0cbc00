"""Whom a dialogue talks to: a session of a host in this process, or of one behind a gateway."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Callable
from contextlib import asynccontextmanager
from typing import Protocol

import attrs

from motet.actors.gateway.commands import answer_command, message_text, parse_command
from motet.actors.host import Host
from motet.actors.telemetry.subscription import subscribe
from motet.cli.render import Kind, one_line
from motet.cli.setup import Setup, opened
from motet.client import Change, Client, Offline, Online, connect
from motet.protocols.approvals import ApprovalDecision, ApprovalInfo
from motet.protocols.events import EventRecord
from motet.protocols.gateway import CommandAnswer
from motet.protocols.sessions import LOCAL, Ack, StopReport

Tell = Callable[[str, Kind], None]
"""Shows the person a line of its own."""


class Counterpart(Protocol):
    """One session. All calls raise what the host says of them."""

    async def say(self, text: str) -> Ack | CommandAnswer:
        """Take up a text; a command is carried out."""
        ...

    async def stop(self) -> StopReport: ...

    async def approve(self, approval: str, decision: ApprovalDecision) -> ApprovalInfo: ...

    async def pending(self) -> tuple[ApprovalInfo, ...]:
        """What waits for a person here, newest first."""
        ...

    def restarts(self) -> int:
        """How often the host was restarted since the dialogue began."""
        ...


@attrs.define(eq=False)
class Here:
    """A host in this process."""

    host: Host
    agent: str
    session: str

    async def say(self, text: str) -> Ack | CommandAnswer:
        command = parse_command(text)
        if command is not None:
            return await answer_command(self.host, LOCAL, self.session, command)
        mode = self.host.queue_mode(self.session)
        return await self.host.submit(
            message_text(text), session=self.session, agent=self.agent, mode=mode
        )

    async def stop(self) -> StopReport:
        return await self.host.stop(session=self.session)

    async def approve(self, approval: str, decision: ApprovalDecision) -> ApprovalInfo:
        return await self.host.approve(approval, decision)

    async def pending(self) -> tuple[ApprovalInfo, ...]:
        return await self.host.approvals(session=self.session, state="pending")

    def restarts(self) -> int:
        return 0


@attrs.define(eq=False)
class Away:
    """A host behind a gateway. ``agent`` None: the session's own, or the host's first."""

    client: Client
    agent: str | None
    session: str
    restarted: Callable[[], int]

    async def say(self, text: str) -> Ack | CommandAnswer:
        answer = await self.client.send(self.session, text, agent=self.agent)
        if isinstance(answer, CommandAnswer):
            return answer
        return Ack(answer.run_id, answer.status, answer.position)

    async def stop(self) -> StopReport:
        return await self.client.stop(session=self.session)

    async def approve(self, approval: str, decision: ApprovalDecision) -> ApprovalInfo:
        return await self.client.approve(approval, decision)

    async def pending(self) -> tuple[ApprovalInfo, ...]:
        return await self.client.approvals(session=self.session, state="pending")

    def restarts(self) -> int:
        return self.restarted()


@attrs.frozen
class Meeting:
    """A dialogue can begin: what happens from now on is in ``events``."""

    counterpart: Counterpart
    events: AsyncIterable[EventRecord]


@asynccontextmanager
async def meet_here(setup: Setup, agent: str, session: str, tell: Tell) -> AsyncGenerator[Meeting]:
    """A host of our own, as long as the block lasts."""

    def warn(message: str) -> None:
        tell(f"warning: {message}", "warning")

    async with (
        opened(setup, warn) as host,
        subscribe(host.events, f"session:{session}") as events,
    ):
        yield Meeting(Here(host, agent, session), events)


@attrs.define(eq=False)
class Line:
    """Tells the person when the line to the host is dead, and when it is alive again."""

    tell: Tell
    position: Callable[[], int | None] = attrs.field(default=lambda: None)
    restarts: int = 0
    _dead: bool = False

    def changed(self, change: Change) -> None:
        match change:
            case Online(restarted=restarted):
                self.restarts += restarted
                if self._dead:
                    self.tell("[connected again]", "note")
                self._dead = False
            case Offline(reason=reason, retry_in=None):
                self.tell(f"connection lost: {one_line(reason)}", "failed")
            case Offline(reason=reason, retry_in=seconds):
                again = f"trying again in {seconds:.0f} s{self._resuming()}"
                self.tell(f"[connection lost: {one_line(reason)}; {again}]", "warning")
                self._dead = True

    def _resuming(self) -> str:
        position = self.position()
        return f", resuming from {position}" if position else ""


@asynccontextmanager
async def meet_away(
    url: str, token: str | None, agent: str | None, session: str, tell: Tell
) -> AsyncGenerator[Meeting]:
    """A host behind a gateway; leaving the block ends no run there."""
    line = Line(tell)
    async with (
        connect(url, token=token, name="motet-chat", on_change=line.changed) as client,
        client.stream(f"session:{session}") as events,
    ):
        line.position = lambda: events.last
        yield Meeting(Away(client, agent, session, lambda: line.restarts), events)
