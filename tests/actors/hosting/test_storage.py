"""While nothing can be stored, calls with effects wait, ends are kept, and everybody is told."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

import motet
from motet.actors.storage.connection import Connection
from motet.protocols.approvals import NOT_STORED
from motet.protocols.chat import ToolMessage
from motet.protocols.events import event_name
from motet.protocols.storage import DatabaseLocked
from motet.protocols.tools import CallResult
from tests.scripted import Scripted, call, say


class Lock:
    """Another program that has the database open.

    By the same library as ours: two SQLites in one process do not see each other's locks.
    """

    def __init__(self, state: Path) -> None:
        self._state = state
        self._other: Connection | None = None

    def take(self) -> None:
        self._other = Connection(str(self._state / "motet.db"))
        self._other.set_busy_timeout(5_000)
        self._other.run("BEGIN IMMEDIATE")

    def release(self) -> None:
        if self._other is not None:
            self._other.close()
            self._other = None


@pytest.fixture
def lock(tmp_path: Path) -> Generator[Lock]:
    lock = Lock(tmp_path)
    yield lock
    lock.release()


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite's own patience with a lock is real time: shorten it."""
    monkeypatch.setattr("motet.actors.storage.location.BUSY_TIMEOUT", 0.02)


class Cashier:
    """An agent that looks, which locks the database, and then pays. ``paid``: its effects."""

    def __init__(self, after_look: Callable[[], object], *, timeout: float = 60.0) -> None:
        self.paid: list[str] = []
        self.looks = 0
        model = Scripted(
            call(("look", {})), call(("look", {}), ("pay", {})), say("done"), say("again")
        )
        self.agent = motet.Agent("cashier", model=model)

        @self.agent.tool(effects="read")
        async def look() -> str:
            self.looks += 1
            after_look()
            return "looked"

        @self.agent.tool(effects="write", timeout=timeout)
        async def pay(ctx: motet.Context[None]) -> str:
            self.paid.append(ctx.call_id)
            return "paid"


@asynccontextmanager
async def opened(
    state: Path, agent: motet.Agent[None, str]
) -> AsyncGenerator[tuple[motet.Host, trio.Nursery]]:
    async with motet.open_host(state, agents=[agent]) as host, trio.open_nursery() as tasks:
        yield host, tasks


def once(action: Callable[[], object]) -> Callable[[], object]:
    """The action, at the first call only."""
    left = [action]
    return lambda: left.pop()() if left else None


async def test_a_call_with_effects_waits_for_the_storage_and_then_runs_once(
    tmp_path: Path, lock: Lock
) -> None:
    cashier = Cashier(once(lock.take))
    async with opened(tmp_path, cashier.agent) as (host, tasks):
        tasks.start_soon(host.run, cashier.agent, "go")
        while cashier.looks < 2:
            await trio.sleep(0.01)
        await trio.sleep(0.1)
        assert cashier.paid == []
        assert host.status().storage == DatabaseLocked.reason
        lock.release()
    assert len(cashier.paid) == 1


async def test_a_call_that_cannot_be_stored_in_its_time_fails_and_never_runs(
    tmp_path: Path, lock: Lock
) -> None:
    cashier = Cashier(once(lock.take), timeout=0.2)
    async with motet.open_host(tmp_path, agents=[cashier.agent]) as host:
        result = await host.run(cashier.agent, "go")
        assert (result.status, result.text) == ("completed", "done")
        failed = failures(result.errors)
        assert [one.kind for one in failed] == [NOT_STORED]
        assert "storage_unavailable" in failed[0].text
        assert cashier.paid == []


def failures(results: tuple[CallResult, ...]) -> list[CallResult]:
    return [one for one in results if one.outcome == "failed"]


async def test_a_stop_of_a_call_that_waits_ends_it_before_it_began(
    tmp_path: Path, lock: Lock
) -> None:
    cashier = Cashier(once(lock.take))
    async with opened(tmp_path, cashier.agent) as (host, tasks):
        ended: list[motet.RunResult[str]] = []

        async def run() -> None:
            ended.append(await host.run(cashier.agent, "go", session="s", check=False))

        tasks.start_soon(run)
        while cashier.looks < 2:
            await trio.sleep(0.01)
        report = await host.stop(session="s")
        assert len(report.stopped) == 1
    (result,) = ended
    assert result.status == "cancelled"
    rows = {row.name: row.outcome for row in result.rows if isinstance(row, ToolMessage)}
    assert rows["pay"] == "cancelled_before_start"
    assert cashier.paid == []


async def test_the_end_of_a_run_is_said_to_be_unsaved_until_the_storage_is_back(
    tmp_path: Path, lock: Lock
) -> None:
    agent = motet.Agent("a", model=Scripted(call(("look", {})), say("done")))

    @agent.tool(effects="read")
    async def look() -> None:
        lock.take()

    async with motet.open_host(tmp_path, agents=[agent]) as host:
        assert (await host.run(agent, "go", session="s")).text == "done"
        (info,) = await host.runs()
        assert (info.status, info.unsaved) == ("completed", True)
        assert await host.runs(status="running") == ()
        assert [one.unsaved for one in await host.runs(status="completed")] == [True]
        assert host.status().unsaved_ends == 1
        lock.release()
        with trio.fail_after(60):
            while host.status().unsaved_ends:
                await trio.sleep(0.05)
        (info,) = await host.runs()
        assert (info.status, info.unsaved, host.status().storage) == ("completed", False, "")
        stored = await host.events.read("session:s", 0)
    names = [event_name(one.event) for one in stored]
    assert names.count("run.completed") == 1
    assert [one.seq for one in stored] == list(range(1, len(stored) + 1))
