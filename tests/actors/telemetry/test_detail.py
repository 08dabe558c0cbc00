"""The answers of get_error_detail."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from motet.actors.storage.location import Location
from motet.actors.telemetry.error_channel import error_detail
from motet.protocols.chat import JsonObject
from motet.protocols.error_pages import rfc3339
from tests.actors.errors.builders import failure, open_store

UNKNOWN = "err_20200101_000000_ffffff"


@pytest.fixture
def location() -> Iterator[Location]:
    with Location.memory() as location:
        yield location


def error_of(answer: JsonObject) -> tuple[str, str]:
    assert answer["success"] is False
    error = cast("dict[str, str]", answer["error"])
    return error["code"], error["message"]


async def test_a_stored_error_is_shown_whole(location: Location) -> None:
    async with open_store(location, clock=lambda: 1732230214.25) as opened:
        stored = await opened.store.ask(failure("boom"))
        answer = await error_detail(opened.store, "s1", stored.id)
        pasted = await error_detail(opened.store, "s1", f"[Error ID: {stored.id}]")
    assert answer == pasted
    assert answer == {
        "success": True,
        "data": {
            "error_id": stored.id,
            "timestamp": "2024-11-21T23:03:34.250000Z",
            "tool_name": "t",
            "short_summary": "boom",
            "raw_error": {"message": "boom"},
        },
    }


@pytest.mark.parametrize("error_id", [None, 42, True, ["x"], {}])
async def test_an_id_is_a_string(location: Location, error_id: object) -> None:
    async with open_store(location) as opened:
        code, message = error_of(await error_detail(opened.store, "s1", error_id))
    assert code == "INVALID_INPUT"
    assert "error_id must be a string" in message


@pytest.mark.parametrize("error_id", ["", "   ", "\n\0"])
async def test_a_blank_id_is_invalid(location: Location, error_id: str) -> None:
    async with open_store(location) as opened:
        assert error_of(await error_detail(opened.store, "s1", error_id))[0] == "INVALID_INPUT"


@pytest.mark.parametrize(
    "error_id",
    ["the last one", "42", "'; DROP TABLE x; --", "err_", "err_20260101_000000_zzzzzz"],
)
async def test_a_text_without_an_id_is_invalid(location: Location, error_id: str) -> None:
    async with open_store(location) as opened:
        code, message = error_of(await error_detail(opened.store, "s1", error_id))
    assert code == "INVALID_INPUT"
    assert error_id in message


@pytest.mark.parametrize("error_id", [UNKNOWN, "err_20241121_abc123"])
async def test_an_unknown_id_is_not_found(location: Location, error_id: str) -> None:
    async with open_store(location) as opened:
        code, message = error_of(await error_detail(opened.store, "s1", error_id))
    assert code == "ERROR_NOT_FOUND"
    assert error_id in message


async def test_a_foreign_error_is_told_from_an_unknown_one_by_nothing_but_its_id(
    location: Location,
) -> None:
    async with open_store(location) as opened:
        stored = await opened.store.ask(failure(session="alice"))
        foreign = error_of(await error_detail(opened.store, "bob", stored.id))
        unknown = error_of(await error_detail(opened.store, "bob", UNKNOWN))
    assert foreign[0] == unknown[0] == "ERROR_NOT_FOUND"
    assert foreign[1].replace(stored.id, "") == unknown[1].replace(UNKNOWN, "")


async def test_a_store_that_cannot_be_read_is_a_database_error(location: Location) -> None:
    async with open_store(location) as opened:
        await opened.readers.aclose()
        assert error_of(await error_detail(opened.store, "s1", UNKNOWN))[0] == "DATABASE_ERROR"
        await opened.store.stop()
        assert error_of(await error_detail(opened.store, "s1", UNKNOWN))[0] == "DATABASE_ERROR"


@given(st.floats(0, 4e9), st.floats(0, 4e9))
def test_times_sort_as_their_texts_do(a: float, b: float) -> None:
    """Law: the RFC 3339 form has one width, so text order is time order."""
    assert (rfc3339(a) < rfc3339(b)) is (round(a, 6) < round(b, 6)) or abs(a - b) < 2e-6
