"""Rooms below a run: one budget, one stop, the same people, and nothing doubled by a kill."""

from __future__ import annotations

import sqlite3
from collections import Counter
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

import motet
from motet import testing as mt
from motet.actors.host import Host
from motet.actors.rooms.history import RoomHistory
from motet.protocols.chat import ToolMessage
from motet.protocols.events import EventRecord
from motet.protocols.models import ModelRequest
from motet.protocols.room_people import without_details
from motet.protocols.rooms import ListRooms, ReadRoom
from tests.actors.rooms.talk import agent, model_of, on_disk
from tests.actors.rooms.test_messages import SECRET

DEEP = motet.Limits(depth=5)


def nested(depth: int, leaf: list[motet.Agent[None]], name: str = "team") -> motet.Room:
    """A room whose only member is a room, and so on; the innermost has the leaves."""
    members: list[Any] = list(leaf)
    for level in range(depth - 1):
        inner = motet.Room(f"{name}{level}", members=members, max_turns=len(members))
        members = [motet.room_agent(inner)]
    return motet.Room(name, members=members, max_turns=len(members))


def asks(room: motet.Room, name: str = "lead", **options: Any) -> motet.Agent[None]:
    """An agent that has the room answer, and says what it has answered."""
    model = mt.FunctionModel(_lead, name="lead")
    return motet.Agent(name, model=model, tools=[motet.room_tool(room, name="ask")], **options)


def _lead(request: ModelRequest) -> mt.Step:
    last = request.messages[-1]
    return mt.say(last.text) if isinstance(last, ToolMessage) else mt.call("ask", task="go")


async def test_a_tool_has_a_room_answer_below_its_run() -> None:
    room = motet.Room("pair", members=[agent("ann", "one"), agent("ben", "two")], max_turns=2)
    async with motet.open_host() as host:
        result = await host.run(asks(room), "hello")
        assert result.output == "two\n[The group has ended early: max_turns]"
        runs = await host.runs()
        below = [run for run in runs if run.agent in ("ann", "ben")]
        spent = sum(run.usage.total_tokens for run in below)
        assert (len(below), spent) == (2, 30)
        assert result.usage.total_tokens >= spent, "the outer run has paid for it"
        assert host.status().running == 0


async def test_the_same_call_of_another_run_has_another_room() -> None:
    ann = agent("ann", "one")
    lead = asks(motet.Room("solo", members=[ann], max_turns=1))
    config = motet.HostConfig(gateway=motet.GatewayConfig(rooms_per_user=1))
    async with motet.open_host(config=config) as host:
        for _ in range(2):
            await host.run(lead, "hello", session="s", principal=_person("alice"))
        assert model_of(ann).told == ["[#1 person lead] go"] * 2
        assert await host.rooms.list() == (), "a room of a call is not listed"
        await host.rooms.create("own", motet.RoomPlan(("ann",)), principal=_person("alice"))


async def test_the_budget_of_the_run_ends_the_room() -> None:
    ann, ben = agent("ann", "one"), agent("ben", "two")
    room = motet.Room("pair", members=[ann, ben], max_turns=500)
    lead = asks(room, limits=motet.Limits(tokens=2_000))
    async with motet.open_host() as host:
        result = await host.run(lead, "hello", check=False)
        assert result.limit == "tokens" or "ended early: tokens" in result.text
        turns = len(model_of(ann).requests) + len(model_of(ben).requests)
        assert 1 <= turns < 140
        assert result.usage.total_tokens < 2_100, "at most a request over what was expected"


async def test_rooms_below_each_other_are_as_deep_as_the_limit_allows() -> None:
    """A member of a room below a run is one level below it, however many rooms are in between."""
    for depth in (1, 2, 3):
        ann = agent("ann", "found")
        outer = motet.Room("outer", members=[motet.room_agent(nested(depth, [ann]))], max_turns=1)
        async with motet.open_host() as host:
            opened = await host.open_room(outer)
            result = await opened.run("go", user="alice")
            assert "found" in result.text
    async with motet.open_host() as host:
        flat = asks(nested(2, [agent("ann", "found")]), limits=motet.Limits(depth=1))
        refused = await host.run(flat, "go")
        assert "found" not in refused.output


