"""The session store: transcripts, runs and idempotency keys, durable before they are answered.

One actor over three groups of tables, each in a file with its statements and its handlers:
``session_runs``, ``session_transcripts``, ``session_settings``. Handlers run concurrently, so that
they share commits instead of waiting for each other's. Invariants: an accepted input is on disk
(G15); a session belongs to the user who made it, for others it does not exist (G16); each stored
transcript has one result for each call (G7).
"""

from __future__ import annotations

import attrs

from motet.actors.storage.session_runs import RunTables, SettingTables
from motet.actors.storage.session_transcripts import TranscriptTables
from motet.protocols.sessions import SessionStoreMessage
from motet.runtime import Actor


@attrs.frozen
class StoreStatistics:
    """``lost``: rows of journals that could not be written; the runs went on without."""

    lost: int


class SessionStore(RunTables, TranscriptTables, SettingTables, Actor[SessionStoreMessage]):
    """Handles the messages of ``motet.protocols.sessions``.

    ``journal`` and ``contexts`` belong to the host; this store alone writes the journal to disk.
    """

    async def on_start(self) -> None:
        self.start_soon(self._journal.run, self._write, name="journal")

    def statistics(self) -> StoreStatistics:
        return StoreStatistics(self._journal.lost)
