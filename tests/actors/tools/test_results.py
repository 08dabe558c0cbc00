"""Results: the part in the transcript, the stored part in pages, and binary."""

from __future__ import annotations

import json
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from textwrap import fill
from typing import NoReturn

import pytest
import trio
from hypothesis import example, given, settings
from hypothesis import strategies as st

from motet.actors.storage.location import Location
from motet.actors.tools.context import Context
from motet.actors.tools.results import (
    INLINE_LIMIT,
    Inlined,
    inline,
    is_large,
    is_plain,
    readable,
    result_page,
    storable,
    tool_result_tools,
)
from motet.protocols.binary import omitted, text_without_binary, without_binary
from motet.protocols.chat import JsonObject
from motet.protocols.result_pages import (
    PAGE_LIMIT,
    UNIT_LIMIT,
    InvalidLimit,
    InvalidOffset,
    find_result_id,
    is_array,
    page,
    page_text,
    units,
)
from motet.protocols.results import ReadResult
from motet.protocols.sessions import LOCAL
from motet.protocols.tools import ToolRetry
from tests.actors.tools.builders import Opened, encoded, noise, open_results


@pytest.fixture
def location() -> Iterator[Location]:
    with Location.memory() as location:
        yield location


async def shown(opened: Opened | None, value: object) -> Inlined:
    store = opened.store if opened else None
    return await inline(store, session="s", tool="t", read=readable(value))


async def read_all(opened: Opened, result_id: str, limit: int | None = None) -> str:
    text, offset, more = "", 0, True
    while more:
        answer = await result_page(opened.store, "s", result_id, offset, limit)
        data = answer["data"]
        assert isinstance(data, dict)
        page: JsonObject = data  # pyright: ignore[reportUnknownVariableType]  # checked above
        assert len(page_text(page).encode()) <= PAGE_LIMIT
        offset += int(str(page["returned_count"]))
        text, more = text + str(page["text"]), bool(page["has_more"])
    return text


