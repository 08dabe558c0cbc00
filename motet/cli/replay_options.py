"""The command ``motet replay`` and its options; what it does is in :mod:`motet.cli.replay`."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from motet.cli.options import Config, Json, State

EXAMPLES = (
    "motet replay run_7f3a",
    "motet replay run_7f3a --model openai:gpt-5.2",
    "motet replay run_7f3a --tools live --json",
)


class Tools(StrEnum):
    """Where a replay has the results of calls from."""

    JOURNAL = "journal"
    LIVE = "live"


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
