"""A host that drains: it refuses inputs, lets runs end, and leaves the rest to the next host."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

import motet
from motet import testing as mt
from motet.protocols.sessions import Ack
from tests.actors.sessions.crashes import ended, opened
from tests.scripted import Scripted, call, say
from tests.slow_commits import slow_commits


def agent(*steps: object) -> motet.Agent[None, str]:
    return motet.Agent("a", model=Scripted(*steps))  # type: ignore[arg-type]  # steps of a script


async def test_a_draining_host_refuses_inputs_and_lets_runs_end(tmp_path: Path) -> None:
    gate, began = trio.Event(), trio.Event()
    worker = agent(call(("work", {})), say("done"))

    @worker.tool
    async def work() -> str:
        began.set()
        await gate.wait()
        return "worked"

    async with opened(tmp_path, worker) as host, trio.open_nursery() as nursery:
        ack = await host.submit("go", session="s", agent="a")
        await began.wait()
        nursery.start_soon(host.drain)
        await host.closing()
        await wait_all_tasks_blocked()
        for session in ("s", "other"):
            with pytest.raises(motet.ShuttingDown, match="try again when it is back"):
                await host.submit("more", session=session, agent="a")
        with pytest.raises(motet.ShuttingDown):
            await host.run("a", "more")
        gate.set()
        assert (await ended(host, ack.run_id))[0].status == "completed"


async def test_runs_that_do_not_end_in_time_are_left_to_the_next_host(tmp_path: Path) -> None:
    async with opened(tmp_path, agent(None)) as host:
        running = await host.submit("long", session="s", agent="a")
        queued = await host.submit("behind it", session="s", agent="a")
        await wait_all_tasks_blocked()
        assert await host.drain(0.01) == (running.run_id,)
    async with opened(tmp_path, agent(say("at last"), say("and me"))) as host:
        assert [run.run_id for run in host.resumed] == [running.run_id, queued.run_id]
        found = await ended(host, running.run_id, queued.run_id)
        assert {run.status for run in found} == {"completed"}
        assert [item.row.text for item in await host.history("s")] == [
            "long",
            "at last",
            "behind it",
            "and me",
        ]


async def test_a_call_that_may_not_be_repeated_is_interrupted_after_a_shutdown(
    tmp_path: Path,
) -> None:
    began = trio.Event()
    worker = agent(call(("pay", {})))

    @worker.tool(effects="write")
    async def pay() -> str:
        began.set()
        await trio.sleep_forever()
        return ""

    async with opened(tmp_path, worker) as host:
        ack = await host.submit("go", session="s", agent="a")
        await began.wait()
        await host.drain(0)
    async with opened(tmp_path, worker) as host:
        (run,) = host.interrupted
        assert (run.run_id, run.detail) == (
            ack.run_id,
            "the host ended while pay was run: its effect may have happened",
        )


async def test_a_run_that_waits_for_a_person_is_suspended_at_once(tmp_path: Path) -> None:
    worker = agent(call(("pay", {})))

    @worker.tool(approval=True)
    def pay() -> str:
        return "paid"

    async with opened(tmp_path, worker) as host:
        ack = await host.submit("go", session="s", agent="a")
        while not await host.approvals(state="pending"):
            await trio.sleep(0.005)
        with trio.fail_after(5):
            await host.drain()
        assert (await host.find_run(ack.run_id)).status == "waiting"


async def test_a_host_in_memory_has_no_next_one() -> None:
    async with motet.open_host(agents=[agent(None)]) as host:
        ack = await host.submit("long", session="s", agent="a")
        await wait_all_tasks_blocked()
        await host.drain(0)
        assert (await host.find_run(ack.run_id)).status == "cancelled"


@pytest.mark.parametrize("key", [None, "k"])
async def test_the_caller_of_an_input_that_never_starts_gets_an_error(
    tmp_path: Path, key: str | None
) -> None:
    async with opened(tmp_path, agent(None)) as host, trio.open_nursery() as nursery:
        results: list[motet.RunResult[str]] = []

        async def run() -> None:
            results.append(await host.run("a", "hi", session="s", key=key, check=False))

        first = await host.submit("first", session="s", agent="a")
        nursery.start_soon(run)
        while host.status().queued < 1:
            await trio.sleep(0.005)
        assert await host.drain(0) == (first.run_id,)
    assert [one.status for one in results] == ["interrupted" if key else "dropped"]
    async with opened(tmp_path, agent(say("one"), say("two"))) as host:
        assert [run.text for run in host.resumed] == ["first", "hi"][: 2 if key else 1]


async def test_a_run_whose_caller_waits_is_cancelled(tmp_path: Path) -> None:
    async with opened(tmp_path, agent(None)) as host, trio.open_nursery() as nursery:
        results: list[motet.RunResult[str]] = []

        async def run() -> None:
            results.append(await host.run("a", "hi", check=False))

        nursery.start_soon(run)
        while not host.status().running:
            await trio.sleep(0.005)
        await host.drain(0)
    assert [(one.status, one.detail) for one in results] == [
        ("cancelled", "the host is shutting down")
    ]


@pytest.mark.parametrize("caller", [True, False])
def test_an_input_on_its_way_to_disk_is_left_to_the_next_host(caller: bool) -> None:
    """A resend under its key would find one that was dropped."""

    async def send(host: motet.Host) -> None:
        if caller:
            await host.run("a", "hello", session="s", key="k", check=False)
        else:
            acks.append(await host.submit("hello", session="s", agent="a", key="k"))

    async def runs(host: motet.Host) -> list[str]:
        return [run.status for run in await host.runs(session="s")]

    def half_a_second() -> float:
        began.append(0.5)
        return 0.5

    acks, began = list[Ack](), list[float]()
    with slow_commits() as slow, mt.simulated_host(1, agents=[agent(*[say("hi")] * 3)]) as host:
        slow.seconds = half_a_second
        host.begin(send)
        while not began:
            host.steps(1)
        host.restart(0)
        slow.seconds = float
        host.advance(5)
        assert host.call(runs) == ["completed"]
        host.begin(send)
        host.advance(5)
        assert host.call(runs) == ["completed"]
        assert [ack.status for ack in acks] in ([], ["queued", "duplicate"])
