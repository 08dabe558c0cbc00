"""Idle sessions are passivated: after a while, and sooner when they are many."""

from __future__ import annotations

import gc
from collections.abc import AsyncGenerator
from weakref import WeakSet

import pytest
import trio
from hypothesis import example, given, settings
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

import motet
from motet import testing as mt
from motet.actors.host import Host
from motet.actors.sessions import router
from motet.actors.sessions.session import Session
from motet.protocols.chat import UserMessage
from motet.protocols.sessions import Compact, SessionMessage
from motet.runtime import ActorDead, ActorRef
from tests.scripted import Scripted, say


async def through_actor(
    host: Host, session: str, agent: motet.Agent | str = "a"
) -> motet.RunResult[object]:
    """Answer an input in the session's actor: the caller does not give it its own task."""
    async with host.stream(agent, "hi", session=session) as run:
        await run.wait()
    return run.result


async def test_many_idle_sessions_do_not_all_stay_alive(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    monkeypatch.setattr(router, "MOST", 3)
    model = Scripted(*[say("yes")] * 9)
    agent = motet.Agent("a", model=model)
    async with motet.open_host(agents=[agent]) as host:
        for number in range(8):
            await host.run("a", "hi", session=f"s{number}")
        await trio.sleep(2 * router.CROWDED_SWEEP)
        assert host.status().live_sessions == 3
        await host.run("a", "again", session="s0")
        shown = [row.text for row in model.requests[-1].messages if isinstance(row, UserMessage)]
    assert shown == ["hi", "again"]


async def test_sessions_that_end_slowly_end_side_by_side(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    async def slowly(_: Session) -> None:
        await trio.sleep(5)

    monkeypatch.setattr(router, "MOST", 1)
    monkeypatch.setattr(Session, "on_stop", slowly)
    agent = motet.Agent("a", model=Scripted(*[say("yes")] * 5))
    async with motet.open_host(agents=[agent]) as host:
        for number in range(5):
            await through_actor(host, f"s{number}")
        await trio.sleep(5 + 2 * router.CROWDED_SWEEP)
        alive = [row.path for row in host.system.snapshot() if "/router/" in row.path]
    assert alive == ["/host/router/s4"]


async def test_a_busy_session_stays_however_many_there_are(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    monkeypatch.setattr(router, "MOST", 1)
    slow = motet.Agent("slow", model=Scripted(None, name="slow"))
    quick = motet.Agent("quick", model=Scripted(*[say("yes")] * 4, name="quick"))
    async with motet.open_host(agents=[slow, quick]) as host:
        ack = await host.submit("hi", session="long", agent="slow")
        for number in range(4):
            await host.run("quick", "hi", session=f"s{number}")
        await trio.sleep(2 * router.CROWDED_SWEEP)
        assert (await host.find_run(ack.run_id)).status == "running"
        assert host.status().live_sessions == 1
        await host.stop(run_id=ack.run_id)


def test_an_input_to_a_session_that_is_passivated_is_answered_after_that() -> None:
    def setup(host: Host) -> None:
        @host.on("session_end")
        async def slow(_: motet.SessionEnd) -> None:
            await trio.sleep(1)

    agent = motet.Agent("a", model=mt.ScriptedModel([mt.say("one"), mt.say("two")]))
    with mt.simulated_host(setup=setup) as host:
        host.run(agent, "hi", session="s")
        host.advance(router.IDLE_AFTER)
        host.loop.drive(lambda: not host.host.status().live_sessions)
        assert host.run(agent, "again", session="s").output == "two"


PLACES = ("s", "t", "room")


async def in_memory(host: Host) -> set[str]:
    """Names of actors, and keys of sessions that may have none."""
    table = host._parts.table  # pyright: ignore[reportPrivateUsage]
    return {row.path.rpartition("/")[2] for row in host.system.snapshot()} | table.queues.keys()


@settings(max_examples=12, deadline=None)
@example([("s", 200), ("room", 980)])
@given(st.lists(st.tuples(st.sampled_from(PLACES), st.integers(0, 1200)), min_size=1, max_size=6))
def test_none_leaves_too_early_or_late_whatever_is_used_meanwhile(
    uses: list[tuple[str, float]],
) -> None:
    """Law: a session or room is in memory for its idle time after its last use, and gone one look
    later, however uses of others fall in between.
    """
    agent = motet.Agent("a", model=mt.TestModel())
    room = motet.Room("room", members=[agent], activation="mention")
    last: dict[str, float] = {}
    with mt.simulated_host() as host:
        for place, pause in uses:
            if place == "room":
                host.post(room, "hi", user="ann")
            else:
                host.run(agent, "hi", session=place)
            last[place] = host.now()
            for _ in range(3):
                host.advance(pause / 3)
                there = host.call(in_memory)
                for name, used in last.items():
                    idle = host.now() - used
                    assert name in there or idle >= router.IDLE_AFTER, (name, idle)
                    late = router.IDLE_AFTER + router.SWEEP_EVERY
                    assert name not in there or idle <= late + 0.1, (name, idle)


def opened(host: Host, session: str = "s") -> ActorRef[SessionMessage] | None:
    return host._parts.session_actors.open(session)  # pyright: ignore[reportPrivateUsage]


@pytest.fixture
async def host() -> AsyncGenerator[Host]:
    async with motet.open_host() as host:
        yield host


async def test_opening_a_session_does_not_wait_for_it(host: Host) -> None:
    session = opened(host)
    assert session is not None
    assert opened(host) == session
    await wait_all_tasks_blocked()
    assert session.path == "/host/router/s"


async def test_a_session_that_is_ending_opens_when_it_has_ended(host: Host) -> None:
    session = opened(host)
    assert session is not None
    await wait_all_tasks_blocked()
    assert host.system.inject(session.path, "kill")
    assert not session.is_alive
    assert opened(host) is None
    await wait_all_tasks_blocked()
    again = opened(host)
    assert again is not None
    assert again.is_alive


async def test_without_a_router_no_session_opens(host: Host, autojump_clock: MockClock) -> None:
    assert host.system.inject("/host/router", "crash")
    assert opened(host) is None
    await trio.sleep(60)
    assert opened(host) is not None
    assert host.system.inject("/host/router", "kill")
    assert opened(host, "another") is None


async def test_the_caller_of_a_session_that_does_not_start_gets_an_error(
    monkeypatch: pytest.MonkeyPatch, host: Host
) -> None:
    async def fail(_: Session) -> None:
        raise ValueError("no luck")

    monkeypatch.setattr(Session, "on_start", fail)
    session = opened(host)
    assert session is not None
    with pytest.raises(ActorDead, match="no luck"):
        await session.ask(Compact("nothing"))
    ran = await through_actor(host, "t", motet.Agent("a", model=Scripted(say("yes"))))
    assert ran.status == "dropped"
    assert "no luck" in ran.detail


@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.sweep)])
@pytest.mark.parametrize("path", ["/host/router/s", "/host/router"])
def test_a_kill_at_any_step_keeps_nobody_waiting(path: str, every: int) -> None:
    def story(host: mt.SimulatedHost) -> None:
        agent = motet.Agent("a", model=mt.ScriptedModel([mt.say("one"), mt.say("two")]))
        for _ in range(2):
            assert host.run(agent, "hi", session="s").output

    with mt.simulated_host() as host:
        begun = host.loop.scheduler.steps
        story(host)
        # Not a fixed number: what is left of the host's start-up belongs to these steps or not.
        steps = host.loop.scheduler.steps - begun
    report = mt.sweep(story, "kill", target=path, every=every)
    assert not report.findings, report
    assert report.struck >= steps // every


async def test_a_passivated_session_is_freed_at_once(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    """It leaves no cycle that the garbage collector would have to find."""
    sessions: WeakSet[Session] = WeakSet()
    on_start = Session.on_start

    async def noted(session: Session) -> None:
        sessions.add(session)
        await on_start(session)

    monkeypatch.setattr(router, "MOST", 0)
    monkeypatch.setattr(Session, "on_start", noted)
    agent = motet.Agent("a", model=Scripted(*[say("yes")] * 3))
    async with motet.open_host(agents=[agent]) as host:
        gc.disable()
        try:
            for number in range(3):
                await through_actor(host, f"s{number}")
            assert len(sessions) == 3
            await trio.sleep(2 * router.CROWDED_SWEEP)
            assert not sessions
        finally:
            gc.enable()
