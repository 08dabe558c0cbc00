"""``motet traces``: traces of runs as a table, a tree, or sent to a collector."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import cast, get_args

import trio

from motet.actors.storage import traces as rows
from motet.actors.storage.readers import Readers
from motet.actors.storage.traces import get_trace, list_traces, own_trace
from motet.actors.telemetry.exporter import Collector
from motet.cli.errors import clock_time, moment
from motet.cli.exits import OK
from motet.cli.render import in_json, one_line
from motet.cli.running import PAGE, Server, ask
from motet.cli.screen import console
from motet.cli.setup import Setup
from motet.cli.stored import errors_in, reading
from motet.cli.waterfall import drawn, money
from motet.protocols.errors import ConfigError, ListErrors, NotFound, UnknownName
from motet.protocols.gateway_records import ErrorInfo
from motet.protocols.room_changes import room_of_user
from motet.protocols.sessions import RunStatus
from motet.protocols.traces import ListTraces, Trace, TraceInfo

EXPORTED = 200
"""Traces that are read and exported at once."""
ERRORS = 100
"""Errors that are listed below a trace."""


def chosen(
    session: str | None,
    agent: str | None,
    user: str | None,
    status: str | None,
    since: str | None,
    limit: int,
) -> ListTraces:
    """The filter that the options describe. Raises ``ConfigError``."""
    if status is not None and status not in get_args(RunStatus):
        raise UnknownName("status", status, get_args(RunStatus))
    start = None if since is None else moment(since, datetime.now().astimezone())
    found = cast("RunStatus | None", status)
    return ListTraces(user, session, agent, found, start, None, limit)


def list_all(setup: Setup, request: ListTraces, *, json: bool) -> int:
    """Print the traces that match, the newest first."""
    found = trio.run(_listed, setup.state, request)
    return _print_all(found, f"no traces in {setup.state}", json=json)


def list_all_at(server: Server, request: ListTraces, room: str | None, *, json: bool) -> int:
    """As :func:`list_all`, those that the user of a server may see: 200 at most."""
    if request.user is not None:
        raise ConfigError("--user is for a state directory; with --url use --room or --session")
    which = {
        "session": request.session,
        "agent": request.agent,
        "status": request.status,
        "since": request.since,
    }
    found = ask(server, lambda at: at.traces(room=room, limit=min(request.limit, PAGE), **which))
    return _print_all(found, f"no traces that you may see at {server.url}", json=json)


def _print_all(found: Sequence[TraceInfo], none: str, *, json: bool) -> int:
    if json:
        print(in_json(found))
    elif found:
        _print_table(found)
    else:
        print(none, file=sys.stderr)
    return OK


def show(setup: Setup, run_id: str, *, waterfall: bool, json: bool) -> int:
    """Print one trace as a tree. Raises ``NotFound``."""
    if not run_id:
        raise ConfigError("which one? give the id of its run: motet traces show RUN")
    trace = trio.run(_one, setup.state, run_id)
    if json:
        print(in_json(trace))
        return OK
    return _print_one(trace, trio.run(_errors, setup.state, trace.info.run_id), bars=waterfall)


def show_at(server: Server, run_id: str, *, waterfall: bool, json: bool) -> int:
    """As :func:`show`; ``run_id`` is a whole one."""
    if not run_id:
        raise ConfigError("which one? give the id of its run: motet traces show RUN")
    trace = ask(server, lambda at: at.trace(run_id))
    if json:
        print(in_json(trace))
        return OK
    room = room_of_user(trace.info.user) or None
    found = ask(server, lambda at: at.errors(room=room, run_id=run_id, limit=ERRORS))
    return _print_one(trace, found.errors[::-1], bars=waterfall)


def _print_one(trace: Trace, errors: Sequence[ErrorInfo], *, bars: bool) -> int:
    out = console(sys.stdout)
    for line, style in drawn(trace, time.time(), bars=bars):
        out.print(line, style=style, markup=False, soft_wrap=True)
    for error in errors:
        text = f"{error.id}  {one_line(error.tool)}: {one_line(error.summary)}"
        out.print(f"motet errors show {text}", style="red", markup=False, soft_wrap=True)
    return OK


async def _errors(state: Path, run_id: str) -> tuple[ErrorInfo, ...]:
    async with reading(state) as readers:
        which = ListErrors(run_id=run_id, limit=ERRORS)
        page = await (await errors_in(readers)).page(which, None)
        return tuple(map(ErrorInfo.of, page.errors[::-1]))


def export(setup: Setup, request: ListTraces, run_id: str, otlp: str | None, *, json: bool) -> int:
    """Send traces to a collector. Raises ``NotFound``, ``ExportFailed``."""
    configured = setup.config.tracing
    url = otlp or configured.otlp
    if url is None:
        raise ConfigError("where to? motet traces export --otlp http://127.0.0.1:4318")
    known = url == configured.otlp  # another one must not get that one's keys
    collector = Collector(url, configured.otlp_headers) if known else Collector(url)
    traces, spans = trio.run(_exported, setup.state, request, run_id, collector)
    if json:
        print(in_json({"traces": traces, "spans": spans}))
    else:
        print(f"exported {traces} traces, {spans} spans")
    return OK


async def _listed(state: Path, request: ListTraces) -> tuple[TraceInfo, ...]:
    async with reading(state) as readers:
        return await list_traces(readers, request)


async def _one(state: Path, run_id: str) -> Trace:
    async with reading(state) as readers:
        return await _found(readers, run_id)


async def _found(readers: Readers, run_id: str) -> Trace:
    """The trace of the run with this id, or with the only id that begins so."""
    trace = await get_trace(readers, run_id)
    if trace is None:
        near = await readers.read(rows.RUNS_BY_PREFIX, (run_id,))
        if len(near) > 1:
            raise NotFound(f"more than one run begins with {run_id!r}: give more of its id")
        trace = await get_trace(readers, str(near[0][0])) if near else None
    if trace is None:
        raise NotFound(f"no trace of a run {run_id!r}; `motet traces` lists them")
    return trace


async def _exported(
    state: Path, request: ListTraces, run_id: str, collector: Collector
) -> tuple[int, int]:
    """The counts of sent traces and spans."""
    async with reading(state) as readers:
        infos = await (_family(readers, run_id) if run_id else list_traces(readers, request))
        infos = [info for info in infos if info.ended is not None]
        spans = 0
        for at in range(0, len(infos), EXPORTED):
            page = [await own_trace(readers, info) for info in infos[at : at + EXPORTED]]
            spans += await collector.send(page)
        return len(infos), spans


async def _family(readers: Readers, run_id: str) -> Sequence[TraceInfo]:
    """A run and its child runs."""
    info = (await _found(readers, run_id)).info
    below = () if info.parent else await readers.read(rows.CALLED_TRACES, (info.trace_id,))
    return [info, *map(rows.trace_info, below)]


def _print_table(traces: Sequence[TraceInfo]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for heading in ("time", "run", "agent", "user", "status"):
        table.add_column(heading, no_wrap=heading in ("time", "run", "status"), overflow="fold")
    priced = any(info.usage.cost for info in traces)  # else it would only take room
    for heading in ("seconds", "tokens", *(["cost"] if priced else []), "errors"):
        table.add_column(heading, no_wrap=True, justify="right")
    for info in traces:
        usage = info.usage
        table.add_row(
            clock_time(info.started)[5:16],
            Text(one_line(info.run_id)),
            Text(one_line(info.agent)),
            Text(one_line(info.user)),
            Text(info.status, style=_STYLES.get(info.status, "")),
            "" if info.ended is None else f"{info.ended - info.started:.2f}",
            f"{usage.total_tokens:,}" if usage.total_tokens else "",
            *([money(usage.cost) if usage.cost else ""] if priced else []),
            Text(str(info.errors or ""), style="red"),
        )
    console(sys.stdout).print(table)


_STYLES = {
    "completed": "green",
    "failed": "red",
    "interrupted": "red",
    "cancelled": "dim",
    "limited": "yellow",
    "escalated": "yellow",
    "refused": "yellow",
    "running": "cyan",
}
