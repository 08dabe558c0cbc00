"""``motet errors``: the stored errors of tools, as a table, whole, counted or pruned.

All of it works while a host has the state open: counting reads beside the host; deleting writes
short transactions, each of which waits some seconds for the host's and is refused after that.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Sequence
from datetime import datetime
from json import dumps
from pathlib import Path
from typing import cast, get_args

import msgspec
import trio

from motet.actors.storage.error_spool import SPILL_FILE
from motet.actors.storage.readers import Readers
from motet.cli.exits import OK
from motet.cli.render import in_json, one_line, visible
from motet.cli.running import PAGE, Server, ask
from motet.cli.screen import console, page, print_entries
from motet.cli.setup import Setup
from motet.cli.stored import errors_in, reading, stored_error, waiting_errors, writing
from motet.protocols.error_rows import EVERY_RECORD, count_query, errors_condition
from motet.protocols.errors import (
    ConfigError,
    ErrorGroup,
    ErrorPage,
    ErrorType,
    GroupErrors,
    GroupPage,
    ListErrors,
    StoredError,
    listing,
)
from motet.protocols.gateway_records import ErrorInfo
from motet.protocols.retention import give_back, prune_matching

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
    """The filter that the options describe. Raises ``ConfigError``."""
    now = datetime.now().astimezone()
    kinds = get_args(ErrorType)
    if kind is not None and kind not in kinds:
        raise ConfigError(f"--kind {kind!r} is no kind of error: those are {listing(kinds)}")
    return ListErrors(
        session,
        tool,
        None if since is None else moment(since, now),
        None if older_than is None else moment(older_than, now, "--older-than"),
        limit,
        cast("ErrorType | None", kind),
    )


def list_errors(setup: Setup, request: ListErrors, *, each: bool, json: bool) -> int:
    """Print the groups of equal errors, or ``each`` error that matches, the newest first."""
    if waiting := waiting_errors(setup.state):
        print(f"{len(waiting)} more wait for the database in {SPILL_FILE}", file=sys.stderr)
    several = request.session_id is None and request.run_id is None and request.end is None
    if several and not each and not json:
        groups = trio.run(_grouped, setup.state, request)
        if groups.groups:
            _print_groups(groups.groups, request.limit, more=groups.cursor is not None)
            return OK
    found = trio.run(_listed, setup.state, request)
    if json:
        print(in_json(found.errors))
        return OK
    any_ = request == ListErrors(limit=request.limit)
    none = f"no {'' if any_ else 'matching '}errors in {setup.state}"
    errors = tuple(map(ErrorInfo.of, found.errors))
    return _print_each(errors, request.limit, none, more=found.cursor is not None)


def show_error(setup: Setup, error_id: str, *, json: bool) -> int:
    """Print one whole error. Raises ``NotFound``."""
    if not error_id:
        raise ConfigError("which one? give its id: motet errors show ID")
    return _print_whole(trio.run(_one, setup.state, error_id), json=json)


def list_errors_at(
    server: Server, which: ListErrors, room: str | None, *, each: bool, json: bool
) -> int:
    """As :func:`list_errors`, those that the user of a server may see: 200 at most."""
    limit = min(which.limit, PAGE)
    filters = {
        "tool": which.tool_name,
        "kind": which.kind,
        "agent": which.agent,
        "resolved": which.resolved,
        "since": which.start,
    }
    of_one = {"session": which.session_id, "run_id": which.run_id, "until": which.end}
    if not (each or json or any(of_one.values())):
        found = ask(server, lambda at: at.errors(room=room, limit=limit, grouped=True, **filters))
        if found.groups:
            _print_groups(found.groups, limit, more=found.cursor is not None)
            return OK
    found = ask(server, lambda at: at.errors(room=room, limit=limit, **filters, **of_one))
    if json:
        print(in_json(found.errors))
        return OK
    none = f"no errors that you may see at {server.url}"
    return _print_each(found.errors, limit, none, more=found.cursor is not None)


def show_error_at(server: Server, error_id: str, *, json: bool) -> int:
    """As :func:`show_error`."""
    if not error_id:
        raise ConfigError("which one? give its id: motet errors show ID")
    return _print_whole(ask(server, lambda at: at.error(error_id)), json=json)


def _print_whole(error: StoredError, *, json: bool) -> int:
    if json:
        print(in_json(error))
    else:
        page(described(error))
    return OK


def described(error: StoredError) -> str:
    """A whole error as text: its facts, then its parts, each as it was written."""
    first, last = error.first_seen, error.last_seen
    seen = ""
    if error.count > 1 and first is not None and last is not None:
        seen = f"{error.count} times, from {clock_time(first)} to {clock_time(last)}"
    facts = {
        "id": error.id,
        "time": clock_time(error.timestamp),
        "session": error.session_id,
        "tool": error.tool_name,
        "kind": error.kind,
        "summary": error.short_summary,
        "agent": error.agent,
        "user": error.user,
        "call": error.call_id,
        "seen": seen,
        "group": error.fingerprint,
        "resolved": "" if error.resolved is None else clock_time(error.resolved),
        "damaged": error.malformed,
        "run": f"{error.run_id}   motet traces show {error.run_id}" if error.run_id else "",
    }
    lines = [f"{name:8} {one_line(value)}" for name, value in facts.items() if value]
    told = {"message", "traceback"}
    parts = {
        "arguments": error.arguments,
        "message": error.raw_error.get("message"),
        "details": {key: value for key, value in error.raw_error.items() if key not in told},
        "traceback": error.raw_error.get("traceback"),
    }
    for name, part in parts.items():
        if part:
            text = part if isinstance(part, str) else dumps(part, indent=2, ensure_ascii=False)
            lines += ["", f"{name}:", visible(text)]
    return "\n".join(lines)


def moment(text: str, now: datetime, option: str = "--since") -> float:
    """Unix seconds of ``30m``, ``12h``, ``7d`` ago or of an ISO date. Raises ``ConfigError``."""
    ago = _AGO.fullmatch(text)
    if ago:
        return now.timestamp() - int(ago[1]) * _SECONDS[ago[2]]
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        raise ConfigError(
            f"{option} {text!r} is not a time: give 30m, 12h, 7d, or a date such as {now:%Y-%m-%d}"
        ) from None


def clock_time(timestamp: float) -> str:
    """A moment in the user's own time zone."""
    return f"{datetime.fromtimestamp(timestamp).astimezone():%Y-%m-%d %H:%M:%S}"


