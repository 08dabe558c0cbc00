"""Binary is found where it is, and text stays text."""

from __future__ import annotations

from base64 import b64encode, urlsafe_b64encode
from textwrap import fill

import pytest
from hypothesis import given
from hypothesis import strategies as st

from motet.actors.tools.results import omitted, text_without_binary, without_binary
from tests.actors.tools.builders import encoded, noise

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
    """Law: encoded bytes that are as mixed as files are leave nothing of themselves."""
    mixed = bytes(a ^ b for a, b in zip(data, noise(len(data), seed), strict=True))
    cleaned = text_without_binary(f"a\n{b64encode(mixed).decode()}\nb", omitted)
    assert cleaned == f"a\n{omitted(mixed)}\nb"


@given(st.lists(st.text(max_size=200), max_size=6).map(" ".join))
def test_ordinary_text_is_left_as_it_is(text: str) -> None:
    """Law: text with words shorter than a run never changes."""
    assert text_without_binary(text, omitted) == text


def test_hostile_text_takes_linear_time() -> None:
    """Half a million characters that nearly match: a search that starts over would not end."""
    for hostile in ("A" * 60 + "\n", "data:", "data:a/b;a=b;", "A-", "Aa0"):
        text_without_binary(hostile * (500_000 // len(hostile)) + ";base64,", omitted)
    assert encoded(100_000) not in text_without_binary(encoded(100_000) * 3, omitted)
