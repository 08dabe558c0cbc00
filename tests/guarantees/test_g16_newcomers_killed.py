"""G16 for newcomers of rooms that are killed: what somebody reads is the same in the next host.

Random stories, step by step, in a host whose power is cut at every step and within every commit:
people are added or invited, go, come again, look for the first time; agents are added; the setting
changes. A call that has returned holds; one that the kill has met may have been done or not.
"""

# A mutant is by its nature inside.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import re
from collections.abc import Callable
from random import Random
from typing import Any, Final, cast

import attrs
import msgspec
import pytest
from msgspec.structs import replace

import motet
from motet import testing as mt
from motet.actors.gateway.auth import StaticTokens, token_entry
from motet.actors.gateway.context import Context, Settings
from motet.actors.host import Host
from motet.actors.storage.tokens import new_token
from motet.protocols import room_reading, room_tables
from motet.protocols.models import ModelRequest
from motet.protocols.room_acts import AddPerson, RemovePerson, SetTerms
from motet.protocols.room_newcomers import NEWCOMERS, Newcomers
from motet.protocols.room_people import RoomPerson
from motet.protocols.rooms import RoomChange, RoomPlan, RoomState
from motet.protocols.sessions import Principal
from tests.actors.gateway.fakes import connected
from tests.guarantees.test_g16_newcomers import until_the_end

OWNER: Final = Principal("ada")
PEOPLE: Final = ("bob", "cleo")
TOKENS: Final = {user: new_token() for user in PEOPLE}
WORD: Final = re.compile(r"w\d+x")


def words(found: object) -> set[str]:
    return set(WORD.findall(msgspec.json.encode(found).decode()))


@attrs.frozen
class Step:
    """``say``, ``call`` (of the agent that comes later), ``add``, ``invite``, ``remove``, ``look``,
    ``agent`` (add it), ``set``; ``of``: the user, the setting, or the word that is said.
    """

    what: str
    of: str = ""


def steps(random: Random, length: int) -> list[Step]:
    found: list[Step] = []
    here: set[str] = set()
    for number in range(length):
        word, user = f"w{number}x", random.choice(PEOPLE)
        match random.choice(("say", "say", "say", "come", "come", "look", "look", "agent", "set")):
            case "come" if user in here:
                found.append(Step("remove", user) if random.random() < 0.3 else Step("look", user))
                here -= {user} if found[-1].what == "remove" else set()
            case "come":
                found.append(Step(random.choice(("add", "add", "invite")), user))
                here.add(user)
            case "look" if user in here:
                found.append(Step("look", user))
            case "agent" if Step("agent") not in found:
                found.append(Step("agent"))
            case "set" if random.random() < 0.5:
                found.append(Step("set", random.choice(NEWCOMERS)))
            case _:
                what = "call" if Step("agent") in found and random.random() < 0.3 else "say"
                found.append(Step(what, word))
    return found


