"""``NO_REPLY``: the whole reply is the token, or the reply is an answer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from motet.actors.transcript.stream_filter import NO_REPLY, SilenceMatch, is_silent
from tests.actors.runs.texts import PLACES, cut_at

DECORATION = st.text(alphabet=" \n\t*_`'\"()[]<>~.!…—#\u200b", max_size=6)


@pytest.mark.parametrize(
    "reply", ["NO_REPLY", "\nno_reply\n", "**No_Reply.**", "`NO_REPLY`", "__NO_REPLY__"]
)
def test_the_token_alone_is_silent_whatever_decorates_it(reply: str) -> None:
    assert is_silent(reply)


@pytest.mark.parametrize(
    "reply",
    [
        "",
        "   ",
        "NO_REP",
        "NO REPLY",
        "NO_REPLYING",
        "xNO_REPLY",
        "NO_REPLY1",
        "NO_REPLY 👍",
        "NO_REPLY it is",
        "Here you go. NO_REPLY",
    ],
)
def test_everything_else_is_an_answer(reply: str) -> None:
    assert not is_silent(reply)


@given(DECORATION, st.integers(0, 255), DECORATION)
def test_case_and_decorations_do_not_matter(before: str, case: int, behind: str) -> None:
    """Law: decorations, the token in any case, decorations: silent."""
    mixed = zip(NO_REPLY, format(case, "08b"), strict=True)
    token = "".join(letter.lower() if bit == "1" else letter for letter, bit in mixed)
    assert is_silent(before + token + behind)


@given(DECORATION, st.text(alphabet="aé7ж", min_size=1), DECORATION, st.booleans())
def test_a_word_beside_the_token_makes_it_an_answer(
    a: str, word: str, b: str, before: bool
) -> None:
    """Law: with a letter or digit before or behind the token, a reply is delivered."""
    assert not is_silent(f"{a}{word}{b}{NO_REPLY}" if before else f"{NO_REPLY}{a}{word}{b}")


@given(st.text(alphabet="NO_REPLYno x*", max_size=14), PLACES)
def test_chunks_do_not_matter(text: str, places: list[int]) -> None:
    """Law: however a text is cut, it is silent or it is not; and once it isn't, it never will."""
    match = SilenceMatch()
    goes_on = [match.goes_on(chunk) for chunk in cut_at(text, places)]
    assert (all(goes_on) and match.whole) == is_silent(text)
    if not all(goes_on):
        assert not is_silent(text + NO_REPLY)
