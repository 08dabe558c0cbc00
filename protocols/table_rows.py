"""The codec between rows of tables and structs. Pure.

A struct's fields are the columns of its query, in their order; nested values are JSON columns.
Text that comes from outside may hold lone surrogates, which UTF-8 cannot: :func:`to_json` and
:func:`storable` replace them, so that no input fails to be stored.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TypeVar

import msgspec

from motet.protocols.chat import ChatMessage
from motet.protocols.storage import Row, SqlValue

S = TypeVar("S", bound=msgspec.Struct)

Query = tuple[str, tuple[SqlValue, ...]]
"""A statement and its parameters."""

LIST_LIMIT = 1_000
"""Rows in one answer, at most."""
DAY = 86_400.0

_message = msgspec.json.Decoder[ChatMessage](ChatMessage)


def storable(text: str) -> str:
    """The text as valid UTF-8: a lone surrogate becomes a question mark."""
    return text.encode("utf-8", "replace").decode()


def to_json(value: object) -> str:
    """A JSON column. A lone surrogate becomes a question mark."""
    try:
        return msgspec.json.encode(value).decode()
    except UnicodeEncodeError:
        return storable(json.dumps(msgspec.to_builtins(value), ensure_ascii=False))


def struct(
    row: Row,
    kind: type[S],
    names: Sequence[str] = (),
    *,
    json_columns: Mapping[str, type[object]] | None = None,
    strict: bool = True,
) -> S:
    """A row as a struct. Raises ``msgspec.MsgspecError`` for a row that another motet wrote.

    Args:
        names: of the columns; empty: the fields of the struct, in their order.
        json_columns: the types of the columns that hold JSON.
        strict: False where SQLite's 0 and 1 stand for a ``bool``.
    """
    columns = names or kind.__struct_fields__
    fields: dict[str, object] = dict(zip(columns, row, strict=True))
    for name, column in (json_columns or {}).items():
        text = fields[name]
        fields[name] = msgspec.json.decode(text, type=column) if isinstance(text, str) else text
    return msgspec.convert(fields, kind, strict=strict)


def encode_message(message: ChatMessage) -> str:
    """A row of a transcript as JSON."""
    return to_json(message)


def stored_form(message: ChatMessage) -> tuple[str, ChatMessage]:
    """The row as JSON, and as a reader decodes it: the same, without a lone surrogate."""
    try:
        return msgspec.json.encode(message).decode(), message
    except UnicodeEncodeError:
        body = encode_message(message)
        return body, decode_message(body)


def decode_message(body: SqlValue) -> ChatMessage:
    """Raises ``msgspec.MsgspecError``."""
    if not isinstance(body, str):
        raise msgspec.ValidationError(f"a message is JSON text, not {type(body).__name__}")
    message: ChatMessage = _message.decode(body)
    return message


def role_of(message: ChatMessage) -> str:
    return str(message.__struct_config__.tag)


def where(*conditions: tuple[str, SqlValue]) -> Query:
    """The conditions that have a value, as a WHERE clause with its parameters.

    The conditions are ours and go into the SQL; the values are parameters.
    """
    present = [(condition, value) for condition, value in conditions if value is not None]
    if not present:
        return "", ()
    clause = " AND ".join(condition for condition, _ in present)
    return f" WHERE {clause}", tuple(value for _, value in present)


def clamped(limit: int, most: int = LIST_LIMIT) -> int:
    return max(1, min(limit, most))