async def test_a_result_at_the_limit_stays_as_it_is(location: Location) -> None:
    async with open_results(location) as opened:
        for text in ("x" * INLINE_LIMIT, "é" * (INLINE_LIMIT // 2), ""):
            assert await shown(opened, text) == Inlined(text, len(text.encode()))
        assert await opened.ids_on_disk() == set()


async def test_a_larger_result_is_stored_and_its_head_says_how_to_read_on(
    location: Location,
) -> None:
    text = "".join(f"line {n}\n" for n in range(3000))
    async with open_results(location) as opened:
        result = await shown(opened, text)
        assert result.result_id is not None
        assert result.size == len(text)
        head, note = result.text.split("\n\n")
        count = len(head.splitlines())
        assert head == "\n".join(f"line {n}" for n in range(count))
        assert note == (
            f"[Result ID: {result.result_id}] {len(text)} bytes, 3000 lines; "
            f"the first {count} are above.\n"
            f'Use get_tool_result("{result.result_id}", offset={count}) for more.'
        )
        assert find_result_id(note) == result.result_id
        assert await read_all(opened, result.result_id) == text


async def test_a_small_limit_shows_the_beginning_of_a_long_line(
    location: Location,
) -> None:
    async with open_results(location) as opened:
        found = await inline(
            opened.store, session="s", tool="t", read=readable("é" * 2_000), limit=201
        )
        assert found.text.startswith("é" * 100 + "\n\n[Result ID: res_")
        assert "4000 bytes, 1 lines; cut above." in found.text
        assert found.result_id is not None
        assert await read_all(opened, found.result_id) == "é" * 2_000


async def test_an_array_is_stored_by_items_and_other_objects_as_text(location: Location) -> None:
    rows = [{"n": n, "when": datetime(2024, 1, 1, tzinfo=UTC)} for n in range(1000)]
    async with open_results(location) as opened:
        result = await shown(opened, rows)
        assert "1000 items" in result.text
        assert result.text.startswith('{"n":0,"when":"2024-01-01T00:00:00Z"}\n')
        wide = await shown(opened, {"rows": rows})
        assert "lines" in wide.text
        assert wide.result_id is not None
        assert len(json.loads(await read_all(opened, wide.result_id))["rows"]) == 1000


async def test_binary_is_stored_apart_and_never_shown(location: Location) -> None:
    data = noise(3000)
    async with open_results(location) as opened:
        result = await shown(opened, {"a": data, "b": f"see {encoded(3000)}", "c": "ok"})
        (stored_id,) = result.binary_ids
        note = omitted(data, stored_id)
        assert json.loads(result.text) == {"a": note, "b": f"see {note}", "c": "ok"}
        stored = await opened.store.ask(ReadResult(stored_id, "s"))
        assert stored is not None
        assert stored.content == data
        answer = await result_page(opened.store, "s", stored_id)
        assert answer["error"] == {
            "code": "NOT_TEXT",
            "message": f"{stored_id} is binary: 3000 bytes, sha256 {stored.info.sha256}; "
            "it cannot be shown as text",
        }


async def test_text_around_binary_is_stored_without_it(location: Location) -> None:
    async with open_results(location) as opened:
        result = await shown(opened, "word " * 10_000 + encoded(5000) + " end")
        assert result.result_id is not None
        whole = await read_all(opened, result.result_id)
        assert encoded(5000)[:100] not in whole
        assert whole.endswith(f"{omitted(noise(5000), result.binary_ids[0])} end")


async def test_without_a_store_the_text_is_cut_and_says_so() -> None:
    result = await shown(None, "é" * 20_000)
    assert (result.result_id, result.problem) == (None, "")
    assert len(result.text.encode()) <= INLINE_LIMIT
    assert result.text.endswith("of 40000 bytes]")
    assert (await shown(None, b"abc")).text == omitted(b"abc")


async def test_a_failing_store_loses_the_rest_and_not_the_run(location: Location) -> None:
    async with open_results(location, max_bytes=100) as opened:
        result = await shown(opened, "x" * 20_000)
    assert result.result_id is None
    assert "more than the store's 100" in result.problem
    assert result.text.endswith(f"the rest could not be stored: {result.problem}]")
    assert len(result.text.encode()) <= INLINE_LIMIT


async def test_a_value_that_cannot_be_read_is_still_a_text() -> None:
    class Hostile:
        def __repr__(self) -> str:
            raise RuntimeError

    class Lazy(dict[str, int]):
        def items(self) -> NoReturn:
            raise ValueError("postgres://u:hunter2hunter2@h/db")

    cycle: list[object] = []
    cycle.append(cycle)
    assert not is_large(Lazy(a=1))
    assert (await shown(None, Hostile())).text.startswith("[unserializable result")
    assert (await shown(None, cycle)).text.startswith("[unserializable result")
    assert (await shown(None, "\ud800")).text == "\ufffd"
    assert (await shown(None, {"p": Path("/x"), "n": None})).text == '{"p": "/x", "n": null}'


async def test_impossible_pages_are_refused_with_a_code(location: Location) -> None:
    async with open_results(location) as opened:
        info = await opened.put("a\nb\nc")
        wrong: list[tuple[str, tuple[object, ...]]] = [
            ("INVALID_INPUT", (None,)),
            ("INVALID_INPUT", ("  ",)),
            ("INVALID_INPUT", (info.id, "1")),
            ("INVALID_INPUT", (info.id, True)),
            ("INVALID_INPUT", (info.id, None)),
            ("INVALID_INPUT", (info.id, 0, 1.5)),
            ("INVALID_OFFSET", (info.id, -5)),
            ("INVALID_OFFSET", (info.id, 4)),
            ("INVALID_LIMIT", (info.id, 0, 0)),
            ("RESULT_NOT_FOUND", ("res_0000000000000000",)),
            ("RESULT_NOT_FOUND", ("nonsense",)),
        ]
        for code, arguments in wrong:
            answer = await result_page(opened.store, "s", *arguments)
            assert answer["success"] is False
            assert isinstance(error := answer["error"], dict)
            assert error["code"] == code, arguments
        foreign = await result_page(opened.store, "other", info.id)
        assert "RESULT_NOT_FOUND" in str(foreign)


async def test_the_tool_gives_a_page_and_fails_without_one(
    location: Location, tmp_path: Path
) -> None:
    async with open_results(location) as opened:
        info = await opened.put("a\nb\nc")

        async def pages(
            session: str, result_id: object, offset: object, limit: object
        ) -> JsonObject:
            return await result_page(opened.store, session, result_id, offset, limit)

        (tool,) = tool_result_tools(pages)
        context = Context[object](
            deps=None, run_id="r", session="s", agent="a", principal=LOCAL, call_id="c",
            workspace=tmp_path,
        )  # fmt: skip
        marked = f"[Result ID: {info.id}]"
        text = await tool.run(context, {"result_id": marked, "offset": 1, "limit": 1})
        assert text == (
            f'[Result {info.id}: lines 1 to 1 of 3; go on with get_tool_result("{info.id}", '
            "offset=2)]\nb\n"
        )
        with pytest.raises(ToolRetry, match="RESULT_NOT_FOUND"):
            await tool.run(context, {"result_id": "res_ffffffffffffffff"})


PARTS = st.text(max_size=30) | st.sampled_from(["\n" * 50, "x" * 9000, "日" * 4000, "[1,2]"])


@given(st.lists(PARTS, max_size=10), st.sampled_from(["\n", " "]), st.sampled_from([None, 1000]))
@settings(max_examples=40)
def test_nothing_of_a_large_text_is_lost(parts: list[str], by: str, limit: int | None) -> None:
    """Law: the shown text fits the limit, and head and pages together are the whole text."""

    async def check(text: str) -> None:
        with Location.memory() as location:
            async with open_results(location) as opened:
                result = await shown(opened, text)
                assert len(result.text.encode()) <= INLINE_LIMIT
                if result.result_id is None:
                    assert result.text == storable(text)
                else:
                    assert await read_all(opened, result.result_id, limit) == storable(text)

    trio.run(check, by.join(parts))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        ({"a": [1, True]}, '{"a": [1, true]}'),
        ([Path("a/b")], '["a/b"]'),
        ("nul\x00, half \ud800, ok \U0001f600", "nul\ufffd, half \ufffd, ok \U0001f600"),
        (["half \ud800"], '["half \ufffd"]'),
        (float("nan"), "null"),
    ],
)
async def test_any_value_has_a_text_that_can_be_stored(value: object, text: str) -> None:
    assert (await shown(None, value)).text == text


