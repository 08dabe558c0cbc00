"""``motet errors``: the stored errors of tools, as a table or whole."""

from __future__ import annotations

import json as jsonlib
import re
import sys
from datetime import datetime
from pathlib import Path
from typing import cast, get_args

import msgspec
import trio

from motet.cli.exits import OK
from motet.cli.render import one_line, visible
from motet.cli.screen import console
from motet.cli.setup import Setup
from motet.cli.stored import reading, stored_error, stored_errors
from motet.protocols.errors import ConfigError, ErrorType, ListErrors, StoredError, UnknownName

_AGO = re.compile(r"(\d{1,6})([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


def chosen(
    session: str | None,
    tool: str | None,
    kind: str | None,
    *,
    since: str | None = None,
    older_than: str | None = None,
    limit: int = 0,
) -> ListErrors:
    """The errors that options of the command line name. Raises ``ConfigError``."""
    now = datetime.now().astimezone()
    if kind is not None and kind not in get_args(ErrorType):
        raise UnknownName("kind of error", kind, get_args(ErrorType))
    return ListErrors(
        session,
        tool,
        None if since is None else moment(since, now),
        None if older_than is None else moment(older_than, now, "--older-than"),
        limit,
        cast("ErrorType | None", kind),
    )


def list_errors(setup: Setup, request: ListErrors, *, json: bool) -> int:
    """Print the errors that match, the newest first."""
    found = trio.run(_listed, setup.state, request)
    if json:
        print(msgspec.json.encode(found).decode())
    elif found:
        _print_table(found)
    else:
        print(f"no errors in {setup.state}", file=sys.stderr)
    return OK


def show_error(setup: Setup, error_id: str, *, json: bool) -> int:
    """Print one error whole. Raises ``NotFound``."""
    if not error_id:
        raise ConfigError("which one? give its id: motet errors show ID")
    error = trio.run(_one, setup.state, error_id)
    if json:
        print(msgspec.json.encode(error).decode())
        return OK
    print(f"id       {error.id}")
    print(f"time     {clock_time(error.timestamp)}")
    print(f"session  {one_line(error.session_id)}")
    print(f"tool     {one_line(error.tool_name)}")
    print(f"kind     {error.kind}")
    print(f"summary  {one_line(error.short_summary)}")
    traceback = error.raw_error.get("traceback")
    raw = {key: value for key, value in error.raw_error.items() if key != "traceback"}
    print(visible(jsonlib.dumps(raw, indent=2, ensure_ascii=False)))
    if traceback is not None:
        print(visible(str(traceback)))
    return OK


def moment(text: str, now: datetime, option: str = "--since") -> float:
    """Unix seconds of ``30m``, ``12h``, ``7d`` ago or of an ISO date. Raises ``ConfigError``."""
    ago = _AGO.fullmatch(text)
    if ago:
        return now.timestamp() - int(ago[1]) * _SECONDS[ago[2]]
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        raise ConfigError(
            f"{option} {text!r} is no time: give 30m, 12h, 7d, or a date such as {now:%Y-%m-%d}"
        ) from None


def clock_time(timestamp: float) -> str:
    """A moment in the user's own time zone."""
    return f"{datetime.fromtimestamp(timestamp).astimezone():%Y-%m-%d %H:%M:%S}"


async def _listed(state: Path, request: ListErrors) -> tuple[StoredError, ...]:
    async with reading(state) as readers:
        return await stored_errors(readers, request)


async def _one(state: Path, error_id: str) -> StoredError:
    async with reading(state) as readers:
        return await stored_error(readers, error_id)


def _print_table(errors: tuple[StoredError, ...]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for heading in ("time", "session", "tool", "summary", "id"):
        table.add_column(heading, no_wrap=heading in ("time", "id"), overflow="fold")
    for error in errors:
        cells = (error.session_id, error.tool_name, error.short_summary)
        shown = [Text(one_line(cell)) for cell in cells]
        table.add_row(clock_time(error.timestamp)[5:16], *shown, error.id)
    console(sys.stdout).print(table)
