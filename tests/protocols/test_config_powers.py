"""The parts of a configuration file that need consent: all that is not known to be harmless."""

from __future__ import annotations

from typing import cast

import attrs
import pytest

from motet.protocols.chat import JsonObject
from motet.protocols.config import HostConfig
from motet.protocols.config_powers import Power, powers_of, printable, shown


class Folder:
    """A folder with a module, a text and a link that leads out of it."""

    def __init__(self, **texts: str) -> None:
        self.texts = texts

    def inside(self, path: str) -> bool:
        return not path.startswith(("/", "~", "..", "link", "file:")) and "${" not in path

    def resolved(self, path: str) -> str:
        return path

    def text(self, path: str) -> str | None:
        return self.texts.get(path) if self.inside(path) else None

    def has_module(self, name: str) -> bool:
        return name == "agent_tools"


def powers(data: object, **texts: str) -> tuple[Power, ...]:
    return powers_of(cast("JsonObject", data), Folder(**texts))


def kinds(data: object, **texts: str) -> list[str]:
    return [one.kind for one in powers(data, **texts)]


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"agents": {"helper": {"model": "demo", "instructions": "Be brief.", "limits": {"x": 1}}}},
        {"agents": {"helper": {"tools": ["group:fs", "read_file", "mcp:git"]}}},
        {"workspace": "work", "skills": ["skills"], "log": {"level": "error"}},
        {"gateway": {"listen": "127.0.0.1:0"}, "tools": {"shell": {"mode": "off", "processes": 5}}},
        {"rooms": {"den": {"members": ["a", "b"], "speakers": ["mentions"]}}},
        {"agents": {"helper": {"instructions": "file:prompt.md"}}},
    ],
)
def test_a_file_that_can_do_no_harm_has_no_powers(data: object) -> None:
    assert powers(data, **{"prompt.md": "Be kind."}) == ()


@pytest.mark.parametrize(
    ("data", "kind", "told"),
    [
        ({"agents": {"a": {"tools": ["os:system"]}}}, "import", "os:system"),
        ({"agents": {"a": {"tools": ["agent_tools:x"]}}}, "import", "agent_tools"),
        ({"hooks": [{"point": "after_run", "command": ["curl", "x.example"]}]}, "start", "curl"),
        ({"mcp": {"git": {"command": "sh", "args": ["-c", "id"]}}}, "start", "sh -c id"),
        ({"mcp": {"web": {"url": "http://127.0.0.1:1"}}}, "send", "http://127.0.0.1:1"),
        ({"agents": {"a": {"model": "openai:gpt-5.2"}}}, "send", "openai"),
        ({"models": {"openai": {"base_url": "http://evil.example"}}}, "send", "evil.example"),
        ({"models": {"offered": ["anthropic:x"]}}, "send", "anthropic"),
        ({"rooms": {"d": {"speakers": ["selector:openai:x"]}}}, "send", "openai"),
        ({"tracing": {"otlp": "http://evil.example"}}, "send", "evil.example"),
        ({"workspace": "/home/alice"}, "use", "/home/alice"),
        ({"workspace": "link/out"}, "use", "link/out"),
        ({"agents": {"a": {"files": "../other"}}}, "use", "../other"),
        ({"agents": {"a": {"skills": ["~/s"]}}}, "use", "~/s"),
        ({"state": "state"}, "use", "state"),
        ({"gateway": {"listen": "0.0.0.0:7878"}}, "listen", "0.0.0.0:7878"),
        ({"gateway": {"allowed_origins": ["https://e.example"]}}, "set", "allowed_origins"),
        ({"tools": {"shell": {"mode": "unsafe"}}}, "set", "tools.shell.mode"),
        ({"tools": {"shell": {"network": True}}}, "set", "tools.shell.network = true"),
        ({"tools": {"http": {"allow_private": True}}}, "set", "allow_private"),
        ({"tools": {"cedar": "x"}}, "set", "cedar"),
        ({"policy": [{"allow": "*"}]}, "set", "policy"),
        ({"retention": {"runs_days": 2}}, "set", "retention.runs_days = 2"),
        ({"errors": {"keep_raw": True}}, "set", "errors.keep_raw"),
        ({"agents": {"a": {"instructions": "${SECRET}"}}}, "read", "variable SECRET"),
        ({"agents": {"a": {"instructions": "file:/etc/passwd"}}}, "read", "/etc/passwd"),
        ({"agents": {"a": {"memory": True}}}, "set", "agents.a.memory = true"),
        ({"agents": {"a": {"new_word": 1}}}, "set", "agents.a.new_word = 1"),
        ({"a_new_table": {"a": {"b": 1}}}, "set", "a_new_table.a.b = 1"),
    ],
)
def test_each_way_to_do_harm_is_a_power(data: object, kind: str, told: str) -> None:
    found = powers(data)

    assert (kind, True) in [(one.kind, told in one.what) for one in found]


