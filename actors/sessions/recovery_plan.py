"""Whether a run that the last host left can be taken up again, and from where. Pure.

Laws: what goes on has a result for each call whose effects may not happen twice; its rows are those
it had; of what was told, as much stands as there are rows for. Source: agent loop specification,
section 11; guarantees G14, G15.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import TypeAlias

import attrs
from msgspec.structs import replace

from motet.actors.agents.spec import PREFIX as HANDOFF
from motet.actors.agents.spec import handoff_name
from motet.actors.errors.log import logger
from motet.actors.runs.approval_gate import requested
from motet.actors.runs.suspend import resolved
from motet.actors.runs.tool_step import ARGUMENT_PREVIEW, PREVIEW
from motet.actors.storage.readers import Readers
from motet.actors.storage.recovery import PUBLISHED, STEPS, LeftRun, run_info, since
from motet.actors.storage.rows import decode_message
from motet.actors.storage.session_runs import RUN, runs_query
from motet.actors.tools.arguments import preview
from motet.actors.transcript.grammar import close_calls, violations
from motet.actors.transcript.input_guard import truncate_message
from motet.protocols import events as ev
from motet.protocols.approvals import (
    ApprovalProtocol,
    GetApproval,
    Resumption,
    SuspendedState,
    TurnState,
)
from motet.protocols.chat import (
    AssistantMessage,
    Call,
    ChatMessage,
    Outcome,
    ToolMessage,
    UserMessage,
)
from motet.protocols.limits import Limits
from motet.protocols.recovery import Given, RecoveryConfig
from motet.protocols.sessions import ListRuns, RunInfo
from motet.protocols.storage import Row
from motet.runtime import ActorRef

OPEN: Outcome = "unknown"
"""The outcome of a call of which only the beginning is on disk."""


def unfit(left: LeftRun, config: RecoveryConfig, now: float) -> str:
    """Why a run is not taken up again, whatever its agent; empty when it may be."""
    if left.aside:
        return "its session is quarantined"
    if left.given is None:
        return "the host ended during this run"  # and so did who waited for it
    if left.given.deps:
        return "the host ended during this run, which had deps that are not stored"
    if now - left.seen >= config.resume_within:
        return "the host ended during this run, and was away for long"
    if left.broken or _strays(left.rows):
        return "the host ended during this run, whose journal has gaps"
    return ""


def unrepeatable(left: LeftRun, is_repeatable: Callable[[str], bool]) -> str:
    """The name of a tool that may have been run, and may not be run again; empty if there is none.

    ``is_repeatable``: by the name of a tool.
    """
    return next((call.name for call in _open(left.rows) if not is_repeatable(call.name)), "")


def has_started(left: LeftRun) -> bool:
    """Whether its start was told."""
    return any(event == "run.started" for event, _ in left.heard)


def has_begun(left: LeftRun) -> bool:
    """Whether there is more than its input: what its gates have made of that is asked for anew."""
    return any(isinstance(row, AssistantMessage) for row in left.rows)


def whole(left: LeftRun, limits: Limits) -> tuple[ChatMessage, ...]:
    """The rows that it goes on from, its input first; open calls of the last answer have none."""
    rows = list(left.rows)
    if not isinstance(rows[0], UserMessage):
        rows.insert(0, UserMessage(truncate_message(left.info.text, limits.message_chars)))
    last = _last_calls(rows)
    if last is None:
        return close_calls(rows, OPEN)
    head = close_calls(rows[:last], OPEN)
    found = {row.call_id: row for row in rows[last + 1 :] if isinstance(row, ToolMessage)}
    calls = rows[last]
    assert isinstance(calls, AssistantMessage)
    results = (found[one.id] for one in calls.calls if one.id in found)
    return (*head, calls, *(row for row in results if _stands(row, left.info.agent)))


def resumption(
    left: LeftRun, given: Given, rows: Sequence[ChatMessage], limits: Limits
) -> Resumption:
    """Where it goes on; ``rows``: from :func:`whole`."""
    step = _last_calls(rows)
    before = tuple(rows) if step is None else tuple(rows[: step + 1])
    results = () if step is None else tuple(rows[step + 1 :])
    said = [row for row in rows if isinstance(row, AssistantMessage)]
    calls = sum(len(row.calls) for row in said)
    usage = left.info.usage
    turn = TurnState(len(said), calls, usage, usage, usage.cost or 0.0)
    batch = said[-1].calls if step is not None else ()
    announced, told = _heard(left, before, batch)
    return Resumption(
        SuspendedState(
            rows=before,
            step=len(before) - 1,
            last=len(before) - 1 + len(batch),
            role=given.role,
            limits=limits,
            turn=turn,
            elapsed=max(0.0, left.seen - left.info.updated),
            messages=min(messages(before), heard_messages(left)),
            spans=left.spans,
            started=left.started,
            errors=left.errors,
        ),
        tuple(row for row in results if isinstance(row, ToolMessage)),
        announced,
        told,
    )


def messages(rows: Sequence[ChatMessage]) -> int:
    """How many messages there were to be told of, by the rows that there are."""
    return sum(1 for row in rows if not isinstance(row, ToolMessage) and row.text)


def heard_messages(left: LeftRun) -> int:
    return sum(1 for event, _ in left.heard if event == "message")


def _heard(
    left: LeftRun, before: Sequence[ChatMessage], batch: Sequence[Call]
) -> tuple[frozenset[str], frozenset[str]]:
    """Calls of the last answer whose begin, and whose end, was told: models reuse ids."""
    earlier = Counter(
        call.id for row in before[:-1] if isinstance(row, AssistantMessage) for call in row.calls
    )
    told = Counter(left.heard)

    def of(event: str) -> frozenset[str]:
        return frozenset(one.id for one in batch if told[(event, one.id)] > earlier[one.id])

    return of("tool.call"), of("tool.result")


def _last_calls(rows: Sequence[ChatMessage]) -> int | None:
    """The place of the last answer if it has calls and nothing but results is behind it."""
    for at in range(len(rows) - 1, -1, -1):
        row = rows[at]
        if not isinstance(row, ToolMessage):
            return at if isinstance(row, AssistantMessage) and row.calls else None
    return None


def _open(rows: Sequence[ChatMessage]) -> list[Call]:
    """The calls of which no result is known."""
    found: dict[str, Call] = {}
    for row in rows:
        if isinstance(row, AssistantMessage):
            found |= {call.id: call for call in row.calls}
        elif isinstance(row, ToolMessage) and row.outcome != OPEN:
            found.pop(row.call_id, None)
    return [one for one in found.values() if not one.name.startswith(HANDOFF)]


def _stands(row: ToolMessage, agent: str) -> bool:
    """Whether a result is one. Of a transfer only the taking over counts: till then it is repeated,
    since it is noted in memory.
    """
    handed = not row.name.startswith(HANDOFF) or row.name == handoff_name(agent)
    return row.outcome != OPEN and handed


def _strays(rows: Sequence[ChatMessage]) -> bool:
    """Whether an answer is missing: its results are there, so its calls were run."""
    if not rows:
        return False
    closed = close_calls(rows, OPEN)
    lost = _results(rows) != _results(closed)
    return lost or any("two user rows" in problem for problem in violations(closed))


def _results(rows: Sequence[ChatMessage]) -> int:
    return sum(1 for row in rows if isinstance(row, ToolMessage) and row.outcome != OPEN)


# What the last host had done and could not tell any more.
#
# Events collect for some milliseconds before they are stored, so a kill takes the last ones
# along, though what they tell of is on disk: inputs, approvals, messages and calls of runs that
# have ended. Laws: what is told here is in no journal yet; it comes before the end of its run.
# Runs that go on tell the rest themselves.


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
"""The most suspended runs that are checked for events to republish."""

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
    """From rows of ``rows.PUBLISHED``."""
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
    """The run with the events to publish before it goes on; ``found``: rows of ``PUBLISHED``."""
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
class Republisher:
    """Of one host, when it starts. Never fails it: what cannot be read is not told again."""

    readers: Readers
    approvals: ActorRef[ApprovalProtocol]
    tell: Tell

    async def of_unfinished(self, kept: Iterable[LeftRun]) -> None:
        """Of runs that go on, now or when a person has decided; ``kept``: :func:`completed`."""
        try:
            going = list(kept)
            await self._inputs([left.info for left in going])
            for left in (*going, *await self._suspended()):
                for event in left.late:
                    await self.tell(left.info.session, event, left.info.run_id)
            await self._approvals(await self.readers.read(APPROVALS))
        except Exception as error:
            log.error("what the last host did is not told again", exc_info=error)

    async def end(self, session: str, run_id: str, end: ev.AnyEvent) -> None:
        """Tell the end of a run, and before it what was not told of it. Its journal is settled."""
        try:
            for row in await self.readers.read(RUN, (run_id,)):
                await self._run(run_info(row))
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

    async def _suspended(self) -> list[LeftRun]:
        found = await self.readers.read(*runs_query(ListRuns(status="waiting", limit=MOST)))
        return [await self._left(run_info(row)) for row in found]

    async def _left(self, info: RunInfo) -> LeftRun:
        steps = await self.readers.read(STEPS, (info.run_id,))
        told = await self.readers.read(PUBLISHED, (info.session, info.run_id, info.created))
        rows = tuple(decode_message(body) for _, body in steps)
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
        found = await self.readers.read(PUBLISHED, (info.session, info.run_id, info.created))
        known = heard(found)
        if not known.accepted:
            await self._accepted(info)
        bodies = await self.readers.read(ROWS, (info.session, info.run_id))
        for event in untold(info, [decode_message(body) for _, body in bodies], known):
            await self.tell(info.session, event, info.run_id)
        await self._approvals(await self.readers.read(APPROVALS_OF, (info.run_id,)))
