"""Agents by name: those of the program first, stored ones loaded once and cached."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from motet import Agent
from motet.actors.agents.registry import TTL, AgentRegistry, Resolver, model_name
from motet.actors.agents.spec import AnyAgent
from motet.actors.models.catalog import ModelCatalog
from motet.actors.tools.builtin.all_tools import GROUPS, builtin_tools
from motet.actors.tools.catalog import ToolCatalog
from motet.protocols.agents import AgentProfile, AgentRecord, Team
from motet.protocols.errors import ConfigError, UnknownName
from motet.protocols.limits import Limits


class FakeStore:
    """A store in memory. It answers when ``open`` is set, and counts how often it was asked."""

    def __init__(self, *records: AgentRecord) -> None:
        self.kept = {record.name: record for record in records}
        self.asked = 0
        self.open = trio.Event()
        self.open.set()
        self.error: Exception | None = None

    async def get(self, name: str) -> AgentRecord | None:
        self.asked += 1
        found = self.kept.get(name)
        await self.open.wait()
        await trio.lowlevel.checkpoint()
        if self.error is not None:
            raise self.error
        return found

    async def records(self) -> tuple[AgentRecord, ...]:
        await trio.lowlevel.checkpoint()
        return tuple(self.kept[name] for name in sorted(self.kept))

    async def put(self, record: AgentRecord) -> None:
        await trio.lowlevel.checkpoint()
        self.kept[record.name] = record

    async def remove(self, name: str) -> bool:
        await trio.lowlevel.checkpoint()
        return self.kept.pop(name, None) is not None


def registry(catalog: ToolCatalog | None = None) -> AgentRegistry:
    return AgentRegistry(catalog or ToolCatalog(), ModelCatalog(), builtin_tools(), GROUPS)


REX = AgentRecord("rex", instructions="Bark.")


async def test_agents_of_the_program_come_first_and_without_waiting() -> None:
    known, store = registry(), FakeStore(REX)
    own = Agent("rex")
    known.add(own)
    assert await Resolver(known, store).resolve("rex") is own
    assert store.asked == 0


async def test_a_hundred_callers_at_once_load_once() -> None:
    store, found = FakeStore(REX), list[AnyAgent]()
    store.open = trio.Event()
    resolver = Resolver(registry(), store)

    async def ask() -> None:
        found.append(await resolver.resolve("rex"))

    async with trio.open_nursery() as nursery:
        for _ in range(100):
            nursery.start_soon(ask)
        await wait_all_tasks_blocked()
        assert store.asked == 1
        store.open.set()
    assert len(found) == 100
    assert len({id(agent) for agent in found}) == 1
    assert store.asked == 1


async def test_the_next_caller_loads_when_the_loading_one_is_cancelled() -> None:
    store, found = FakeStore(REX), list[AnyAgent]()
    store.open = trio.Event()
    resolver = Resolver(registry(), store)

    async def ask() -> None:
        found.append(await resolver.resolve("rex"))

    async with trio.open_nursery() as nursery:
        scope = trio.CancelScope()

        async def impatient() -> None:
            with scope:
                await resolver.resolve("rex")

        nursery.start_soon(impatient)
        await wait_all_tasks_blocked()
        nursery.start_soon(ask)
        nursery.start_soon(ask)
        await wait_all_tasks_blocked()
        scope.cancel()
        await wait_all_tasks_blocked()
        store.open.set()
    assert len(found) == 2
    assert store.asked == 2


async def test_all_waiting_callers_get_the_error_and_it_is_not_cached() -> None:
    store, errors = FakeStore(REX), list[Exception]()
    store.open, store.error = trio.Event(), OSError("no store")
    resolver = Resolver(registry(), store)

    async def ask() -> None:
        try:
            await resolver.resolve("rex")
        except OSError as error:
            errors.append(error)

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(ask)
        await wait_all_tasks_blocked()
        store.open.set()
    assert len(errors) == 3
    assert store.asked == 1
    store.error = None
    assert (await resolver.resolve("rex")).instructions == "Bark."


async def test_an_agent_is_cached_for_ten_minutes(mock_clock: MockClock) -> None:
    store = FakeStore(REX)
    resolver = Resolver(registry(), store)
    first = await resolver.resolve("rex")
    await resolver.resolve("rex")
    mock_clock.jump(TTL)
    assert await resolver.resolve("rex") is first
    store.kept["rex"] = AgentRecord("rex", instructions="Purr.")
    mock_clock.jump(1)
    later = await resolver.resolve("rex")
    assert (later.instructions, first.instructions) == ("Purr.", "Bark.")
    assert store.asked == 2


async def test_a_change_takes_effect_at_the_next_use() -> None:
    resolver = Resolver(registry(), FakeStore())
    await resolver.put(REX)
    first = await resolver.resolve("rex")
    await resolver.put(AgentRecord("rex", instructions="Purr."))
    assert (await resolver.resolve("rex")).instructions == "Purr."
    assert first.instructions == "Bark."
    assert await resolver.remove("rex")
    assert not await resolver.remove("rex")
    with pytest.raises(UnknownName):
        await resolver.resolve("rex")


async def test_an_agent_read_before_a_change_is_not_cached() -> None:
    store, found = FakeStore(REX), list[AnyAgent]()
    store.open = trio.Event()
    resolver = Resolver(registry(), store)

    async def ask() -> None:
        found.append(await resolver.resolve("rex"))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        await wait_all_tasks_blocked()
        await resolver.put(AgentRecord("rex", instructions="Purr."))
        nursery.start_soon(ask)
        await wait_all_tasks_blocked()
        store.open.set()
    assert [agent.instructions for agent in found] == ["Purr.", "Purr."]
    assert (await resolver.resolve("rex")).instructions == "Purr."
    assert store.asked == 2


async def test_an_unknown_name_is_compared_with_those_of_all_sources() -> None:
    known = registry()
    known.add(Agent("helper"))
    resolver = Resolver(known, FakeStore(REX, AgentRecord("old", status="inactive")))
    for wrong, near in (("helpr", "helper"), ("rexx", "rex"), ("olt", "old")):
        with pytest.raises(UnknownName, match=f"did you mean '{near}'"):
            await resolver.resolve(wrong)
    with pytest.raises(ConfigError, match="'old' is inactive"):
        await resolver.resolve("old")
    with pytest.raises(UnknownName, match="did you mean 'helper'"):
        await Resolver(known).resolve("helpr")


async def test_an_agent_that_could_never_run_is_refused_before_it_is_stored(tmp_path: Path) -> None:
    known, store = registry(), FakeStore()
    known.add(Agent("helper"))
    resolver = Resolver(known, store)
    wrong = {
        "did you mean 'read_file'": AgentRecord("a", tools=("read_fil",)),
        "did you mean 'openai'": AgentRecord("a", model="opnai:m"),
        "use 1 to 64 letters": AgentRecord("a b"),
        "choose another name": AgentRecord("helper"),
        "are not a folder": AgentRecord("a", profile=AgentProfile(files=str(tmp_path / "no"))),
    }
    for message, record in wrong.items():
        with pytest.raises(ConfigError, match=message):
            await resolver.put(record)
    assert store.kept == {}
    with pytest.raises(ConfigError, match="no store of agents"):
        await Resolver(known).put(REX)


async def test_defaults_fill_what_a_record_leaves_open() -> None:
    store = FakeStore(
        REX,
        AgentRecord("own", model="m", iterations=5, profile=AgentProfile(window=-1)),
        AgentRecord("set", limits=Limits(turns=7), profile=AgentProfile(window=9, team=Team("t"))),
    )
    resolver = Resolver(registry(), store, limits=Limits(turns=20, tokens=9))
    rex, own, chosen = [await resolver.resolve(name) for name in ("rex", "own", "set")]
    assert (rex.limits, rex.model_name) == (Limits(turns=20, tokens=9), "demo")
    assert (own.limits, own.model_name) == (Limits(turns=5, tokens=9), "openai:m")
    assert chosen.limits == Limits(turns=7)
    windows = [agent.profile.window for agent in (rex, own, chosen, Agent("code"))]
    assert windows == [200_000, 200_000, 9, 200_000]
    assert chosen.profile.team == Team("t")


def test_a_record_s_model_is_of_its_provider_or_of_the_first(
    caplog: pytest.LogCaptureFixture,
) -> None:
    providers = ("mine", "openai")

    def named(provider: str, model: str) -> str:
        return model_name(AgentRecord("a", provider=provider, model=model), providers)

    assert named("openai", "m") == "openai:m"
    assert named("", "m") == "mine:m"
    assert named("", "openai:m") == "openai:m"
    assert named("openai", "llama:8b") == "openai:llama:8b"
    assert named("", "demo") == named("demo", "m") == "demo"
    assert not caplog.records
    assert named("gone", "m") == "mine:m"
    assert "not registered" in caplog.text
    with pytest.raises(ConfigError, match="no model provider"):
        model_name(AgentRecord("a", model="m"), ())


async def test_every_agent_has_tools_of_its_own_and_loses_those_taken_away() -> None:
    catalog = ToolCatalog()
    resolver = Resolver(registry(catalog), FakeStore())
    await resolver.put(AgentRecord("a", tools=("group:fs",)))
    await resolver.put(AgentRecord("b", tools=("shell",)))
    await resolver.resolve("a")
    await resolver.resolve("b")
    assert "read_file" in catalog.names("a")
    assert "read_file" not in catalog.names("b")
    await resolver.put(AgentRecord("a", tools=("shell",)))
    await resolver.resolve("a")
    assert catalog.names("a") == ("shell",)
    await resolver.remove("a")
    assert catalog.names("a") == ()


async def test_an_agent_of_the_program_replaces_a_stored_one() -> None:
    known = registry()
    resolver = Resolver(known, FakeStore(REX))
    await resolver.resolve("rex")
    own = Agent("rex", instructions="Mine.")
    known.add(own)
    assert await resolver.resolve("rex") is own
    assert known.get("rex") is own
    with pytest.raises(ConfigError, match="of its own"):
        known.put(Agent("rex"))
