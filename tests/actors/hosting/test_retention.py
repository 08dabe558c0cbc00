"""Every table has a bound; what is beyond it goes, and nothing that anybody still needs."""

from __future__ import annotations

import re
from contextlib import closing
from math import inf
from pathlib import Path

import attrs
import pytest
import trio
from trio.testing import MockClock

import motet
from motet.actors.host import Host
from motet.actors.hosting.retention import FIRST, Forgetting, Prune
from motet.actors.hosting.tree import Parts
from motet.actors.storage.connection import Connection, copy_image
from motet.actors.storage.schema import new_database
from motet.actors.telemetry.subscription import subscribe
from motet.protocols import retention
from motet.protocols.config import HostConfig, RetentionConfig
from motet.protocols.error_records import Keep
from motet.protocols.retention import BOUNDS, DAY, ROOM_KEEPS, Hands, Limits, aged
from motet.protocols.room_config import RoomConfig
from motet.protocols.sessions import Principal
from motet.protocols.storage import LEAST_NUMBER, Row, Rows, Statement, Transaction
from tests.scripted import Scripted, call, say

ANN = Principal("ann", "operator")
TIMES = {
    "sessions": ("created", "updated"),
    "runs": ("created", "updated"),
    "messages": ("ts",),
    "events": ("ts",),
    "idempotency": ("ts",),
    "approvals": ("created", "resolved"),
    "escalations": ("created", "resolved"),
    "traces": ("started", "ended", "seen"),
    "agent_errors": ("timestamp",),
    "rooms": ("created", "updated"),
    "room_messages": ("at",),
    "room_summaries": ("at",),
    "tokens": ("created", "revoked", "expires"),
    "room_invites": ("created", "expires"),
}


def _agent(*steps: object) -> motet.Agent[None, str]:
    agent = motet.Agent("ops", model=Scripted(*steps), memory=True)  # type: ignore[arg-type]

    @agent.tool(approval=True)
    def restart(unit: str) -> str:
        return f"{unit} restarted"

    @agent.tool(effects="read")
    def look() -> str:
        raise RuntimeError("it is dark")

    return agent


def _parts(host: Host) -> Parts:
    """The stores of a host: no public call shows all tables, or makes rows old."""
    return host._parts  # pyright: ignore[reportPrivateUsage]


async def _run(host: Host, sql: str, *params: object) -> tuple[Row, ...]:
    (rows,) = await _parts(host).stores.transact((Statement(sql, params),))  # type: ignore[arg-type]
    return rows


async def _age(host: Host, days: float) -> None:
    """Make all rows so many days older."""
    await _parts(host).journal.settle()
    for table, columns in TIMES.items():
        shifted = ", ".join(f"{one} = {one} - {days * DAY}" for one in columns)
        await _run(host, f"UPDATE {table} SET {shifted}")


async def _count(host: Host, table: str) -> int:
    ((count,),) = await _run(host, f"SELECT count(*) FROM {table}")
    return int(count or 0)


async def _prune(host: Host) -> int:
    await _parts(host).journal.settle()
    ref = host.system.find("/host/retention")
    assert ref is not None
    return int(await ref.ask(Prune()))


def test_every_table_has_a_bound() -> None:
    with closing(Connection(":memory:")) as base:
        copy_image(new_database(), base)
        found = {
            str(name) for (name,) in base.run("SELECT name FROM sqlite_master WHERE type = 'table'")
        }
    assert found == set(BOUNDS)


async def _worked(host: Host) -> None:
    """Two inputs, with an approval, an error and an error that a person has to decide."""
    task = trio.Event()
    async with trio.open_nursery() as nursery:

        async def first() -> None:
            await host.run("ops", "restart it", session="s", principal=ANN)
            task.set()

        nursery.start_soon(first)
        with trio.fail_after(60):
            while not (asked := await host.approvals(principal=ANN)):
                await trio.lowlevel.checkpoint()
            await host.approve(asked[0].id, "allow-once", principal=ANN)
            await task.wait()
    await host.run("ops", "and look", session="s", principal=ANN)


