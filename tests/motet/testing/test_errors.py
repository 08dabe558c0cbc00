"""Stores of errors: one set of tests for all, and hosts whose store fails."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import asynccontextmanager
from math import inf
from pathlib import Path
from typing import Any

import pytest
import trio
from msgspec.structs import asdict, replace
from trio.testing import MockClock

import motet
from motet.actors.storage.location import Location
from motet.actors.storage.readers import Readers
from motet.actors.storage.sqlite_errors import SqliteErrors
from motet.actors.storage.writer import Writer
from motet.protocols.error_records import SMALL, stored_error
from motet.protocols.errors import (
    ErrorGroup,
    ErrorPage,
    ErrorRecord,
    Errors,
    ErrorText,
    GroupErrors,
    GroupPage,
    InputValidation,
    ListErrors,
    StoredError,
)
from motet.protocols.storage import StorageError
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


class DictErrors:
    """As an embedding program would write one: records by id, newest last, filters by name."""

    def __init__(self) -> None:
        self.records: dict[str, ErrorRecord] = {}
        self.resolved: dict[str, float] = {}

    async def store(self, records: Sequence[ErrorRecord]) -> list[str]:
        taken = [one.id for one in records if self.records.get(one.id, one) != one]
        self.records |= {one.id: one for one in records if one.id not in taken}
        return taken

    async def get(self, error_id: str, *, brief: bool = False) -> StoredError | None:
        if (record := self.records.get(error_id)) is None:
            return None
        found = self.shown(record)
        if brief and len(record.raw_error) > SMALL:
            return replace(found, raw_error={"message": record.short_summary})
        return found

    async def read(self, error_id: str, offset: int, limit: int) -> ErrorText | None:
        if (found := self.records.get(error_id)) is None:
            return None
        return ErrorText(found.raw_error[offset:][:limit], offset, len(found.raw_error))

    async def page(self, which: ListErrors, cursor: str | None) -> ErrorPage:
        last_stored_first = reversed(self.records.values())
        newest_first = sorted(last_stored_first, key=lambda record: -record.timestamp)
        fitting = [self.shown(record) for record in newest_first if self.fits(record, which)]
        if cursor is not None:
            beyond = [at for at, error in enumerate(fitting) if error.id == cursor]
            if not beyond:
                raise InputValidation(f"no page has ended with {cursor!r}")
            fitting = fitting[beyond[0] + 1 :]
        page = fitting[: which.limit or None]
        return ErrorPage(tuple(page), page[-1].id if page and len(page) == which.limit else None)

    def fits(self, record: ErrorRecord, which: ListErrors) -> bool:
        names = ("session_id", "tool_name", "kind", "agent", "run_id", "fingerprint")
        wanted = [(getattr(which, name), getattr(record, name)) for name in names]
        wanted += [(which.owner, record.user), (which.resolved, record.id in self.resolved)]
        since = -inf if which.start is None else which.start
        until = inf if which.end is None else which.end
        equal = all(want in (None, value) for want, value in wanted)
        return equal and since <= record.timestamp <= until

    async def groups(self, which: GroupErrors) -> GroupPage:
        by_key: dict[tuple[str, str, str], list[ErrorRecord]] = {}
        for record in self.records.values():
            by_key.setdefault((record.user, record.agent, record.fingerprint), []).append(record)
        found = [self.group(equal) for equal in by_key.values()]
        wanted = [
            one
            for one in found
            if all(
                want in (None, value)
                for want, value in (
                    (which.owner, one.owner),
                    (which.agent, one.agent),
                    (which.tool_name, one.tool_name),
                    (which.kind, one.kind),
                    (which.resolved, one.open == 0),
                )
            )
            and one.last_seen >= (which.start or 0)
        ]
        wanted.sort(key=lambda one: (one.last_seen, one.newest), reverse=True)
        begin = 0
        if which.cursor is not None:
            ends = [at for at, one in enumerate(wanted) if one.newest == which.cursor]
            if not ends:
                raise InputValidation(f"no page has ended with {which.cursor!r}")
            begin = ends[0] + 1
        page = wanted[begin : begin + which.limit]
        return GroupPage(tuple(page), page[-1].newest if len(page) == which.limit else None)

    def group(self, equal: list[ErrorRecord]) -> ErrorGroup:
        newest = max(equal, key=lambda record: record.timestamp)
        return ErrorGroup(
            fingerprint=newest.fingerprint,
            owner=newest.user,
            agent=newest.agent,
            tool_name=newest.tool_name,
            kind=newest.kind,
            count=len(equal),
            open=sum(record.id not in self.resolved for record in equal),
            first_seen=min(record.timestamp for record in equal),
            last_seen=newest.timestamp,
            newest=newest.id,
            summary=newest.short_summary,
            session_id=newest.session_id,
            run_id=newest.run_id,
        )

    def shown(self, record: ErrorRecord) -> StoredError:
        whose = (record.user, record.agent, record.fingerprint)
        group = self.group(
            [
                one
                for one in self.records.values()
                if (one.user, one.agent, one.fingerprint) == whose
            ]
        )
        return stored_error(
            asdict(record)
            | {"arguments": record.arguments or None, "resolved": self.resolved.get(record.id)}
            | {"count": group.count, "first_seen": group.first_seen, "last_seen": group.last_seen}
        )

    async def resolve(
        self, session_id: str, tool_name: str, now: float, later: Collection[str] = ()
    ) -> int:
        before = len(self.resolved)
        for one in self.records.values():
            if (one.session_id, one.tool_name) == (session_id, tool_name) and one.id not in later:
                self.resolved.setdefault(one.id, now)
        return len(self.resolved) - before

    async def forget(self, session_id: str) -> None:
        self.records = {k: one for k, one in self.records.items() if one.session_id != session_id}


class TestInADict(ErrorsConformance):
    @asynccontextmanager
    async def opened(self) -> AsyncGenerator[Errors]:
        yield DictErrors()


class Whole(MemoryErrors):
    """It ignores the offset of a part."""

    async def read(self, error_id: str, offset: int, limit: int) -> ErrorText | None:
        found = await super().read(error_id, 0, limit)
        return found and replace(found, offset=offset)


class Forgetting(MemoryErrors):
    """It does not look whether an error with a known id is the same."""

    async def store(self, records: Sequence[ErrorRecord]) -> set[str]:
        known = {error.id for error in (await self.page(ListErrors(limit=0), None)).errors}
        return await super().store(records) | known & {record.id for record in records}


@pytest.mark.parametrize(
    ("store", "test"),
    [
        (Whole, ErrorsConformance.test_a_raw_error_is_read_in_parts),
        (Forgetting, ErrorsConformance.test_an_error_that_comes_again_is_no_other),
    ],
)
async def test_the_suite_finds_and_ends_with_a_store_that_is_wrong(
    store: type[MemoryErrors], test: Callable[[ErrorsConformance], Awaitable[None]]
) -> None:
    class Wrong(ErrorsConformance):
        @asynccontextmanager
        async def opened(self) -> AsyncGenerator[Errors]:
            yield store()

    with pytest.raises(AssertionError):
        await test(Wrong())


def failing() -> motet.Agent[None]:
    model = Scripted(*(call(("broken", {})), say("it failed")) * 2)
    agent = motet.Agent("a", model=model)

    @agent.tool
    async def broken() -> str:
        raise OSError("no route to host")

    return agent


class Forgetful(MemoryErrors):
    """It answers what it likes: nothing, that each id is taken, and errors of another kind."""

    def __init__(self, answer: object) -> None:
        super().__init__()
        self.answer: Any = answer
        self.calls = 0

    async def store(self, records: Sequence[ErrorRecord]) -> Any:
        self.calls += 1
        await super().store(records)
        return self.answer(records) if callable(self.answer) else self.answer

    async def get(self, error_id: str, *, brief: bool = False) -> Any:
        return {"id": error_id, "brief": brief}

    async def page(self, which: ListErrors, cursor: str | None) -> Any:
        return [which, cursor]


def all_taken(records: Sequence[ErrorRecord]) -> list[str]:
    return [one.id for one in records]


def raising(_: object) -> Iterator[float]:
    yield 1 / 0


ANSWERS = [None, 5, "no", all_taken, raising]


@pytest.mark.parametrize("answer", ANSWERS)
async def test_a_store_that_answers_anything_ends_no_host(
    answer: object, autojump_clock: MockClock
) -> None:
    own = Forgetful(answer)
    async with motet.open_host(agents=[failing()], errors=own) as host:
        for _ in range(2):
            with trio.fail_after(60):
                result = await host.run("a", "call broken", session="s")
            assert result.output == "it failed"
        with pytest.raises(StorageError, match="its answer is of the type dict"):
            await host.error("err_20240229_120000_00abff")
        with pytest.raises(StorageError, match="its answer is of the type list"):
            await host.errors()
    assert own.calls < 200


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