@attrs.define
class Story:
    """``begun`` and ``done``: how many steps; ``seen``: what each look has shown, by its step.

    ``heard``: what the agent that comes later was sent, as words.
    """

    steps: list[Step]
    begun: int = 0
    done: int = 0
    seen: dict[int, set[str]] = attrs.field(factory=dict[int, "set[str]"])
    heard: list[set[str]] = attrs.field(factory=list[set[str]])
    room: str = ""

    def play(self, host: mt.SimulatedHost) -> None:
        self.begun = self.done = 0
        self.seen.clear()
        self.heard.clear()
        self.room = host.call(made)
        for number, step in enumerate(self.steps):
            self.begun = number + 1
            found = host.call(self.do, step)
            if found is not None:
                self.seen[number] = found
            self.done = number + 1
            if step.what == "call":
                host.advance(1)

    async def do(self, host: Host, step: Step) -> set[str] | None:
        rooms, room, of = host.rooms, self.room, step.of
        match step.what:
            case "say":
                await rooms.post(room, of, principal=OWNER)
            case "call":
                await rooms.post(room, f"@ben {of}", principal=OWNER)
            case "add":
                await rooms.manage(AddPerson(room=room, user=of), principal=OWNER)
            case "invite":
                made_by = await rooms.invite(room, principal=OWNER)
                await rooms.join(made_by.token, principal=Principal(of))
            case "remove":
                await rooms.manage(RemovePerson(room=room, user=of), principal=OWNER)
            case "agent":
                await rooms.change(room, RoomChange(members=("ann", "ben")), principal=OWNER)
            case "set":
                act = SetTerms(room=room, newcomers=cast("Newcomers", of))
                await rooms.manage(act, principal=OWNER)
            case _:
                return await self.look(host, of)
        return None

    async def look(self, host: Host, user: str) -> set[str] | None:
        """All that a user reads, by the methods and by the stream; None: there is no such room."""
        rooms, room, who = host.rooms, self.room, Principal(user)
        found: list[object] = []
        try:
            found.append(await rooms.history(room, limit=200, principal=who))
            info = await rooms.get(room, principal=who)
        except motet.NotFound:
            return None
        tokens = StaticTokens(token_entry(TOKENS[one], one, "operator") for one in PEOPLE)
        async with connected(Context(host, Settings(tokens=tokens)), TOKENS[user]) as client:
            await client.result("subscribe", stream=f"room:{room}", after=info.hidden_events)
            await rooms.post(room, "the end", principal=OWNER)
            found += await until_the_end(client)
        return words(found)

    def agents(self) -> list[motet.Agent[None, str]]:
        def ann(_: ModelRequest) -> mt.Step:
            return mt.say("yes")

        def ben(request: ModelRequest) -> mt.Step:
            self.heard.append(words(request.messages))
            return mt.say("[pass]")

        return [
            motet.Agent("ann", model=mt.FunctionModel(ann, name="model of ann")),
            motet.Agent("ben", model=mt.FunctionModel(ben, name="model of ben")),
        ]


async def made(host: Host) -> str:
    plan = RoomPlan(("ann",), speakers=("mentions",))
    return (await host.rooms.create("den", plan, principal=OWNER)).name


@attrs.define
class Reader:
    """What a user may know. ``hidden``, ``shown``: words said before and since they came; ``here``:
    they are in the room; ``came``: they have looked.
    """

    here: bool = False
    came: bool = False
    hidden: set[str] = attrs.field(factory=set[str])
    shown: set[str] = attrs.field(factory=set[str])


@attrs.define
class Rules:
    """The law as a plain model: what each user may read after some steps."""

    reads: Newcomers = "all"
    said: set[str] = attrs.field(factory=set[str])
    people: dict[str, Reader] = attrs.field(factory=lambda: {user: Reader() for user in PEOPLE})
    agent_is_here: bool = False
    hidden_from_agent: set[str] = attrs.field(factory=set[str])

    def after(self, step: Step) -> None:
        one = self.people.get(step.of, Reader())
        match step.what:
            case "say" | "call":
                self.said.add(step.of)
                for each in self.people.values():
                    each.shown |= {step.of} if each.here else set()
            case "add" | "invite":
                came = step.what == "invite"
                self.people[step.of] = Reader(here=True, came=came, hidden=set(self.said))
            case "remove":
                self.people[step.of] = Reader()
            case "look" if one.here:
                if self.reads == "none" and not one.came:
                    one.hidden, one.shown = set(self.said), set()
                # While newcomers read all, nobody notes that they have come.
                one.came = one.came or self.reads != "all"
            case "agent":
                self.agent_is_here = True
                self.hidden_from_agent = set(self.said) if self.reads != "all" else set()
            case "set":
                self.reads = cast("Newcomers", step.of)
                if self.reads == "all":
                    self.hidden_from_agent = set()
                for each in self.people.values():
                    each.came = each.came or each.here
            case _:
                pass


def ruled(story: Story, count: int) -> Rules:
    rules = Rules()
    for step in story.steps[:count]:
        rules.after(step)
    return rules


