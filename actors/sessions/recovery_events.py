"""Publishes the events of the last host that a kill took along, though their facts are on disk.

Events collect for some milliseconds before they are stored. Those of inputs, approvals, messages
and calls of ended runs are made again from the rows; runs that resume publish the rest themselves.
Laws: no published event is in a journal already; all of a run's come before its end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

import attrs
from msgspec.structs import replace

from motet.actors.errors.log import logger
from motet.actors.runs.approval_gate import requested
from motet.actors.runs.tool_step import ARGUMENT_PREVIEW, PREVIEW
from motet.actors.storage.readers import Readers
from motet.actors.storage.recovery import (
    PUBLISHED,
    RUN,
    STEPS,
    UnfinishedRun,
    run_info,
    runs_query,
    since,
)
from motet.actors.storage.tables import decode_message, to_json
from motet.actors.tools.arguments import preview
from motet.protocols import events as ev
from motet.protocols.approvals import ApprovalProtocol, GetApproval, ListApprovals, resolved
from motet.protocols.chat import AssistantMessage, ChatMessage, ToolMessage, UserMessage
from motet.protocols.sessions import ListRuns, RunInfo
from motet.protocols.storage import Row
from motet.runtime import ActorRef

log = logger(__name__)

Publish: TypeAlias = Callable[[str, str, ev.AnyEvent, str], Awaitable[None]]
"""Publishes an event of a session, its owner and a run."""

ACCEPTED = f"""
SELECT 1 FROM events WHERE stream = 'session:' || ?1 AND run_id = ?2 AND event = 'input.accepted'
AND {since("?2")} LIMIT 1"""

ROWS = """
SELECT pos, body FROM messages
WHERE session = ?1 AND run_id = ?2
  AND pos > (SELECT max(pos) FROM messages WHERE session = ?1) - 1000
ORDER BY pos"""

# By arrival, not by time: the clock may have been put back between two inputs.
ARRIVED = "SELECT run_id FROM json_each(?) JOIN runs ON run_id = value ORDER BY runs.rowid"

KEY = "SELECT key FROM idempotency WHERE run_id = ?"

_IS_PUBLISHED = f"""
EXISTS (SELECT 1 FROM events WHERE stream = 'session:' || approvals.session
        AND event = '{{event}}' AND json_extract(data, '$.id') = approvals.id AND
{since("approvals.run_id")})"""

_APPROVALS = f"""
SELECT id, {_IS_PUBLISHED.format(event="approval.requested")},
       {_IS_PUBLISHED.format(event="approval.resolved")}
