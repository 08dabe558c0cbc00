"""Inputs that come while a session works: each mode through a host, in chats and in groups."""

from __future__ import annotations

import shutil
from itertools import pairwise
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

import motet
from motet.actors.storage import session_runs
from motet.actors.transcript.grammar import violations
from motet.protocols import events
from motet.protocols.chat import ChatMessage, UserMessage
from motet.protocols.models import UsageReport
from motet.protocols.queueing import QueueConfig, QueueMode
from motet.protocols.sessions import Ack, KeyConflict, Principal, QueueFull, SessionBusy
from motet.protocols.storage import StorageError
from tests.scripted import Scripted, Step, call, say

GROUP = "agent:a:tcp:group:den"
DIRECT = "agent:a:tcp:direct:ann"
ALICE, BOB = Principal("alice"), Principal("bob")


class Desk:
    """An agent whose tool a test holds until it lets go."""

    def __init__(self, *steps: Step) -> None:
        self.model = Scripted(*steps)
        self.entered = trio.Event()
        self.leave = trio.Event()
        self.agent = motet.Agent("a", model=self.model, tools=[self.hold])

    async def hold(self) -> str:
        self.entered.set()
        await self.leave.wait()
        return "held"


def config(**queue: object) -> motet.HostConfig:
    return motet.HostConfig(queue=QueueConfig(**queue))  # type: ignore[arg-type]  # by name


def asked(rows: tuple[ChatMessage, ...]) -> list[str]:
    return [row.text for row in rows if isinstance(row, UserMessage)]


def uncounted(step: Step) -> Step:
    """Without what the provider counts, so that the estimate stands."""
    assert isinstance(step, list)
    return [event for event in step if not isinstance(event, UsageReport)]


async def rows(host: motet.Host, session: str = "s") -> tuple[ChatMessage, ...]:
    return tuple(item.row for item in await host.history(session))


async def ended(host: motet.Host) -> None:
    while {run.status for run in await host.runs(limit=100)} & {"queued", "running"}:
        await trio.sleep(0.01)


async def quiet(host: motet.Host) -> None:
    """Until every input has its end, and that is told, by a clock that jumps."""
    await ended(host)
    await trio.sleep(1)


async def statuses(host: motet.Host) -> dict[str, str]:
    return {run.text: run.status for run in await host.runs(limit=100)}


# The modes


async def test_what_is_collected_is_answered_as_one_and_each_is_told(
    autojump_clock: MockClock,
) -> None:
    desk = Desk(call(("hold", {})), say("first"), say("both"))
    told: list[str] = []
    async with motet.open_host(agents=[desk.agent]) as host:
        await host.submit("one", session="s")
        await desk.entered.wait()
        host.events.attach(
            "session:s",
            lambda r: (
                told.append(r.event.into) if isinstance(r.event, events.InputSteered) else None
            ),
        )
        second = await host.submit("two", session="s", mode="collect")
        third = await host.submit("three", session="s", mode="collect")
        assert [(ack.status, ack.position) for ack in (second, third)] == [
            ("collected", 1),
            ("collected", 2),
        ]
        desk.leave.set()
        await quiet(host)
        assert asked(await rows(host)) == ["one", "two\nthree"]
        assert told == [second.run_id]
        assert await statuses(host) == {
            "one": "completed",
            "two\nthree": "completed",
            "three": "steered",
        }


async def test_a_text_of_a_chat_steers_by_default(autojump_clock: MockClock) -> None:
    desk = Desk(call(("hold", {})), say("ok"))
    async with motet.open_host(agents=[desk.agent], config=config(debounce=0.0)) as host:
        await host.submit("one", session=DIRECT)
        await desk.entered.wait()
        assert (await host.submit("two", session=DIRECT)).status == "steered"
        desk.leave.set()
        await quiet(host)
        assert asked(await rows(host, DIRECT)) == ["one", "two"]


async def test_an_interruption_ends_the_run_and_what_waits_then_is_answered(
    autojump_clock: MockClock,
) -> None:
    desk = Desk(call(("hold", {})), say("new"))
    async with motet.open_host(agents=[desk.agent]) as host:
        await host.submit("one", session="s")
        await desk.entered.wait()
        old = await host.submit("two", session="s", mode="followup")
        assert (await host.submit("three", session="s", mode="interrupt")).status == "queued"
        await quiet(host)
        assert await statuses(host) == {"one": "cancelled", "two": "dropped", "three": "completed"}
        details = {run.run_id: run.detail for run in await host.runs()}
        assert details[old.run_id] == "a newer input has taken its place"
        assert violations(await rows(host)) == ()


