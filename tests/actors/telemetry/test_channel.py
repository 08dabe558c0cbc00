"""From a failed call to what the model reads of it."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from motet.actors.errors.classify import NO_TEXT
from motet.actors.storage.error_spool import ErrorSpool
from motet.actors.storage.error_store import ErrorStore
from motet.actors.storage.location import Location
from motet.actors.storage.readers import Readers
from motet.actors.storage.sqlite_errors import SqliteErrors
from motet.actors.telemetry.error_channel import Reported
from motet.protocols.error_records import Origin
from motet.protocols.errors import GetError, ListErrors
from motet.protocols.events import ErrorStoreFailed
from motet.protocols.storage import DiskFull, Rows, Transaction
from motet.runtime import open_system
from motet.runtime.spool_entries import SLICE, Slices
from tests.actors.errors.builders import FakeWriter, Warnings, open_store
from tests.protocols.redaction.builders import alike


@pytest.fixture
def location() -> Iterator[Location]:
    with Location.memory() as location:
        yield location


async def report(
    spool: ErrorSpool | None,
    error: object,
    warnings: Warnings,
    tool: str = "X",
    code: str = "",
) -> Reported:
    channel = warnings.channel(spool)
    return await channel.report(Origin("s1", tool, "run_1"), error, code)


async def test_a_failure_is_stored_and_the_model_gets_summary_and_id(location: Location) -> None:
    async with open_store(location) as opened:
        told = await report(opened.spool, TimeoutError("boom\ntrace"), Warnings())
        assert told.error_id is not None
        stored = await opened.store.ask(GetError(told.error_id, "s1"))
    assert told.kind == "timeout"
    assert told.text.splitlines()[:2] == [
        "Tool 'X' failed: boom",
        f"[Error ID: {told.error_id}]",
    ]
    assert stored is not None
    assert stored.raw_error["message"] == "boom\ntrace"
    assert (stored.tool_name, stored.short_summary) == ("X", "boom")


async def test_the_code_of_an_error_object_reaches_the_summary(location: Location) -> None:
    async with open_store(location) as opened:
        error = {"code": "SQL_ERROR", "message": "Syntax error"}
        assert (
            "Code SQL_ERROR: Syntax error" in (await report(opened.spool, error, Warnings())).text
        )
        told = await report(opened.spool, "Syntax error", Warnings(), code="E7")
        assert "Code E7: Syntax error" in told.text


async def test_without_a_store_the_model_gets_the_error_itself() -> None:
    warnings = Warnings()
    assert await report(None, "boom\ntrace", warnings) == Reported(
        "Error: boom\ntrace", None, "unknown"
    )
    assert warnings.events == []


@pytest.mark.parametrize("tool", ["get_error_detail", "get_error_details"])
async def test_a_failed_look_up_is_not_itself_stored(location: Location, tool: str) -> None:
    async with open_store(location) as opened:
        error = {"code": "ERROR_NOT_FOUND", "message": "no error err_x"}
        told = await report(opened.spool, error, Warnings(), tool)
        assert told.text == "Tool error: ERROR_NOT_FOUND - no error err_x"
        assert told.error_id is None
        assert await opened.store.ask(ListErrors()) == ()


@pytest.mark.parametrize("error", ["", None, {}, "\n \0"])
async def test_an_error_that_says_nothing_is_not_stored(location: Location, error: object) -> None:
    async with open_store(location) as opened:
        told = await report(opened.spool, error, Warnings())
        assert told.error_id is None
        assert await opened.store.ask(ListErrors()) == ()
    if error != "\n \0":
        assert told.text == NO_TEXT


async def test_neither_text_nor_fallback_shows_a_secret(location: Location) -> None:
    error = "cannot open postgres://u:p@h:5432/db"
    async with open_store(location) as opened:
        assert "u:p" not in (await report(opened.spool, error, Warnings())).text
    text = (await report(None, error, Warnings())).text
    assert alike(text) == "Error: cannot open [REDACTED]"


async def test_a_secret_is_not_saved_by_being_cut_in_half(location: Location) -> None:
    key = "sk-" + "a1" * 20
    async with open_store(location) as opened:
        told = await report(opened.spool, "x" * 80 + f" {key}", Warnings())
    assert "sk-" not in told.text


async def stuck(transaction: Transaction) -> Rows:
    """A writer that does not answer."""
    assert transaction
    with trio.CancelScope(shield=True):
        await trio.sleep(3600)
    return ()


async def test_a_store_that_does_not_answer_costs_a_quarter_of_a_second(
    location: Location, autojump_clock: MockClock
) -> None:
    """Also when what it waits for cannot be cancelled."""
    warnings = Warnings()
    async with open_system() as system:
        spool = ErrorSpool(SqliteErrors(stuck, Readers(location)).store)
        await system.start(lambda: ErrorStore(stuck, Readers(location), spool=spool), name="errors")
        before = trio.current_time()
        told = await report(spool, "boom", warnings)
        assert trio.current_time() - before == pytest.approx(0.25)
        assert told == Reported("Error: boom", None, "unknown")
    ((run_id, event),) = warnings.events
    assert run_id == "run_1"
    assert event == ErrorStoreFailed("X", "no answer within 250 ms")


async def test_a_store_that_fails_is_said_counted_and_logged(
    location: Location, caplog: pytest.LogCaptureFixture
) -> None:
    def full(n: int) -> None:
        raise DiskFull(f"no room, {n}")

    warnings = Warnings()
    async with open_system() as system:
        submit = FakeWriter(full).submit
        spool = ErrorSpool(SqliteErrors(submit, Readers(location)).store)
        await system.start(
            lambda: ErrorStore(submit, Readers(location), spool=spool), name="errors"
        )
        channel = warnings.channel(spool)
        told = await channel.report(Origin("s", "X", "r"), "boom")
    assert told.text == "Error: boom"
    assert (channel.stored, channel.failures) == (0, 1)
    assert warnings.events == [("r", ErrorStoreFailed("X", "no room, 0"))]
    assert [(record.message, record.levelname) for record in caplog.records] == [
        ("error_store_failed", "WARNING"),
        ("errors_lost", "ERROR"),  # there is no file that could keep it when the host stops
    ]


async def test_a_dead_store_and_a_failing_listener_end_no_run(location: Location) -> None:
    def unwilling(run_id: str, event: object) -> None:
        raise RuntimeError(f"{run_id}: {event}")

    async with open_store(location) as opened:
        await opened.store.stop()
        channel = Warnings().channel(opened.spool)
        channel.warn = unwilling
        told = await channel.report(Origin("s", "X", "r"), "boom")
    assert told.text == "Error: boom"


class Unreadable(Exception):
    """Every way to read it fails, even the names of its attributes."""

    def __getattribute__(self, name: str) -> object:
        raise RecursionError(name)

    def __str__(self) -> str:
        raise RuntimeError("no")


async def test_an_error_made_to_be_unreadable_is_reported_by_its_class(location: Location) -> None:
    async with open_store(location) as opened:
        told = await report(opened.spool, Unreadable(), Warnings())
    assert "Unreadable" in told.text


async def test_cancellation_passes(location: Location) -> None:
    async with open_store(location) as opened:
        with trio.CancelScope() as scope:
            scope.cancel()
            await report(opened.spool, "boom", Warnings())
    assert scope.cancelled_caught


class _Passes(trio.abc.Instrument):
    """How many have gone on in each pass of the event loop."""

    def __init__(self, gone: list[int]) -> None:
        self.gone, self.before, self.most = gone, 0, 0

    def before_io_wait(self, timeout: float) -> None:
        self.most = max(self.most, len(self.gone) - self.before)
        self.before = len(self.gone)


@pytest.mark.parametrize("seed", range(20))
async def test_those_that_learn_their_fate_together_go_on_in_slices(seed: int) -> None:
    """Some in each pass of the loop; all do but those that are cancelled before."""
    rng = random.Random(seed)
    slices, together, gone = Slices(), trio.Event(), list[int]()
    scopes = [trio.CancelScope() for _ in range(rng.choice([SLICE - 1, 3 * SLICE, 5 * SLICE]))]
    tries, cancelled = rng.choice([0, 1, 50]), set[int]()

    async def one(number: int) -> None:
        with scopes[number]:
            await together.wait()
            await slices.go_on()
            gone.append(number)

    passes = _Passes(gone)
    async with trio.open_nursery() as nursery:
        for number in range(len(scopes)):
            nursery.start_soon(one, number)
        await trio.testing.wait_all_tasks_blocked()
        trio.lowlevel.add_instrument(passes)
        together.set()
        while nursery.child_tasks:
            await trio.lowlevel.checkpoint()
            for number in rng.choices(range(len(scopes)), k=tries):
                scopes[number].cancel()
                cancelled.add(number)
        trio.lowlevel.remove_instrument(passes)
    assert len(gone) == len(set(gone))
    assert {*range(len(scopes))} - {*gone} <= cancelled
    assert passes.most <= SLICE + 1
