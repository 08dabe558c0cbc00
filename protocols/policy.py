"""Policies on tools: rules as data, requests, and rulings.

Invariants: ``deny`` is stronger than ``ask``, and ``ask`` than ``allow``, in any order of rules;
every ruling names the rule that made it. Source: agent loop specification, section 9.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal, Protocol, TypeAlias, get_args

import attrs
import msgspec

from motet.protocols.sessions import Role
from motet.protocols.tools import Effects

Profile: TypeAlias = Literal["minimal", "messaging", "coding", "full"]
"""A first choice of tools, from none to all."""
Effect: TypeAlias = Literal["allow", "ask", "deny"]
"""``ask``: a person is asked before each call. Each is stronger than the one before it."""

PER_HOUR = 150
"""The default limit: calls of one tool in one session in an hour."""


class Subject(msgspec.Struct, frozen=True):
    """The caller of a tool: an agent, for a user, in a session."""

    agent: str
    user: str
    role: Role
    session: str


class ToolFacts(msgspec.Struct, frozen=True):
    """A tool as policies see it.

    Attributes:
        groups: such as ``group:fs`` or ``mcp:git``.
        aliases: other names that models use for it.
    """

    name: str
    groups: tuple[str, ...] = ()
    effects: Effects = "read"
    aliases: tuple[str, ...] = ()


class Ruling(msgspec.Struct, frozen=True):
    """The decision on a tool, the rule that made it, and the rule's reason, if it has one."""

    effect: Effect
    rule: str
    reason: str = ""


class Policy(Protocol):
    """Rules on tools: those of a configuration, of a policy engine, or of a service."""

    def decide(self, subject: Subject, tool: ToolFacts, /) -> Ruling:
        """Must not block, and must depend on its arguments only: lists and calls have to agree.

        An exception counts as ``deny``.
        """
        ...


class ToolRules(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The policy of one agent. Names: of tools, groups and MCP servers, or patterns.

    Attributes:
        profile: the first choice of tools; None: the profile of the host.
        allow: if there are any, nothing else is allowed.
        ask: a person is asked before each call.
        deny: never allowed.
    """

    profile: Profile | None = None
    allow: tuple[str, ...] = ()
    ask: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self != ALL_TOOLS


ALL_TOOLS = ToolRules()
"""No rules of its own."""


def _one_of(choices: object) -> Callable[[object, attrs.Attribute[Any], str], None]:
    """For untyped callers, who can ignore the ``Literal``: a typo must not allow anything."""
    known = get_args(choices)

    def check(_: object, attribute: attrs.Attribute[Any], value: str) -> None:
        if value not in known:
            raise ValueError(f"{attribute.name} must be one of {known}, not {value!r}")

    return check


def _not_empty(_: object, attribute: attrs.Attribute[Any], value: str) -> None:
    if not value:
        raise ValueError(f"{attribute.name} must be the name of a tool or a group")


def _texts(_: object, attribute: attrs.Attribute[Any], value: tuple[str, ...]) -> None:
    if isinstance(value, str):
        raise ValueError(f"{attribute.name} must be a tuple of names, not {value!r}")


def _roles(_: object, attribute: attrs.Attribute[Any], value: tuple[str, ...]) -> None:
    _texts(_, attribute, value)
    for role in value:
        _one_of(Role)(_, attribute, role)


@attrs.frozen(kw_only=True)
class PolicyRule:
    """One rule of a host, ``[[policy]]`` in a file. An empty condition always holds.

    ``agents`` makes it a rule of these agents, ``sessions`` one of these sessions (such as a group
    chat), else it is global. If ``allow`` rules of one of these three layers apply, one of them
    must name the tool.

    Attributes:
        tool: a name, a group (``group:fs``), an MCP server (``mcp:git``) or a pattern (``read_*``).
        roles, users: of the principal; in ``users``, as below, ``*`` matches any text.
        agents, sessions: patterns of names and of session keys.
        reason: for people.
    """

    tool: str = attrs.field(validator=_not_empty)
    effect: Effect = attrs.field(validator=_one_of(Effect))
    roles: tuple[Role, ...] = attrs.field(default=(), validator=_roles)
    users: tuple[str, ...] = attrs.field(default=(), validator=_texts)
    agents: tuple[str, ...] = attrs.field(default=(), validator=_texts)
    sessions: tuple[str, ...] = attrs.field(default=(), validator=_texts)
    reason: str = ""


class Judged(msgspec.Struct, frozen=True):
    """A tool of an agent and the ruling on it. ``per_hour`` 0: no limit."""

    name: str
    groups: tuple[str, ...]
    effect: Effect
    rule: str
    reason: str = ""
    per_hour: int = 0


class ToolsListParams(msgspec.Struct, frozen=True, rename={"as_user": "as"}):
    """``as``: the user, with ``role``; only an admin asks for another user."""

    agent: Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
    as_user: Annotated[str, msgspec.Meta(min_length=1, max_length=200)] | None = None
    role: Role | None = None


class ToolsList(msgspec.Struct, frozen=True):
    """By name, those that are denied as well."""

    agent: str
    user: str
    role: Role
    tools: tuple[Judged, ...]
