"""Memory: as context and by tools, for its owner only; its failures cost a warning."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

import motet
from motet.actors.storage.location import Location
from motet.actors.storage.memory import MemoryStore, StoredMemory
from motet.actors.storage.readers import Readers
from motet.actors.storage.writer import through
from motet.protocols.chat import AssistantMessage, Call, ToolMessage, UserMessage
from motet.protocols.config import AgentConfig, HostConfig
from motet.protocols.memory import Remembered, extra_context, full_text_query, memorable
from motet.protocols.sessions import Principal
from motet.protocols.storage import DatabaseLocked, Row, Statement, Transact
from motet.runtime import Actor, handles, open_system
from tests.faulty import Fault, FaultyMemory
from tests.scripted import Scripted, call, say

ANN, BOB = Principal("ann", "operator"), Principal("bob", "operator")


def agent(script: Scripted, name: str = "a") -> motet.Agent[None]:
    return motet.Agent(name, model=script, memory=True)


async def test_messages_of_one_session_are_context_in_the_next() -> None:
    script = Scripted(say("A fine town."), say("Lisbon."), say("No idea."))
    async with motet.open_host() as host:
        a = agent(script)
        await host.run(a, "I live in Lisbon by the river", session="one", principal=ANN)
        await host.run(a, "Where is it that I live?", session="two", principal=ANN)
        await host.run(a, "Where is it that I live?", session="three", principal=BOB)
    first, second, third = [request.system for request in script.requests]
    assert "<extra_context>" not in first
    assert "user: I live in Lisbon by the river" in second
    assert second.endswith("</extra_context>")
    assert "Lisbon" not in third, "another person's memory (G16)"
    assert all("Lisbon" not in row.text for row in script.requests[2].messages)
    assert all("extra_context" not in row.text for r in script.requests for row in r.messages)


async def test_a_session_does_not_recall_its_own_transcript() -> None:
    script = Scripted(say("Noted."), say("Yes."))
    async with motet.open_host() as host:
        a = agent(script)
        await host.run(a, "my cat is called Mo", session="one")
        await host.run(a, "is my cat called Mo", session="one")
    assert "<extra_context>" not in script.requests[1].system


async def test_an_agent_without_memory_neither_stores_nor_recalls() -> None:
    script, other = Scripted(say("ok"), say("ok")), Scripted(say("ok"), name="other")
    async with motet.open_host() as host:
        plain = motet.Agent("plain", model=script)
        await host.run(plain, "I live in Lisbon", session="one")
        await host.run(agent(other, "b"), "who lives in Lisbon", session="two")
    assert "<extra_context>" not in other.requests[0].system
    assert script.requests[0].tools == ()
    assert {"memory_search", "memory_write"} <= {spec.name for spec in other.requests[0].tools}


async def test_notes_are_written_and_found_by_tools_for_their_owner_only(tmp_path: Path) -> None:
    write = call(("memory_write", {"text": "Ann's birthday is in May."}))
    search = call(("memory_search", {"query": 'birthday? (May) AND "x'}))
    script = Scripted(write, say("ok"), search, say("ok"), search, say("ok"))
    async with motet.open_host(tmp_path) as host:
        await host.run(agent(script), "note it", session="one", principal=ANN)
    async with motet.open_host(tmp_path) as host:  # it survives the host
        a = agent(script)
        mine = await host.run(a, "look", session="two", principal=ANN)
        foreign = await host.run(a, "look", session="three", principal=BOB)
    (found,) = [row.text for row in mine.rows if isinstance(row, ToolMessage)]
    (nothing,) = [row.text for row in foreign.rows if isinstance(row, ToolMessage)]
    assert "Ann's birthday is in May." in found
    assert '"note"' in found
    assert nothing == "[]"


async def test_memory_can_be_configured() -> None:
    from motet.actors.hosting.config import build_agents

    config = HostConfig(agents={"a": AgentConfig(memory=True), "b": AgentConfig()})
    a, b = build_agents(config, source="motet.toml", root=Path())
    assert (a.memory, b.memory) == (True, False)


async def test_secrets_are_not_remembered() -> None:
    script = Scripted(say("ok"), say("ok"))
    async with motet.open_host() as host:
        a = agent(script)
        await host.run(a, "the password=hunter2 opens the shed", session="one")
        await host.run(a, "what opens the shed", session="two")
    system = script.requests[1].system
    assert "opens the shed" in system
    assert "hunter2" not in system


@pytest.mark.parametrize("reading", [RuntimeError("boom"), "hangs"])
@pytest.mark.parametrize("writing", [OSError("no room"), "hangs"])
async def test_a_memory_that_fails_or_hangs_costs_a_warning_each_time_and_a_second_at_most(
    reading: Fault,
    writing: Fault,
    autojump_clock: MockClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    memory, script = FaultyMemory(reading, writing), Scripted(say("fine"))
    began = trio.current_time()
    async with motet.open_host(memory=memory) as host:
        async with host.stream(agent(script), "go") as run:
            seen = [event async for event in run]
        assert run.result.output == "fine"
    assert trio.current_time() - began <= 2.0 + 1e-6
    warned = [event.message for event in seen if isinstance(event, motet.Warned)]
    assert [text.partition(":")[0] for text in warned] == [
        "the memory could not be read",
        "the memory could not be written",
    ]
    assert ("boom" if reading != "hangs" else "no answer within 1 s") in warned[0]
    assert ("no room" if writing != "hangs" else "no answer within 1 s") in warned[1]
    assert type(seen[-1]).__name__ == "RunCompleted", "the warnings come before the end"
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]
    assert "<extra_context>" not in script.requests[0].system
    assert memory.asked == ["read", "observe"]


async def test_a_damaged_index_costs_warnings_and_no_answer() -> None:
    script = Scripted(say("fine"))
    async with motet.open_host() as host:
        database = host.system.find("/host/database")
        assert database is not None
        await database.ask(Transact((Statement("DROP TABLE memories_text"),)))
        async with host.stream(agent(script), "go on") as run:
            seen = [event async for event in run]
        assert run.result.output == "fine"
    assert sum(isinstance(event, motet.Warned) for event in seen) == 2


class Stuck(Actor[Transact]):
    """A database that another program holds: what was begun cannot be cancelled."""

    @handles(Transact, concurrent=4)
    async def transact(self, message: Transact) -> tuple[tuple[Row, ...], ...]:
        with trio.CancelScope(shield=True):
            await trio.sleep(60)
        raise DatabaseLocked("another program writes")


async def test_a_write_to_a_locked_database_can_be_left(autojump_clock: MockClock) -> None:
    with Location.memory() as location:
        async with open_system() as system:
            database = await system.start(Stuck, name="database")
            store = await system.start(
                lambda: MemoryStore(through(database), Readers(location)), name="memory"
            )
            memory, began = StoredMemory(store), trio.current_time()
            with trio.move_on_after(1):
                await memory.write("a note", "s")
            assert trio.current_time() - began == pytest.approx(1)
            with pytest.raises(DatabaseLocked):
                await memory.write("a note", "s")


async def test_a_failed_or_stopped_turn_is_not_remembered() -> None:
    memory = FaultyMemory(RuntimeError("no"), RuntimeError("no"))
    script = Scripted(call(("memory_write", {"text": "x"})), None)
    async with motet.open_host(memory=memory) as host:
        with trio.move_on_after(0.5):
            await host.run(agent(script), "go")
    assert memory.asked == ["read", "write"]


async def test_an_owner_keeps_the_newest_only(monkeypatch: pytest.MonkeyPatch) -> None:
    from motet.actors.storage import memory as store

    monkeypatch.setattr(store, "KEPT", 4)
    script = Scripted(*[say("fine") for _ in range(5)])
    async with motet.open_host() as host:
        a = agent(script)
        for n in range(5):
            await host.run(a, f"thing number {n}", session=f"s{n}")
        database = host.system.find("/host/database")
        assert database is not None
        counted = Statement("SELECT count(*), min(seq) FROM memories")
        ((rows,),) = await database.ask(Transact((counted,)))
    assert rows == (4, 7)


def test_only_user_messages_and_answers_are_stored() -> None:
    rows = (
        UserMessage("q"),
        AssistantMessage("let me look", (Call("c", "t", "{}"),)),
        ToolMessage("c", "t", "data", "done"),
        AssistantMessage("the answer"),
    )
    assert [item.text for item in memorable(rows)] == ["q", "the answer"]


@given(st.lists(st.builds(Remembered, st.text(), st.just("user"), st.floats(0, 2e9)), max_size=7))
def test_no_memory_can_close_its_block_or_make_it_long(found: list[Remembered]) -> None:
    """Law: one block of at most 5 lines after its introduction, each of bounded length."""
    block = extra_context(found)
    assert bool(block) == bool(found)
    assert block.count("<") == (2 if found else 0)
    assert len(block.splitlines()) <= 8
    assert len(block) < 20_000


@given(st.text())
def test_any_text_makes_a_query_that_the_index_takes(text: str) -> None:
    """Law: a query is empty, or words in quotes with OR between them."""
    query = full_text_query(text)
    assert all(word[0] == word[-1] == '"' for word in query.split(" OR ") if query)
    assert query.count('"') % 2 == 0
