"""The events of one run for one client of an edge, and the state that an edge derives from them.

Invariants: at most :data:`MOST` events are kept for a slow client, and text deltas are dropped
first, since the whole message follows; a run never waits for a client.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

import attrs
import msgspec
import trio

from motet.protocols import events as ev
from motet.protocols.approvals import ApprovalInfo
from motet.protocols.chat import JsonObject
from motet.protocols.events import AnyEvent, EventRecord, InputAccepted, is_durable
from motet.protocols.gateway import SESSION_STREAM
from motet.protocols.host import Journal
from motet.protocols.review import reveal
from motet.protocols.stable_json import stable_json

MOST: Final = 1_024
_PAGE: Final = 200
QUIET: Final = 0.2
"""Seconds without an event after which a run with pending approvals is taken to wait for them."""


class EventsLost(Exception):
    """The client was so slow that durable events of its run were dropped."""


@attrs.define(eq=False)
class RunEvents:
    """Subscribed before the input is submitted, so that it misses nothing. To be closed."""

    _journal: Journal
    session: str
    run_id: str
    _events: deque[EventRecord] = attrs.field(init=False, factory=deque[EventRecord])
    _woken: bool = attrs.field(init=False, default=False)
    _lost: bool = attrs.field(init=False, default=False)
    _changed: trio.Event = attrs.field(init=False, factory=trio.Event)
    _detach: Callable[[], None] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._detach = self._journal.attach(SESSION_STREAM + self.session, self._arrived)

    def close(self) -> None:
        self._detach()

    def wake(self) -> None:
        """Make :meth:`next` return None, so that its caller can do something else."""
        self._woken = True
        self._changed.set()

    async def next(self, timeout: float = float("inf")) -> AnyEvent | None:
        """The next event; None after ``timeout`` seconds, or when woken.

        Raises :class:`EventsLost`.
        """
        if not self._events and not self._lost and not self._woken:
            self._changed = trio.Event()
            with trio.move_on_after(timeout):
                await self._changed.wait()
        self._woken = False
        if self._events:
            return self._events.popleft().event
        if self._lost:
            raise EventsLost
        return None

    async def replay(self, run_id: str) -> None:
        """Follow another run, from its beginning in the past. No event may have been taken yet."""
        self.run_id = run_id
        self._events.clear()
        stream = SESSION_STREAM + self.session
        newest = before = (await self._journal.head(stream)).head
        past: deque[EventRecord] = deque()
        begun = False
        while before > 0 and not begun:
            after = max(0, before - _PAGE)
            page = await self._journal.read(stream, after, before - after)
            own = [record for record in page if record.run_id == run_id]
            past.extendleft(reversed(own))
            begun = not page or any(isinstance(one.event, InputAccepted) for one in own)
            before = after
        past.extend(one for one in self._events if one.seq is None or one.seq > newest)
        self._events = past

    def skip_through(self, is_last: Callable[[AnyEvent], bool]) -> None:
        """Drop the events up to the last one for which ``is_last`` is true."""
        places = [place for place, one in enumerate(self._events) if is_last(one.event)]
        for _ in range(max(places, default=-1) + 1):
            self._events.popleft()

    def _arrived(self, record: EventRecord) -> None:
        if record.run_id != self.run_id:
            return
        durable = is_durable(record.event)
        if len(self._events) >= (MOST if durable else MOST // 2):
            self._lost = self._lost or durable
            return
        self._events.append(record)
        self._changed.set()


class TextWithdrawn(Exception):
    """Text was sent that is not part of the message any more."""


@attrs.define(eq=False)
class SentTexts:
    """The text of each message that a client was sent, so that it gets none twice or left out.

    Pure. Messages have their numbers in the run. Invariant: the results of :meth:`delta` and
    :meth:`whole` for a message are, put together, a beginning of its text, and all of it after
    ``whole``.
    """

    _sent: dict[int, str] = attrs.field(init=False, factory=dict[int, str])

    def delta(self, i: int, at: int, text: str) -> str:
        """The unsent part of ``text``, which is at offset ``at`` in message ``i``."""
        sent = self._sent.get(i, "")
        if at > len(sent):
            return ""  # a delta before it was dropped: the whole message will have it
        new = text[len(sent) - at :]
        self._sent[i] = sent + new
        return new

    def whole(self, i: int, text: str) -> str:
        """The unsent part of message ``i``, whose whole is ``text``. Raises
        :class:`TextWithdrawn`.
        """
        sent = self._sent.get(i, "")
        self._sent[i] = text
        if text.startswith(sent):
            return text[len(sent) :]
        if sent.strip() == text.strip():
            return ""
        # A part that ends with a blank, before the note of an answer that was cut off.
        part = sent.rstrip()
        if text.startswith(part) and text[len(part) :][:1].isspace():
            return text[len(part) :]
        raise TextWithdrawn

    def withdraw(self, i: int) -> bool:
        """Forget messages from number ``i`` on; true if anything of them was sent."""
        gone = {number: text for number, text in self._sent.items() if number >= i}
        for number in gone:
            del self._sent[number]
        return any(gone.values())


@attrs.define(eq=False)
class ApprovalWait:
    """Whether a run only waits for a person, by its events.

    Attributes:
        pending: approvals may be pending.
        working: calls that have begun and not ended.
    """

    pending: bool = False
    working: set[str] = attrs.field(factory=set[str])
    _asked: set[str] = attrs.field(init=False, factory=set[str])

    @property
    def timeout(self) -> float:
        """Seconds to wait for the next event."""
        waits = self.pending and not self.working - self._asked
        return QUIET if waits else float("inf")

    def resolve(self, *, pending: bool) -> None:
        """The host's approvals were looked up: some are ``pending``, or none."""
        self.pending = pending

    def note(self, event: AnyEvent) -> None:
        match event:
            case ev.ApprovalRequested(call_id=call):
                self.pending = True
                self._asked.add(call)
            case ev.ToolCall(id=call):
                self.working.add(call)
                self._asked.discard(call)
            case ev.ToolResult(id=call):
                self.working.discard(call)
            case _:
                pass


def approval_question(pending: Sequence[ApprovalInfo]) -> str:
    """The question for a person in a chat: the pending calls, and how to answer them there."""
    lines = [_line(one) for one in pending]
    which = "" if len(pending) == 1 else "ID "
    how = f"`/approve {which}allow-once`, `allow-always` or `deny`, with a reason if you like"
    return "\n".join(["This waits for your approval:", *lines, f"Answer with {how}."])


def _line(one: ApprovalInfo) -> str:
    """The call with all of its arguments, as JSON in one line."""
    stable = msgspec.json.decode(stable_json(one.args), type=JsonObject)
    args = reveal(msgspec.json.encode(stable).decode())
    changed = "; a hook has changed the arguments" if one.proposed is not None else ""
    return f"- {one.id}: {reveal(one.tool)} {args} ({one.reason}{changed})"


def failure_of(end: AnyEvent) -> tuple[str, str] | None:
    """Code and message of a run, or an input, that ended without an answer; None for the rest."""
    match end:
        case ev.RunFailed(kind=kind, message=message):
            return kind, message
        case ev.RunRefused(reason=reason):
            return "run_refused", f"The model refused to answer: {reason}"
        case ev.RunEscalated(reason=reason, escalation=escalation):
            message = f"The run was handed to a person ({reason}), who answers {escalation}."
            return "run_escalated", message
        case ev.InputDropped(reason=reason):
            return "input_dropped", f"The input is not answered: {reason}."
        case ev.InputSteered(into=into):
            return "input_steered", f"The input is answered by the run {into}."
        case _:
            return None
