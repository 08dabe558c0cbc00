"""A host from a file: its agents, its gateway, and who comes before whom."""

from __future__ import annotations

from pathlib import Path

import pytest

import motet
from motet.protocols.config import AgentConfig, GatewayConfig

FILE = """
state = "kept/"
[gateway]
listen = "127.0.0.1:0"
[limits]
turns = 3
[agents.helper]
instructions = "of the file"
[agents.other]
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "motet.toml"
    file.write_text(FILE)
    return file


async def test_the_agents_of_a_file_are_there_and_its_paths_count_from_it(file: Path) -> None:
    async with motet.open_host(config=file) as host:
        assert [agent.name for agent in host.agents()] == ["helper", "other"]
        assert (await host.run("other", "hello")).status == "completed"
    assert (file.parent / "kept" / "motet.db").is_file()


async def test_an_agent_of_the_program_comes_before_one_of_the_file(file: Path) -> None:
    mine = motet.Agent("helper", model="demo", description="of the program")

    async with motet.open_host(config=str(file), agents=[mine], state=file.parent / "s") as host:
        found = {agent.name: agent.description for agent in host.agents()}

    assert found == {"helper": "of the program", "other": ""}
    assert not (file.parent / "kept").exists()


async def test_agents_of_a_configuration_in_code_are_there_too() -> None:
    config = motet.HostConfig(agents={"helper": AgentConfig(model="demo")})

    async with motet.open_host(config=config) as host:
        assert [agent.name for agent in host.agents()] == ["helper"]


def test_a_problem_of_a_file_is_named_with_the_file(file: Path) -> None:
    file.write_text(FILE + '\ntools = ["nowhere.at_all:tool"]\n')
    with pytest.raises(motet.ConfigError, match=r"motet\.toml.*\n.*agents\.other\.tools\[0\]"):
        motet.HostThread(file).open()

    file.write_text(FILE + "\ntoolz = []\n")
    with pytest.raises(motet.ConfigError, match=r"toolz.*tools"):
        motet.HostThread(file).open()


def test_a_thread_serves_the_gateway_as_it_is_configured(file: Path) -> None:
    with motet.HostThread(file) as host:
        assert host.call(motet.Host.serve).startswith("http://127.0.0.1:")

    config = motet.HostConfig(gateway=GatewayConfig(listen="[::1]:0"))
    with motet.HostThread(config) as host:
        chosen = GatewayConfig(listen="127.0.0.1:0")
        assert host.call(motet.Host.serve, chosen).startswith("http://127.0.0.1:")