async def _listed(state: Path, request: ListErrors) -> ErrorPage:
    async with reading(state) as readers:
        return await (await errors_in(readers)).page(request, None)


async def _grouped(state: Path, which: ListErrors) -> GroupPage:
    request = GroupErrors(
        agent=which.agent,
        tool_name=which.tool_name,
        kind=which.kind,
        resolved=which.resolved,
        start=which.start,
        limit=which.limit,
    )
    async with reading(state) as readers:
        return await (await errors_in(readers)).groups(request)


async def _one(state: Path, error_id: str) -> StoredError:
    async with reading(state) as readers:
        return await stored_error(readers, error_id)


def _print_groups(found: Sequence[ErrorGroup], limit: int, *, more: bool) -> None:
    users = len({group.owner for group in found}) > 1
    headings = ("last", "times", "user", "agent", "tool", "state", "summary", "newest")
    rows = [
        (
            clock_time(group.last_seen)[5:16],
            f"{group.count}x",
            group.owner if users else "",
            group.agent,
            group.tool_name,
            "resolved" if group.open == 0 else "",
            group.summary or group.malformed,
            group.newest,
        )
        for group in found
    ]
    print_entries(headings, rows, "summary")
    if more:
        print(f"older ones: motet errors -n {10 * limit}", file=sys.stderr)


def _print_each(found: Sequence[ErrorInfo], limit: int, none: str, *, more: bool) -> int:
    """``none``: the text on stderr when there are none."""
    if not found:
        print(none, file=sys.stderr)
        return OK
    rows = [
        (
            clock_time(error.timestamp)[5:16],
            error.session,
            error.tool,
            f"damaged: {error.malformed}" if error.malformed else error.summary,
            error.id,
        )
        for error in found
    ]
    print_entries(("time", "session", "tool", "summary", "id"), rows, "summary")
    if more:
        print(f"older ones: motet errors --all -n {10 * limit}", file=sys.stderr)
    return OK


# Counting and pruning


BUCKETS = 24
_BARS = " ▁▂▃▄▅▆▇█"


