"""``motet approvals``: calls that wait for a person, and the person's answer."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import msgspec
import trio

from motet.actors.host import Host, open_host
from motet.actors.storage import approval_rows as rows
from motet.actors.storage.approvals import ApprovalStore
from motet.actors.storage.run_access import RunJournal
from motet.actors.telemetry.subscription import subscribe
from motet.announced import lock_owner
from motet.cli.errors import clock_time
from motet.cli.exits import OK, WAITING, code_of_status
from motet.cli.render import Rendering, in_json, one_line
from motet.cli.running import PAGE, Server, ask
from motet.cli.screen import Screen, page
from motet.cli.setup import Setup
from motet.cli.stored import reading, writing_together
from motet.protocols import approval_tables as sql
from motet.protocols.approvals import (
    AnswerApproval,
    ApprovalDecision,
    ApprovalInfo,
    ApprovalState,
    Grant,
    ListApprovals,
    ListGrants,
    RevokeGrant,
    is_told,
)
from motet.protocols.errors import ConfigError, NotFound
from motet.protocols.events import RunWaiting, Terminal
from motet.protocols.gateway_approvals import GrantsList
from motet.protocols.review import question
from motet.protocols.session_keys import is_of_room
from motet.protocols.sessions import LOCAL


def list_approvals(setup: Setup, session: str | None, limit: int, *, all: bool, json: bool) -> int:
    """Print the pending ones, newest first; ``all``: also the others. Works beside a host, too.

    A new state directory has none.
    """
    request = ListApprovals(None, session, None if all or json else "pending", None, limit)
    return _print_all(trio.run(_listed, setup.state, request), setup.state, json=json)


def show(setup: Setup, approval: str, *, json: bool) -> int:
    """Print one approval, with all of its arguments."""
    found = trio.run(_one, setup.state, approval)
    if found is None:
        raise NotFound(f"no approval {approval!r}; `motet approvals --all` lists them")
    return _print_one(found, json=json)


def answer(
    setup: Setup, approval: str, decision: ApprovalDecision, note: str, *, json: bool
) -> int:
    """Answer an approval and follow its run to its end; the exit code of the run.

    If a host runs on the state, that host resumes the run, within two seconds.
    """
    if not approval:
        raise ConfigError("which one? motet approvals allow ID, or deny ID")
    request = AnswerApproval(approval, decision, LOCAL.user, note)
    known = trio.run(_one, setup.state, approval)
    if known is not None and is_told(decision, note) and is_of_room(known.session):
        runs, session = (known.run_id,), known.session
        request = AnswerApproval(approval, decision, LOCAL.user, note, LOCAL, runs, session)
    if known is not None and not json:
        print(_described(known), file=sys.stderr)
    if lock_owner(setup.state) is not None:
        info = trio.run(_answered_beside, setup.state, request)
        print("the host of this state resumes it", file=sys.stderr)
        code = OK
    else:
        info, code = trio.run(partial(_answer, setup, request, quiet=json))
    if json:
        print(in_json(info))
    return code


def list_grants(setup: Setup, *, json: bool) -> int:
    """Print the permissions that were given for good."""
    return _print_grants(trio.run(_grants, setup.state), json=json)


def revoke(setup: Setup, grant: str) -> int:
    """Have people asked again. Works beside a host, too."""
    if not trio.run(_revoke, setup.state, grant):
        raise NotFound(f"no grant {grant!r}; `motet approvals grants` lists them")
    return OK


# Through a server elsewhere, as the user of the token


def at_server(
    server: Server,
    look: str,
    which: str,
    session: str | None,
    limit: int,
    options: tuple[bool, str],
    *,
    all: bool,
    json: bool,
) -> int:
    """Carry out an action at a server, whose host resumes what is answered.

    ``options``: whether to allow always, and the note.
    """
    always, note = options
    match look:
        case "list":
            state: ApprovalState | None = None if all or json else "pending"
            most = min(limit, PAGE)
            found = ask(server, lambda at: at.approvals(session=session, state=state, limit=most))
            return _print_all(found, server.url, json=json)
        case "show":
            return _print_one(_found(server, which), json=json)
        case "allow" | "deny":
            if not which:
                raise ConfigError("which one? motet approvals allow ID, or deny ID")
            if not json:
                print(_described(_found(server, which)), file=sys.stderr)
            said: ApprovalDecision = "deny" if look == "deny" else "allow-once"
            decision: ApprovalDecision = "allow-always" if always and look == "allow" else said
            info = ask(server, lambda at: at.approve(which, decision, note=note))
            if info.blocked:
                print(f"on record, and {one_line(info.blocked)}", file=sys.stderr)
            if json:
                print(in_json(info))
            return OK
        case "grants":
            grants = ask(server, lambda at: at.call("approvals.grants"))
            return _print_grants(msgspec.convert(grants, GrantsList).grants, json=json)
        case _:
            ask(server, lambda at: at.call("approvals.revoke", grant=which))
            return OK


def _found(server: Server, which: str) -> ApprovalInfo:
    found = ask(server, lambda at: at.approvals(limit=PAGE))
    one = next((one for one in found if one.id == which), None)
    if one is None:
        raise NotFound(f"no approval {which!r} of yours; `motet approvals --all` lists them")
    return one


def _print_all(found: Sequence[ApprovalInfo], where: object, *, json: bool) -> int:
    if json:
        print(in_json(found))
    elif found:
        page("\n\n".join(map(_described, found)))
    else:
        print(f"nothing waits for an approval in {where}", file=sys.stderr)
    return OK


def _print_one(found: ApprovalInfo, *, json: bool) -> int:
    if json:
        print(in_json(found))
    else:
        page(_described(found))
    return OK


def _print_grants(found: Sequence[Grant], *, json: bool) -> int:
    if json:
        print(in_json(found))
    elif found:
        for one in found:
            who = f"{one.agent} may call {one.tool} for {one.user} though {one.asker} asks"
            print(f"{one.id}  {one_line(who)}")
    else:
        print("nothing is always allowed", file=sys.stderr)
    return OK


async def _listed(state: Path, request: ListApprovals) -> tuple[ApprovalInfo, ...]:
    async with reading(state) as readers:
        return tuple(rows.info(row) for row in await readers.read(*rows.search(request)))


async def _one(state: Path, approval: str) -> ApprovalInfo | None:
    async with reading(state) as readers:
        found = await readers.read(sql.ONE, (approval,))
        return rows.info(found[0]) if found else None


async def _grants(state: Path) -> tuple[Grant, ...]:
    async with reading(state) as readers:
        return tuple(rows.grant(row) for row in await readers.read(*rows.grants(ListGrants())))


async def _revoke(state: Path, grant: str) -> bool:
    async with writing_together(state) as transact:
        (found,) = await transact((rows.revoke(RevokeGrant(grant)),))
        return bool(found)


async def _answered_beside(state: Path, request: AnswerApproval) -> ApprovalInfo:
    async with reading(state) as readers, writing_together(state) as transact:
        store = ApprovalStore(transact, readers, RunJournal())
        return (await store.answer(request)).info


async def _answer(
    setup: Setup, request: AnswerApproval, *, quiet: bool
) -> tuple[ApprovalInfo, int]:
    async with open_host(setup.state, config=setup.config, agents=setup.agents()) as host:
        found = await host.approvals(limit=1_000)
        known = next((one for one in found if one.id == request.id), None)
        stream = f"session:{known.session if known is not None else ''}"
        head = (await host.events.head(stream)).head
        info = await host.approve(request.id, request.decision, note=request.note)
        if info.blocked:
            print(f"on record, and {one_line(info.blocked)}", file=sys.stderr)
            return info, WAITING
        return info, await _watch(host, info, head, quiet=quiet)


async def _watch(host: Host, info: ApprovalInfo, after: int, *, quiet: bool) -> int:
    """Show the run until it has ended, or waits again."""
    screen = Screen.standard()
    rendering = Rendering(screen.live)
    runs = {run.run_id: run for run in await host.runs(session=info.session)}
    if runs[info.run_id].status in ("waiting", "running"):
        async with subscribe(host.events, f"session:{info.session}", after) as records:
            async for record in records:
                if record.run_id != info.run_id:
                    continue
                if not quiet:
                    screen.show(rendering.pieces(record.event))
                if isinstance(record.event, Terminal | RunWaiting):
                    break
    screen.end()
    runs = {run.run_id: run for run in await host.runs(session=info.session)}
    return code_of_status(runs[info.run_id].status)


def _described(one: ApprovalInfo) -> str:
    """The approval, all of its arguments included, for a person to read."""
    asked, *call = question(one)
    where = f"{clock_time(one.created)[5:16]}  {one.state}  session {one_line(one.session)}"
    return "\n".join([asked, f"  {where}", *call])
