"""Stored errors as data: rows that may be damaged, and the arguments of failed calls. Pure.

Invariant: :func:`stored_error` raises nothing, whatever another program has put into a column; a
row that cannot be read becomes an error whose ``malformed`` says why.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, cast, get_type_hints

import msgspec

from motet.protocols.chat import JsonObject
from motet.protocols.errors import StoredError
from motet.protocols.redaction.redact import redact, truncate_texts

SMALL: Final = 65_536
"""Bytes of the largest raw error that a list includes."""
ARGUMENT_LIMIT: Final = 2_000
"""Characters of one text in the stored arguments of a call, about."""
ARGUMENTS_LIMIT: Final = 16_384
"""Bytes of the stored arguments of a call."""

_TYPES: Final = get_type_hints(StoredError)
_JSON: Final = ("raw_error", "arguments")


def stored_error(columns: Mapping[str, object], size: object = None) -> StoredError:
    """The columns of a row, by the names of fields, as an error. JSON columns are text.

    ``raw_error`` None, and ``size`` its bytes: it is too large for a list.
    """
    fields = dict(columns)
    if fields["raw_error"] is None and isinstance(size, int) and size > SMALL:
        head = {"message": fields["short_summary"], "omitted_bytes": size}
        fields["raw_error"] = msgspec.json.encode(head).decode()
    try:
        for name in _JSON:
            if fields[name] is not None:
                fields[name] = msgspec.json.decode(cast("str", fields[name]))
        return msgspec.convert(fields, StoredError)
    except (msgspec.MsgspecError, TypeError, ValueError, RecursionError):
        return _damaged(columns)


def _damaged(columns: Mapping[str, object]) -> StoredError:
    """The fields that can be read; the others are replaced, and ``malformed`` names them."""
    empty = StoredError("", 0.0, "", "", {}, "")
    good: dict[str, object] = {}
    problems: list[str] = []
    for name, value in columns.items():
        try:
            if name in _JSON and value is not None:
                value = msgspec.json.decode(cast("str", value))
            good[name] = msgspec.convert(value, _TYPES[name])
        except (msgspec.MsgspecError, TypeError, ValueError, RecursionError) as error:
            problems.append(f"{name}: {error!s:.80}")
            text = isinstance(getattr(empty, name), str) and name != "kind"
            good[name] = f"{value!s:.100}" if text else getattr(empty, name)
    reason = "; ".join(problems)
    if "raw_error" not in good or not good["raw_error"]:
        good["raw_error"] = {"message": f"the stored row cannot be read: {reason}"}
    return msgspec.convert({**good, "malformed": reason}, StoredError)


def bounded_arguments(arguments: JsonObject, *, keep_raw: bool = False) -> JsonObject:
    """The arguments of a call, in JSON types, as they are stored: redacted, then shortened."""
    given = truncate_texts(arguments)
    shown = cast("JsonObject", truncate_texts(given if keep_raw else redact(given), ARGUMENT_LIMIT))
    text = msgspec.json.encode(shown)
    if len(text) <= ARGUMENTS_LIMIT:
        return shown
    head = text[: ARGUMENTS_LIMIT // 2].decode("utf-8", "ignore")
    return {"beginning": head, "omitted_bytes": len(text) - ARGUMENTS_LIMIT // 2}
