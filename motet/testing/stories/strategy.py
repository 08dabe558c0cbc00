"""``programs()``, the strategy for ``@given``. Hypothesis is imported when it is called."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal

from motet.actors.tools.tool import Tool
from motet.protocols.chat import json_object
from motet.protocols.errors import MissingExtra
from motet.testing.stories.target import Faults, Receive, Subject, Target
from motet.testing.stories.vocabulary import Arguments, Rule, Texts, Vocabulary, rules_of

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
    arguments: Arguments | None = None,
    texts: Texts = (),
    rules: Sequence[Rule | Callable[..., object]] = (),
    unused: Sequence[str] = (),
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
        arguments: for arguments of tools, in place of drawn ones: a strategy, a value, or
            ``mt.result_of("new_order")``: ``{"refund": {"order": mt.result_of("new_order")}}``.
        texts: what users say, in place of the texts of the harness; a strategy, or a list.
        rules: steps of your own, functions of the host; see :func:`motet.testing.rule`.
        unused: tools that the programs need not run, and ``room``, ``model`` or ``approvals``: a
            search that never reaches them fails as vacuous otherwise.

    Raises ``ValueError`` for numbers out of range, ``ConfigError`` for a room whose members are
    only names, for arguments of unknown tools and for impossible rules, ``MissingExtra`` without
    Hypothesis.
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
    own = rules_of(rules)
    target = Target(agent_or_room, receive, model == "own", own, tuple(unused))
    vocabulary = Vocabulary(arguments or {}, texts)
    vocabulary.refuse_unknown(_parameters(target))
    bounds = Bounds(USERS[:users], sessions, max_steps, faults or Faults(), vocabulary)
    return drawn_programs(target, bounds)


def _parameters(target: Target) -> dict[str, Sequence[str]]:
    """The arguments of every tool of the agents, as far as they are known before a host runs."""
    found: dict[str, Sequence[str]] = {}
    for agent in target.agents:
        for tool in agent.tools:
            if isinstance(tool, Tool):
                found[tool.name] = tuple(json_object(tool.parameters.get("properties")))
            else:
                found[tool] = ()
    return found