def wrong(rules: Rules, seen: dict[str, set[str] | None]) -> list[str]:
    """How what was seen differs from the rules."""
    found: list[str] = []
    for user, read in seen.items():
        one = rules.people[user]
        if (read is not None) != one.here:
            found.append(f"{user} is {'not ' * (read is None)}here")
        elif read is not None and rules.reads != "all":
            late = rules.reads == "none" and not one.came
            if leaked := read & (one.hidden | (one.shown if late else set())):
                found.append(f"{user} reads {leaked}, which is hidden ({rules.reads})")
            if not late and (lost := one.shown - read):
                found.append(f"{user} does not read {lost} ({rules.reads})")
        elif read is not None and read != rules.said:
            found.append(f"{user} does not read all: {read}")
    return found


def judged(story: Story, host: mt.SimulatedHost) -> None:
    """Each user reads what they may after the steps that are done, or after the one that the kill
    has met as well; the agent has read nothing that is hidden from it, before or after.
    """
    host.settle()
    if not story.room:
        return
    # Nothing is said between the steps and this look, so a look that the kill has met is no other.
    seen: dict[str, set[str] | None] = {}
    for user in PEOPLE:
        seen[user] = host.call(story.look, user)
    tried = [wrong(ruled(story, count), seen) for count in {story.done, story.begun}]
    assert not all(tried), (story.steps[: story.begun], tried)
    rules = [ruled(story, count) for count in (story.done, story.begun)]
    rules = [ruled(story, count) for count in (story.done, story.begun)]
    hidden = rules[0].hidden_from_agent & rules[1].hidden_from_agent
    if rules[0].agent_is_here:
        host.call(story.do, Step("call", "w999x"))
        host.settle()
        assert any("w999x" in heard for heard in story.heard), "the agent was not asked"
    assert not hidden & set().union(*story.heard), (story.steps[: story.begun], story.heard)
    for number, read in story.seen.items():
        user = story.steps[number].of
        then = ruled(story, number + 1)
        assert not wrong(then, {user: read}), story.steps[: number + 1]


def killed(fault: mt.HostFault, seed: int, every: int) -> mt.SweepReport:
    story = Story(steps(Random(seed), 12))
    return mt.sweep(
        story.play,
        fault,
        seeds=(seed,),
        every=every,
        check=lambda host: judged(story, host),
        agents=story.agents(),
    )


@pytest.mark.parametrize("seed", range(2))
def test_newcomers_read_the_same_after_a_kill_at_some_moment(seed: int) -> None:
    """Law: whenever the host dies, each person and each agent reads what they may after the calls
    that have returned, or after the one that the kill has met as well."""
    killed("power", seed, 59).check()


@pytest.mark.sweep
@pytest.mark.parametrize("fault", ["power", "crash"])
@pytest.mark.parametrize("seed", range(40))
def test_newcomers_read_the_same_after_a_kill_at_any_moment(seed: int, fault: mt.HostFault) -> None:
    killed(fault, seed, 1 if fault == "power" else 5).check()


# Planted defects: each is found within a few stories.


def all_were_there(room: str, one: RoomPerson, now: float) -> tuple[Any, ...]:
    """Whoever comes has been there from the start."""
    return ROW(room, replace(one, joined=-1), now)


def all_are_founders(state: RoomState, *_: object) -> RoomState:
    """Which agents were added later is not known any more when a room is opened again."""
    return replace(state, joined={})


ROW = room_tables._row
DEFECTS: Final[list[tuple[object, str, Callable[..., Any]]]] = [
    (room_tables, "_row", all_were_there),
    (room_reading, "join", all_are_founders),
]


@pytest.mark.parametrize(
    ("owner", "name", "defect"), DEFECTS, ids=[one.__name__ for _, _, one in DEFECTS]
)
def test_the_law_finds_that(
    owner: object, name: str, defect: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, name, defect)
    assert any(not sound(seed) for seed in (2, 3, *range(40)))


def sound(seed: int) -> bool:
    try:
        return not killed("power", seed, 60).findings
    except AssertionError:  # also without a kill
        return False