async def test_a_session_that_refuses_stores_nothing_and_takes_inputs_again(
    autojump_clock: MockClock,
) -> None:
    desk = Desk(call(("hold", {})), say("one"), say("two"))
    async with motet.open_host(agents=[desk.agent]) as host:
        await host.submit("one", session="s", mode="reject")
        await desk.entered.wait()
        with pytest.raises(SessionBusy, match="try again"):
            await host.submit("two", session="s", mode="reject")
        desk.leave.set()
        await quiet(host)
        await host.submit("two", session="s", mode="reject")
        await quiet(host)
        assert asked(await rows(host)) == ["one", "two"]


async def test_what_belongs_to_another_is_not_known_to_be_at_work(
    autojump_clock: MockClock,
) -> None:
    desk = Desk(call(("hold", {})), say("ok"))
    async with motet.open_host(agents=[desk.agent], config=config(capacity=1)) as host:
        await host.submit("one", session="s", principal=ALICE)
        await desk.entered.wait()
        await host.submit("two", session="s", principal=ALICE)
        for mode in motet_modes():
            with pytest.raises(motet.NotFound, match="no session 's'"):
                await host.submit("x", session="s", agent="a", mode=mode, principal=BOB)
        assert host.status().running == 1
        desk.leave.set()


def motet_modes() -> tuple[QueueMode, ...]:
    return ("steer", "followup", "collect", "interrupt", "reject")


# A full queue


@pytest.mark.parametrize(
    ("overflow", "dropped", "status"),
    [("drop_oldest", "two", "queued"), ("drop_newest", "four", "dropped")],
)
async def test_a_full_queue_drops_and_says_so(
    overflow: str, dropped: str, status: str, autojump_clock: MockClock
) -> None:
    desk = Desk(call(("hold", {})), *[say("ok")] * 4)
    told: list[str] = []
    full = config(capacity=2, overflow=overflow)
    async with motet.open_host(agents=[desk.agent], config=full) as host:
        host.events.attach(
            "session:s",
            lambda r: (
                told.append(r.event.reason) if isinstance(r.event, events.InputDropped) else None
            ),
        )
        await host.submit("one", session="s")
        await desk.entered.wait()
        acks = [await host.submit(text, session="s") for text in ("two", "three", "four")]
        assert acks[-1].status == status
        desk.leave.set()
        await quiet(host)
        found = await statuses(host)
        assert [text for text, was in found.items() if was == "dropped"] == [dropped]
        assert told == ["the queue was full: 2 inputs wait already"]


async def test_a_full_queue_refuses_by_default(autojump_clock: MockClock) -> None:
    desk = Desk(call(("hold", {})), *[say("ok")] * 2)
    async with motet.open_host(agents=[desk.agent], config=config(capacity=1)) as host:
        await host.submit("one", session="s")
        await desk.entered.wait()
        await host.submit("two", session="s")
        with pytest.raises(QueueFull, match="1 inputs waiting"):
            await host.submit("three", session="s")
        desk.leave.set()


@pytest.mark.parametrize("mode", [None, "reject"])
async def test_a_resend_of_an_accepted_input_is_told_so_where_another_is_refused(
    autojump_clock: MockClock, mode: QueueMode | None
) -> None:
    desk = Desk(call(("hold", {})), *[say("ok")] * 2)
    async with motet.open_host(agents=[desk.agent], config=config(capacity=1)) as host:

        async def send(key: str, text: str) -> Ack:
            return await host.submit(text, session="s", key=key, mode=mode)

        first = [await send("1", "one")]
        await desk.entered.wait()
        if mode is None:
            first.append(await send("2", "two"))
        with pytest.raises((QueueFull, SessionBusy)):
            await send("3", "three")
        for number, ack in enumerate(first):
            again = await send(str(number + 1), ("one", "two")[number])
            assert (again.run_id, again.status) == (ack.run_id, "duplicate")
        with pytest.raises(KeyConflict):
            await send("1", "another")
        desk.leave.set()
        assert (await host.run(desk.agent, "one", session="s", key="1")).text == "ok"
        assert asked(await rows(host)) == ["one", "two"][: len(first)]