@given(
    st.lists(
        st.sampled_from(
            ["word ", "\x00", "\ud800", "é\n", "data:image/png;base64,aGVsbG8=", "x" * 90]
        ),
        max_size=4,
    ).map("".join)
    | st.integers()
    | st.lists(st.text(max_size=3), max_size=2)
    | st.binary(max_size=3),
    st.integers(0, 120),
)
def test_the_short_cut_gives_the_same_text_as_the_full_rule(value: object, limit: int) -> None:
    """Law: the short cut gives the same text as the rule; a text that fits always takes it."""

    read = readable(value)

    async def given_by_all() -> Inlined:
        return await inline(None, session="s", tool="t", read=read, limit=limit)

    all_of_it = trio.run(given_by_all)
    if read.fits(limit):
        assert all_of_it == Inlined(read.text, read.size)
    if "base64" not in str(value) and not isinstance(value, bytes) and all_of_it.size <= limit:
        assert read.fits(limit)


TEXTS = st.lists(
    st.sampled_from(["", "a", "é\n", "\r", "日本語" * 3000, "x" * UNIT_LIMIT, "\n", "\u2028", "🙂"])
    | st.text(max_size=20),
    max_size=12,
).map("".join)


def test_text_is_paged_by_lines() -> None:
    second = page(units("a\nb\nc", "text"), 1, 1)
    assert (second.text, second.returned, second.total, second.has_more) == ("b\n", 1, 3, True)


def test_an_array_is_paged_by_its_items_one_a_line() -> None:
    text = json.dumps([{"n": n, "t": "x\ny"} for n in range(1500)], indent=2)
    assert is_array(text)
    first, last = page(units(text, "json"), 0, 100, 50_000), page(units(text, "json"), 1450, 100)
    assert (first.returned, first.total, first.has_more) == (100, 1500, True)
    assert json.loads(first.text.splitlines()[99]) == {"n": 99, "t": "x\ny"}
    assert (last.returned, last.has_more) == (50, False)


def test_numbers_of_any_size_are_unchanged() -> None:
    assert units("[1e400, 12345678901234567890123, 1.10]", "json") == [
        "1e400\n", "12345678901234567890123\n", "1.10\n"
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["", "{}", "[1", "[1] x", " x", '"["', "[" * 5000])
def test_anything_but_an_array_is_paged_as_text(text: str) -> None:
    assert not is_array(text)


def test_the_end_is_an_empty_page_and_what_is_outside_is_refused() -> None:
    three = units("a\nb\nc", "text")
    assert page(three, 3).returned == 0
    assert page([], 0).total == 0
    for outside in (-1, 4):
        with pytest.raises(InvalidOffset, match="from 0 to 3"):
            page(three, outside)
    with pytest.raises(InvalidLimit):
        page(three, 0, 0)


@given(TEXTS, st.integers(1, 7), st.integers(UNIT_LIMIT, 3 * UNIT_LIMIT))
@example("é" * UNIT_LIMIT, 1, UNIT_LIMIT)
def test_pages_read_to_the_end_are_the_whole_text(text: str, limit: int, room: int) -> None:
    """Law: every page fits and makes progress, and the pages joined are the text."""
    pieces, read, offset = units(text, "text"), "", 0
    while offset < len(pieces):
        found = page(pieces, offset, limit, room)
        assert 1 <= found.returned <= limit
        assert len(found.text.encode()) <= room
        read, offset = read + found.text, found.next_offset
    assert read == text


