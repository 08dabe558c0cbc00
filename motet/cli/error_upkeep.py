"""``motet errors prune`` and ``motet errors stats``: fewer stored errors, and sums of them.

Both work while a host has the state open: counting reads beside it, and deleting writes short
transactions, each of which waits some seconds for the host's and is refused when that is not
enough.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import msgspec
import trio

from motet.actors.storage.error_store import count, prune_matching, where
from motet.actors.storage.readers import Readers
from motet.cli.errors import clock_time
from motet.cli.exits import OK
from motet.cli.render import one_line
from motet.cli.screen import console
from motet.cli.setup import Setup
from motet.cli.stored import reading, writing
from motet.protocols.errors import ConfigError, ListErrors

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
        print(msgspec.json.encode({"errors": found, "deleted": not dry_run}).decode())
    else:
        noun = "error" if found == 1 else "errors"
        print(f"{'would delete' if dry_run else 'deleted'} {found} {noun}")
    return OK


class ToolErrors(msgspec.Struct):
    """The errors of one tool: how many of each kind, the last one, and how many in each step."""

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
    """Print errors by tool and kind, and a small chart of when they were."""
    found = trio.run(_statistics, setup.state, which, time.time())
    if json:
        print(msgspec.json.encode(found).decode())
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
        ((found,),) = await readers.read(*count(which))
        return int(found or 0)


async def _pruned(state: Path, which: ListErrors) -> int:
    async with writing(state) as write:
        return await prune_matching(write, which)


async def _statistics(state: Path, which: ListErrors, now: float) -> Statistics:
    async with reading(state) as readers:
        return await statistics(readers, which, now)


async def statistics(readers: Readers, which: ListErrors, now: float) -> Statistics:
    """Sums of the errors that match, the tool with most of them first; steps up to ``now``."""
    condition, params = where(which)
    ((first, last),) = await readers.read(
        f"SELECT min(timestamp), max(timestamp) FROM agent_errors{condition}", params
    )
    start = float(which.start if which.start is not None else first or now)
    step = max(1.0, max(now, float(last or 0)) - start) / BUCKETS
    tools: dict[str, ToolErrors] = {}
    rows = await readers.read(
        "SELECT tool_name, kind, min(cast((timestamp - ?) / ? AS INTEGER), ?) AS at, count(*),"
        f" max(timestamp) FROM agent_errors{condition} GROUP BY tool_name, kind, at",
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
