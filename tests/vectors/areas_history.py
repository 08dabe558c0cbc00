"""Areas of the history: limit, repair, pruning, tokens, cuts, summaries, the start pointer."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar, cast

import attrs
import msgspec
import trio

from motet.actors.sessions.compaction import SessionSummariser, SummaryTask
from motet.actors.storage.location import Location
from motet.actors.transcript.grammar import with_unique_ids
from motet.actors.transcript.history import (
    MISSING,
    Calibration,
    estimate,
    head,
    last_turns,
    repair,
    tail,
)
from motet.actors.transcript.summary import output_budget, truncate
from motet.actors.transcript.window import (
    Compacting,
    ContextWindow,
    Pruning,
    assistant_cutoff,
    cut,
    due_after_run,
    important_tail,
    prune,
    seconds_of,
    walk_back,
)
from motet.protocols.chat import AssistantMessage, Call, ChatMessage, ToolMessage, UserMessage
from motet.protocols.models import ModelRequest, ModelResponse
from motet.protocols.sessions import (
    FinishRun,
    LoadContext,
    MarkFlushed,
    ReadHistory,
    SessionContext,
    StoreSummary,
)
from tests.actors.runs.histories import rows_of
from tests.actors.sessions.store_builders import Store, open_store
from tests.vectors.cases import MAIN, Facts, Given, NotUnderstood, NotYet

T = TypeVar("T")

# Rows, there and back


@attrs.define
class Rows:
    """Rows of an input. What motet has no place for stays with the row that it came with."""

    rows: tuple[ChatMessage, ...]
    forms: dict[int, dict[str, object]]

    def back(self, rows: Iterable[ChatMessage]) -> list[dict[str, object]]:
        return [self.forms.get(id(row)) or _form(row) for row in rows]


def _rows(given: Given) -> Rows:
    if "messages" not in given:
        raise NotUnderstood("no messages")
    forms = [cast("dict[str, object]", item) for item in given.items("messages")]
    rows = tuple(_row(Given(form)) for form in forms)
    return Rows(rows, {id(row): form for row, form in zip(rows, forms, strict=True)})


def _row(form: Given) -> ChatMessage:
    text = form.text("content")
    match form.text("role"):
        case "user":
            return UserMessage(text)
        case "assistant":
            return AssistantMessage(text, _calls(form, "tool_calls"))
        case "tool":
            return ToolMessage(form.text("tool_call_id"), "", text)
        case role:
            raise NotUnderstood(f"role {role!r}")


def _calls(given: Given, key: str) -> tuple[Call, ...]:
    calls = map(Given, given.items(key))
    return tuple(Call(c.text("id"), c.text("name"), _arguments(c)) for c in calls)


def _arguments(call: Given) -> str:
    return json.dumps(call.get("arguments")) if "arguments" in call else ""


def _form(row: ChatMessage) -> dict[str, object]:
    match row:
        case ToolMessage():
            return {"role": "tool", "content": row.text, "tool_call_id": row.call_id}
        case UserMessage():
            return {"role": "user", "content": row.text}
        case AssistantMessage():
            calls: list[object] = [{"id": call.id, "name": call.name} for call in row.calls]
            form: dict[str, object] = {"role": "assistant", "content": row.text}
            return {**form, "tool_calls": calls} if calls else form


# Limit and repair


def limited(given: Given) -> Facts:
    rows = _rows(given)
    return {MAIN: rows.back(last_turns(rows.rows, given.number("limit")))}


def repaired(given: Given) -> Facts:
    rows = _rows(given)
    done = repair(rows.rows)
    results = [row for row in done.rows if isinstance(row, ToolMessage)]
    made_up = [row for row in results if row.text == MISSING]
    return {
        "dropped": done.dropped,
        "messages": rows.back(done.rows),
        "count": len(done.rows),
        "placeholder": made_up[0].text if made_up else None,
        "placeholder_ids_any_order": [row.call_id for row in made_up],
        "first_tool": results[0].call_id if results else None,
    }


def own_ids(given: Given) -> Facts:
    calls = with_unique_ids(_calls(given, "calls"), given.text("run_id"), given.number("iteration"))
    return {MAIN: [call.id for call in calls]}


# Pruning


def pruned(given: Given) -> Facts:
    """The original counts four characters for a token, which is what its provider counts here."""
    rows = _rows(given).rows
    chars = sum(len(row.text) for row in rows)
    try:
        how = _pruning(given.sub("config"))
    except msgspec.ValidationError as error:
        return {"error": str(error)}
    after = prune(
        rows,
        given.number("context_window"),
        calibration=Calibration(estimate(rows), chars // 4),
        how=how,
    )
    pairs = list(zip(rows, after, strict=True))
    changed = [at for at, (row, now) in enumerate(pairs) if row != now]
    return {
        "changed": [{"index": at, "content": after[at].text} for at in changed],
        "content_lengths": [len(row.text) for row in after],
    }


def _pruning(config: Given) -> Pruning:
    trim, clear = config.sub("soft_trim"), config.sub("hard_clear")
    fields = {
        "enabled": config.get("mode") != "off",
        "trim_at": config.get("soft_trim_ratio"),
        "clear_at": config.get("hard_clear_ratio"),
        "clear_chars": config.get("min_prunable_tool_chars"),
        "keep_assistants": config.get("keep_last_assistants"),
        "long": trim.get("max_chars"),
        "head": trim.get("head_chars"),
        "tail": trim.get("tail_chars"),
        "cleared": "" if clear.get("enabled") is False else clear.get("placeholder"),
    }
    return msgspec.convert({k: v for k, v in fields.items() if v is not None}, Pruning)


def cutoff(given: Given) -> Facts:
    at = assistant_cutoff(_rows(given).rows, given.number("keep_last"))
    return {MAIN: -1 if at is None else at}


def head_or_tail(given: Given) -> Facts:
    take = {"head": head, "tail": tail}[given.text("op")]
    return {MAIN: take(given.text("text"), given.number("n"))}


def shortened(given: Given) -> Facts:
    return {MAIN: truncate(given.text("text"), given.number("max"))}


def tail_matters(given: Given) -> Facts:
    return {MAIN: important_tail(_long_text(given))}


def _long_text(given: Given) -> str:
    if isinstance(given.value, str):
        return given.value
    digest = given.sub("$digest")
    end = digest.text("suffix")
    letter = digest.text("prefix")[:1]
    return letter * (digest.number("runes") - len(end.lstrip(letter))) + end.lstrip(letter)


def cache_ttl(given: Given) -> Facts:
    if not isinstance(given.value, str):
        raise NotUnderstood("a time")
    try:
        return {MAIN: seconds_of(given.value)}
    except ValueError as error:
        return {"error": str(error)}


# Tokens, budget, cuts


def tokens(given: Given) -> Facts:
    rows = _rows(given).rows
    counted = estimate(rows[: given.number("last_message_count")])
    calibration = Calibration(counted, given.number("last_prompt_tokens"))
    return {MAIN: calibration.tokens(estimate(rows))}


def budget(given: Given) -> Facts:
    if not isinstance(given.value, int):
        raise NotUnderstood("a number of tokens")
    return {MAIN: output_budget(given.value)}


def split(given: Given) -> Facts:
    keep = given.number("keep_config") or Compacting().keep_rows
    return {MAIN: cut(rows_of(given.text("roles"), 3), Compacting(keep_rows=keep))}


def chain_split(given: Given) -> Facts:
    return {MAIN: walk_back(rows_of(given.text("roles")), given.number("index"))}


# The start pointer, in a real store


@attrs.define
class FakeModel:
    requests: list[ModelRequest] = attrs.field(factory=list[ModelRequest])

    async def __call__(self, request: ModelRequest) -> ModelResponse:
        self.requests.append(request)
        return ModelResponse("This is what was said.")

    @property
    def prompt(self) -> str:
        return "\n".join(request.messages[0].text for request in self.requests)


def _in_store(job: Callable[[Store], Awaitable[T]]) -> T:
    async def world() -> T:
        with Location.memory() as location:
            async with open_store(location) as store:
                return await job(store)

    return trio.run(world)


async def _talk(store: Store, run: str, rows: int) -> None:
    await store.accept(run)
    talk = (
        AssistantMessage(f"message {at}") if at % 2 else UserMessage(f"message {at}")
        for at in range(rows)
    )
    await store.ref.ask(FinishRun(run, "completed", tuple(talk)))


async def _shown(store: Store) -> SessionContext:
    return await store.ref.ask(LoadContext("s"))


async def _set_start(store: Store, index: int, summary: str = "") -> None:
    await store.database.execute("UPDATE sessions SET start_pos = ?", index + 1)
    if summary:
        sql = "INSERT INTO summaries VALUES ('s', ?, 1, 0.0, ?)"
        await store.database.execute(sql, index + 1, summary)
    # A change that changes nothing, since no cycle begins at 0: the store forgets what it knew.
    await store.ref.ask(MarkFlushed("s", 0))


async def _start(store: Store) -> int:
    ((start,),) = await store.database.execute("SELECT start_pos FROM sessions")
    return cast("int", start) - 1


def pointer(given: Given) -> Facts:
    match given.get("op"):
        case "advance":
            return {MAIN: walk_back(rows_of(given.text("roles")), given.number("index"))}
        case "read_start":
            return {MAIN: _in_store(lambda store: _read_start(store, given))}
        case "next_start":
            return {MAIN: _in_store(lambda store: _next_start(store, given))}
        case _ if "write" in given:
            return {MAIN: _in_store(lambda store: _write_start(store, given))}
        case _:
            return _in_store(lambda store: _windowed(store, given))


async def _read_start(store: Store, given: Given) -> int:
    length, stored = given.number("history_len"), given.get("stored")
    await _talk(store, "r", length)
    if isinstance(stored, int):
        await _set_start(store, stored)
    elif stored is not None:
        raise NotYet("the start pointer is a number in its column, never a text")
    return length - len((await _shown(store)).rows)


async def _next_start(store: Store, given: Given) -> int:
    await _talk(store, "r", given.number("history_len"))
    await _set_start(store, given.number("current"))
    await _summarise(store, Compacting(rows=1, keep_rows=given.number("keep_last"), keep_share=0))
    return await _start(store)


async def _write_start(store: Store, given: Given) -> int:
    stored, wanted = given.number("stored"), given.number("write")
    await _talk(store, "r", max(stored, wanted) + 2)
    await _set_start(store, stored)
    await store.ref.ask(StoreSummary("s", stored + 1, wanted + 1, "it"))
    return await _start(store)


async def _summarise(store: Store, how: Compacting) -> FakeModel:
    model = FakeModel()
    about = SummaryTask("m", model, ContextWindow(compacting=how))
    await SessionSummariser("s", store.ref).after_run(about)
    return model


async def _windowed(store: Store, given: Given) -> Facts:
    """The original's tests lower its threshold as far as the case needs; eight rows do here."""
    await _talk(store, "r", given.number("history"))
    await _set_start(store, given.number("start"), given.text("old_summary"))
    window = len((await _shown(store)).rows)
    keep = given.number("keep", 4)
    model = await _summarise(store, Compacting(rows=8, keep_rows=keep, keep_share=0))
    return {
        "window": window,
        "llm_called": bool(model.requests),
        "prompt": model.prompt,
        "start": await _start(store),
        "history_after": len(await store.ref.ask(ReadHistory("s", None, 200))),
    }


