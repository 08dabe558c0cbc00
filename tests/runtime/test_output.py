"""The kept output of a program: its beginning and its end, in bounded memory."""

from hypothesis import given
from hypothesis import strategies as st

from motet.runtime.processes import HeadTail


def kept(pieces: list[bytes], room: int) -> HeadTail:
    output = HeadTail(room)
    for piece in pieces:
        output.add(piece)
    return output


@given(st.lists(st.binary(max_size=20), max_size=12), st.integers(2, 60))
def test_a_short_output_is_kept_whole_and_a_long_one_at_both_ends(
    pieces: list[bytes], room: int
) -> None:
    """Law: however an output is cut in pieces, its text depends on the bytes and the room only."""
    whole = b"".join(pieces)
    text = kept(pieces, room).text()
    assert text == kept([whole], room).text()
    if len(whole) <= room:
        assert text == whole.decode("utf-8", "replace")
    else:
        assert f"{len(whole):,} bytes left out" in text


@given(st.text("aé€😀", min_size=80), st.integers(8, 60))
def test_a_cut_leaves_no_broken_character(text: str, room: int) -> None:
    """Law: an output of valid UTF-8 gives no replacement characters, wherever it is cut."""
    assert "\ufffd" not in kept([text.encode()], room).text()


def test_a_long_output_keeps_its_first_and_last_bytes() -> None:
    text = kept([b"begin"] + [b"x" * 1000] * 100 + [b"end"], 100).text()
    assert text.startswith("begin")
    assert text.endswith("xend")
    assert "[... 99,908 of 100,008 bytes left out ...]" in text


def test_a_gigabyte_is_counted_and_not_kept() -> None:
    chunk = b"x" * (1 << 20)
    output = HeadTail(1000)
    for _ in range(1024):
        output.add(chunk)
    assert output.total == 1 << 30
    assert len(output.text()) < 1100
