"""The requests and answers of the result store, what it evicts, and how it packs a content.

:class:`LruIndex` decides what makes room, :func:`pack` and :func:`unpack` put a content into a text
column and verify it. Law of packing: unpacking a packed content gives it back, or raises; the
checksum is of the content itself, and always verified. (Seed 000 lists the contradictions of its
blob store.)
"""

from __future__ import annotations

import zlib
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable
from hashlib import sha256
from typing import Final, Literal, TypeAlias, cast

import attrs
import msgspec

from motet.protocols.messages import Request
from motet.protocols.storage import StorageError

Kind: TypeAlias = Literal["text", "json", "binary"]
"""``json``: an array, paged by its items. ``text``: paged by lines. ``binary``: never shown."""


def checksum(content: bytes) -> str:
    """SHA-256 in hex, as a stored result carries it."""
    return sha256(content).hexdigest()


class ResultInfo(msgspec.Struct, frozen=True):
    """A stored result without its content. ``size`` is in bytes, ``sha256`` in hex.

    ``compressed``: on disk only.
    """

    id: str
    session: str
    tool: str
    kind: Kind
    size: int
    sha256: str
    compressed: bool = False


class StoredResult(msgspec.Struct, frozen=True):
    """A stored result with its content, verified by its checksum."""

    info: ResultInfo
    content: bytes


class StoreResult(Request[ResultInfo], frozen=True, tag="results.store"):
    """Store a result; answered after COMMIT. Older ones that are not pinned are evicted.

    ``user``: whom the call has run for. Raises ``ResultTooLarge``, ``ResultsFull`` or another
    ``StorageError``.
    """

    session: str
    tool: str
    kind: Kind
    content: bytes
    pinned: bool = False
    user: str = ""


class ReadResult(Request[StoredResult | None], frozen=True, tag="results.read"):
    """One result of that session, which counts as used now; None: unknown, expired or foreign.

    ``session`` None: of any, for the host, which then decides who may read it.

    Raises ``ResultDamaged`` or another ``StorageError``.
    """

    id: str
    session: str | None


class PinResult(Request[bool], frozen=True, tag="results.pin"):
    """Pin a result against eviction, or unpin it; returns whether the session has it."""

    id: str
    session: str
    pinned: bool = True


class DropResults(Request[int], frozen=True, tag="results.drop"):
    """Delete all results of a session, pinned ones too; returns their number."""

    session: str


ResultProtocol: TypeAlias = StoreResult | ReadResult | PinResult | DropResults


# Eviction


class ResultTooLarge(StorageError):
    """Bigger than the whole store: ask the tool for less."""


class ResultsFull(StorageError):
    """Everything stored is pinned: nothing can make room."""


class Entry(msgspec.Struct, frozen=True):
    """One stored result. ``held``: bytes on disk; ``used``: Unix seconds of its last use."""

    id: str
    session: str
    held: int
    used: float
    pinned: bool = False


