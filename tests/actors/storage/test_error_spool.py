"""Errors that are reported while nothing can be stored, and thousands of them at once."""

from __future__ import annotations

import gc
import signal
import sys
import tracemalloc
import weakref
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

import attrs
import msgspec
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

import motet
from motet.actors.errors.capture import (
    Captured,
    Description,
    capture,
    describe,
    whole_error,
)
from motet.actors.storage.connection import Connection
from motet.actors.storage.error_spool import SPILL_FILE, ErrorSpool, Report
from motet.actors.storage.location import DATABASE_FILE, Location
from motet.actors.telemetry.error_channel import ErrorChannel
from motet.cli.stored import reading, stored_error, waiting_errors
from motet.protocols.error_records import Given, Origin
from motet.protocols.error_rows import insert_statement
from motet.protocols.errors import ErrorRecord
from motet.protocols.long_texts import ERROR_LIMIT, WRITTEN_LIMIT
from motet.protocols.redaction import finders
from motet.protocols.redaction import redact as redaction
from motet.protocols.storage import Statement, Transact
from motet.runtime import exceptions
from motet.runtime.describe import Known
from motet.runtime.exceptions import serialize_error
from motet.runtime.spill import spilled
from motet.runtime.spool_entries import Entry
from tests.actors.errors.builders import Warnings, open_store

LOCKER = """
import sys, time, sqlite3
database = sqlite3.connect(sys.argv[1], isolation_level=None)
database.execute("BEGIN IMMEDIATE")
print("locked", flush=True)
sys.stdin.readline()
"""


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite's own patience with a lock is real time: shorten it."""
    monkeypatch.setattr("motet.actors.storage.location.BUSY_TIMEOUT", 0.05)


def channel_of(host: motet.Host) -> ErrorChannel:
    return host._parts.services.errors  # pyright: ignore[reportPrivateUsage]


async def report_all(host: motet.Host, count: int, sessions: int) -> list[str | None]:
    """The ids that are told when so many calls fail at once."""
    channel, ids = channel_of(host), list[str | None]()

    async def fail(number: int) -> None:
        try:
            raise OSError(f"no route to host {number}\npassword=hunter2hunter2")
        except OSError as error:
            told = await channel.report(Origin(f"s{number % sessions}", "t"), error)
        ids.append(told.error_id)

    async with trio.open_nursery() as nursery:
        for number in range(count):
            nursery.start_soon(fail, number)
    return ids


