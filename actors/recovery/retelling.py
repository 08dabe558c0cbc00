"""What the last host had done and could not tell any more.

Events collect for some milliseconds before they are stored, so a kill takes the last ones along,
though what they tell of is on disk: inputs, approvals, messages and calls of runs that have ended.
Laws: what is told here is in no journal yet; it comes before the end of its run. Runs that go on
tell the rest themselves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import TypeAlias

import attrs
from msgspec.structs import replace

from motet.actors.agent.act import ARGUMENT_PREVIEW, PREVIEW
from motet.actors.approvals.gate import requested
from motet.actors.approvals.parking import resolved
from motet.actors.approvals.store import ApprovalProtocol
from motet.actors.log import logger
from motet.actors.recovery.rows import HEARD, LeftRun, since
from motet.actors.sessions import store_rows as stored
from motet.actors.storage.readers import Readers
from motet.actors.tools.arguments import preview
from motet.protocols import events as ev
from motet.protocols.approvals import GetApproval
from motet.protocols.chat import AssistantMessage, ChatMessage, ToolMessage, UserMessage
from motet.protocols.sessions import ListRuns, RunInfo
from motet.protocols.storage import Row
from motet.runtime import ActorRef

Tell: TypeAlias = Callable[[str, ev.AnyEvent, str], Awaitable[None]]
"""Publishes an event of a session and a run."""

ACCEPTED = f"""
SELECT run_id FROM events WHERE stream = 'session:' || ?1 AND event = 'input.accepted' AND
{since("?1", "?2")}"""

ROWS = """
SELECT pos, body FROM messages
WHERE session = ?1 AND run_id = ?2
  AND pos > (SELECT max(pos) FROM messages WHERE session = ?1) - 1000
