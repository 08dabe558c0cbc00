"""Ids of stored errors."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from motet.actors.errors.describe import ID_LENGTH, find_id, is_id, new_id

ID = "err_20241121_230334_abc123"
NOON = datetime(2024, 11, 21, 23, 3, 34, tzinfo=UTC).timestamp()
times = st.floats(min_value=0, max_value=4e9)
suffixes = st.text("0123456789abcdef", min_size=6, max_size=6)


def test_an_id_is_the_utc_time_and_six_hex_digits() -> None:
    assert new_id(NOON, lambda size: "abc123"[: 2 * size]) == ID
    assert len(ID) == ID_LENGTH == 26


@given(times)
def test_every_new_id_has_the_shape(now: float) -> None:
    """Law: is_id(new_id(t, h)) for every time and every source of hex digits."""
    assert is_id(new_id(now, secrets.token_hex))


@given(times, times, suffixes, suffixes)
def test_ids_sort_as_their_seconds_do(a: float, b: float, x: str, y: str) -> None:
    """Law: an earlier second has the smaller id, whatever the suffixes are."""
    if int(a + 1e-6) < int(b):
        assert new_id(a, lambda _: x) < new_id(b, lambda _: y)


@pytest.mark.parametrize(
    "text",
    ["err_20241121_abc123", "err_20241121_230335_789xyz", f"{ID}\n", f"{ID}0", "", "err_mine"],
)
def test_other_shapes_are_no_ids(text: str) -> None:
    assert not is_id(text)


@given(
    st.sampled_from(["", " ", "[Error ID: ", "`", '"', "error_id=", "(", "see "]),
    st.sampled_from(["", " ", "]", "`", '"', ".", ")", "\nUse"]),
)
def test_an_id_is_found_in_what_a_model_pastes(before: str, after: str) -> None:
    """Law: decoration of any usual kind around an id does not hide it."""
    assert find_id(before + ID + after) == ID


def test_markdown_escapes_do_not_hide_an_id() -> None:
    assert find_id(ID.replace("_", "\\_")) == ID


@pytest.mark.parametrize("text", ["err_20241121_abc123", f"x{ID}", f"{ID}4", "no id at all"])
def test_a_part_of_a_longer_word_is_no_id(text: str) -> None:
    assert find_id(text) is None
