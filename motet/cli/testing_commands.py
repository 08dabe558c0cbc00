"""The commands that make tests of agents, with their options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from motet.cli.app import app
from motet.cli.options import Config, State, examples


@app.command(
    epilog=examples(
        "motet record run_7f3a > case.json",
        "motet record run_7f3a... --url ws://127.0.0.1:7878 --token-file token.txt > case.json",
    )
)
def record(
    run_id: Annotated[
        str, typer.Argument(metavar="RUN", help="The run; its beginning will do without --url.")
    ],
    url: Annotated[
        str | None, typer.Option("--url", metavar="URL", help="A run of a `motet serve` there.")
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(
            "--token-file", metavar="FILE", help="The token for --url is in it. Or set MOTET_TOKEN."
        ),
    ] = None,
    config: Config = None,
    state: State = None,
) -> None:
    """Print a run as a file that a test plays: what its model said, what its tools gave."""
    from motet.cli.record import record_away, record_run
    from motet.cli.setup import load_setup

    if url is None:
        raise typer.Exit(record_run(load_setup(config, state), run_id))
    if config or state:
        raise typer.BadParameter("the host at --url has its own config and state")
    raise typer.Exit(record_away(url, token_file, run_id))
