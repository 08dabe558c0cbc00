"""The commands that make tests of agents, with their options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from motet.cli.app import app
from motet.cli.options import Config, Json, State
from motet.cli.options import examples as shown


@app.command(
    epilog=shown(
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
    from motet.cli.record import record_remote, record_run
    from motet.cli.setup import load_setup

    if url is None:
        raise typer.Exit(record_run(load_setup(config, state), run_id))
    if config or state:
        raise typer.BadParameter("the host at --url has its own config and state")
    raise typer.Exit(record_remote(url, token_file, run_id))


FUZZ = (
    "Try programs of users, models, faults and crashes on an agent or room: 0 nothing, 1 found, "
    "4 stopped.\n\nUsers send, steer, stop and disconnect; the model calls random tools, right "
    "and wrong; tools are late and fail; the power is cut. Nothing real is within reach: no model "
    "is asked, and time is virtual. What every host guarantees is checked. What breaks it is made "
    "as small as it can be, printed as a test, and kept as a case. Ctrl-C ends the search with "
    "what is known."
)


@app.command(
    help=FUZZ,
    epilog=shown(
        "motet fuzz myapp.agents:agent",
        "motet fuzz helper --examples 2000 --seed 7",
        "motet fuzz myapp.rooms:den --users 3 --check motet.testing.invariants:no_self_reply",
        "motet fuzz myapp.agents:agent > tests/test_found.py",
    ),
)
def fuzz(
    agent: Annotated[
        str,
        typer.Argument(metavar="AGENT", help="MODULE:NAME, or the name of a configured one."),
    ],
    examples: Annotated[
        int, typer.Option("--examples", "-n", min=1, help="How many programs are tried at most.")
    ] = 500,
    seed: Annotated[
        int | None,
        typer.Option("--seed", min=0, help="The same seed tries the same. Default: any."),
    ] = None,
    users: Annotated[int, typer.Option("--users", min=1, max=8, help="At most.")] = 2,
    sessions: Annotated[int, typer.Option("--sessions", min=1, help="Of each user.")] = 1,
    steps: Annotated[int, typer.Option("--steps", min=1, help="Of a program, at most.")] = 20,
    check: Annotated[
        list[str] | None,
        typer.Option("--check", metavar="MODULE:NAME", help="One more invariant; again for more."),
    ] = None,
    cases: Annotated[
        Path, typer.Option("--cases", metavar="DIR", help="Where findings are written.")
    ] = Path(".motet", "cases"),
    json: Json = False,
    config: Config = None,
) -> None:
    """Search for what breaks an agent: see ``FUZZ``."""
    from motet.cli.fuzz import Order
    from motet.cli.fuzz import fuzz as run

    order = Order(agent, examples, seed, users, sessions, steps, check or (), cases, config, json)
    raise typer.Exit(run(order))