ORDER BY pos"""

KEY = "SELECT key FROM idempotency WHERE run_id = ?"

_TOLD = f"""
EXISTS (SELECT 1 FROM events WHERE stream = 'session:' || approvals.session
        AND event = '{{event}}' AND json_extract(data, '$.id') = approvals.id AND
{since("approvals.session", "approvals.created")})"""

_APPROVALS = f"""
SELECT id, {_TOLD.format(event="approval.requested")}, {_TOLD.format(event="approval.resolved")}
FROM approvals WHERE run_id {{which}} ORDER BY created, rowid"""
APPROVALS_OF = _APPROVALS.format(which="= ?")
APPROVALS = _APPROVALS.format(
    which="IN (SELECT run_id FROM runs WHERE status IN ('running', 'waiting'))"
)

MOST = 1_000
"""Parked runs of which is looked whether something is to be told."""

log = logger(__name__)


@attrs.define
class Heard:
    """What was told of a run. ``texts``: of its messages that stand, by their numbers."""

    accepted: bool = False
    texts: dict[int, tuple[str, str]] = attrs.field(factory=dict[int, "tuple[str, str]"])
    calls: Counter[str] = attrs.field(factory=Counter[str])
    results: Counter[str] = attrs.field(factory=Counter[str])
    next: int = 0


def heard(found: Iterable[Row]) -> Heard:
    """From rows of ``rows.HEARD``."""
    known = Heard()
    for event, call, i, role, text in found:
        number = int(i or 0)
        match event:
            case "input.accepted":
                known.accepted = True
            case "run.resumed":
                known.texts = {n: one for n, one in known.texts.items() if n < number}
                known.next = number
            case "message":
                known.texts[number] = str(role), str(text)
                known.next = number + 1
            case "tool.call":
                known.calls[str(call)] += 1
            case "tool.result":
                known.results[str(call)] += 1
            case _:
                pass
    return known


def untold(info: RunInfo, rows: Sequence[ChatMessage], known: Heard) -> Iterator[ev.AnyEvent]:
    """What there is to be told of a run that has ended with these rows, in their order."""
    texts, calls, results = Counter(known.texts.values()), Counter[str](), Counter[str]()
    number, index = known.next, 0
    for role, author, row in _shown(info, rows):
        text = row.text
        if role and not _take(texts, (role, text)):
            yield ev.MessageAdded(role, author, text, number)
            number += 1
        if isinstance(row, AssistantMessage):
            index = 0
            for place, call in enumerate(row.calls):
                calls[call.id] += 1
                if calls[call.id] > known.calls[call.id]:
                    args = preview(call.arguments, ARGUMENT_PREVIEW)
                    yield ev.ToolCall(call.id, call.name, args, place)
        elif isinstance(row, ToolMessage):
            results[row.call_id] += 1
            if results[row.call_id] > known.results[row.call_id]:
                yield ev.ToolResult(
                    id=row.call_id,
                    name=row.name,
                    ok=row.outcome == "done",
                    outcome=row.outcome,
                    preview=row.text[:PREVIEW],
                    ms=0.0,
                    index=index,
                )
            index += 1


def completed(left: LeftRun, found: Iterable[Row]) -> LeftRun:
    """The run with what there is to be told of it before it goes on; ``found``: from ``HEARD``."""
    late = tuple(untold(left.info, _settled(left.rows), heard(found)))
    more = tuple((ev.event_name(one), getattr(one, "id", "")) for one in late)
    return attrs.evolve(left, late=late, heard=(*left.heard, *more))


def _settled(rows: Sequence[ChatMessage]) -> Sequence[ChatMessage]:
    """The rows without the calls that a run goes on with, of which it tells itself."""
    for place in range(len(rows) - 1, -1, -1):
        row = rows[place]
        if isinstance(row, AssistantMessage):
            return (*rows[:place], replace(row, calls=()))
        if not isinstance(row, ToolMessage):
            break
    return rows


def _shown(
    info: RunInfo, rows: Sequence[ChatMessage]
) -> Iterator[tuple[ev.Role | None, str, ChatMessage]]:
    """The rows, each with the role and the author as whose message it is told, if it is one."""
    for place, row in enumerate(rows):
        if isinstance(row, UserMessage):
            # What came in later was told of in parts, by who said each.
            yield ("user" if place == 0 and not row.note else None), info.user, row
        elif isinstance(row, AssistantMessage) and row.text and row.note != "silent":
            yield "assistant", info.agent, row
        else:
            yield None, "", row


def _take(texts: Counter[tuple[str, str]], one: tuple[str, str]) -> bool:
    texts[one] -= 1
    return texts[one] >= 0


@attrs.frozen(eq=False)
class Retelling:
    """Of one host, when it starts. Never fails it: what cannot be read is not told again."""

    readers: Readers
    approvals: ActorRef[ApprovalProtocol]
    tell: Tell

    async def of_unfinished(self, kept: Iterable[LeftRun]) -> None:
        """Of runs that go on, now or when a person has decided; ``kept``: :func:`completed`."""
        try:
            going = list(kept)
            await self._inputs([left.info for left in going])
            for left in (*going, *await self._parked()):
                for event in left.late:
                    await self.tell(left.info.session, event, left.info.run_id)
            await self._approvals(await self.readers.read(APPROVALS))
        except Exception as error:
            log.error("what the last host did is not told again", exc_info=error)

    async def end(self, session: str, run_id: str, end: ev.AnyEvent) -> None:
        """Tell the end of a run, and before it what was not told of it. Its journal is settled."""
        try:
            for row in await self.readers.read(stored.RUN, (run_id,)):
                await self._run(stored.run_info(row))
        except Exception as error:
            log.error("what a run did is not told again", run=run_id, exc_info=error)
        await self.tell(session, end, run_id)

    async def _inputs(self, infos: Sequence[RunInfo]) -> None:
        """``infos``: oldest first."""
        accepted: dict[str, set[str]] = {}
        for info in infos:
            if info.session not in accepted:
                found = await self.readers.read(ACCEPTED, (info.session, info.created))
                accepted[info.session] = {str(run_id) for (run_id,) in found}
            if info.run_id not in accepted[info.session]:
                await self._accepted(info)

    async def _accepted(self, info: RunInfo) -> None:
        found = await self.readers.read(KEY, (info.run_id,))
        key = str(found[0][0]) if found else None
        await self.tell(info.session, ev.InputAccepted(info.text, info.user, key), info.run_id)

    async def _parked(self) -> list[LeftRun]:
        found = await self.readers.read(*stored.runs(ListRuns(status="waiting", limit=MOST)))
        return [await self._left(stored.run_info(row)) for row in found]

    async def _left(self, info: RunInfo) -> LeftRun:
        steps = await self.readers.read(stored.STEPS, (info.run_id,))
        told = await self.readers.read(HEARD, (info.session, info.run_id, info.created))
        rows = tuple(stored.decode(body) for _, body in steps)
        return completed(LeftRun(info, None, 0.0, rows=rows), told)

    async def _approvals(self, found: Iterable[Row]) -> None:
        for approval, asked, answered in found:
            info = await self.approvals.ask(GetApproval(str(approval)))
            if info is None:
                continue
            if not asked:
                await self.tell(info.session, requested(info), info.run_id)
            if info.state != "pending" and not answered:
                await self.tell(info.session, resolved(info), info.run_id)

    async def _run(self, info: RunInfo) -> None:
        found = await self.readers.read(HEARD, (info.session, info.run_id, info.created))
        known = heard(found)
        if not known.accepted:
            await self._accepted(info)
        bodies = await self.readers.read(ROWS, (info.session, info.run_id))
        for event in untold(info, [stored.decode(body) for _, body in bodies], known):
            await self.tell(info.session, event, info.run_id)
        await self._approvals(await self.readers.read(APPROVALS_OF, (info.run_id,)))
