"""The result of a run that ended before, read back from the store."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET

from motet.actors.agent.output.form import OutputForm, Unreadable
from motet.actors.result import RunResult
from motet.actors.sessions.store import SessionStoreMessage
from motet.protocols.chat import AssistantMessage
from motet.protocols.errors import NotFound
from motet.protocols.sessions import GetRun, ReadHistory
from motet.runtime import ActorRef

PAGE = 200


async def recall(
    run_id: str,
    session: str,
    store: ActorRef[SessionStoreMessage],
    form: OutputForm | None = None,
) -> RunResult[Any]:
    """The stored run as a result. Raises ``NotFound`` when there is none.

    ``form``: what its agent's answers are read by. Its calls' failures are not stored apart, so
    ``errors`` is empty.
    """
    info = await store.ask(GetRun(run_id))
    if info is None:
        raise NotFound(f"no run {run_id!r}")
    history = await store.ask(ReadHistory(session, None, PAGE))
    rows = tuple(item.row for item in history if item.run_id == run_id)
    answers = [row.text for row in rows if isinstance(row, AssistantMessage) and not row.note]
    text = answers[-1] if answers else ""
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
        value=UNSET if form is None else _reread(form, text),
    )


def _reread(form: OutputForm, text: str) -> object:
    """The output in a stored answer; what was said when there was none is not of the form."""
    try:
        return form.read(text).value
    except Unreadable:
        return UNSET
