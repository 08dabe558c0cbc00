"""Every code block of the specification of the API does what the text around it says.

The blocks are in ``api_blocks.md``, word for word. The names of models become scripted models.
"""

from __future__ import annotations

import asyncio
import re
import sys
import textwrap
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import trio
from trio.testing import MockClock

import motet
from motet.actors.hosting.config import load_config
from motet.actors.models.demo import DemoModel
from motet.protocols.chat import ChatMessage, JsonObject, UserMessage
from motet.protocols.sessions import Role
from motet.testing import ScriptedModel, call, say
from tests.scripted import Scripted

BLOCKS = Path(__file__).with_name("api_blocks.md")
MODEL = re.compile(r'"((?:openai|anthropic):[\w.-]+)"')
GPT, MINI, CLAUDE = "openai:gpt-5.2", "openai:gpt-5.2-mini", "anthropic:claude-sonnet-4-5"
# pytest-trio's clock is for coroutines: these blocks have their own `trio.run`, or none.
Talk = Callable[[motet.Host, "motet.Agent[Any, Any]"], Awaitable[None]]


def block(section: int, language: str = "python") -> str:
    """The one block of a language in a section."""
    text = BLOCKS.read_text("utf-8").partition(f"\n## {section} ")[2].partition("\n## ")[0]
    found = re.findall(rf"^```{language}\n(.*?)^```$", text, re.M | re.S)
    assert len(found) == 1
    return str(found[0])


def defined(section: int, *models: ScriptedModel | Scripted) -> dict[str, Any]:
    """The names that the block of a section defines, after it ran with these models."""
    code = MODEL.sub(r'MODELS["\1"]', block(section))
    names: dict[str, Any] = {
        "__name__": f"section_{section}",
        "MODELS": {model.name: model for model in models},
    }
    exec(compile(code, f"{BLOCKS.name}, section {section}", "exec"), names)
    return names


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty current directory, beside which modules are found; forgets those afterwards."""
    path = list(sys.path)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.path[:] = path
    for name in [name for name in sys.modules if name.partition(".")[0] == "myapp"]:
        del sys.modules[name]


def test_section_1_embeds_a_host(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = ScriptedModel([say("A library.")], name=GPT)

    defined(1, model)  # it ends with its own trio.run

    assert re.fullmatch(r"A library\. \d+ 0\.0\n", capsys.readouterr().out)
    assert "Answer in one short paragraph." in model.requests[0].system
    assert (here / "state" / "motet.db").is_file()


async def test_section_2_streams_and_approves(capsys: pytest.CaptureFixture[str]) -> None:
    talk = cast("Talk", defined(2)["talk"])
    agent = motet.Agent("ops", model=ScriptedModel([say("Let's see") + call("clean"), say("Done")]))

    @agent.tool(approval=True)
    async def clean() -> str:
        return "cleaned"

    async with motet.open_host() as host:
        await talk(host, agent)
        history = await host.history("ops:nightly")

    assert capsys.readouterr().out == "Let's see\n[clean {}]\nDonecompleted\n"
    assert "cleaned" in str(history)


async def test_section_2_steers_and_stops() -> None:
    steer = cast("Callable[[motet.Host, str], Awaitable[None]]", defined(2)["steer"])
    busy = trio.Event()
    agent = motet.Agent("ops", model=ScriptedModel([call("work")]))

    @agent.tool
    async def work() -> None:
        busy.set()
        await trio.sleep_forever()

    async with (
        motet.open_host() as host,
        host.stream(agent, "Summarise the log", session="ops:nightly") as run,
    ):
        await busy.wait()
        await steer(host, run.id)
        assert (await run.wait()).status == "cancelled"


async def test_section_2_is_bounded_by_plain_trio(autojump_clock: MockClock) -> None:
    bounded = cast("Talk", defined(2)["bounded"])

    async with motet.open_host() as host:
        await bounded(host, motet.Agent("slow", model=Scripted(None)))

        assert [run.status for run in await host.runs(session="s")] == ["cancelled"]
        assert trio.current_time() >= 30


async def test_section_3_describes_checks_and_runs_tools() -> None:
    class Journal:
        async def tail(self, unit: str, level: str) -> list[str]:
            return [f"{unit} {level} {number}" for number in range(60)]

    model = ScriptedModel(
        [
            call("read_log", unit="sshd", limit="5"),
            call("read_log", unit="sshd", level="loud", limit=500),
            call("restart", unit="sshd", reason="it hangs"),
            say("restarted"),
        ],
        name=CLAUDE,
    )
    agent = defined(3, model)["agent"]

    async with (
        motet.open_host() as host,
        host.stream(agent, "look", session="s", deps={"journal": Journal()}) as run,
    ):
        asked = [event async for event in _approving(host, run)]

    assert [(event.tool, event.args) for event in asked] == [
        ("restart", {"unit": "sshd", "reason": "it hangs"})
    ]
    read, restart = model.requests[0].tools[-2:]
    assert list(cast("JsonObject", read.parameters["properties"])) == ["unit", "level", "limit"]
    assert "lowest level to include" in str(read.parameters)
    assert (read.effects, restart.effects) == ("read", "write")
    history = str(run.result.rows)
    assert all(f"sshd error {number}" in history for number in range(55, 60))
    assert "sshd error 54" not in history
    assert "level: Invalid enum value" in history
    assert "limit: Expected `int` <= 200" in history
    assert "restarted sshd" in history


async def _approving(
    host: motet.Host, run: motet.RunStream[Any]
) -> AsyncGenerator[motet.ApprovalRequested]:
    async for event in run:
        if isinstance(event, motet.ApprovalRequested):
            await host.approve(event.id, "allow-once", by="alice")
            yield event


async def test_section_4_classifies_and_hands_off() -> None:
    mini = ScriptedModel([say('{"title": "It burns", "severity": 5}')], name=MINI)
    steps = [
        call("classify", task="Smoke!"),
        call("transfer_to_writer"),
        say("Dear all, run."),
    ]
    big = ScriptedModel(steps, name=GPT)
    lead = defined(4, mini, big)["lead"]

    async with motet.open_host() as host:
        result = await host.run(lead, "Smoke!", session="s")

    assert (result.status, result.output) == ("completed", "Dear all, run.")
    assert "It burns" in str(big.requests[1].messages)
    assert {"classify", "transfer_to_writer"} <= {tool.name for tool in big.requests[0].tools}
    mini.assert_complete()
    big.assert_complete()


async def test_section_4_an_agent_with_an_output_type_gives_one() -> None:
    mini = ScriptedModel([say('{"title": "It burns", "severity": 5}')], name=MINI)
    names = defined(4, mini, ScriptedModel([], name=GPT))

    async with motet.open_host() as host:
        result = await host.run(names["triage"], "Smoke!")

    assert result.output == names["Ticket"]("It burns", 5)


@pytest.mark.parametrize(("role", "asked"), [("operator", 0), ("viewer", 1)])
async def test_section_5_guards_asks_and_audits(
    role: Role, asked: int, here: Path, caplog: pytest.LogCaptureFixture
) -> None:
    check = here / "hooks" / "check.py"
    check.parent.mkdir()
    check.write_text(f"#!{sys.executable}\nopen('checked', 'a').write('x')\n")
    check.chmod(0o755)
    install = cast("Callable[[motet.Host], None]", defined(5)["install"])
    model = ScriptedModel(
        [call("shell", command="rm -rf /"), call("shell", command="ls"), say("done")]
    )
    agent = motet.Agent("ops", model=model)
    places: list[str] = []

    @agent.tool
    async def shell(command: str, cwd: str = "/") -> str:
        places.append(f"{command} in {cwd}")
        return "ok"

    caplog.set_level("INFO", "motet.host")
    async with motet.open_host(workspace=here / "work") as host:
        install(host)
        async with host.stream(
            agent, "go", principal=motet.Principal("eve", role=role), session="s"
        ) as run:
            requests = [event async for event in _approving(host, run)]

    assert len(requests) == asked
    assert "destructive command" in str(model.requests[1].messages)
    assert places == ["ls in /srv" if role == "operator" else "ls in /"]
    assert (here / "checked").is_file()
    assert [record.message for record in caplog.records if record.name == "motet.host"]


def test_section_6_talks_in_a_room(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    planner = ScriptedModel([say("Parse first, then print.")], name=GPT)
    coder = ScriptedModel([say("It is written. DONE")], name=CLAUDE)
    chooser = ScriptedModel([say("coder")], name=MINI)

    defined(6, planner, coder, chooser)  # it ends with its own trio.run

    shown = capsys.readouterr().out.splitlines()
    kinds = [line.partition("(")[0] for line in shown]
    assert kinds[0] == "MessageAdded"
    assert [line for line in shown if line.startswith("RoomTurn")] == [
        "RoomTurn(speaker='planner', turn=1, left=7, asked_by=('alice',), called_by=())",
        "RoomTurn(speaker='coder', turn=2, left=6, asked_by=('alice',), called_by=())",
    ]
    assert shown[-1] == """RoomIdle(reason="'DONE' was said")"""
    (told,) = [text(message) for message in coder.requests[0].messages]
    assert told == (
        "[#1 person alice] @planner split this task\n[#2 agent planner] Parse first, then print."
    )
    assert "- critic" not in text(chooser.requests[0].messages[-1]), "only called by name"


def text(message: ChatMessage) -> str:
    assert isinstance(message, UserMessage)
    return message.text


TOOLS = """
    def read_log(unit: str) -> str:
        "Read the log of a unit."
        return "quiet"
