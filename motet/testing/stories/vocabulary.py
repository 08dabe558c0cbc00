"""The words that a project adds to generated programs: arguments, texts, and steps of its own.

A :class:`Rule` is a step of the project: a client that reconnects, a timer that ticks, a call of
the host's API. It is a function with a name, so that a program names it as data, ``mt.Do("tick")``,
and a stored program finds it again.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import attrs

from motet.protocols.errors import ConfigError, nearest

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

__all__ = ["Arguments", "Rule", "Texts", "Vocabulary", "rule", "rules_of"]

Drawn: TypeAlias = "SearchStrategy[Any] | object"
"""A strategy, or one value for every call."""

Arguments: TypeAlias = Mapping[str, Mapping[str, Drawn]]
"""By the name of the tool, and of the argument."""

Texts: TypeAlias = "SearchStrategy[str] | Sequence[str]"

F = TypeVar("F", bound=Callable[..., object])

GIVEN = ("user", "session")
"""Parameters of a rule that the program gives."""


@attrs.frozen
class Rule:
    """A step of the project.

    Attributes:
        function: an ``async`` function gets the :class:`motet.Host`; any other function gets the
            :class:`~motet.testing.SimulatedHost`. Parameters called ``user`` and ``session`` get
            those of the step.
        arguments: the strategies of its other parameters.
        weight: how often it is drawn; a message of a user has 0.3, a wait 0.1.
    """

    function: Callable[..., object]
    arguments: Mapping[str, Drawn] = attrs.field(factory=dict[str, Drawn])
    weight: float = 0.1

    @property
    def name(self) -> str:
        return str(getattr(self.function, "__name__", self.function)).lstrip("_")

    @property
    def parameters(self) -> tuple[str, ...]:
        """Its parameters after the host."""
        return tuple(inspect.signature(self.function).parameters)[1:]


def rule(function: Callable[..., object], *, weight: float = 0.1, **arguments: Drawn) -> Rule:
    """A step of your own for ``mt.programs(agent, rules=[...])``, with values for its arguments.

        async def top_up(host: motet.Host, user: str, euros: int) -> None: ...

        mt.programs(agent, rules=[mt.rule(top_up, euros=st.integers(1, 50)), tick])

    A plain function is a rule without arguments. A refusal by the host (any ``MotetError``) is
    ignored, as one of a user's message; every other error is a finding. Raises ``ConfigError`` for
    a function that lacks the host, and for arguments that are missing or unknown.
    """
    made = Rule(function, arguments, weight)
    signature = inspect.signature(function).parameters
    if not signature:
        raise ConfigError(f"the rule {made.name!r} takes no host: its first parameter is the host")
    optional = {name for name, one in signature.items() if one.default is not one.empty}
    for name in arguments:
        if name not in made.parameters:
            raise ConfigError(f"the rule {made.name!r} has no parameter {name!r}")
    missing = [
        name
        for name in made.parameters
        if name not in arguments and name not in GIVEN and name not in optional
    ]
    if missing:
        raise ConfigError(
            f"the rule {made.name!r} needs a value for {', '.join(missing)}: give a strategy, "
            f"mt.rule({made.name}, {missing[0]}=st.integers())"
        )
    return made


def rules_of(given: Iterable[Rule | Callable[..., object]]) -> Mapping[str, Rule]:
    """Rules by their names. Raises ``ConfigError`` for two of one name."""
    found: dict[str, Rule] = {}
    for one in given:
        made = one if isinstance(one, Rule) else rule(one)
        if made.name in found:
            raise ConfigError(f"two rules are called {made.name!r}")
        found[made.name] = made
    return found


@attrs.frozen
class Vocabulary:
    """What a project adds to the drawing of programs.

    Attributes:
        arguments: strategies or values for arguments of tools; all others are drawn.
        texts: what users say; empty: the texts of the harness.
    """

    arguments: Arguments = attrs.field(factory=dict[str, Mapping[str, Drawn]])
    texts: Texts = ()

    def refuse_unknown(self, tools: Mapping[str, Iterable[str]]) -> None:
        """Raise ``ConfigError`` for a tool or argument that no agent has."""
        for tool, arguments in self.arguments.items():
            if tool not in tools:
                raise ConfigError(f"arguments= names the tool {tool!r}{_near(tool, tools)}")
            known = list(tools[tool])
            for name in arguments:
                if known and name not in known:
                    raise ConfigError(
                        f"the tool {tool!r} has no argument {name!r}{_near(name, known)}"
                    )


def _near(name: str, known: Iterable[str]) -> str:
    found = nearest(name, tuple(known))
    return f"; did you mean {found!r}?" if found else ", which no agent under test has"
