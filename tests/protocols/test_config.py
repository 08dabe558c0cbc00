"""A configuration file is read strictly, and all that is wrong with it is said at once."""

import copy
from collections.abc import Callable

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from motet.protocols.chat import JsonObject
from motet.protocols.config import (
    AgentConfig,
    GatewayConfig,
    HookConfig,
    HostConfig,
    ShellConfig,
    TokenConfig,
    parse_config,
    split_listen,
)
from motet.protocols.errors import ConfigError
from motet.protocols.limits import Limits

FULL: JsonObject = {
    "state": "state/",
    "workspace": "work/",
    "limits": {"turns": 7, "wall": 30},
    "gateway": {
        "listen": "[::1]:9000",
        "allowed_origins": ["https://chat.example"],
        "tokens": [
            {"token": "mtt_0123456789abcdef0123456789abcdef", "user": "alice", "role": "viewer"}
        ],
    },
    "tools": {
        "shell": {"mode": "unsafe", "timeout": 5, "memory_mb": 128, "network": True},
        "http": {"timeout": 2.5, "max_bytes": 2048, "allow_private": True},
    },
    "models": {"openai": {"base_url": "http://localhost:1234/v1", "api_key_env": "MY_KEY"}},
    "agents": {
        "helper": {"model": "openai:m", "tools": ["group:fs"], "limits": {"turns": 3}},
        "other": {},
    },
}


def problems(data: JsonObject) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_config(data, source="motet.toml")
    return str(caught.value)


def test_an_empty_file_is_the_default_configuration() -> None:
    assert parse_config({}) == HostConfig()


def test_every_key_arrives_where_it_belongs() -> None:
    config = parse_config(FULL)

    assert (config.state, config.workspace) == ("state/", "work/")
    assert split_listen(config.gateway.listen) == ("::1", 9000)
    assert config.gateway.tokens[0].user == "alice"
    assert config.tools.shell == ShellConfig(
        mode="unsafe", timeout=5.0, memory_mb=128, network=True
    )
    assert config.tools.http.max_bytes == 2048
    assert config.models.openai.base_url == "http://localhost:1234/v1"
    assert config.models.anthropic.base_url is None


def test_the_limits_of_an_agent_start_from_those_of_the_host() -> None:
    agents = parse_config(FULL).agents

    assert agents["helper"].limits == Limits(turns=3, wall=30.0)
    assert agents["other"].limits == Limits(turns=7, wall=30.0)


def test_all_problems_are_named_in_one_message_with_their_paths() -> None:
    message = problems(
        {
            "stat": "x",
            "limits": {"turns": 0, "wall": "long"},
            "tools": {"shell": {"mode": "unsave", "network": 1}},
            "agents": {"helper": {"modle": "demo", "tools": ["a", 5]}, "b": 3},
        }
    )

    assert message.splitlines() == [
        "motet.toml has 8 problems:",
        "  stat: unknown key; did you mean 'state'?",
        "  limits.turns: must be at least 1, not 0",
        "  limits.wall: expected a number, not 'long'",
        "  tools.shell.mode: expected one of off, sandbox, unsafe, not 'unsave'; "
        "did you mean 'unsafe'?",
        "  tools.shell.network: expected true or false, not 1",
        "  agents.helper.modle: unknown key; did you mean 'model'?",
        "  agents.helper.tools[1]: expected text, not 5",
        "  agents.b: expected a table, not 3",
    ]


def test_a_single_problem_is_a_single_line() -> None:
    assert problems({"state": 5}) == "motet.toml: state: expected text, not 5"


