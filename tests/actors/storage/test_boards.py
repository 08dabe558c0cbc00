"""The task board: one of many claimants wins, claims end with their runs, nobody sees another's."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from motet.actors.hosting.wiring import start_stores
from motet.actors.storage.location import Location
from motet.actors.storage.readers import Readers
from motet.protocols.config import HostConfig
from motet.protocols.errors import NotFound
from motet.protocols.sessions import (
    AcceptInput,
    FinishRun,
    NewInput,
    RecoverRuns,
    RunStatus,
    SessionStoreMessage,
)
from motet.protocols.teams import (
    BOARD_TASKS,
    Board,
    BoardProtocol,
    ClaimTask,
    CreateTask,
    ListTasks,
    Task,
    TaskRefused,
    TaskState,
    UpdateTask,
)
from motet.runtime import ActorRef, open_system

ALICE = Board("press", "alice")


@attrs.define
class Stage:
    """A host's stores, with runs that begin and end as a test wants it."""

    boards: ActorRef[BoardProtocol]
    sessions: ActorRef[SessionStoreMessage]

    async def begin(self, run_id: str) -> str:
        await self.sessions.ask(AcceptInput(NewInput(run_id, f"of {run_id}", "a", "alice", "go")))
        return run_id

    async def end(self, run_id: str, status: RunStatus = "completed") -> None:
        await self.sessions.ask(FinishRun(run_id, status, ()))

    async def create(self, title: str, *needs: int) -> int:
        return (await self.boards.ask(CreateTask(ALICE, title, needs=needs))).number

    async def claim(self, run_id: str, number: int | None = None) -> Task:
        return await self.boards.ask(ClaimTask(ALICE, f"agent of {run_id}", run_id, number))

    async def update(self, number: int, run_id: str, state: TaskState, result: str = "") -> Task:
        return await self.boards.ask(UpdateTask(ALICE, number, run_id, state, result))

    async def states(self) -> list[TaskState]:
        return [task.state for task in await self.boards.ask(ListTasks(ALICE))]


@asynccontextmanager
async def stage(folder: Path | None = None) -> AsyncGenerator[Stage]:
    place = Location.directory(folder) if folder else Location.memory()
    with place as location:
        readers = Readers(location)
        async with open_system("test", check_messages=True) as system:
            stores = await start_stores(system, location, readers, HostConfig(), None)
            yield Stage(stores.boards, stores.sessions)
        await readers.aclose()


@given(
    claimants=st.integers(2, 30),
    tasks=st.integers(1, 12),
    wanted=st.lists(st.none() | st.integers(1, 12), min_size=30, max_size=30),
)
@settings(max_examples=25, deadline=None)
def test_one_of_many_claims_of_a_task_succeeds(
    claimants: int, tasks: int, wanted: list[int | None]
) -> None:
    """No task has two owners; whoever wanted just any has one, as long as there were enough."""

    async def race() -> None:
        async with stage() as on:
            for number in range(tasks):
                await on.create(f"t{number}")
            runs = [await on.begin(f"run_{n}") for n in range(claimants)]
            won: list[tuple[int, str]] = []

            async def claim(run_id: str, number: int | None) -> None:
                try:
                    task = await on.claim(run_id, number)
                except (TaskRefused, NotFound):
                    return
                assert task.run_id == run_id
                won.append((task.number, run_id))

            async with trio.open_nursery() as nursery:
                for run_id, wish in zip(runs, wanted, strict=False):
                    nursery.start_soon(claim, run_id, wish)

            numbers = [number for number, _ in won]
            assert len(set(numbers)) == len(numbers)
            board = await on.boards.ask(ListTasks(ALICE))
            assert {(task.number, task.run_id) for task in board if task.run_id} == set(won)
            if None in wanted[:claimants]:
                assert len(won) >= min(tasks, wanted[:claimants].count(None))

    trio.run(race)


