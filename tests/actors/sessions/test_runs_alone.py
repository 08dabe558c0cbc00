"""A run that goes on in its caller's task, in a session without an actor, and all that meets it.

Law: whatever comes while it goes on, and whenever, each input has one end, nothing is left in
memory for it, and the session answers the next input.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

import motet
from motet import testing as mt
from motet.actors.runs.runner import Runner
from motet.protocols.chat import AssistantMessage, UserMessage
from motet.protocols.models import Finished, ModelEvent, ModelRequest, TextPart
from motet.protocols.sessions import FINAL
from tests.actors.runs.ops import parts_of
from tests.scripted import Scripted, call, say

ACTOR = "/host/router/s"
SLOW = 1.0
"""Seconds of each request on the virtual clock."""


class Slow:
    """Answers after :data:`SLOW` seconds with the last text that it was told."""

    name = "slow"

    @asynccontextmanager
    async def request(self, request: ModelRequest) -> AsyncGenerator[AsyncIterator[ModelEvent]]:
        yield _parts([row.text for row in request.messages if isinstance(row, UserMessage)][-1])


async def _parts(text: str) -> AsyncGenerator[ModelEvent]:
    await trio.sleep(SLOW)
    yield TextPart(text)
    yield Finished("stop")


def actors(host: motet.Host) -> list[str]:
    return [row.path for row in host.system.snapshot() if row.path == ACTOR]


async def test_a_run_that_is_alone_needs_no_actor() -> None:
    async with motet.open_host(agents=[motet.Agent("a", model="demo")]) as host:
        for _ in range(2):
            await host.run("a", "hi", session="s")
            assert not actors(host)
        assert len(await host.history("s")) == 4
        assert host.status().live_sessions == 1


@pytest.mark.parametrize("at_start", [True, False])
async def test_hooks_of_sessions_have_an_actor_to_begin_and_end_with(at_start: bool) -> None:
    heard: list[str] = []

    async def started(event: motet.SessionStart) -> None:
        heard.append(event.session)

    async def ended(event: motet.SessionEnd) -> None:
        heard.append(event.session)

    async with motet.open_host(agents=[motet.Agent("a", model="demo")]) as host:
        if at_start:
            host.on("session_start")(started)
        else:
            host.on("session_end")(ended)
        await host.run("a", "hi", session="s")
        assert actors(host)
    assert heard == ["s"]


async def test_a_child_beside_the_run_has_an_actor(autojump_clock: MockClock) -> None:
    spawned = call(("spawn", {"agent": "child", "task": "look"}))
    model = Scripted(spawned, say("I wait"), say("it has ended"))
    lead = motet.Agent("lead", model=model, tools=["group:agents"])
    async with motet.open_host(agents=[lead, motet.Agent("child", model=Slow())]) as host:
        result = await host.run("lead", "go", session="s")
        assert result.output == "it has ended"
        assert actors(host)
    del autojump_clock


async def test_a_run_whose_caller_goes_says_so(autojump_clock: MockClock) -> None:
    async with motet.open_host(agents=[motet.Agent("a", model=Slow())]) as host:
        with trio.move_on_after(SLOW / 2):
            await host.run("a", "first", session="s")
        (run,) = await host.runs()
        assert (run.status, run.detail) == ("cancelled", "its caller has gone")
        assert (await host.run("a", "second", session="s")).output == "second"
    del autojump_clock


async def test_nobody_waits_for_a_run_that_breaks_off(monkeypatch: pytest.MonkeyPatch) -> None:
    async with motet.open_host(agents=[motet.Agent("a", model="demo")]) as host:
        with monkeypatch.context() as patch, trio.fail_after(60):
            patch.setattr(Runner, "execute", _break)
            with pytest.raises(ZeroDivisionError):
                await host.run("a", "hi", session="s")
        assert not parts_of(host).table.runs
        assert (await host.run("a", "hi", session="s")).status == "completed"


async def _break(_: Runner) -> None:
    raise ZeroDivisionError


Meet = Callable[[motet.Host], Awaitable[object]]


async def _submit(host: motet.Host, **options: object) -> None:
    await host.submit("second", session="s", agent="a", **options)  # type: ignore[arg-type]


async def _steer(host: motet.Host) -> None:
    await _submit(host, mode="steer")


async def _interrupt(host: motet.Host) -> None:
    await _submit(host, mode="interrupt")


async def _stop(host: motet.Host) -> None:
    await host.stop(session="s")


async def _crash_router(host: motet.Host) -> None:
    host.system.inject("/host/router", "crash")


async def _run(host: motet.Host) -> None:
    await host.run("a", "second", session="s", check=False)


MEETINGS: dict[str, Meet] = {
    "another input": _submit,
    "another caller": _run,
    "steer": _steer,
    "interrupt": _interrupt,
    "stop": _stop,
    "crash of the router": _crash_router,
}


@given(
    meets=st.lists(
        st.tuples(st.sampled_from([*MEETINGS, "caller goes"]), st.floats(0, 2.5)), max_size=4
    )
)
def test_a_run_alone_and_all_that_meets_it(meets: list[tuple[str, float]]) -> None:
    async def story() -> None:
        async with motet.open_host(agents=[motet.Agent("a", model=Slow())]) as host:
            caller = trio.CancelScope()
            results: list[motet.RunResult[str]] = []

            async def wait() -> None:
                with caller:
                    results.append(await host.run("a", "first", session="s", check=False))

            async def meet(what: str, at: float) -> None:
                await trio.sleep(at)
                if what == "caller goes":
                    caller.cancel()
                else:
                    await MEETINGS[what](host)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(wait)
                for what, at in meets:
                    nursery.start_soon(meet, what, at)
            await trio.sleep(60)  # after a crash, the router restarts in a while
            parts = parts_of(host)
            assert not parts.table.runs
            assert not parts.session_actors.alone
            assert all(run.status in FINAL for run in await host.runs())
            gone = any(what == "caller goes" for what, _ in meets)
            assert results or gone
            with trio.fail_after(60):
                last = await host.run("a", "last", session="s")
            assert last.output == "last"

    trio.run(story, clock=MockClock(autojump_threshold=0))


@pytest.mark.parametrize("at", [0.0, 0.5, 1.0])
async def test_a_host_that_closes_ends_the_run_and_its_caller_has_the_result(
    at: float, autojump_clock: MockClock
) -> None:
    results: list[motet.RunResult[str]] = []

    async def wait(host: motet.Host) -> None:
        results.append(await host.run("a", "first", session="s", check=False))

    opened = motet.open_host(agents=[motet.Agent("a", model=Slow())])
    async with trio.open_nursery() as nursery, opened as host:
        nursery.start_soon(wait, host)
        await trio.sleep(at)
        await trio.testing.wait_all_tasks_blocked()
    assert [result.status for result in results] == ["cancelled" if at < SLOW else "completed"]
    del autojump_clock


def leads(request: ModelRequest) -> mt.Step:
    """Spawn a child, then call a tool, then answer."""
    answers = [row for row in request.messages if isinstance(row, AssistantMessage)]
    steps = [mt.call("spawn", agent="child", task="look"), mt.call("act"), mt.say("done")]
    return mt.slow(steps[len(answers)], seconds=0.05)


def with_a_child(host: mt.SimulatedHost) -> None:
    """A run in its caller's task has a child beside it, and thereby an actor for its session."""
    lead = motet.Agent("lead", model=mt.FunctionModel(leads, name="leads"), tools=["group:agents"])

    @lead.tool(effects="write")
    async def act() -> str:
        await trio.sleep(0.1)
        return "acted"

    child = mt.FunctionModel(lambda _: mt.slow(mt.say("seen"), seconds=0.2), name="sees")
    host.know(motet.Agent("child", model=child))
    host.run(lead, "go", session="s", check=False)
    host.advance(1)


@pytest.mark.parametrize(
    ("fault", "every"),
    [
        ("kill", 8),
        *(
            pytest.param(fault, 1, marks=pytest.mark.sweep)
            for fault in ("kill", "crash", "cancel", "stop")
        ),
    ],
)
def test_a_router_that_ends_at_some_step_leaves_nobody_waiting_for_a_child(
    fault: mt.HostFault, every: int
) -> None:
    """Law: a run ends, though no actor is started any more for the child that it has spawned."""
    mt.sweep(with_a_child, fault, target="/host/router", every=every, seeds=(1,)).check()
