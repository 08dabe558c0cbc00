"""A configuration as plain data, with what is secret left out. Pure.

Invariant: a field that its class keeps out of its own ``repr`` is a secret; of it only whether it
is set is told.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Final, cast

import attrs
import msgspec

from motet.actors.errors.redact import redact_text
from motet.protocols.chat import JsonObject
from motet.protocols.config import HostConfig
from motet.protocols.host_records import ConfigView

HIDDEN: Final = "[hidden]"


def view_of(config: HostConfig) -> ConfigView:
    """What may be shown of a configuration, and the hash by which a change of it is noticed."""
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