async def test_the_people_of_the_run_are_those_of_the_room() -> None:
    seen: list[tuple[str, ...]] = []
    doer = motet.Agent("doer", model=mt.ScriptedModel([mt.call("act"), mt.say("done")] * 4))

    @doer.tool(effects="write")
    async def act(ctx: motet.Context[None]) -> str:
        seen.append(tuple(who.user for who in ctx.asked_by))
        return "acted"

    rules = (motet.PolicyRule(tool="act", effect="deny", users=("mallory",)),)
    for user in ("alice", "mallory"):
        team = motet.room_agent(motet.Room("team", members=[doer], max_turns=1))
        async with motet.open_host(agents=[doer], config=motet.HostConfig(policy=rules)) as host:
            opened = await host.open_room(motet.Room("outer", members=[team], max_turns=1))
            await opened.run("go", user=user)
            await host.run(asks(nested(2, [doer]), limits=DEEP), "go", principal=_person(user))
    assert seen == [("alice",), ("alice",)], "mallory may not, through however many rooms"


@pytest.mark.parametrize("act", ["edit", "delete"])
@pytest.mark.parametrize("depth", [1, 2])
async def test_a_changed_message_leaves_no_copy_in_the_rooms_that_were_given_it(
    tmp_path: Path, depth: int, act: str
) -> None:
    ann = agent("ann", "fine")
    team = motet.room_agent(nested(depth, [ann]))
    async with motet.open_host(tmp_path) as host:
        outer = await host.open_room(motet.Room("outer", members=[team], max_turns=1))
        await outer.post("hello, @all", user="bob")
        await outer.wait()
        await outer.run(f"@all {SECRET}", user="alice")
        assert await host.traces(), "they are on disk"
        if act == "edit":
            await outer.edit(3, "@all something else", user="alice")
        else:
            await outer.delete(3, user="alice")
        await outer.wait()
    assert SECRET not in on_disk(tmp_path)
    assert "hello, @all" in on_disk(tmp_path), "what bob has said stays"


async def test_a_turn_of_an_inner_room_reads_the_change_in_its_next_request(tmp_path: Path) -> None:
    requests: list[ModelRequest] = []
    reached, gate, people = trio.Event(), trio.Event(), list[tuple[str, ...]]()

    def answer(request: ModelRequest) -> mt.Step:
        requests.append(request)
        return mt.call("look") if len(requests) == 1 else mt.say("done")

    ann = motet.Agent("ann", model=mt.FunctionModel(answer, name="ann"))

    @ann.tool(effects="write")
    async def look(ctx: motet.Context[None]) -> str:
        reached.set()
        await gate.wait()
        people.append(tuple(who.user for who in ctx.asked_by))
        return "seen"

    async with motet.open_host(tmp_path) as host:
        team = motet.room_agent(nested(2, [ann]))
        outer = await host.open_room(motet.Room("outer", members=[team], max_turns=1))
        await outer.post(f"@team {SECRET}", user="alice")
        await reached.wait()
        assert SECRET in repr(requests[0].messages)
        await outer.delete(1, user="alice")
        gate.set()
        await outer.wait()
        assert SECRET not in repr(requests[1].messages)
        assert "withdrawn person alice" in repr(requests[1].messages)
    assert people == [("alice",)], "the words stay hers"
    assert SECRET not in on_disk(tmp_path)


def _person(name: str) -> motet.Principal:
    return motet.Principal(name)


async def test_an_approval_inside_is_answered_by_the_user_of_the_run() -> None:
    doer = motet.Agent("doer", model=mt.ScriptedModel([mt.call("act"), mt.say("done")]))

    @doer.tool(effects="write", approval=True)
    async def act() -> str:
        return "acted"

    async with motet.open_host() as host, trio.open_nursery() as nursery:
        lead = asks(nested(2, [doer]), limits=DEEP)
        nursery.start_soon(partial(host.run, lead, "go", principal=_person("alice")))
        while not (waiting := await host.approvals(state="pending")):
            await trio.sleep(0.01)
        with pytest.raises(motet.NotFound):
            await host.approve(waiting[0].id, "allow-once", principal=_person("bob"))
        await host.approve(waiting[0].id, "allow-once", principal=_person("alice"))


