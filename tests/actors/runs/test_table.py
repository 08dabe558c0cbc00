"""The run table: what a stop reaches, whatever state an input is in."""

from __future__ import annotations

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from motet.actors.agents.spec import AgentSpec
from motet.actors.host import Host, open_host
from motet.actors.runs.run import Input, Run
from motet.actors.runs.table import QUEUE, RunTable
from motet.actors.sessions.session import Session
from motet.protocols.limits import Limits
from motet.protocols.sessions import Principal, QueueFull

AGENT = AgentSpec("a")


def run(number: int, session: str = "s", user: str = "alice") -> Run:
    return Run(Input(f"run_{number}", session, Principal(user), "text"), AGENT, Limits())


async def test_a_run_goes_from_arriving_over_queued_and_running_to_ended() -> None:
    table = RunTable()
    one, two = run(1), run(2)
    for item in (one, two):
        table.admit(item)
    assert table.enqueue(one) == "wait"
    assert table.start_next(table.queue("s")) is one
    assert table.enqueue(two) == "wait"
    assert table.start_next(table.queue("s")) is None

    table.finish(one, one.ends_as("completed", ""))

    assert one.ended.is_set()
    assert table.start_next(table.queue("s")) is two


async def test_a_stop_fences_the_input_that_is_still_on_its_way() -> None:
    table = RunTable()
    late = run(1)
    table.admit(late)
    table.cancel(["s"], "stopped")
    assert table.enqueue(late) == "drop"
    assert table.queue("s").dropped == [late]
    assert table.start_next(table.queue("s")) is None


async def test_a_run_that_ends_twice_does_not_free_the_session_of_its_successor() -> None:
    table = RunTable()
    one, two = run(1), run(2)
    for item in (one, two):
        table.admit(item)
        table.enqueue(item)
    assert one.admission < two.admission
    table.start_next(table.queue("s"))
    table.finish(one, one.ends_as("cancelled", "stopped"))
    assert table.start_next(table.queue("s")) is two

    table.finish(one, one.ends_as("completed", "late"))

    assert table.queue("s").running == [two]
    assert one.result == one.ends_as("cancelled", "stopped")


async def test_a_stop_does_not_fence_what_comes_after_it() -> None:
    table = RunTable()
    early, late = run(1), run(2)
    table.admit(early)
    table.cancel(["s"], "stopped")
    table.admit(late)
    assert (table.enqueue(early), table.enqueue(late)) == ("drop", "wait")


async def test_a_stop_of_one_run_that_is_on_its_way_drops_it_on_arrival() -> None:
    table = RunTable()
    late, other = run(1), run(2)
    table.admit(late)
    table.admit(other)
    stop = table.cancel_run(late, "stopped")
    assert (stop.runs, stop.dropped) == ([late], [])
    assert table.enqueue(late) == "drop"
    assert table.queue("s").dropped == [late]
    assert table.enqueue(other) == "wait"


async def test_inputs_on_their_way_count_against_the_queue() -> None:
    table = RunTable()
    for number in range(QUEUE.capacity):
        table.admit(run(number))
    with pytest.raises(QueueFull):
        table.admit(run(99))


async def test_only_ones_own_sessions_are_stopped_unless_admin() -> None:
    table = RunTable()
    for item in (run(1, "s", "alice"), run(2, "t", "bob")):
        table.admit(item)
        table.enqueue(item)
    assert table.owned(Principal("alice")) == ["s"]
    assert sorted(table.owned(Principal("root", "admin"))) == ["s", "t"]


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["admit", "enqueue", "start", "finish", "stop", "stop one", "refuse"]),
        st.integers(0, 5),
    ),
    max_size=60,
)


@given(STEPS)
def test_no_order_of_events_loses_a_run_or_starts_two(steps: list[tuple[str, int]]) -> None:
    """Law: whatever happens in whatever order, a session has at most one active run, every
    admitted run can be brought to its end, and then the session is idle."""

    async def play() -> None:
        table = RunTable()
        seen: list[Run] = []
        for number, (step, pick) in enumerate(steps):
            target = seen[pick % len(seen)] if seen else None
            apply(table, step, target, seen, number)
            active = [item for item in seen if item.is_running]
            assert len(active) <= 1
        for item in seen:
            if item.state in ("arriving", "overtaken") and table.enqueue(item) == "drop":
                table.finish(item, item.ends_as("dropped", ""))
        table.close("over")
        assert all(item.ended.is_set() and item.result for item in seen)
        assert table.runs == {}
        queue = table.queue("s")
        queue.inputs.clear()
        assert all(item.ended.is_set() for item in queue.dropped)
        queue.dropped.clear()
        assert queue.idle

    trio.run(play)


def apply(table: RunTable, step: str, target: Run | None, seen: list[Run], number: int) -> None:
    if step == "admit":
        fresh = run(number)
        try:
            table.admit(fresh)
        except QueueFull:
            return
        seen.append(fresh)
    elif step == "start":
        table.start_next(table.queue("s"))
    elif step == "stop":
        for item in table.cancel(["s"], "stopped").dropped:
            table.finish(item, item.ends_as("dropped", ""))
    elif target is None:
        return
    elif step == "enqueue" and target.state in ("arriving", "overtaken"):
        if table.enqueue(target) == "drop":
            table.finish(target, target.ends_as("dropped", ""))
    elif step == "finish" and target.is_running:
        table.finish(target, target.ends_as("completed", ""))
    elif step == "refuse":
        table.refuse(target)
    elif step == "stop one":
        for item in table.cancel_run(target, "stopped").dropped:
            table.finish(item, item.ends_as("dropped", ""))


async def test_a_session_is_begun_once_while_its_actor_lives() -> None:
    begun: list[str] = []

    class Counting(Session):
        async def on_start(self) -> None:
            begun.append(self.key)
            await super().on_start()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("motet.actors.sessions.router.Session", Counting)
        async with open_host(agents=[AgentSpec("helper", model="demo")]) as host:
            for _ in range(2):
                await through_actor(host)
            assert begun == ["s"]
            await host.delete("s")
            await through_actor(host)
            assert begun == ["s", "s"]


async def through_actor(host: Host) -> None:
    """A run that nobody gives the own task for."""
    async with host.stream("helper", "hello", session="s") as run:
        await run.wait()
