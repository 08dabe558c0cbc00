"""The session that a chat talks to: of a host in this process, or of one behind a gateway."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Callable
from contextlib import asynccontextmanager
from typing import Protocol

import attrs
import trio

from motet.actors.gateway.commands import answer_command
from motet.actors.host import Host
from motet.actors.telemetry.subscription import subscribe
from motet.cli.render import Kind, one_line, storage_line
from motet.cli.setup import Setup, opened
from motet.client import Change, Client, Offline, Online, connect
from motet.protocols.approvals import ApprovalDecision, ApprovalInfo
from motet.protocols.commands import message_text, parse_command
from motet.protocols.events import EventRecord
from motet.protocols.gateway import CommandAnswer
from motet.protocols.sessions import LOCAL, Ack, StopReport

Tell = Callable[[str, Kind], None]
"""Shows a line of its own."""


class ChatSession(Protocol):
    """One session. All calls raise the errors of the host."""

    async def say(self, text: str) -> Ack | CommandAnswer:
        """Send a text; a command is carried out."""
        ...

    async def stop(self) -> StopReport: ...

    async def approve(self, approval: str, decision: ApprovalDecision) -> ApprovalInfo: ...

    async def pending(self) -> tuple[ApprovalInfo, ...]:
        """The pending approvals of the session, newest first."""
        ...

    def restarts(self) -> int:
        """The number of restarts of the host since the chat began."""
        ...


@attrs.define(eq=False)
class LocalSession:
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
class RemoteSession:
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
class OpenChat:
    """An opened session, and its events from now on."""

    chat: ChatSession
    events: AsyncIterable[EventRecord]


@asynccontextmanager
async def open_local(
    setup: Setup, agent: str, session: str, tell: Tell
) -> AsyncGenerator[OpenChat]:
    """A session of a host of our own, as long as the block lasts."""

    def warn(message: str) -> None:
        tell(f"warning: {message}", "warning")

    async with (
        opened(setup, warn) as host,
        subscribe(host.events, f"session:{session}") as events,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(_tell_storage, host, tell)
        yield OpenChat(LocalSession(host, agent, session), events)
        nursery.cancel_scope.cancel()


async def _tell_storage(host: Host, tell: Tell) -> None:
    while True:
        await host.storage_changed()
        line = storage_line(host.status().storage)
        tell(line.text, line.kind)


@attrs.define(eq=False)
class ConnectionNotice:
    """Shows when the connection to the host is lost, why, and when it is back: each once."""

    tell: Tell
    position: Callable[[], int | None] = attrs.field(default=lambda: None)
    restarts: int = 0
    _told: list[str] = attrs.field(factory=list[str])
    """The reasons that were shown since the connection was lost."""

    def changed(self, change: Change) -> None:
        match change:
            case Online(restarted=restarted):
                self.restarts += restarted
                if self._told:
                    self.tell("[connected again]", "note")
                self._told.clear()
            case Offline(reason=reason, retry_in=None):
                self.tell(f"connection lost: {one_line(reason)}", "failed")
            case Offline(reason=reason) if not self._told:
                position = self.position()
                resuming = f", resuming from {position}" if position else ""
                self.tell(
                    f"[connection lost: {one_line(reason)}; trying again{resuming}]", "warning"
                )
                self._told.append(reason)
            case Offline(reason=reason) if reason not in self._told:
                self.tell(f"[still not connected: {one_line(reason)}]", "warning")
                self._told.append(reason)
            case _:
                pass


@asynccontextmanager
async def open_remote(
    url: str, token: str | None, agent: str | None, session: str, tell: Tell
) -> AsyncGenerator[OpenChat]:
    """A session behind a gateway; leaving the block ends no run there."""
    line = ConnectionNotice(tell)
    async with (
        connect(url, token=token, name="motet-chat", on_change=line.changed) as client,
        client.stream(f"session:{session}") as events,
    ):
        line.position = lambda: events.last
        yield OpenChat(RemoteSession(client, agent, session, lambda: line.restarts), events)