"""


@pytest.fixture
def file(here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The configuration of section 7, and the module that it names."""
    monkeypatch.setattr(DemoModel.__init__, "__kwdefaults__", {"pace": 0.0})  # no pauses
    text = MODEL.sub('"demo"', block(7, "toml"))
    (here / "myapp").mkdir()
    (here / "myapp" / "__init__.py").touch()
    (here / "myapp" / "tools.py").write_text(textwrap.dedent(TOOLS))
    file = here / "motet.toml"
    file.write_text(text)
    return file


async def test_section_7_every_key_of_the_file_means_something(file: Path) -> None:
    viewer = motet.Principal("eve", role="viewer")
    async with motet.open_host(config=file) as host:
        (helper,) = [agent for agent in host.agents() if agent.name == "helper"]
        assert {"read_log", "http_fetch"} <= set(helper.tools)
        assert (await host.run("helper", "hi", principal=viewer)).status == "completed"
    config = load_config(file)
    assert (config.gateway.listen, config.limits.usd) == ("127.0.0.1:7878", 0.5)
    assert config.agents["helper"].limits.tool_errors == 3
    assert [(rule.tool, rule.effect) for rule in config.policy] == [("group:shell", "deny")]
    assert config.mcp["git"].command == ("uvx", "mcp-server-git")
    assert config.rooms["dev"].members == ("planner", "coder", "critic")
    assert (file.parent / "state").is_dir()


@pytest.mark.usefixtures("file")
def test_section_7_runs_from_asyncio(capsys: pytest.CaptureFixture[str]) -> None:
    asyncio.run(defined(7)["from_asyncio"]())

    assert "RunResult(" in capsys.readouterr().out


@pytest.mark.usefixtures("file")
def test_section_7_runs_from_threads() -> None:
    assert "demo model" in defined(7)["from_threads"]()
