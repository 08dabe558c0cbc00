"""Each invariant by itself: what it says of a history that is wrong, nothing of one that is not.

Snapshots are data, so that no host is needed here.
"""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from msgspec.structs import replace

from motet import testing as mt
from motet.protocols import events
from motet.protocols.chat import AssistantMessage, Call, ChatMessage, ToolMessage, UserMessage
from motet.protocols.errors import StoredError
from motet.protocols.events import AnyEvent, EventRecord
from motet.protocols.limits import Limits
from motet.protocols.models import ModelRequest, Usage
from motet.protocols.rooms import Kind, RoomMessage
from motet.protocols.sessions import HistoryRow, RunInfo, RunStatus, SessionInfo, StopReport
from motet.testing.invariants import STANDARD, Invariant, Snapshot, broken
from motet.testing.invariants.snapshot import (
    Asked,
    Effect,
    Happened,
    Ran,
    RoomSeen,
    Sent,
    Stopped,
    Task,
    token_of,
)

CALLS = (Call("c1", "look"), Call("c2", "look"))
RESULTS = (ToolMessage("c1", "look", "x"), ToolMessage("c2", "look", "x"))


def told(*items: tuple[int, AnyEvent], run: str = "r") -> Snapshot:
    """What a subscriber saw, and the journal of it."""
    records = [
        (at, EventRecord("session:s", event, 0.0, number, run))
        for number, (at, event) in enumerate(items, 1)
    ]
    return Snapshot(
        events=tuple(Happened(at, record) for at, record in records),
        journal={"session:s": tuple(record for _, record in records)},
    )


def asked(*rows: ChatMessage, user: str = "ann", run: str = "r", at: int = 1) -> Asked:
    return Asked(at, run, user, user, "a", ModelRequest("m", rows))


def run(status: RunStatus, text: str = "", *, id: str = "r", usage: Usage = Usage()) -> RunInfo:  # noqa: B008
    return RunInfo(id, "s", "a", "ann", status, text, 0.0, 0.0, usage)


def stored(*rows: ChatMessage, run: str = "r") -> dict[str, tuple[HistoryRow, ...]]:
    return {"s": tuple(HistoryRow(pos, run, 0.0, row) for pos, row in enumerate(rows, 1))}


def room(*said: tuple[str, Kind, str]) -> Snapshot:
    messages = tuple(
        RoomMessage(seq, author, kind, text, 1) for seq, (author, kind, text) in enumerate(said, 1)
    )
    posts = tuple(
        Sent(m.seq, m.author, "den", m.text, to_room=True) for m in messages if m.kind == "person"
    )
    return Snapshot(sent=posts, rooms=(RoomSeen("den", ("bob",), messages),), settled=True)


START = (1, events.RunStarted("a", "m"))
CALL = (2, events.ToolCall("c1", "look", {}))
RESULT = (3, events.ToolResult("c1", "look", True, "done", "", 1.0))
END = (4, events.RunCompleted(Usage()))

TWO = [asked(UserMessage("x"), at=at) for at in range(1, 30)]

