"""Areas of the error channel: summaries, ids, the store, the texts, the details."""

from __future__ import annotations

import re
import time
from collections.abc import AsyncGenerator, Callable, Collection, Iterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from itertools import chain, repeat
from secrets import token_hex
from typing import TypeVar, cast

import attrs
import trio
import trio.testing

from motet.actors.errors.classify import result_text
from motet.actors.storage.error_spool import ErrorSpool
from motet.actors.storage.location import Location
from motet.actors.telemetry.error_channel import ErrorChannel, Reported, error_detail
from motet.protocols.chat import JsonObject
from motet.protocols.error_records import Origin
from motet.protocols.errors import (
    ErrorProtocol,
    ErrorRecord,
    GetError,
    ListErrors,
    StoredError,
    StoreError,
)
from motet.protocols.events import AnyEvent, event_name
from motet.protocols.storage import DatabaseClosed, StorageError
from motet.runtime import ActorDead, ActorRef
from motet.runtime.describe import new_id, summarize
from motet.runtime.exceptions import serialize_error
from tests.actors.errors.builders import open_store
from tests.vectors.areas_host import advertised, executed_calls
from tests.vectors.cases import MAIN, Facts, Given, NotUnderstood
from tests.vectors.compare import AllOf
from tests.vectors.logs import kept_logs

T = TypeVar("T")

KNOWN_ID = "err_20241121_230334_abc123"
_RFC3339_UTC = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|\+00:00)")
_ANY_TEXTS = [
    "", " ", "\n\n", "\0", "x" * 5000, "a\nb" * 900, "é" * 101, "日本語" * 90, "🙂" * 100,
    "\ud800", "\r\n x \r", "\u2028y\u2029", "Code X: y", "a\x85b\x1cc", "\ufeff", "...",
    "x" * 98 + " y",
]  # fmt: skip


# Summaries and ids


def summary(given: Given) -> Facts:
    if "any" in given:
        all_of = AllOf(summarize(text) for text in _ANY_TEXTS)
        return {MAIN: all_of, "idempotent": AllOf(map(summarize, all_of)) == all_of}
    error, code = _error(given)
    if "via" in given:
        made = trio.run(_report, given, error, code).summary
    else:
        made = summarize(error, code)
    return {MAIN: made, "summary": made, "idempotent": summarize(made) == made}


def error_id(given: Given) -> Facts:
    if "lookup" in given:
        return trio.run(_detail, Given({"error_id": given.text("lookup")}))
    if "store" in given:
        stored = trio.run(_store_and_get, given)
        return {MAIN: stored.id, "id": stored.id, "timestamp": stored.timestamp}
    if "ids" in given:
        return {"sorted": sorted(given.texts("ids"))}
    if "samples" in given or "count" in given:
        number = given.number("samples", given.number("count"))
        ids = [new_id(1.0, token_hex) for _ in range(number)]
        return {MAIN: AllOf(one[-6:] for one in ids), "distinct": len(set(ids))}
    if "now" in given:
        made = new_id(_seconds(given.text("now")), lambda n: given.text("random_hex")[: 2 * n])
        return {MAIN: made, "id": made}
    raise NotUnderstood(str(given))


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).astimezone(UTC).timestamp()


# The store


def store(given: Given) -> Facts:
    if "store_raises" in given:
        reported = trio.run(_report, given, "boom", "")
        return {
            "formatter_output": reported.text,
            "logged": reported.logged,
            "event": reported.event,
        }
    if "store_after_close" in given:
        return {"error": trio.run(_store_after_close)}
    if "raw_error_text" in given:
        return {"stored_as": trio.run(_stored_as, given.text("raw_error_text"))}
    if "exception_text" in given:
        whole = serialize_error(given.text("exception_text"))
        stored = trio.run(_store_and_get, Given({"store": {"raw_error": whole}}))
        return {"raw_error": stored.raw_error, "short_summary": stored.short_summary}
    if "store" in given or "get" in given:
        return trio.run(_round_trip, given)
    if "caller_session" in given and "rows" not in given:
        return {MAIN: trio.run(_scope, given.text("caller_session"))}
    if "filters" in given:
        rows = given.items("rows") or _rows_around(given)
        listed = trio.run(_listed, [Given(row) for row in rows], given.sub("filters"))
        return {MAIN: _as_bound(listed) if "rows" not in given else listed, "count": len(listed)}
    raise NotUnderstood(str(given))


