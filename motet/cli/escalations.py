"""``motet errors escalations``: runs that wait for a person, and the person's answer."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterable, Awaitable, Callable, Sequence
from functools import partial
from math import inf
from pathlib import Path
from typing import get_args

import msgspec
import trio

from motet.actors.host import open_host
from motet.actors.storage.session_runs import (
    escalation_info,
    escalation_query,
    escalations_query,
)
from motet.actors.telemetry.subscription import subscribe
from motet.announced import lock_owner, running
from motet.cli.errors import clock_time
from motet.cli.exits import OK, code_of_status
from motet.cli.render import Rendering, in_json, one_line
from motet.cli.running import PAGE, PATIENCE, Server, ask, talking, while_it_runs
from motet.cli.screen import Screen, page, print_entries
from motet.cli.setup import Setup
from motet.cli.stored import reading
from motet.protocols.errors import ConfigError, NotFound
from motet.protocols.escalations import Answer, EscalationInfo, EscalationState, ListEscalations
from motet.protocols.events import EventRecord, InputDropped, InputSteered, RunWaiting, Terminal
from motet.protocols.review import decision
from motet.protocols.sessions import FINAL, RunInfo


def carry_out(
    at: Setup | Server,
    look: str,
    escalation: str,
    decided: str | None,
    note: str,
    which: tuple[str | None, str | None, int],
    *,
    json: bool,
) -> int:
    """List, show or resolve, in a state directory or at a server, whose host goes on by itself.

    ``which``: the session, the room, and how many of them to list.
    """
    session, room, limit = which
    if isinstance(at, Setup):
        if look == "show":
            return show(at, escalation, json=json)
        if look == "resolve":
            return resolve(at, escalation, decided, note, json=json)
        return list_escalations(at, session, limit, json=json)
    if look == "resolve":
        answer = _answer(escalation, decided)
        answered = ask(at, lambda client: client.resolve(escalation, answer, note=note))
        print(in_json(answered) if json else _described(answered))
        return OK
    state: EscalationState | None = None if json or look == "show" else "open"
    most = PAGE if look == "show" else min(limit, PAGE)
    found = ask(
        at, lambda client: client.escalations(session=session, room=room, state=state, limit=most)
    )
    if look != "show":
        return _print_all(found, at.url, json=json)
    one = next((one for one in found if one.id == escalation), None)
    if one is None:
        raise NotFound(f"no escalation {escalation!r} of yours; list them with --json")
    print(in_json(one) if json else _described(one))
    return OK


def list_escalations(setup: Setup, session: str | None, limit: int, *, json: bool) -> int:
    """Print the open ones, newest first; with ``json`` all of them. Works beside a host, too."""
    request = ListEscalations(None, session, None if json else "open", limit)
    return _print_all(trio.run(_listed, setup.state, request), setup.state, json=json)


def _print_all(found: Sequence[EscalationInfo], where: object, *, json: bool) -> int:
    if json:
        print(in_json(found))
    elif found:
        headings = ("time", "session", "user", "reason", "id")
        rows = [(clock_time(e.created)[5:16], e.session, e.user, e.reason, e.id) for e in found]
        print_entries(headings, rows, "reason")
    else:
        print(f"nothing waits for a person in {where}", file=sys.stderr)
    return OK


def show(setup: Setup, escalation: str, *, json: bool) -> int:
    """Print one escalation, with the failed calls that led to it."""
    if not escalation:
        raise ConfigError("which one? motet errors escalations show ID")
    found = trio.run(_one, setup.state, escalation)
    if json:
        print(in_json(found))
    else:
        page(_described(found))
    return OK


def resolve(setup: Setup, escalation: str, decided: str | None, note: str, *, json: bool) -> int:
    """Answer an escalation and follow the next run to its end; the exit code of the run.

    If a server runs on the state, it takes the answer; else a host is opened for it, in which a run
    that waits for an approval is suspended at once.
    """
    answer = _answer(escalation, decided)
    known = trio.run(_one, setup.state, escalation)
    if not json:
        print(_described(known), file=sys.stderr)
    owner = lock_owner(setup.state)
    if owner is None:
        work = partial(_resolve, setup.unattended(), known, answer, note, json=json)
    elif running(setup.state) is not None:
        work = partial(_resolve_beside, setup, known, answer, note, json=json)
    else:
        raise ConfigError(
            f"{setup.state} is in use by process {owner or '(unknown)'}, which is no `motet serve`:"
            f" answer there, such as with /resolve {escalation} in its chat, or with --url and the"
            " address of its gateway"
        )
    return trio.run(work)


def _answer(escalation: str, decided: str | None) -> Answer:
    if not escalation:
        raise ConfigError("which one? motet errors escalations resolve ID --decision ...")
    for known in get_args(Answer):
        if decided == known:
            answer: Answer = known
            return answer
    raise ConfigError(f"--decision must be one of {', '.join(get_args(Answer))}, not {decided!r}")


async def _listed(state: Path, request: ListEscalations) -> tuple[EscalationInfo, ...]:
    async with reading(state) as readers:
        return tuple(
            escalation_info(row) for row in await readers.read(*escalations_query(request))
        )


async def _one(state: Path, escalation: str) -> EscalationInfo:
    async with reading(state) as readers:
        found = await readers.read(*escalation_query(escalation))
    if not found:
        raise NotFound(f"no escalation {escalation!r}; `motet errors escalations` lists them")
    return escalation_info(found[0])


async def _resolve(
    setup: Setup, known: EscalationInfo, answer: Answer, note: str, *, json: bool
) -> int:
    async with (
        open_host(setup.state, config=setup.config, agents=setup.agents()) as host,
        subscribe(host.events, f"session:{known.session}", 0) as records,
    ):
        answered = await host.resolve(known.id, answer, note=note)
        return await _followed(known, answered, records, host.find_run, json=json)


async def _resolve_beside(
    setup: Setup, known: EscalationInfo, answer: Answer, note: str, *, json: bool
) -> int:
    async with (
        talking(setup.state, inf) as client,
        while_it_runs(setup.state),
        client.stream(f"session:{known.session}", 0) as records,
    ):

        async def find_run(run_id: str) -> RunInfo:
            return msgspec.convert(await client.call("runs.get", run_id=run_id), RunInfo)

        with trio.fail_after(PATIENCE):
            answered = await client.resolve(known.id, answer, note=note)
        return await _followed(known, answered, records, find_run, json=json)


async def _followed(
    known: EscalationInfo,
    answered: EscalationInfo,
    records: AsyncIterable[EventRecord],
    find_run: Callable[[str], Awaitable[RunInfo]],
    *,
    json: bool,
) -> int:
    """Show the next run until it has ended, or waits. ``known``: before this answer."""
    code = OK
    if answered.next_run is None and answered.decision != "give_up":
        print("said in the room, where the agent goes on", file=sys.stderr)
    elif answered.next_run is not None:
        run = await find_run(answered.next_run)
        if known.state == "open" or run.status not in FINAL:
            await _show(answered.next_run, records, quiet=json)
            run = await find_run(answered.next_run)
        code = code_of_status(run.status)
    if json:
        print(in_json(answered))
    return code


async def _show(run_id: str, records: AsyncIterable[EventRecord], *, quiet: bool) -> None:
    screen = Screen.standard()
    rendering = Rendering(screen.live)
    async for record in records:
        if record.run_id != run_id:
            continue
        if not quiet:
            screen.show(rendering.pieces(record.event))
        if isinstance(record.event, Terminal | InputDropped | InputSteered | RunWaiting):
            break
    screen.end()


def _described(one: EscalationInfo) -> str:
    where = f"{clock_time(one.created)[5:16]}  {one.state}  session {one_line(one.session)}"
    head, *calls = decision(one)
    answered: list[str] = []
    if one.decision is not None and one.resolved is not None:
        note, run, who = one_line(one.note), one.next_run, one_line(one.resolved_by or "")
        told = f"  {clock_time(one.resolved)[5:16]}  {one.decision} by {who}"
        answered = [f"{told}{note and f': {note}'}{f'   motet traces show {run}' if run else ''}"]
    return "\n".join([head, f"  {where}", *calls, *answered])
