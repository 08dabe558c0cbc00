"""The text of a streaming answer that can be shown, and silent replies."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from motet.protocols.sanitize import (
    NO_REPLY,
    SilenceMatch,
    StreamFilter,
    is_silent,
    runs,
    sanitize,
)
from tests.actors.runs.texts import DEEPSEEK, LINE, PLACES, REASONING, SOUP, cut_at


def streamed(chunks: list[str]) -> list[str]:
    """What is shown after each chunk, and at the end."""
    stream = StreamFilter()
    return [*map(stream.feed, chunks), stream.close()]


def test_an_answer_is_shown_as_it_comes() -> None:
    assert streamed(["Hel", "lo, a", " < b `x", "` !"]) == ["Hel", "lo, a", " < b `x", "` !", ""]


def test_reasoning_is_not_shown_wherever_it_is_cut() -> None:
    chunks = ["A <th", "ink>secret</thi", "nk>B", " <", "3"]
    assert streamed(chunks) == ["A ", "", "B", " ", "<3", ""]


def test_a_cut_off_answer_does_not_show_its_reasoning() -> None:
    assert "".join(streamed(["A <thought>secr", "et"])) == "A "


def test_white_space_before_the_answer_is_not_shown() -> None:
    assert streamed(["<think>x</think>", "\n\n", "Yes\n"]) == ["", "", "Yes\n", ""]


def test_a_silent_reply_shows_nothing() -> None:
    for reply in (["NO_", "REPLY"], ["<final>*no", "_reply*", "</final>\n"], [" "]):
        assert "".join(streamed(reply)) == ""


def test_the_beginning_of_the_token_is_held_back_until_it_is_none() -> None:
    assert streamed(["NO_REP", "LY", " is", " a token"]) == ["", "", "NO_REPLY is", " a token", ""]
    assert streamed(["*", "NO"]) == ["", "", "*NO"]


@pytest.mark.parametrize(
    ("chunks", "shown"),
    [
        (["Say `<thi", "nk>` or", " not"], ["Say `", "<think>` or", " not", ""]),
        (["It`s <think>a", "\n</think>B"], ["It`s ", "B", ""]),
        (["It`s <think>a"], ["It`s ", ""]),
        (["```\n<th", "ink>\n`", "``\n<think>c"], ["```\n<th", "ink>\n`", "``\n", ""]),
    ],
)
def test_a_tag_in_code_is_shown_once_it_is_known_to_be_in_code(
    chunks: list[str], shown: list[str]
) -> None:
    assert streamed(chunks) == shown


@given(SOUP, PLACES)
def test_chunks_make_no_difference_to_the_shown_text(text: str, places: list[int]) -> None:
    """Law: however an answer is cut, all that is shown together is the same."""
    assert "".join(streamed(cut_at(text, places))) == "".join(streamed([text]))


@given(SOUP, PLACES)
def test_shown_is_the_answer_without_reasoning_or_nothing(text: str, places: list[int]) -> None:
    """Law: apart from white space around it, all is shown that is neither reasoning nor a tag."""
    visible = "".join(run.text for run in runs(text) if run.kind not in ("thinking", "final"))
    shown = "".join(streamed(cut_at(text, places)))
    assert shown.strip() == ("" if is_silent(visible) else visible.strip())


@given(st.lists(st.one_of(LINE, REASONING), max_size=8), st.booleans(), PLACES)
def test_reasoning_is_never_shown(parts: list[str], unterminated: bool, places: list[int]) -> None:
    """Law: nothing inside of a thinking tag is shown at any time, also when nothing closes it."""
    text = "".join(parts) + ("<think>SECRET" if unterminated else "")
    assert "SECRET" not in "".join(streamed(cut_at(text, places)))


@given(st.lists(st.one_of(LINE, DEEPSEEK), max_size=6), PLACES)
def test_deepseeks_tokens_and_calls_are_never_shown(parts: list[str], places: list[int]) -> None:
    """Law: wherever the borders of chunks fall, also within a token."""
    seen = "".join(streamed(cut_at("".join(parts), places)))
    assert "SECRET" not in seen
    assert "｜" not in seen
    assert seen == "".join(streamed([part for part in parts if "SECRET" not in part]))


@given(
    st.lists(st.one_of(LINE, REASONING, st.sampled_from(["<final>", "</final>"])), max_size=8),
    PLACES,
)
def test_the_shown_text_equals_the_stored_one(parts: list[str], places: list[int]) -> None:
    """Law: of an answer with no artefacts but these, the stream shows what the sanitizer leaves."""
    text = "".join(parts)
    assert "".join(streamed(cut_at(text, places))).strip() == sanitize(text)


@given(st.text(alphabet="abé`~\n *.", min_size=1), PLACES)
def test_text_without_tags_is_never_held_back(text: str, places: list[int]) -> None:
    """Law: what can become neither a tag nor the token is shown with its chunk."""
    chunks = cut_at(text, places)
    assert streamed(["X", *chunks]) == ["X", *chunks, ""]


# ``NO_REPLY``: the whole reply is the token, or the reply is an answer.

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
