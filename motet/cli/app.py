"""The commands and their options; what they do is in the modules of their names."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from motet.cli.options import Config, Json, Model, Session, State, examples
from motet.cli.replay_options import EXAMPLES as REPLAYS
from motet.cli.replay_options import replay
from motet.protocols.sessions import Role
from motet.protocols.version import __version__

app = typer.Typer(
    name="motet",
    help="Run LLM agents: once, in a chat, or as a server.",
    epilog="Without any key: motet run helper 'list files'  or  motet chat",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"motet {__version__}")
        raise typer.Exit


@app.callback()
def root(
    _: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options that come before a command."""


@app.command(
    epilog=examples(
        "motet run helper 'list files'",
        "motet run helper 'hi' -m openai:gpt-5.2 --json",
        "git diff | motet run helper -",
    )
)
def run(
    agent: Annotated[str, typer.Argument(metavar="AGENT", help="Name of a configured agent.")],
    text: Annotated[
        str, typer.Argument(metavar="TEXT", help="What to say; - reads it from a pipe.")
    ],
    json: Json = False,
    model: Model = None,
    session: Session = None,
    config: Config = None,
    state: State = None,
) -> None:
    """Answer one input: 0 answered, 1 failed, 2 usage, 3 limit, 4 stopped, 5 waiting."""
    from motet.cli.run import run_once
    from motet.cli.setup import load_setup

    setup = load_setup(config, state).with_model(agent, model)
    raise typer.Exit(run_once(setup, setup.name(agent), text, session=session, json=json))


@app.command(
    epilog="motet chat   ·   motet chat helper -m openai:gpt-5.2   ·   echo hi | motet chat"
)
def chat(
    agent: Annotated[
        str | None, typer.Argument(metavar="AGENT", help="Default: the first one configured.")
    ] = None,
    model: Model = None,
    session: Session = None,
    config: Config = None,
    state: State = None,
) -> None:
    """Talk with an agent. Ctrl-C stops what it is doing, /help lists what else there is."""
    from motet.cli.chat import chat as talk
    from motet.cli.setup import load_setup

    setup = load_setup(config, state)
    name = setup.name(agent)
    raise typer.Exit(talk(setup.with_model(name, model), name, session))


@app.command(
    epilog=examples("motet serve", "motet serve --listen 0.0.0.0:7878 --token-file token.txt")
)
def serve(
    config: Config = None,
    listen: Annotated[
        str | None, typer.Option("--listen", metavar="HOST:PORT", help="Default: 127.0.0.1:7878.")
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(
            "--token-file",
            metavar="FILE",
            help="Clients need the token in it; it is made if there is none. Or set MOTET_TOKEN.",
        ),
    ] = None,
    state: State = None,
) -> None:
    """Host the agents for WebSocket clients, until Ctrl-C."""
    from motet.cli.serve import serve as run_server
    from motet.cli.setup import load_setup

    raise typer.Exit(run_server(load_setup(config, state), listen, token_file))


Kind = Annotated[
    str | None,
    typer.Option("--kind", metavar="KIND", help="Only such as timeout, auth or not_found."),
]
OlderThan = Annotated[
    str | None, typer.Option("--older-than", metavar="WHEN", help="What to prune: 30d.")
]


class Look(StrEnum):
    """What ``motet errors`` shows."""

    LIST = "list"
    SHOW = "show"
    PRUNE = "prune"
    STATS = "stats"
    ESCALATIONS = "escalations"


@app.command(
    epilog=examples(
        "motet errors --tool shell --since 12h",
        "motet errors show err_2026...",
        "motet errors stats --since 7d",
        "motet errors prune --older-than 30d --dry-run",
        "motet errors escalations",
        "motet errors escalations resolve esc_7f3a --decision advice --note 'use staging'",
    )
)
def errors(
    look: Annotated[Look, typer.Argument(help="A table, or one error whole.")] = Look.LIST,
    error_id: Annotated[
        str, typer.Argument(metavar="ID", help="The one to show; or resolve, for escalations.")
    ] = "",
    escalation: Annotated[
        str, typer.Argument(metavar="ESCALATION", help="The one to resolve.")
    ] = "",
    decision: Annotated[
        str | None, typer.Option("--decision", metavar="WORD", help="retry, advice or give_up.")
    ] = None,
    note: Annotated[
        str, typer.Option("--note", metavar="TEXT", help="What the agent is told.")
    ] = "",
    session: Annotated[
        str | None, typer.Option("--session", "-s", metavar="KEY", help="Only of this session.")
    ] = None,
    tool: Annotated[
        str | None, typer.Option("--tool", metavar="NAME", help="Only of this tool.")
    ] = None,
    since: Annotated[
        str | None, typer.Option("--since", metavar="WHEN", help="30m, 12h, 7d or 2026-11-21.")
    ] = None,
    kind: Kind = None,
    older_than: OlderThan = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say how many would be pruned.")
    ] = False,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, help="How many, newest first.")
    ] = 20,
    json: Json = False,
    config: Config = None,
    state: State = None,
) -> None:
    """Look at the stored errors of tools, also while a host runs."""
    from motet.cli.errors import chosen, list_errors, show_error
    from motet.cli.setup import load_setup

    setup = load_setup(config, state)
    if look is Look.SHOW:
        raise typer.Exit(show_error(setup, error_id, json=json))
    if look is Look.ESCALATIONS:
        from motet.cli.escalations import list_escalations, resolve

        if error_id == "resolve":
            raise typer.Exit(resolve(setup, escalation, decision, note, json=json))
        raise typer.Exit(list_escalations(setup, session, limit, json=json))
    if look in (Look.PRUNE, Look.STATS):
        from motet.cli.error_upkeep import prune_errors, show_statistics

        which = chosen(session, tool, kind, since=since, older_than=older_than)
        if look is Look.PRUNE:
            raise typer.Exit(prune_errors(setup, which, dry_run=dry_run, json=json))
        raise typer.Exit(show_statistics(setup, which, json=json))
    which = chosen(session, tool, kind, since=since, older_than=older_than, limit=limit)
    raise typer.Exit(list_errors(setup, which, json=json))