@pytest.mark.parametrize("count", [600, pytest.param(5_000, marks=pytest.mark.sweep)])
async def test_all_that_fail_at_once_are_stored_and_every_id_is_found(
    tmp_path: Path, count: int
) -> None:
    async with motet.open_host(tmp_path) as host:
        ids = await report_all(host, count, 600)
        assert None not in ids
        assert len(set(ids)) == count
        for error_id in ids[:: max(1, count // 200)]:
            found = await host.error(str(error_id))
            assert "hunter2" not in str(found.raw_error)
    async with motet.open_host(tmp_path) as host:
        stored = {error.id for error in await host.errors(limit=1_000)}
        assert stored <= set(ids)
        assert len(stored) == min(count, 1_000)
    assert not (tmp_path / SPILL_FILE).exists()


async def test_errors_under_a_lock_are_told_found_and_stored_when_it_is_gone(
    tmp_path: Path,
) -> None:
    async with motet.open_host(tmp_path) as host:
        program = [sys.executable, "-c", LOCKER, str(tmp_path / "motet.db")]
        with Popen(program, stdin=PIPE, stdout=PIPE) as locker:
            assert locker.stdout is not None
            await trio.to_thread.run_sync(locker.stdout.readline)
            ids = await report_all(host, 50, 5)
            assert None not in ids
            for error_id in ids:
                assert (await host.error(str(error_id))).tool_name == "t"
            assert spilled(tmp_path / SPILL_FILE, ErrorRecord).keys() == set(ids)
            async with reading(tmp_path) as readers:
                assert (await stored_error(readers, str(ids[0]))).id == ids[0]
            assert waiting_errors(tmp_path).keys() == set(ids)
            locker.communicate(b"\n")
        await all_stored(tmp_path, host, len(ids))
    async with motet.open_host(tmp_path) as host:
        assert {error.id for error in await host.errors()} == set(ids)


async def test_an_error_that_moves_to_the_database_between_two_looks_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command looks into the database, then into the spill file, which a host may empty then."""
    async with motet.open_host(tmp_path):
        pass
    record = ErrorRecord("err_20260101_000000_00abff", 7.0, "s", "t", '{"message":"x"}', "x")

    def moved(_folder: Path | None) -> dict[str, ErrorRecord]:
        with closing(Connection(str(tmp_path / DATABASE_FILE))) as database:
            statement = insert_statement([record])
            database.run_each(statement.sql, statement.each)
        return {}

    monkeypatch.setattr("motet.cli.stored.waiting_errors", moved)
    async with reading(tmp_path) as readers:
        assert (await stored_error(readers, record.id)).short_summary == "x"


async def all_stored(folder: Path, host: motet.Host, count: int) -> None:
    with trio.fail_after(30):
        while len(await host.errors(limit=1_000)) < count or (folder / SPILL_FILE).exists():
            await trio.sleep(0.01)


async def test_errors_of_a_full_disk_are_stored_when_it_has_room(tmp_path: Path) -> None:
    """Also where the disk has no room for a spill file: then no id is told until it has."""
    (tmp_path / SPILL_FILE).mkdir(parents=True)
    async with motet.open_host(tmp_path) as host:
        database = host.system.find("/host/database")
        assert database is not None
        await database.ask(Transact((Statement("PRAGMA max_page_count = 1"),)))
        channel = channel_of(host)
        told = [await channel.report(Origin("s", "t"), "x" * 9_000 + str(n)) for n in range(3)]
        assert [one.error_id for one in told] == [None] * 3
        assert all(one.text.startswith("Error: xxx") for one in told)
        await database.ask(Transact((Statement("PRAGMA max_page_count = 100000"),)))
        with trio.fail_after(30):
            while len(await host.errors(limit=1_000)) < len(told):
                await trio.sleep(0.01)


VICTIM = """
import os, sys, trio, motet
from motet.protocols.error_records import Origin
async def main():
    async with motet.open_host(sys.argv[1]) as host:
        if sys.argv[2] == "locked":
            import apsw
            other = apsw.Connection(sys.argv[1] + "/motet.db")
            other.execute("BEGIN IMMEDIATE")
        channel = host._parts.services.errors
        async def fail(number):
            told = await channel.report(Origin("s", "t"), f"boom {number}")
            if told.error_id:
                os.write(1, f"{told.error_id}\\n".encode())
        async with trio.open_nursery() as nursery:
            for number in range(2_000):
                nursery.start_soon(fail, number)
        os.write(1, b"end\\n")
        await trio.sleep_forever()
trio.run(main)
"""


@pytest.mark.slow
@pytest.mark.parametrize("storage", ["works", "locked"])
@pytest.mark.parametrize(
    "after", [300, *(pytest.param(n, marks=pytest.mark.sweep) for n in (1, 257, 900, 1_700))]
)
def test_an_id_that_was_shown_is_found_after_a_kill(
    tmp_path: Path, storage: str, after: int
) -> None:
    """Law: kill -9 between a report and its store costs only ids that nobody was shown."""
    program = [sys.executable, "-c", VICTIM, str(tmp_path), storage]
    with Popen(program, stdout=PIPE, text=True) as victim:
        assert victim.stdout is not None
        shown = [victim.stdout.readline().strip() for _ in range(after)]
        victim.send_signal(signal.SIGKILL)
        shown += [line.strip() for line in victim.stdout if line.endswith("\n")]

    async def look() -> None:
        async with motet.open_host(tmp_path) as host:
            for one in shown:
                assert one in ("end", "") or (await host.error(one)).raw_error["message"]

    trio.run(look)


def stored(captured: Captured) -> dict[str, object]:
    """The whole error, as it is read back."""
    return msgspec.json.decode(whole_error(captured, "")[0], type=dict[str, object])


def test_a_snapshot_keeps_no_frame_alive_and_tells_what_the_exception_tells() -> None:
    class Socket:
        """An object that a frame holds."""

    alive: list[weakref.ref[Socket]] = []

    def fail() -> None:
        socket = Socket()
        alive.append(weakref.ref(socket))
        try:
            dict[str, int]()["missing"]
        except KeyError as error:
            error.add_note("a note")
            raise ValueError("boom") from error

    captured, whole = capture(None), dict[str, object]()
    try:
        fail()
    except ValueError as error:
        captured, whole = capture(error), serialize_error(error)
    gc.collect()
    assert alive[0]() is None
    assert stored(captured) == whole


HUGE = 100_000_000


@attrs.frozen
class Wrong:
    """An object in the arguments of an exception."""

    data: bytes


def said(what: object) -> BaseException:
    return ValueError(what)


def caused(error: BaseException, cause: BaseException) -> BaseException:
    error.__cause__ = cause
    return error


def noted(error: BaseException, *notes: str) -> BaseException:
    for note in notes:
        error.add_note(note)
    return error


def deep(text: str) -> BaseException:
    error: BaseException = ValueError(text)
    for _ in range(50):
        error = caused(KeyError(text), error)
    return error


def local(text: str) -> BaseException:
    """An error whose frames have large locals and arguments."""

    def fail(argument: str, copy: list[str]) -> None:
        raise ValueError(argument.count("\n") and f"{len(copy)} wrong")

    try:
        fail(text, [text] * 10)
    except ValueError as error:
        return error
    raise AssertionError("it has not failed")


LINES, DATA = "no such thing\n" * (HUGE // 14), b"\0ab\xff" * (HUGE // 4)
ERRORS: dict[str, Callable[[], object]] = {
    "a text": lambda: LINES,
    "a message": lambda: said(LINES),
    "one byte that grows sixfold": lambda: said("é" * HUGE),
    "two bytes": lambda: said("試" * (HUGE // 2)),
    "four bytes at the end": lambda: said("x" * HUGE + "\U0001f600"),
    "lone surrogates": lambda: said(("x" * 99 + "\ud800") * (HUGE // 200)),
    "control characters": lambda: said("at\1" * (HUGE // 3)),
    "blank": lambda: said("\n" * HUGE),
    "bytes": lambda: said(DATA),
    "a bytearray": lambda: said(bytearray(DATA)),
    "several arguments": lambda: ValueError(
        LINES, [LINES] * 9, {"data": DATA, LINES: 1}, Wrong(DATA)
    ),
    "many short arguments": lambda: ValueError(["a line\n"] * 2_000_000),
    "a key": lambda: KeyError(LINES),
    "an errno": lambda: OSError(2, LINES, LINES),
    "an object": lambda: {"message": LINES, "data": DATA, "more": [LINES] * 9, LINES: DATA},
    "many texts": lambda: {"all": [LINES[n : n + 60_000] for n in range(0, HUGE, 60_000)]},
    "many short texts": lambda: [f"password=hunter{n}hunter" for n in range(2_000_000)],
    "JSON": lambda: '{"all": [' + "[]," * (HUGE // 3) + "1]}",
    "a note": lambda: noted(said("boom"), LINES, LINES),
    "a cause": lambda: caused(said(LINES), said(DATA)),
    "fifty causes": lambda: deep(LINES),
    "a group": lambda: ExceptionGroup(LINES, [ValueError(LINES), KeyError(LINES)] * 20),
    "a group of bytes": lambda: ExceptionGroup("several", [ValueError(DATA), KeyError(DATA)] * 9),
    "a group of notes": lambda: BaseExceptionGroup("several", [noted(KeyError(1), LINES)] * 9),
    "locals": lambda: local(LINES),
}


@pytest.mark.extended
@pytest.mark.parametrize("what", ERRORS)
def test_an_error_of_a_hundred_megabytes_takes_twice_its_bound_at_most(what: str) -> None:
    """Law: to take it, to describe it and to make its record; counted byte by byte."""
    error = ERRORS[what]()
    # Counting takes most of the time: that the redactor's memory is bounded, its own tests show.
    spool = ErrorSpool(store_nothing, keep_raw=what != "a message")
    report = Report(Origin("s", "t", arguments=LINES), (error, "", None, None))
    entry: Entry[Report, ErrorRecord] = Entry("e", report, 0.0, 0)
    gc.collect()
    tracemalloc.start()
    try:
        spool.take(report)
        taken = tracemalloc.get_traced_memory()[1]
        (record,) = spool.prepared([entry])
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert taken < 1.4 * ERROR_LIMIT
    assert most < 2 * ERROR_LIMIT
    assert record is not None
    assert record.raw_error.isascii() or len(record.raw_error) < ERROR_LIMIT // 4
    assert len(record.raw_error) < 1.05 * WRITTEN_LIMIT
    assert isinstance(msgspec.json.decode(record.raw_error), dict)
    if "a message" in what or "a text" in what:
        assert len(record.raw_error) > 0.9 * ERROR_LIMIT


async def store_nothing(_records: object) -> tuple[str, ...]:
    return ()


@pytest.mark.extended
@pytest.mark.parametrize("text", ["no such thing\n", "é", "\U0001f600"])
def test_an_error_of_a_hundred_megabytes_is_bounded_before_it_is_described(text: str) -> None:
    error = ValueError((text * (100_000_000 // len(text.encode()))) + "the end")
    captured = capture(error)
    assert captured.size < 1.1 * ERROR_LIMIT
    del error
    found = describe(captured)
    assert len(found.fallback) <= 500
    message = str(stored(captured)["message"])
    assert message.startswith(text * 10)
    assert message.endswith("the end")
    assert "characters left out ...]" in message
    assert len(message.encode()) < 4.1 * ERROR_LIMIT


@pytest.mark.parametrize("shift", range(0, 60, 23))
def test_no_secret_is_cut_in_half_by_the_bound_of_an_error(shift: int) -> None:
    """At the end of the beginning that is kept, and at the beginning of the end."""
    key = "sk-" + "a1" * 20
    head, tail = ERROR_LIMIT * 3 // 4, ERROR_LIMIT // 4
    text = "w " * (head // 2 - 10) + "x" * shift + f" {key} " + "w " * 3_000_000
    text += "w " * 10 + "x" * shift + f" {key} " + "w " * (tail // 2 - 10)
    message = str(stored(capture(text))["message"])
    assert "a1a1" not in message


async def test_a_report_that_is_cancelled_is_stored(tmp_path: Path) -> None:
    with Location.directory(tmp_path) as location:
        async with open_store(location) as opened:
            channel = Warnings().channel(opened.spool)
            with trio.CancelScope() as scope:
                scope.cancel()
                await channel.report(Origin("s", "X", "r"), "boom")
            await opened.store.stop()
            rows = await opened.readers.read("SELECT short_summary FROM agent_errors")
    assert rows == (("boom",),)


class Shown:
    """A value that counts how often it is looked at."""

    count = 0

    def __repr__(self) -> str:
        Shown.count += 1
        return "shown"


@pytest.mark.parametrize("shape", ["several arguments", "a list", "lists", "a table of lists"])
def test_of_very_many_values_of_an_exception_some_thousands_are_looked_at(shape: str) -> None:
    """Law: the event loop is held up for milliseconds, whatever the shape of the arguments."""
    each = [Shown() for _ in range(1_000)]
    values: dict[str, tuple[object, ...]] = {
        "several arguments": (*each * 300,),
        "a list": (each * 300,),
        "lists": ([each for _ in range(1_000)],),
        "a table of lists": (dict.fromkeys(range(1000), each),),
    }
    Shown.count = 0
    captured = capture(ValueError(*values[shape]))
    assert 100 < Shown.count < 50_000
    assert len(str(captured.text)) < 1_100_000


def raised(error: BaseException, *, again: bool = False) -> BaseException:
    """The error with a traceback, by one of two lines."""
    try:
        if again:
            raise error
        raise error
    except BaseException as found:
        return found


SECRET = "no route, password=hunter2hunter2"
ALIKE: tuple[Callable[[], object], ...] = (
    lambda: raised(ValueError(SECRET)),
    lambda: raised(ValueError(SECRET), again=True),
    lambda: raised(ValueError("no route")),
    lambda: raised(KeyError(SECRET)),
    lambda: raised(noted(ValueError(SECRET), "a note")),
    lambda: raised(caused(ValueError(SECRET), raised(KeyError(1)))),
    lambda: raised(caused(ValueError(SECRET), raised(KeyError(1), again=True))),
    lambda: raised(caused(ValueError(SECRET), KeyError(2))),
    lambda: raised(ExceptionGroup(SECRET, [ValueError(SECRET)])),
    lambda: raised(ExceptionGroup(SECRET, [ValueError(SECRET), KeyError(1)])),
    lambda: raised(SyntaxError(SECRET, ("a.py", 1, 2, "x = = 1"))),
    lambda: deep(SECRET),
    lambda: SECRET,
    lambda: f"{SECRET}\nand more",
    lambda: SECRET * 3_000,
    lambda: {"message": SECRET},
    lambda: {"message": SECRET, "traceback": None},
    lambda: {"message": SECRET, "n": 1},
    lambda: {"message": SECRET, "n": 1.0},
    lambda: {"message": SECRET, "n": True},
    lambda: {"n": 1, "message": SECRET},
    lambda: [SECRET],
    lambda: None,
    lambda: "",
)
CALLS = tuple((tool, code) for tool in ("read", "write") for code in ("", "ENOENT"))


def entries(drawn: list[tuple[int, int]], *, raw: bool) -> list[Entry[Report, ErrorRecord]]:
    found: list[Entry[Report, ErrorRecord]] = []
    for number, (which, call) in enumerate(drawn):
        tool, code = CALLS[call]
        described = Given("timeout", f"{SECRET} {call}") if raw else None
        origin = Origin("s", tool, arguments=f'{{"n": {number}, "password": "hunter2hunter2"}}')
        report = Report(origin, (ALIKE[which](), code, {"call": call} if call else None, described))
        entry = Entry[Report, ErrorRecord](f"err_{number}", report, float(number), 0)
        ErrorSpool(store_nothing).take(report)
        found.append(entry)
    return found


@given(
    st.lists(st.tuples(st.integers(0, len(ALIKE) - 1), st.integers(0, 3)), min_size=2, max_size=40),
    st.booleans(),
)
@settings(max_examples=40)
def test_a_batch_makes_of_each_error_the_record_that_it_makes_of_it_alone(
    drawn: list[tuple[int, int]], raw: bool
) -> None:
    """Law: errors that look alike, and differ in a line, a cause, a type or a code, are not mixed
    up with each other."""
    alone = [ErrorSpool(store_nothing).prepared([entry])[0] for entry in entries(drawn, raw=raw)]
    batch = entries(drawn, raw=raw)

    assert ErrorSpool(store_nothing).prepared(batch) == alone
    assert "hunter2" not in repr(alone)
    assert all(entry.item.description is not None for entry in batch)


@given(
    st.lists(
        st.tuples(st.integers(0, len(ALIKE) - 1), st.integers(0, 3), st.booleans()),
        min_size=2,
        max_size=30,
    ),
    st.booleans(),
)
@settings(max_examples=30)
def test_what_is_remembered_of_an_error_is_what_would_be_made_of_it_now(
    drawn: list[tuple[int, int, bool]], raw: bool
) -> None:
    """Law: for errors that come one after another while hosts come and go whose secrets they have.
    No secret is in memory after it."""
    spool = ErrorSpool(store_nothing)
    for which, call, is_secret in drawn:
        with redaction.registered_secrets(["no route"] if is_secret else []):
            (entry,), (other,) = (entries([(which, call)], raw=raw) for _ in range(2))
            made = spool.prepared([entry])
            assert made == ErrorSpool(store_nothing).prepared([other])
            assert not (is_secret and "no route" in repr(made))
    known = spool._known  # pyright: ignore[reportPrivateUsage]
    assert "hunter2" not in repr([known, known.values])


@given(st.lists(st.tuples(st.integers(0, 200), st.integers(0, 200)), max_size=400))
@settings(max_examples=20)
def test_values_are_found_by_their_likeness_only(drawn: list[tuple[int, int]]) -> None:
    """Law: a value that is found is that of the same likeness."""
    known = Known[tuple[int, int]]()
    for size, code in drawn:
        key = known.key((b"1" * size, "1" * code, code))
        assert key is not None
        assert known.values.setdefault(key, (size, code)) == (size, code)
    assert known.is_full == (len(known.values) >= Known.LIMIT)
    assert known.key(object()) is None


def test_equal_errors_of_a_batch_are_described_once(monkeypatch: pytest.MonkeyPatch) -> None:
    described: list[Captured] = []

    def count(captured: Captured, **options: Any) -> Description:
        described.append(captured)
        return describe(captured, **options)

    monkeypatch.setattr("motet.actors.storage.error_spool.describe", count)
    spool = ErrorSpool(store_nothing)
    made = spool.prepared(entries([(0, 0), (5, 1)] * 20, raw=False))
    again = [spool.prepared([entry])[0] for entry in entries([(5, 1), (0, 0)], raw=False)]

    assert len(described) == 2
    assert [record and record.raw_error for record in again] == [
        record and record.raw_error for record in made[1::-1]
    ]
    assert len({record.fingerprint for record in made if record is not None}) == 2
    assert len({record.arguments for record in made if record is not None}) == 40


def test_errors_that_differ_in_their_messages_only_share_the_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Their stack is formatted and searched once, and so is each text; short ones together."""
    formatted: list[object] = []
    searched: list[str] = []

    def look(frame: Any) -> object:
        formatted.append(frame)
        return summary(frame)

    def search(text: str, scanned: finders.Scanned | None = None) -> object:
        searched.append(text)
        return found(text, scanned)

    summary, found = exceptions._summary, redaction._found  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(exceptions, "_summary", look)
    monkeypatch.setattr(redaction, "_found", search)
    errors = [raised(ValueError(f"no route to host {number}: {'a1' * 20}")) for number in range(9)]
    reports = [Report(Origin("s", "t"), (error, "", None, None)) for error in errors]
    batch = [Entry[Report, ErrorRecord](f"err_{n}", one, 1.0, 0) for n, one in enumerate(reports)]
    spool = ErrorSpool(store_nothing)
    for entry in batch:
        spool.take(entry.item)
    spool.prepared(batch)

    assert len(formatted) == 1
    assert len(searched) == len(set(searched)) == len(errors) + 2
