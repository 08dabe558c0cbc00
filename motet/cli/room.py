"""``motet chat ROOM``: a conversation with all the agents of a room, here or behind a gateway.

Messages are shown when they are whole, with the speaker's name in front. It is quiet exactly when
no message is left to be answered.
"""

from __future__ import annotations

import getpass
from collections.abc import AsyncGenerator, AsyncIterable, Callable
from contextlib import asynccontextmanager
from typing import Protocol

import attrs
import trio

from motet.actors.gateway.commands import answer_command
from motet.actors.host import Host
from motet.actors.rooms.opening import OpenRoom
from motet.actors.rooms.publisher import room_stream
from motet.actors.telemetry.subscription import subscribe
from motet.cli.chat_session import ChatSession, ConnectionNotice, OpenChat, Tell
from motet.cli.dialogue import Questions
from motet.cli.render import Rendering, one_line, visible
from motet.cli.screen import Screen
from motet.cli.setup import Setup, opened
from motet.client import Client, connect
from motet.protocols.approvals import ApprovalDecision, ApprovalInfo
from motet.protocols.command_texts import stop_text
from motet.protocols.commands import message_text, parse_command
from motet.protocols.errors import MotetError, NotFound
from motet.protocols.events import (
    AnyEvent,
    ApprovalRequested,
    CallDropped,
    EventRecord,
    Gap,
    MessageAdded,
    RoomIdle,
    RoomTurn,
)
from motet.protocols.gateway import CommandAnswer
from motet.protocols.host_rooms import RoomInfo
from motet.protocols.sessions import LOCAL, Ack, StopReport

COLOURS = ("cyan", "magenta", "green", "blue", "yellow", "red")


class RoomSession(ChatSession, Protocol):
    """A room, as ``user`` sees it."""

    @property
    def user(self) -> str: ...

    @property
    def members(self) -> tuple[str, ...]:
        """The names of its agents."""
        ...

    @property
    def answers(self) -> bool:
        """Whether the user may answer approvals of its members."""
        ...

    async def waits(self) -> bool:
        """Whether every message of people has been answered."""
        ...


@attrs.define(eq=False)
class LocalRoom:
    """A room of a host in this process."""

    host: Host
    room: OpenRoom
    user: str

    @property
    def members(self) -> tuple[str, ...]:
        return self.room.members

    @property
    def answers(self) -> bool:
        return True

    async def waits(self) -> bool:
        return self.room.waits

    async def say(self, text: str) -> Ack | CommandAnswer:
        command = parse_command(text)
        if command is not None:
            return await answer_command(self.host, LOCAL, "", command, room=self.room.name)
        said = await self.room.post(message_text(text).strip(), user=self.user)
        return Ack(f"{self.room.name}:{said.seq}", "accepted")

    async def stop(self) -> StopReport:
        return await self.room.stop()

    async def approve(self, approval: str, decision: ApprovalDecision) -> ApprovalInfo:
        return await self.host.approve(approval, decision)

    async def pending(self) -> tuple[ApprovalInfo, ...]:
        return await self.host.approvals(room=self.room.name, state="pending")

    def restarts(self) -> int:
        return 0


@attrs.define(eq=False)
class RemoteRoom:
    """A room of a host behind a gateway."""

    client: Client
    name: str
    user: str
    members: tuple[str, ...]
    answers: bool
    restarted: Callable[[], int]

    async def waits(self) -> bool:
        info = await find_room(self.client, self.name)
        # People need not wait for an approval, which others may have to give.
        held = bool(info.floor) and all(one.waits_for == "approval" for one in info.floor)
        return info.idle or held

    async def say(self, text: str) -> Ack | CommandAnswer:
        answer = await self.client.post(self.name, text.strip())
        if isinstance(answer, CommandAnswer):
            return answer
        return Ack(f"{self.name}:{answer.seq}", "accepted")

    async def stop(self) -> StopReport:
        return await self.client.stop(room=self.name)

    async def approve(self, approval: str, decision: ApprovalDecision) -> ApprovalInfo:
        return await self.client.approve(approval, decision)

    async def pending(self) -> tuple[ApprovalInfo, ...]:
        if not self.answers:
            return ()
        return await self.client.approvals(room=self.name, state="pending")

    def restarts(self) -> int:
        return self.restarted()


async def find_room(client: Client, name: str) -> RoomInfo:
    """A room that the user may see. Raises ``NotFound``."""
    for info in await client.rooms():
        if info.name == name:
            return info
    raise NotFound(f"there is no room {name!r}, or it is not for you")


async def remote_members(url: str, token: str | None, name: str) -> tuple[str, ...]:
    """The members of a room behind a gateway; empty if that is not the name of one."""
    async with connect(url, token=token, name="motet-chat") as client:
        if any(one.name == name for one in await client.agents()):
            return ()
        infos = [one for one in await client.rooms() if one.name == name]
        return tuple(member.name for info in infos for member in info.members)