class SessionLook(StrEnum):
    """What ``motet sessions`` does."""

    LIST = "list"
    SHOW = "show"
    EXPORT = "export"
    COMPACT = "compact"
    RESET = "reset"
    DELETE = "delete"


@app.command(
    epilog=examples(
        "motet sessions",
        "motet sessions show helper:run_7f3a",
        "motet sessions export helper:run_7f3a --output talk.jsonl",
        "motet sessions delete helper:run_7f3a --yes",
    )
)
def sessions(
    look: Annotated[
        SessionLook, typer.Argument(help="A table, a transcript, or what to do with one.")
    ] = SessionLook.LIST,
    session: Annotated[str, typer.Argument(metavar="KEY", help="Which session.")] = "",
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, help="How many sessions or rows, newest first.")
    ] = 50,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Where an export goes."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Delete without asking.")] = False,
    children: Annotated[
        bool, typer.Option("--children", help="List those of sub-agents as well.")
    ] = False,
    json: Json = False,
    config: Config = None,
    state: State = None,
) -> None:
    """Look at sessions, also while a host runs; compact, reset, delete them when none does."""
    from motet.cli import sessions as act
    from motet.cli.setup import load_setup

    setup = load_setup(config, state)
    match look:
        case SessionLook.LIST:
            code = act.list_sessions(setup, limit, json=json, children=children)
        case SessionLook.SHOW:
            code = act.show_session(setup, session, limit, json=json)
        case SessionLook.EXPORT:
            code = act.export_session(setup, session, output)
        case SessionLook.COMPACT:
            code = act.compact_session(setup, session)
        case SessionLook.RESET:
            code = act.reset_session(setup, session)
        case SessionLook.DELETE:
            code = act.delete_session(setup, session, sure=yes)
    raise typer.Exit(code)


class TraceLook(StrEnum):
    """What ``motet traces`` does."""

    LIST = "list"
    SHOW = "show"
    EXPORT = "export"


@app.command(
    epilog=examples(
        "motet traces --since 1h --status failed",
        "motet traces show run_7f3a --waterfall",
        "motet traces export --since 1d --otlp http://127.0.0.1:4318",
    )
)
def traces(
    look: Annotated[
        TraceLook, typer.Argument(help="A table, one run, or to a collector.")
    ] = TraceLook.LIST,
    run_id: Annotated[
        str, typer.Argument(metavar="RUN", help="The one to show or export; its beginning will do.")
    ] = "",
    waterfall: Annotated[
        bool, typer.Option("--waterfall", "-w", help="Bars that show when each part was.")
    ] = False,
    session: Annotated[
        str | None, typer.Option("--session", "-s", metavar="KEY", help="Only of this session.")
    ] = None,
    agent: Annotated[
        str | None, typer.Option("--agent", metavar="NAME", help="Only of this agent.")
    ] = None,
    user: Annotated[
        str | None, typer.Option("--user", metavar="NAME", help="Only of this user.")
    ] = None,
    status: Annotated[
        str | None,
        typer.Option("--status", metavar="WORD", help="Only such as failed or cancelled."),
    ] = None,
    since: Annotated[
        str | None, typer.Option("--since", metavar="WHEN", help="30m, 12h, 7d or 2026-11-21.")
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, help="How many, newest first.")
    ] = 20,
    otlp: Annotated[
        str | None, typer.Option("--otlp", metavar="URL", help="The collector to export to.")
    ] = None,
    json: Json = False,
    config: Config = None,
    state: State = None,
) -> None:
    """Look at what runs did and how long it took, also while a host runs."""
    from motet.cli.setup import load_setup
    from motet.cli.traces import chosen, export, list_all, show

    setup = load_setup(config, state)
    if look is TraceLook.SHOW:
        raise typer.Exit(show(setup, run_id, waterfall=waterfall, json=json))
    which = chosen(session, agent, user, status, since, limit)
    if look is TraceLook.EXPORT:
        raise typer.Exit(export(setup, which, run_id, otlp, json=json))
    raise typer.Exit(list_all(setup, which, json=json))