@attrs.define
class LruIndex:
    """The stored results in the order of their last use. Changed only after a commit.

    Laws: the bytes never exceed ``max_bytes``; the least recently used results that are not pinned
    make room, and no more of them than needed; a use prolongs an entry's life, and nothing of a
    session at work expires; an expired entry, or another session's, is not found.
    """

    max_bytes: int
    lifetime: float
    at_work: frozenset[str] = frozenset()
    held: int = attrs.field(default=0, init=False)
    _entries: dict[str, Entry] = attrs.field(factory=dict[str, Entry], init=False)

    def __contains__(self, result_id: str) -> bool:
        return result_id in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def room_for(self, size: int, now: float) -> list[str]:
        """The ids to evict for ``size`` bytes, expired ones first. Raises ``StorageError``."""
        if size > self.max_bytes:
            raise ResultTooLarge(f"{size} bytes are more than the store's {self.max_bytes}")
        going = {entry.id for entry in self._entries.values() if self._expired(entry, now)}
        excess = self.held + size - self.max_bytes - sum(self._entries[one].held for one in going)
        for entry in self._entries.values():
            if excess <= 0:
                break
            if not entry.pinned and entry.id not in going:
                going.add(entry.id)
                excess -= entry.held
        if excess > 0:
            raise ResultsFull(
                f"{size} bytes do not fit beside the pinned results: unpin some, or wait"
            )
        return [result_id for result_id in self._entries if result_id in going]

    def add(self, entry: Entry) -> None:
        assert entry.id not in self
        self._entries[entry.id] = entry
        self.held += entry.held
        assert self.held <= self.max_bytes

    def remove(self, result_ids: Iterable[str]) -> None:
        for result_id in result_ids:
            if entry := self._entries.pop(result_id, None):
                self.held -= entry.held

    def find(self, result_id: str, session: str | None, now: float) -> Entry | None:
        entry = self._entries.get(result_id)
        if entry is None or session not in (entry.session, None) or self._expired(entry, now):
            return None
        return entry

    def use(self, result_id: str, now: float) -> None:
        """Make it the newest, unless it has been evicted meanwhile."""
        if entry := self._entries.pop(result_id, None):
            self._entries[result_id] = msgspec.structs.replace(entry, used=max(entry.used, now))

    def pin(self, result_id: str, pinned: bool) -> None:
        if entry := self._entries.get(result_id):
            self._entries[result_id] = msgspec.structs.replace(entry, pinned=pinned)

    def resize(self, result_id: str, held: int) -> None:
        """Its content was corrected. More than ``max_bytes`` lasts until the next one is stored."""
        if entry := self._entries.get(result_id):
            self.held += held - entry.held
            self._entries[result_id] = msgspec.structs.replace(entry, held=held)

    def of_session(self, session: str) -> list[str]:
        return [entry.id for entry in self._entries.values() if entry.session == session]

    def _expired(self, entry: Entry, now: float) -> bool:
        return now - entry.used >= self.lifetime and entry.session not in self.at_work


# Packing

COMPRESS_FROM: Final = 65_536
"""Bytes from which compression is worth its time."""

Packing: TypeAlias = Literal["text", "base64", "zlib"]


class ResultDamaged(StorageError):
    """A stored result has changed: its file was edited or its disk has failed."""


class Packed(msgspec.Struct, frozen=True):
    """``data`` is ASCII or the text itself; ``held`` is its size in bytes."""

    packing: Packing
    data: str
    held: int
    size: int
    sha256: str


def pack(content: bytes, compress_from: int = COMPRESS_FROM) -> Packed:
    """Text as it is, else base64; compressed where that is smaller."""
    packing, data = _plain(content)
    held = len(content) if packing == "text" else len(data)
    if len(content) >= compress_from:
        squeezed = b64encode(zlib.compress(content)).decode()
        if len(squeezed) < held:
            packing, data, held = "zlib", squeezed, len(squeezed)
    return Packed(packing, data, held, len(content), checksum(content))


def unpack(packed: Packed) -> bytes:
    """The content. Raises ``ResultDamaged``."""
    try:
        content = _content(packed)
    except (ValueError, zlib.error) as error:
        raise ResultDamaged(f"a stored result cannot be unpacked: {error}") from error
    if len(content) != packed.size or checksum(content) != packed.sha256:
        raise ResultDamaged("a stored result is damaged: run its call again")
    return content


def _plain(content: bytes) -> tuple[Packing, str]:
    try:
        return "text", content.decode()
    except UnicodeDecodeError:
        return "base64", b64encode(content).decode()


def _content(packed: Packed) -> bytes:
    if packed.packing == "text":
        return packed.data.encode()
    data = b64decode(packed.data, validate=True)
    if packed.packing == "zlib":
        inflate = zlib.decompressobj()
        # Bounded, since a damaged row might decompress to gigabytes.
        data = inflate.decompress(data, packed.size + 1)
        if not inflate.eof:
            raise ValueError("the compressed data does not end where it should")
    return data


def repacked(*given: str | int, fix: Callable[[str], str]) -> str:
    """A packed text, given as the fields of :class:`Packed`, as ``fix`` makes it: those fields as
    JSON. Empty: it is the same, or cannot be read any more.
    """
    packing, data, held, size, digest = given
    try:
        packed = Packed(cast("Packing", packing), str(data), int(held), int(size), str(digest))
        text = unpack(packed).decode()
    except (ResultDamaged, UnicodeDecodeError):
        return ""
    fixed = fix(text)
    if fixed == text:
        return ""
    return msgspec.json.encode(msgspec.structs.astuple(pack(fixed.encode()))).decode()
