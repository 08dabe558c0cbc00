"""Commands in chat text, and texts that are none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from motet.actors.gateway.commands import (
    COMMANDS,
    Command,
    complaint,
    help_text,
    message_text,
    parse_command,
)


@pytest.mark.parametrize("text", ["stop", " STOP ", "Stop!", "stop...", "abort", "esc", "esc.!"])
def test_a_bare_word_stops(text: str) -> None:
    assert parse_command(text) == Command("stop")


@pytest.mark.parametrize(
    "text", ["don't stop", "stop it", "stop?", "escape", "", "/", "/usr/bin/env fails", "a /stop"]
)
def test_other_texts_go_to_the_model(text: str) -> None:
    assert parse_command(text) is None


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_known_in_any_case_and_explained(name: str) -> None:
    assert parse_command(f"  /{name.upper()}\n") == Command(name)
    assert complaint(Command(name)) is None
    assert f"/{name}: " in help_text()


def test_an_unknown_command_names_the_nearest_and_the_escape() -> None:
    command = parse_command("/stpo now")
    assert command == Command("stpo", "now", known=False)
    why = complaint(Command("stpo", "now", known=False))
    assert why is not None
    assert "/stop?" in why
    assert "//stpo" in why


def test_new_with_a_text_does_nothing_so_that_the_text_is_not_lost() -> None:
    command = parse_command("/new tell me")
    assert command is not None
    assert "Nothing was done" in str(complaint(command))


@given(st.text())
def test_a_doubled_slash_sends_any_text_as_it_is(text: str) -> None:
    """Law: for every text that begins with a slash, ``/`` + text is no command and arrives."""
    slashed = "/" + text
    assert parse_command("/" + slashed) is None
    assert message_text("/" + slashed) == slashed


@given(st.text())
def test_parsing_never_fails_and_a_plain_text_is_unchanged(text: str) -> None:
    """Law: parsing is total; what begins with no slash reaches the model as it was typed."""
    parse_command(text)
    if not text.lstrip().startswith("//"):
        assert message_text(text) == text
