"""The configuration of MCP servers."""

from __future__ import annotations

import pytest

from motet.protocols.chat import JsonObject
from motet.protocols.config import parse_config
from motet.protocols.errors import ConfigError
from motet.protocols.mcp import McpServer, seconds


def server(**fields: object) -> McpServer:
    return parse_config({"mcp": {"git": fields}}).mcp["git"]


def problem(data: JsonObject) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_config({"mcp": data})
    return str(caught.value)


def test_times_are_seconds_or_texts_with_a_unit() -> None:
    found = server(command=["git-mcp"], idle_stop="5m", timeout=1, start_timeout="1.5s")
    assert (found.idle_stop, found.timeout, found.start_timeout) == (300.0, 1.0, 1.5)
    assert [seconds(text) for text in ("250ms", "2h", " 3 s ")] == [0.25, 7200.0, 3.0]


def test_a_program_says_the_same_as_a_file() -> None:
    assert McpServer(command=["a", "b"], idle_stop="5m") == server(command=["a", "b"])


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, "mcp.git: an MCP server must have either a command or a url"),
        ({"command": ["a"], "url": "http://x/mcp"}, "either a command or a url"),
        ({"command": "a"}, "mcp.git.command: expected a list, not 'a'"),
        ({"url": "x"}, "mcp.git.url: must be a http(s) URL, not 'x'"),
        ({"url": "http://x/", "cwd": "/"}, "env and cwd must stand with a command"),
        ({"command": ["a"], "token": "abc"}, "headers and token must stand with a url"),
        ({"command": ["a"], "idle_stop": "soon"}, "mcp.git.idle_stop: must be seconds, or a text"),
        ({"command": ["a"], "idle_stop": True}, "not True"),
        ({"command": ["a"], "timeout": 0}, "mcp.git.timeout: must be above 0, not 0.0"),
        ({"command": ["a"], "start": "now"}, "expected one of eager, lazy, not 'now'"),
        ({"comand": ["a"]}, "mcp.git.comand: unknown key; did you mean 'command'?"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(fields: JsonObject, said: str) -> None:
    assert said in problem({"git": fields})


def test_a_name_that_could_not_be_read_back_is_refused() -> None:
    assert "mcp: must be servers whose names have" in problem({"a__b": {"command": ["a"]}})


def test_what_is_secret_is_not_shown() -> None:
    web = McpServer(url="http://x/mcp", token="t0ken", headers={"X-Key": "k3y"})
    own = McpServer(command=["a"], env={"API_KEY": "s3cret", "LANG": "C"})
    assert web.secrets == ("k3y", "t0ken")
    assert own.secrets == ("s3cret",)
    assert not [word for word in ("t0ken", "k3y", "s3cret") if word in repr(web) + repr(own)]


def test_a_command_in_one_text_is_refused_in_code_too() -> None:
    with pytest.raises(ValueError, match="command must be a list"):
        McpServer(command="git-mcp --stdio")