SCRIPT = (call(("restart", {"unit": "db"})), say("done"), call(("look", {})), say("dark"))


async def test_what_nobody_uses_any_more_goes_and_memories_stay() -> None:
    async with motet.open_host(agents=[_agent(*SCRIPT)]) as host:
        await _worked(host)
        assert await host.traces(principal=ANN)
        await _parts(host).journal.settle()
        before = {table: await _count(host, table) for table in (*TIMES, "memories", "spans")}
        assert await _prune(host) == 0
        assert before == {table: await _count(host, table) for table in before}
        await _age(host, 400)
        assert await _prune(host) > 0
        left = {table: count for table in before if (count := await _count(host, table))}
        assert left.pop("memories") == before["memories"] > 0
        assert left == {}
        assert not await _run(host, "SELECT 1 FROM streams WHERE stream GLOB 'session:*'")
        assert await host.sessions(principal=ANN) == ()


async def test_a_session_that_is_used_keeps_its_name_its_newest_rows_and_its_numbers() -> None:
    steps = [*SCRIPT, say("again"), say("once more")]
    config = HostConfig(retention=RetentionConfig(sessions_days=inf))
    async with motet.open_host(agents=[_agent(*steps)], config=config) as host:
        await _worked(host)
        await host.reset("s", principal=ANN)
        head = (await host.events.head("session:s")).head
        await _age(host, 400)
        await host.run("ops", "hello", session="s", principal=ANN)
        await _prune(host)
        assert [run.text for run in await host.runs(session="s", principal=ANN)] == ["hello"]
        assert await _count(host, "approvals") == 0
        ((first, last),) = await _run(host, "SELECT min(pos), max(pos) FROM messages")
        assert (first, last) == (5, 10)  # the last row of a person before the reset, and its answer
        found = await host.events.head("session:s")
        assert found.oldest == head + 1
        async with subscribe(host.events, "session:s", after=0) as events:
            assert (await anext(events)).seq == head + 1
        await host.run("ops", "and now", session="s", principal=ANN)
        rows = await host.history("s", principal=ANN)
        assert [row.pos for row in rows] == [*range(5, 13)]


async def test_what_an_open_run_or_an_open_question_needs_stays() -> None:
    """Given a run that waits for a person, when all is as old as can be, then it still ends."""
    async with motet.open_host(agents=[_agent(*SCRIPT, say("!"))]) as host:
        await host.submit("restart it", session="s", principal=ANN)
        with trio.fail_after(60):
            while not (asked := await host.approvals(principal=ANN)):
                await trio.lowlevel.checkpoint()
        await _parts(host).journal.settle()
        before = {table: await _count(host, table) for table in ("runs", "events", "approvals")}
        await _age(host, 4_000)
        await _prune(host)
        assert before == {table: await _count(host, table) for table in before}
        await host.approve(asked[0].id, "allow-once", principal=ANN)
        with trio.fail_after(60):
            while (await host.runs(session="s", principal=ANN))[0].status != "completed":
                await trio.lowlevel.checkpoint()


async def test_a_run_that_others_came_of_stays_until_they_have_gone() -> None:
    async with motet.open_host(agents=[_agent(say("done"), say("done"))]) as host:
        above = await host.run("ops", "go", session="s", principal=ANN)
        await host.run("ops", "go", session="child", principal=ANN)
        set_parent = "UPDATE sessions SET parent = ? WHERE session = 'child'"
        await _run(host, set_parent, above.run_id)
        await _age(host, 100)
        await _run(host, "UPDATE sessions SET updated = updated + ?", 100 * DAY)
        await _prune(host)
        left = await _run(host, "SELECT session FROM runs")
        assert left == (("s",),)
        await host.delete("s", principal=ANN)
        assert await _count(host, "sessions") == 0


