"""The commands that inspect agents, their surroundings and the machine, with their options."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from motet.cli.app import app
from motet.cli.options import Config, Json, State, examples
from motet.protocols.sessions import Role


class HookLook(StrEnum):
    """The parts of ``motet hooks``."""

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
        HookLook,
        typer.Argument(metavar="ACTION", help="List the hooks, or test them with one event."),
    ] = HookLook.LIST,
    event: Annotated[
        str, typer.Option("--event", metavar="POINT", help="Point of the event.")
    ] = "before_tool",
    tool: Annotated[str, typer.Option("--tool", metavar="NAME", help="Tool of the event.")] = "",
    args: Annotated[
        str, typer.Option("--args", metavar="JSON", help="Arguments of the event.")
    ] = "{}",
    text: Annotated[
        str,
        typer.Option(
            "--text", metavar="TEXT", help="Text of the event: input, result, answer, message."
        ),
    ] = "",
    json: Json = False,
    config: Config = None,
    state: State = None,
) -> None:
    """List the configured hooks, or test them without a run.

    Exit codes of test: 0 allowed, 1 denied.
    """
    from motet.cli.hooks import ask_hooks, list_hooks
    from motet.cli.setup import load_setup

    setup = load_setup(config, state)
    if look is HookLook.TEST:
        raise typer.Exit(ask_hooks(setup, event, tool, args, text, json=json))
    raise typer.Exit(list_hooks(setup, json=json))


class Mode(StrEnum):
    """The size of the prompt."""

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
        str | None, typer.Argument(metavar="AGENT", help="Default: the first configured agent.")
    ] = None,
    session: Annotated[
        str | None, typer.Option("--session", "-s", metavar="KEY", help="Session to assume.")
    ] = None,
    mode: Annotated[
        Mode | None,
        typer.Option("--mode", help="Size of the prompt. Default: by agent and session."),
    ] = None,
    json: Json = False,
    config: Config = None,
    state: State = None,
) -> None:
    """Print an agent's system prompt and the size of its sections, without a model request."""
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
        str | None, typer.Argument(metavar="AGENT", help="Default: the first configured agent.")
    ] = None,
    user: Annotated[
        str | None,
        typer.Option("--as", metavar="USER", help="User to assume, with the role of their token."),
    ] = None,
    role: Annotated[Role | None, typer.Option("--role", help="Role to assume instead.")] = None,
    session: Annotated[
        str, typer.Option("--session", "-s", metavar="KEY", help="Session to assume.")
    ] = "",
    json: Json = False,
    config: Config = None,
    state: State = None,
) -> None:
    """Print the tools that an agent may and may not call, each with the deciding rule."""
    from motet.cli.setup import load_setup
    from motet.cli.tools import list_tools

    setup = load_setup(config, state)
    raise typer.Exit(list_tools(setup, setup.name(agent), user, role, session, json=json))


class McpLook(StrEnum):
    """The parts of ``motet mcp``."""

    LIST = "list"
    TOOLS = "tools"


@app.command(epilog=examples("motet mcp", "motet mcp tools", "motet mcp tools git --json"))
def mcp(
    look: Annotated[
        McpLook,
        typer.Argument(
            metavar="ACTION", help="List the servers, or start them and list their tools."
        ),
    ] = McpLook.LIST,
    server: Annotated[
        str | None, typer.Argument(metavar="SERVER", help="With tools: only this server.")
    ] = None,
    json: Json = False,
    config: Config = None,
    state: State = None,
) -> None:
    """List the configured MCP servers, or their tools.

    Exit code of tools: 1 if a server cannot be used.
    """
    from motet.cli.setup import load_setup
    from motet.cli.tools import list_server_tools, list_servers

    setup = load_setup(config, state)
    if look is McpLook.TOOLS:
        raise typer.Exit(list_server_tools(setup, server, json=json))
    raise typer.Exit(list_servers(setup, json=json))


class Tools(StrEnum):
    """The source of the results of calls."""

    JOURNAL = "journal"
    LIVE = "live"


@app.command(
    epilog=examples(
        "motet replay run_7f3a",
        "motet replay run_7f3a --model openai:gpt-5.2",
        "motet replay run_7f3a --tools live --json",
    )
)
def replay(
    run_id: Annotated[
        str, typer.Argument(metavar="RUN", help="Id of the run, or its first characters.")
    ],
    model: Annotated[
        str,
        typer.Option(
            "--model",
            "-m",
            metavar="MODEL",
            help="Model that answers; default: the recorded answers.",
        ),
    ] = "recorded",
    tools: Annotated[
        Tools,
        typer.Option("--tools", help="Use recorded results, or run the tools with their effects."),
    ] = Tools.JOURNAL,
    json: Json = False,
    config: Config = None,
    state: State = None,
) -> None:
    """Replay a stored run and compare; its session does not change.

    Exit codes: 0 same, 1 different.
    """
    from motet.cli.replay import replay_run
    from motet.cli.setup import load_setup

    setup = load_setup(config, state)
    raise typer.Exit(replay_run(setup, run_id, model, tools.value, json=json))


Full = Annotated[
    bool, typer.Option("--full", help="Read the whole database through, however large it is.")
]
Repair = Annotated[
    bool,
    typer.Option(
        "--repair",
        help="Instead: make a new database of what can be read of a damaged one, which is kept.",
    ),
]


@app.command()
def doctor(
    config: Config = None, state: State = None, full: Full = False, repair: Repair = False
) -> None:
    """Check configuration, keys, packages, sandbox, MCP servers and state.

    Exit code: 1 if one is broken.
    """
    from motet.cli.doctor import examine
    from motet.cli.repair import repair as repair_database
    from motet.cli.setup import load_setup

    if repair:
        raise typer.Exit(repair_database(load_setup(config, state).state))
    raise typer.Exit(examine(config, state, full=full))
