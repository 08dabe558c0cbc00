"""The part of an answer that is shown while it still comes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from motet.actors.transcript.sanitize import sanitize
from motet.actors.transcript.stream_filter import StreamFilter, is_silent, runs
from tests.actors.runs.texts import LINE, PLACES, REASONING, SOUP, cut_at


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
def test_chunks_do_not_change_what_is_shown(text: str, places: list[int]) -> None:
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


@given(
    st.lists(st.one_of(LINE, REASONING, st.sampled_from(["<final>", "</final>"])), max_size=8),
    PLACES,
)
def test_what_was_shown_is_what_is_stored(parts: list[str], places: list[int]) -> None:
    """Law: of an answer with no artefacts but these, the stream shows what the sanitizer leaves."""
    text = "".join(parts)
    assert "".join(streamed(cut_at(text, places))).strip() == sanitize(text)


@given(st.text(alphabet="abé`~\n *.", min_size=1), PLACES)
def test_text_without_tags_is_never_held_back(text: str, places: list[int]) -> None:
    """Law: what can become neither a tag nor the token is shown with its chunk."""
    chunks = cut_at(text, places)
    assert streamed(["X", *chunks]) == ["X", *chunks, ""]