# After the run


def after_run(given: Given) -> Facts:
    if "added_during" in given:
        return _in_store(lambda store: _added_during(store, given))
    sizes = (given.number("messages"), given.number("tokens"), given.number("window"))
    return {"compact": due_after_run(*sizes)}


async def _added_during(store: Store, given: Given) -> Facts:
    keep, added = given.number("keep"), given.number("added_during")
    await _talk(store, "before", given.number("history_at_start"))

    async def meanwhile(_request: ModelRequest) -> ModelResponse:
        await _talk(store, "meanwhile", added)
        return ModelResponse("This is what was said.")

    how = Compacting(keep_rows=keep, keep_share=0)
    await SessionSummariser("s", store.ref).after_run(
        SummaryTask("m", meanwhile, ContextWindow(compacting=how))
    )
    rows = len((await _shown(store)).rows)
    return {"good": f"{rows} rows stay ({keep} + {rows - keep})", "upstream": None}


def flush(given: Given) -> Facts:
    """A marker of 0 is how the original begins: no cycle has been flushed."""
    if "compaction_count" not in given:
        raise NotUnderstood("no cycle")
    return _in_store(lambda store: _flushed(store, given))


async def _flushed(store: Store, given: Given) -> Facts:
    count, last = given.number("compaction_count"), given.number("last_flush")
    await _talk(store, "r", 60 + 2 * count)
    for cycle in range(count + 1):
        if last and cycle == last:
            await store.ref.ask(MarkFlushed("s", 2 * cycle + 1))
        if cycle < count:
            await store.ref.ask(StoreSummary("s", 2 * cycle + 1, 2 * cycle + 3, "it"))
    ran: list[bool] = []

    async def note(_context: SessionContext) -> bool:
        ran.append(True)
        return True

    about = SummaryTask("m", FakeModel(), ContextWindow(), flush=note)
    await SessionSummariser("s", store.ref).after_run(about)
    return {"run": bool(ran)}