Ending = st.sampled_from(["run", "session", "everything", "cancel", "limit"])


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 4), st.integers(1, 3), Ending, st.integers(0, 400))
def test_a_stop_of_the_run_leaves_nothing(
    depth: int, leaves: int, ending: str, moment: int
) -> None:
    """Law: whatever ends the run, and whenever, nothing below it works or speaks afterwards; and a
    stop waits for no time-out, since all that it stops ends at once."""
    clock = MockClock(autojump_threshold=0)
    trio.run(_stopped, depth, leaves, ending, moment, clock=clock)


async def _stopped(depth: int, leaves: int, ending: str, moment: int) -> None:
    members = [agent(f"a{number}", "yes") for number in range(leaves)]
    room = nested(depth, members)
    lead = asks(room, limits=motet.Limits(depth=5, wall=0.2 if ending == "limit" else None))
    models = [model_of(one) for one in members]
    with trio.fail_after(60):
        async with motet.open_host() as host, trio.open_nursery() as nursery:
            if ending == "limit":
                models[-1].gate = trio.Event()
            scope = trio.CancelScope()
            nursery.start_soon(_run, host, lead, scope)
            for _ in range(1 + moment):  # a stop before the run has begun is none of it
                await trio.lowlevel.checkpoint()
            began = trio.current_time()
            match ending:
                case "run":
                    live = [run for run in await host.runs() if run.agent == "lead"]
                    if live and live[0].status == "running":
                        with suppress(motet.NotFound):  # it has just ended
                            await host.stop(run_id=live[0].run_id)
                case "session":
                    await host.stop(session="s")
                case "everything":
                    await host.stop(everything=True)
                case "cancel":
                    scope.cancel()
                case _:
                    pass
            assert trio.current_time() == began
            while any(one.agent == "lead" and not _over(one.status) for one in await host.runs()):
                await trio.sleep(0.01)
            before = [len(model.requests) for model in models]
            assert host.status().running == 0
            for _ in range(60):
                await trio.lowlevel.checkpoint()
            assert [len(model.requests) for model in models] == before
            assert host.status().running == host.status().queued == 0
            parts = host._parts  # pyright: ignore[reportPrivateUsage]
            assert not parts.room_table.rooms, "no room of the call is open any more"


def _over(status: str) -> bool:
    return status not in ("running", "queued", "waiting")


async def _run(host: Host, lead: motet.Agent[None], scope: trio.CancelScope) -> None:
    with scope:
        await host.run(lead, "go", session="s", check=False)


