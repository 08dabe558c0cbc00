"""A conversation with a session: typed lines go in, events are shown. The Trio side.

Invariant: it is quiet exactly when every input has been taken and every run that came of one has
ended and has been shown, or waits for an approval, which the keyboard answers with a letter.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable

import attrs
import trio

from motet.cli.chat_session import ChatSession
from motet.cli.render import Rendering, line_of, one_line
from motet.cli.screen import Screen, is_long
from motet.protocols.approvals import ApprovalDecision, ApprovalInfo
from motet.protocols.command_texts import stop_text
from motet.protocols.errors import MotetError
from motet.protocols.events import (
    AnyEvent,
    ApprovalRequested,
    ApprovalResolved,
    EventRecord,
    Gap,
    InputDropped,
    InputSteered,
    Terminal,
)
from motet.protocols.gateway import CommandAnswer
from motet.protocols.review import question
from motet.protocols.sessions import Ack

REMEMBERED = 50
"""Ended runs whose events are not shown again."""


@attrs.define(eq=False)
class Dialogue:
    """Calls ``quiet`` with the number of texts taken whenever nothing is left to do."""

    chat: ChatSession
    screen: Screen
    quiet: Callable[[int], None]
    _rendering: Rendering = attrs.field(init=False)
    _heard: int = 0
    _restarts: int = 0
    _running: set[str] = attrs.field(factory=set[str])
    _ended: set[str] = attrs.field(factory=set[str])
    _over: deque[str] = attrs.field(factory=lambda: deque[str](maxlen=REMEMBERED))
    _questions: Questions = attrs.field(init=False)
    _reminded: trio.Event = attrs.field(factory=trio.Event)

    def __attrs_post_init__(self) -> None:
        self._rendering = Rendering(self.screen.live)
        self._questions = Questions(self.screen)

    async def follow(self, events: AsyncIterable[EventRecord]) -> None:
        """Show the events of the session, for ever, and first the approvals that wait already."""
        self._questions.remind(reversed(await self.chat.pending()))
        self._reminded.set()
        if self._questions:
            self._report()
        async for record in events:
            self._catch_up()
            if record.run_id in self._over:
                continue  # once more, with its number, since the storage works again
            if isinstance(record.event, ApprovalRequested):
                await self._questions.look_up(record.event, self.chat.pending)
            else:
                self.screen.show(self._rendering.pieces(record.event))
            self._note(record.event)
            if record.run_id and isinstance(record.event, Terminal | InputDropped | InputSteered):
                self._end(record.run_id)

    async def hear(self, text: str) -> None:
        """Send one text: a command is carried out, anything else is for the agent."""
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

    def review(self) -> str:
        """The pending approval that is asked about, for a pager. For any thread."""
        return self._questions.text

    async def stop(self) -> None:
        """Stop the runs of the session, whose events tell of it; print those that are left."""
        try:
            report = await self.chat.stop()
        except MotetError as error:
            self.screen.line(str(error), "failed")
            return
        if report.still_running:
            self.screen.line(f"{stop_text(report)}; Ctrl-C again to leave", "warning")

    async def _say(self, text: str) -> None:
        answer = await self.chat.say(text)
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
        """Answer the oldest question. It is done with, also if another answer was first."""
        info = await self.chat.approve(self._questions.take(), decision)
        if info.blocked:
            self.screen.line(one_line(info.blocked), "warning")
        else:
            self._expect(info.run_id)
        self._questions.go_on()

    async def _obeyed(self, answer: CommandAnswer) -> None:
        self.screen.line(answer.text)
        if answer.run_id:
            self._expect(answer.run_id)
        if answer.command == "approve":
            self._questions.are(reversed(await self.chat.pending()))
        if answer.command == "help":
            self.screen.line("/quit: leave, as Ctrl-D does; Ctrl-C stops the agent")

    def _catch_up(self) -> None:
        """Forget the unfinished output of a host that was restarted."""
        if self.chat.restarts() > self._restarts:
            self._restarts = self.chat.restarts()
            self.screen.end()
            self._rendering = Rendering(self.screen.live)

    def _end(self, run_id: str) -> None:
        self._over.append(run_id)
        if run_id in self._running:
            self._running.discard(run_id)
        else:  # It ended before its input was acknowledged.
            self._ended.add(run_id)
        self.screen.end()
        self._report()

    def _note(self, event: AnyEvent) -> None:
        """Ask one question after the other."""
        if self._questions.note(event):
            self._report()
        elif isinstance(event, Gap):
            self._running.clear()
            self.screen.line("[messages of the meantime are in the history only]", "warning")
            self._report()

    def _report(self) -> None:
        """Report quiet also when only an approval is left to wait for."""
        if not self._running or self._questions:
            self.quiet(self._heard)


# Approvals at the keyboard


ANSWERS: dict[str, ApprovalDecision] = {
    "y": "allow-once",
    "yes": "allow-once",
    "a": "allow-always",
    "always": "allow-always",
    "n": "deny",
    "no": "deny",
}


@attrs.define(eq=False)
class Questions:
    """The pending approvals, oldest first. False when there is none.

    Invariant: the oldest one is asked about, once it is shown with all of its arguments; the others
    are shown when their turn comes.
    """

    screen: Screen
    _asked: dict[str, ApprovalInfo] = attrs.field(factory=dict[str, ApprovalInfo])
    _shown: str = ""
    """The id of the one that is asked about."""

    def __bool__(self) -> bool:
        return bool(self._asked)

    @property
    def text(self) -> str:
        """The approval that is asked about, for a pager. For any thread."""
        oldest = next(iter(self._asked.values()), None)
        return "" if oldest is None else "\n".join(question(oldest))

    def remind(self, pending: Iterable[ApprovalInfo]) -> None:
        """Ask about the approvals that wait already, oldest first."""
        for info in pending:
            self._asked[info.id] = info
        self._ask()

    async def look_up(
        self,
        event: ApprovalRequested,
        pending: Callable[[], Awaitable[tuple[ApprovalInfo, ...]]],
    ) -> None:
        """Ask about a new approval. Its event has long arguments cut, so they are fetched."""
        try:
            info = next((one for one in await pending() if one.id == event.id), None)
        except MotetError as error:
            self.screen.line(str(error), "failed")
            info = None
        if info is not None:
            self._asked[info.id] = info
            self._ask()
        elif (piece := line_of(event)) is not None:  # it is settled already, or cannot be read
            self.screen.line(piece.text, piece.kind)

    def note(self, event: AnyEvent) -> bool:
        """Note an event; True if it was about an approval."""
        if isinstance(event, ApprovalResolved) and self._asked.pop(event.id, None) is not None:
            self._ask()
        return isinstance(event, ApprovalRequested | ApprovalResolved)

    def decision(self, text: str) -> ApprovalDecision | None:
        """The decision that a text stands for; None: it is no answer."""
        return ANSWERS.get(text.strip().lower()) if self._asked else None

    def take(self) -> str:
        """Remove the oldest one, which is answered now, and return its id."""
        approval = next(iter(self._asked))
        del self._asked[approval]
        return approval

    def go_on(self) -> None:
        """Ask about the next one: an answer has been given."""
        self._ask()

    def are(self, pending: Iterable[ApprovalInfo]) -> None:
        """Replace the pending approvals."""
        self._asked = {one.id: one for one in pending}
        self._ask()

    def _ask(self) -> None:
        oldest = next(iter(self._asked.values()), None)
        if oldest is None or oldest.id == self._shown:
            return
        self._shown = oldest.id
        text = self.text
        self.screen.line(f"? {text}", "warning")
        more = ", v: read it in a pager" if is_long(text) else ""
        what = f"may {one_line(oldest.tool)} do that? y: yes, a: always, n: no{more}"
        self.screen.line(what, "warning")
