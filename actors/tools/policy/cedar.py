"""A policy in Cedar, by the package ``cedarpy``.

A request has these parts: the principal is ``User::"<user>"`` in ``Role::"<role>"``; the action is
``Action::"call"``; the resource is ``Tool::"<tool>"`` with the attribute ``effects``, in a
``Group`` for each of its groups (``Group::"group:fs"``, ``Group::"mcp:git"``); the context has
``agent``, ``session`` and ``role``. As always in Cedar, a call that no policy permits is denied.

Invariant: only a decision without any error allows. A ``forbid`` that cannot be evaluated is no
decision for Cedar, which goes on without it; here it denies.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypedDict, cast

import msgspec

from motet.protocols.errors import ConfigError, MissingExtra
from motet.protocols.policy import Ruling, Subject, ToolFacts


class Uid(TypedDict):
    """The name of an entity."""

    type: str
    id: str


class Entity(TypedDict):
    """An entity in Cedar's JSON."""

    uid: Uid
    attrs: dict[str, object]
    parents: list[Uid]


class CedarPolicy:
    """A ``Policy`` of Cedar policies. Give it to ``open_host(policy=...)``.

    It allows and denies; the rules of the host and the tool decide whether a person is asked.
    ``@id("...")`` names a policy in rulings.

    Args:
        policies: the text.
        entities: further entities, such as the teams of users. The user of a run gets its role
            added, a tool its groups.

    Raises ``ConfigError`` for invalid Cedar, ``MissingExtra`` without ``motet[cedar]``.
    """

    def __init__(self, policies: str, *, entities: Iterable[Entity] = ()) -> None:
        try:
            import cedarpy
        except ImportError as error:
            raise MissingExtra("cedar", "a policy in Cedar") from error
        try:
            self._policies = cedarpy.PolicySet.from_str(policies)
        except ValueError as error:
            raise ConfigError(f"the Cedar policies cannot be read: {error}") from None
        self._entities = tuple(entities)
        self._engine = cedarpy

    @classmethod
    def from_file(cls, path: str | Path) -> CedarPolicy:
        """The policies of a file. Raises as the class, and ``ConfigError`` if it cannot be read."""
        try:
            return cls(Path(path).read_text("utf-8"))
        except OSError as error:
            raise ConfigError(f"{path} cannot be read: {error.strerror}") from None

    def decide(self, subject: Subject, tool: ToolFacts) -> Ruling:
        user, called = _uid("User", subject.user), _uid("Tool", tool.name)
        request = {
            "principal": user,
            "action": _uid("Action", "call"),
            "resource": called,
            "context": {"agent": subject.agent, "session": subject.session, "role": subject.role},
        }
        given: Sequence[Entity] = (
            {"uid": user, "attrs": {}, "parents": [_uid("Role", subject.role)]},
            {
                "uid": called,
                "attrs": {"effects": tool.effects},
                "parents": [_uid("Group", group) for group in tool.groups],
            },
        )
        entities = msgspec.json.encode(self._merged(given)).decode()
        # cedarpy's dictionaries are untyped: this one maps ids of policies to their names.
        answer = self._engine.is_authorized(  # pyright: ignore[reportUnknownMemberType]
            request, self._policies, entities
        )
        diagnostics = answer.diagnostics
        names = cast(
            "dict[str, str]",
            diagnostics.id_annotations_by_reason,  # pyright: ignore[reportUnknownMemberType]
        )
        if diagnostics.errors:
            return Ruling("deny", "cedar: error", "; ".join(map(str, diagnostics.errors)))
        if answer.decision is not self._engine.Decision.Allow:
            return Ruling("deny", _named(diagnostics.reasons, names, "no permit"))
        return Ruling("allow", _named(diagnostics.reasons, names, "permit"))

    def _merged(self, given: Sequence[Entity]) -> list[Entity]:
        """All entities; those of the request with their further attributes and parents."""
        known = {_key(entity["uid"]): entity for entity in self._entities}
        for entity in given:
            other = known.get(_key(entity["uid"]))
            if other is not None:
                entity = Entity(
                    uid=entity["uid"],
                    attrs={**other["attrs"], **entity["attrs"]},
                    parents=[*other["parents"], *entity["parents"]],
                )
            known[_key(entity["uid"])] = entity
        return list(known.values())


def _uid(kind: str, name: str) -> Uid:
    return {"type": kind, "id": name}


def _key(uid: Uid) -> tuple[str, str]:
    return uid["type"], uid["id"]


def _named(reasons: Iterable[str], names: dict[str, str], otherwise: str) -> str:
    """The policies that decided, by their ``@id`` if they have one."""
    found = [names.get(reason) or reason for reason in reasons]
    return f"cedar: {', '.join(sorted(found)) or otherwise}"
