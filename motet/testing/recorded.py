"""A run of production as a test: ``motet record`` has written it, a simulated host plays it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, TypeAlias

from motet.actors.agents.spec import AnyAgent
from motet.actors.host import Host
from motet.actors.hosting.replay import Replay, replay
from motet.actors.hosting.replay_journal import Comparison, excerpt, read_record
from motet.protocols.config import HostConfig
from motet.protocols.errors import UnknownName
from motet.testing.host import simulated_host

ToolsOf: TypeAlias = Literal["record", "real"]
_MODES: dict[str, Literal["journal", "live"]] = {"record": "journal", "real": "live"}


def replay_run(
    case: str | Path,
    agent: AnyAgent,
    *,
    tools: ToolsOf = "record",
    deps: Any = None,
    config: HostConfig | None = None,
    seed: int = 0,
    check: bool = True,
) -> Replay:
    """Play the run in a file of ``motet record`` once more, as ``agent``, in a simulated host.

    The model says what it said then, to whatever it is asked; virtual time; no network.

    Args:
        tools: ``record``: each call has the result it had then, and no tool runs; ``real``: the
            agent's tools run, within the simulated host's world.
        deps: for real tools.
        config: limits and tools of the host.
        seed: of the schedule.
        check: raise when the run does otherwise now.

    Returns what was compared. Raises ``AssertionError`` with the lines that differ, and
    ``ConfigError`` for a file that is no record.
    """
    if tools not in _MODES:
        raise UnknownName("kind of tools", tools, tuple(_MODES))
    journal = read_record(case)

    async def play(_: Host) -> Replay:
        return await replay(journal, agent, config=config, tools=_MODES[tools], deps=deps)

    with simulated_host(seed) as host:
        done = host.call(play)
    if check and not done.same:
        raise AssertionError(f"{case}: the run does otherwise now (- then, + now)\n{_said(done)}")
    return done


def _said(done: Replay) -> str:
    """What differs, with some lines around it."""
    compared = {"transcript": done.rows, "events": done.events}
    return "\n".join(_differing(title, one) for title, one in compared.items() if not one.same)


def _differing(title: str, compared: Comparison) -> str:
    lines = [
        "  ⋮" if change is None else f"{change.mark} {change.line}"
        for change in excerpt(tuple(compared.changes()))
    ]
    return "\n".join([f"{title}:", *lines])
