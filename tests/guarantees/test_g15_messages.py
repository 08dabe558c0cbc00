"""Law: an acknowledged change of a message is on disk and is told once, and no later request to a
model, no history, no transcript and no replayed event has a text that was changed or withdrawn,
nor one that was refused, also while runs resume after an approval, the storage fails, and runs end
that cannot be stored.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Final

import attrs
import pytest
import trio

import motet
from motet import testing as mt
from motet.actors.host import Host
from motet.actors.rooms.member import MemberRunner
from motet.actors.storage import rooms as store
from motet.protocols.chat import ToolMessage
from motet.protocols.errors import NotFound
from motet.protocols.events import MessageDeleted, MessageEdited, MessageReaction
from motet.protocols.models import ModelRequest
from motet.protocols.rooms import ROOM_MODES, RoomPlan
from motet.protocols.sessions import Principal
from motet.protocols.storage import StorageUnavailable
from tests.guarantees.worlds.calls import CONFIG, FAULTS, decide, fail, insist, mend

NAMES: Final = ("ann", "ben")
OWNER: Final = Principal("ada")
WORD: Final = re.compile(r"<m\d+>")


@attrs.define
class World:
    """The choices of one talk, and what was acknowledged in it.

    Attributes:
        troubled: the storage fails now and then.
        hurried: people answer approvals and change messages in the same moments.
        requests: the words in each request to a model.
        gone: words that are in no message any more, with how many requests there were then.
        changes: what every acknowledged change was: the number of a message, and its kind.
        texts: of messages, as they were acknowledged last; None: withdrawn.
        doubtful: numbers of messages whose change was not answered.
        refused: words of texts that the storage did not take, with the numbers of their messages.
    """

    seed: object
    troubled: bool = False
    hurried: bool = False
    words: int = 0
    random: Random = attrs.field(init=False)
    requests: list[set[str]] = attrs.field(factory=list[set[str]])
    gone: dict[str, int] = attrs.field(factory=dict[str, int])
    changes: list[tuple[int, str]] = attrs.field(factory=list[tuple[int, str]])
    texts: dict[int, str | None] = attrs.field(factory=dict[int, "str | None"])
    doubtful: set[int] = attrs.field(factory=set[int])
    refused: dict[str, int] = attrs.field(factory=dict[str, int])

    def __attrs_post_init__(self) -> None:
        self.random = Random(f"{self.seed}")

    def agents(self) -> list[motet.Agent[None, str]]:
        return [self._agent(name, Random(f"{self.seed}/{name}")) for name in NAMES]

    def _agent(self, name: str, random: Random) -> motet.Agent[None, str]:
        def answer(request: ModelRequest) -> mt.Step:
            self.requests.append(set(WORD.findall(repr(request.messages))))
            step = random.choice(("says", "says", "calls", "passes", "looks", "asks"))
            seconds = random.choice((0.01, 0.1, 1))
            if step in ("looks", "asks") and not isinstance(request.messages[-1], ToolMessage):
                return mt.call("look" if step == "looks" else "ask")
            if step == "calls":
                other = next(one for one in NAMES if one != name)
                return mt.slow(mt.say(f"@{other} your turn"), seconds=seconds)
            return mt.slow(mt.say("PASS" if step == "passes" else "here"), seconds=seconds)

        agent = motet.Agent(name, model=mt.FunctionModel(answer, name=f"model of {name}"))

        @agent.tool(effects="write")
        async def look() -> str:
            return "looked"

        @agent.tool(effects="write", approval=True)
        async def ask() -> str:
            return "asked"

        return agent

    def text(self) -> str:
        self.words += 1
        called = self.random.choice(["", "@ann", "@ben", "@all"])
        return f"{called} <m{self.words}>"

    def changed(self, kind: str, what: tuple[int, str, str | None] | None) -> None:
        """A change was acknowledged, and not only to a task of a host that has died."""
        if what is None:
            return
        number, before, after = what
        self.doubtful.discard(number)
        self.texts[number] = after
        self.changes.append((number, kind))
        if kind != "react":
            for word in WORD.findall(before):
                self.gone[word] = len(self.requests)

    def plan(self) -> RoomPlan:
        random = self.random
        return RoomPlan(
            members=NAMES,
            speakers=("mentions",),
            concurrency=random.choice([1, 2]),
            history=random.choice([2, 50]),
            mode=random.choice([one for one in ROOM_MODES if one != "reject"]),
            reactions=random.choice([True, False]),
        )


async def name_of(host: Host) -> str:
    found = await host.rooms.list(principal=OWNER)
    return found[0].name if found else ""


async def begin(host: Host, world: World) -> None:
    if not await name_of(host):
        await host.rooms.create("den", world.plan(), people=("*",), principal=OWNER)


async def post(host: Host, text: str) -> int:
    said = await host.rooms.post(await name_of(host), text, key=text, principal=OWNER)
    return said.seq


async def change(host: Host, world: World, kind: str) -> tuple[int, str, str | None] | None:
    """Change a message of the owner: its number, the text that it had, and the one it has."""
    numbers = [number for number, text in world.texts.items() if text]
    if not numbers:
        return None
    number, room = world.random.choice(numbers), await name_of(host)
    before = world.texts[number] or ""
    world.doubtful.add(number)
    after: str | None
    if kind == "edit":
        after = world.text()
        try:
            await host.rooms.edit_message(room, number, after, principal=OWNER)
        except StorageUnavailable:
            world.refused |= dict.fromkeys(WORD.findall(after), number)
            raise
    elif kind == "delete":
        after = None
        await host.rooms.delete_message(room, number, principal=OWNER)
    else:
        after, who = before, Principal(f"user{len(world.changes)}")
        await host.rooms.react(room, number, "+1", principal=who)
    return number, before, after


async def stop(host: Host) -> None:
    await host.stop(room=await name_of(host))


def talk(world: World, host: mt.SimulatedHost, length: int) -> None:
    host.call(begin, world)
    acts: tuple[str, ...] = ("post", "post", "post", "edit", "delete", "react", "stop", "decide")
    acts += ("fail", "mend") * 3 * world.troubled
    for _ in range(length):
        act = world.random.choice(acts)
        if world.hurried and act in ("edit", "delete"):
            host.begin(insist, decide)
            host.steps(world.random.randrange(60))
        match act:
            case "post":
                text = world.text()
                with suppress(StorageUnavailable):
                    world.texts[host.call(post, text)] = text
            case "stop":
                host.begin(stop)
            case "decide":
                host.begin(insist, decide)
            case "fail":
                fail(host.disk, world.random.choice(FAULTS))
            case "mend":
                mend(host.disk)
            case kind:
                with suppress(StorageUnavailable):
                    world.changed(kind, host.call(change, world, kind))
        if world.random.random() < 0.3:
            host.steps(world.random.randrange(1, 120))
        elif world.random.random() < 0.7:
            host.advance(world.random.choice((0.001, 0.02, 0.15, 2)))


def rest(host: mt.SimulatedHost) -> None:
    mend(host.disk)
    for _ in range(40):
        host.advance(2)
        host.call(decide)
        if host.call(_idle):
            break
    host.settle()


async def _idle(host: Host) -> bool:
    waiting = await host.approvals(state="pending")
    return not waiting and all(one.idle for one in await host.rooms.list(principal=OWNER))


def kind_of(event: MessageEdited | MessageDeleted | MessageReaction) -> str:
    match event:
        case MessageEdited():
            return "edit"
        case MessageDeleted():
            return "delete"
        case MessageReaction():
            return "react"


async def broken(host: Host, world: World) -> list[str]:
    """How the law is broken."""
    room = await name_of(host)
    if not room:
        return []
    found: list[str] = []
    messages = {one.seq: one for one in await host.rooms.history(room, limit=500, principal=OWNER)}
    for number, text in world.texts.items():
        if number not in world.doubtful and messages[number].text != (text or ""):
            found.append(f"message {number} is {messages[number].text!r}, not {text!r}")
    stored = {"the history": repr(messages)}
    for stream in (f"room:{room}", *(f"session:agent:{n}:room:group:{room}" for n in NAMES)):
        after = 0
        while page := await host.events.read(stream, after, 200):
            stored[f"{stream} behind {after}"] = repr([one.event for one in page])
            after = page[-1].seq or 0
    for name in NAMES:
        with suppress(NotFound):
            rows = await host.history(f"agent:{name}:room:group:{room}", limit=500)
            stored[f"the transcript of {name}"] = repr(rows)
    stored["the runs"] = repr(await host.runs(limit=500))
    for word, since in world.gone.items():
        found += [f"{word} is in {where}" for where, what in stored.items() if word in what]
        asked = [at for at, words in enumerate(world.requests) if at >= since and word in words]
        found += [f"{word} is in request {at}, withdrawn before {since}" for at in asked[:1]]
    for number in world.doubtful:  # one that was stored in spite of that leaves no copies, either
        before = WORD.findall(world.texts[number] or "")
        old = [word for word in before if word not in messages[number].text]
        found += [
            f"{word} is in {at}" for word in old for at, what in stored.items() if word in what
        ]
    for word, number in world.refused.items():
        if number in world.doubtful and word not in messages[number].text:
            asked = [at for at, words in enumerate(world.requests) if word in words]
            found += [f"{word} is in request {at}, and was never stored" for at in asked[:1]]
    told: list[tuple[int, str]] = []
    numbers: list[int] = []
    after = 0
    while page := await host.events.read(f"room:{room}", after, 200):
        for event in (one.event for one in page):
            if isinstance(event, MessageEdited | MessageDeleted | MessageReaction):
                told.append((event.number, kind_of(event)))
                numbers.append(event.change)
        after = page[-1].seq or 0
    if numbers != [*range(1, len(numbers) + 1)]:
        found.append(f"changes {numbers} were told")
    sure = [one for one in told if one[0] not in world.doubtful]
    if sure != [one for one in world.changes if one[0] not in world.doubtful]:
        found.append(f"{told} were told, {world.changes} were acknowledged")
    return found


def problems(
    seed: object, length: int = 12, *, troubled: bool = False, hurried: bool = False
) -> list[str]:
    world = World(seed, troubled, hurried)
    number = sum(map(ord, str(seed)))
    with mt.simulated_host(number, agents=world.agents(), config=CONFIG) as host:
        talk(world, host, length)
        rest(host)
        return host.call(broken, world)


@pytest.mark.parametrize("seed", range(3))
def test_no_changed_text_is_left_and_each_change_is_told_once(seed: int) -> None:
    assert not problems(seed)


@pytest.mark.sweep
@pytest.mark.parametrize("part", range(8))
def test_no_changed_text_is_left_in_many_talks(part: int) -> None:
    for seed in range(60):
        assert not problems(f"{part}/{seed}", 16), seed


# The last one: the end of a run is stored late, while a message in its rows is withdrawn.
@pytest.mark.parametrize("seed", ["away 0", "away 1", "7/40"])
def test_no_changed_text_is_left_while_the_storage_fails(seed: str) -> None:
    assert not problems(seed, 24, troubled=True)


@pytest.mark.sweep
@pytest.mark.parametrize("part", range(8))
def test_no_changed_text_is_left_in_many_talks_while_the_storage_fails(part: int) -> None:
    for seed in range(60):
        assert not problems(f"{part}/{seed}", 24, troubled=True), seed


@pytest.mark.parametrize("seed", [68])
def test_no_changed_text_is_left_when_runs_resume_in_the_same_moment(seed: int) -> None:
    assert not problems(f"hurry {seed}", 20, hurried=True)


@pytest.mark.sweep
@pytest.mark.parametrize("part", range(8))
def test_no_changed_text_is_left_when_runs_resume_in_many_moments(part: int) -> None:
    for seed in range(60):
        assert not problems(f"{part}/{seed}", 20, hurried=True), seed


@pytest.mark.parametrize("way", FAULTS)
def test_a_turn_under_way_reads_no_edit_that_the_storage_did_not_take(way: str) -> None:
    requests: list[str] = []

    def answer(request: ModelRequest) -> mt.Step:
        requests.append(repr(request.messages))
        return mt.call("look") if len(requests) == 1 else mt.say("done")

    ann = motet.Agent("ann", model=mt.FunctionModel(answer, name="model of ann"))

    @ann.tool
    async def look() -> str:
        await trio.sleep(60)
        return "looked"

    world = World(f"refused {way}")
    with mt.simulated_host(1, agents=[ann, *world.agents()[1:]], config=CONFIG) as host:
        host.call(begin, world)
        world.texts[1] = said = "@ann <m0>"
        host.call(post, said)
        host.advance(2)
        fail(host.disk, way)
        with pytest.raises(StorageUnavailable):
            host.call(change, world, "edit")
        host.advance(20)
        mend(host.disk)
        host.advance(60)
        assert len(requests) == 2
        assert "<m0>" in requests[1], "the message is as it was"
        (word,) = world.refused
        assert word not in requests[1]


def killed(fault: mt.HostFault, seed: int, every: int) -> None:
    """Kill the host at each so many-th step of a talk."""
    worlds: list[World] = []

    def story(host: mt.SimulatedHost) -> None:
        worlds.append(World(seed))
        worlds[-1].requests = models.requests
        talk(worlds[-1], host, 6)

    def check(host: mt.SimulatedHost) -> None:
        rest(host)
        wrong = host.call(broken, worlds[-1])
        assert not wrong, wrong

    models = World(seed)
    options = {"agents": models.agents(), "config": CONFIG, "seeds": (seed,), "every": every}
    options |= {"check": check}
    mt.sweep(story, fault, **options).check()  # type: ignore[arg-type]


def test_no_changed_text_is_left_after_a_kill() -> None:
    killed("power", 3, 211)


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("fault", ["crash", "power"])
def test_no_changed_text_is_left_after_a_kill_at_any_moment(fault: mt.HostFault, seed: int) -> None:
    killed(fault, seed, 7)


# Planted defects: each is found within a few talks.

DEFECTS: Final[list[tuple[object, str, Callable[..., object]]]] = [
    (MemberRunner, "correct", lambda *_: False),  # runs under way read on
    (store, "scrub", lambda *_: iter(())),  # transcripts and events keep the text
]


@pytest.mark.parametrize(("owner", "name", "defect"), DEFECTS, ids=["correct", "scrub"])
def test_the_law_finds_a_defect_of(
    owner: object, name: str, defect: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, name, defect)
    assert any(problems(f"defect {seed}") for seed in range(40))