FROM approvals WHERE run_id {{which}} ORDER BY rowid"""
APPROVALS_OF = _APPROVALS.format(which="= ?")
APPROVALS = _APPROVALS.format(
    which="IN (SELECT run_id FROM runs WHERE open = 1 AND status IN ('running', 'waiting'))"
)

MOST = 1_000
"""The most suspended runs that are checked for events to republish."""


@attrs.define
class Published:
    """The published events of a run. ``texts``: its messages that stand, by number."""

    accepted: bool = False
    started: bool = False
    texts: dict[int, tuple[str, str]] = attrs.field(factory=dict[int, "tuple[str, str]"])
    calls: Counter[str] = attrs.field(factory=Counter[str])
    results: Counter[str] = attrs.field(factory=Counter[str])
    next: int = 0


def published(found: Iterable[Row]) -> Published:
    """Made of the rows of ``PUBLISHED``."""
    known = Published()
    for event, call, i, role, text in found:
        number = int(i or 0)
        match event:
            case "input.accepted":
                known.accepted = True
            case "run.started":
                known.started = True
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


def missing_events(
    info: RunInfo, rows: Sequence[ChatMessage], known: Published
) -> Iterator[ev.AnyEvent]:
    """The events that a run with these rows should have published and has not, in row order."""
    texts, calls, results = Counter(known.texts.values()), Counter[str](), Counter[str]()
    number, index = known.next, 0
    for role, author, row in _as_messages(info, rows):
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
                    failure=row.failure,
                )
            index += 1


def with_missing_events(left: UnfinishedRun, found: Iterable[Row]) -> UnfinishedRun:
    """The run with the events to publish before it resumes; ``found``: its published rows."""
    late = tuple(missing_events(left.info, _settled(left.rows), published(found)))
    more = tuple((ev.event_name(one), getattr(one, "id", "")) for one in late)
    return attrs.evolve(left, unpublished=late, published=(*left.published, *more))


def _settled(rows: Sequence[ChatMessage]) -> Sequence[ChatMessage]:
    """The rows without the last calls: the run that resumes with them publishes their events."""
    for place in range(len(rows) - 1, -1, -1):
        row = rows[place]
        if isinstance(row, AssistantMessage):
            return (*rows[:place], replace(row, calls=()))
        if not isinstance(row, ToolMessage):
            break
    return rows


def _as_messages(
    info: RunInfo, rows: Sequence[ChatMessage]
) -> Iterator[tuple[ev.Role | None, str, ChatMessage]]:
    """The rows, each with its role and author as a message; the role is None if it is none."""
    for place, row in enumerate(rows):
        if isinstance(row, UserMessage):
            # A later input was published in parts, one for each sender.
            yield ("user" if place == 0 and not row.note else None), info.user, row
        elif isinstance(row, AssistantMessage) and row.text and row.note != "silent":
            yield "assistant", info.agent, row
        else:
            yield None, "", row


def _take(texts: Counter[tuple[str, str]], one: tuple[str, str]) -> bool:
    texts[one] -= 1
    return texts[one] >= 0


@attrs.frozen(eq=False)
class RecoveryEvents:
    """Publishes, when a host starts, what the last one could not. It never fails the start."""

    readers: Readers
    approvals: ActorRef[ApprovalProtocol]
    publish: Publish

    async def publish_unfinished(self, kept: Iterable[UnfinishedRun]) -> None:
        """For runs that resume, now or after an answer; ``kept`` have their missing events."""
        try:
            suspended = await self._suspended()
            resumed = [*kept, *suspended]
            await self._inputs({left.info.run_id: left.info for left in resumed})
            for left in resumed:
                for event in left.unpublished:
                    await self.publish(left.info.session, left.info.user, event, left.info.run_id)
            await self._approvals(await self.readers.read(APPROVALS))
            for left in suspended:
                await self._waits(left)
        except Exception as error:
            log.error("events of the last host are not published again", exc_info=error)

    async def publish_end(
        self, session: str, user: str, run_id: str, end: ev.AnyEvent, *, this_host: bool = False
    ) -> None:
        """Publish the end of a run, and its missing events before it. Its journal is settled.

        ``this_host``: the run has ended in this host, after :meth:`publish_unfinished`. Approvals
        that are settled since then are published by this host, perhaps just now.
        """
        try:
            for row in await self.readers.read(RUN, (run_id,)):
                await self._run(run_info(row))
                if not this_host:
                    await self._approvals(await self.readers.read(APPROVALS_OF, (run_id,)))
        except Exception as error:
            log.error("events of a run are not published again", run=run_id, exc_info=error)
        await self.publish(session, user, end, run_id)

    async def _inputs(self, infos: Mapping[str, RunInfo]) -> None:
        for (run_id,) in await self.readers.read(ARRIVED, (to_json([*infos]),)):
            info = infos[str(run_id)]
            if not await self.readers.read(ACCEPTED, (info.session, info.run_id)):
                await self._accepted(info)

    async def _accepted(self, info: RunInfo) -> None:
        found = await self.readers.read(KEY, (info.run_id,))
        key = str(found[0][0]) if found else None
        await self.publish(
            info.session, info.user, ev.InputAccepted(info.text, info.user, key), info.run_id
        )

    async def _suspended(self) -> list[UnfinishedRun]:
        found = await self.readers.read(*runs_query(ListRuns(status="waiting", limit=MOST)))
        return [await self._left(run_info(row)) for row in found]

    async def _left(self, info: RunInfo) -> UnfinishedRun:
        steps = await self.readers.read(STEPS, (info.run_id,))
        found = await self.readers.read(PUBLISHED, (info.session, info.run_id))
        rows = tuple(decode_message(body) for _, body in steps)
        heard = tuple((str(event), str(call)) for event, call, *_ in found)
        left = UnfinishedRun(info, None, 0.0, rows=rows, published=heard)
        return with_missing_events(left, found)

    async def _waits(self, left: UnfinishedRun) -> None:
        """Publish that a run waits, if it was not told, or if its host ended before it was left."""
        told = [event for event, _ in left.published if event in ("run.waiting", "run.resumed")]
        if told[-1:] == ["run.waiting"]:
            return
        wanted = ListApprovals(run_id=left.info.run_id, state="pending")
        pending = tuple(one.id for one in reversed(await self.approvals.ask(wanted)))
        if pending:
            info = left.info
            await self.publish(info.session, info.user, ev.RunWaiting(pending), info.run_id)

    async def _approvals(self, found: Iterable[Row]) -> None:
        for approval, asked, answered in found:
            info = await self.approvals.ask(GetApproval(str(approval)))
            if info is None:
                continue
            if not asked:
                await self.publish(info.session, info.user, requested(info), info.run_id)
            if info.state != "pending" and not answered:
                await self.publish(info.session, info.user, resolved(info), info.run_id)

    async def _run(self, info: RunInfo) -> None:
        found = await self.readers.read(PUBLISHED, (info.session, info.run_id))
        known = published(found)
        if not known.accepted:
            await self._accepted(info)
        bodies = await self.readers.read(ROWS, (info.session, info.run_id))
        if bodies and not known.started and info.status != "interrupted":
            # Its model is not stored: the agents of this host are not known yet.
            started = ev.RunStarted(info.agent, "")
            await self.publish(info.session, info.user, started, info.run_id)
        for event in missing_events(info, [decode_message(body) for _, body in bodies], known):
            await self.publish(info.session, info.user, event, info.run_id)