def _rows_around(given: Given) -> list[object]:
    """Rows on both sides of a start that comes without rows."""
    start = given.sub("filters").seconds("start")
    if start is None:
        raise NotUnderstood(str(given))
    return [{"id": name, "timestamp": start + by} for name, by in (("before", -1), ("at", 0))]


def _as_bound(listed: list[str]) -> str:
    return "treated as a real bound" if listed == ["at"] else f"lists {listed}"


async def _listed(rows: list[Given], filters: Given) -> list[str]:
    """The names of the rows that a list finds, in its order."""
    clock = _Clock()
    names: dict[str, str] = {}
    async with _opened(clock) as ref:
        for row in rows:
            clock.now = float(str(row.get("timestamp", row.get("stored_at", 0.0))))
            session, tool = row.text("session_id", "s1"), row.text("tool_name", "a")
            stored = await ref.ask(StoreError(session, tool, {}, "x"))
            names[stored.id] = row.text("id")
        found = await ref.ask(
            ListErrors(
                session_id=filters.text("session_id") or None,
                tool_name=filters.text("tool_name") or None,
                start=filters.seconds("start"),
                end=filters.seconds("end"),
                limit=filters.number("limit"),
            )
        )
    return [names[error.id] for error in found]


async def _scope(session: str) -> str:
    async with _opened() as ref:
        for owner in (session, f"{session}-other"):
            await ref.ask(StoreError(owner, "t", {}, "x"))
        everything = await ref.ask(ListErrors())
        own = await ref.ask(ListErrors(session_id=session))
    if len(everything) == 2 and {error.session_id for error in own} == {session}:
        return "operators may list all; a tool call may list only its own session"
    return f"operators list {len(everything)}, a session {len(own)}"


async def _store_and_get(given: Given) -> StoredError:
    fields = given.sub("store")
    raw = cast("JsonObject", fields.get("raw_error", {"message": "boom"}))
    request = StoreError(
        fields.text("session_id", "s1"), fields.text("tool_name", "t"), raw,
        fields.text("short_summary", "boom"),
    )  # fmt: skip
    async with _opened() as ref:
        stored = await ref.ask(request)
        found = await ref.ask(GetError(stored.id, stored.session_id))
    assert found == stored
    return stored


async def _round_trip(given: Given) -> Facts:
    """Store and get: in the same session, in another one, or by an id that was never stored."""
    fields = given.sub("store")
    own_session = fields.text("session_id", "s1")
    session = given.text("get_session", given.text("caller_session", own_session))
    if "get" in given or session != own_session:
        async with _opened() as ref:
            made = await ref.ask(StoreError(own_session, "t", {}, "x"))
            found = await ref.ask(GetError(given.text("get", made.id), session))
        return {MAIN: found, "get": found, "error": None if found else "not found"}
    stored = await _store_and_get(given)
    own = abs(stored.timestamp - time.time()) < 60
    seed = ("id", "timestamp", "session_id", "tool_name", "raw_error", "short_summary")
    row = {name: getattr(stored, name) for name in seed}
    return {"get": {**row, "timestamp": stored.timestamp if own else None}, "id": stored.id}


async def _stored_as(text: str) -> str:
    """What a text of an error is kept as: itself where it is JSON, or wrapped."""
    stored = await _store_and_get(Given({"store": {"raw_error": serialize_error(text)}}))
    wrapped = stored.raw_error == {"message": text}
    return 'wrapped in {"message": ...}' if wrapped else "unchanged"


async def _store_after_close() -> str:
    async with _opened() as ref:
        pass
    try:
        await ref.ask(StoreError("s", "t", {}, "x"))
    except (ActorDead, DatabaseClosed):
        return "closed"
    return ""


# What the model reads


def formatting(given: Given) -> Facts:
    if "calls" in given:
        return executed_calls(cast("list[tuple[str, JsonObject]]", given.items("calls")))
    if given.sub("result").get("success") is True:
        data = given.sub("result").get("data")
        unserializable = isinstance(data, str) and data.startswith("<object")
        return {MAIN: result_text(object() if unserializable else data)}
    if "summary_len" in given:
        given = Given(
            {**given.fields, "error": "x" * given.number("summary_len"), "stored_id": KNOWN_ID}
        )
    error, code = _error(given)
    reported = trio.run(_report, given, error, code)
    return {MAIN: reported.text, "text": reported.text, "stored": reported.stored}


