"""A session is summarised after the reply: nobody waits for it, and no row is lost."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

import motet
from motet.actors.transcript.summary import HEADER
from motet.protocols.chat import UserMessage
from motet.protocols.errors import NotFound
from motet.protocols.events import EventRecord, SessionCompacted
from motet.protocols.models import (
    CallArguments,
    CallStart,
    Finished,
    ModelEvent,
    ModelFailure,
    ModelRequest,
    TextPart,
    Usage,
    UsageReport,
)

ROWS = 52
"""Two more than a conversation may have."""


class Teller:
    """Answers at length, and has its other requests wait for ``goes_on``.

    ``flushes``: it is also asked to write memory files, and writes one.
    """

    name = "teller"

    def __init__(self, summary: str | None = "They told each other of what was long ago.") -> None:
        self.summary = summary
        self.goes_on = trio.Event()
        self.answers: list[ModelRequest] = []
        self.flushes: list[ModelRequest] = []
        self.summaries: list[ModelRequest] = []

    @asynccontextmanager
    async def request(self, request: ModelRequest) -> AsyncGenerator[AsyncIterator[ModelEvent]]:
        yield self._answer(request)

    async def _answer(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        asked = str(request.messages[-1])
        if "Write the summary" in asked:
            self.summaries.append(request)
            await self.goes_on.wait()
            if self.summary is None:
                raise ModelFailure("no", kind="auth", status=401)
            yield TextPart(self.summary)
        elif {tool.name for tool in request.tools} == {"read_file", "write_file"}:
            self.flushes.append(request)
            if len(self.flushes) == 1:
                yield CallStart(0, "c0", "write_file")
                yield CallArguments(0, '{"path": "memory/2026-11-21.md", "content": "likes tea"}')
            else:
                yield TextPart("NO_REPLY")
        else:
            self.answers.append(request)
            yield TextPart("Then it went on.")
        yield UsageReport(Usage(len(str(request.messages)) // 4, 5))
        yield Finished("stop")


async def talk(host: motet.Host, agent: motet.Agent[None]) -> None:
    for turn in range(ROWS // 2):
        await host.run(agent, f"tell me more ({turn})", session="s")


async def until_compacted(records: list[EventRecord]) -> None:
    with trio.fail_after(60):
        while not any(isinstance(record.event, SessionCompacted) for record in records):
            await trio.sleep(0.001)


async def test_the_reply_comes_before_the_summary_and_later_rows_are_kept() -> None:
    model, records = Teller(), list[EventRecord]()
    agent = motet.Agent("a", model=model)
    async with motet.open_host() as host:
        host.events.attach("session:s", records.append)
        await talk(host, agent)
        await wait_all_tasks_blocked()
        assert len(model.summaries) == 1
        assert not any(isinstance(record.event, SessionCompacted) for record in records)

        await host.run(agent, "meanwhile", session="s")
        model.goes_on.set()
        await until_compacted(records)

        await host.run(agent, "and now?", session="s")
        last = model.answers[-1].messages
        texts = [row.text for row in last]
        assert texts[0].startswith(HEADER)
        assert "what was long ago" in texts[0]
        assert "meanwhile" in texts
        assert texts[-1] == "and now?"
        stored = [item.row for item in await host.history("s", limit=200)]
    said = [row.text for row in stored if isinstance(row, UserMessage)]
    assert said == [*(f"tell me more ({n})" for n in range(ROWS // 2)), "meanwhile", "and now?"]


async def test_a_model_that_fails_at_the_summary_loses_nothing() -> None:
    model, records = Teller(summary=None), list[EventRecord]()
    model.goes_on.set()
    agent = motet.Agent("a", model=model)
    async with motet.open_host() as host:
        host.events.attach("session:s", records.append)
        await talk(host, agent)
        await until_compacted(records)
        await host.run(agent, "and now?", session="s")
        assert model.answers[-1].messages[0].text.startswith(HEADER)
        assert len(await host.history("s", limit=200)) == ROWS + 2


async def test_an_agent_with_memory_writes_its_files_before_the_summary(tmp_path: Path) -> None:
    model, records = Teller(), list[EventRecord]()
    model.goes_on.set()
    agent = motet.Agent("a", model=model, memory=True)
    async with motet.open_host(tmp_path / "st", workspace=tmp_path / "ws") as host:
        host.events.attach("session:s", records.append)
        await talk(host, agent)
        await until_compacted(records)
    assert (tmp_path / "ws" / "memory" / "2026-11-21.md").read_text() == "likes tea\n"
    assert len(model.flushes) == 2


async def test_a_policy_against_memory_keeps_the_flush_from_writing(tmp_path: Path) -> None:
    model, records = Teller(), list[EventRecord]()
    model.goes_on.set()
    rules = motet.ToolRules(deny=("group:memory",))
    agent = motet.Agent("a", model=model, memory=True, policy=rules)
    async with motet.open_host(tmp_path / "st", workspace=tmp_path / "ws") as host:
        host.events.attach("session:s", records.append)
        await talk(host, agent)
        await until_compacted(records)
    assert model.flushes == []
    assert not (tmp_path / "ws" / "memory").exists()


async def test_a_host_that_closes_during_a_summary_closes_at_once() -> None:
    model = Teller()
    agent = motet.Agent("a", model=model)
    with trio.fail_after(60):
        async with motet.open_host() as host:
            await talk(host, agent)
            await wait_all_tasks_blocked()
            assert model.summaries


async def test_a_person_can_compact_a_session_at_any_time() -> None:
    model = Teller()
    model.goes_on.set()
    agent = motet.Agent("a", model=model)
    async with motet.open_host() as host:
        await host.run(agent, "one", session="s")
        assert await host.compact("s") is None
        for text in ("two", "three", "four", "five"):
            await host.run(agent, text, session="s")
        assert await host.compact("s") == SessionCompacted(1, 6)
        assert host.status().running == 0
        await host.run(agent, "and now?", session="s")
        texts = [row.text for row in model.answers[-1].messages]
        assert texts[0].startswith(HEADER)
        assert texts[2:] == ["four", "Then it went on.", "five", "Then it went on.", "and now?"]
        with pytest.raises(NotFound):
            await host.compact("other")


async def test_a_hook_can_refuse_a_summary() -> None:
    agent = motet.Agent("a", model=Teller())
    async with motet.open_host() as host:

        @host.on("before_compact")
        async def refuse(_event: motet.BeforeCompact) -> motet.Deny:
            return motet.Deny("not now")

        for text in ("one", "two", "three", "four"):
            await host.run(agent, text, session="s")
        assert await host.compact("s") is None


async def test_a_summary_draws_from_the_budget_of_its_run() -> None:
    model, records = Teller(), list[EventRecord]()
    model.goes_on.set()
    agent = motet.Agent("a", model=model)
    async with motet.open_host() as host:
        host.events.attach("session:s", records.append)
        for turn in range(ROWS // 2 - 1):
            await host.run(agent, f"tell me more ({turn})", session="s")
        # Enough for the answer, and not for a summary of all that has been said besides.
        await host.run(agent, "the last", session="s", limits=motet.Limits(tokens=1_200))
        await until_compacted(records)
    assert model.summaries == []
