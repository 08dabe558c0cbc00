"""The past, for a run: results of runs that ended before, and the memory of its agent.

Memory is read before a turn and given the turn afterwards. It may help and can never harm: reading
and writing raise nothing and take at most :data:`DEADLINE`, whatever the memory does; a failure is
logged, is a ``warning`` event, and the turn goes on without memory (seed 001).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import trio
from msgspec import UNSET
from msgspec.structs import replace

from motet.actors.agents.output import OutputForm, Unreadable
from motet.actors.runs.run import Run
from motet.actors.runs.services import Services
from motet.actors.transcript.grammar import said_before_refusal
from motet.protocols.chat import AssistantMessage, ChatMessage
from motet.protocols.errors import NotFound
from motet.protocols.memory import RECALLED, extra_context
from motet.protocols.room_copies import fixed_lines
from motet.protocols.run import RunResult
from motet.protocols.sessions import FinishRun, GetRun, ReadHistory, SessionStoreMessage
from motet.runtime import ActorRef
from motet.runtime.describe import summarize
from motet.runtime.outside import foreign_code

PAGE = 200

ENDED = ("completed", "limited")
"""Statuses of runs that can have an output."""


async def recall(
    run_id: str,
    session: str,
    store: ActorRef[SessionStoreMessage],
    form: OutputForm | None = None,
    late: FinishRun | None = None,
) -> RunResult[Any]:
    """The stored run as a result. Raises ``NotFound`` when there is none.

    ``form``: the type of its agent's output; ``late``: its end, if that is not stored yet. Failures
    of calls are not stored apart, so ``errors`` is empty.
    """
    info = await store.ask(GetRun(run_id))
    if info is None:
        raise NotFound(f"no run {run_id!r}")
    if late is not None:
        info = replace(info, status=late.status, usage=late.usage, detail=late.detail)
        rows = late.rows
    else:
        history = await store.ask(ReadHistory(session, None, PAGE))
        rows = tuple(item.row for item in history if item.run_id == run_id)
    answers = [row.text for row in rows if isinstance(row, AssistantMessage) and not row.note]
    text = answers[-1] if answers else ""
    if info.status == "refused" and rows:
        text = said_before_refusal(rows[-1])
    return RunResult(
        run_id=run_id,
        session=session,
        agent=info.agent,
        status=info.status,
        text=text,
        usage=info.usage,
        limit=info.detail if info.status == "limited" else "",
        detail=info.detail,
        rows=rows,
        structured=form is not None,
        value=UNSET if form is None or info.status not in ENDED else _reread(form, text),
    )


def _reread(form: OutputForm, text: str) -> object:
    """The output in a stored answer; ``UNSET`` for a text that is not of the form."""
    try:
        return form.read(text).value
    except Unreadable:
        return UNSET


# Memory

DEADLINE = 1.0
"""Seconds that a turn waits for its memory."""

T = TypeVar("T")


async def read_memory(services: Services, run: Run) -> str:
    """The memories of an agent that has some, for its system prompt; empty if none fits."""
    memory = services.memory
    if memory is None:
        return ""

    async def read() -> str:
        return extra_context(await memory.read(run.input.text, run.session, RECALLED))

    return fixed_lines(run.carried.fixes, await _guarded(services, run, "read", read) or "")


async def write_memory(services: Services, run: Run, rows: Sequence[ChatMessage]) -> None:
    """Give a completed turn to the memory."""
    memory = services.memory
    if memory is not None:
        await _guarded(services, run, "written", lambda: memory.observe(rows, run.session))


async def _guarded(
    services: Services, run: Run, what: str, job: Callable[[], Awaitable[T]]
) -> T | None:
    """The result of ``job``; None after a warning with the reason. Cancellation passes."""
    problem = f"no answer within {DEADLINE:g} s"
    with trio.move_on_after(DEADLINE):
        try:
            with foreign_code:
                return await job()
        except Exception as error:
            report = await services.errors.report(run.origin("memory"), error)
            problem = summarize(error)
            problem += f" [Error ID: {report.error_id}]" if report.error_id else ""
    message = f"the memory could not be {what}: {problem}"
    await services.events.warn(run, "memory", message, grave=False)
    return None
