"""The command line, and the commands that run agents; ``*_commands`` has the others.

Here are options only. The work of a command is in the module of its name, imported when it is used.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from motet.cli.options import Config, Json, Model, Session, State, TokenFile, Url, examples
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
    text: Annotated[str, typer.Argument(metavar="TEXT", help="The input; - reads standard input.")],
    json: Json = False,
    model: Model = None,
    session: Session = None,
    config: Config = None,
    state: State = None,
) -> None:
    """Run an agent on one input and print its answer.

    Exit codes: 0 answered, 1 failed, 2 usage error, 3 limit, 4 stopped, 5 waiting, 6 refused.
    """
    from motet.cli.run import run_once
    from motet.cli.setup import load_setup

    setup = load_setup(config, state).with_model(agent, model)
    raise typer.Exit(run_once(setup, setup.name(agent), text, session=session, json=json))


@app.command(
    epilog=examples(
        "motet chat   ·   motet chat helper -m openai:gpt-5.2   ·   echo hi | motet chat",
        "motet chat --url ws://127.0.0.1:7878 --token-file token.txt",
    )
)
def chat(
    agent: Annotated[
        str | None,
        typer.Argument(
            metavar="AGENT", help="An agent or a room. Default: the first configured agent."
        ),
    ] = None,
    model: Model = None,
    session: Session = None,
    config: Config = None,
    state: State = None,
    url: Url = None,
    token_file: TokenFile = None,
) -> None:
    """Chat with an agent or in a room. Ctrl-C stops the run, /help lists the commands."""
    from motet.cli.chat import chat as talk
    from motet.cli.chat import chat_remote, chat_room
    from motet.cli.setup import load_setup

    if url is not None:
        if model or config or state:
            raise typer.BadParameter("the host at --url has its own model, config and state")
        raise typer.Exit(chat_remote(url, token_file, agent, session))
    setup = load_setup(config, state)
    if agent and agent in setup.config.rooms and agent not in setup.config.agents:
        if model or session:
            raise typer.BadParameter("each agent of a room has its own model and session")
        raise typer.Exit(chat_room(setup, agent))
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
            help="File with the token of the clients; created if missing. Or set MOTET_TOKEN.",
        ),
    ] = None,
    no_token: Annotated[
        bool,
        typer.Option(
            "--no-token",
            help="Clients need no token: every user and program of this machine is an admin.",
        ),
    ] = False,
    watch: Annotated[
        bool, typer.Option("--watch", help="Reload the configuration when its file changes.")
    ] = False,
    state: State = None,
) -> None:
    """Serve the agents to WebSocket clients until Ctrl-C. SIGHUP reloads the configuration.

    Without a token of yours, one is made, kept in the state and part of the printed link.
    """
    from motet.cli.serve import serve as run_server
    from motet.cli.setup import load_setup

    setup = load_setup(config, state)
    raise typer.Exit(run_server(setup, listen, token_file, open_to_all=no_token, watch=watch))


class ApprovalLook(StrEnum):
    """The parts of ``motet approvals``."""

    LIST = "list"
    SHOW = "show"
    ALLOW = "allow"
    DENY = "deny"
    GRANTS = "grants"
    REVOKE = "revoke"


@app.command(
    epilog=examples(
        "motet approvals",
        "motet approvals show apr_20c76fc1386b24ac",
        "motet approvals allow apr_20c76fc1386b24ac",
        "motet approvals deny apr_20c76fc1386b24ac --note 'not at noon'",
        "motet approvals grants",
        "motet approvals --url wss://motet.example --token-file token.txt",
    )
)
def approvals(
    look: Annotated[
        ApprovalLook,
        typer.Argument(
            metavar="ACTION", help="List approvals, show or answer one, list or revoke grants."
        ),
    ] = ApprovalLook.LIST,
    which: Annotated[
        str,
        typer.Argument(metavar="ID", help="Id of the approval, or of the grant to revoke."),
    ] = "",
    always: Annotated[
        bool, typer.Option("--always", help="With allow: also all later calls of this tool.")
    ] = False,
    note: Annotated[
        str,
        typer.Option("--note", metavar="TEXT", help="With deny: a reason, which the model reads."),
    ] = "",
    session: Annotated[
        str | None, typer.Option("--session", "-s", metavar="KEY", help="Only this session.")
    ] = None,
    all: Annotated[
        bool, typer.Option("--all", help="Include answered and expired approvals.")
    ] = False,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, help="Number of entries, newest first.")
    ] = 50,
    json: Json = False,
    config: Config = None,
    state: State = None,
    url: Url = None,
    token_file: TokenFile = None,
) -> None:
    """List and answer calls that wait for a person's approval, also while a host runs.

    When no host runs, an answer resumes the run here, with the exit codes of motet run.
    """
    from motet.cli import approvals as act
    from motet.cli.setup import load_setup

    if url is not None:
        from motet.cli.chat import read_token
        from motet.cli.running import Server

        if config or state:
            raise typer.BadParameter("the host at --url has its own config and state")
        server, options = Server(None, url, read_token(token_file)), (always, note)
        raise typer.Exit(
            act.at_server(server, look.value, which, session, limit, options, all=all, json=json)
        )
    setup = load_setup(config, state)
    match look:
        case ApprovalLook.LIST:
            code = act.list_approvals(setup, session, limit, all=all, json=json)
        case ApprovalLook.SHOW:
            code = act.show(setup, which, json=json)
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
