"""A model that plays a recording of another model, and makes recordings.

Playing needs no key, no network and no SDK. The file format is in
:mod:`motet.testing.cassette`.
"""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal, Self, TypeAlias, get_args

import trio

from motet.actors.models.catalog import Billed, Closable, resolve
from motet.actors.models.provider import Played
from motet.protocols.errors import ConfigError
from motet.protocols.models import (
    Finished,
    Model,
    ModelEvent,
    ModelFailure,
    ModelRequest,
    NativeOutput,
    OutputSchema,
)
from motet.testing.cassette import (
    Entry,
    Header,
    NormalizedRequest,
    decoded,
    difference,
    encoded,
    entry_of,
    nearest,
    normalized,
)

Mode: TypeAlias = Literal["replay", "missing", "record"]


class RecordedModel:
    """Answers from a cassette.

    Args:
        cassette: the file.
        model: the model to record, ``openai:gpt-5.2`` or a model object; only for the modes that
            record.
        mode: ``replay`` sends no request, and one that is not in the cassette fails with the
            difference to the nearest entry; ``missing`` sends the requests that are not in the
            cassette and adds them; ``record`` sends all requests and starts the cassette anew.
        ignore: regular expressions of more text that varies from run to run.

    A request that was recorded several times gets its answers in the recorded order, and the last
    one from then on. An answer that is not read to its end is not recorded. Raises ``ConfigError``
    for a cassette that cannot be read and for a recording mode without a model.
    """

    def __init__(
        self,
        cassette: str | Path,
        model: str | Model | None = None,
        *,
        mode: Mode = "replay",
        ignore: Sequence[str] = (),
    ) -> None:
        self._file = Path(cassette)
        self._mode: Mode = mode
        self._ignore = [re.compile(pattern) for pattern in ignore]
        self._entries: list[Entry] = []
        self._waiting: dict[str, deque[Entry]] = defaultdict(deque)
        self._last: dict[str, Entry] = {}
        self._lock = trio.Lock()
        if mode not in get_args(Mode):
            raise ConfigError(f"mode must be one of {', '.join(get_args(Mode))}, not {mode!r}")
        if mode != "replay" and model is None:
            raise ConfigError(f"mode {mode!r} records a model: say which one")
        self._model = resolve(model) if isinstance(model, str) else model
        self._header = self._load()

    @property
    def name(self) -> str:
        """The name of the model that was recorded."""
        return self._header.model

    @property
    def base_url(self) -> str | None:
        """The server of the recorded model, so that its answers have the same price."""
        return self._header.base_url

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} {self._mode} {len(self._entries)} entries>"

    def takes_output(self, output: OutputSchema, *, tools: bool) -> bool:
        """The recorded model's answer; in ``replay``, the one that the cassette implies."""
        if self._mode == "replay" or self._model is None:
            known = normalized(ModelRequest("", (), output=output)).output
            return any(entry.asked.output == known for entry in self._entries)
        model = self._model
        return isinstance(model, NativeOutput) and model.takes_output(output, tools=tools)

    @asynccontextmanager
    async def request(self, request: ModelRequest) -> AsyncGenerator[AsyncIterator[ModelEvent]]:
        """Stream one answer; see :class:`motet.protocols.models.Model`.

        Raises :class:`ModelFailure` ``not_recorded`` for an unknown request in ``replay``.
        """
        asked = normalized(request, self._ignore)
        entry = None if self._mode == "record" else self._next(asked.fingerprint)
        if entry is not None:
            await trio.lowlevel.checkpoint()
            yield _Replayed(entry)
        elif self._model is None or self._mode == "replay":
            raise self._unknown(asked)
        else:
            heard: list[ModelEvent] = []
            try:
                async with self._model.request(request) as events:
                    yield _Recording(events, heard)
            except ModelFailure as failure:
                await self._add(entry_of(asked, heard, failure))
                raise
            if heard and isinstance(heard[-1], Finished):
                await self._add(entry_of(asked, heard))

    async def aclose(self) -> None:
        """Close the connections of the recorded model."""
        if isinstance(self._model, Closable):
            await self._model.aclose()

    def _load(self) -> Header:
        """Read the existing entries; blocks for one file. Returns the header of the cassette."""
        if self._mode == "record" or (self._mode == "missing" and not self._file.exists()):
            assert self._model is not None
            url = self._model.base_url if isinstance(self._model, Billed) else None
            return Header(self._model.name, base_url=url)
        try:
            header, entries = decoded(self._file.read_bytes(), str(self._file))
        except OSError as error:
            raise ConfigError(
                f"the cassette {self._file} cannot be read ({error.strerror}): record it with "
                "mode='missing' and a model"
            ) from error
        for entry in entries:
            self._keep(entry)
        return header

    def _keep(self, entry: Entry) -> None:
        self._entries.append(entry)
        self._waiting[entry.fingerprint].append(entry)

    def _next(self, fingerprint: str) -> Entry | None:
        if self._waiting[fingerprint]:
            self._last[fingerprint] = self._waiting[fingerprint].popleft()
        return self._last.get(fingerprint)

    def _unknown(self, asked: NormalizedRequest) -> ModelFailure:
        found = nearest(asked, self._entries)
        said = f"the cassette {self._file} has no such request"
        if found is not None:
            said += f"; it differs from the nearest one:\n{difference(found.asked, asked)}\n"
        return ModelFailure(said, kind="not_recorded")

    async def _add(self, entry: Entry) -> None:
        """Append one entry. Shielded, since the answer is already paid for."""
        with trio.CancelScope(shield=True):
            async with self._lock:
                fresh = not self._entries
                self._entries.append(entry)
                self._last[entry.fingerprint] = entry
                await trio.to_thread.run_sync(self._write, entry, fresh)

    def _write(self, entry: Entry, fresh: bool) -> None:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with self._file.open("wb" if fresh else "ab") as file:
            if fresh:
                file.write(encoded(self._header))
            file.write(encoded(entry))


class _Replayed:
    """The events of an entry, then its failure."""

    def __init__(self, entry: Entry) -> None:
        self._events = Played(entry.events)
        self._failure = entry.failure

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ModelEvent:
        try:
            return await anext(self._events)
        except StopAsyncIteration:
            failed = self._failure
            if failed is None:
                raise
        raise ModelFailure(
            failed.message, kind=failed.kind, status=failed.status, retry_after=failed.retry_after
        )


class _Recording:
    """Passes events on and appends them to ``heard``."""

    def __init__(self, events: AsyncIterator[ModelEvent], heard: list[ModelEvent]) -> None:
        self._events = events
        self._heard = heard

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ModelEvent:
        event = await anext(self._events)
        self._heard.append(event)
        return event
