"""Stores of errors: one set of tests for all, and hosts whose store fails."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

import motet
from motet.actors.storage.location import Location
from motet.actors.storage.readers import Readers
from motet.actors.storage.sqlite_errors import SqliteErrors
from motet.actors.storage.writer import Writer
from motet.protocols.errors import ErrorRecord, Errors, ErrorText
from motet.testing.errors import ErrorsConformance, MemoryErrors
from tests.scripted import Scripted, call, say


class TestInMemory(ErrorsConformance):
    @asynccontextmanager
    async def opened(self) -> AsyncGenerator[Errors]:
        yield MemoryErrors()


class TestSqlite(ErrorsConformance):
    @asynccontextmanager
    async def opened(self) -> AsyncGenerator[Errors]:
        with Location.memory() as location:
            writer, readers = Writer(location), Readers(location)
            await writer.open()
            yield SqliteErrors(writer.submit, readers)
            await readers.aclose()
            await writer.aclose()


class DictErrors(MemoryErrors):
    """Written as an embedding program would write one: records by id, in a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.records: dict[str, ErrorRecord] = {}

    async def store(self, records: Sequence[ErrorRecord]) -> set[str]:
        taken = {record.id for record in records} & self.records.keys()
        new = [record for record in records if record.id not in taken]
        self.records |= {record.id: record for record in new}
        await super().store(new)
        return taken

    async def read(self, error_id: str, offset: int, limit: int) -> ErrorText | None:
        if (found := self.records.get(error_id)) is None:
            return None
        return ErrorText(found.raw_error[offset:][:limit], offset, len(found.raw_error))

    async def forget(self, session_id: str) -> None:
        await super().forget(session_id)
        for made in [one.id for one in self.records.values() if one.session_id == session_id]:
            del self.records[made]


class TestInADict(ErrorsConformance):
    @asynccontextmanager
    async def opened(self) -> AsyncGenerator[Errors]:
        yield DictErrors()


def failing() -> motet.Agent[None]:
    model = Scripted(*(call(("broken", {})), say("it failed")) * 2)
    agent = motet.Agent("a", model=model)

    @agent.tool
    def broken() -> str:
        raise OSError("no route to host")

    return agent


async def test_a_host_uses_the_store_that_it_was_given(tmp_path: Path) -> None:
    own = MemoryErrors()
    async with motet.open_host(tmp_path, agents=[failing()], errors=own) as host:
        result = await host.run("a", "call broken", session="s")
        (failed,) = result.errors
        assert failed.error_id is not None
        found = await own.get(failed.error_id)
        assert found is not None
        assert (found.run_id, found.session_id, found.tool_name) == (result.run_id, "s", "broken")
        assert (await host.error(failed.error_id)).raw_error["type"] == "OSError"
        assert [error.id for error in await host.errors(run=result.run_id)] == [failed.error_id]
        await host.delete("s")
        assert await own.get(failed.error_id) is None


class Broken(MemoryErrors):
    """A store that raises, or hangs, at every call."""

    def __init__(self, problem: BaseException | None) -> None:
        super().__init__()
        self.problem = problem

    async def store(self, records: Sequence[ErrorRecord]) -> set[str]:
        if self.problem is not None:
            raise self.problem
        await trio.sleep_forever()
        raise AssertionError


@pytest.mark.parametrize("problem", [None, OSError("no disk"), GeneratorExit(), SystemExit(3)])
async def test_a_store_that_fails_or_hangs_ends_nothing(
    problem: BaseException | None, autojump_clock: MockClock
) -> None:
    async with motet.open_host(agents=[failing()], errors=Broken(problem)) as host:
        for _ in range(2):
            result = await host.run("a", "call broken", session="s")
            assert result.status == "completed"
