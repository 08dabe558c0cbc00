"""A configuration file: references, imports, and errors that name the place."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from motet.actors.hosting.config import build_agents, load_config
from motet.actors.tools.tool import Tool
from motet.protocols.config import AgentConfig, HostConfig
from motet.protocols.errors import ConfigError


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    """A folder for a configuration and modules; what was imported from it is forgotten after."""
    modules, path = set(sys.modules), list(sys.path)
    yield tmp_path
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        del sys.modules[name]


def written(root: Path, text: str) -> Path:
    file = root / "motet.toml"
    file.write_text(text)
    return file


def refused(root: Path, text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(written(root, text), env={})
    return str(caught.value)


def test_paths_count_from_the_folder_of_the_file(root: Path) -> None:
    config = load_config(written(root, 'state = "state"\nworkspace = "../w"'))

    assert config.state == str(root / "state")
    assert config.workspace == str(root / "../w")
    assert load_config(written(root, "")).state is None


def test_references_are_replaced_by_their_values(root: Path) -> None:
    (root / "prompt.md").write_text("Be kind.\n")
    text = """
        [agents.a]
        model = "openai:${MODEL}"
        instructions = "file:prompt.md"
        description = "costs $${MODEL}, not $5"
    """
    agent = load_config(written(root, text), env={"MODEL": "m-1"}).agents["a"]

    assert agent.model == "openai:m-1"
    assert agent.instructions == "Be kind."
    assert agent.description == "costs ${MODEL}, not $5"


def test_every_reference_that_leads_nowhere_is_named(root: Path) -> None:
    message = refused(root, 'state = "${HERE}"\n[agents.a]\ntools = ["x", "file:gone.txt"]')

    assert "state: the environment variable 'HERE' is not set" in message
    assert "agents.a.tools[1]: " in message
    assert "gone.txt cannot be read: No such file" in message


def test_references_and_other_problems_are_named_together(root: Path) -> None:
    message = refused(
        root,
        'stat = "s"\n[[gateway.tokens]]\ntoken = "${NO}"\nuser = 5\n'
        '[agents.a]\nmodel = "file:no"\n',
    )

    assert message.splitlines() == [
        "motet.toml has 4 problems:",
        "  gateway.tokens[0].token: the environment variable 'NO' is not set",
        f"  agents.a.model: {root / 'no'} cannot be read: No such file or directory",
        "  stat: unknown key; did you mean 'state'?",
        "  gateway.tokens[0].user: expected text, not 5",
    ]


def test_a_syntax_error_names_its_line(root: Path) -> None:
    message = refused(root, "a = 1\nb = = 2\n")

    assert "motet.toml is not valid TOML" in message
    assert "line 2" in message


def test_a_file_that_cannot_be_read_is_named(root: Path) -> None:
    with pytest.raises(ConfigError, match=r"no configuration file .*gone\.toml"):
        load_config(root / "gone.toml")
    with pytest.raises(ConfigError, match="Is a directory"):
        load_config(root)
    (root / "motet.toml").write_bytes(b"a = '\xff'")
    with pytest.raises(ConfigError, match="not UTF-8"):
        load_config(root / "motet.toml")


def test_without_agents_there_is_one_that_works_without_a_key(root: Path) -> None:
    (agent,) = build_agents(HostConfig(), source="motet.toml", root=root)

    assert (agent.name, agent.model_name) == ("helper", "demo")
    assert agent.tools == ("group:fs", "group:shell", "group:web")


def with_tools(*tools: str) -> HostConfig:
    return HostConfig(agents={"a": AgentConfig(tools=tools)})


def test_a_function_of_a_module_beside_the_file_becomes_a_tool(root: Path) -> None:
    (root / "mine_a.py").write_text('def shout(text: str) -> str:\n    "Louder."\n    return text')

    (agent,) = build_agents(with_tools("read_file", "mine_a:shout"), source="f", root=root)

    named, imported = agent.tools
    assert named == "read_file"
    assert isinstance(imported, Tool)
    assert (imported.name, imported.description) == ("shout", "Louder.")


def test_all_tools_and_agents_that_cannot_be_built_are_named(root: Path) -> None:
    (root / "mine_b.py").write_text("def shout(text: str) -> str: return text\nnumber = 5\n")
    (root / "mine_c.py").write_text("1 / 0")
    agents = {
        "a": AgentConfig(
            tools=("mine_b:shoot", "gone.away:f", "mine_b:number", "mine_c:f", "mine_b:")
        ),
        "two words": AgentConfig(),
    }
    with pytest.raises(ConfigError) as caught:
        build_agents(HostConfig(agents=agents), source="motet.toml", root=root)

    lines = str(caught.value).splitlines()
    assert lines[0] == "motet.toml: an agent cannot be built:"
    assert lines[1:6] == [
        "  agents.a.tools[0]: the module 'mine_b' has no 'shoot'; did you mean 'shout'?",
        f"  agents.a.tools[1]: no module 'gone.away', neither installed nor in {root}",
        "  agents.a.tools[2]: mine_b:number is not a function",
        "  agents.a.tools[3]: importing 'mine_c' failed: ZeroDivisionError: division by zero",
        "  agents.a.tools[4]: the module 'mine_b' has no ''",
    ]
    assert lines[6].startswith("  agents.two words: agent name 'two words'")