async def test_rooms_that_are_silent_go_and_others_keep_their_newest_messages() -> None:
    rooms = {name: RoomConfig(members=("ops",)) for name in ("old", "busy")}
    config = HostConfig(rooms=rooms)
    async with motet.open_host(agents=[_agent(*[say("ok")] * 4)], config=config) as host:
        for name in rooms:
            room = await host.open_room(name)
            await room.post("@ops hello", user="ann")
            await room.wait()
        add = """
            WITH RECURSIVE n (i) AS (SELECT 3 UNION ALL SELECT i + 1 FROM n WHERE i < 3000)
            INSERT INTO room_messages (room, seq, round, author, kind, text, at)
            SELECT 'busy', i, 1, 'ann', 'person', 'said ' || i, ? FROM n"""
        await _run(host, add, 0.0)
        heard = "UPDATE rooms SET state = json_set(state, '$.heard', 3000) WHERE name = 'busy'"
        await _run(host, heard)
        await _age(host, 400)
        await _run(host, "UPDATE rooms SET updated = ? WHERE name = 'busy'", 2e9)
        kinds = "SELECT count(DISTINCT event) FROM events WHERE stream = 'room:busy'"
        (before,) = await _run(host, kinds)
        await _prune(host)
        assert await _run(host, "SELECT name FROM rooms") == (("busy",),)
        ((oldest, count),) = await _run(host, "SELECT min(seq), count(*) FROM room_messages")
        assert (oldest, count) == (2_001, ROOM_KEEPS)
        assert await _run(host, kinds) == (before,)
        ((events,),) = await _run(host, "SELECT count(*) FROM events WHERE stream = 'room:busy'")
        assert events == before[0]
        again = await host.open_room("old")
        assert await again.history() == ()


async def test_a_database_that_is_too_large_keeps_the_newest_and_gives_its_space_back(
    tmp_path: Path,
) -> None:
    config = HostConfig(retention=RetentionConfig(max_mb=2.0))
    async with motet.open_host(tmp_path, agents=[_agent(*[say("ok")] * 3)], config=config) as host:
        await host.run("ops", "hello", session="s", principal=ANN)
        await _parts(host).journal.settle()
        await _run(host, "UPDATE events SET ts = ts - ?", 21 * DAY)
        add = """
            WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 4000)
            INSERT INTO events (stream, seq, ts, event, data)
            SELECT 'session:s', 100 + i, (SELECT updated FROM sessions) - 432 * (4000.0 - i),
                'warning', printf('%.*c', 2000, 'x') FROM n"""
        await _run(host, add)
        size = (tmp_path / "motet.db").stat().st_size + (tmp_path / "motet.db-wal").stat().st_size
        assert size > 6e6
        await _prune(host)
        pages = "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size"
        assert float((await _run(host, pages))[0][0] or 0) < 2.2e6
        ((first, last),) = await _run(host, "SELECT min(seq), max(seq) FROM events")
        assert 2_000 < int(first or 0) < 4_000
        assert last == 4_100
        assert len(await host.runs(session="s", principal=ANN)) == 1
    assert (tmp_path / "motet.db").stat().st_size < 2.2e6


