"""The commands that make tests of agents, with their options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from motet.cli.app import app
from motet.cli.options import Config, Json, Model, State
from motet.cli.options import examples as shown


@app.command(
    epilog=shown(
        "motet record run_7f3a > case.json",
        "motet record run_7f3a... --url ws://127.0.0.1:7878 --token-file token.txt > case.json",
    )
)
def record(
    run_id: Annotated[
        str,
        typer.Argument(
            metavar="RUN", help="Id of the run; without --url its first characters suffice."
        ),
    ],
    url: Annotated[
        str | None,
        typer.Option("--url", metavar="URL", help="Address of the `motet serve` that has the run."),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(
            "--token-file",
            metavar="FILE",
            help="File with the token for --url. Or set MOTET_TOKEN.",
        ),
    ] = None,
    config: Config = None,
    state: State = None,
) -> None:
    """Print a stored run as a case file for a test: the model's answers and tools' results."""
    from motet.cli.record import record_remote, record_run
    from motet.cli.setup import load_setup

    if url is None:
        raise typer.Exit(record_run(load_setup(config, state), run_id))
    if config or state:
        raise typer.BadParameter("the host at --url has its own config and state")
    raise typer.Exit(record_remote(url, token_file, run_id))


FUZZ = (
    "Test an agent or room with generated programs of users, models, faults and crashes.\n\n"
    "Users send, steer, stop and disconnect; the model makes valid and invalid calls; tools are "
    "late and fail; the power is cut. The world is simulated: no model request, virtual time. "
    "Each program checks the guarantees of a host. A failing program is shrunk, printed as a test, "
    "and written as a case file. Ctrl-C ends the search with its result so far.\n\n"
    "Exit codes: 0 nothing found, 1 found, 4 stopped."
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
        typer.Argument(metavar="AGENT", help="MODULE:NAME, or a configured agent or room."),
    ],
    examples: Annotated[
        int, typer.Option("--examples", "-n", min=1, help="Maximum number of programs.")
    ] = 500,
    seed: Annotated[
        int | None,
        typer.Option("--seed", min=0, help="The same seed repeats the search. Default: random."),
    ] = None,
    users: Annotated[
        int, typer.Option("--users", min=1, max=8, help="Maximum number of users.")
    ] = 2,
    sessions: Annotated[int, typer.Option("--sessions", min=1, help="Sessions of each user.")] = 1,
    steps: Annotated[
        int, typer.Option("--steps", min=1, help="Maximum number of steps of a program.")
    ] = 20,
    check: Annotated[
        list[str] | None,
        typer.Option(
            "--check", metavar="MODULE:NAME", help="An additional invariant; repeat for more."
        ),
    ] = None,
    cases: Annotated[
        Path, typer.Option("--cases", metavar="DIR", help="Folder for the case files of findings.")
    ] = Path(".motet", "cases"),
    jobs: Annotated[
        int, typer.Option("--jobs", "-j", min=1, help="Processes that search, each its share.")
    ] = 1,
    json: Json = False,
    config: Config = None,
) -> None:
    """Search for what breaks an agent: see ``FUZZ``."""
    from motet.cli.fuzz import Order
    from motet.cli.fuzz import fuzz as run

    order = Order(
        agent, examples, seed, users, sessions, steps, check or (), cases, config, json, jobs
    )
    raise typer.Exit(run(order))


Budget = Annotated[
    float | None,
    typer.Option("--budget", metavar="USD", help="Dollars; when they are spent, no trials begin."),
]
EVAL = (
    "Evaluate an agent: run its named cases, have judges look at the answers, and compare with the "
    "last evaluation.\n\n"
    "FILE has evaluations: `NAME = mt.Evaluation('NAME', agent, cases, judges)`. The results, "
    "sessions and traces stay in the state. Ctrl-C stops the runs in order and keeps the trials "
    "that have ended.\n\n"
    "Exit codes: 0 passed, 1 not, 2 usage error, 4 stopped."
)


@app.command(
    name="eval",
    help=EVAL,
    epilog=shown(
        "motet eval",
        "motet eval evals.py:refunds --only 'late-*' --repeats 5",
        "motet eval myapp.evals --replay tests/cassettes --json > report.json",
        "motet eval --against report.json --least 0.9",
    ),
)
def evaluate(
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="FILE", help="FILE, FILE:NAME, MODULE or MODULE:NAME. Default: evals.py."
        ),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            "--only", "-k", metavar="CASE", help="A case, or a pattern with *; repeat for more."
        ),
    ] = None,
    jobs: Annotated[
        int | None, typer.Option("--jobs", "-j", min=1, help="Trials at a time. Default: 4.")
    ] = None,
    repeats: Annotated[
        int | None, typer.Option("--repeats", "-n", min=1, help="Trials of each case.")
    ] = None,
    timeout: Annotated[
        float | None, typer.Option("--timeout", metavar="SECONDS", help="Time of each trial.")
    ] = None,
    model: Model = None,
    budget: Budget = None,
    record: Annotated[
        Path | None,
        typer.Option(
            "--record", metavar="DIR", help="Play recorded answers, ask and record missing ones."
        ),
    ] = None,
    replay: Annotated[
        Path | None,
        typer.Option("--replay", metavar="DIR", help="Play recorded answers, send no request."),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Keep the trials of the last evaluation without an error."),
    ] = False,
    least: Annotated[
        float,
        typer.Option(
            "--least", min=0, max=1, help="Share of cases that must pass for exit code 0."
        ),
    ] = 1.0,
    against: Annotated[
        Path | None,
        typer.Option("--against", metavar="FILE", help="Compare with this report of --json."),
    ] = None,
    json: Json = False,
    config: Config = None,
    state: Annotated[
        Path | None,
        typer.Option("--state", metavar="DIR", help="State directory. Default: .motet/evals."),
    ] = None,
) -> None:
    """Run evaluations: see ``EVAL``."""
    from motet.cli.evals import Order
    from motet.cli.evals import evaluate as run

    order = Order(
        target,
        only or (),
        jobs,
        repeats,
        timeout,
        model,
        budget,
        record,
        replay,
        resume,
        least,
        against,
        json,
        config,
        state,
    )
    raise typer.Exit(run(order))