WRONG: list[tuple[JsonObject, str]] = [
    ({"limits": {"turns": True}}, "limits.turns: expected a whole number, not true"),
    ({"limits": {"turns": 2.0}}, "limits.turns: expected a whole number, not 2.0"),
    ({"limits": {"wall": float("nan")}}, "limits.wall: expected a number, not nan"),
    ({"gateway": {"listen": "7878"}}, "gateway.listen: must be HOST:PORT"),
    ({"gateway": {"listen": "h:70000"}}, "gateway.listen: must be HOST:PORT"),
    ({"gateway": {"tokens": [{"user": "u"}]}}, "gateway.tokens[0].token: is missing"),
    ({"gateway": {"allowed_origins": ["x"]}}, "allowed_origins: must be origins such as"),
    ({"models": {"openai": {"base_url": "here"}}}, "base_url: must be a http(s) URL"),
    ({"models": {"opnai": {"base_url": "x"}}}, "models.opnai: unknown key; did you mean 'openai'?"),
    ({"agents": ["x"]}, "agents: expected a table, not a list"),
    ({"tools": {"shell": {"timeout": 0}}}, "tools.shell.timeout: must be above 0, not 0"),
]


@pytest.mark.parametrize(("data", "said"), WRONG)
def test_a_wrong_value_is_told_what_was_expected(data: JsonObject, said: str) -> None:
    assert said in problems(data)


@pytest.mark.parametrize("token", ["hunter2", ["hunter2"], {"hunter2": 1}])
def test_a_secret_is_never_shown(token: object) -> None:
    message = problems({"gateway": {"tokens": [{"token": token}]}})

    assert "gateway.tokens[0].token" in message
    assert "hunter2" not in message
    assert "0123456789abcdef" not in repr(parse_config(FULL))


def test_a_program_that_builds_a_configuration_is_held_to_the_same_rules() -> None:
    with pytest.raises(ValueError, match="listen must be HOST:PORT"):
        GatewayConfig(listen="nowhere")
    with pytest.raises(ValueError, match="timeout must be above 0"):
        ShellConfig(timeout=-1)


UNSAFE: list[tuple[Callable[..., object], JsonObject]] = [
    (HostConfig, {"guard": "blok"}),
    (ShellConfig, {"mode": "sandboxed"}),
    (HookConfig, {"point": "before_tool", "command": ("check",), "on_error": "deny"}),
    (HookConfig, {"point": "before_tools", "command": ("check",)}),
    (TokenConfig, {"token": "mtt_" + "0" * 32, "role": "reader"}),
    (AgentConfig, {"workspace": "per-user"}),
]


@pytest.mark.parametrize(("kind", "values"), UNSAFE)
def test_a_misspelt_choice_of_code_does_not_switch_a_protection_off(
    kind: Callable[..., object], values: JsonObject
) -> None:
    with pytest.raises(ValueError, match="must be one of"):
        kind(**values)


def test_split_listen_refuses_what_is_no_address() -> None:
    assert split_listen("localhost:0") == ("localhost", 0)
    with pytest.raises(ConfigError, match="give HOST:PORT"):
        split_listen("localhost")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=8), inner, max_size=2)
    ),
    max_leaves=5,
)
SECTIONS = st.sampled_from([field.name for field in attrs.fields(HostConfig)])
KEYS = st.sampled_from(["limits", "shell", "http", "listen", "tokens", "openai", "turns", "model"])


@given(st.dictionaries(SECTIONS, st.dictionaries(KEYS, JSON, max_size=3) | JSON, max_size=4))
def test_any_data_gives_a_configuration_or_a_configuration_error(data: JsonObject) -> None:
    """Law: parse_config returns a HostConfig or raises ConfigError, and never changes its input."""
    before = copy.deepcopy(data)
    try:
        config = parse_config(data)
    except ConfigError:
        pass
    else:
        assert isinstance(config, HostConfig)
        assert all(isinstance(agent, AgentConfig) for agent in config.agents.values())
    assert repr(data) == repr(before)


@given(st.sampled_from(["state", "workspace", "limits", "gateway", "tools", "models", "agents"]))
def test_a_misspelt_section_is_told_the_right_name(name: str) -> None:
    """Law: a section with one letter left out is answered by its right name."""
    assert f"did you mean {name!r}?" in problems({name[:-2] + name[-1]: {}})