WRONG: Iterable[tuple[str, str, Snapshot]] = [
    ("one_result_per_call", "has no result", told(START, CALL, END)),
    ("one_result_per_call", "has 2 results", told(START, CALL, RESULT, RESULT, END)),
    (
        "requests_are_valid",
        "which nobody has called",
        Snapshot(asked=(asked(UserMessage("hi"), *RESULTS),)),
    ),
    (
        "requests_are_valid",
        "are missing at the end",
        Snapshot(asked=(asked(AssistantMessage("", CALLS), RESULTS[0]),)),
    ),
    (
        "requests_are_valid",
        "row 1 comes before",
        Snapshot(asked=(asked(AssistantMessage("", CALLS), UserMessage("hm"), *RESULTS),)),
    ),
    (
        "transcripts_are_valid",
        "do not match",
        Snapshot(transcripts=stored(UserMessage("hi"), AssistantMessage("", CALLS), RESULTS[0])),
    ),
    (
        "no_work_after_the_end",
        "tool 'look' is at work",
        replace(told(START, END), ran=(Ran(3, "r", "c1", "look", "s", "ann", ended=False),)),
    ),
    (
        "no_work_after_the_end",
        "had ended when it asked its model",
        replace(told(START, END), asked=(asked(at=9),)),
    ),
    (
        "no_work_after_the_end",
        "its task job goes on",
        replace(told(END), tasks=(Task("r", "job"),)),
    ),
    (
        "gates_hold",
        "says denied",
        Snapshot(
            ran=(Ran(1, "r", "c1", "look", "s", "ann"),),
            transcripts=stored(
                AssistantMessage("", CALLS[:1]), ToolMessage("c1", "look", "no", "denied")
            ),
        ),
    ),
    (
        "gates_hold",
        "without its approval",
        Snapshot(ran=(Ran(1, "r", "c1", "pay", "s", "ann", gated=True),)),
    ),
    ("hooks_do_not_fail", "in run r: it raised", told((1, events.Warned("hook", "it raised")))),
    ("code_behaves", "went on", Snapshot(misbehaved=("the tool 'pay' went on",))),
    ("effects_at_most_once", "2 times", Snapshot(effects=(Effect("c1", "paid"),) * 2)),
    (
        "stops_are_total",
        "has left the run r running: pay, in bank.py",
        Snapshot(
            stops=(
                Stopped(
                    1, "ann", "s", StopReport(still_running=["r"], held_by=["pay, in bank.py"])
                ),
            )
        ),
    ),
    (
        "stops_are_total",
        "there is still the task job",
        Snapshot(stops=(Stopped(1, "ann", "s", StopReport(), ("the task job",)),)),
    ),
    (
        "budgets_hold",
        "29 turns, its limit is 20",
        Snapshot(asked=tuple(TWO), runs=(run("completed"),), limits={"a": Limits()}),
    ),
    (
        "budgets_hold",
        "9000 tokens, its limit is 10",
        Snapshot(runs=(run("completed", usage=Usage(9000)),), limits={"a": Limits(tokens=10)}),
    ),
    ("nothing_is_left", "the task job of r", Snapshot(tasks=(Task("r", "job"),), settled=True)),
    ("counters_agree", "G4 broken", Snapshot(laws=("G4 broken at step 3",))),
    ("one_terminal_event", "2 terminal events", told(START, END, END)),
    (
        "one_terminal_event",
        "no event says that it has ended",
        Snapshot(runs=(run("completed"),), settled=True),
    ),
    ("one_terminal_event", "and it is running", replace(told(END), runs=(run("running"),))),
    (
        "streams_have_no_gaps",
        "has the numbers [1, 3]",
        Snapshot(
            journal={"s": tuple(EventRecord("s", START[1], 0.0, number) for number in (1, 3))}
        ),
    ),
    (
        "streams_have_no_gaps",
        "was told as",
        replace(
            told(START), journal={"session:s": (EventRecord("session:s", END[1], 0.0, 1, "r"),)}
        ),
    ),
    (
        "inputs_are_answered_once",
        "is nowhere",
        Snapshot(sent=(Sent(1, "ann", "s", "ann/1: hi"),)),
    ),
    (
        "inputs_are_answered_once",
        "has several runs",
        Snapshot(
            sent=(Sent(1, "ann", "s", "ann/1: hi", "k"),) * 2,
            runs=(run("completed", "ann/1: hi"), run("failed", "ann/1: hi", id="r2")),
        ),
    ),
    (
        "inputs_are_answered_once",
        "and nothing goes on",
        Snapshot(runs=(run("running"),), settled=True),
    ),
    (
        "keys_start_one_run",
        "has started 2 runs: r1, r2",
        Snapshot(sent=tuple(Sent(1, "ann", "s", "hi", "k", r) for r in ("r1", "r2"))),
    ),
    ("work_comes_to_rest", "for ever", Snapshot(restless="it goes on for ever")),
    (
        "users_are_apart",
        "a request of bob in run r",
        Snapshot(
            sent=(Sent(1, "ann", "s", "ann/1: hi"), Sent(2, "bob", "t", "bob/2: hi")),
            asked=(asked(UserMessage("so ann/1: hi"), user="bob"),),
        ),
    ),
    (
        "users_are_apart",
        "the transcript of session 's' of bob",
        Snapshot(
            sent=(Sent(1, "ann", "x", "ann/1: hi"), Sent(2, "bob", "s", "bob/2: hi")),
            sessions=(SessionInfo("s", "a", "bob", 0.0, 0.0, 1),),
            transcripts=stored(UserMessage("ann/1: hi")),
        ),
    ),
    (
        "errors_stay_inside",
        "has told the room 'den' the error err_1",
        replace(
            room(("ann", "person", "hi"), ("bob", "agent", "no such key sk-live-0123456789")),
            errors=(
                StoredError(
                    "err_1", 0.0, "s", "pay", {"message": "no such key sk-live-0123456789"}, ""
                ),
            ),
        ),
    ),
]


