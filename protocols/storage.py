"""The requests to a database, whole transactions as data, and the codec of its rows."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import ClassVar, Final, TypeAlias, TypeVar

import msgspec

from motet.protocols.chat import ChatMessage
from motet.protocols.errors import MotetError
from motet.protocols.messages import Request

SqlValue: TypeAlias = int | float | str | None
Row: TypeAlias = tuple[SqlValue, ...]


class Statement(msgspec.Struct, frozen=True):
    """One SQL statement with its positional parameters.

    Attributes:
        expect: the number of rows that it must return; None: any.
        changes: the number of rows that it must insert, update or delete, which costs a third of
            having them returned. With any other number the whole transaction is rolled back, and
            ``ExpectationFailed`` names the statement.
        each: run it once for each of these parameters instead; its rows are ignored.
    """

    sql: str
    params: tuple[SqlValue, ...] = ()
    expect: int | None = None
    each: tuple[tuple[SqlValue, ...], ...] = ()
    changes: int | None = None


Transaction: TypeAlias = tuple[Statement, ...]
Rows: TypeAlias = tuple[tuple[Row, ...], ...]
"""The rows of each statement of a transaction."""
Commit: TypeAlias = Callable[[Transaction], Awaitable[Rows]]
"""Runs a transaction, and returns after its COMMIT."""


class Transact(Request[Rows], frozen=True, tag="storage.transact"):
    """Run statements in one transaction; answered after COMMIT with each statement's rows.

    Many transactions share a commit; one that fails is rolled back alone.
    """

    statements: Transaction


# Exceptions: one class for each reaction of a caller


class StorageError(MotetError):
    """Stored state cannot be read or written. Nothing of the failed transaction was stored."""


class StorageUnavailable(StorageError):
    """The database cannot be written now; the same transaction may succeed later.

    Raised itself for a failing or read-only disk, else as one of its subclasses. ``reason``: for
    users, without names of files.
    """

    reason: ClassVar[str] = "its disk takes no writes"


class DatabaseLocked(StorageUnavailable):
    """Another program held the database's write lock for too long. Trying again may help."""

    reason: ClassVar[str] = "another program keeps its database locked"


class DatabaseGone(StorageUnavailable):
    """The files of the open database were deleted, moved or replaced: what is written is lost."""

    reason: ClassVar[str] = "the files of its database were deleted or replaced"


class DiskFull(StorageUnavailable):
    """No room to write. Reading still works; writing works again when there is room."""

    reason: ClassVar[str] = "its disk is full"


class ConstraintFailed(StorageError):
    """A row contradicts the schema, for example a primary key that exists already."""


class ExpectationFailed(StorageError):
    """A statement returned or changed another number of rows than declared.

    Attributes:
        index: of the statement in the transaction, from 0.
        expected: rows declared.
        got: rows that it returned or changed.
        sql: of the statement.
    """

    def __init__(self, index: int, expected: int, got: int, did: str = "returned", sql: str = ""):
        super().__init__(
            f"statement {index} {did} {got} rows, not {expected}: the transaction was rolled back"
        )
        self.index = index
        self.expected = expected
        self.got = got
        self.sql = sql


class DatabaseClosed(StorageError):
    """The database was closed, as it is when its host stops."""


class SchemaTooNew(StorageError):
    """The database was written by a newer motet."""


class SchemaDiffers(SchemaTooNew):
    """The database was written by another build of motet, whose tables are not those of this one,
    though both give them the same number.
    """


class StateInUse(StorageError):
    """Another host uses the state directory; ``pid`` is its process, None when it is not known."""

    def __init__(self, directory: Path, pid: int | None):
        owner = f"process {pid}" if pid is not None else "another process"
        super().__init__(
            f"the state directory {directory} is used by {owner}: "
            "stop that host first, or give this one a directory of its own"
        )
        self.directory = directory
        self.pid = pid


# Numbers of deleted streams

STREAM_DIGEST: Final = "stream_digest"
"""The SQL function :func:`stream_digest`."""


LEAST_NUMBER: Final = "least"
"""The row of ``streams`` whose number stands for those of deleted streams that have no row any
more: a new stream numbers its events behind it."""


def stream_digest(name: str) -> str:
    """The name under which ``streams`` keeps the last number of a deleted stream.

    A stream of the same name goes on behind that number, so that no reader takes a new event for
    an old one; the row itself must not say whose stream it was. No stream has such a name: all
    begin with their kind and a colon.
    """
    return sha256(name.encode("utf-8", "surrogatepass")).hexdigest()


def last_number(stream: str) -> str:
    """An SQL expression: the number of the last event of a stream, 0 if there never was one.

    ``stream``: an expression with its name.
    """
    # The digest is made for a stream without a row only: ``coalesce`` stops at the first value.
    head = "(SELECT head FROM streams WHERE stream = {})"
    digest = f"{STREAM_DIGEST}({stream})"
    least = head.format(f"'{LEAST_NUMBER}'")
    return f"coalesce({head.format(stream)}, {head.format(digest)}, {least}, 0)"


def forget_streams(which: str) -> tuple[str, str]:
    """SQL that replaces the names of streams by their digests. ``which``: a condition."""
    return (
        f"INSERT INTO streams (stream, head) SELECT {STREAM_DIGEST}(stream), head FROM streams"
        f" WHERE {which} ON CONFLICT (stream) DO UPDATE SET head = max(head, excluded.head)",
        f"DELETE FROM streams WHERE {which}",
    )


# The times of commits

COMMIT_SECONDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)


class Histogram:
    """How many durations were at most so long, for each of some seconds.

    Attributes:
        bounds: seconds, ascending.
        counts: durations up to each bound and above the one before; the last are above all bounds.
        total: seconds of all durations.
    """

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.total += seconds

    def cumulative(self) -> list[int]:
        """The durations up to each bound, and of all lengths."""
        found, sum_of = list[int](), 0
        for count in self.counts:
            sum_of += count
            found.append(sum_of)
        return found


# The codec between rows and structs. A struct's fields are the columns of its query, in their
# order; nested values are JSON columns. Text that comes from outside may hold lone surrogates,
# which UTF-8 cannot: ``to_json`` and ``storable`` replace them, or the input could not be stored.

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