@asynccontextmanager
async def open_remote_room(
    url: str, token: str | None, name: str, tell: Tell
) -> AsyncGenerator[OpenChat]:
    """A room of a host behind a gateway; leaving the block ends no turn there."""
    line = ConnectionNotice(tell)
    async with (
        connect(url, token=token, name="motet-chat", on_change=line.changed) as client,
        client.stream(room_stream(name)) as events,
    ):
        line.position = lambda: events.last
        info = await find_room(client, name)
        assert client.server is not None, "it has just answered"
        who = client.server.principal
        members = tuple(member.name for member in info.members)
        mine = who.role == "admin" or (who.role == "operator" and who.user == info.owner)
        away = RemoteRoom(client, name, who.user, members, mine, lambda: line.restarts)
        yield OpenChat(away, events)


@asynccontextmanager
async def open_local_room(setup: Setup, name: str, tell: Tell) -> AsyncGenerator[OpenChat]:
    """A host of our own with the room open, as long as the block lasts."""

    def warn(message: str) -> None:
        tell(f"warning: {message}", "warning")

    async with opened(setup, warn) as host:
        room = await host.open_room(name)
        async with subscribe(host.events, room_stream(name)) as events:
            yield OpenChat(LocalRoom(host, room, getpass.getuser()), events)


@attrs.define(eq=False)
class RoomDialogue:
    """Calls ``quiet`` with the number of texts taken whenever nothing is left to do."""

    here: RoomSession
    screen: Screen
    quiet: Callable[[int], None]
    _rendering: Rendering = attrs.field(factory=lambda: Rendering(stream=False))
    _questions: Questions = attrs.field(init=False)
    _reminded: trio.Event = attrs.field(factory=trio.Event)
    _heard: int = 0

    def __attrs_post_init__(self) -> None:
        self._questions = Questions(self.screen)

    @classmethod
    def of(cls, chat: ChatSession, screen: Screen, quiet: Callable[[int], None]) -> RoomDialogue:
        assert isinstance(chat, LocalRoom | RemoteRoom)
        return cls(chat, screen, quiet)

    async def follow(self, events: AsyncIterable[EventRecord]) -> None:
        """Show the events of the room, for ever, and first the approvals that wait already."""
        self._questions.remind(reversed(await self.here.pending()))
        self._reminded.set()
        async for record in events:
            if self.here.answers and isinstance(record.event, ApprovalRequested):
                await self._questions.look_up(record.event, self.here.pending)
            else:
                self._show(record.event)
            asked = self._questions.note(record.event)
            if asked or isinstance(record.event, RoomIdle | Gap):
                await self._report()

    async def hear(self, text: str) -> None:
        """Take one text: an answer to an approval, a command, or a message to the room."""
        await self._reminded.wait()
        decision = self._questions.decision(text)
        try:
            if decision is not None:
                await self._answer(decision)
            else:
                await self._say(text)
        except MotetError as error:
            self.screen.line(str(error), "failed")
        self._heard += 1
        await self._report()

    async def _answer(self, decision: ApprovalDecision) -> None:
        info = await self.here.approve(self._questions.take(), decision)
        if info.blocked:
            self.screen.line(one_line(info.blocked), "warning")
        self._questions.go_on()

    async def _say(self, text: str) -> None:
        answer = await self.here.say(text)
        if not isinstance(answer, CommandAnswer):
            return
        self.screen.line(answer.text)
        if answer.command == "approve":
            self._questions.are(reversed(await self.here.pending()))

    def review(self) -> str:
        """The pending approval that is asked about, for a pager. For any thread."""
        return self._questions.text

    async def stop(self) -> None:
        """End the round."""
        try:
            report = await self.here.stop()
        except MotetError as error:
            self.screen.line(str(error), "failed")
            return
        if report.still_running:
            self.screen.line(f"{stop_text(report)}; Ctrl-C again to leave", "warning")

    def _show(self, event: AnyEvent) -> None:
        match event:
            case MessageAdded(role="user", author=self.here.user):
                pass  # it stands where it was typed
            case MessageAdded():
                self._said(event)
            case RoomTurn():
                left = f"{event.left} left"
                self.screen.line(f"[{one_line(event.speaker)}, turn {event.turn}, {left}]")
            case CallDropped(by=by, reason=reason):
                told = f"{event.of} was called by {', '.join(by)}, and will not speak: {reason}"
                self.screen.line(f"[{one_line(told)}]")
            case RoomIdle():
                self.screen.line(f"[the round is over: {one_line(event.reason)}]")
            case _:
                self.screen.show(self._rendering.pieces(event))

    def _said(self, event: MessageAdded) -> None:
        name, text = one_line(event.author), visible(event.text) or "(withdrawn)"
        if not self.screen.live:
            self.screen.write(f"[{name}] {text}\n")
            return
        self.screen.end()
        members = self.here.members
        place = members.index(event.author) if event.author in members else -1
        style = f"bold {COLOURS[place % len(COLOURS)]}" if place >= 0 else "bold"
        self.screen.notes.print(name, style=style, markup=False, end=" ")
        self.screen.notes.print(f"#{event.number}", style="dim", markup=False, end="  ")
        self.screen.write(f"{text}\n")

    async def _report(self) -> None:
        heard = self._heard
        try:
            waits = bool(self._questions) or await self.here.waits()
        except MotetError as error:
            self.screen.line(str(error), "failed")
            return
        if waits and heard == self._heard:
            self.quiet(heard)