@pytest.mark.parametrize(("name", "words", "snapshot"), WRONG, ids=lambda item: str(item)[:30])
def test_each_violation_has_its_sentence(name: str, words: str, snapshot: Snapshot) -> None:
    found = broken(snapshot, STANDARD)
    own = [violation for violation in found if violation.invariant == name]
    assert any(words in violation.sentence for violation in own), found


def test_every_invariant_has_a_history_that_breaks_it() -> None:
    assert {one.__name__ for one in STANDARD} == {name for name, _, _ in WRONG}


RIGHT: Iterable[Snapshot] = [
    Snapshot(),
    told(START, CALL, RESULT, END),
    told(START, CALL, RESULT, (5, events.RunResumed(1)), CALL, RESULT, END),
    replace(told(START, CALL, END), crashes=(3,)),  # nobody could have told the result
    Snapshot(
        sent=(Sent(1, "ann", "s", "ann/1: hi"),) * 2,  # without a key, twice is twice
        runs=(run("completed", "ann/1: hi"), run("completed", "ann/1: hi", id="r2")),
        journal=told(END).journal | {"t": (EventRecord("t", END[1], 0.0, 1, "r2"),)},
        settled=True,
    ),
    Snapshot(effects=(Effect("c1", "read", repeatable=True),) * 2),
    room(("ann", "person", "ann/1: hi"), ("bob", "agent", "ann/1: hi, you say")),
]


@pytest.mark.parametrize("snapshot", RIGHT)
def test_a_correct_history_has_no_violation(snapshot: Snapshot) -> None:
    assert broken(snapshot, STANDARD) == ()


CHATS: Iterable[tuple[Invariant, str, Snapshot]] = [
    (
        mt.invariants.bounded_turns(1),
        "2 turns of agents in the room 'den' for 1 posts",
        room(("ann", "person", "hi"), ("bob", "agent", "x"), ("cid", "agent", "y")),
    ),
    (
        mt.invariants.no_self_reply,
        "bob answers itself",
        room(("ann", "person", "hi"), ("bob", "agent", "x"), ("bob", "agent", "y")),
    ),
    (
        mt.invariants.no_echo,
        "bob repeats ann",
        room(("ann", "person", "hi"), ("bob", "agent", "hi")),
    ),
    (
        mt.invariants.only_members_speak,
        "cid is no member",
        room(("ann", "person", "hi"), ("cid", "agent", "x")),
    ),
    (mt.invariants.everybody_answered, "nobody has answered", room(("ann", "person", "hi"))),
    (
        mt.invariants.never_says("secret"),
        "bob said 'secret'",
        room(("ann", "person", "hi"), ("bob", "agent", "a secret")),
    ),
    (
        mt.invariants.max_requests(28),
        "asked models 29 times, not 28",
        Snapshot(asked=tuple(TWO)),
    ),
]


@pytest.mark.parametrize(
    ("invariant", "words", "snapshot"), CHATS, ids=[words for _, words, _ in CHATS]
)
def test_rooms_have_optional_invariants(
    invariant: Invariant, words: str, snapshot: Snapshot
) -> None:
    found = broken(snapshot, [invariant])
    assert [violation for violation in found if words in violation.sentence], found
    quiet = room(("ann", "person", "hello"), ("bob", "agent", "what is it?"))
    assert broken(quiet, [invariant]) == ()


def test_a_generated_text_is_known_by_its_author_and_number() -> None:
    assert token_of("ann/12: hello: you") == "ann/12:"
    for text in ("hello", "ann: hi", "a/b: hi", "/3: hi", ""):
        assert token_of(text) == text


def test_a_violation_names_its_guarantee() -> None:
    wrong = broken(Snapshot(effects=(Effect("c1", "paid"),) * 2), STANDARD)
    error = mt.InvariantBroken(wrong, "a  b  c")
    assert str(error) == (
        "effects_at_most_once (G15): the call c1 has done 'paid' 2 times\n\n"
        "The last events:\n\na  b  c"
    )
