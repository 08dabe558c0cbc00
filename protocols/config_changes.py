"""The changes of a configuration, when each takes effect, and a view of it without secrets. Pure.

Laws: every key of a configuration has exactly one plan; equal configurations have no changes; a
configuration in force has all values of the changed one, except those that need a restart. A field
that its class keeps out of its own ``repr`` is a secret: only whether it is set is shown.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, cast

import attrs
import msgspec

from motet.protocols.chat import JsonObject
from motet.protocols.config import HostConfig
from motet.protocols.host_records import ConfigView
from motet.protocols.redaction.redact import redact_text
from motet.protocols.reload import Change, How

PLANS: Final[Mapping[str, How]] = {
    "state": "restart",
    "workspace": "restart",
    "recovery": "restart",
    "watchdog": "restart",
    "errors": "restart",
    "tracing": "restart",
    "retention": "restart",
    "redaction": "restart",
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
    "log": "hot",
    "guard": "hot",
    "policy": "hot",
    "hooks": "hot",
    "approvals": "hot",
    "gateway.certificate": "restart",
    "gateway.private_key": "restart",
    "gateway.sockets": "restart",
    "gateway.allowed_origins": "hot",
    "gateway.connections": "hot",
    "gateway.connections_per_user": "hot",
    "gateway.messages_per_minute": "hot",
    "gateway.frames_per_second": "hot",
    "gateway.bytes_per_second": "hot",
    "gateway.rooms_per_user": "hot",
    "gateway.trusted_proxies": "hot",
    "gateway.proxy_protocol": "hot",
    "gateway.tokens": "hot",
    "tools.profile": "hot",
    "tools.calls_per_hour": "hot",
    "tools.per_hour": "hot",
    "tools.aliases": "hot",
    "tools.prefixes": "hot",
    "tools.cedar": "hot",
}
"""A key stands for all keys below it. Guards change at once; live runs keep what they work with."""


def how(key: str) -> How:
    """The plan of a key, or of the table that it is in. Raises ``KeyError``."""
    parts = key.split(".")
    for end in range(len(parts), 0, -1):
        plan = PLANS.get(".".join(parts[:end]))
        if plan is not None:
            return plan
    raise KeyError(key)


def changes(old: HostConfig, new: HostConfig) -> tuple[Change, ...]:
    """The differences of ``new``, in the order of the classes."""
    return tuple(Change(key, how(key)) for key in _different(old, new, ""))


def in_force(old: HostConfig, new: HostConfig) -> HostConfig:
    """``new``, except for the values that need a restart."""
    return cast("HostConfig", _merged(old, new, ""))


def _different(old: object, new: object, at: str) -> Iterator[str]:
    """The keys whose values differ; for a table, the keys in it."""
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
    make = cast("Callable[..., object]", type(new))  # these are its fields
    return make(**values)


def _below(at: str, name: str) -> str:
    return f"{at}.{name}" if at else name


def _is_config(value: object) -> bool:
    return attrs.has(type(value))


def _names(value: object) -> Iterator[str]:
    kind = cast("type[attrs.AttrsInstance]", type(value))
    return (field.name for field in attrs.fields(kind))


# Values without secrets

HIDDEN: Final = "[hidden]"


def view_of(config: HostConfig) -> ConfigView:
    """A configuration without its secrets, and the hash that changes with it."""
    return ConfigView(config_hash(config), cast("JsonObject", _plain(config, hide=True)))


def config_hash(config: HostConfig) -> str:
    """SHA-256 of all of it, secrets included: equal for equal configurations only."""
    whole = msgspec.json.encode(_plain(config, hide=False), order="deterministic")
    return hashlib.sha256(whole).hexdigest()


def _plain(value: object, *, hide: bool) -> object:
    if attrs.has(type(value)):
        return _fields(cast("attrs.AttrsInstance", value), hide=hide)
    if isinstance(value, Mapping):
        items = cast("Mapping[object, object]", value).items()
        return {str(key): _plain(item, hide=hide) for key, item in items}
    if isinstance(value, tuple | list | set | frozenset):
        return [_plain(item, hide=hide) for item in cast("list[object]", value)]
    if isinstance(value, str):
        return redact_text(value) if hide else value
    if value is None or isinstance(value, bool | int | float):
        return value
    return msgspec.to_builtins(value)


def _fields(value: attrs.AttrsInstance, *, hide: bool) -> JsonObject:
    kind: type[Any] = type(value)  # what attrs calls a class of fields
    shown: JsonObject = {}
    for field in attrs.fields(kind):
        item = cast("object", getattr(value, field.name))
        secret = hide and field.repr is False and item not in (None, "", (), {})
        shown[field.name] = HIDDEN if secret else _plain(item, hide=hide)
    return shown
