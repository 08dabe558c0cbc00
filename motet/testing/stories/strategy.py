"""``programs()``, the strategy for ``@given``. Hypothesis is imported when it is called."""

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
        agent_or_room: the subject under test, with its own tools; it is unchanged afterwards.
            Register hooks by ``simulated_host(setup=...)``.
        users: the most users, each with up to ``sessions`` sessions; a room has one for all.
        max_steps: the most steps.
        faults: the probabilities of faults; None: the defaults.
        receive: the program's own entry for inputs, in place of ``Host.submit``.
        model: ``script``: models give drawn answers; ``own``: the agents use their own models.

    Raises ``ValueError`` for numbers out of range, ``ConfigError`` for a room whose members are
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
