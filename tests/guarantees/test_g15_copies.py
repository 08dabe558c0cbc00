"""Law: a text that was changed or withdrawn leaves no copy: in no row of the database and no later
request, whatever has carried it on before.

Members of the room read it back with ``room_history``, in rooms below, as members that are rooms or
graphs, and as newcomers who were told of the earlier talk by a summary. They quote it to tools: in
calls that wait for approvals, in results too large for a transcript, in errors, some of megabytes,
that escalate, and in tasks of their team. Meanwhile their sessions are compacted, agents are added,
a reload takes the agents of the inner rooms away and brings them back, and the host dies. No
newcomer reads what was said before it came.
"""

# It reads the database of the simulated host.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from random import Random
from typing import Any, Final
from unittest.mock import patch

import apsw
import attrs
import pytest
import trio

import motet
from motet import testing as mt
from motet.actors.host import Host
from motet.actors.models import demo
from motet.actors.rooms import history
from motet.actors.runs import finish, runner
from motet.actors.runs.services import ModelAccess
from motet.actors.runs.tool_step import ToolStep
from motet.actors.storage import rooms as store
from motet.actors.storage.run_access import RunJournal
from motet.actors.telemetry.tracer import Tracer
from motet.protocols import room_changes
from motet.protocols.approvals import ApprovalDecision
from motet.protocols.chat import ChatMessage, ToolMessage
from motet.protocols.config import ModelsConfig
from motet.protocols.errors import MotetError
from motet.protocols.models import ModelRequest
from motet.protocols.results import Packed, unpack
from motet.protocols.room_acts import SetTerms
from motet.protocols.room_changes import ChangedMessages
from motet.protocols.room_newcomers import DEFAULT, NEWCOMERS, Newcomers
from motet.protocols.rooms import ROOM_MODES, FindRoom, RoomChange, RoomPlan
from motet.protocols.sessions import FinishRun, Principal
from motet.protocols.storage import Statement

OWNER: Final = Principal("ada")
WORD: Final = re.compile(r"<m\d+>")
LINE: Final = re.compile(r"^\[#\d[^\n]*", re.MULTILINE)
QUOTES: Final = ("pins", "pins", "recites", "breaks", "bursts", "task_create")
LARGE: Final = {"recites": (20_000, 90_000), "bursts": (270_000,)}
FIRST: Final = ("ann", "team", "flow")
MEMBERS: Final = (*FIRST, "cy")
CONFIG: Final = motet.HostConfig(
    approvals=motet.ApprovalsConfig(hold=0.02, expires=60),
    recovery=motet.RecoveryConfig(resume_within=1e6),
    agents={"leo": motet.AgentConfig(model="demo")},
)
CROWDED: Final = attrs.evolve(CONFIG, models=ModelsConfig(concurrency=1))
"""Requests of members wait for one another at a model."""
ACTS: Final = (
    *("post",) * 4, "edit", "delete", "delete", "compact", "add", "crash", "crash", "restart",
    "reload", "terms", "stop",
)  # fmt: skip


