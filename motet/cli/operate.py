"""The commands of an operator: ``ps``, ``stop``, ``config reload``, ``resend``, ``release``."""

from __future__ import annotations

import sys

import msgspec
import trio

from motet.actors.storage.recovery import RELEASE
from motet.cli.exits import FAILED, OK
from motet.cli.render import in_json, one_line
from motet.cli.running import PATIENCE, talking
from motet.cli.screen import STYLES, console
from motet.cli.setup import Setup
from motet.cli.stored import writing
from motet.client import RequestFailed
from motet.protocols.errors import InputValidation, NotFound
from motet.protocols.gateway import Sent
from motet.protocols.gateway_records import ActorsList
from motet.protocols.host_records import LiveActor
from motet.protocols.reload import Reloaded
from motet.protocols.sessions import StopReport
from motet.protocols.storage import Statement

RUN = "run_"


def show_actors(setup: Setup, *, json: bool) -> int:
    """Print the live actors as a tree."""
    actors = trio.run(_actors, setup)
    if json:
        print(in_json(actors))
    else:
        _print_tree(actors)
    return OK


def stop(setup: Setup, target: str, *, everything: bool, grace: float, json: bool) -> int:
    """End a run, the runs of a session or a room, or all; 1: some still clean up."""
    if bool(target) == everything:
        raise InputValidation("give a run, a session or a room, or --all")
    report = trio.run(_stop, setup, target, grace)
    if json:
        print(in_json(report))
    else:
        _print_report(report)
    return FAILED if report.still_running else OK


def reload(setup: Setup, *, dry_run: bool, json: bool) -> int:
    """Have the server read its configuration again; the changes are printed first."""
    done = trio.run(_reload, setup, dry_run, json)
    if json:
        print(in_json(done))
    return OK


async def _actors(setup: Setup) -> tuple[LiveActor, ...]:
    async with talking(setup.state) as client:
        return msgspec.convert(await client.call("actors.list"), ActorsList).actors


async def _stop(setup: Setup, target: str, grace: float) -> StopReport:
    async with talking(setup.state, PATIENCE + 2 * grace) as client:
        if not target:
            return await client.stop(all=True, grace=grace)
        if target.startswith(RUN):
            return await client.stop(run_id=target, grace=grace)
        report = await client.stop(session=target, grace=grace)
        if report != StopReport():
            return report
        try:
            return await client.stop(room=target, grace=grace)
        except RequestFailed as error:
            if error.code != "not_found":
                raise
            return report


async def _reload(setup: Setup, dry_run: bool, quiet: bool) -> Reloaded:
    async with talking(setup.state) as client:
        before = msgspec.convert(await client.call("config.get"), _Seen)
        plan = msgspec.convert(await client.call("config.reload", dry_run=True), Reloaded)
        if not quiet:
            _print_plan(plan)
        if dry_run or not plan.changes:
            return plan
        result = await client.call("config.reload", expect_hash=before.hash)
        return msgspec.convert(result, Reloaded)


class _Seen(msgspec.Struct):
    hash: str


def _print_plan(plan: Reloaded) -> None:
    if not plan.changes:
        print("nothing has changed")
    for change in plan.changes:
        print(change)


def _print_report(report: StopReport) -> None:
    told = {
        "stopped": report.stopped,
        "was stopping already": report.already_stopping,
        "will not be answered": report.dropped_inputs,
        "still cleans up": report.still_running,
    }
    lines = [f"{run}: {what}" for what, runs in told.items() for run in runs]
    for line in lines or ["nothing was going on"]:
        print(line)
    for held in (*report.held_by, *report.processes):
        console(sys.stderr).print(held, style=STYLES["failed"], markup=False)


def _print_tree(actors: tuple[LiveActor, ...]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    table.add_column("actor", no_wrap=True)
    table.add_column("state")
    table.add_column("mail", justify="right")
    table.add_column("age", justify="right")
    table.add_column("waits for", overflow="fold")
    for actor in actors:
        depth = max(0, actor.path.count("/") - 2)
        name = "  " * depth + actor.path.rpartition("/")[2]
        state = "paused" if actor.paused else actor.state
        waits = Text(actor.waiting_on or "", "dim")
        table.add_row(Text(name), state, str(actor.queued), _age(actor.age_s), waits)
    console(sys.stdout).print(table)


def _age(seconds: float) -> str:
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:.0f}s"


# After a crash


def resend(setup: Setup, run_id: str, *, json: bool) -> int:
    """Have the running server answer an interrupted input after all. Raises ``NotFound``."""
    sent = trio.run(_resend, setup, run_id)
    if json:
        print(in_json(sent))
    else:
        again = "was sent again before, as" if sent.status == "duplicate" else "is sent again, as"
        print(f"{one_line(run_id)} {again} {sent.run_id}")
    return OK


def release_session(setup: Setup, session: str) -> int:
    """Let the next host resume a quarantined session. Raises ``NotFound``."""
    if not trio.run(_release, setup, session):
        raise NotFound(f"the session {session!r} is not quarantined; `motet doctor` lists those")
    print(f"the next host takes {one_line(session)} up again", file=sys.stderr)
    return OK


async def _resend(setup: Setup, run_id: str) -> Sent:
    async with talking(setup.state) as client:
        return msgspec.convert(await client.call("runs.resend", run_id=run_id), Sent)


async def _release(setup: Setup, session: str) -> bool:
    async with writing(setup.state) as run:
        return bool(await run(Statement(RELEASE, (session,))))
