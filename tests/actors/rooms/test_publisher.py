"""Events of a turn that goes on, as a room publishes them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from motet.protocols.events import Activity, MessageAdded, RunRetrying, TextDelta
from motet.protocols.room_turns import TurnFilter, is_pass

PARTS = st.lists(
    st.sampled_from(["PA", "SS", "PASS", "I ", "NO_", " ", "*", ".", "[", "\n", "so", "p"]),
    max_size=6,
)


def shown(turn: TurnFilter, texts: list[list[str]]) -> str:
    """What a client shows that puts deltas where they belong."""
    text = ""
    for i, parts in enumerate(texts):
        at = 0
        for part in parts:
            heard = turn.shown(TextDelta(i, at, part))
            at += len(part)
            if heard is not None:
                assert isinstance(heard, TextDelta)
                assert heard.i == 0
                text = text[: heard.at] + heard.text
    return text


@given(before=PARTS, last=PARTS)
@settings(max_examples=80)
def test_a_client_shows_the_last_text_and_never_a_pass(before: list[str], last: list[str]) -> None:
    """Law: what is shown is a beginning of what was said, all of it unless it may be a pass."""
    text = shown(TurnFilter(), [last])
    assert text in ("", "".join(last))
    assert not (is_pass("".join(last)) and text)
    if not is_pass("".join(last)) and "so" in last:
        assert shown(TurnFilter(), [before, last]) == "".join(last)


@pytest.mark.parametrize(
    "text", ["PASS", "[PASS]", "pass.", "(pass)", "**Pass!**", "I pass.", "no_reply", "'...'", ""]
)
def test_a_pass_says_nothing_whatever_decorates_it(text: str) -> None:
    assert is_pass(text)
    assert not shown(TurnFilter(), [list(text)])


@pytest.mark.parametrize(
    "text", ["PASS it on", "I pass the ball", "We pass", "???", "no", "bypass"]
)
def test_a_text_that_mentions_a_pass_is_said(text: str) -> None:
    assert not is_pass(text)


def test_all_events_of_a_turn_belong_to_one_message() -> None:
    turn = TurnFilter()
    withdrawn = RunRetrying(1, 10, "overloaded", 3, withdrawn=True)
    assert turn.shown(withdrawn) == RunRetrying(1, 10, "overloaded", 0, withdrawn=True)
    assert turn.shown(Activity("tool", 1)) == Activity("tool", 1)
    assert turn.shown(MessageAdded("assistant", "ann", "hi", 2)) is None