@given(st.lists(st.text(max_size=30) | st.integers() | st.just("é" * UNIT_LIMIT), max_size=20))
def test_items_read_to_the_end_are_the_array(items: list[object]) -> None:
    """Law: the lines of an array's view are its items."""
    view = "".join(units(json.dumps(items), "json"))
    assert [json.loads(line) for line in view.split("\n")[:-1]] == items


DATA = noise(500)
NOTE = omitted(DATA)


def test_the_note_tells_size_checksum_and_id() -> None:
    assert omitted(b"abc", "res_1") == (
        "[binary omitted: 3 bytes, sha256 "
        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad] [Result ID: res_1]"
    )


@pytest.mark.parametrize(
    "text",
    [
        b64encode(DATA).decode(),
        urlsafe_b64encode(DATA).decode(),
        b64encode(DATA).decode().rstrip("="),
        fill(b64encode(DATA).decode(), 76),
        fill(b64encode(DATA).decode(), 64).replace("\n", "\r\n"),
        f"data:image/png;base64,{b64encode(DATA).decode()}",
        f"DATA:application/x;charset=utf-8;base64,{b64encode(DATA).decode().replace('=', '%3D')}",
    ],
)
def test_every_spelling_of_encoded_bytes_is_replaced(text: str) -> None:
    assert text_without_binary(f"before {text} after", omitted) == f"before {NOTE} after"


def test_bytes_and_typed_blocks_are_replaced_wherever_they_are() -> None:
    small = omitted(b"abc")
    value = {
        "content": [
            {"type": "image", "data": "YWJj", "mimeType": "image/png"},
            {"type": "text", "text": "YWJj"},
            {"resource": {"uri": "file:///x", "blob": "YWJj", "mimeType": "x/y"}},
            {"source": {"type": "base64", "media_type": "image/png", "data": "YWJj"}},
        ],
        "raw": b"abc",
        "b64_json": "YWJj",
    }
    assert without_binary(value, omitted) == {
        "content": [
            {"type": "image", "data": small, "mimeType": "image/png"},
            {"type": "text", "text": "YWJj"},
            {"resource": {"uri": "file:///x", "blob": small, "mimeType": "x/y"}},
            {"source": {"type": "base64", "media_type": "image/png", "data": small}},
        ],
        "raw": small,
        "b64_json": small,
    }


@pytest.mark.parametrize(
    "text",
    [
        "x" * 20_000,
        "abcdefghijklmnop" * 1000,
        "0123456789abcdef" * 100,
        "/usr/lib/python3/dist-packages" * 40,
        "=" * 500,
        "a_b-" * 200,
        "data:text/plain,hello",
        "The quick brown fox. " * 200,
        "sha256 " + "9f86d081884c7d659a2feaa0c55ad015" * 2,
        "日本語" * 5000,
    ],
)
def test_text_that_only_looks_long_stays(text: str) -> None:
    assert text_without_binary(text, omitted) == text


@given(st.binary(min_size=2_000, max_size=3_000), st.integers(0, 2**32))
def test_no_long_run_of_a_files_bytes_is_left(data: bytes, seed: int) -> None:
    """Law: encoded bytes as mixed as those of files are replaced completely."""
    mixed = bytes(a ^ b for a, b in zip(data, noise(len(data), seed), strict=True))
    cleaned = text_without_binary(f"a\n{b64encode(mixed).decode()}\nb", omitted)
    assert cleaned == f"a\n{omitted(mixed)}\nb"


@given(st.lists(st.text(max_size=200), max_size=6).map(" ".join))
def test_ordinary_text_is_unchanged(text: str) -> None:
    """Law: text with words shorter than a run never changes."""
    assert text_without_binary(text, omitted) == text


def test_hostile_text_takes_linear_time() -> None:
    """Half a million characters that nearly match: a search with backtracking would not end."""
    for hostile in ("A" * 60 + "\n", "data:", "data:a/b;a=b;", "A-", "Aa0"):
        text_without_binary(hostile * (500_000 // len(hostile)) + ";base64,", omitted)
    assert encoded(100_000) not in text_without_binary(encoded(100_000) * 3, omitted)


@given(
    st.text() | st.text("ab;base64,\0 \n", max_size=300) | st.integers(0, 300).map(encoded),
    st.integers(0, 400),
)
@example("x" * 255, 255)
@example("A1b2" * 64, 400)
@example("data:text/plain;BASE64,aGk=", 400)
def test_a_plain_text_is_its_own_result(value: str, limit: int) -> None:
    """Law: what is taken without a look into it would have been left as it is, and fits."""
    if is_plain(value, limit):
        read = readable(value)
        assert read.text == value
        assert read.fits(limit)
    assert (
        is_plain(value, limit) or not value.isalpha() or not value.isascii() or len(value) > limit
    )
