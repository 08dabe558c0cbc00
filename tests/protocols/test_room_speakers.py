"""Speaker selection: policies, and conditions of a round."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

import motet
from motet import testing as mt
from motet.actors.host import Host
from motet.actors.rooms.opening import OpenRoom
from motet.protocols.models import Model
from motet.protocols.room_conditions import Elapsed, MaxTurns, TextMention
from motet.protocols.room_speakers import (
    Function,
    NoSuchMember,
    mentions,
    named,
    only_members,
    round_robin,
    selector,
)
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


async def test_round_robin_skips_members_that_are_only_called() -> None:
    policy, order, view = round_robin(), list[str](), VIEW
    for _ in range(4):
        (name,) = await policy.pick(view, Answers())
        order.append(name)
        view = replace(view, floor=replace(view.floor, last=name))
    assert order == ["planner", "coder", "planner", "coder"]


async def test_the_first_policy_that_picks_somebody_wins() -> None:
    policy = mentions() | selector("m") | round_robin()
    assert policy.called("@critic please", MEMBERS) == ("critic",)
    assert await policy.pick(VIEW, Answers("coder")) == ["coder"]


async def test_a_model_that_fails_twice_falls_back_to_round_robin() -> None:
    for rubbish in ("nobody", "", "the intern", "planner or coder"):
        ask = Answers("somebody else", rubbish)
        assert await selector("m").pick(VIEW, ask) == ["planner"]
        assert len(ask.asked) == 2
        assert "none of the names" in ask.asked[1]


async def test_the_selecting_model_sees_the_choosable_members_and_the_chat() -> None:
    ask = Answers("**Coder**.")
    view = replace(VIEW, messages=said(("alice", "who writes it?")))
    assert await selector("m").pick(view, ask) == ["coder"]
    assert "- coder: writes code" in ask.asked[0]
    assert "person alice] who writes it?" in ask.asked[0]
    assert "critic" not in ask.asked[0]


@given(st.text(max_size=40))
def test_a_model_s_answer_is_a_member_or_nothing(text: str) -> None:
    """Law: whatever a model says, it names a member or nobody."""
    assert named(text, ["planner", "coder"]) in ("", "planner", "coder")


async def test_a_function_picks_and_an_unknown_name_raises() -> None:
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


async def _said(_host: Host, room: OpenRoom) -> list[tuple[str, str]]:
    return [(message.author, message.text) for message in await room.history()]


def agent(name: str, *texts: str) -> motet.Agent:
    return motet.Agent(name, model=mt.ScriptedModel([mt.say(text) for text in texts], name=name))


@pytest.mark.parametrize("others", [[], ["PASS"], ["", "PASS"]], ids=str)
def test_round_robin_ends_when_the_others_have_nothing_to_say(
    others: list[str],
) -> None:
    members = [agent("ada", "first", "second")]
    members += [agent(f"silent{number}", text) for number, text in enumerate(others)]
    with mt.simulated_host() as host:
        room = host.room(motet.Room("hall", members=members, speakers=motet.round_robin()))
        host.post(room.name, "hello", user="ann")
        host.settle()
        assert host.call(_said, room) == [("ann", "hello"), ("ada", "first")]
        host.post(room.name, "and?", user="ann")
        host.steps(500)
        assert ("ada", "second") in host.call(_said, room), "a person's word may be answered"


async def test_a_selector_asks_the_programs_question_about_its_candidates() -> None:
    view = replace(VIEW, messages=said(("alice", "who is {names}?"), ("planner", "I planned")))
    ask = Answers("coder")
    policy = selector("m", prompt="Of {names}:\n{members}\n---\n{chat}\n{else}")
    assert await policy.pick(view, ask) == ["coder"]
    assert ask.asked == [
        "Of planner, coder:\n- planner: plans the work\n- coder: writes code\n---\n"
        "[#1 person alice] who is {names}?\n[#2 agent planner] I planned\n{else}"
    ]


async def test_only_candidates_are_chosen_and_one_alone_is_not_asked_about() -> None:
    async def other(view: RoomView) -> list[str]:
        return [one for one in view.free if not view.messages or one != view.messages[-1].author]

    for policy in (selector("m", candidates=other), selector("m", candidates=lambda _: "coder")):
        view = replace(VIEW, messages=said(("planner", "done")))
        assert await policy.pick(view, Answers()) == ["coder"]
    assert await selector("m", candidates=lambda _: None).pick(VIEW, Answers()) == []
    both = selector("m", candidates=lambda view: view.free)
    assert await both.pick(VIEW, Answers("nobody", "nothing")) == ["planner"]
    with pytest.raises(NoSuchMember):
        await selector("m", candidates=lambda _: "somebody").pick(VIEW, Answers())