@pytest.mark.parametrize("key", [one.name for one in attrs.fields(HostConfig)])
@pytest.mark.parametrize("value", [7, "x", ["x", 7], {"x": {"y": 7}}, {"x": "${X}"}, {"x": ["/"]}])
def test_no_shape_of_a_value_breaks_the_look(key: str, value: object) -> None:
    powers({key: value})


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"hooks": [{"command": ["a"]}]}, {"hooks": [{"command": ["a"], "env": ["KEY"]}]}),
        ({"mcp": {"m": {"command": ["a"]}}}, {"mcp": {"m": {"command": ["a"], "cwd": "/"}}}),
        ({"models": {"openai": {"base_url": "http://a"}}}, {"state": "s"}),
        ({"gateway": {"tokens": [{"token": "a"}]}}, {"gateway": {"tokens": [{"token": "b"}]}}),
    ],
)
def test_a_change_of_a_power_is_another_power(before: object, after: object) -> None:
    assert {one.identity for one in powers(after)} - {one.identity for one in powers(before)}


def test_a_text_of_the_folder_counts_with_its_words() -> None:
    data = {"hooks": [{"command": ["file:word.txt"]}]}

    assert powers(data, **{"word.txt": "ls"}) != powers(data, **{"word.txt": "rm"})


def test_a_text_of_the_folder_cannot_smuggle_a_place_in() -> None:
    assert kinds({"workspace": "file:w"}, w="/home/alice") == ["use"]
    assert kinds({"agents": {"a": {"tools": ["file:t"]}}}, t="os:system") == ["import"]


def test_models_of_one_provider_and_modules_of_the_folder_are_one_power_each() -> None:
    tools = {"agents": {"a": {"tools": ["agent_tools:x", "agent_tools:y"]}}}
    other = {"agents": {"b": {"tools": ["agent_tools:z"]}}}
    models = {"agents": {"a": {"model": "openai:x"}, "b": {"model": "openai:y"}}}

    assert powers(tools) == powers(other)
    assert len(powers(models)) == 1


def test_no_crowd_of_powers_hides_another() -> None:
    tools = [f"os:f{n}" for n in range(5_000)]
    told = shown(powers({"agents": {"a": {"tools": tools}}, "mcp": {"m": {"command": ["evil"]}}}))

    assert "evil (mcp.m)" in told
    assert "and 4,991 more: read the file" in told
    assert told.count("\n") < 20


def test_nothing_that_is_shown_controls_a_terminal_or_tells_a_secret() -> None:
    told = shown(
        powers(
            {
                "mcp": {"\x1b[2J": {"command": ["a\x1b]0;x\x07\n", "\u202e"]}},
                "gateway": {"tokens": [{"token": "mtt_secret"}]},
                "workspace": "/" + "x" * 5_000,
            }
        )
    )

    assert all(line.isprintable() for line in told.split("\n"))
    assert "mtt_secret" not in told
    assert max(map(len, told.split("\n"))) < 300
    assert printable("a\nb") == "a\\x0ab"
