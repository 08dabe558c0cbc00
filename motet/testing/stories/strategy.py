"""``programs()``: what ``@given`` is given. Hypothesis is imported when it is called."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from motet.protocols.errors import MissingExtra
from motet.testing.stories.target import Faults, Receive, Subject, Target

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

    from motet.testing.stories.program import BoundProgram

__all__ = ["USERS", "programs"]

USERS = ("ann", "bob", "cid", "dan", "eve", "fay", "gus", "hal")


def programs(
    agent_or_room: Subject,
    users: int = 2,
    sessions: int = 1,
    max_steps: int = 20,
    faults: Faults | None = None,
    *,
    receive: Receive | None = None,
    model: Literal["script", "own"] = "script",
) -> SearchStrategy[BoundProgram]:
    """Programs for an agent or a room.

    Args:
        agent_or_room: what is under test, with its own tools; it may be used again. Hooks are
            those that ``simulated_host(setup=...)`` is given.
        users: at most so many, each with up to ``sessions`` sessions; a room has one for all.
        max_steps: at most so many steps.
        faults: how often what goes wrong; None: all of it, now and then.
        receive: the program's own door for inputs, in place of ``Host.submit``.
        model: ``script``: models answer as was drawn; ``own``: the agents ask their own.

    Raises ``ValueError`` for numbers that cannot be, ``ConfigError`` for a room whose members are
    only names, ``MissingExtra`` without Hypothesis.
    """
    for name, number, most in (
        ("users", users, len(USERS)),
        ("sessions", sessions, 100),
        ("max_steps", max_steps, 1000),
    ):
        if not 1 <= number <= most:
            raise ValueError(f"{name} must be from 1 to {most}, not {number}")
    if model not in ("script", "own"):
        raise ValueError(f"model must be 'script' or 'own', not {model!r}")
    try:
        from motet.testing.stories.drawing import Bounds, drawn_programs
    except ImportError as error:
        if error.name is None or not error.name.startswith("hypothesis"):
            raise
        raise MissingExtra("test", "motet.testing.programs") from error
    target = Target(agent_or_room, receive, own_models=model == "own")
    assert target.agents
    bounds = Bounds(USERS[:users], sessions, max_steps, faults if faults is not None else Faults())
    return drawn_programs(target, bounds)
