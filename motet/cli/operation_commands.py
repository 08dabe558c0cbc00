"""The commands of an operator, with their options."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from motet.cli.app import app
from motet.cli.options import Config, Json, State, examples
from motet.protocols.sessions import Role


@app.command(epilog=examples("motet ps", "motet ps --json"))
def ps(json: Json = False, config: Config = None, state: State = None) -> None:
    """Print the actors of the running server: queued messages, age, and the reason of a wait."""
    from motet.cli.operate import show_actors
    from motet.cli.setup import load_setup

    raise typer.Exit(show_actors(load_setup(config, state), json=json))


@app.command(epilog=examples("motet stop run_7f3a", "motet stop alice:notes", "motet stop --all"))
def stop(
    target: Annotated[
        str,
        typer.Argument(
            metavar="RUN|SESSION|ROOM", help="Id of the run, session key, or room name."
        ),
    ] = "",
    all: Annotated[bool, typer.Option("--all", help="All runs.")] = False,
    grace: Annotated[
        float,
        typer.Option(
            "--grace", min=0, max=30, metavar="SECONDS", help="Time to wait for the clean-up."
        ),
    ] = 5.0,
    json: Json = False,
    config: Config = None,
    state: State = None,
) -> None:
    """Stop runs of the running server, and wait until they have ended.

    Exit codes: 0 ended, 1 some are still cleaning up.
    """
    from motet.cli.operate import stop as end
    from motet.cli.setup import load_setup

    setup = load_setup(config, state)
    raise typer.Exit(end(setup, target, everything=all, grace=grace, json=json))


@app.command(epilog=examples("motet backup /backups/motet-1"))
def backup(
    target: Annotated[
        Path, typer.Argument(metavar="DEST", help="A directory that is made; a state directory.")
    ],
    config: Config = None,
    state: State = None,
) -> None:
    """Copy the stored state into a new directory, also while a server uses it."""
    from motet.cli.backup import backup as copy_state
    from motet.cli.setup import load_setup

    raise typer.Exit(copy_state(load_setup(config, state).state, target))


@app.command(epilog=examples("motet resend run_7f3a"))
def resend(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Id of the interrupted run.")],
    json: Json = False,
    config: Config = None,
    state: State = None,
) -> None:
    """Send the input of an interrupted run to the running server again, once."""
    from motet.cli.operate import resend as again
    from motet.cli.setup import load_setup

    raise typer.Exit(again(load_setup(config, state), run, json=json))


class ConfigLook(StrEnum):
    """The parts of ``motet config``."""

    CHECK = "check"
    SHOW = "show"
    SCHEMA = "schema"
    RELOAD = "reload"


@app.command(
    name="config",
    epilog=examples(
        "motet config check",
        "motet config show --effective",
        "motet config schema > motet.schema.json",
        "motet config reload --dry-run",
    ),
)
def configuration(
    look: Annotated[
        ConfigLook,
        typer.Argument(
            metavar="ACTION", help="Check it, print it, print its JSON Schema, or reload it."
        ),
    ] = ConfigLook.CHECK,
    effective: Annotated[
        bool, typer.Option("--effective", help="With show: include defaults.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="With reload: only print the changes.")
    ] = False,
    json: Json = False,
    config: Config = None,
    state: State = None,
) -> None:
    """Check or print the configuration, without secrets, or apply it to the running server."""
    from motet.cli import checks as act
    from motet.cli.operate import reload
    from motet.cli.setup import load_setup

    match look:
        case ConfigLook.CHECK:
            code = act.check(config, state, json=json)
        case ConfigLook.SHOW:
            code = act.show(config, effective=effective, json=json)
        case ConfigLook.SCHEMA:
            code = act.print_schema()
        case ConfigLook.RELOAD:
            code = reload(load_setup(config, state), dry_run=dry_run, json=json)
    raise typer.Exit(code)


class TokenLook(StrEnum):
    """The parts of ``motet token``."""

    LIST = "list"
    NEW = "new"
    REVOKE = "revoke"


@app.command(
    epilog=examples(
        "motet token new alice --role operator --expires 90d",
        "motet token list",
        "motet token revoke tok_20c76fc1386b",
    )
)
def token(
    look: Annotated[
        TokenLook, typer.Argument(metavar="ACTION", help="List tokens, create one, or revoke one.")
    ] = TokenLook.LIST,
    whose: Annotated[
        str, typer.Argument(metavar="USER|ID", help="With new: the user; with revoke: the id.")
    ] = "",
    role: Annotated[Role, typer.Option("--role", help="Role of the user.")] = "operator",
    label: Annotated[
        str, typer.Option("--label", metavar="TEXT", help="A note about its use.")
    ] = "",
    expires: Annotated[
        str | None,
        typer.Option("--expires", metavar="WHEN", help="Expiry: 12h, 30d or 2027-01-31."),
    ] = None,
    impersonate: Annotated[
        bool, typer.Option("--impersonate", help="For a bridge: may act for other users.")
    ] = False,
    json: Json = False,
    config: Config = None,
    state: State = None,
) -> None:
    """List, create and revoke tokens of the gateway, also while a server runs.

    Only their hashes are stored.
    """
    from motet.cli import token as act
    from motet.cli.setup import load_setup

    setup = load_setup(config, state)
    match look:
        case TokenLook.LIST:
            code = act.list_tokens(setup, json=json)
        case TokenLook.NEW:
            code = act.new_token(
                setup, whose, role, label, expires, impersonate=impersonate, json=json
            )
        case TokenLook.REVOKE:
            code = act.revoke(setup, whose)
    raise typer.Exit(code)


@app.command(
    epilog=examples("motet trust", "motet trust ~/src/agents", "motet trust --list"),
)
def trust(
    target: Annotated[
        Path, typer.Argument(metavar="DIR", help="The folder of a motet.toml, or a file.")
    ] = Path(),
    list: Annotated[bool, typer.Option("--list", help="Print the trusted folders.")] = False,
    revoke: Annotated[bool, typer.Option("--revoke", help="Trust the folder no more.")] = False,
    json: Json = False,
) -> None:
    """Trust the configuration of a folder: what it imports, starts and sends to is printed.

    Without it, other commands ask at a terminal, and refuse elsewhere. MOTET_TRUST=1 trusts all.
    """
    from motet.announced import default_state
    from motet.cli import trust as act

    if list:
        raise typer.Exit(act.show_trusted(default_state(), json=json))
    given = act.revoke if revoke else act.trust
    raise typer.Exit(given(target, default_state()))


class UserLook(StrEnum):
    """The parts of ``motet users``."""

    DELETE = "delete"


@app.command(
    epilog=examples(
        "motet users delete alice --rooms transfer:bob", "motet users delete alice --rooms delete"
    )
)
def users(
    look: Annotated[UserLook, typer.Argument(metavar="ACTION", help="Delete a user.")],
    user: Annotated[str, typer.Argument(metavar="USER", help="Name of the user.")] = "",
    rooms: Annotated[
        str | None,
        typer.Option(
            "--rooms",
            metavar="WHAT",
            help="The rooms that they own: delete, or transfer:OTHER.",
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    json: Json = False,
    config: Config = None,
    state: State = None,
) -> None:
    """Delete a user with all that is theirs, also while a server runs.

    Tokens, sessions, memories and places in rooms are deleted, and what they have said in the rooms
    of others is withdrawn. Files in the workspace stay.
    """
    from motet.cli.setup import load_setup
    from motet.cli.users import delete_user

    assert look is UserLook.DELETE
    raise typer.Exit(delete_user(load_setup(config, state), user, rooms, sure=yes, json=json))


@app.command(epilog=examples("motet init", "motet init my-agents"))
def init(
    folder: Annotated[
        str, typer.Argument(metavar="FOLDER", help="Default: the current directory.")
    ] = ".",
) -> None:
    """Write a motet.toml, a file of tools and a test. Existing files are never overwritten."""
    from pathlib import Path

    from motet.cli.init import write_project

    raise typer.Exit(write_project(Path(folder)))
