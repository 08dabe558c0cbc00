"""The choice of the next speaker, and the conditions that end a round."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from motet.actors.rooms.definition import Elapsed, MaxTurns, TextMention
from motet.actors.rooms.selection import (
    Function,
    NoSuchMember,
    mentioned,
    mentions,
    named,
    only_members,
    round_robin,
    selector,
)
from motet.protocols.models import Model
from motet.protocols.rooms import Floor, MemberInfo, RoomMessage, RoomView

MEMBERS = (
    MemberInfo("planner", "plans the work"),
    MemberInfo("coder", "writes code"),
    MemberInfo("critic", "finds faults", "mentioned"),
)
VIEW = RoomView("dev", MEMBERS, (), (), Floor(round=1, going=True), 8)


def said(*texts: tuple[str, str]) -> tuple[RoomMessage, ...]:
    return tuple(
        RoomMessage(number, author, "agent" if author in "planner coder" else "person", text, 1)
        for number, (author, text) in enumerate(texts, 1)
    )


class Answers:
    """A model that says these, one after the other."""

    def __init__(self, *texts: str) -> None:
        self.texts, self.asked = list(texts), list[str]()

    async def __call__(self, _model: str | Model, _system: str, text: str) -> str:
        self.asked.append(text)
        return self.texts.pop(0)


@pytest.mark.parametrize(
    ("text", "called"),
    [
        ("@coder go", ["coder"]),
        ("@Coder, @planner: and @coder again", ["coder", "planner"]),
        ("ask @coder-two or @coders", []),
        ("mail me@coder or coder", []),
        ("see `@coder` and\n```\n@planner\n```", []),
        ("(@critic)", ["critic"]),
        ("@coder.", ["coder"]),
        ("@coder.py is a file", []),
        ("@all look", ["planner", "coder", "critic"]),
        ("@critic then @all", ["critic", "planner", "coder"]),
        ("@", []),
    ],
)
def test_a_name_behind_an_at_is_a_call(text: str, called: list[str]) -> None:
    assert list(mentioned(text, [member.name for member in MEMBERS])) == called


def test_the_longest_name_is_the_one_that_is_called() -> None:
    assert mentioned("@ann-marie and @ann", ["ann", "ann-marie"]) == ("ann-marie", "ann")


@given(st.text(alphabet="@ coder`-.\n", max_size=30))
def test_only_names_are_called_each_once(text: str) -> None:
    """Law: the calls of any text are distinct members."""
    called = mentioned(text, ["coder", "code", "c"])
    assert set(called) <= {"coder", "code", "c"}
    assert len(set(called)) == len(called)


async def test_the_turn_goes_round_past_those_who_wait_to_be_called() -> None:
    policy, order, view = round_robin(), list[str](), VIEW
    for _ in range(4):
        (name,) = await policy.pick(view, Answers())
        order.append(name)
        view = replace(view, floor=replace(view.floor, last=name))
    assert order == ["planner", "coder", "planner", "coder"]


async def test_the_first_policy_that_picks_someone_counts() -> None:
    policy = mentions() | selector("m") | round_robin()
    assert policy.called("@critic please", MEMBERS) == ("critic",)
    assert await policy.pick(VIEW, Answers("coder")) == ["coder"]


async def test_a_model_that_names_nobody_twice_lets_the_turn_go_round() -> None:
    for rubbish in ("nobody", "", "the intern", "planner or coder"):
        ask = Answers("somebody else", rubbish)
        assert await selector("m").pick(VIEW, ask) == ["planner"]
        assert len(ask.asked) == 2
        assert "none of the names" in ask.asked[1]


async def test_a_model_is_told_of_the_members_that_may_be_chosen_and_of_the_chat() -> None:
    ask = Answers("**Coder**.")
    view = replace(VIEW, messages=said(("alice", "who writes it?")))
    assert await selector("m").pick(view, ask) == ["coder"]
    assert "- coder: writes code" in ask.asked[0]
    assert "[alice] who writes it?" in ask.asked[0]
    assert "critic" not in ask.asked[0]


@given(st.text(max_size=40))
def test_a_model_s_answer_is_a_member_or_nothing(text: str) -> None:
    """Law: whatever a model says, it names a member or nobody."""
    assert named(text, ["planner", "coder"]) in ("", "planner", "coder")


async def test_a_function_picks_and_its_typing_errors_are_told() -> None:
    async def later(_view: RoomView) -> Sequence[str]:
        return ["coder", "planner", "coder"]

    names = await Function(later).pick(VIEW, Answers())
    assert only_members(names, VIEW) == ("coder", "planner")
    assert await Function(lambda _: None).pick(VIEW, Answers()) == []
    with pytest.raises(NoSuchMember, match="'codre': planner, coder, critic"):
        only_members(["codre"], VIEW)


def test_conditions_are_joined_by_or_and_and() -> None:
    done = replace(VIEW, round=said(("alice", "say DONE"), ("coder", "DONE")), elapsed=9.0)
    asked = replace(VIEW, round=said(("alice", "say DONE")), elapsed=9.0)
    assert TextMention("DONE").met(done) == "'DONE' was said"
    assert TextMention("DONE").met(asked) == "", "a person's word is not the agents'"
    assert TextMention("DONE", author="planner").met(done) == ""
    assert (MaxTurns(8) | TextMention("DONE")).met(done) == "'DONE' was said"
    assert (Elapsed(5) & TextMention("DONE")).met(done) == "5 s and 'DONE' was said"
    assert (Elapsed(10) & TextMention("DONE")).met(done) == ""
    assert MaxTurns(2).met(replace(VIEW, floor=Floor(turns=2))) == "2 turns"