# The mode of a session


async def test_a_session_keeps_its_mode_over_a_restart(tmp_path: Path) -> None:
    agent = motet.Agent("a", model=Scripted(say("hi")))
    async with motet.open_host(tmp_path / "state", agents=[agent]) as host:
        await host.run(agent, "hello", session="s", principal=ALICE)
        assert host.queue_mode("s") == "steer"
        await host.set_queue("s", "collect", principal=ALICE)
        with pytest.raises(motet.NotFound):
            await host.set_queue("s", "reject", principal=BOB)
        with pytest.raises(motet.UnknownName, match="unknown mode 'later'"):
            await host.set_queue("s", "later")  # type: ignore[arg-type]  # from somewhere
    async with motet.open_host(tmp_path / "state", agents=[agent]) as host:
        assert host.queue_mode("s") == "collect"
        await host.set_queue("s", None, principal=ALICE)
        assert host.queue_mode("s") == "steer"


def test_a_group_collects_by_default() -> None:
    async def ask() -> tuple[str, str]:
        async with motet.open_host() as host:
            return host.queue_mode(GROUP), host.queue_mode("anything")

    assert trio.run(ask) == ("collect", "steer")


# Holding


async def test_what_one_sender_says_in_quick_succession_is_answered_as_one(
    autojump_clock: MockClock,
) -> None:
    model = Scripted(say("ok"))
    agent = motet.Agent("a", model=model)
    async with motet.open_host(agents=[agent]) as host:
        first = await host.submit("one", session=DIRECT)
        await trio.sleep(0.9)
        second = await host.submit("two", session=DIRECT)
        assert (first.status, second.status) == ("queued", "collected")
        await trio.sleep(0.9)
        assert not model.requests
        await trio.sleep(0.2)
        await quiet(host)
        assert asked(await rows(host, DIRECT)) == ["one\ntwo"]


async def test_a_stop_empties_what_is_held(autojump_clock: MockClock) -> None:
    agent = motet.Agent("a", model=Scripted())
    async with motet.open_host(agents=[agent]) as host:
        held = await host.submit("one", session=DIRECT)
        await trio.sleep(0.3)
        report = await host.stop(everything=True)
        assert report.dropped_inputs == [held.run_id]
        await trio.sleep(5)
        assert await statuses(host) == {"one": "dropped"}


async def test_what_is_held_is_on_disk(tmp_path: Path) -> None:
    agent = motet.Agent("a", model=Scripted(say("ok")))
    async with motet.open_host(
        tmp_path / "state", agents=[agent], config=config(debounce=60.0)
    ) as host:
        await host.submit("one", session=DIRECT)
        (run,) = await host.runs()
        assert (run.status, run.text) == ("queued", "one")


# Groups


async def test_people_of_a_group_are_answered_at_once_and_each_in_order(
    autojump_clock: MockClock,
) -> None:
    desk = Desk(*[call(("hold", {}))] * 3, *[say("ok")] * 4)
    async with motet.open_host(agents=[desk.agent], config=config(debounce=0.0)) as host:
        for name in ("ann", "bob", "cid", "dan"):
            await host.submit("hi", session=GROUP, sender=name)
        await host.submit("more", session=GROUP, sender="ann")
        await trio.testing.wait_all_tasks_blocked()
        assert host.status().running == 3
        assert host.status().queued == 2
        desk.leave.set()
        await quiet(host)
        found = await rows(host, GROUP)
        assert violations(found) == ()
        assert sorted(asked(found)) == [
            "[ann] hi",
            "[ann] more",
            "[bob] hi",
            "[cid] hi",
            "[dan] hi",
        ]
        runs = [item.run_id for item in await host.history(GROUP)]
        assert len([1 for a, b in pairwise(runs) if a != b]) == len(set(runs)) - 1


