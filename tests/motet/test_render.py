"""Events become lines: each message once and whole, and nothing that steers the terminal."""

import unicodedata
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from motet.actors.runs.turn import Turn
from motet.cli import render
from motet.cli.render import (
    Piece,
    Rendering,
    arguments,
    duration,
    first_line,
    in_json,
    visible,
)
from motet.protocols.chat import AssistantMessage
from motet.protocols.events import (
    Activity,
    AnyEvent,
    InputDropped,
    MessageAdded,
    RunCancelled,
    RunFailed,
    RunLimited,
    RunRefused,
    RunRetrying,
    RunStalled,
    RunStarted,
    StorageChanged,
    TextDelta,
    ToolCall,
    ToolResult,
    Warned,
)
from motet.protocols.limits import Limits
from motet.protocols.models import Usage


def shown(rendering: Rendering, *events: AnyEvent) -> str:
    pieces = [piece for event in events for piece in rendering.pieces(event)]
    return "".join(piece.text for piece in pieces if piece.kind == "text")


def lines(*events: AnyEvent) -> list[Piece]:
    rendering = Rendering()
    return [piece for event in events for piece in rendering.pieces(event)]


def answer(text: str, i: int = 0) -> MessageAdded:
    return MessageAdded("assistant", "helper", text, i)


@given(st.text(st.characters(exclude_categories=("Cc", "Cs", "Cf"))), st.data())
def test_a_message_is_shown_once_and_whole_whatever_becomes_of_its_deltas(
    text: str, data: st.DataObject
) -> None:
    """Law: after its ``message`` event exactly the text was shown, any deltas lost or merged."""
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=6)) | {0, len(text)})
    spans = list(pairwise(cuts))
    kept = [span for span in spans if data.draw(st.booleans())]
    deltas = [TextDelta(0, start, text[start:end]) for start, end in kept]

    assert shown(Rendering(), *deltas, answer(text)) == text
    assert shown(Rendering(stream=False), *deltas, answer(text)) == text


def test_deltas_are_shown_as_they_come_and_off_a_terminal_only_whole_messages() -> None:
    delta = TextDelta(0, 0, "Hel")

    assert shown(Rendering(), delta) == "Hel"
    assert shown(Rendering(stream=False), delta) == ""


def test_withdrawn_text_is_said_to_be_and_then_shown_anew() -> None:
    rendering = Rendering()
    shown(rendering, TextDelta(0, 0, "Paris is"))

    (piece,) = rendering.pieces(RunRetrying(1, 1500, "stream cut", 0, withdrawn=True))

    assert piece == Piece(
        "warning", "the text above is withdrawn; trying again in 1.5 s: stream cut"
    )
    assert shown(rendering, TextDelta(0, 0, "Rome"), answer("Rome is")) == "Rome is"


def test_text_that_was_never_shown_is_not_called_withdrawn() -> None:
    (piece,) = lines(RunRetrying(1, 200, "busy", 0, withdrawn=True))
    assert piece.text == "trying again in 200 ms: busy"


@pytest.mark.parametrize("partial", ["Once upon", ""])
@pytest.mark.parametrize("live", [True, False])
@pytest.mark.parametrize("cause", ["", "the host is closing"])
def test_a_stop_is_said_once(partial: str, live: bool, cause: str) -> None:
    rendering, turn = Rendering(stream=live), Turn(Limits())
    turn.begin("tell a story")
    turn.stop(partial, cause=cause)
    last = turn.rows[-1]
    assert isinstance(last, AssistantMessage)
    streamed = [TextDelta(0, 0, partial)] if partial else []
    seen: list[AnyEvent] = [*streamed, answer(last.text), RunCancelled(Usage(), "stopped by you")]

    pieces = [piece for event in seen for piece in rendering.pieces(event)]

    assert "".join(piece.text for piece in pieces if piece.kind == "text") == partial
    assert [piece.text for piece in pieces if piece.kind != "text"] == ["[stopped]"]


def test_message_numbers_begin_anew_with_each_run() -> None:
    rendering = Rendering()
    first = shown(rendering, RunStarted("a", "demo"), answer("one"))
    second = shown(rendering, RunStarted("a", "demo"), answer("two!"))
    assert first + second == "onetwo!"


