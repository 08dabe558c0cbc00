"""A deleted session leaves nothing behind, in any table; one that is in use stays whole."""

from contextlib import closing
from pathlib import Path

import pytest
import trio

from motet import Agent, open_host
from motet.actors.storage.connection import Connection
from motet.actors.storage.location import DATABASE_FILE
from motet.protocols.errors import NotFound
from motet.protocols.limits import Limits
from motet.protocols.sessions import DeleteSession, Principal, SessionBusy
from tests.scripted import Scripted, call, say

KEPT = {"tokens"}
"""Tables that may name a deleted session: a token names its user."""


def mentions(state: Path, text: str) -> set[str]:
    """The tables with a row in which the text occurs anywhere."""
    with closing(Connection(str(state / DATABASE_FILE))) as database:
        tables = database.run("SELECT name FROM sqlite_master WHERE type = 'table'")
        return {
            str(table)
            for (table,) in tables
            for row in database.run(f"SELECT * FROM {table}")
            if any(text in str(value) for value in row)
        }


async def test_a_deleted_session_leaves_no_row_and_others_stay(tmp_path: Path) -> None:
    agent = Agent("helper", model="demo", tools=["group:fs"], memory=True)

    @agent.tool
    def fail() -> str:
        """Fail with a secret word."""
        raise OSError("oleander broke")

    async with open_host(tmp_path / "st") as host:
        for session in ("oleander", "other"):
            await host.run(agent, "my word is oleander", session=session, key=f"{session}-k")
            await host.run(agent, "fail", session=session, check=False)
        assert await host.delete("oleander") == 6
        with pytest.raises(NotFound):
            await host.session("oleander")
        head = await host.events.head("session:oleander")
        assert head.head == head.oldest - 1 > 0, "no number is used again"
        assert (await host.events.head("session:new")).head == 0
        assert (await host.session("other")).rows == 6
        await host.run(agent, "again", session="oleander")
        assert (await host.session("oleander")).rows == 2
        assert (await host.events.head("session:oleander")).oldest == head.head + 1
        assert await host.delete("oleander") == 2
        assert await host.delete("other") == 6

    assert mentions(tmp_path / "st", "oleander") <= KEPT
    assert mentions(tmp_path / "st", "run_") <= KEPT


async def test_sessions_of_sub_agents_are_deleted_as_well(tmp_path: Path) -> None:
    inner = Agent("inner", model=Scripted(say("oleander"), name="inner"))
    middle_model = Scripted(call(("inner", {"task": "x"})), say("oleander"), name="middle")
    middle = Agent("middle", model=middle_model, tools=[inner.as_tool()])
    outer_model = Scripted(call(("middle", {"task": "oleander"})), say("done"), name="outer")
    outer = Agent("outer", model=outer_model, tools=[middle.as_tool()], limits=Limits(depth=2))
    async with open_host(tmp_path / "st") as host:
        await host.run(outer, "go", session="s")
        assert await host.delete("s") == 4
        assert await host.runs() == ()
    assert mentions(tmp_path / "st", "oleander") <= KEPT
    assert mentions(tmp_path / "st", "run_") <= KEPT


async def test_a_run_is_stopped_before_its_session_goes(tmp_path: Path) -> None:
    agent = Agent("helper", model="demo")
    async with (
        open_host(tmp_path / "st") as host,
        trio.open_nursery() as nursery,
        host.stream(agent, "wait 1000", session="s") as run,
    ):
        nursery.start_soon(host.delete, "s")
        assert (await run.wait()).status == "cancelled"
    assert not mentions(tmp_path / "st", "wait 1000")


async def test_an_unanswered_input_keeps_its_session(tmp_path: Path) -> None:
    async with open_host(tmp_path / "st", agents=[Agent("helper", model="demo")]) as host:
        await host.submit("wait 1000", session="s")
        store = host.system.find("/host/sessions")
        assert store is not None
        with pytest.raises(SessionBusy, match="stop it"):
            await store.ask(DeleteSession("s"))
        await host.stop(session="s")


async def test_a_foreign_session_is_not_found(tmp_path: Path) -> None:
    async with open_host(tmp_path / "st", agents=[Agent("helper", model="demo")]) as host:
        await host.run("helper", "hi", session="s", principal=Principal("alice"))
        with pytest.raises(NotFound):
            await host.delete("s", principal=Principal("bob"))
        assert (await host.session("s")).rows == 2
