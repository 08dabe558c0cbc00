"""What a changed configuration means for a running host, key by key. Pure.

Laws: every key of a configuration has exactly one plan; equal configurations have no changes; a
configuration in force has, of a changed one, all values but those that need a restart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final, cast

import attrs

from motet.protocols.config import HostConfig
from motet.protocols.reload import Change, How

PLANS: Final[Mapping[str, How]] = {
    "state": "restart",
    "workspace": "restart",
    "recovery": "restart",
    "watchdog": "restart",
    "errors": "restart",
    "tracing": "restart",
    "gateway.listen": "restart",
    "limits": "drain",
    "skills": "drain",
    "models": "drain",
    "agents": "drain",
    "teams": "drain",
    "rooms": "drain",
    "mcp": "drain",
    "tools.shell": "drain",
    "tools.http": "drain",
    "queue": "hot",
    "guard": "hot",
    "policy": "hot",
    "hooks": "hot",
    "approvals": "hot",
    "gateway.certificate": "restart",
    "gateway.private_key": "restart",
    "gateway.allowed_origins": "hot",
    "gateway.connections": "hot",
    "gateway.connections_per_user": "hot",
    "gateway.messages_per_minute": "hot",
    "gateway.tokens": "hot",
    "tools.profile": "hot",
    "tools.calls_per_hour": "hot",
    "tools.per_hour": "hot",
    "tools.aliases": "hot",
    "tools.prefixes": "hot",
    "tools.cedar": "hot",
}
"""A key stands for all below it. What guards counts at once; what runs work with is drained."""


def how(key: str) -> How:
    """The plan of a key, or of the table that it is in. Raises ``KeyError``."""
    parts = key.split(".")
    for end in range(len(parts), 0, -1):
        plan = PLANS.get(".".join(parts[:end]))
        if plan is not None:
            return plan
    raise KeyError(key)


def changes(old: HostConfig, new: HostConfig) -> tuple[Change, ...]:
    """What is different in ``new``, in the order of the classes."""
    return tuple(Change(key, how(key)) for key in _different(old, new, ""))


def in_force(old: HostConfig, new: HostConfig) -> HostConfig:
    """``new`` as far as it can count without a restart."""
    return cast("HostConfig", _merged(old, new, ""))


def _different(old: object, new: object, at: str) -> Iterator[str]:
    """The keys with other values; of a table of classes or of names, those in it."""
    if old == new:
        return
    if at not in PLANS and _is_config(old) and type(old) is type(new):
        for name in _names(old):
            yield from _different(getattr(old, name), getattr(new, name), _below(at, name))
    elif isinstance(old, Mapping) and isinstance(new, Mapping):
        before = cast("Mapping[str, object]", old)
        after = cast("Mapping[str, object]", new)
        yield from (
            _below(at, name)
            for name in dict.fromkeys((*before, *after))
            if (name in before) != (name in after) or before.get(name) != after.get(name)
        )
    else:
        yield at


def _merged(old: object, new: object, at: str) -> object:
    if at in PLANS:
        return old if PLANS[at] == "restart" else new
    assert _is_config(new)
    values = {
        name: _merged(getattr(old, name), getattr(new, name), _below(at, name))
        for name in _names(new)
    }
    make = cast("Callable[..., object]", type(new))  # a class whose fields these are
    return make(**values)


def _below(at: str, name: str) -> str:
    return f"{at}.{name}" if at else name


def _is_config(value: object) -> bool:
    return attrs.has(type(value))


def _names(value: object) -> Iterator[str]:
    kind = cast("type[attrs.AttrsInstance]", type(value))
    return (field.name for field in attrs.fields(kind))