def test_calls_and_results_are_one_line_each() -> None:
    call = ToolCall("c1", "read", {"path": "a\nb.txt", "limit": 3, "long": "x" * 90})
    good = ToolResult("c1", "read", True, "done", "text", 12.3)
    bad = ToolResult(
        "c2", "read", False, "failed", "Tool 'read' failed: no\nmore", 2100, 1, "err_1"
    )
    gone = ToolResult("c3", "read", False, "cancelled_while_running", "x", 5)

    texts = [piece.text for piece in lines(call, good, bad, gone)]

    assert texts[0].startswith('→ read(path="a\\nb.txt", limit=3, long="xxxx')
    assert texts[0].endswith("…)")
    assert texts[1:] == ["✓ read 12 ms", "✗ read 2.1 s: no  [err_1]", "✗ read 5 ms: cancelled"]


@pytest.mark.parametrize(
    ("event", "kind", "text"),
    [
        (RunFailed(Usage(), "Llm", "no key", "err_2"), "failed", "failed: no key  [err_2]"),
        (RunRefused(Usage(), "SAFETY"), "failed", "refused: SAFETY"),
        (RunLimited(Usage(), "turns"), "warning", "[stopped: the limit of turns is reached]"),
        (RunCancelled(Usage(), "stopped by alice"), "note", "[stopped]"),
        (InputDropped("stopped"), "warning", "[not answered: stopped]"),
        (
            RunStalled(301.0, "the tool shell"),
            "warning",
            "[quiet for 301.0 s, waits on the tool shell; /stop ends it]",
        ),
        (Warned("bus", "slow\x1b[2J"), "warning", "warning: slow\ufffd[2J"),
        (
            StorageChanged("the disk is full"),
            "warning",
            "warning: the host cannot store anything now, since the disk is full: new messages are "
            "refused, calls with effects wait",
        ),
        (StorageChanged(""), "note", "[the host can store again]"),
        (Activity("queued", position=3), "note", "[the model is busy: number 3 of those who wait]"),
    ],
)
def test_how_a_run_ends_is_said(event: AnyEvent, kind: str, text: str) -> None:
    assert [(piece.kind, piece.text) for piece in lines(event)] == [(kind, text)]


def test_what_needs_no_line_has_none() -> None:
    assert lines(Activity("tool"), MessageAdded("user", "me", "hi")) == []


@given(st.text())
def test_nothing_visible_steers_a_terminal(text: str) -> None:
    """Law: only line breaks and tabs are left of the control characters; the rest is unchanged."""
    result = visible(text)
    assert not [c for c in result if unicodedata.category(c) == "Cc" and c not in "\n\t"]
    assert visible(result) == result
    assert visible("plain\ttext\n") == "plain\ttext\n"


@given(st.text(st.characters(codec="utf-8")) | st.text('\x1b\x7f\x9b\u202e\u2066\\"u'))
def test_json_is_exact_and_steers_no_terminal(text: str) -> None:
    """Law: what a reader of the JSON gets is the value; no character of it acts on a terminal."""
    printed = in_json({text: [text]})
    assert msgspec.json.decode(printed) == {text: [text]}
    assert visible(printed) == printed
    assert "\n" not in printed


def test_every_command_prints_its_json_in_this_way() -> None:
    # For a file, a program, the schema of the configuration, and `in_json` itself.
    others = {"config_schema.py", "hooks.py", "render.py", "fuzz.py", "checks.py", "trust.py"}
    folder = Path(render.__file__).parent
    files = {file.name for file in folder.glob("*.py") if "json.encode(" in file.read_text("utf-8")}
    assert files == others


def test_short_forms() -> None:
    assert duration(999.4) == "999 ms"
    assert duration(61_000) == "61.0 s"
    assert first_line("\n\n  word \n more") == "word"
    assert arguments({}) == ""
    assert arguments({"a": {"b": [1]}}) == 'a={"b": [1]}'


def test_a_message_that_was_tidied_up_is_shown_again_as_it_is_stored() -> None:
    streamed: list[AnyEvent] = [RunStarted("helper", "demo"), TextDelta(0, 0, "twice\n\ntwice")]
    assert shown(Rendering(), *streamed, answer("twice")) == "twice\n\ntwice\ntwice"
    assert shown(Rendering(), *streamed, answer("twice\n\ntwice")) == "twice\n\ntwice"


def test_white_space_around_a_message_is_no_reason_to_show_it_again() -> None:
    streamed: list[AnyEvent] = [RunStarted("helper", "demo"), TextDelta(0, 0, " hello \n")]
    assert shown(Rendering(), *streamed, answer("hello")) == " hello \n"