@pytest.mark.parametrize("status", ["completed", "cancelled", "failed", "limited", "refused"])
async def test_a_claim_ends_with_its_run(status: RunStatus) -> None:
    async with stage() as on:
        number = await on.create("write")
        await on.claim(await on.begin("run_1"))
        with pytest.raises(TaskRefused, match="claimed: agent of run_1 has it"):
            await on.claim(await on.begin("run_2"), number)
        await on.end("run_1", status)
        assert await on.states() == ["open"]
        with pytest.raises(TaskRefused, match=r"claimed|open"):
            await on.update(number, "run_2", "done")
        assert (await on.claim("run_2", number)).agent == "agent of run_2"


async def test_after_a_crash_claimed_tasks_are_open_and_done_ones_stay_done(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        done, cut = await on.create("a"), await on.create("b")
        run_id = await on.begin("run_1")
        await on.claim(run_id, done)
        await on.update(done, run_id, "done", "it is in a.txt")
        await on.claim(run_id, cut)
        assert await on.states() == ["done", "claimed"]
    async with stage(tmp_path) as on:
        await on.sessions.ask(RecoverRuns())
        first, second = await on.boards.ask(ListTasks(ALICE))
        assert (first.state, first.result) == ("done", "it is in a.txt")
        assert second.state == "open"


async def test_a_task_waits_for_those_that_it_needs() -> None:
    async with stage() as on:
        run_id = await on.begin("run_1")
        first, second = await on.create("dig"), await on.create("plant", 1)
        with pytest.raises(TaskRefused, match="task 2 waits for 1"):
            await on.claim(run_id, second)
        assert (await on.claim(run_id)).number == first
        with pytest.raises(TaskRefused, match="no task is open"):
            await on.claim(run_id)
        await on.update(first, run_id, "done")
        assert (await on.claim(run_id)).needs == (1,)
        with pytest.raises(TaskRefused, match="there is no task 9"):
            await on.create("harvest", 1, 9)
        assert len(await on.states()) == 2


async def test_only_the_claiming_run_can_finish_a_task() -> None:
    async with stage() as on:
        mine, other = await on.begin("run_1"), await on.begin("run_2")
        number = await on.create("write")
        with pytest.raises(TaskRefused, match="open: claim it first"):
            await on.update(number, mine, "done")
        await on.claim(mine, number)
        with pytest.raises(TaskRefused, match="has it"):
            await on.update(number, other, "failed")
        assert (await on.update(number, mine, "open")).state == "open"
        await on.claim(other, number)
        assert (await on.update(number, other, "failed", "no pen")).result == "no pen"
        with pytest.raises(TaskRefused, match="failed already"):
            await on.update(number, other, "done")
        assert (await on.update(number, mine, "open")).state == "open"
        assert (await on.update(number, mine, "cancelled")).state == "cancelled"


@given(st.lists(st.sampled_from(["press", "desk"]), min_size=1, max_size=6), st.integers(1, 9))
@settings(max_examples=20, deadline=None)
def test_no_number_names_a_task_of_another_user_or_team(teams: list[str], number: int) -> None:
    """Whatever Alice's boards hold, Bob's are empty, and he finds none of her tasks (G16)."""

    async def look() -> None:
        async with stage() as on:
            for team in teams:
                await on.boards.ask(CreateTask(Board(team, "alice"), "secret"))
            await on.begin("run_bob")
            for team in ("press", "desk"):
                bob = Board(team, "bob")
                assert await on.boards.ask(ListTasks(bob)) == ()
                with pytest.raises(NotFound):
                    await on.boards.ask(ClaimTask(bob, "a", "run_bob", number))
                with pytest.raises(NotFound):
                    await on.boards.ask(UpdateTask(bob, number, "run_bob", "cancelled"))
            mine = await on.boards.ask(ListTasks(Board("press", "alice")))
            assert len(mine) == teams.count("press")

    trio.run(look)


async def test_a_board_has_an_end() -> None:
    async with stage() as on:
        async with trio.open_nursery() as nursery:
            for number in range(BOARD_TASKS):
                nursery.start_soon(on.create, f"t{number}")
        with pytest.raises(TaskRefused, match=f"full: it holds {BOARD_TASKS}"):
            await on.create("one more")
