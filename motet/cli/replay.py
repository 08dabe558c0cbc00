"""``motet replay``: a stored run once more, and the differences."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator

import msgspec
import trio
from rich.console import Console
from rich.text import Text

from motet.actors.agents.spec import AnyAgent
from motet.actors.hosting.replay import Replay, ToolMode, read_journal, replay
from motet.cli.exits import FAILED, OK
from motet.cli.render import in_json, visible
from motet.cli.screen import console
from motet.cli.setup import Setup
from motet.cli.stored import reading
from motet.protocols.errors import UnknownName
from motet.protocols.run_journal import Change, Comparison, excerpt
from motet.protocols.sessions import RunStatus

STYLES = {"-": "red", "+": "green", " ": "dim"}


class Shown(msgspec.Struct, frozen=True):
    """A replay as JSON: the lines with their marks, as they are compared."""

    run_id: str
    session: str
    agent: str
    same: bool
    then: RunStatus
    now: RunStatus
    rows: tuple[Change, ...]
    events: tuple[Change, ...]


def replay_run(setup: Setup, run: str, model: str | None, tools: ToolMode, *, json: bool) -> int:
    """Replay and print; 0: the same, 1: not. Raises ``NotFound``, ``ConfigError``."""
    done = trio.run(_replayed, setup, run, model, tools)
    if json:
        print(in_json(shown(done)))
    else:
        _print(done, console(sys.stdout))
    return OK if done.same else FAILED


async def _replayed(setup: Setup, run: str, model: str | None, tools: ToolMode) -> Replay:
    async with reading(setup.state) as readers:
        journal = await read_journal(readers, run)
    agent = _agent(setup, journal.agent)
    return await replay(
        journal, agent, config=setup.config, model=model, tools=tools, workspace=setup.workspace
    )


def _agent(setup: Setup, name: str) -> AnyAgent:
    known = {agent.name: agent for agent in setup.agents()}
    if name not in known:
        raise UnknownName("agent", name, tuple(known))
    return known[name]


def shown(done: Replay) -> Shown:
    info = done.journal.info
    return Shown(
        run_id=info.run_id,
        session=info.session,
        agent=info.agent,
        same=done.same,
        then=info.status,
        now=done.result.status,
        rows=tuple(done.rows.changes()),
        events=tuple(done.events.changes()),
    )


def _print(done: Replay, out: Console) -> None:
    info = done.journal.info
    out.print(visible(f"{info.run_id}  {info.agent}  {info.session}"), style="bold", markup=False)
    for title, compared in (("transcript", done.rows), ("events", done.events)):
        if not compared.same:
            out.print(f"\n{title}", style="bold")
            _print_changes(excerpt(tuple(compared.changes())), out)
    if done.same:
        out.print(f"✓ same behaviour: {info.status}, {sizes(done)}", style="green")
    else:
        out.print(f"\n✗ it differs: {', '.join(differences(done))}", style="red")
        out.print("- then  + now", style="dim")


def _print_changes(changes: Iterable[Change | None], out: Console) -> None:
    for change in changes:
        if change is None:
            out.print("  ⋮", style="dim")
        else:
            text = Text(f"{change.mark} {visible(change.line)}", STYLES[change.mark])
            out.print(text, soft_wrap=True)


def sizes(done: Replay) -> str:
    events = len(done.events.then)
    heard = f"{events} events" if events else "its events are not stored any more"
    return f"{len(done.journal.rows)} rows, {heard}"


def differences(done: Replay) -> Iterator[str]:
    """The counts of differing lines."""
    for title, compared in (("transcript", done.rows), ("events", done.events)):
        if not compared.same:
            gone, come = counts(compared)
            yield f"{title} -{gone} +{come}"


def counts(compared: Comparison) -> tuple[int, int]:
    marks = [change.mark for change in compared.changes()]
    return marks.count("-"), marks.count("+")
