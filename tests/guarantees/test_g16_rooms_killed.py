"""G16 in rooms whose host is killed: no effect that one of the people whose words it answers could
not have had alone, by the rules of ``test_g16_rooms``.

The talk is that of the living host: people post, in the room and in threads, and edit messages;
members obey the words that they are told, and repeat them, and the room is stopped. In between the
host is killed, also in the middle of a post, an edit, a stop or an approval, and the next one goes
on: with turns that were cut off, and with runs that wait for a person.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from random import Random
from typing import Any, get_args

import attrs
import pytest
import trio
from msgspec.structs import replace

import motet
from motet import testing as mt
from motet.actors.host import Host
from motet.actors.rooms import table
from motet.actors.rooms.history import Change, RoomHistory
from motet.actors.runs import suspend
from motet.actors.runs.run import Run
from motet.protocols.approvals import ApprovalDecision, SuspendedState
from motet.protocols.chat import ToolMessage, UserMessage
from motet.protocols.errors import MotetError
from motet.protocols.models import ModelRequest
from motet.protocols.rooms import ROOM_MODES, RoomMode, RoomPlan
from motet.protocols.sessions import Principal, Role
from motet.protocols.tools import Effects
from tests.guarantees.test_g16_rooms import (
    AGENTS,
    PEOPLE,
    SUSPEND,
    TOOLS,
    WORD,
    Effect,
    Talk,
    acting,
    told,
)

OWNER = Principal("ada")
ACTS = (*["post"] * 4, "thread", "edit", "edit", "approve", "stop", "crash")


@attrs.define
class KilledTalk:
    """A talk over several lives of its host. ``said``: the author of each word."""

    seed: object
    effects: list[Effect] = attrs.field(factory=list[Effect])
    said: dict[str, Principal] = attrs.field(factory=dict[str, Principal])
    room: str = ""
    random: Random = attrs.field(init=False)
    models: Random = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.random, self.models = Random(f"{self.seed}"), Random(f"{self.seed}/models")

    def agent(self, name: str) -> motet.Agent[None, str]:
        known = set[str]()

        def answer(request: ModelRequest) -> mt.Step:
            there = {word for row in request.messages for word in WORD.findall(row.text)}
            words = " ".join(sorted(told(request) | there - known))
            known.update(there)
            other = self.models.choice([one for one in AGENTS if one != name])
            offered = [one.name for one in request.tools if one.name in TOOLS]
            if offered and self.models.random() < 0.6:
                step = mt.call(self.models.choice(offered), words=words)
                return mt.slow(step, seconds=self.models.choice((0.0, 0.3)))
            text = f"{self.models.choice(['', f'@{other} '])}so {words}"
            return mt.slow(mt.say(text), seconds=self.models.choice((0.01, 0.1, 0.9)))

        agent = motet.Agent(name, model=mt.FunctionModel(answer, name=f"model of {name}"))
        for tool in TOOLS:
            effects: Effects = "read" if tool == "look" else "write"
            agent.tool(name=tool, effects=effects)(acting(tool, self.effects))
        return agent

    async def open(self, host: Host) -> None:
        mode: RoomMode = self.random.choice([one for one in ROOM_MODES if one != "reject"])
        plan = RoomPlan(AGENTS, max_turns=5, mode=mode, concurrency=self.random.choice([1, 2]))
        self.room = (await host.rooms.create("r", plan, people=("*",), principal=OWNER)).name

    def _text(self, who: Principal) -> str:
        word = f"<m{len(self.said)}>"
        self.said[word] = who
        called = self.random.choice(["", "@all ", *(f"@{name} " for name in AGENTS)])
        return f"{called}go {word}"

    async def post(self, host: Host, *, thread: bool = False) -> None:
        who = Principal(self.random.choice(PEOPLE), self.random.choice(get_args(Role)))
        text, where = self._text(who), f"{self.room}/1" if thread else self.room
        with suppress(MotetError):
            await host.rooms.post(where, text, principal=who)

    async def edit(self, host: Host) -> None:
        last = await host.rooms.history(self.room, limit=20)
        if said := [one for one in last if one.kind == "person" and not one.deleted]:
            one = self.random.choice(said)
            (who,) = one.asked_by
            with suppress(MotetError):
                text = self._text(who)
                await host.rooms.edit_message(self.room, one.seq, text, principal=who)

    async def approve(self, host: Host) -> None:
        for one in await host.approvals(state="pending"):
            decision: ApprovalDecision = self.random.choice(["allow-once", "deny"])
            with suppress(MotetError):
                await host.approve(one.id, decision)

    async def stop(self, host: Host) -> None:
        with suppress(MotetError):  # nothing was said yet
            await host.stop(room=self.room)

    def tell(self, host: mt.SimulatedHost) -> None:
        does = {"edit": self.edit, "approve": self.approve, "post": self.post, "stop": self.stop}
        host.call(self.open)
        for _ in range(14):
            act = self.random.choice(ACTS)
            if act == "crash":
                host.begin(self.random.choice([*does.values()]))
                host.steps(self.random.randrange(150))
                host.crash()
            elif act == "thread":
                host.call(lambda found: self.post(found, thread=True))
            else:
                host.call(does[act])
            host.steps(self.random.choice((0, 20, 150)))
            host.advance(self.random.choice((0, 0.02, 0.3)))
        for _ in range(20):
            host.advance(2)
            host.call(self.approve)
        host.settle()

    def wrong(self, host: mt.SimulatedHost) -> list[str]:
        """The effects that one of their people, or the owner, could not have had alone."""
        found: list[str] = []
        for effect in self.effects:
            people = [self.said[word] for word in sorted(effect.words)]
            if not {*people} <= {*effect.asked_by}:
                found.append(f"not asked about: {effect}")
            for who in dict.fromkeys((*people, OWNER)):
                judged = host.call(_judged, effect, who)
                if judged == "deny" or (judged == "ask" and not effect.approved):
                    found.append(f"{judged} for {who.user}: {effect}")
        return found


async def _judged(host: Host, effect: Effect, who: Principal) -> str:
    rulings = await host.tools(effect.agent, session=effect.session, principal=who)
    (ruling,) = (one for one in rulings if one.name == effect.tool)
    return ruling.effect


def play(seed: object) -> tuple[list[str], int]:
    talk = KilledTalk(seed)
    config = motet.HostConfig(
        policy=Talk(Random(f"{seed}/rules")).rules(),
        approvals=motet.ApprovalsConfig(hold=0.02, expires=60),
        recovery=motet.RecoveryConfig(resume_within=1e6),
    )
    agents, number = [talk.agent(name) for name in AGENTS], sum(map(ord, str(seed)))
    with mt.simulated_host(number, agents=agents, config=config) as host:
        talk.tell(host)
        return talk.wrong(host), len(talk.effects)


def test_a_room_gives_nobody_a_right_that_they_lack_after_kills(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    played = [play(seed) for seed in range(3)]
    monkeypatch.setattr(table, "MOST", 0)  # a room that rests is forgotten at once
    played += [play(seed) for seed in range(3, 6)]
    assert [wrong for wrong, _ in played] == [[]] * 6
    assert sum(effects for _, effects in played) > 12


# Turns that end without an answer: their people are those of the next one, which reads their words.


def obeying(paid: list[list[str]], tool: str) -> list[motet.Agent[None, str]]:
    """Members that first use a tool and then work for long, and pay when they are told to go on."""

    def answer(request: ModelRequest) -> mt.Step:
        said = [row.text for row in request.messages]
        if "begin" in said[-1]:
            return mt.call(tool)
        if "go on" not in said[-1]:
            return mt.slow(mt.say("ok"), seconds=9)
        return mt.call("pay") if any("pay" in text for text in said) else mt.say("no")

    agents = [motet.Agent(name, model=mt.FunctionModel(answer, name=name)) for name in AGENTS]
    for agent in agents:

        @agent.tool(approval=True)
        async def ask() -> str:
            return "asked"

        @agent.tool(effects="write")
        async def look() -> str:
            await trio.sleep(1)
            return "seen"

        @agent.tool(effects="write")
        async def pay(ctx: motet.Context[None]) -> str:
            paid.append(sorted(who.user for who in ctx.asked_by))
            return "paid"

    return agents


@pytest.mark.parametrize(
    ("mode", "tool", "said"),
    [
        ("collect", "ask", (("cy", "@ann begin, and pay"), ("bob", "@ben hello"), "stop")),
        ("steer", "look", (("bob", "@ann begin"), ("cy", "and pay"), "crash")),
    ],
)
def test_the_turn_after_one_that_was_cut_off_answers_those_whose_words_have_entered_that(
    mode: RoomMode, tool: str, said: Sequence[tuple[str, str] | str]
) -> None:
    """It was stopped beside the round, or it was killed when another person had spoken into it."""
    paid = list[list[str]]()

    async def opened(host: Host) -> str:
        plan = RoomPlan(AGENTS, mode=mode, activation="mention")
        return (await host.rooms.create("r", plan, people=("*",), principal=OWNER)).name

    with mt.simulated_host(1, agents=obeying(paid, tool)) as host:
        room = host.call(opened)
        for one in (*said, ("bob", "@ann go on")):
            match one:
                case "stop":
                    host.call(lambda found: found.stop(room=room))
                case "crash":
                    host.advance(1)
                    host.crash()
                case (user, text):
                    post = partial(_post, room=room, user=user, text=text)
                    host.call(post)
                case _:
                    raise ValueError(one)
            host.advance(0.5)
    assert paid == [["bob", "cy"]]


def test_a_message_whose_people_are_stored_slowly_is_given_to_its_member_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The turn that it was to enter ends first, and a round is opened for it."""
    record = RoomHistory.record

    async def again(self: RoomHistory, change: Change, *more: Any, **how: Any) -> None:
        if change(self.state) is self.state:  # the storage has not taken the first attempt
            await trio.sleep(0.5)
        await record(self, change, *more, **how)

    monkeypatch.setattr(RoomHistory, "record", again)
    read: list[str] = []

    def answer(request: ModelRequest) -> mt.Step:
        said = [row.text for row in request.messages if isinstance(row, UserMessage)]
        read[:] = said
        if "two" in " ".join(said) and not isinstance(request.messages[-1], ToolMessage):
            return mt.call("look")
        return mt.slow(mt.say("ok"), seconds=0.3)

    ann = motet.Agent("ann", model=mt.FunctionModel(answer, name="ann"))

    @ann.tool(effects="write")
    async def look() -> str:
        await trio.sleep(3)
        return "seen"

    async def opened(host: Host) -> str:
        plan = RoomPlan(("ann",), mode="steer", activation="mention")
        return (await host.rooms.create("r", plan, people=("*",), principal=OWNER)).name

    with mt.simulated_host(1, agents=[ann]) as host:
        room = host.call(opened)
        for user, text in (("bob", "@ann one"), ("cy", "@ann two")):
            host.call(partial(_post, room=room, user=user, text=text))
            host.advance(0.1)
        host.advance(9)
    assert sum("two" in text for text in read) == 1


async def _post(host: Host, room: str, user: str, text: str) -> None:
    await host.rooms.post(room, text, principal=Principal(user))


@pytest.mark.sweep
@pytest.mark.parametrize("part", range(10))
def test_a_room_gives_nobody_a_right_in_many_talks_with_kills(
    part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "MOST", 0 if part % 2 else table.MOST)
    for seed in range(60):
        assert play(f"{part}/{seed}")[0] == [], seed


# Planted defects: each is found within 60 talks.


def forgets_when_suspended(run: Run, *rest: object) -> SuspendedState:
    """The next host resumes a run with the rights of the room."""
    return replace(SUSPEND(run, *rest), asked_by=())  # type: ignore[arg-type]


@pytest.mark.sweep
def test_the_law_finds_a_host_that_forgets_whose_words_it_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(suspend, "suspended_state", forgets_when_suspended)
    assert any(play(f"defect {seed}")[0] for seed in range(60))
