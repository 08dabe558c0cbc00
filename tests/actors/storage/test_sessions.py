"""The session store on a real file: what is acknowledged is there, what is foreign is not."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from motet.actors.storage.location import Location
from motet.actors.transcript.grammar import violations
from motet.protocols.chat import AssistantMessage, UserMessage
from motet.protocols.errors import NotFound
from motet.protocols.models import Usage
from motet.protocols.sessions import (
    Accepted,
    FinishRun,
    GetRun,
    GetSession,
    KeyConflict,
    ListRuns,
    ListSessions,
    ReadHistory,
    RecordIntent,
    ResetSession,
    RunInfo,
    SessionInfo,
)
from motet.runtime.outside import Outside, replaced
from tests.actors.sessions.store_builders import (
    ANSWER,
    ASKS,
    RESULT,
    ROWS,
    Store,
    new_input,
    open_store,
)


@asynccontextmanager
async def store_in(path: Path) -> AsyncGenerator[Store]:
    with Location.directory(path) as location:
        async with open_store(location) as store:
            yield store


async def forbid_changes_of_messages(store: Store) -> None:
    for verb in ("UPDATE", "DELETE"):
        await store.database.execute(
            f"CREATE TRIGGER no_{verb} BEFORE {verb} ON messages "
            "BEGIN SELECT raise(ABORT, 'messages are only added'); END"
        )


# ---------------------------------------------------------------------- inputs


async def test_an_accepted_input_is_a_queued_run_of_a_session(tmp_path: Path) -> None:
    async with store_in(tmp_path) as store:
        assert await store.accept("r1") == Accepted("r1")
        now = store.clock.now
        assert await store.ref.ask(GetRun("r1")) == RunInfo(
            "r1", "s", "helper", "alice", "queued", "hi", now, now
        )
        assert await store.ref.ask(GetSession("s")) == SessionInfo(
            "s", "helper", "alice", now, now, 0, generation="r1"
        )


async def test_the_same_key_and_body_is_the_first_run_again(tmp_path: Path) -> None:
    async with store_in(tmp_path) as store:
        await store.ref.ask(new_input("r1", key="k", body="h"))
        again = await store.ref.ask(new_input("r2", key="k", body="h"))
        assert again == Accepted("r1", duplicate=True)
        assert await store.ref.ask(GetRun("r2")) is None


async def test_the_same_key_with_another_body_is_refused(tmp_path: Path) -> None:
    async with store_in(tmp_path) as store:
        await store.ref.ask(new_input("r1", key="k", body="h"))
        with pytest.raises(KeyConflict, match="'k'"):
            await store.ref.ask(new_input("r2", key="k", body="other"))
        assert await store.ref.ask(GetRun("r2")) is None


async def test_keys_of_different_users_have_nothing_in_common(tmp_path: Path) -> None:
    async with store_in(tmp_path) as store:
        await store.ref.ask(new_input("r1", key="k", body="h"))
        other = await store.ref.ask(new_input("r2", session="t", user="bob", key="k", body="i"))
        assert other == Accepted("r2")


async def test_a_key_is_forgotten_after_a_day_and_not_because_the_clock_was_put_forward(
    tmp_path: Path,
) -> None:
    wall, passed = [1_000.0], [0.0]
    clocks = Outside(wall_time=lambda: wall[0] + passed[0], boot_time=lambda: passed[0])
    with replaced(clocks):
        async with store_in(tmp_path) as store:
            await store.ref.ask(new_input("r1", key="k", body="h"))
            passed[0] += 24 * 3600 - 1
            wall[0] = store.clock.now = 1_700_000_000.0
            await store.ref.ask(new_input("r0", key="other", body="h"))
            assert (await store.ref.ask(new_input("r2", key="k", body="h"))).duplicate
            passed[0] += 1
            assert await store.ref.ask(new_input("r3", key="k", body="h")) == Accepted("r3")


async def test_a_session_of_another_user_does_not_exist(tmp_path: Path) -> None:
    async with store_in(tmp_path) as store:
        await store.accept("r1")
        with pytest.raises(NotFound) as foreign:
            await store.ref.ask(new_input("r2", user="bob", key="k", body="h"))
        assert "alice" not in str(foreign.value)
        assert await store.ref.ask(GetRun("r2")) is None
        # Nothing of the refused input is left: its key can still be used.
        assert await store.ref.ask(new_input("r3", session="t", user="bob", key="k")) == Accepted(
            "r3"
        )


async def test_accepts_share_commits(tmp_path: Path) -> None:
    async with store_in(tmp_path) as store:
        before = store.database.actor.statistics()
        async with trio.open_nursery() as nursery:
            for index in range(60):
                nursery.start_soon(store.ref.ask, new_input(f"r{index}", key=f"k{index}"))
        after = store.database.actor.statistics()
        assert after.items - before.items == 60
        assert after.commits - before.commits < 20


# ---------------------------------------------------------------------- runs


async def test_a_finished_run_is_its_rows_its_status_and_its_usage(tmp_path: Path) -> None:
    async with store_in(tmp_path) as store:
        await store.accept("r1")
        await store.begin("r1")
        await store.note("r1", 1, RESULT)
        await store.ref.ask(RecordIntent("r1", 0, ASKS))
        usage = Usage(3, 4, 1, 0.25)
        await store.ref.ask(FinishRun("r1", "limited", ROWS, usage, "steps"))
        run = await store.ref.ask(GetRun("r1"))
        assert run is not None
        assert (run.status, run.usage, run.detail) == ("limited", usage, "steps")
        assert await store.transcript() == ROWS
        assert await store.database.execute("SELECT * FROM steps") == ()


async def test_finishing_again_changes_nothing(tmp_path: Path) -> None:
    async with store_in(tmp_path) as store:
        await store.complete("r1")
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(store.ref.ask, FinishRun("r1", "failed", (UserMessage("x"),)))
        run = await store.ref.ask(GetRun("r1"))
        assert run is not None
        assert run.status == "completed"
        assert await store.transcript() == ROWS


async def test_steps_after_the_end_of_a_run_are_not_kept(tmp_path: Path) -> None:
    async with store_in(tmp_path) as store:
        await store.complete("r1")
        await store.begin("r1")
        await store.note("r1", 7, ANSWER)
        with pytest.raises(NotFound):
            await store.ref.ask(RecordIntent("r1", 8, ASKS))
        await wait_all_tasks_blocked()
        run = await store.ref.ask(GetRun("r1"))
        assert run is not None
        assert run.status == "completed"
        assert await store.database.execute("SELECT * FROM steps") == ()


async def test_an_unknown_run_cannot_be_finished_or_intended(tmp_path: Path) -> None:
    async with store_in(tmp_path) as store:
        with pytest.raises(NotFound, match="r9"):
            await store.ref.ask(FinishRun("r9", "completed", ROWS))
        with pytest.raises(NotFound, match="r9"):
            await store.ref.ask(RecordIntent("r9", 0, ASKS))


async def test_a_run_cannot_end_as_running(tmp_path: Path) -> None:
    async with store_in(tmp_path) as store:
        await store.accept("r1")
        with pytest.raises(ValueError, match="running"):
            await store.ref.ask(FinishRun("r1", "running", ROWS))


async def test_rows_with_open_calls_are_closed_before_they_are_stored(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with store_in(tmp_path) as store:
        await store.accept("r1")
        with caplog.at_level(logging.ERROR):
            await store.ref.ask(FinishRun("r1", "failed", (UserMessage("hi"), ASKS, ANSWER)))
        assert violations(await store.transcript()) == ()
        assert "r1" in caplog.text


async def test_half_a_surrogate_pair_does_not_keep_a_run_from_ending(tmp_path: Path) -> None:
    # A message with such text cannot leave the process, so that check is off.
    with Location.directory(tmp_path) as location:
        async with open_store(location, check_messages=False) as store:
            await store.ref.ask(new_input("r1", text="bad \ud800"))
            rows = (UserMessage("bad \ud800"), AssistantMessage("\udfff good"))
            await store.note("r1", 0, rows[1])
            await store.ref.ask(FinishRun("r1", "completed", rows, detail="\ud800"))
            assert await store.transcript() == (UserMessage("bad ?"), AssistantMessage("? good"))


async def test_positions_have_no_gaps_when_runs_end_together(tmp_path: Path) -> None:
    async with store_in(tmp_path) as store:
        for index in range(20):
            await store.accept(f"r{index}", session=f"s{index % 2}")
        async with trio.open_nursery() as nursery:
            for index in range(20):
                nursery.start_soon(store.ref.ask, FinishRun(f"r{index}", "completed", ROWS))
        for session in ("s0", "s1"):
            rows = await store.ref.ask(ReadHistory(session, limit=200))
            assert [row.pos for row in rows] == list(range(1, 41))
            runs = [row.run_id for row in rows]
            assert all(len(set(runs[at : at + 4])) == 1 for at in range(0, 40, 4))


async def test_a_lost_step_is_counted_and_the_store_goes_on(tmp_path: Path) -> None:
    async with store_in(tmp_path) as store:
        await store.accept("r1")
        await store.database.execute("PRAGMA max_page_count = 60")
        await store.note("r1", 0, AssistantMessage("x" * 400_000))
        while not store.actor.statistics().lost:
            await store.database.execute("SELECT 1")
        await store.ref.ask(RecordIntent("r1", 1, ASKS))
        assert await store.database.execute("SELECT step FROM steps") == ((1,),)


# ---------------------------------------------------------------------- reading


async def test_messages_are_only_ever_added(tmp_path: Path) -> None:
    async with store_in(tmp_path) as store:
        await forbid_changes_of_messages(store)
        await store.complete("r1")
        await store.ref.ask(ResetSession("s"))
        await store.complete("r2")
        assert await store.transcript() == ROWS
        rows = await store.ref.ask(ReadHistory("s"))
        assert len(rows) == 8


async def test_a_reset_hides_what_was_from_the_model_only(tmp_path: Path) -> None:
    async with store_in(tmp_path) as store:
        await store.complete("r1")
        await store.ref.ask(ResetSession("s"))
        assert await store.transcript() == ()
        session = await store.ref.ask(GetSession("s"))
        assert session is not None
        assert session.rows == 4
        with pytest.raises(NotFound):
            await store.ref.ask(ResetSession("nowhere"))


async def test_history_is_paged_backwards(tmp_path: Path) -> None:
    async with store_in(tmp_path) as store:
        for index in range(3):
            await store.complete(f"r{index}")
        newest = await store.ref.ask(ReadHistory("s", limit=5))
        assert [row.pos for row in newest] == [8, 9, 10, 11, 12]
        older = await store.ref.ask(ReadHistory("s", before=8, limit=100))
        assert [row.pos for row in older] == [1, 2, 3, 4, 5, 6, 7]
        assert [row.row for row in older[:4]] == list(ROWS)
        assert await store.ref.ask(ReadHistory("s", before=1)) == ()
        (newest_row,) = await store.ref.ask(ReadHistory("s", limit=0))
        assert newest_row.pos == 12


async def test_sessions_are_listed_newest_first_in_pages_that_lose_none(tmp_path: Path) -> None:
    async with store_in(tmp_path) as store:
        for index in range(7):
            store.clock.now = 100.0 + index // 2  # two sessions share each moment
            await store.accept(f"r{index}", session=f"s{index}", user="ab"[index == 3])
        seen: list[str] = []
        cursor = None
        while page := await store.ref.ask(ListSessions("a", limit=1, cursor=cursor)):
            seen += [session.session for session in page]
            cursor = page[-1].updated
        assert seen == ["s6", "s5", "s4", "s2", "s1", "s0"]
        everyone = await store.ref.ask(ListSessions())
        assert len(everyone) == 7


async def test_runs_are_listed_newest_first_by_any_filter(tmp_path: Path) -> None:
    async with store_in(tmp_path) as store:
        await store.accept("r1")
        await store.accept("r2", session="t", user="bob")
        await store.complete("r3")

        async def listed(request: ListRuns) -> list[str]:
            return [run.run_id for run in await store.ref.ask(request)]

        assert await listed(ListRuns()) == ["r3", "r2", "r1"]
        assert await listed(ListRuns(user="alice")) == ["r3", "r1"]
        assert await listed(ListRuns(session="t")) == ["r2"]
        assert await listed(ListRuns(status="queued", user="alice")) == ["r1"]
        assert await listed(ListRuns(limit=1)) == ["r3"]


async def test_unknown_sessions_and_runs_are_none_or_empty(tmp_path: Path) -> None:
    async with store_in(tmp_path) as store:
        assert await store.ref.ask(GetRun("r")) is None
        assert await store.ref.ask(GetSession("s")) is None
        assert await store.ref.ask(ReadHistory("s")) == ()
        assert await store.transcript() == ()
