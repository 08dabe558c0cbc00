"""A conversation with a session: what is typed goes in, what happens is shown. The Trio side.

Invariant: it is quiet exactly when all that was said has been taken up and every run that came
of it has ended and has been shown, or waits for the person's word.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable

import attrs
import trio

from motet.actors.gateway.command_texts import stop_text
from motet.cli.counterpart import Counterpart
from motet.cli.questions import Questions
from motet.cli.render import Rendering, one_line
from motet.cli.screen import Screen
from motet.protocols.approvals import ApprovalDecision
from motet.protocols.errors import MotetError
from motet.protocols.events import AnyEvent, EventRecord, Gap, InputDropped, InputSteered, Terminal
from motet.protocols.gateway import CommandAnswer
from motet.protocols.sessions import Ack


@attrs.define(eq=False)
class Dialogue:
    """``quiet`` is called with the number of texts heard whenever nothing is left to do."""

    counterpart: Counterpart
    screen: Screen
    quiet: Callable[[int], None]
    _rendering: Rendering = attrs.field(init=False)
    _heard: int = 0
    _restarts: int = 0
    _running: set[str] = attrs.field(factory=set[str])
    _ended: set[str] = attrs.field(factory=set[str])
    _questions: Questions = attrs.field(init=False)
    _reminded: trio.Event = attrs.field(factory=trio.Event)

    def __attrs_post_init__(self) -> None:
        self._rendering = Rendering(self.screen.live)
        self._questions = Questions(self.screen)

    async def follow(self, events: AsyncIterable[EventRecord]) -> None:
        """Show what happens in the session, for ever, and first what waits from before."""
        self._questions.remind(reversed(await self.counterpart.pending()))
        self._reminded.set()
        if self._questions:
            self._report()
        async for record in events:
            self._catch_up()
            self.screen.show(self._rendering.pieces(record.event))
            self._note(record.event)
            if record.run_id and isinstance(record.event, Terminal | InputDropped | InputSteered):
                self._end(record.run_id)

    async def hear(self, text: str) -> None:
        """Take up one text: a command is carried out, anything else is for the agent."""
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
        self._report()

    async def stop(self) -> None:
        """Stop what the session is doing; its own events say so, and this says what is left."""
        try:
            report = await self.counterpart.stop()
        except MotetError as error:
            self.screen.line(str(error), "failed")
            return
        if report.still_running:
            self.screen.line(f"{stop_text(report)}; Ctrl-C again to leave", "warning")

    async def _say(self, text: str) -> None:
        answer = await self.counterpart.say(text)
        if isinstance(answer, CommandAnswer):
            await self._obeyed(answer)
        else:
            self._taken(answer)

    def _taken(self, ack: Ack) -> None:
        self._expect(ack.run_id)
        match ack.status:
            case "queued" | "collected":
                self.screen.line(f"[{ack.status}, number {ack.position}; /stopall ends all of it]")
            case "steered":
                self.screen.line("[goes into the running turn]")
            case _:
                pass

    def _expect(self, run_id: str) -> None:
        if run_id in self._ended:
            self._ended.discard(run_id)
        else:
            self._running.add(run_id)

    async def _answer(self, decision: ApprovalDecision) -> None:
        """The oldest question is answered, whether this or somebody else's answer counts."""
        info = await self.counterpart.approve(self._questions.take(), decision)
        if info.blocked:
            self.screen.line(one_line(info.blocked), "warning")
        else:
            self._expect(info.run_id)

    async def _obeyed(self, answer: CommandAnswer) -> None:
        self.screen.line(answer.text)
        if answer.command == "approve":
            self._questions.are(reversed(await self.counterpart.pending()))
        if answer.command == "help":
            self.screen.line("/quit: leave, as Ctrl-D does; Ctrl-C stops the agent")

    def _catch_up(self) -> None:
        """Of what a host was about to say when it was restarted, nothing counts."""
        if self.counterpart.restarts() > self._restarts:
            self._restarts = self.counterpart.restarts()
            self.screen.end()
            self._rendering = Rendering(self.screen.live)

    def _end(self, run_id: str) -> None:
        if run_id in self._running:
            self._running.discard(run_id)
        else:  # It ended before its input was acknowledged.
            self._ended.add(run_id)
        self.screen.end()
        self._report()

    def _note(self, event: AnyEvent) -> None:
        """Ask the person at the keyboard, one thing after the other."""
        if self._questions.note(event):
            self._report()
        elif isinstance(event, Gap):
            self._running.clear()
            self.screen.line("[what was said meanwhile is in the history only]", "warning")
            self._report()

    def _report(self) -> None:
        """Also what has to be answered now leaves nothing to wait for."""
        if not self._running or self._questions:
            self.quiet(self._heard)