class HookLook(StrEnum):
    """What ``motet hooks`` does."""

    LIST = "list"
    TEST = "test"


@app.command(
    epilog=examples(
        "motet hooks",
        """motet hooks test --event before_tool --tool shell --args '{"command": "ls"}'""",
    )
)
def hooks(
    look: Annotated[
        HookLook, typer.Argument(help="A table, or a dry run of one event.")
    ] = HookLook.LIST,
    event: Annotated[
        str, typer.Option("--event", metavar="POINT", help="Where it happens.")
    ] = "before_tool",
    tool: Annotated[str, typer.Option("--tool", metavar="NAME", help="Of the call.")] = "",
    args: Annotated[str, typer.Option("--args", metavar="JSON", help="Of the call.")] = "{}",
    text: Annotated[
        str, typer.Option("--text", metavar="TEXT", help="Of the input, result, answer or message.")
    ] = "",
    json: Json = False,
    config: Config = None,
    state: State = None,
) -> None:
    """Look at the configured hooks; test asks them, without any run: 0 allowed, 1 denied."""
    from motet.cli.hooks import ask_hooks, list_hooks
    from motet.cli.setup import load_setup

    setup = load_setup(config, state)
    if look is HookLook.TEST:
        raise typer.Exit(ask_hooks(setup, event, tool, args, text, json=json))
    raise typer.Exit(list_hooks(setup, json=json))


class Mode(StrEnum):
    """How much of a prompt is wanted."""

    FULL = "full"
    MINIMAL = "minimal"


@app.command(
    epilog=examples(
        "motet prompt helper",
        "motet prompt helper --session alice:notes",
        "motet prompt helper --mode minimal --json",
    )
)
def prompt(
    agent: Annotated[
        str | None, typer.Argument(metavar="AGENT", help="Default: the first one configured.")
    ] = None,
    session: Annotated[
        str | None, typer.Option("--session", "-s", metavar="KEY", help="As in this session.")
    ] = None,
    mode: Annotated[
        Mode | None, typer.Option("--mode", help="Default: as the agent and the session say.")
    ] = None,
    json: Json = False,
    config: Config = None,
    state: State = None,
) -> None:
    """Print an agent's system prompt and the size of its sections. No model is asked."""
    from motet.cli.prompt import show_prompt
    from motet.cli.setup import load_setup

    wanted = None if mode is None else mode.value
    setup = load_setup(config, state)
    raise typer.Exit(show_prompt(setup, setup.name(agent), session, wanted, json=json))


@app.command(
    epilog=examples(
        "motet tools helper", "motet tools helper --as bob", "motet tools --role viewer --json"
    )
)
def tools(
    agent: Annotated[
        str | None, typer.Argument(metavar="AGENT", help="Default: the first one configured.")
    ] = None,
    user: Annotated[
        str | None,
        typer.Option("--as", metavar="USER", help="For whom; with the role of their token."),
    ] = None,
    role: Annotated[Role | None, typer.Option("--role", help="With this role instead.")] = None,
    session: Annotated[
        str, typer.Option("--session", "-s", metavar="KEY", help="As in this session.")
    ] = "",
    json: Json = False,
    config: Config = None,
    state: State = None,
) -> None:
    """Print what an agent may call, what not, and which rule says so. No model is asked."""
    from motet.cli.setup import load_setup
    from motet.cli.tools import list_tools

    setup = load_setup(config, state)
    raise typer.Exit(list_tools(setup, setup.name(agent), user, role, session, json=json))


class McpLook(StrEnum):
    """What ``motet mcp`` does."""

    LIST = "list"
    TOOLS = "tools"


@app.command(epilog=examples("motet mcp", "motet mcp tools", "motet mcp tools git --json"))
def mcp(
    look: Annotated[
        McpLook, typer.Argument(help="The configured servers, or what they offer.")
    ] = McpLook.LIST,
    server: Annotated[
        str | None, typer.Argument(metavar="SERVER", help="Of tools: only this one.")
    ] = None,
    json: Json = False,
    config: Config = None,
    state: State = None,
) -> None:
    """Look at the configured MCP servers; tools starts them for that: 1 when one cannot be used."""
    from motet.cli.mcp import list_server_tools, list_servers
    from motet.cli.setup import load_setup

    setup = load_setup(config, state)
    if look is McpLook.TOOLS:
        raise typer.Exit(list_server_tools(setup, server, json=json))
    raise typer.Exit(list_servers(setup, json=json))


app.command(epilog=examples(*REPLAYS))(replay)


@app.command()
def doctor(config: Config = None, state: State = None) -> None:
    """Check configuration, keys, packages, sandbox, MCP servers and state; 1: one is broken."""
    from motet.cli.doctor import examine

    raise typer.Exit(examine(config, state))
