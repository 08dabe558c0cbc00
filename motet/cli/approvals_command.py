"""The command ``motet approvals`` and its options; what it does is in ``approvals``."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from motet.cli.app import app
from motet.cli.options import Config, Json, State, examples


class ApprovalLook(StrEnum):
    """What ``motet approvals`` does."""

    LIST = "list"
    ALLOW = "allow"
    DENY = "deny"
    GRANTS = "grants"
    REVOKE = "revoke"


@app.command(
    epilog=examples(
        "motet approvals",
        "motet approvals allow apr_20c76fc1386b24ac",
        "motet approvals deny apr_20c76fc1386b24ac --note 'not at noon'",
        "motet approvals grants",
    )
)
def approvals(
    look: Annotated[
        ApprovalLook, typer.Argument(help="A table, an answer, or what is always allowed.")
    ] = ApprovalLook.LIST,
    which: Annotated[
        str, typer.Argument(metavar="ID", help="The approval to answer, the grant to revoke.")
    ] = "",
    always: Annotated[
        bool, typer.Option("--always", help="With allow: for all calls of this tool from now on.")
    ] = False,
    note: Annotated[
        str, typer.Option("--note", metavar="TEXT", help="With deny: the agent reads it.")
    ] = "",
    session: Annotated[
        str | None, typer.Option("--session", "-s", metavar="KEY", help="Only of this session.")
    ] = None,
    all: Annotated[bool, typer.Option("--all", help="Also those that are settled.")] = False,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, help="How many, newest first.")
    ] = 50,
    json: Json = False,
    config: Config = None,
    state: State = None,
) -> None:
    """Look at calls that wait for a person, and answer them, also while a host runs.

    Without a host the run goes on here, and the exit code is that of motet run.
    """
    from motet.cli import approvals as act
    from motet.cli.setup import load_setup

    setup = load_setup(config, state)
    match look:
        case ApprovalLook.LIST:
            code = act.list_approvals(setup, session, limit, all=all, json=json)
        case ApprovalLook.ALLOW:
            code = act.answer(
                setup, which, "allow-always" if always else "allow-once", note, json=json
            )
        case ApprovalLook.DENY:
            code = act.answer(setup, which, "deny", note, json=json)
        case ApprovalLook.GRANTS:
            code = act.list_grants(setup, json=json)
        case ApprovalLook.REVOKE:
            code = act.revoke(setup, which)
    raise typer.Exit(code)