async def test_a_run_sees_what_another_has_answered_meanwhile(autojump_clock: MockClock) -> None:
    desk = Desk(call(("hold", {})), say("for bob"), say("for ann"))
    async with motet.open_host(agents=[desk.agent], config=config(debounce=0.0)) as host:
        await host.submit("long", session=GROUP, sender="ann")
        await desk.entered.wait()
        await host.submit("short", session=GROUP, sender="bob")
        while host.status().running > 1:
            await trio.sleep(0.01)
        desk.leave.set()
        await quiet(host)
    last = [message.text for message in desk.model.requests[-1].messages]
    assert last == ["[bob] short", "for bob", "[ann] long", "", "held"]


async def test_a_group_that_fills_the_window_is_answered_one_by_one(
    autojump_clock: MockClock,
) -> None:
    steps = say("a lot"), call(("hold", {})), say("ok"), say("both")
    desk = Desk(*map(uncounted, steps))
    agent = motet.Agent("a", model=desk.model, tools=[desk.hold], window=10_000)
    async with motet.open_host(agents=[agent], config=config(debounce=0.0)) as host:
        await host.submit("word " * 5_200, session=GROUP, sender="ann")
        await quiet(host)
        await host.submit("one", session=GROUP, sender="ann")
        await desk.entered.wait()
        for name in ("bob", "cid"):
            assert (await host.submit("hi", session=GROUP, sender=name)).status == "collected"
        assert host.status().running == 1
        desk.leave.set()
        await quiet(host)
        assert asked(await rows(host, GROUP))[-1] == "[bob] hi\n[cid] hi"


async def test_the_name_of_a_sender_is_one_line_and_no_bracket() -> None:
    async with motet.open_host(agents=[motet.Agent("a", model=Scripted())]) as host:
        for name in ("a]b", "a\nb", "x" * 65):
            with pytest.raises(motet.InputValidation, match="not a valid sender"):
                await host.submit("hi", session=GROUP, sender=name)


# Crashes


