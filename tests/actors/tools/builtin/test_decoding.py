"""A body is decoded in bounded memory, whatever it claims to be."""

import gzip
import zlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from motet.actors.telemetry.http import Body
from motet.actors.tools.builtin.http_client import decode


def raw_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush()


CODINGS = [
    ("", bytes),
    ("identity", bytes),
    ("gzip", gzip.compress),
    ("x-gzip", gzip.compress),
    ("deflate", zlib.compress),
    ("deflate", raw_deflate),
]


def fed(body: Body, data: bytes, step: int) -> Body:
    for start in range(0, len(data), step):
        if body.add(data[start : start + step]):
            break
    return body


@given(st.sampled_from(CODINGS), st.binary(max_size=200), st.integers(1, 50), st.integers(1, 300))
def test_what_was_packed_comes_out_up_to_the_limit(
    coding: tuple[str, Callable[[bytes], bytes]], data: bytes, step: int, room: int
) -> None:
    """Law: in whatever pieces it arrives, the body is the packed data cut to the limit."""
    name, pack = coding
    packed = pack(data)
    limit = max(room, len(packed))
    body = fed(Body(name, limit), packed, step)
    assert body.data == data[:limit]
    assert body.cut == (len(data) > limit)


@pytest.mark.parametrize("pack", [gzip.compress, zlib.compress])
def test_a_bomb_is_cut_at_the_limit(pack: Callable[[bytes], bytes]) -> None:
    bomb = pack(bytes(50_000_000))
    body = fed(Body("deflate" if pack is zlib.compress else "gzip", 100_000), bomb, 4096)
    assert body.cut
    assert len(body.data) == 100_000


def test_members_without_content_do_not_go_on_forever() -> None:
    body = Body("gzip", 1000)
    assert fed(body, gzip.compress(b"") * 1000, 100).cut
    assert body.data == b""


def test_several_members_are_one_body() -> None:
    assert fed(Body("gzip", 1000), gzip.compress(b"a") + gzip.compress(b"b"), 7).data == b"ab"


def test_padding_after_the_end_is_left_alone() -> None:
    assert fed(Body("gzip", 1000), gzip.compress(b"a") + b"\0" * 20, 7).data == b"a"


def test_data_that_is_not_what_it_says_is_an_error() -> None:
    with pytest.raises(zlib.error):
        Body("gzip", 1000).add(b"no gzip at all")


@pytest.mark.parametrize("name", ["br", "zstd", "gzip, gzip"])
def test_an_unknown_coding_is_an_error(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        Body(name, 1000)


@pytest.mark.parametrize(
    ("data", "charset", "text"),
    [
        ("é".encode(), None, "é"),
        ("é".encode("latin-1"), "ISO-8859-1", "é"),
        ("あ".encode("shift_jis"), "Shift_JIS", "あ"),
        ("é".encode("utf-16"), "latin-1", "é"),
        ("é".encode("utf-8-sig"), "latin-1", "é"),
        (b"\xff", "utf-8", "\ufffd"),
        (b"x", "no-such-charset", "x"),
        (b"x", "zip", "x"),
        (b"x", "punycode", "x"),
        (b"x", "a\0b", "x"),
    ],
)
def test_the_mark_decides_then_the_name_then_utf_8(
    data: bytes, charset: str | None, text: str
) -> None:
    assert decode(data, charset) == text


@given(st.binary(max_size=50), st.text(max_size=12) | st.none())
def test_any_bytes_have_a_text(data: bytes, charset: str | None) -> None:
    """Law: decoding never fails."""
    decode(data, charset)