@pytest.mark.parametrize("opened", ["by a call", "by the program"])
async def test_a_stop_waits_for_no_room_that_was_never_opened(
    opened: str, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    """What opens it ends while the room is read from the disk."""
    reads = trio.Event()

    async def hang(_: RoomHistory) -> None:
        reads.set()
        await trio.sleep_forever()

    monkeypatch.setattr(RoomHistory, "load", hang)
    room, scope = nested(1, [agent("ann", "yes")]), trio.CancelScope()

    async def open_it(host: Host) -> None:
        with scope:
            await host.open_room(room)

    async with motet.open_host() as host, trio.open_nursery() as nursery:
        if opened == "by a call":
            nursery.start_soon(_run, host, asks(room), scope)
        else:
            nursery.start_soon(open_it, host)
        await reads.wait()
        if opened == "by the program":
            scope.cancel()
            await trio.testing.wait_all_tasks_blocked()
        began = trio.current_time()
        report = await host.stop(everything=True)
        assert (report.still_running, trio.current_time()) == ([], began)
    del autojump_clock


async def test_a_stop_of_the_outer_room_leaves_nothing_and_it_can_go_on() -> None:
    ann = agent("ann", "yes")
    model_of(ann).gate = trio.Event()
    outer = motet.Room("outer", members=[motet.room_agent(nested(2, [ann]))], max_turns=1)
    async with motet.open_host() as host:
        opened = await host.open_room(outer)
        await opened.post("go", user="alice")
        while not model_of(ann).requests:
            await trio.lowlevel.checkpoint()
        report = await host.stop(room="outer")
        assert report.still_running == []
        assert host.status().running == host.status().queued == 0
        assert len(model_of(ann).requests) == 1
        model_of(ann).gate = None
        result = await opened.run("again", user="alice")
        assert "yes" in result.text


# Kills


def counted(name: str, acts: bool) -> motet.Agent[None]:
    """A member that says who it is, after an effect on the outside world if it ``acts``."""

    def answer(request: ModelRequest) -> mt.Step:
        called = isinstance(request.messages[-1], ToolMessage)
        if acts and not called:
            return mt.slow(mt.call("act"), seconds=0.2)
        return mt.slow(mt.say(f"{name} has spoken"), seconds=0.5)

    one = motet.Agent(name, model=mt.FunctionModel(answer, name=f"model of {name}"))

    @one.tool(effects="write")
    async def act() -> str:
        return "acted"

    return one


def lead_of(depth: int, acts: bool) -> motet.Agent[None]:
    leaves = [counted("ann", acts), counted("ben", acts=False)]
    return asks(nested(depth, leaves), limits=DEEP)


def delegate(depth: int, acts: bool, host: mt.SimulatedHost) -> None:
    host.start(lead_of(depth, acts), "go", session="s", key="k")
    host.advance(6)


async def rooms_of(host: Host) -> dict[str, list[tuple[str, str]]]:
    """What was said in the rooms that are on disk."""
    store = host._parts.stores.rooms  # pyright: ignore[reportPrivateUsage]
    names = [one.name for one in await store.ask(ListRooms())]
    found = {name: await store.ask(ReadRoom(name)) for name in names}
    return {name: [(one.author, one.text) for one in said] for name, said in found.items()}


def once(depth: int, acts: bool, host: mt.SimulatedHost) -> None:
    """After a kill the run ends, in the rooms that it has opened, and nobody has spoken twice."""
    lead = lead_of(depth, acts)
    host.start(lead, "go", session="s", key="k")  # again, if it was not acknowledged
    host.advance(20)
    host.settle()
    rooms = host.call(rooms_of)
    assert len(rooms) <= depth, f"a room was opened twice: {rooms}"
    for name, said in rooms.items():
        twice = {one: times for one, times in Counter(said).items() if times > 1}
        assert not twice, f"{name}: said twice: {twice}"
    runs = host.call(lambda one: one.runs(session="s"))
    assert [run.status for run in runs if run.status not in ("steered", "duplicate")] == [
        "completed"
    ], runs


def kill(fault: mt.HostFault, depth: int, acts: bool, every: int) -> mt.SweepReport:
    check = partial(once, depth, acts)
    return mt.sweep(partial(delegate, depth, acts), fault, every=every, check=check)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "depth", "acts", "every"),
    [("power", 1, True, 83), ("crash", 2, False, 317), ("power", 2, True, 157)],
)
def test_a_kill_at_some_moment_doubles_nothing(
    fault: mt.HostFault, depth: int, acts: bool, every: int
) -> None:
    """Law: the run ends once, in the same rooms, and no message is said twice in them."""
    kill(fault, depth, acts, every).check()


@pytest.mark.sweep
@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("acts", [False, True])
@pytest.mark.parametrize("fault", ["crash", "power"])
def test_a_kill_at_any_moment_doubles_nothing(fault: mt.HostFault, acts: bool, depth: int) -> None:
    kill(fault, depth, acts, 1).check()


async def test_a_stop_reaches_all_levels_in_one_step() -> None:
    ann = agent("ann", "yes")
    model_of(ann).gate = trio.Event()
    async with motet.open_host() as host, trio.open_nursery() as nursery:
        lead = asks(nested(3, [ann]), limits=DEEP)
        nursery.start_soon(_run, host, lead, trio.CancelScope())
        while not model_of(ann).requests:
            await trio.lowlevel.checkpoint()
        runs = host._parts.table.runs  # pyright: ignore[reportPrivateUsage]
        assert len(runs) == 4
        next(run for run in runs.values() if run.agent is lead).cancel("enough", by_user=True)
        assert all(run.stop_reason for run in runs.values())


