"""``motet errors escalations``: runs that wait for a person, and the person's answer."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import get_args

import msgspec
import trio

from motet.actors.host import Host, open_host
from motet.actors.storage.session_runs import escalation_info, escalations_query
from motet.actors.telemetry.subscription import subscribe
from motet.cli.errors import clock_time
from motet.cli.exits import OK, code_of_status
from motet.cli.render import Rendering, one_line
from motet.cli.screen import Screen, console
from motet.cli.setup import Setup
from motet.cli.stored import reading
from motet.protocols.errors import ConfigError
from motet.protocols.escalations import Answer, EscalationInfo, ListEscalations
from motet.protocols.events import Terminal


def list_escalations(setup: Setup, session: str | None, limit: int, *, json: bool) -> int:
    """Print the open ones, newest first; with ``json`` all of them. Works beside a host, too."""
    request = ListEscalations(None, session, None if json else "open", limit)
    found = trio.run(_listed, setup.state, request)
    if json:
        print(msgspec.json.encode(found).decode())
    elif found:
        _print_table(found)
    else:
        print(f"nothing waits for a person in {setup.state}", file=sys.stderr)
    return OK


def resolve(setup: Setup, escalation: str, decision: str | None, note: str, *, json: bool) -> int:
    """Answer an escalation and follow the next run to its end; the exit code of the run.

    Locks the state: if a host runs on it, answer through its gateway.
    """
    answer = _answer(escalation, decision)
    return trio.run(partial(_resolve, setup, escalation, answer, note, json=json))


def _answer(escalation: str, decision: str | None) -> Answer:
    if not escalation:
        raise ConfigError("which one? motet errors escalations resolve ID --decision ...")
    for known in get_args(Answer):
        if decision == known:
            answer: Answer = known
            return answer
    raise ConfigError(f"--decision must be one of {', '.join(get_args(Answer))}, not {decision!r}")


async def _listed(state: Path, request: ListEscalations) -> tuple[EscalationInfo, ...]:
    async with reading(state) as readers:
        return tuple(
            escalation_info(row) for row in await readers.read(*escalations_query(request))
        )


async def _resolve(setup: Setup, escalation: str, answer: Answer, note: str, *, json: bool) -> int:
    async with open_host(setup.state, config=setup.config, agents=setup.agents()) as host:
        answered = await host.resolve(escalation, answer, note=note)
        code = OK if answered.next_run is None else await _watch(host, answered, quiet=json)
    if json:
        print(msgspec.json.encode(answered).decode())
    return code


async def _watch(host: Host, answered: EscalationInfo, *, quiet: bool) -> int:
    """Show the run that follows until it has ended."""
    screen = Screen.standard()
    rendering = Rendering(screen.live)
    async with subscribe(host.events, f"session:{answered.session}", 0) as records:
        async for record in records:
            if record.run_id != answered.next_run:
                continue
            if not quiet:
                screen.show(rendering.pieces(record.event))
            if isinstance(record.event, Terminal):
                break
    screen.end()
    runs = await host.runs(session=answered.session)
    return next(code_of_status(run.status) for run in runs if run.run_id == answered.next_run)


def _print_table(found: tuple[EscalationInfo, ...]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for heading in ("time", "session", "user", "reason", "id"):
        table.add_column(heading, no_wrap=heading in ("time", "id"), overflow="fold")
    for one in found:
        cells = [Text(one_line(cell)) for cell in (one.session, one.user, one.reason)]
        table.add_row(clock_time(one.created)[5:16], *cells, one.id)
    console(sys.stdout).print(table)
