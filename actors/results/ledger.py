"""What the result store holds, in the order of last use: who may read it, and who makes room.

Laws: the bytes held never exceed ``max_bytes``; room is made by the least recently used results
that are not pinned, and by no more of them than needed; a use moves the end of an entry's life;
an expired entry, or another session's, is as if it were not there. Source: seed 000.
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs
import msgspec

from motet.actors.storage.errors import StorageError


class ResultTooLarge(StorageError):
    """Bigger than the whole store: ask the tool for less."""


class ResultsFull(StorageError):
    """Everything stored is pinned: nothing can make room."""


class Entry(msgspec.Struct, frozen=True):
    """One result held. ``held``: bytes on disk; ``used``: Unix seconds of its last use."""

    id: str
    session: str
    held: int
    used: float
    pinned: bool = False


@attrs.define
class Ledger:
    """Changed only by what has been committed: :meth:`room_for` plans, :meth:`add` does."""

    max_bytes: int
    lifetime: float
    held: int = attrs.field(default=0, init=False)
    _entries: dict[str, Entry] = attrs.field(factory=dict[str, Entry], init=False)

    def __contains__(self, result_id: str) -> bool:
        return result_id in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def room_for(self, size: int, now: float) -> list[str]:
        """Ids that must go for ``size`` bytes, expired ones first. Raises ``StorageError``."""
        if size > self.max_bytes:
            raise ResultTooLarge(f"{size} bytes are more than the store's {self.max_bytes}")
        expired = [e for e in self._entries.values() if self._expired(e, now)]
        going = {entry.id for entry in expired}
        excess = self.held + size - self.max_bytes - sum(entry.held for entry in expired)
        for entry in self._entries.values():
            if excess <= 0:
                break
            if not entry.pinned and entry.id not in going:
                going.add(entry.id)
                excess -= entry.held
        if excess > 0:
            raise ResultsFull(f"{size} bytes do not fit beside what is pinned: unpin or wait")
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

    def find(self, result_id: str, session: str, now: float) -> Entry | None:
        entry = self._entries.get(result_id)
        if entry is None or entry.session != session or self._expired(entry, now):
            return None
        return entry

    def use(self, result_id: str, now: float) -> None:
        """Make it the newest; a result that has gone meanwhile stays gone."""
        if entry := self._entries.pop(result_id, None):
            self._entries[result_id] = msgspec.structs.replace(entry, used=max(entry.used, now))

    def pin(self, result_id: str, pinned: bool) -> None:
        if entry := self._entries.get(result_id):
            self._entries[result_id] = msgspec.structs.replace(entry, pinned=pinned)

    def of_session(self, session: str) -> list[str]:
        return [entry.id for entry in self._entries.values() if entry.session == session]

    def _expired(self, entry: Entry, now: float) -> bool:
        return now - entry.used >= self.lifetime