def house(acts: bool, depth: int = 1) -> motet.Room:
    """A room with a room as its member, which may have one, too."""
    leaves = [counted("ann", acts), counted("ben", acts=False)]
    inner = motet.Room("team0" if depth > 1 else "team", members=leaves, max_turns=2)
    for level in range(1, depth):
        name = "team" if level == depth - 1 else f"team{level}"
        inner = motet.Room(name, members=[motet.room_agent(inner)], max_turns=3)
    team = motet.room_agent(inner)
    return motet.Room("house", members=[team], max_turns=3)  # a kill may cost one


# A kill at the first post is followed by an hour until the program posts again.
PATIENT = motet.HostConfig(recovery=motet.RecoveryConfig(resume_within=1e6))


def talk(acts: bool, depth: int, host: mt.SimulatedHost) -> None:
    host.post(house(acts, depth), "go", user="alice", key="k")
    host.advance(6)


def ended_once(acts: bool, depth: int, host: mt.SimulatedHost) -> None:
    """After a kill the outer round ends with the answer of its team; nobody has spoken, and nothing
    was done, twice.
    """
    host.post(house(acts, depth), "go", user="alice", key="k")
    host.advance(20)
    host.settle()
    for name, said in host.call(rooms_of).items():
        twice = {one: times for one, times in Counter(said).items() if times > 1}
        assert not twice, f"{name}: said twice: {twice}"
    spoken = [said for name, said in host.call(rooms_of).items() if name != "house"]
    acted = [said for said in spoken if ("ann", "ann has spoken") in said]
    assert len(acted) <= 1, f"the team has worked twice: {spoken}"
    assert len(spoken) == depth, f"its room was opened twice: {spoken}"
    answers = [text for one, text in host.call(rooms_of)["house"] if one == "team"]
    assert len(answers) == 1, f"the call of the team was answered so: {answers}"
    assert "has spoken" in answers[0], "a kill may cost a turn of the inner room, and not all"
    opened = host.room(house(acts, depth))
    assert opened.waits, "the outer round is over"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "acts", "depth", "every"),
    [("power", True, 1, 67), ("crash", True, 1, 461), ("power", False, 2, 181)],
)
def test_a_kill_in_a_room_of_a_room_is_gone_on_from_where_it_stood(
    fault: mt.HostFault, acts: bool, depth: int, every: int
) -> None:
    """Law: a call of a member that is a room is answered once, by the room that it has opened."""
    check = partial(ended_once, acts, depth)
    mt.sweep(partial(talk, acts, depth), fault, every=every, check=check, config=PATIENT).check()


@pytest.mark.sweep
@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("acts", [False, True])
@pytest.mark.parametrize("fault", ["crash", "power"])
def test_a_kill_at_any_moment_in_rooms_of_rooms(
    fault: mt.HostFault, acts: bool, depth: int
) -> None:
    check = partial(ended_once, acts, depth)
    mt.sweep(partial(talk, acts, depth), fault, every=1, check=check, config=PATIENT).check()


def gone(depth: int, ends: str, host: mt.SimulatedHost) -> None:
    """Soon after a kill the outer room is stopped or deleted: nothing goes on, no text is left."""
    host.post(house(True, depth), "go", user="alice", key="k")
    host.advance(0.3)

    async def end(one: Host) -> list[str]:
        if ends == "delete":
            await one.delete_room("house")
        else:
            await one.stop(room="house")
        return [run.agent for run in await one.runs() if not _over(run.status)]

    assert host.call(end) == [], "runs below it are still there"
    before = host.call(rooms_of)
    host.advance(20)
    host.settle()
    assert host.call(rooms_of) == before, "somebody has spoken afterwards"
    assert ends != "delete" or before == {}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "ends", "depth", "every"),
    [("power", "delete", 1, 113), ("power", "stop", 2, 223), ("crash", "delete", 2, 461)],
)
def test_after_a_kill_a_stop_of_the_outer_room_leaves_nothing(
    fault: mt.HostFault, ends: str, depth: int, every: int
) -> None:
    check = partial(gone, depth, ends)
    mt.sweep(partial(talk, True, depth), fault, every=every, check=check, config=PATIENT).check()


