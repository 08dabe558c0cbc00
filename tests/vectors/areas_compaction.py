"""Conversations that are too long, in the words of the error channel's vectors."""

from __future__ import annotations

import re

import trio
from trio.testing import MockClock

import motet
from motet.actors.storage.location import Location
from motet.actors.transcript.history import estimate
from motet.actors.transcript.window import (
    COMPACTING,
    WINDOW,
    ContextWindow,
    Pruning,
    cut,
    due_after_run,
    prune,
)
from motet.protocols.chat import AssistantMessage, Call, ChatMessage, ToolMessage, UserMessage
from motet.protocols.errors import Llm
from motet.protocols.models import ModelFailure
from motet.protocols.sessions import LoadContext, ReadHistory, StoreSummary
from motet.protocols.storage import StorageError
from tests.actors.sessions.store_builders import open_store
from tests.scripted import Scripted, say
from tests.vectors.cases import MAIN, Facts, Given, NotUnderstood
from tests.vectors.logs import kept_logs

FULL = ModelFailure("the prompt is too long", kind="context_exhausted", status=400)


def compaction(given: Given) -> Facts:
    if "penalty" in given:
        return _marks_after_refusal()
    if "row_bytes" in given:
        return {"evicted": _evicted(given.number("row_bytes"), given.number("stub_bytes"))}
    if "current_turn_tokens" in given:
        return trio.run(_too_long_a_turn, clock=MockClock(autojump_threshold=0))
    if "store" in given:
        return trio.run(_refused_summary)
    raise NotUnderstood(str(given))


def segments(given: Given) -> Facts:
    if "layers" in given:
        return {MAIN: _sent_order()}
    rows = _talk(given.number("messages"))
    due = due_after_run(len(rows), estimate(rows), WINDOW)
    compressed = (cut(rows) or 0) if due else 0
    return {"compressed": compressed, "kept": len(rows) - compressed}


def _marks_after_refusal() -> Facts:
    """In per cent, of the view that goes on after a provider has refused a request."""
    view, rows = ContextWindow(history=_talk(20)), (UserMessage("go on"),)
    plan = view.plan(view.prepare(rows), rows, overflow=True)
    assert plan is not None
    how = view.compacted(plan, None, rows).compacting
    return {"high": round(how.share * 100), "low": round(how.keep_share * 100)}


def _evicted(row: int, stub: int) -> bool:
    """Whether pruning takes a single result of this size out of a request that is too full."""
    call = Call("c1", "read")
    rows = [
        UserMessage("go"),
        AssistantMessage("", (call,)),
        ToolMessage("c1", "read", "x" * row),
        *_talk(8),
    ]
    return prune(rows, 1, how=Pruning(cleared="s" * stub))[2] != rows[2]


async def _too_long_a_turn() -> Facts:
    """A turn that no model takes, and the next one of its session."""
    model = Scripted(FULL, say("fits"))
    agent = motet.Agent("a", model=model)
    with kept_logs():
        async with motet.open_host() as host:
            failed = await host.run(agent, "x" * 10_000, session="s", check=False)
            after = await host.run(agent, "shorter", session="s", check=False)
    asked = model.requests[0].messages[-1].text
    return {
        "error": failed.error.kind if isinstance(failed.error, Llm) else None,
        "recoverable": after.output == "fits",
        "current_turn_unchanged": asked == "x" * 10_000,
    }


async def _refused_summary() -> Facts:
    """A summary that cannot be stored, of a session with eight rows."""
    with Location.memory() as location:
        async with open_store(location) as store:
            await store.complete("r1")
            await store.complete("r2")
            context = await store.ref.ask(LoadContext("s"))
            history = await store.ref.ask(ReadHistory("s"))
            await store.database.execute(
                "CREATE TRIGGER refuse BEFORE INSERT ON summaries"
                " BEGIN SELECT raise(ABORT, 'refused'); END"
            )
            try:
                await store.ref.ask(StoreSummary("s", 1, 5, "they said hi"))
                refused = False
            except StorageError:
                refused = True
            same = history == await store.ref.ask(ReadHistory("s"))
            shown = context == await store.ref.ask(LoadContext("s"))
    return {"messages_unchanged": refused and same and shown}


def _sent_order() -> list[str]:
    """What stands where in a request: its system prompt, a summary, the rows after it."""
    rows = _talk(4)
    messages = ContextWindow(history=rows, summary="summary").prepare(()).messages
    front = [row for row in messages if row not in rows]
    assert messages[len(front) :] == rows
    said = [f"user: {word}" for row in front for word in re.findall(r"^summary$", row.text, re.M)]
    return ["system: rom", *said, "l1 in order"]


def _talk(rows: int) -> tuple[ChatMessage, ...]:
    return tuple(
        AssistantMessage(f"answer {n}") if n % 2 else UserMessage(f"question {n}")
        for n in range(rows)
    )


def as_designed(facts: Facts) -> bool:
    """Whether the marks are those of the specification, not lowered."""
    own = (round(COMPACTING.share * 100), round(COMPACTING.keep_share * 100))
    return (facts.get("high"), facts.get("low")) == own
