"""``motet sessions``: the stored sessions, one transcript, and its export.

Reading works beside a running host. Changes lock the state, since a host that has it open would
not notice them.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator
from contextlib import AbstractContextManager, aclosing, nullcontext
from functools import partial
from pathlib import Path
from typing import TextIO

import msgspec
import trio

from motet.actors.host import open_host
from motet.actors.hosting.generations import secrets_of
from motet.actors.storage import session_transcripts as rows
from motet.actors.storage.location import KEY_BYTES, KEY_FILE
from motet.actors.storage.readers import Readers
from motet.cli.errors import clock_time
from motet.cli.exits import OK, USAGE
from motet.cli.render import cut, in_json, one_line, visible
from motet.cli.screen import console
from motet.cli.setup import Setup
from motet.cli.stored import reading
from motet.protocols.chat import ANSWERS, AssistantMessage, ChatMessage, ToolMessage, UserMessage
from motet.protocols.errors import ConfigError, NotFound
from motet.protocols.events import SessionCompacted
from motet.protocols.redaction.redact import redact, registered_secrets
from motet.protocols.sessions import HistoryRow, ListSessions, SessionInfo

RESULT_LINES = 12
CALL_CHARS = 200


class SessionHead(msgspec.Struct, frozen=True, tag="session", tag_field="line"):
    """The first line of an export."""

    session: SessionInfo


class RowLine(msgspec.Struct, frozen=True, tag="row", tag_field="line"):
    """One row of the transcript in an export, in order."""

    row: HistoryRow


def list_sessions(setup: Setup, limit: int, *, json: bool, children: bool = False) -> int:
    """Print the sessions, last used first; with ``children`` sub-agents' too."""
    found = trio.run(_listed, setup.state, ListSessions(None, limit, children=children))
    if json:
        print(in_json(found))
    elif found:
        _print_table(found)
    else:
        print(f"no sessions in {setup.state}", file=sys.stderr)
    return OK


def show_session(setup: Setup, session: str, limit: int, *, json: bool) -> int:
    """Print the newest ``limit`` rows of a transcript. Raises ``NotFound``."""
    found = trio.run(_newest, setup.state, _named(session, "show"), limit)
    if json:
        print(in_json(found))
        return OK
    for row in found:
        print("\n".join(lines_of(row.row)))
    return OK


def export_session(
    setup: Setup, session: str, output: Path | None, *, redacted: bool = False
) -> int:
    """Write a session as JSON lines: first the session, then every row. Raises ``NotFound``.

    A file appears whole or not at all. ``redacted``: without secrets, by the rules of the
    configuration; their masks have the tags that they have in the errors of the same state.
    """
    session = _named(session, "export")
    with rules_of(setup) if redacted else nullcontext():
        if output is None:
            trio.run(_export, setup.state, session, sys.stdout, redacted)
            return OK
        part = output.with_name(f"{output.name}.part")
        try:
            with part.open("w", encoding="utf-8") as file:
                written = trio.run(_export, setup.state, session, file, redacted)
            part.replace(output)
        finally:
            part.unlink(missing_ok=True)
    print(f"{written} rows in {output}", file=sys.stderr)
    return OK


def reset_session(setup: Setup, session: str) -> int:
    """Let the model start from an empty history. Raises ``NotFound``, ``StateInUse``."""
    trio.run(partial(_reset, setup, _named(session, "reset")))
    print(
        f"{one_line(session)} starts from an empty history; its stored rows stay", file=sys.stderr
    )
    return OK


def compact_session(setup: Setup, session: str) -> int:
    """Have a session summarised now. Raises ``NotFound``, ``StateInUse``, ``UnknownName``."""
    done = trio.run(partial(_compact, setup, _named(session, "compact")))
    if done is None:
        print(f"{one_line(session)} is too short to be summarised", file=sys.stderr)
    else:
        print(
            f"a summary stands for rows {done.start} to {done.end} of {one_line(session)} now; "
            "what is stored stays",
            file=sys.stderr,
        )
    return OK


def delete_session(setup: Setup, session: str, *, sure: bool) -> int:
    """Delete a session, if the user confirms it. Raises as above."""
    session = _named(session, "delete")
    if not sure and not _agrees(session):
        print("nothing was deleted", file=sys.stderr)
        return USAGE
    deleted = trio.run(partial(_delete, setup, session))
    print(f"deleted {one_line(session)}: {deleted} rows in all", file=sys.stderr)
    return OK


