"""Constraints in ``Annotated``, whoever made them, in the form that msgspec reads.

``Annotated[int, Range(1, 200)]`` is our way. The notes of ``annotated_types`` and ``Field(...)`` of
pydantic mean the same by the names of their attributes, and a text is a description.
Invariant: a hint without any of these comes back as the same object.
"""

from __future__ import annotations

import types
from typing import Annotated, Any, Literal, Union, cast, get_args, get_origin

import msgspec

_LIMITS = ("gt", "ge", "lt", "le", "multiple_of", "min_length", "max_length", "pattern")


def readable(hint: object) -> object:
    """The hint with constraints that msgspec reads, at every depth."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is None or origin is Literal or not args:
        return hint
    if origin is Annotated:
        return _annotated(hint, args)
    inner = tuple(map(readable, args))
    if all(new is old for new, old in zip(inner, args, strict=True)):
        return hint
    if origin is Union or origin is types.UnionType:
        return Union[inner]  # noqa: UP007  made at run time
    return origin[inner]


def _annotated(hint: object, args: tuple[object, ...]) -> object:
    kind = readable(args[0])
    metas = [meta for note in args[1:] if (meta := _meta(note)) is not None]
    if kind is args[0] and metas == list(args[1:]):
        return hint
    return Annotated[(kind, *metas)] if metas else kind


def _meta(note: object) -> msgspec.Meta | None:
    if isinstance(note, msgspec.Meta):
        return note
    if isinstance(note, str):
        return msgspec.Meta(description=note)
    parts = [note, *cast("list[object]", getattr(note, "metadata", []))]  # Field holds several
    found = {name: value for part in parts for name, value in _limits(part).items()}
    about = getattr(note, "description", None)
    if isinstance(about, str):
        found["description"] = about
    return cast(Any, msgspec.Meta)(**found) if found else None  # the names are known at run time


def _limits(note: object) -> dict[str, object]:
    given = {name: getattr(note, name, None) for name in _LIMITS}
    return {
        name: value
        for name, value in given.items()
        if isinstance(value, int | float | str) and not isinstance(value, bool)
    }