async def test_what_waits_or_is_held_is_answered_after_a_crash_once(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    desk = Desk(call(("hold", {})))
    async with motet.open_host(first, agents=[desk.agent], config=config(debounce=60.0)) as host:
        await host.submit("one", session="s")
        await desk.entered.wait()
        for text in ("two", "three"):
            await host.submit(text, session="s", mode="collect")
        await host.submit("held", session=DIRECT)
        shutil.copytree(first, second)  # as a kill would leave it
        await host.stop(everything=True)
    after = motet.Agent("a", model=Scripted(*[say("ok")] * 5), tools=[Desk().hold])
    async with motet.open_host(second, agents=[after]) as host:
        await ended(host)
        found = asked(await rows(host))
        assert asked(await rows(host, DIRECT)) == ["held"]
    assert found[0] == "one"
    assert "\n".join(found[1:]) == "two\nthree"


async def test_another_input_joins_a_run_that_a_crash_has_cut_off(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    desk = Desk(call(("hold", {})), say("first"), None)
    async with motet.open_host(first, agents=[desk.agent]) as host:
        await host.submit("one", session="s")
        await desk.entered.wait()
        for text in ("two", "three"):
            await host.submit(text, session="s", mode="collect")
        desk.leave.set()
        while len(desk.model.requests) < 3:  # the joined run asks its model
            await trio.testing.wait_all_tasks_blocked(0.01)
        await host.submit("four", session="s", mode="collect")
        shutil.copytree(first, second)  # as a kill would leave it
        await host.stop(everything=True)
    warned: list[str] = []
    after = motet.Agent("a", model=Scripted(say("ok")), tools=[Desk().hold])
    async with motet.open_host(second, agents=[after]) as host:
        host.events.attach(
            "session:s",
            lambda r: (
                warned.append(r.event.message) if isinstance(r.event, events.Warned) else None
            ),
        )
        await ended(host)
        assert asked(await rows(host)) == ["one", "two\nthree\nfour"]
        assert set((await statuses(host)).items()) >= {
            ("two\nthree\nfour", "completed"),
            ("four", "steered"),
        }
    assert not warned


async def test_what_cannot_be_put_on_record_as_joined_is_stored_with_the_runs_end(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = Desk(call(("hold", {})), say("ok"), say("both"))

    def fails(*_: object) -> tuple[()]:
        raise StorageError("the disk is full")

    async with motet.open_host(agents=[desk.agent]) as host:
        await host.submit("one", session="s")
        await desk.entered.wait()
        for text in ("two", "three"):
            await host.submit(text, session="s", mode="collect")
        monkeypatch.setattr(session_runs, "join_statements", fails)
        desk.leave.set()
        await quiet(host)
        assert asked(await rows(host)) == ["one", "two\nthree"]
        assert await statuses(host) == {"one": "completed", "two": "completed", "three": "steered"}


async def test_who_stops_a_run_drops_nothing_of_what_others_had_enter_it(
    autojump_clock: MockClock,
) -> None:
    desk = Desk(call(("hold", {})), say("for bob"))
    rules = config(debounce=0.0, concurrent=1, group="steer")
    async with motet.open_host(agents=[desk.agent], config=rules) as host:
        first = await host.submit("long", session=GROUP, sender="ann")
        await desk.entered.wait()
        for name in ("ann", "bob"):
            assert (await host.submit(f"{name}'s", session=GROUP, sender=name)).status == "steered"
        await host.stop(run_id=first.run_id)
        await quiet(host)
        assert await statuses(host) == {
            "[ann] long": "cancelled",
            "[ann] ann's": "dropped",
            "[bob] bob's": "completed",
        }


async def test_a_running_host_takes_other_rules(tmp_path: Path, autojump_clock: MockClock) -> None:
    file = tmp_path / "motet.toml"
    file.write_text("[queue]\ncapacity = 1\n")
    desk = Desk(call(("hold", {})), *[say("ok")] * 3)
    async with motet.open_host(config=file, agents=[desk.agent]) as host:
        await host.submit("one", session="s")
        await desk.entered.wait()
        await host.submit("two", session="s")
        with pytest.raises(QueueFull):
            await host.submit("three", session="s")
        file.write_text("[queue]\ncapacity = 2\n")
        await host.reload()
        await host.submit("three", session="s")
        desk.leave.set()
        await quiet(host)
        assert asked(await rows(host)) == ["one", "two", "three"]


async def test_what_one_run_cannot_store_the_one_beside_it_sees_and_stores_first(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = Desk(call(("hold", {})), say("for bob"), say("for ann"))
    whole = session_runs.finish_statements

    def fails(*_: object) -> tuple[()]:
        monkeypatch.setattr(session_runs, "finish_statements", whole)
        raise StorageError("the disk is full")

    async with motet.open_host(agents=[desk.agent], config=config(debounce=0.0)) as host:
        await host.submit("long", session=GROUP, sender="ann")
        await desk.entered.wait()
        monkeypatch.setattr(session_runs, "finish_statements", fails)
        await host.submit("short", session=GROUP, sender="bob")
        while host.status().running > 1:
            await trio.sleep(0.01)
        assert await rows(host, GROUP) == ()
        desk.leave.set()
        await quiet(host)
        assert asked(await rows(host, GROUP)) == ["[bob] short", "[ann] long"]
    last = [message.text for message in desk.model.requests[-1].messages]
    assert last[:2] == ["[bob] short", "for bob"]


async def test_several_runs_of_a_group_and_what_waits_outlive_a_crash(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    desk = Desk(*[call(("hold", {}))] * 2)
    rules = config(debounce=0.0, concurrent=2)
    async with motet.open_host(first, agents=[desk.agent], config=rules) as host:
        for name in ("ann", "bob", "cid"):
            await host.submit("hi", session=GROUP, sender=name)
        while len(desk.model.requests) < 2:
            await trio.sleep(0.01)
        await host.submit("more", session=GROUP, sender="ann")
        shutil.copytree(first, second)  # as a kill would leave it
        await host.stop(everything=True)
    again = Desk(*[say("ok")] * 4)
    async with motet.open_host(second, agents=[again.agent], config=rules) as host:
        await ended(host)
        found, runs = await host.history(GROUP), [run.status for run in await host.runs()]
    assert sorted(asked(tuple(item.row for item in found))) == [
        "[ann] hi", "[ann] more", "[bob] hi", "[cid] hi",
    ]  # fmt: skip
    assert set(runs) <= {"completed", "interrupted"}
    assert violations([item.row for item in found]) == ()
    changes = sum(one.run_id != other.run_id for one, other in pairwise(found))
    assert changes == len({item.run_id for item in found}) - 1
