"""The error store on a real SQLite file, and on databases that fail."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import trio
import trio.testing

from motet.actors.storage.error_store import ErrorStore
from motet.actors.storage.location import Location
from motet.actors.storage.readers import Readers
from motet.protocols.errors import (
    ErrorProtocol,
    ErrorRecord,
    GetError,
    ListErrors,
    StoredError,
    StoreError,
)
from motet.protocols.fingerprints import fingerprint
from motet.protocols.storage import DatabaseLocked, DiskFull, StorageError
from motet.runtime import ActorDead, ActorRef, open_system
from motet.runtime.describe import is_id
from tests.actors.errors.builders import FakeWriter, failure, open_store
from tests.protocols.redaction.builders import alike

NOW = 1732230214.1234567


@pytest.fixture
def location(tmp_path: Path) -> Iterator[Location]:
    with Location.directory(tmp_path) as location:
        yield location


async def test_a_stored_error_can_be_got(location: Location) -> None:
    async with open_store(location, clock=lambda: NOW) as opened:
        stored = await opened.store.ask(failure("boom"))
        got = await opened.store.ask(GetError(stored.id, "s1"))
    assert got == stored
    assert stored == StoredError(
        stored.id,
        1732230214.123457,
        "s1",
        "t",
        {"message": "boom"},
        "boom",
        fingerprint=fingerprint("t", "unknown", {"message": "boom"}),
    )
    assert stored.id.startswith("err_20241121_230334_")


async def test_a_foreign_session_does_not_find_it_and_an_operator_does(location: Location) -> None:
    async with open_store(location) as opened:
        stored = await opened.store.ask(failure(session="alice"))
        assert await opened.store.ask(GetError(stored.id, "bob")) is None
        assert await opened.store.ask(GetError("err_20200101_000000_ffffff", "alice")) is None
        assert await opened.store.ask(GetError(stored.id)) == stored


async def test_errors_survive_a_restart_of_the_host(location: Location) -> None:
    async with open_store(location) as opened:
        stored = await opened.store.ask(failure())
    async with open_store(location) as opened:
        assert await opened.store.ask(GetError(stored.id, "s1")) == stored


async def test_secrets_are_redacted_before_storing_unless_raw_text_is_kept(
    location: Location,
) -> None:
    secret = StoreError("s", "t", {"password": "hunter2", "m": "a@b.org"}, "mail a@b.org\nx")
    async with open_store(location) as opened:
        stored = await opened.store.ask(secret)
    async with open_store(location, keep_raw=True) as opened:
        raw = await opened.store.ask(secret)
    assert alike(stored.raw_error) == {"password": "[REDACTED]", "m": "[EMAIL_REDACTED]"}
    assert stored.short_summary == "mail [EMAIL_REDACTED]"
    assert raw.raw_error == secret.raw_error


async def test_text_that_neither_json_nor_sqlite_takes_is_stored(location: Location) -> None:
    odd = StoreError("s\ud800", "t\ud800", {"m": "\ud800\0\x0b", "n": float("nan")}, "\ud800\0")
    async with open_store(location) as opened:
        stored = await opened.store.ask(odd)
        assert stored.raw_error == {"m": "\ufffd\0\x0b", "n": "nan"}
        assert await opened.store.ask(GetError(stored.id, "s\ud800")) == stored
        assert await opened.store.ask(ListErrors(tool_name="t\ud800")) == (stored,)


async def test_a_thousand_errors_are_listed_as_a_model_lists_them(location: Location) -> None:
    """1,000 rows with equal times among them; every combination of filters, against Python."""
    rng = random.Random(4)
    moments = [100.0, 200.0, 200.000001, 300.5, 400.0]
    now = itertools.chain.from_iterable(itertools.repeat(m, 200) for m in moments)
    async with open_store(location, clock=lambda: next(now)) as opened:
        stored: list[StoredError] = []
        for _ in range(1_000):
            request = failure(session=rng.choice("abc"), tool=rng.choice("xy"))
            stored.append(await opened.store.ask(request))
        for session, tool, start, end, limit in itertools.product(
            (None, "a", "zz"), (None, "x"), (None, 0.0, 200.000001), (None, 200.0), (0, 7)
        ):
            wanted = ListErrors(session, tool, start, end, limit)
            assert await opened.store.ask(wanted) == model(stored, wanted)


def model(stored: list[StoredError], wanted: ListErrors) -> tuple[StoredError, ...]:
    """What the list must be: newest first, the later stored first among equals."""
    found = [
        error
        for error in reversed(stored)
        if wanted.session_id in (None, error.session_id)
        and wanted.tool_name in (None, error.tool_name)
        and (wanted.start is None or error.timestamp >= wanted.start)
        and (wanted.end is None or error.timestamp <= wanted.end)
    ]
    found.sort(key=lambda error: -error.timestamp)
    return tuple(found[: wanted.limit or None])


async def test_two_hundred_at_once_get_two_hundred_ids(location: Location) -> None:
    ids: set[str] = set()
    async with open_store(location) as opened, trio.open_nursery() as nursery:

        async def store() -> None:
            ids.add((await opened.store.ask(failure())).id)

        for _ in range(200):
            nursery.start_soon(store)
    assert len(ids) == 200
    assert all(is_id(each) for each in ids)


async def test_a_clash_of_ids_is_retried_with_a_new_suffix(location: Location) -> None:
    suffixes = iter(["aaaaaa", "aaaaaa", "aaaaaa", "bbbbbb"])
    async with open_store(location, lambda: NOW, lambda _: next(suffixes)) as opened:
        first = await opened.store.ask(failure("one"))
        second = await opened.store.ask(failure("two"))
        assert (first.id[-6:], second.id[-6:]) == ("aaaaaa", "bbbbbb")
        assert await opened.store.ask(GetError(first.id)) == first


async def test_an_error_that_is_stored_already_is_no_clash_and_another_one_is(
    location: Location,
) -> None:
    """As after a kill before the answer: the batch comes again, with others."""
    one, other = (
        ErrorRecord(f"err_20260101_000000_00000{n}", 7.0, "s", "t", '{"message":"x"}', "x")
        for n in range(2)
    )
    async with open_store(location) as opened:
        errors = opened.errors
        assert await errors.store([one]) == set()
        foreign = msgspec.structs.replace(one, session_id="another")
        assert await errors.store([one, other]) == set()
        assert await errors.store([foreign, other]) == {one.id}
        listed = await opened.store.ask(ListErrors())
    assert [(error.id, error.session_id) for error in listed] == [(other.id, "s"), (one.id, "s")]


def test_the_ids_of_a_process_come_again_after_65_536_and_neighbours_share_their_beginning(
    location: Location,
) -> None:
    made = [*map(location.hex_source(), itertools.repeat(3, 65_536))]
    assert len({*made}) == 65_536
    assert {one[:2] for one in made} == {f"{location.turn:02x}"}
    assert len({one[:4] for one in made[:200]}) <= 2
    assert all(one[-2] != other[-2] for one, other in itertools.pairwise(made))


async def test_eight_clashes_are_a_failure_that_says_where_to_look(location: Location) -> None:
    asked: list[int] = []

    def constant(size: int) -> str:
        asked.append(size)
        return "aaaaaa"

    async with open_store(location, lambda: NOW, constant) as opened:
        await opened.store.ask(failure())
        with pytest.raises(StorageError, match="source of randomness"):
            await opened.store.ask(failure())
    assert asked == [3] * (1 + 8)


@pytest.mark.parametrize(("failures", "works"), [(1, True), (2, False)])
async def test_a_locked_database_is_retried_once(failures: int, works: bool) -> None:
    def locked(n: int) -> None:
        if n < failures:
            raise DatabaseLocked("another program writes")

    async with open_system() as system:
        writer = FakeWriter(locked)
        with Location.memory() as location:
            store = await system.start(
                lambda: ErrorStore(writer.submit, Readers(location)), name="errors"
            )
            if works:
                assert is_id((await store.ask(failure())).id)
            else:
                with pytest.raises(DatabaseLocked):
                    await store.ask(failure())


async def test_other_failures_go_to_the_asker_and_the_store_survives() -> None:
    def full_once(n: int) -> None:
        if n == 0:
            raise DiskFull("no room")

    async with open_system() as system:
        writer = FakeWriter(full_once)
        with Location.memory() as location:
            store = await system.start(
                lambda: ErrorStore(writer.submit, Readers(location)), name="errors"
            )
            with pytest.raises(DiskFull):
                await store.ask(failure())
            assert is_id((await store.ask(failure())).id)


async def test_a_store_whose_asker_gave_up_is_finished(location: Location) -> None:
    async with open_store(location) as opened:
        with trio.CancelScope() as scope:
            scope.cancel()
            await opened.store.ask(failure("never asked"))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(opened.store.ask, failure("given up"))
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        await opened.store.ask(failure("later"))
        summaries = [e.short_summary for e in await opened.store.ask(ListErrors())]
    assert "never asked" not in summaries
    assert set(summaries) <= {"given up", "later"}


async def test_a_stopped_store_says_that_it_is_dead(location: Location) -> None:
    async with open_store(location) as opened:
        await opened.store.stop()
        with pytest.raises(ActorDead):
            await opened.store.ask(failure())


async def test_a_store_that_hangs_does_not_hold_up_the_stop_of_its_actor(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def hang(*_: object) -> tuple[()]:
        await trio.sleep_forever()
        return ()

    problems: list[StorageError] = []

    async def ask(store: ActorRef[ErrorProtocol], error: StoreError) -> None:
        try:
            await store.ask(error)
        except StorageError as problem:
            problems.append(problem)

    async with open_system() as system, trio.open_nursery() as nursery:
        with Location.memory() as location:
            make = lambda: ErrorStore(hang, Readers(location))  # noqa: E731
            store = await system.start(make, name="errors")
            for number in range(3):
                nursery.start_soon(ask, store, failure(f"error {number}"))
            await trio.testing.wait_all_tasks_blocked()
            await store.stop()
    assert len(problems) == 3
    assert autojump_clock.current_time() < 10
