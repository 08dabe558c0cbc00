"""Packed results come back, or are refused."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from motet.actors.storage.results import ResultDamaged, pack, unpack
from motet.protocols.results import checksum
from tests.actors.tools.builders import noise


def test_large_content_is_compressed_where_that_is_smaller() -> None:
    text = pack(b"abcdefghijklmnop" * 1000, compress_from=100)
    assert (text.packing, text.size) == ("zlib", 16_000)
    assert text.held < 1_000
    assert text.sha256 == "3a82018c96f7a64c1f59e99ea57c8bdbbe7f8025551f642d7c316dcfc229c4f9"
    assert pack(b"abcdefghijklmnop" * 1000).packing == "text"
    assert pack(noise(10_000), compress_from=100).packing == "base64"


@given(st.binary(max_size=300), st.sampled_from([0, 100]))
def test_packing_loses_nothing(content: bytes, compress_from: int) -> None:
    """Law: unpack(pack(x)) == x, and ``held`` is the size of what is kept."""
    packed = pack(content, compress_from)
    assert unpack(packed) == content
    assert packed.held == len(packed.data.encode())
    assert packed.sha256 == checksum(content)


@given(st.binary(min_size=1, max_size=300), st.data())
def test_any_changed_character_is_noticed(content: bytes, data: st.DataObject) -> None:
    """Law: a packed content that was changed is refused, compressed or not."""
    packed = pack(content, data.draw(st.sampled_from([0, 10_000])))
    at = data.draw(st.integers(0, len(packed.data) - 1))
    other = data.draw(st.sampled_from("Az0é"))
    damaged = packed.data[:at] + other + packed.data[at + 1 :]
    if damaged == packed.data:
        return
    with suppress(ResultDamaged):
        assert unpack(replace(packed, data=damaged)) == content  # bits that base64 ignores
    with pytest.raises(ResultDamaged):
        unpack(replace(packed, sha256="0" * 64))
