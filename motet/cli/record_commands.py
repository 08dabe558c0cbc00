"""The commands for stored records: errors, sessions, rooms and traces, with their options."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from motet.cli.app import app
from motet.cli.options import Config, Json, State, TokenFile, Url, examples

if TYPE_CHECKING:
    from motet.cli.running import Server

Kind = Annotated[
    str | None,
    typer.Option("--kind", metavar="KIND", help="Only this kind: timeout, auth, not_found, ..."),
]
OlderThan = Annotated[
    str | None,
    typer.Option("--older-than", metavar="WHEN", help="With prune: minimum age, such as 30d."),
]

OfSession = Annotated[
    str | None, typer.Option("--session", "-s", metavar="KEY", help="Only this session.")
]
OfTool = Annotated[str | None, typer.Option("--tool", metavar="NAME", help="Only this tool.")]
Since = Annotated[
    str | None,
    typer.Option("--since", metavar="WHEN", help="Not older than: 30m, 12h, 7d or 2026-11-21."),
]
Limit = Annotated[
    int, typer.Option("--limit", "-n", min=1, help="Number of entries, newest first.")
]
OfAgent = Annotated[str | None, typer.Option("--agent", metavar="NAME", help="Only this agent.")]
OfRun = Annotated[str | None, typer.Option("--run", metavar="ID", help="Only this run.")]
OfRoom = Annotated[
    str | None,
    typer.Option("--room", metavar="NAME", help="With --url: only this room, which is yours."),
]


def _server(
    url: str | None, token_file: Path | None, own: Path | None, room: str | None
) -> Server | None:
    """The server of ``--url``; None without it."""
    from motet.cli.chat import read_token
    from motet.cli.running import Server

    if url is None:
        if room is not None:
            raise typer.BadParameter("--room needs --url; a state directory has --session")
        return None
    if own is not None:
        raise typer.BadParameter("the host at --url has its own config and state")
    return Server(None, url, read_token(token_file))


class Look(StrEnum):
    """The parts of ``motet errors``."""

    LIST = "list"
    SHOW = "show"
    PRUNE = "prune"
    STATS = "stats"
    ESCALATIONS = "escalations"


@app.command(
    epilog=examples(
        "motet errors --tool shell --since 12h",
        "motet errors --all --run run_9b1d...",
        "motet errors show err_2026...",
        "motet errors stats --since 7d",
        "motet errors prune --older-than 30d --dry-run",
        "motet errors escalations",
        "motet errors escalations show esc_7f3a",
        "motet errors escalations resolve esc_7f3a --decision skip --note 'use staging'",
        "motet errors --room dev --url wss://motet.example --token-file token.txt",
    )
)
def errors(
    look: Annotated[
        Look,
        typer.Argument(
            metavar="ACTION", help="List errors, show one, prune, count, or escalations."
        ),
    ] = Look.LIST,
    error_id: Annotated[
        str,
        typer.Argument(
            metavar="ID", help="Id of the error to show; with escalations: show or resolve."
        ),
    ] = "",
    escalation: Annotated[
        str, typer.Argument(metavar="ESCALATION", help="Id of the escalation.")
    ] = "",
    decision: Annotated[
        str | None,
        typer.Option("--decision", metavar="WORD", help="retry, advice, skip or give_up."),
    ] = None,
    note: Annotated[str, typer.Option("--note", metavar="TEXT", help="Text for the agent.")] = "",
    session: OfSession = None,
    tool: OfTool = None,
    since: Since = None,
    kind: Kind = None,
    older_than: OlderThan = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="With prune: only print the count.")
    ] = False,
    limit: Limit = 20,
    each: Annotated[bool, typer.Option("--all", help="List each error, not groups.")] = False,
    agent: OfAgent = None,
    run: OfRun = None,
    resolved: Annotated[
        bool | None,
        typer.Option("--resolved/--open", help="Only those whose tool has, or has not, succeeded."),
    ] = None,
    json: Json = False,
    config: Config = None,
    state: State = None,
    room: OfRoom = None,
    url: Url = None,
    token_file: TokenFile = None,
) -> None:
    """Show groups of equal errors, or each, and escalations, also while a host runs."""
    from msgspec.structs import replace

    from motet.cli.errors import chosen, list_errors, show_error
    from motet.cli.setup import load_setup

    server = _server(url, token_file, config or state, room)
    if look is Look.ESCALATIONS:
        from motet.cli import escalations as act

        of = (session, room, limit)
        at = server or load_setup(config, state)
        raise typer.Exit(act.carry_out(at, error_id, escalation, decision, note, of, json=json))
    if server is not None:
        if look not in (Look.LIST, Look.SHOW):
            raise typer.BadParameter(f"{look.value} is for the host's own machine: list or show")
        from motet.cli.errors import list_errors_at, show_error_at

        if look is Look.SHOW:
            raise typer.Exit(show_error_at(server, error_id, json=json))
        which = chosen(session, tool, kind, since=since, older_than=older_than, limit=limit)
        which = replace(which, agent=agent, run_id=run, resolved=resolved)
        raise typer.Exit(list_errors_at(server, which, room, each=each, json=json))
    setup = load_setup(config, state)
    if look is Look.SHOW:
        raise typer.Exit(show_error(setup, error_id, json=json))
    if look in (Look.PRUNE, Look.STATS):
        from motet.cli.errors import prune_errors, show_statistics

        which = chosen(session, tool, kind, since=since, older_than=older_than)
        if look is Look.PRUNE:
            raise typer.Exit(prune_errors(setup, which, dry_run=dry_run, json=json))
        raise typer.Exit(show_statistics(setup, which, json=json))
    which = chosen(session, tool, kind, since=since, older_than=older_than, limit=limit)
    filters = replace(which, agent=agent, run_id=run, resolved=resolved)
    raise typer.Exit(list_errors(setup, filters, each=each, json=json))


Redact = Annotated[
    bool, typer.Option("--redact", help="With export: mask secrets, as in stored errors.")
]


class SessionLook(StrEnum):
    """The parts of ``motet sessions``."""

    LIST = "list"
    SHOW = "show"
    EXPORT = "export"
    COMPACT = "compact"
    RESET = "reset"
    DELETE = "delete"
    RELEASE = "release"


@app.command(
    epilog=examples(
        "motet sessions",
        "motet sessions show helper:run_7f3a",
        "motet sessions export helper:run_7f3a --redact --output talk.jsonl",
        "motet sessions delete helper:run_7f3a --yes",
    )
)
def sessions(
    look: Annotated[
        SessionLook,
        typer.Argument(metavar="ACTION", help="List sessions, or the operation on one."),
    ] = SessionLook.LIST,
    session: Annotated[str, typer.Argument(metavar="KEY", help="Session key.")] = "",
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, help="Number of sessions or rows, newest first.")
    ] = 50,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="With export: the file to write."),
    ] = None,
    redact: Redact = False,
    yes: Annotated[bool, typer.Option("--yes", help="With delete: do not ask.")] = False,
    children: Annotated[
        bool, typer.Option("--children", help="Include sessions of sub-agents.")
    ] = False,
    json: Json = False,
    config: Config = None,
    state: State = None,
) -> None:
    """List, show and export sessions, also while a host runs; change them while none runs.

    After `release`, the next host resumes a session that `motet doctor` reports as quarantined.
    """
    from motet.cli import sessions as act
    from motet.cli.setup import load_setup

    setup = load_setup(config, state)
    match look:
        case SessionLook.LIST:
            code = act.list_sessions(setup, limit, json=json, children=children)
        case SessionLook.SHOW:
            code = act.show_session(setup, session, limit, json=json)
        case SessionLook.EXPORT:
            code = act.export_session(setup, session, output, redacted=redact)
        case SessionLook.COMPACT:
            code = act.compact_session(setup, session)
        case SessionLook.RESET:
            code = act.reset_session(setup, session)
        case SessionLook.DELETE:
            code = act.delete_session(setup, session, sure=yes)
        case SessionLook.RELEASE:
            from motet.cli.operate import release_session

            code = release_session(setup, session)
    raise typer.Exit(code)


RoomArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="Room name; with join: the invite.")
]
Words = Annotated[
    list[str] | None,
    typer.Argument(metavar="WORDS", help="Whom, and how: bob moderator; bob 10m; 30."),
]
Query = Annotated[
    str,
    typer.Option(
        "--query",
        metavar="TEXT",
        help="A part of names or titles; with show: of messages.",
    ),
]

BudgetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--budget",
        metavar="WHEN.WHAT=N",
        help="All budgets: hour, day, person_{hour,day,round} of turns, tokens, usd; or none.",
    ),
]
TurnTimeoutOption = Annotated[
    float | None,
    typer.Option("--turn-timeout", min=0.001, max=86_400, help="Seconds that one turn may take."),
]
RoomActivation = Annotated[
    str | None,
    typer.Option("--activation", help="Messages that agents answer: always, mention, off."),
]
RoomModeOption = Annotated[
    str | None,
    typer.Option("--mode", help="Queue mode of messages while agents speak: steer, ..."),
]


class RoomLook(StrEnum):
    """The parts of ``motet rooms``."""

    LIST = "list"
    SHOW = "show"
    CREATE = "create"
    SET = "set"
    PEOPLE = "people"
    SUMMARY = "summary"
    ADD = "add"
    REMOVE = "remove"
    MUTE = "mute"
    UNMUTE = "unmute"
    BAN = "ban"
    UNBAN = "unban"
    LEAVE = "leave"
    TRANSFER = "transfer"
    TITLE = "title"
    SLOW = "slow"
    RATE = "rate"
    ARCHIVE = "archive"
    UNARCHIVE = "unarchive"
    ANSWERS = "answers"
    DETAILS = "details"
    NEWCOMERS = "newcomers"
    INVITE = "invite"
    INVITES = "invites"
    REVOKE = "revoke"
    JOIN = "join"
    EXPORT = "export"
    DELETE = "delete"


@app.command(
    epilog=examples(
        "motet rooms   ·   motet rooms show dev -n 20   ·   motet chat dev",
        "motet rooms create dev --member planner --member coder --person bob",
        "motet rooms set dev-20c76fc1 --mode steer --url wss://motet.example",
        "motet rooms add dev-20c76fc1 bob moderator   ·   motet rooms add dev-20c76fc1 'irc:*'",
        "motet rooms mute dev-20c76fc1 bob 10m   ·   motet rooms slow dev-20c76fc1 30",
        "motet rooms invite dev-20c76fc1 reader 7d 5   ·   motet rooms join mti_...",
        "motet rooms export dev-20c76fc1 --redact > dev.jsonl",
    )
)
def rooms(
    look: Annotated[
        RoomLook,
        typer.Argument(
            metavar="ACTION",
            help=f"{', '.join(one.value for one in RoomLook)}.",
        ),
    ] = RoomLook.LIST,
    room: RoomArgument = "",
    words: Words = None,
    query: Query = "",
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, help="Number of messages, newest first.")
    ] = 50,
    member: Annotated[
        list[str] | None,
        typer.Option(
            "--member", metavar="AGENT", help="With create and set: a member; repeat for more."
        ),
    ] = None,
    person: Annotated[
        list[str] | None,
        typer.Option(
            "--person", metavar="USER", help="A user who may see it; * for all; repeat for more."
        ),
    ] = None,
    mode: RoomModeOption = None,
    max_turns: Annotated[
        int | None, typer.Option("--max-turns", min=1, help="Turns of agents for one message.")
    ] = None,
    turn_timeout: TurnTimeoutOption = None,
    budget: BudgetOption = None,
    activation: RoomActivation = None,
    redact: Redact = False,
    json: Json = False,
    config: Config = None,
    state: State = None,
    url: Url = None,
    token_file: TokenFile = None,
) -> None:
    """List and show rooms, also while a host runs; create, change and administer rooms of a
    running host, their people and invites.

    `motet chat NAME` talks in one.
    """
    from motet.cli import rooms as act
    from motet.cli.running import Server
    from motet.cli.setup import load_setup

    server = _server(url, token_file, config or state, None) or Server(load_setup(config, state))
    who, budgets = (tuple(member or ()), tuple(person or ())), tuple(budget or ())
    wanted = act.Wanted(*who, mode, max_turns, turn_timeout, activation, budgets)
    setup = server.setup
    if look not in (RoomLook.LIST, RoomLook.SHOW, RoomLook.CREATE, RoomLook.SET):
        from motet.cli.room_people import administer

        code = administer(server, look.value, room, words or [], json=json, redacted=redact)
    elif query and look is RoomLook.LIST:
        code = act.list_remote_rooms(server, json=json, query=query)
    elif look is RoomLook.CREATE:
        code = act.create_room(server, room, wanted, json=json)
    elif look is RoomLook.SET:
        code = act.set_room(server, room, wanted, json=json)
    elif look is RoomLook.LIST:
        code = (
            act.list_rooms(setup, json=json) if setup else act.list_remote_rooms(server, json=json)
        )
    elif setup is None:
        code = act.show_remote_room(server, room, limit, json=json, query=query)
    else:
        code = act.show_room(setup, room, limit, json=json, query=query)
    raise typer.Exit(code)


class TraceLook(StrEnum):
    """The parts of ``motet traces``."""

    LIST = "list"
    SHOW = "show"
    EXPORT = "export"


@app.command(
    epilog=examples(
        "motet traces --since 1h --status failed",
        "motet traces show run_7f3a --waterfall",
        "motet traces export --since 1d --otlp http://127.0.0.1:4318",
        "motet traces --room dev --url wss://motet.example --token-file token.txt",
    )
)
def traces(
    look: Annotated[
        TraceLook,
        typer.Argument(metavar="ACTION", help="List runs, show one, or export to a collector."),
    ] = TraceLook.LIST,
    run_id: Annotated[
        str, typer.Argument(metavar="RUN", help="Id of the run, or its first characters.")
    ] = "",
    waterfall: Annotated[
        bool, typer.Option("--waterfall", "-w", help="Show a bar for the time of each part.")
    ] = False,
    session: OfSession = None,
    agent: OfAgent = None,
    user: Annotated[
        str | None, typer.Option("--user", metavar="NAME", help="Only this user.")
    ] = None,
    status: Annotated[
        str | None,
        typer.Option("--status", metavar="WORD", help="Only this status: failed, cancelled, ..."),
    ] = None,
    since: Since = None,
    limit: Limit = 20,
    otlp: Annotated[
        str | None,
        typer.Option("--otlp", metavar="URL", help="With export: address of the collector."),
    ] = None,
    json: Json = False,
    config: Config = None,
    state: State = None,
    room: OfRoom = None,
    url: Url = None,
    token_file: TokenFile = None,
) -> None:
    """List and show traces of runs: requests, calls and times. Works beside a running host."""
    from motet.cli.setup import load_setup
    from motet.cli.traces import chosen, export, list_all, list_all_at, show, show_at

    if (server := _server(url, token_file, config or state, room)) is not None:
        if look is TraceLook.EXPORT:
            raise typer.BadParameter("export is for the host's own machine: list or show")
        if look is TraceLook.SHOW:
            raise typer.Exit(show_at(server, run_id, waterfall=waterfall, json=json))
        which = chosen(session, agent, user, status, since, limit)
        raise typer.Exit(list_all_at(server, which, room, json=json))
    setup = load_setup(config, state)
    if look is TraceLook.SHOW:
        raise typer.Exit(show(setup, run_id, waterfall=waterfall, json=json))
    which = chosen(session, agent, user, status, since, limit)
    if look is TraceLook.EXPORT:
        raise typer.Exit(export(setup, which, run_id, otlp, json=json))
    raise typer.Exit(list_all(setup, which, json=json))
