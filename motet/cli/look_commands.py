"""The commands that look at agents and their surroundings, with their options."""

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
    """The parts of ``motet mcp``."""

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
    run_id: Annotated[str, typer.Argument(metavar="RUN", help="The run; its beginning will do.")],
    model: Annotated[
        str, typer.Option("--model", "-m", metavar="MODEL", help="Who answers, such as demo.")
    ] = "recorded",
    tools: Annotated[
        Tools,
        typer.Option("--tools", help="Results of then, or run the tools with all their effects."),
    ] = Tools.JOURNAL,
    json: Json = False,
    config: Config = None,
    state: State = None,
) -> None:
    """Run a stored run once more, beside its session, and compare: 0 the same, 1 different."""
    from motet.cli.replay import replay_run
    from motet.cli.setup import load_setup

    setup = load_setup(config, state)
    raise typer.Exit(replay_run(setup, run_id, model, tools.value, json=json))


@app.command()
def doctor(config: Config = None, state: State = None) -> None:
    """Check configuration, keys, packages, sandbox, MCP servers and state; 1: one is broken."""
    from motet.cli.doctor import examine

    raise typer.Exit(examine(config, state))