async def test_what_a_room_passes_on_costs_nothing() -> None:
    """Its agent has no model of its own: the price of a turn is that of the members' answers."""
    model = mt.FunctionModel(lambda _: "yes", name="model of ann")  # a free one
    ann: motet.Agent[None] = motet.Agent("ann", model=model)
    team = motet.room_agent(motet.Room("team", members=[ann], max_turns=1))
    async with motet.open_host() as host:
        opened = await host.open_room(motet.Room("outer", members=[team], max_turns=1))
        await opened.run("go", user="alice")
        assert [run.usage.cost for run in await host.runs()] == [0.0, 0.0], "known, and nothing"


async def test_the_outer_stream_shows_the_turns_of_the_inner_room() -> None:
    team = motet.room_agent(motet.Room("team", members=[agent("ann", "yes")], max_turns=1))
    async with motet.open_host() as host:
        opened = await host.open_room(motet.Room("outer", members=[team], max_turns=1))
        async with opened.subscribe(0) as events:
            await opened.run("go", user="alice")
            seen: list[motet.ChildStarted | motet.ChildEnded] = []
            async for event in events:
                if isinstance(event, motet.ChildStarted | motet.ChildEnded):
                    seen.append(event)
                if isinstance(event, motet.RoomIdle):
                    break
        (run,) = [run for run in await host.runs() if run.agent == "ann"]
    begun, ended = seen
    assert isinstance(begun, motet.ChildStarted)
    assert isinstance(ended, motet.ChildEnded)
    assert (begun.run, begun.agent, begun.session) == (run.run_id, "ann", run.session)
    assert "go" in begun.text
    assert (ended.run, ended.status, ended.usage.total_tokens) == (run.run_id, "completed", 15)
    guest = without_details(EventRecord("room:outer", begun, 0.0)).event
    assert isinstance(guest, motet.ChildStarted)
    assert guest.text == "", "guests see that it works, and not the arguments of the call"


# Deletion


def _words_left(state: Path, words: str) -> list[str]:
    """The tables of a state directory that have some text in any column."""
    with closing(sqlite3.connect(next(state.glob("*.db")))) as database:
        tables = [one for (one,) in database.execute(_TABLES)]
        rows = {one: database.execute(f'SELECT * FROM "{one}"').fetchall() for one in tables}
    return [one for one, found in rows.items() if any(words in str(cell) for cell in found)]


_TABLES = "SELECT name FROM sqlite_schema WHERE type = 'table' AND sql NOT LIKE '%VIRTUAL%'"


@pytest.mark.parametrize("depth", [1, 2, 3])
async def test_deleting_the_outer_room_leaves_no_row_of_the_inner_ones(
    depth: int, tmp_path: Path
) -> None:
    secret = "the quick brown fox"
    outer = motet.Room(
        "outer", members=[motet.room_agent(nested(depth, [agent("ann", secret)]))], max_turns=1
    )
    async with motet.open_host(tmp_path) as host:
        opened = await host.open_room(outer)
        result = await opened.run(f"say {secret}", user="alice")
        assert secret in result.text
        assert len(await rooms_of(host)) == 1 + depth
    assert "room_messages" in _words_left(tmp_path, secret)
    async with motet.open_host(tmp_path) as host:
        await host.open_room(outer)
        await host.delete_room("outer")
        assert await rooms_of(host) == {}
    assert _words_left(tmp_path, secret) == []


async def test_deleting_a_session_leaves_no_row_of_the_rooms_of_its_calls(tmp_path: Path) -> None:
    secret = "the quick brown fox"
    room = nested(2, [agent("ann", secret)])
    async with motet.open_host(tmp_path) as host:
        lead = asks(room, limits=DEEP)
        await host.run(lead, f"say {secret}", session="s")
        await host.run(lead, "go", session="other")
        kept = await rooms_of(host)
        assert len(kept) == 4
        await host.delete("s")
        left = await rooms_of(host)
        assert len(left) == 2, "those of the other session stay"
        await host.delete("other")
        assert await rooms_of(host) == {}
    assert _words_left(tmp_path, secret) == []