@attrs.define
class World:
    """One talk.

    Attributes:
        asked: the words in each request to a model, with the agent that it is of.
        texts: of messages, as they were acknowledged last; empty: withdrawn.
        number: of the message that each word was said in.
        gone: words that no message has any more, with how many requests there were then.
        came: the last message when ``cy`` came, and the last one of people that was answered then:
            what waits for an answer is new to it. None: it is not here.
        calling: messages whose text has called ``cy`` since then; it reads those.
        quotes: members quote to tools what they were told, and people answer approvals.
        config: of its host.
    """

    seed: object
    random: Random = attrs.field(init=False)
    models: Random = attrs.field(init=False)
    room: str = ""
    asked: list[tuple[str, set[str]]] = attrs.field(factory=list[tuple[str, set[str]]])
    texts: dict[int, str] = attrs.field(factory=dict[int, str])
    number: dict[str, int] = attrs.field(factory=dict[str, int])
    gone: dict[str, int] = attrs.field(factory=dict[str, int])
    came: tuple[int, int] | None = None
    calling: set[int] = attrs.field(factory=set[int])
    away: bool = False
    words: int = 0
    reads: Newcomers | None = None
    quotes: bool = False
    config: motet.HostConfig = CONFIG

    def __attrs_post_init__(self) -> None:
        self.random, self.models = Random(f"{self.seed}"), Random(f"{self.seed}/models")

    def leaf(self, name: str) -> motet.Agent[None, str]:
        """An agent that reads back, looks at something for a while, calls another, or says a line.

        It never repeats what it was told.
        """

        def answer(request: ModelRequest) -> mt.Step:
            self.asked.append((name, set(WORD.findall(repr(request.messages)))))
            random, rows = self.models, request.messages
            if not request.tools:
                return mt.slow(mt.say("they have talked"), seconds=random.choice((0.01, 0.5)))
            worked = sum(isinstance(row, ToolMessage) for row in rows[-4:])
            if self.quotes and (quoting := quoted(rows, random, worked)):
                return quoting
            step = random.choice(("says", "says", "calls", "looks", "reads", "reads"))
            if step == "looks" and worked < 2:
                return mt.call("look")
            if step == "reads" and worked < 2:
                return mt.call("room_history", limit=random.choice((3, 50)))
            text = f"@{random.choice(MEMBERS)} and you?" if step == "calls" else "so it is"
            return mt.slow(mt.say(text), seconds=random.choice((0.01, 0.1, 0.9)))

        model = mt.FunctionModel(answer, name=f"model of {name}")
        agent = motet.Agent(name, model=model, tools=["group:rooms"])
        if self.quotes:
            add_tools(agent)

        @agent.tool(effects="read")
        async def look() -> str:
            return "a line\n"

        return agent

    def agents(self) -> list[motet.Agent[None, str]]:
        """All but ``leo``, who is in the configuration, so that a reload can take him away."""
        lea, lia = self.leaf("lea"), self.leaf("lia")
        inner = motet.Room("pair", members=["lea", "leo"], max_turns=2)
        middle = motet.Room("middle", members=[motet.room_agent(inner, name="pair")], max_turns=2)
        flow = motet.Graph("steps")
        flow.edge(lea, lia)
        flow.start(lea)
        teams = [
            motet.room_agent(middle, name="team"),
            motet.room_agent(flow.room(max_turns=2), name="flow"),
        ]
        ann, cy = self.leaf("ann"), self.leaf("cy")
        if self.quotes:
            motet.Team("board", lead=ann, members=[lea, cy])
        return [ann, cy, *teams, lea, lia]

    def said(self) -> str:
        self.words += 1
        return f"<m{self.words}>"

    def says(self, number: int, text: str) -> None:
        """A text is acknowledged as that of a message."""
        self.texts[number] = text
        self.number |= dict.fromkeys(WORD.findall(text), number)
        if self.came is not None and text.startswith(("@cy", "@all")):
            self.calling.add(number)

    def text(self) -> str:
        called = self.random.choice(["", "@all", *(f"@{name}" for name in MEMBERS)])
        return f"{called} {self.said()}"


def quoted(rows: Sequence[ChatMessage], random: Random, worked: int) -> mt.Step | None:
    """A call that quotes a line of what a member was told; None: it does something else."""
    lines = [line for row in rows for line in LINE.findall(row.text)]
    last = rows[-1]
    if isinstance(last, ToolMessage) and last.name == "breaks" and worked < 3:
        return mt.call("breaks", text=random.choice(lines))  # until it escalates
    tool = random.choice((*QUOTES, "", "", ""))
    if not (lines and tool) or worked >= 2:
        return None
    given = {"title" if tool == "task_create" else "text": random.choice(lines)[:200]}
    size = {"size": random.choice(LARGE[tool])} if tool in LARGE else {}
    return mt.slow(mt.call(tool, **given, **size), seconds=random.choice((0.0, 0.3)))


