"""The session store: transcripts, runs and idempotency keys, durable before they are answered.

One actor over three groups of tables, each in a file with its statements and its handlers:
``session_runs``, ``session_transcripts``, ``session_settings``. Handlers run concurrently, so that
they share commits instead of waiting for each other's. Invariants: an accepted input is on disk
(G15); a session belongs to the user who made it, for others it does not exist (G16); each stored
transcript has one result for each call (G7).
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from motet.actors.storage.readers import Readers
from motet.actors.storage.run_access import ContextCache, RunJournal
from motet.actors.storage.session_runs import RunTables, SettingTables
from motet.actors.storage.session_transcripts import TranscriptTables
from motet.protocols.errors import Resolved
from motet.protocols.sessions import SessionStoreMessage
from motet.protocols.storage import Commit
from motet.runtime import Actor
from motet.runtime.outside import wall_time


@attrs.frozen
class StoreStatistics:
    """``lost``: rows of journals that could not be written; the runs went on without."""

    lost: int


class SessionStore(RunTables, TranscriptTables, SettingTables, Actor[SessionStoreMessage]):
    """Handles the messages of ``motet.protocols.sessions``.

    ``journal`` and ``contexts`` belong to the host, for runs to add to and to read by plain calls;
    this store alone writes the journal to disk and changes the cache. ``resolved`` is called with
    the tools that have succeeded in a run, for errors that are not in the database.
    """

    def __init__(
        self,
        commit: Commit,
        readers: Readers,
        clock: Callable[[], float] = wall_time,
        *,
        journal: RunJournal | None = None,
        contexts: ContextCache | None = None,
        resolved: Callable[[str, Resolved], None] = lambda _session, _tools: None,
    ) -> None:
        super().__init__(commit, readers, clock)
        self._journal = RunJournal() if journal is None else journal
        self._contexts = ContextCache() if contexts is None else contexts
        self._unfinished = {}
        self._resolved = resolved

    async def on_start(self) -> None:
        self.start_soon(self._journal.run, self._write, name="journal")

    def statistics(self) -> StoreStatistics:
        return StoreStatistics(self._journal.lost)
