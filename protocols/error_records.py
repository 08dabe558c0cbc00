"""Stored errors as data: rows that may be damaged, and the arguments of failed calls. Pure.

Invariant: :func:`readable` raises nothing, whatever another program has put into a column; a
row that cannot be read becomes an error whose ``malformed`` says why.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Final, NamedTuple, TypeVar, cast, get_type_hints

import attrs
import msgspec
from msgspec.structs import asdict

from motet.protocols.chat import JsonObject
from motet.protocols.errors import ErrorGroup, ErrorRecord, ErrorType, StoredError
from motet.protocols.fingerprints import templates
from motet.protocols.long_texts import LongText, written
from motet.protocols.redaction.redact import (
    HEAD,
    Redactor,
    look_together,
    redact,
    redact_text,
    redacted_head,
    truncate_texts,
)
from motet.protocols.texts import VISIBLE, well_formed

SMALL: Final = 65_536
"""Bytes of the largest raw error that a list includes."""
ARGUMENT_LIMIT: Final = 2_000
"""Characters of one text in the stored arguments of a call, about."""
ARGUMENTS_LIMIT: Final = 16_384
"""Bytes of the stored arguments of a call."""
PARSED: Final = 262_144
"""Characters of the longest text that is tried as JSON: its values may take 20 times as much."""
_SEARCHED: Final = 65_536
"""Characters of one text of them that are searched for secrets; most are dropped after that."""

_object: Final = msgspec.json.Decoder(JsonObject)
_JSON: Final = ("raw_error", "arguments")
S = TypeVar("S", StoredError, ErrorGroup)


class Origin(NamedTuple):
    """The call that failed. ``arguments``: as the model wrote them."""

    session_id: str
    tool_name: str
    run_id: str = ""
    call_id: str = ""
    agent: str = ""
    user: str = ""
    arguments: str = ""


class Given(NamedTuple):
    """The kind and the summary of an error that its reporter has described."""

    kind: ErrorType
    summary: str


def looked_through(
    errors: Sequence[tuple[object, object]],
) -> tuple[dict[str, str], dict[str, str]]:
    """Short texts of some errors as they are redacted, and the templates of messages among them.

    Of those without a secret, which are searched together, as it takes a part of the time. Each
    error with its description, if it has one.
    """
    if not errors:
        return {}, {}
    done, texts, messages = dict[str, str](), list[str](), list[str]()
    for raw, described in errors:
        if isinstance(raw, dict):
            table = cast("JsonObject", raw)
            texts += [text for text in table.values() if isinstance(text, str)]
            if isinstance(message := table.get("message"), str):
                messages.append(message)
        if isinstance(described, Given):
            texts.append(described.summary)
    if texts:
        look_together(texts, done)
    return done, templates(message for message in messages if message in done)


@attrs.frozen
class Keep:
    """Limits of the errors that are kept: of the last ``days``, of these ``megabytes``. None: no
    limit.
    """

    days: float | None = None
    megabytes: float | None = None

    def __bool__(self) -> bool:
        return self.days is not None or self.megabytes is not None


class Forgotten(NamedTuple):
    """The errors of a deleted session: of its runs, up to that time, and of none, up to another.

    ``runs``: those of a session that has the same name.
    """

    until: float
    others: float
    runs: frozenset[str] = frozenset()

    def covers(self, record: ErrorRecord) -> bool:
        """Whether the error goes with the session."""
        until = self.until if record.run_id else self.others
        return record.run_id not in self.runs and record.timestamp <= until


def stored_error(columns: Mapping[str, object], size: object = None) -> StoredError:
    """The columns of a row, by the names of fields, as an error. JSON columns are text.

    ``raw_error`` None, and ``size`` its bytes: it is too large for a list.
    """
    fields, problems = dict(columns), list[str]()
    if fields["raw_error"] is None and isinstance(size, int) and size > SMALL:
        fields["raw_error"] = f'{{"omitted_bytes":{size}}}'
    for name in _JSON:
        try:
            text = fields[name]
            fields[name] = None if text is None else msgspec.json.decode(cast("str", text))
        except (msgspec.MsgspecError, TypeError, ValueError, RecursionError) as error:
            problems.append(f"{name}: {error!s:.80}")
            fields[name] = None
    if not isinstance(fields["raw_error"], dict):
        if not (problems and problems[0].startswith("raw_error")):
            problems.insert(0, "raw_error: it is no JSON object")
        fields["raw_error"] = {"message": f"the stored row cannot be read: {problems[0]}"}
    return readable(fields, StoredError, problems)


def stored_record(record: ErrorRecord) -> StoredError:
    """A record as it will be read from the store."""
    try:
        raw = _object.decode(record.raw_error)
        arguments = _object.decode(record.arguments) if record.arguments else None
    except (msgspec.MsgspecError, RecursionError):
        return stored_error({**asdict(record), "arguments": record.arguments or None})
    return StoredError(
        record.id,
        record.timestamp,
        record.session_id,
        record.tool_name,
        raw,
        record.short_summary,
        record.kind,
        arguments,
        record.run_id,
        record.call_id,
        record.agent,
        record.user,
        record.fingerprint,
    )


def readable(fields: Mapping[str, object], kind: type[S], problems: Sequence[str] = ()) -> S:
    """The fields as a struct. Those that do not fit are replaced, and ``malformed`` names them."""
    found = [*problems]
    if not found:
        try:
            return msgspec.convert(fields, kind)
        except msgspec.ValidationError:
            pass  # looked at one by one
    types = get_type_hints(kind)
    good: dict[str, object] = {}
    for name, value in fields.items():
        try:
            good[name] = msgspec.convert(value, types[name])
        except msgspec.ValidationError as error:
            found.append(f"{name}: {error!s:.80}")
            good[name] = _substitute(types[name], value)
    return kind(**good, malformed="; ".join(found))  # type: ignore[arg-type]  # of the types above


def _substitute(wanted: object, value: object) -> object:
    if wanted is str:
        text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
        return text[:100]
    if wanted is float or wanted is int:
        return 0
    return "unknown" if wanted is ErrorType else {} if wanted is JsonObject else None


def recorded(
    error: JsonObject,
    long: Sequence[LongText],
    *,
    keep_raw: bool = False,
    done: dict[str, str] | None = None,
) -> tuple[str, JsonObject]:
    """An error as JSON text, and as JSON with the beginnings of its ``long`` texts; redacted.

    Empties the long texts. ``done``: as in ``redact``.
    """
    made = error if keep_raw else cast("JsonObject", redact(error, done=done))
    if not long:
        return msgspec.json.encode(made).decode(), made

    def shown(value: object) -> object:
        if not isinstance(value, LongText):
            return value
        return value.beginning[:HEAD] if keep_raw else redacted_head(value.beginning)[0]

    heads = {key: shown(value) for key, value in made.items()}
    return written(made, long, None if keep_raw else Redactor), heads


def bounded_arguments(text: str, length: int = 0, *, keep_raw: bool = False) -> JsonObject | None:
    """The arguments of a call as they are stored: redacted, then shortened; None: there were none.

    ``text``: as the model wrote it, JSON or not; of a longer one its beginning, and its ``length``.
    """
    length = length or len(text)
    if not VISIBLE.search(text):
        return None
    if length > PARSED:
        return _beginning(text[:_SEARCHED], length, keep_raw=keep_raw)
    try:
        parsed: object = msgspec.json.decode(text)
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        parsed = well_formed(text)
    table = cast("JsonObject", parsed) if isinstance(parsed, dict) else {"text": parsed}
    whole = truncate_texts(table, _SEARCHED)
    safe = whole if keep_raw else redact(whole)
    shown = cast("JsonObject", truncate_texts(safe, ARGUMENT_LIMIT))
    encoded = msgspec.json.encode(shown).decode()
    if len(encoded.encode()) <= ARGUMENTS_LIMIT:
        return shown
    return _beginning(encoded, len(encoded), keep_raw=True)


def _beginning(text: str, length: int, *, keep_raw: bool) -> JsonObject:
    text = well_formed(text)
    head = (text if keep_raw else redact_text(text))[: ARGUMENTS_LIMIT // 2]
    return {"beginning": head, "omitted_characters": length - len(head)}


STRIDE = 167
"""Odd, so that every number comes; and large, so that neighbours look different."""


def suffixes(turn: int, first: int) -> Callable[[int], str]:
    """Hexadecimal digits of three bytes that no other process makes: its turn, then a number.

    ``first``: the number to begin with. 65,536 come in a row before one of them comes again.
    Neighbours look different in their last two digits, and have the others in common: so the ids of
    a crowd are together in the index, and each commit writes a few pages of it. All over the index,
    they were a third of a commit.
    """
    numbers = count(first)

    def suffix(_nbytes: int) -> str:
        number = next(numbers)
        return f"{turn:02x}{number >> 8 & 0xFF:02x}{number * STRIDE & 0xFF:02x}"

    return suffix
