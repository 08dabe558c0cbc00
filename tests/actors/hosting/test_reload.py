"""Changes by a reload: which, when, and everything it leaves alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import attrs
import pytest
import trio

import motet
from motet import Host
from motet.actors.hosting.tree import Parts
from motet.client import TurnedAway
from motet.protocols.chat import JsonObject
from motet.protocols.config import (
    AgentConfig,
    GatewayConfig,
    HookConfig,
    HostConfig,
    ModelsConfig,
    ProviderConfig,
    TokenConfig,
)
from motet.protocols.errors import ConfigError
from motet.protocols.events import AnyEvent, ConfigChanged, Warned
from motet.protocols.hooks import Allow, BeforeTool
from motet.protocols.mcp import McpServer
from motet.protocols.policy import PolicyRule
from motet.protocols.reload import Change
from tests.actors.tools.mcp.stage import children, faulty
from tests.scripted import Scripted, call, say


def agents(**instructions: str) -> HostConfig:
    named = {name: AgentConfig(instructions=text) for name, text in instructions.items()}
    return HostConfig(agents=named)


async def test_a_live_run_keeps_its_tools_and_the_next_one_gets_the_new_ones(
    tmp_path: Path,
) -> None:
    before = HostConfig(agents={"a": AgentConfig(tools=("group:fs",))})
    after = HostConfig(agents={"a": AgentConfig()})
    async with motet.open_host(config=before, workspace=tmp_path) as host:
        gate = Held()
        host.on("before_tool")(gate.hold)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run_into, host, gate.answers)
            await gate.reached.wait()
            plan = await host.reload(after)
            gate.free.set()
        assert plan.changes == (Change("agents.a", "drain"),)
        assert (tmp_path / "x.txt").read_text() == "1"
        assert "x.txt" in gate.answers[0], "it went on to list the files"
        assert await host.tools("a") == ()
        ask = await host.run("a", "list files")
        assert "x.txt" not in ask.text


@attrs.define
class Held:
    reached: trio.Event = attrs.field(factory=trio.Event)
    free: trio.Event = attrs.field(factory=trio.Event)
    answers: list[str] = attrs.field(factory=list[str])

    async def hold(self, _: BeforeTool) -> Allow:
        self.reached.set()
        await self.free.wait()
        return Allow()


async def run_into(host: Host, answers: list[str]) -> None:
    result = await host.run("a", "write x.txt: 1 and then list files")
    answers.append(result.text)


async def test_guards_change_at_once(tmp_path: Path) -> None:
    """Given a run that is at work, when a rule denies its next tool, then it is denied."""
    config = HostConfig(agents={"a": AgentConfig(tools=("group:fs",))})
    rule = PolicyRule(tool="list_files", effect="deny")
    async with motet.open_host(config=config, workspace=tmp_path) as host:
        gate = Held()
        host.on("before_tool", match="write_file")(gate.hold)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run_into, host, gate.answers)
            await gate.reached.wait()
            await host.reload(attrs.evolve(config, policy=(rule,)))
            gate.free.set()
        judged = {one.name: one.effect for one in await host.tools("a")}
        assert judged["list_files"] == "deny"
        assert "list_files, which I am not offered" in gate.answers[0]


async def test_a_change_and_a_refused_one_are_published() -> None:
    told: list[AnyEvent] = []
    async with motet.open_host(config=agents(a="x")) as host:
        leave = host.events.attach("host", lambda record: told.append(record.event))
        await host.reload(agents(a="y"))
        broken = HostConfig(agents={"a": AgentConfig(tools=("nothing",))})
        with pytest.raises((ConfigError, motet.UnknownName)):
            await host.reload(broken)
        await until(lambda: len(told) == 2)
        leave()
        changed = ConfigChanged(host.configuration().hash, (Change("agents.a", "drain"),))
        assert told[0] == changed
        assert isinstance(told[1], Warned)
        assert "nothing" in told[1].message


async def test_a_refused_reload_logs_no_change_as_done(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "motet.config")
    broken = HostConfig(agents={"a": AgentConfig(tools=("nothing",))}, guard="block")
    async with motet.open_host(config=agents(a="x")) as host:
        with pytest.raises((ConfigError, motet.UnknownName)):
            await host.reload(broken)
        assert [one.message for one in caplog.records] == ["the configuration stays as it is"]
        await host.reload(attrs.evolve(broken, agents={"a": AgentConfig()}))
        assert "guard: takes effect at once" in caplog.text


async def test_a_hash_that_is_not_in_force_refuses() -> None:
    async with motet.open_host(config=agents(a="x")) as host:
        known = host.configuration().hash
        await host.reload(agents(a="y"), expect_hash=known)
        with pytest.raises(ConfigError, match="look at it again"):
            await host.reload(agents(a="z"), expect_hash=known)


async def test_agents_of_the_program_stay() -> None:
    own = motet.Agent("own", model="demo")
    async with motet.open_host(config=agents(a="x"), agents=[own]) as host:
        await host.reload(agents(b="x"))
        assert [agent.name for agent in host.agents()] == ["own", "b"]
        assert (await host.run(own, "hi")).status == "completed"
        with pytest.raises(motet.UnknownName):
            await host.run("a", "hi")


async def test_former_models_and_kits_are_let_go() -> None:
    """Given reloads with nothing at work, when they are done, then only the last kit is kept."""
    async with motet.open_host(config=agents(a="x")) as host:
        for text in "yz":
            await host.reload(agents(a=text))
        await until(lambda: len(inside(host).generations.toolkits) == 1)


def inside(host: Host) -> Parts:
    """What no public call tells."""
    return host._parts  # pyright: ignore[reportPrivateUsage]


async def until(holds: Callable[[], bool]) -> None:
    with trio.fail_after(60):
        while not holds():
            await trio.lowlevel.checkpoint()


async def test_a_run_of_a_former_configuration_is_steered(tmp_path: Path) -> None:
    """Given a run whose agent is another one by now, when a text is sent into it, it takes it."""
    before = HostConfig(agents={"a": AgentConfig(tools=("group:fs",), instructions="one")})
    after = HostConfig(agents={"a": AgentConfig(tools=("group:fs",), instructions="two")})
    async with motet.open_host(config=before, workspace=tmp_path) as host:
        gate = Held()
        host.on("before_tool")(gate.hold)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run_in, host, "s", gate.answers)
            await gate.reached.wait()
            await host.reload(after)
            ack = await host.send("write y.txt: 2", session="s")
            gate.free.set()
        assert ack.status == "steered"
        assert (tmp_path / "y.txt").read_text() == "2"


async def run_in(host: Host, session: str, answers: list[str]) -> None:
    answers.append((await host.run("a", "write x.txt: 1", session=session)).text)


async def test_a_run_calls_the_agents_that_there_were_when_it_began(tmp_path: Path) -> None:
    """Given a run that is at work, when an agent is gone from the file, then it can call it."""
    wanted: JsonObject = {"agent": "b", "task": "wait 0.01", "label": "b"}
    model = Scripted(call(("list_files", {})), call(("spawn", wanted)), say("done"), say("done"))
    lead = motet.Agent("lead", model=model, tools=["group:fs", "group:agents"])
    config = HostConfig(agents={"b": AgentConfig()})
    async with motet.open_host(config=config, agents=[lead], workspace=tmp_path) as host:
        gate, results = Held(), list[motet.RunResult[str]]()
        host.on("before_tool", match="list_files")(gate.hold)

        async def go() -> None:
            results.append(await host.run(lead, "go"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(go)
            await gate.reached.wait()
            await host.reload(HostConfig(agents={"c": AgentConfig()}))
            gate.free.set()
        assert results[0].status == "completed"
        runs = {run.agent: run.status for run in await host.runs()}
        assert runs == {"lead": "completed", "b": "completed"}


# MCP servers and models


def served(**servers: McpServer) -> HostConfig:
    tools = tuple(f"mcp:{name}" for name in servers)
    return HostConfig(mcp=servers, agents={"a": AgentConfig(tools=("group:fs", *tools))})


async def test_an_unchanged_server_keeps_running_and_a_changed_one_is_replaced(
    tmp_path: Path,
) -> None:
    """Given two servers at work, when one is configured otherwise, then the process of the other
    is the same, and that of the former ends with the last run that works with it.
    """
    same, former, later = faulty(), faulty(), faulty(idle_stop=99)
    async with motet.open_host(config=served(it=same, x=former), workspace=tmp_path) as host:
        await host.run("a", "list files")
        before = set(children())
        assert len(before) == 2
        gate = Held()
        host.on("before_tool", match="list_files")(gate.hold)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(host.run, "a", "list files")
            await gate.reached.wait()
            plan = await host.reload(served(it=same, x=later))
            assert set(children()) == before, "the run that goes on keeps them"
            gate.free.set()
        assert plan.changes == (Change("mcp.x", "drain"),)
        await until(lambda: len(before & set(children())) == 1)
        await host.run("a", "list files")
        assert len(children()) == 2
        await host.reload(served())
        await until(lambda: children() == [])
    assert not children()


async def test_a_reload_that_fails_late_changes_nothing(tmp_path: Path) -> None:
    """Given a new server and a rule on a tool that nobody has, then both are as if never said."""
    async with motet.open_host(config=served(it=faulty()), workspace=tmp_path) as host:
        before = [actor.path for actor in host.actors()]
        wrong = attrs.evolve(
            served(it=faulty(), x=faulty()), policy=(PolicyRule(tool="nothing", effect="deny"),)
        )
        with pytest.raises(ConfigError, match="nothing"):
            await host.reload(wrong)
        assert [actor.path for actor in host.actors()] == before
        assert (await host.run("a", "list files")).status == "completed"


async def test_another_address_of_a_model_counts_for_the_next_run() -> None:
    def config(url: str) -> HostConfig:
        models = ModelsConfig(openai=ProviderConfig(base_url=url))
        return HostConfig(models=models, agents={"a": AgentConfig(model="openai:m")})

    async with motet.open_host(config=config("http://127.0.0.1:1/v1")) as host:
        first = inside(host).generations.find("openai:m")
        await host.reload(config("http://127.0.0.1:2/v1"))
        assert inside(host).generations.find("openai:m") is not first
        assert inside(host).services.toolkits.current.generation == 1
        await until(lambda: list(inside(host).generations.finders) == [1])


async def test_hooks_of_the_program_stay_and_those_of_the_file_change(tmp_path: Path) -> None:
    def config(*names: str) -> HostConfig:
        hooks = (HookConfig(point="run_end", command=("true",), name=name) for name in names)
        return HostConfig(hooks=tuple(hooks))

    async with motet.open_host(config=config("one", "two"), workspace=tmp_path) as host:
        host.on("before_tool", name="own")(Held().hold)
        await host.reload(config("three"))
        assert {hook.name for hook in inside(host).hooks.all()} == {"own", "three"}
        with pytest.raises(ConfigError):
            await host.reload(HostConfig(hooks=(wrong_hook(tmp_path),)))
        assert {hook.name for hook in inside(host).hooks.all()} == {"own", "three"}


def wrong_hook(workspace: Path) -> HookConfig:
    """One that a tool could change."""
    program = workspace / "hook"
    program.write_text("#!/bin/sh\n")
    return HookConfig(point="run_end", command=(str(program),))


async def test_tokens_of_a_gateway_change_without_a_new_address() -> None:
    listen = GatewayConfig(listen="127.0.0.1:0")
    token = TokenConfig(token="mtt_" + "5" * 32)
    async with motet.open_host(config=HostConfig(gateway=listen)) as host:
        url = await host.serve()
        gateway = inside(host).gateway.served
        assert gateway is not None
        await host.reload(HostConfig(gateway=attrs.evolve(listen, tokens=(token,))))
        assert gateway.live.settings.tokens.has_tokens()
        assert gateway.url == url
        await host.reload(HostConfig(gateway=listen))
        assert not gateway.live.settings.tokens.has_tokens()


async def test_a_client_whose_token_is_gone_is_refused() -> None:
    """Given a client that is in, when its token is not in the file any more, then it is sent out,
    and who has another token stays.
    """
    alice, bob = (TokenConfig(token=f"mtt_{n * 32}", user=n) for n in "ab")
    listen = GatewayConfig(listen="127.0.0.1:0", tokens=(alice, bob))
    async with motet.open_host(config=HostConfig(gateway=listen)) as host:
        url = await host.serve()
        async with (
            motet.connect(url, token=alice.token) as first,
            motet.connect(url, token=bob.token) as second,
        ):
            await first.call("ping")
            await host.reload(HostConfig(gateway=attrs.evolve(listen, tokens=(bob,))))
            with trio.fail_after(60), pytest.raises(TurnedAway):
                await for_ever(first)
            await second.call("ping")


async def for_ever(client: motet.Client) -> None:
    while True:
        await client.call("ping")