def prune_errors(setup: Setup, which: ListErrors, *, dry_run: bool, json: bool) -> int:
    """Delete the errors that match, or count them. Raises ``ConfigError`` for "all of them"."""
    if which == ListErrors():
        raise ConfigError(
            "which ones? motet errors prune --older-than 30d, and --session, --tool or --kind"
        )
    found = trio.run(_counted if dry_run else _pruned, setup.state, which)
    if json:
        print(in_json({"errors": found, "deleted": not dry_run}))
    else:
        noun = "error" if found == 1 else "errors"
        print(f"{'would delete' if dry_run else 'deleted'} {found} {noun}")
    return OK


class ToolErrors(msgspec.Struct):
    """The errors of one tool: the count of each kind, the last one, and the count in each step."""

    tool: str
    count: int = 0
    last: float = 0.0
    kinds: dict[str, int] = {}
    steps: list[int] = []


class Statistics(msgspec.Struct):
    """``start``: Unix seconds of the first step; ``step``: seconds of one."""

    start: float
    step: float
    tools: list[ToolErrors]


def show_statistics(setup: Setup, which: ListErrors, *, json: bool) -> int:
    """Print errors by tool and kind, and a small chart over time."""
    found = trio.run(_statistics, setup.state, which, time.time())
    if json:
        print(in_json(found))
    elif found.tools:
        _print_chart(found)
    else:
        print(f"no errors in {setup.state}", file=sys.stderr)
    return OK


def bars(steps: list[int]) -> str:
    """One character for each step, as high as it is next to the highest."""
    highest = max(steps, default=0) or 1
    return "".join(_BARS[-(-n * (len(_BARS) - 1) // highest)] for n in steps)


async def _counted(state: Path, which: ListErrors) -> int:
    async with reading(state) as readers:
        ((found,),) = await readers.read(*count_query(which))
        return int(found or 0)


async def _pruned(state: Path, which: ListErrors) -> int:
    async with writing(state) as write:
        deleted = await prune_matching(write, which)
        await give_back(write)
        return deleted


async def _statistics(state: Path, which: ListErrors, now: float) -> Statistics:
    async with reading(state) as readers:
        return await statistics(readers, which, now)


async def statistics(readers: Readers, which: ListErrors, now: float) -> Statistics:
    """Sums of the errors that match, the tool with most of them first; steps up to ``now``."""
    condition, params = errors_condition(which)
    ((first, last),) = await readers.read(
        f"SELECT min(timestamp), max(timestamp) FROM {EVERY_RECORD} r{condition}", params
    )
    start = which.start if which.start is not None else now if first is None else float(first)
    step = max(1.0, max(now, float(last or 0)) - start) / BUCKETS
    tools: dict[str, ToolErrors] = {}
    rows = await readers.read(
        "SELECT tool, kind, max(0, min(cast((timestamp - ?) / ? AS INTEGER), ?)) AS at, count(*),"
        f" max(timestamp) FROM {EVERY_RECORD} r{condition} GROUP BY tool, kind, at",
        [start, step, BUCKETS - 1, *params],
    )
    for tool, kind, at, number, latest in rows:
        sums = tools.setdefault(str(tool), ToolErrors(str(tool), steps=[0] * BUCKETS))
        sums.count += int(number or 0)
        sums.last = max(sums.last, float(latest or 0))
        sums.kinds[str(kind)] = sums.kinds.get(str(kind), 0) + int(number or 0)
        sums.steps[int(at or 0)] += int(number or 0)
    return Statistics(start, step, sorted(tools.values(), key=lambda t: (-t.count, t.tool)))


def _print_chart(found: Statistics) -> None:
    from rich.table import Table
    from rich.text import Text

    span = f"{clock_time(found.start)[5:16]}, {_length(found.step)} each"
    table = Table(box=None, pad_edge=False)
    for heading in ("tool", "errors", "kinds", f"from {span}", "last"):
        table.add_column(heading, no_wrap=heading != "kinds", overflow="fold")
    for tool in found.tools:
        kinds = sorted(tool.kinds.items(), key=lambda item: (-item[1], item[0]))
        table.add_row(
            Text(one_line(tool.tool)),
            str(tool.count),
            ", ".join(f"{kind} {number}" for kind, number in kinds),
            bars(tool.steps),
            clock_time(tool.last)[5:16],
        )
    console(sys.stdout).print(table)


def _length(seconds: float) -> str:
    for unit, name in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= unit:
            return f"{seconds / unit:.3g} {name}"
    return f"{seconds:.3g} s"
