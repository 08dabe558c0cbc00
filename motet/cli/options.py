"""The options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Config = Annotated[
    Path | None,
    typer.Option(
        "--config", "-c", metavar="FILE", help="Configuration. Default: motet.toml here, if any."
    ),
]
State = Annotated[
    Path | None,
    typer.Option(
        "--state",
        metavar="DIR",
        help="State directory. Default: as configured, else below your home directory.",
    ),
]
Model = Annotated[
    str | None,
    typer.Option(
        "--model", "-m", metavar="MODEL", help="Use this model: demo, openai:NAME, anthropic:NAME."
    ),
]
Session = Annotated[
    str | None,
    typer.Option("--session", "-s", metavar="KEY", help="Session to continue. Default: a new one."),
]
Url = Annotated[
    str | None,
    typer.Option("--url", metavar="URL", help="Address of a `motet serve` to use instead."),
]
TokenFile = Annotated[
    Path | None,
    typer.Option(
        "--token-file", metavar="FILE", help="File with the token for --url. Or set MOTET_TOKEN."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON only.")]


def examples(*lines: str) -> str:
    """Examples below a help text, each on a line of its own."""
    return "\n\n".join(("Examples:", *lines))
