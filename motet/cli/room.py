"""``motet chat ROOM``: a person talks with all the agents of a room. The Trio side.

What is said is shown when it is whole, with the name of whoever has said it in front; it is quiet
exactly when nothing that was said is left to be answered.
"""

from __future__ import annotations

import getpass
from collections.abc import AsyncGenerator, AsyncIterable, Callable
from contextlib import asynccontextmanager

import attrs

from motet.actors.commands.answers import answer_command
from motet.actors.commands.parse import message_text, parse_command
from motet.actors.commands.told import stop_text
from motet.actors.events.subscription import subscribe
from motet.actors.host import Host
from motet.actors.rooms.handle import OpenRoom
from motet.actors.rooms.voice import room_stream
from motet.cli.counterpart import Counterpart, Meeting, Tell
from motet.cli.render import Rendering, one_line, visible
from motet.cli.screen import Screen
from motet.cli.setup import Setup, opened
from motet.protocols.approvals import ApprovalDecision, ApprovalInfo
from motet.protocols.errors import MotetError
from motet.protocols.events import AnyEvent, EventRecord, MessageAdded, RoomIdle, RoomTurn
from motet.protocols.gateway import CommandAnswer
from motet.protocols.sessions import LOCAL, Ack, StopReport

COLOURS = ("cyan", "magenta", "green", "blue", "yellow", "red")


@attrs.define(eq=False)
class RoomHere:
    """A room of a host in this process, as ``user`` sees it."""

    host: Host
    room: OpenRoom
    user: str

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
        return ()

    def restarts(self) -> int:
        return 0


@asynccontextmanager
async def meet_room(setup: Setup, name: str, tell: Tell) -> AsyncGenerator[Meeting]:
    """A host of our own with this room open, as long as the block lasts."""

    def warn(message: str) -> None:
        tell(f"warning: {message}", "warning")

    async with opened(setup, warn) as host:
        room = await host.open_room(name)
        async with subscribe(host.events, room_stream(name)) as events:
            yield Meeting(RoomHere(host, room, getpass.getuser()), events)


@attrs.define(eq=False)
class RoomDialogue:
    """``quiet`` is called with the number of texts heard whenever nothing is left to do."""

    here: RoomHere
    screen: Screen
    quiet: Callable[[int], None]
    _rendering: Rendering = attrs.field(factory=lambda: Rendering(stream=False))
    _heard: int = 0

    @classmethod
    def of(
        cls, counterpart: Counterpart, screen: Screen, quiet: Callable[[int], None]
    ) -> RoomDialogue:
        assert isinstance(counterpart, RoomHere)
        return cls(counterpart, screen, quiet)

    async def follow(self, events: AsyncIterable[EventRecord]) -> None:
        """Show what happens in the room, for ever."""
        async for record in events:
            self._show(record.event)
            if isinstance(record.event, RoomIdle):
                self._report()

    async def hear(self, text: str) -> None:
        """Take up one text: a command is carried out, anything else is said in the room."""
        try:
            answer = await self.here.say(text)
        except MotetError as error:
            self.screen.line(str(error), "failed")
        else:
            if isinstance(answer, CommandAnswer):
                self.screen.line(answer.text)
        self._heard += 1
        self._report()

    async def stop(self) -> None:
        """End the round."""
        report = await self.here.stop()
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
            case RoomIdle():
                self.screen.line(f"[the round is over: {one_line(event.reason)}]")
            case _:
                self.screen.show(self._rendering.pieces(event))

    def _said(self, event: MessageAdded) -> None:
        name, text = one_line(event.author), visible(event.text)
        if not self.screen.live:
            self.screen.write(f"[{name}] {text}\n")
            return
        self.screen.end()
        members = self.here.room.members
        place = members.index(event.author) if event.author in members else -1
        style = f"bold {COLOURS[place % len(COLOURS)]}" if place >= 0 else "bold"
        self.screen.notes.print(name, style=style, markup=False, end="  ")
        self.screen.write(f"{text}\n")

    def _report(self) -> None:
        if self.here.room.waits:
            self.quiet(self._heard)
