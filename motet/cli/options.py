"""The options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Config = Annotated[
    Path | None,
    typer.Option(
        "--config", "-c", metavar="FILE", help="Default: motet.toml here, if there is one."
    ),
]
State = Annotated[
    Path | None,
    typer.Option(
        "--state",
        metavar="DIR",
        help="Where sessions are kept. Default: as configured, else in your home directory.",
    ),
]
Model = Annotated[
    str | None,
    typer.Option(
        "--model", "-m", metavar="MODEL", help="demo, openai:NAME or anthropic:NAME for this time."
    ),
]
Session = Annotated[
    str | None,
    typer.Option(
        "--session", "-s", metavar="KEY", help="Go on with this session. Default: a new one."
    ),
]
Url = Annotated[
    str | None,
    typer.Option("--url", metavar="URL", help="Of a `motet serve` somewhere else."),
]
TokenFile = Annotated[
    Path | None,
    typer.Option(
        "--token-file", metavar="FILE", help="The token for --url is in it. Or set MOTET_TOKEN."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]


def examples(*lines: str) -> str:
    """Examples below a help text, each on a line of its own."""
    return "\n\n".join(("Examples:", *lines))