def lines_of(row: ChatMessage) -> list[str]:
    """One row of a transcript as lines for a terminal."""
    match row:
        case UserMessage(text=text, author=author):
            return [f"{one_line(author or 'user')}: {visible(text)}"]
        case AssistantMessage(text=text, calls=calls):
            said = [f"assistant: {visible(text)}"] if text else []
            return said + [
                f"→ {one_line(call.name)} {cut(one_line(call.arguments), CALL_CHARS)}"
                for call in calls
            ]
        case ToolMessage(name=name, text=text, outcome=outcome):
            mark = "✓" if outcome in ANSWERS else "✗"
            lines = visible(text).splitlines()
            more = [f"  … {len(lines) - RESULT_LINES} more lines"] * (len(lines) > RESULT_LINES)
            return [
                f"{mark} {one_line(name)} {outcome}",
                *(f"  {line}" for line in lines[:RESULT_LINES]),
                *more,
            ]


def _named(session: str, what: str) -> str:
    if not session:
        raise ConfigError(f"which one? motet sessions {what} KEY; `motet sessions` lists them")
    return session


def _agrees(session: str) -> bool:
    if not sys.stdin.isatty():
        raise ConfigError("deleting cannot be undone: say --yes if you are sure")
    answer = input(f"Delete {one_line(session)} for ever, with its results and errors? [y/N] ")
    return answer.strip().lower() in ("y", "yes")


async def _listed(state: Path, request: ListSessions) -> tuple[SessionInfo, ...]:
    async with reading(state) as readers:
        found = await readers.read(*rows.sessions_query(request))
        return tuple(rows.session_info(row) for row in found)


async def _newest(state: Path, session: str, limit: int) -> tuple[HistoryRow, ...]:
    async with reading(state) as readers:
        await _session(readers, session)
        found = await readers.read(*rows.history_query(session, None, limit))
        return tuple(rows.history_row(row) for row in reversed(found))


def rules_of(setup: Setup) -> AbstractContextManager[None]:
    """The rules and the key with which hosts of this configuration redact."""
    own, file = setup.config.redaction, setup.state / KEY_FILE
    key = file.read_bytes() if file.is_file() else b""  # made by the first host, not here
    given = key if len(key) == KEY_BYTES else None
    return registered_secrets(secrets_of(setup.config), own=own, key=given)


async def _export(state: Path, session: str, file: TextIO, redacted: bool) -> int:
    written = 0
    async with reading(state) as readers:
        _write(file, SessionHead(await _session(readers, session)), redacted=redacted)
        async with aclosing(_all_rows(readers, session)) as found:
            async for row in found:
                _write(file, RowLine(row), redacted=redacted)
                written += 1
    return written


async def _all_rows(readers: Readers, session: str) -> AsyncGenerator[HistoryRow]:
    """Every row in order, a page at a time: a transcript may be larger than the memory."""
    at = 0
    while page := await readers.read(rows.PAGE, (session, at, rows.HISTORY_LIMIT)):
        for row in map(rows.history_row, page):
            yield row
            at = row.pos


def _write(file: TextIO, line: SessionHead | RowLine, *, redacted: bool) -> None:
    file.write(exported(line, redacted=redacted) + "\n")


def exported(line: object, *, redacted: bool) -> str:
    """A line of an export as JSON; without secrets, by the rules that are in force."""
    return in_json(redact(msgspec.to_builtins(line)) if redacted else line)


async def _session(readers: Readers, session: str) -> SessionInfo:
    found = await readers.read(rows.SESSION, (session,))
    if not found:
        raise NotFound(f"no session {session!r}; `motet sessions` lists them")
    return rows.session_info(found[0])


async def _reset(setup: Setup, session: str) -> None:
    async with open_host(setup.state, config=setup.config, agents=setup.agents()) as host:
        await host.reset(session)


async def _compact(setup: Setup, session: str) -> SessionCompacted | None:
    async with open_host(setup.state, config=setup.config, agents=setup.agents()) as host:
        return await host.compact(session)


async def _delete(setup: Setup, session: str) -> int:
    async with open_host(setup.state, config=setup.config, agents=setup.agents()) as host:
        return await host.delete(session)


def _print_table(found: tuple[SessionInfo, ...]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for heading in ("used", "session", "agent", "owner", "rows", ""):
        table.add_column(heading, no_wrap=heading in ("used", "rows"), overflow="fold")
    for one in found:
        cells = [Text(one_line(cell)) for cell in (one.session, one.agent, one.owner)]
        note = Text("needs review", "yellow") if one.needs_review else Text()
        table.add_row(clock_time(one.updated)[5:16], *cells, str(one.rows), note)
    console(sys.stdout).print(table)