def _error(given: Given) -> tuple[object, str]:
    """The error of an input, in whatever form it gives it, and a code beside it."""
    if "result" in given:
        return given.sub("result").get("error") or "", ""
    for key in ("error", "object", "text", "exception", "message"):
        if key in given:
            return given.get(key), given.text("code")
    if "store" in given:
        return "boom", ""
    objects: list[object] = [given.get(key) for key in given.fields if given.sub(key).fields]
    if objects or "code" in given:
        return (objects or [given.value])[0], ""
    if "kind" in given:
        return "", ""
    raise NotUnderstood(str(given))


@attrs.frozen
class _Reported:
    text: str
    stored: bool
    summary: str
    logged: bool
    event: str


async def _report(given: Given, error: object, code: str) -> _Reported:
    """Report through the channel: with a store when the input names an id, or one that fails."""
    events: list[AnyEvent] = []
    tool = given.text("tool", "X")
    clock, digits = _Clock(), ""
    if identity := given.text("stored_id"):
        clock.now, digits = _seconds(f"{identity[4:12]}T{identity[13:19]}Z"), identity[-6:]
    async with _store_for(given, clock, digits) as (spool, ref):
        channel = ErrorChannel(spool, lambda _, event: events.append(event))
        with kept_logs() as logs:
            made: Reported = await channel.report(Origin("s", tool, "r"), error, code)
        kept = await ref.ask(ListErrors()) if ref and not _fails(given) else ()
    return _Reported(
        made.text,
        bool(kept),
        kept[0].short_summary if kept else summarize(error, code),
        bool({"warning", "error"} & set(logs)),
        " ".join(event_name(event).replace(".", "_") for event in events),
    )


def _fails(given: Given) -> bool:
    return "store_raises" in given or str(given.get("store")).startswith("raises")


@asynccontextmanager
async def _store_for(
    given: Given, clock: Callable[[], float], digits: str
) -> AsyncGenerator[tuple[ErrorSpool | None, ActorRef[ErrorProtocol] | None]]:
    if _fails(given):
        spool = ErrorSpool(_disk_full)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(spool.run)
            await trio.testing.wait_all_tasks_blocked()
            yield spool, None
            nursery.cancel_scope.cancel()
    elif digits or "via" in given or given.text("tool").startswith("get_error_detail"):
        with Location.memory() as location:
            async with open_store(location, clock, _hex_source(digits)) as opened:
                yield opened.spool, opened.store
    else:
        yield None, None


# Details


def detail(given: Given) -> Facts:
    if "error_id" in given or not given.fields:
        return trio.run(_detail, given)
    if any(key.startswith("session_") for key in given.fields):
        counts = {key: given.number(key) for key in given.fields if key.endswith("_errors")}
        return {
            f"advertised_{key.split('_')[1]}": advertised("get_error_detail", errors)
            for key, errors in counts.items()
        }
    raise NotUnderstood(str(given))


async def _detail(given: Given) -> Facts:
    """Ask for a detail where one error, :data:`KNOWN_ID` of session ``s``, is stored."""
    session = given.text("session", given.text("caller_session", "s"))
    if _fails(given):
        with Location.memory() as location:
            async with open_store(location) as opened:
                await opened.readers.aclose()
                answer = await error_detail(opened.store, session, given.get("error_id"))
    else:
        async with _opened(_Clock(_seconds("2024-11-21T23:03:34Z")), KNOWN_ID[-6:]) as ref:
            await ref.ask(StoreError("s", "t", {"message": "boom"}, "boom"))
            answer = await error_detail(ref, session, given.get("error_id"))
    data = cast("JsonObject", answer.get("data") or {})
    error = cast("JsonObject", answer.get("error") or {})
    utc = _RFC3339_UTC.fullmatch(str(data.get("timestamp"))) is not None
    stated = {"timestamp_format": "RFC 3339, UTC" if utc else "another"} if data else {}
    return {MAIN: data, "success": answer["success"], **data, **error, **stated}


# Stores


@attrs.define
class _Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@asynccontextmanager
async def _opened(
    clock: Callable[[], float] = time.time, first_digits: str = ""
) -> AsyncGenerator[ActorRef[ErrorProtocol]]:
    with Location.memory() as location:
        async with open_store(location, clock, _hex_source(first_digits)) as opened:
            yield opened.store


def _hex_source(first_digits: str) -> Callable[[int], str]:
    digits: Iterator[str] = chain([first_digits] if first_digits else [], repeat(""))
    return lambda n: next(digits) or token_hex(n)


async def _disk_full(records: Sequence[ErrorRecord]) -> Collection[str]:
    raise StorageError(f"disk full: {len(records)}")