async def test_of_deleted_streams_a_bounded_number_of_numbers_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No number is given twice, also to a stream whose own last number was forgotten."""
    monkeypatch.setattr(retention, "DIGESTS", 5)
    async with motet.open_host(agents=[_agent(*[say("ok")] * 10)]) as host:
        heads = dict[str, int]()
        for name in "abcdefgh":
            await host.run("ops", "hello", session=name, principal=ANN)
            heads[name] = (await host.events.head(f"session:{name}")).head
            await host.delete(name, principal=ANN)
        await _prune(host)
        digests = "SELECT count(*) FROM streams WHERE length(stream) = 64"
        assert await _run(host, digests) == ((5,),)
        assert await _run(host, "SELECT 1 FROM streams WHERE stream = ?", LEAST_NUMBER)
        for name in "ah":
            await host.run("ops", "hello", session=name, principal=ANN)
            assert (await host.events.head(f"session:{name}")).oldest > heads[name]


async def test_a_host_prunes_by_itself(autojump_clock: MockClock) -> None:
    async with motet.open_host(agents=[_agent(say("ok"))]) as host:
        await host.run("ops", "hello", session="s", principal=ANN)
        await _age(host, 400)
        await trio.sleep(FIRST - 10)
        assert await _count(host, "sessions") == 1
        await trio.sleep(20)
        assert await _count(host, "sessions") == 0


async def test_a_session_that_is_used_while_it_is_being_deleted_stays() -> None:
    """Between the look and the deletion, an input has come and was answered."""
    async with motet.open_host(agents=[_agent(say("ok"), say("ok"))]) as host:
        await host.run("ops", "hello", session="s", principal=ANN)
        await _age(host, 400)
        ((used,),) = await _run(host, "SELECT updated FROM sessions")
        await host.run("ops", "I am back", session="s", principal=ANN)
        forgetting = Forgetting(_parts(host))
        assert not await forgetting.session("s", float(used or 0) + DAY)
        assert len(await host.runs(session="s", principal=ANN)) == 2
        assert not await forgetting.session("never", 2e9)
        assert await forgetting.session("s", 2e9)


async def test_slices_are_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """No transaction deletes more than a slice, so that none of a turn waits long."""
    async with motet.open_host(agents=[_agent(say("ok"))]) as host:
        await host.run("ops", "hello", session="s", principal=ANN)
        add = """
            WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1700)
            INSERT INTO events (stream, seq, ts, event, data)
            SELECT 'session:s', 100 + i, 0, 'warning', '{}' FROM n"""
        await _run(host, add)
        await _parts(host).journal.settle()
        deleted = list[int]()

        async def write(transaction: Transaction) -> Rows:
            rows = await _parts(host).stores.transact(transaction)
            deleted.append(max(map(len, rows)))
            return rows

        async def read(one: Statement) -> tuple[Row, ...]:
            return await _parts(host).readers.read(one.sql, one.params)

        async def stays(_name: str, _since: float) -> bool:
            return False

        limits = Limits.of(HostConfig())
        await retention.prune(Hands(read, write, stays, stays), limits, 3e9)
        assert sum(deleted) > 1_700
        assert max(deleted) == retention.BATCH


def test_a_clock_that_was_put_forward_makes_nothing_old_at_once() -> None:
    assert aged(500.0, None, 0.0, first=True) == 500.0
    assert aged(1e9, 1_000.0, 60.0, first=True) == 1_120.0 + DAY
    assert aged(1e9, 1_000.0, 3_600.0, first=False) == 8_200.0
    assert aged(900.0, 1_000.0, 3_600.0, first=False) == 900.0


def test_a_shorter_time_keeps_the_order_of_the_limits() -> None:
    limits = Limits.of(HostConfig())
    short = limits.shortened(1 / 64)
    assert short.events < short.runs < short.sessions
    least = limits.shortened(0.0)
    assert (least.events, least.runs, least.sessions) == (1 / 24, 2.0, 2.0)
    for_ever = attrs.evolve(limits, sessions=inf, events=1 / 48, errors=Keep())
    assert for_ever.shortened(0.5).sessions == inf
    assert for_ever.shortened(0.5).events == 1 / 48
    assert for_ever.shortened(0.5).errors == Keep()


def test_the_documentation_has_all_limits() -> None:
    text = (Path(__file__).parents[3] / "docs" / "operations.md").read_text()
    for field in attrs.fields(RetentionConfig):
        assert re.search(rf"^{field.name} = {field.default}\b", text, re.MULTILINE), field.name