def add_tools(agent: motet.Agent[None, str]) -> None:
    """Tools that are given what a member was told."""

    @agent.tool(approval=True)
    async def pins(text: str) -> str:
        await trio.sleep(0.1)
        return f"{text}\n"

    @agent.tool(effects="read")
    async def recites(text: str, size: int) -> str:
        await trio.sleep(0.1)
        return text + "\nso on" * (size // 6)

    @agent.tool(effects="read")
    async def breaks(text: str) -> str:
        await trio.sleep(0.3)
        raise RuntimeError(text)

    @agent.tool(effects="read")
    async def bursts(text: str, size: int) -> str:
        await trio.sleep(0.1)
        raise RuntimeError(f"it broke\n{text}\n{'.' * size}")


async def begin(host: Host, world: World) -> None:
    random = world.random
    plan = RoomPlan(
        members=FIRST,
        speakers=("mentions",),
        concurrency=random.choice([1, 3]),
        history=random.choice([2, 50]),
        mode=random.choice([one for one in ROOM_MODES if one != "reject"]),
        max_turns=5,
    )
    world.room = (await host.rooms.create("den", plan, principal=OWNER)).name


async def post(host: Host, world: World, called: str | None = None) -> None:
    text = world.text() if called is None else f"{called} {world.said()}"
    said = await host.rooms.post(world.room, text, principal=OWNER)
    world.says(said.seq, text)


async def change(host: Host, world: World, kind: str, number: int = 0) -> None:
    numbers = [number for number, text in world.texts.items() if text]
    if not numbers:
        return
    number, after = number or world.random.choice(numbers), ""
    if kind == "edit":
        after = world.text()
        await host.rooms.edit_message(world.room, number, after, principal=OWNER)
    else:
        await host.rooms.delete_message(world.room, number, principal=OWNER)
    world.gone |= dict.fromkeys(WORD.findall(world.texts[number]), len(world.asked))
    world.says(number, after)


async def compact(host: Host, world: World) -> None:
    sessions = [one.session for one in await host.sessions() if "room:group:" in one.session]
    with suppress(MotetError):  # a turn is under way there, or it is too short
        await host.compact(world.random.choice(sessions or [world.room]))


async def add(host: Host, world: World) -> None:
    """A newcomer comes, once."""
    if world.came is None:
        (last,) = await host.rooms.history(world.room, limit=1) or (None,)
        room = await host.rooms.parts.store.ask(FindRoom(world.room, 0))
        heard = room.state.heard if room else 0
        await host.rooms.change(world.room, RoomChange(members=MEMBERS), principal=OWNER)
        hides = (world.reads or DEFAULT) != "all"
        world.came = (last.seq, heard) if last and hides else (0, 0)


async def terms(host: Host, world: World) -> None:
    """Before somebody has come: what one has read by other terms is read."""
    if world.came is None:
        world.reads = world.random.choice(NEWCOMERS)
        act = SetTerms(room=world.room, newcomers=world.reads)
        await host.rooms.manage(act, principal=OWNER)


async def stop(host: Host, world: World) -> None:
    await host.stop(room=world.room)


async def answer(host: Host, world: World) -> None:
    pending = await host.approvals(state="pending")
    if pending:
        decision: ApprovalDecision = "allow-once" if world.random.randrange(2) else "deny"
        with suppress(MotetError):  # its time is over, or its message was changed
            await host.approve(world.random.choice(pending).id, decision)


async def reload(host: Host, world: World) -> None:
    """An agent of the rooms below goes, or is here again."""
    world.away = not world.away
    await host.reload(attrs.evolve(world.config, agents={}) if world.away else world.config)


DOES: Final = {
    "post": post, "compact": compact, "add": add, "terms": terms, "reload": reload, "answer": answer
}  # fmt: skip


def talk(world: World, host: mt.SimulatedHost, length: int) -> None:
    random = world.random
    acts = (*ACTS, "answer", "answer", "answer") if world.quotes else ACTS
    host.call(begin, world)
    for _ in range(length):
        match random.choice(acts):
            case "edit" | "delete" as kind:
                host.call(change, world, kind)
            case "crash":
                host.steps(random.randrange(90))
                host.crash()
            case "restart":
                host.restart(0.05)
            case "stop":
                host.begin(stop, world)
            case "compact":
                host.begin(compact, world)
            case act:
                host.call(DOES[act], world)
        match random.randrange(3):
            case 0:
                host.steps(random.randrange(1, 150))
            case 1:
                host.advance(random.choice((0.01, 0.2, 0.9, 3)))
            case _:
                pass


def rest(host: mt.SimulatedHost) -> None:
    for _ in range(200):  # approvals that nobody answers expire after a minute each
        host.advance(2)
        if host.call(_idle):
            break
    host.settle()
    host.advance(2)  # traces are stored within a second
    host.settle()


async def _idle(host: Host) -> bool:
    runs = await host.runs()
    over = all(one.status not in ("running", "queued", "waiting") for one in runs)
    return over and all(one.idle for one in await host.rooms.list(principal=OWNER))


def rows_of(host: mt.SimulatedHost) -> dict[str, str]:
    """All rows of all tables, as text."""
    reader = apsw.Connection("/motet.db", vfs=host.disk.vfs)

    def run(sql: str) -> list[Any]:
        return list(reader.execute(sql))  # pyright: ignore[reportUnknownMemberType]

    names = "SELECT name FROM sqlite_schema WHERE type = 'table' AND sql NOT LIKE '%VIRTUAL%'"
    try:
        rows = {name: repr(run(f'SELECT * FROM "{name}"')) for (name,) in run(names)}
        packed = run("SELECT packing, data, held, size, sha256 FROM results")
        return {**rows, "results": repr([unpack(Packed(*row)) for row in packed])}
    finally:
        reader.close()


def broken(world: World, host: mt.SimulatedHost) -> list[str]:
    found: list[str] = []
    rows = rows_of(host)
    for word, since in world.gone.items():
        found += [f"{word} is in the table {name}" for name, text in rows.items() if word in text]
        late = [at for at, (_, words) in enumerate(world.asked) if at >= since and word in words]
        found += [f"{word} is in request {at}, gone before {since}" for at in late[:1]]
    for number, text in world.texts.items():
        if any(word not in rows["room_messages"] for word in WORD.findall(text)):
            found.append(f"message {number} is lost")
    for name, words in world.asked:
        if name == "cy" and world.came is not None:
            _, heard = world.came
            read = {word for word in words if world.number[word] not in world.calling}
            early = {word for word in read if world.number[word] <= heard}
            found += [f"cy, who came at {world.came}, reads {early}"] if early else []
    if not host.call(_idle):
        found.append("the room is not at rest")
    return found


def nothing(*_: object) -> tuple[()]:
    return ()


def problems(
    seed: object, length: int = 14, *, quotes: bool = False, config: motet.HostConfig = CONFIG
) -> list[str]:
    world = World(seed, quotes=quotes, config=config)
    number = sum(map(ord, str(seed)))
    # The demo model quotes what it has no rule for; what an agent quotes, it says itself.
    quotes_nothing = patch.object(demo, "excerpt", nothing)
    with quotes_nothing, mt.simulated_host(number, agents=world.agents(), config=config) as host:
        talk(world, host, length)
        rest(host)
        return broken(world, host)


# The last four: a call that failed after the change, a summary that was begun before it, a turn of
# a room below whose event a kill has left and not its session, and one that was stopped in a call.
@pytest.mark.parametrize(
    ("seed", "length"),
    [*((seed, 14) for seed in range(4)), (2032, 20), ("defect 18", 16), ("2/2", 20), ("n230", 20)],
)
def test_a_changed_text_leaves_no_copy(seed: object, length: int) -> None:
    assert not problems(seed, length)


# The last one: the row of an escalation is read by the next turn, while its session is compacted.
@pytest.mark.parametrize(("seed", "length"), [("quotes 0", 14), ("quotes 1", 14), ("sweep 9", 20)])
def test_a_changed_text_leaves_no_copy_in_what_tools_were_told(seed: str, length: int) -> None:
    assert not problems(seed, length, quotes=True)


def test_a_changed_text_leaves_no_copy_in_a_request_that_waits_for_a_place_at_its_model() -> None:
    """With a planted defect, which this talk finds."""
    with patch.object(ModelAccess, "correct", nothing):
        assert problems("crowd 7", 20, config=CROWDED)
    assert not problems("crowd 7", 20, config=CROWDED)


@pytest.mark.sweep
@pytest.mark.parametrize("part", range(8))
@pytest.mark.parametrize("quotes", [False, True])
@pytest.mark.parametrize("config", [CONFIG, CROWDED])
def test_a_changed_text_leaves_no_copy_in_many_talks(
    part: int, quotes: bool, config: motet.HostConfig
) -> None:
    for seed in range(100):
        assert not problems(f"{part}/{seed}", 20, quotes=quotes, config=config), seed


def test_a_message_far_back_leaves_no_copy_either() -> None:
    """It is in the memory of no room, and ``room_history`` reads it page by page."""
    world = World("far back")
    with mt.simulated_host(1, agents=world.agents(), config=CONFIG) as host:
        host.call(begin, world)
        for _ in range(3):
            host.call(post, world, "@all")
            host.advance(3)
        for _ in range(210):
            host.call(post, world, "")
        host.call(post, world, "@all")
        host.advance(0.05)
        first, second, *_ = world.texts
        host.call(change, world, "edit", first)
        host.call(change, world, "delete", second)
        host.crash()
        rest(host)
        assert broken(world, host) == []


# Planted defects. Each has the first talk that finds it, which finds nothing without it.


def as_given(_: object, text: str) -> str:
    return text


def untouched(room: str, _: object) -> Statement:
    return Statement("SELECT ?1", (room,))


DEFECTS: Final[list[tuple[object, str, object, object, int]]] = [
    (RunJournal, "correct", nothing, "defect 159", 16),  # rows on their way to disk keep the text
    (Tracer, "correct", nothing, "defect 0", 16),  # so do traces
    (store, "edits_of_copies", nothing, "defect 1", 16),  # and the rooms below
    (history, "fixed_text", as_given, "defect 31", 16),  # and what is given to one at this moment
    (store, "untold", untouched, "defect 11", 16),  # and their news
    (store, "note_joined", untouched, "n291", 20),  # and are none where a room is opened again
]


def keeps(_: object, _user: str, text: str) -> str:
    return text


def unfixed(_: object, end: FinishRun) -> FinishRun:
    return end


def nowhere(*_: object) -> Iterator[Statement]:
    return iter(())


def found(owner: object, name: str, defect: object) -> bool:
    """Whether one of so many talks in which members quote to tools finds it."""
    with patch.object(owner, name, defect):
        return any(problems(f"tools {seed}", 20, quotes=True) for seed in range(90))


QUOTING_DEFECTS: Final[list[tuple[object, str, object]]] = [
    (ChangedMessages, "keep", nothing),  # errors that are reported later
    (ChangedMessages, "corrected_text", keeps),  # results, tasks and errors that come later
    (runner, "fixed_answer", as_given),  # calls of a model that was asked before
    (finish, "fixed_end", unfixed),  # reasons of runs, and what people are told of them
    (room_changes, "_large_errors", nowhere),  # errors of megabytes
    (ToolStep, "correct", nothing),  # calls that wait
]


@pytest.mark.sweep
@pytest.mark.parametrize(("owner", "name", "defect"), QUOTING_DEFECTS)
def test_the_law_finds_a_defect_of_what_tools_were_told(
    owner: object, name: str, defect: object
) -> None:
    assert found(owner, name, defect)


@pytest.mark.sweep
@pytest.mark.parametrize(("owner", "name", "defect", "seed", "length"), DEFECTS)
def test_the_law_finds_a_defect_of(
    owner: object,
    name: str,
    defect: object,
    seed: object,
    length: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(owner, name, defect)
    # The first talk has found it once. What it comes to follows the steps of the runtime.
    talks = ((seed, length), *((f"{name} {number}", 20) for number in range(300)))
    finds = next((talk for talk in talks if problems(*talk)), None)
    monkeypatch.undo()
    assert finds, "the law holds with the defect, too"
    assert not problems(*finds)


# A change is two transactions: the second one removes what turns have stored in between. After a
# kill there the next host resumes a run whose rows have the old text, and does the second one.

OLD, NEW = "@ann <m1>", "never mind <m2>"
BEHIND: Final = (
    f"UPDATE steps SET body = replace(body, 'edited person ada] {NEW}', 'person ada] {OLD}')"
    " WHERE step = 0",
    "UPDATE rooms SET state = json_set(state, '$.scrubbing', json('[1]')) WHERE name LIKE 'den%'",
)
"""Makes of the state behind a change that before its second transaction."""


def resumed(steps: int) -> list[str]:
    """The tables with the old text, once a run has ended whose approval was answered, so many steps
    before the kill.
    """

    def answer(request: ModelRequest) -> mt.Step:
        has_asked = any(isinstance(row, ToolMessage) for row in request.messages)
        return mt.say("ok") if has_asked else mt.call("ask")

    ann = motet.Agent("ann", model=mt.FunctionModel(answer, name="ann's"))

    @ann.tool(approval=True)
    async def ask() -> str:
        return "asked"

    async def opened(host: Host) -> str:
        room = await host.rooms.create("den", RoomPlan(("ann",)), principal=OWNER)
        await host.rooms.post(room.name, OLD, principal=OWNER)
        return room.name

    async def approve(host: Host) -> None:
        for one in await host.approvals(state="pending"):
            await host.approve(one.id, "allow-once")

    with mt.simulated_host(steps, agents=[ann], config=CONFIG) as host:
        name = host.call(opened)
        host.advance(3)
        host.call(lambda found: found.rooms.edit_message(name, 1, NEW, principal=OWNER))
        host.advance(1)
        host.begin(approve)
        host.steps(steps)
        host.crash()
        disk = apsw.Connection("/motet.db", vfs=host.disk.vfs)
        for sql in BEHIND:
            disk.execute(sql)  # pyright: ignore[reportUnknownMemberType]
            assert disk.changes() == 1
        disk.close()
        host.settle()
        assert host.call(lambda found: found.runs(status="completed"))
        return [table for table, rows in rows_of(host).items() if "<m1>" in rows]


@pytest.mark.parametrize("steps", [20, 30, 40])
def test_a_run_that_resumes_while_a_change_is_completed_keeps_no_old_text(steps: int) -> None:
    assert resumed(steps) == []
