"""Views of a configuration: its schema, and the source of each value."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from motet.actors.hosting.config import load_config
from motet.cli.config_schema import schema, sources
from motet.protocols.chat import JsonObject
from motet.protocols.config import HostConfig
from motet.protocols.errors import ConfigError
from tests.protocols.test_config_changes import EVERY_KEY

TEXT = """
[limits]
turns = 5
[agents.helper]
model = "demo"
instructions = "file:said.txt"
[agents.helper.limits]
depth = 0
[gateway]
listen = "127.0.0.1:${PORT}"
[[gateway.tokens]]
token = "${TOKEN}"
"""


def file_in(folder: Path) -> Path:
    file = folder / "motet.toml"
    file.write_text(TEXT)
    (folder / "said.txt").write_text("Be brief.")
    return file


def test_each_value_tells_where_it_comes_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PORT", "0")
    monkeypatch.setenv("TOKEN", "mtt_" + "7" * 32)
    file = file_in(tmp_path)
    found = {line.key: line for line in sources(load_config(file), file)}
    found_in = {key: line.source for key, line in found.items()}
    assert found_in["limits.turns"] == "motet.toml"
    assert found_in["agents.helper.limits.turns"] == "motet.toml, limits"
    assert found_in["agents.helper.limits.depth"] == "motet.toml"
    assert found_in["agents.helper.instructions"] == "motet.toml, from file:said.txt"
    assert found_in["gateway.listen"] == "motet.toml, from the environment: PORT"
    assert found_in["guard"] == "default"
    assert "777" not in str(found["gateway.tokens"].value)


def test_without_a_file_all_are_defaults() -> None:
    assert {line.source for line in sources(HostConfig(), None)} == {"default"}


def test_the_schema_has_every_key_and_refuses_others() -> None:
    """Given the classes that read a file, then the schema has each of their keys, described."""
    whole = schema()
    for key in EVERY_KEY:
        found = whole
        for part in key.split("."):
            found = followed(cast("JsonObject", properties(found)[part]), whole)
    assert whole["additionalProperties"] is False
    agents = cast("JsonObject", properties(whole)["agents"])
    agent = followed(cast("JsonObject", agents["additionalProperties"]), whole)
    assert "description" in cast("JsonObject", properties(agent)["tools"])
    assert cast("JsonObject", properties(agent)["model"])["default"] == "demo"


def properties(table: JsonObject) -> JsonObject:
    return cast("JsonObject", table["properties"])


def followed(place: JsonObject, whole: JsonObject) -> JsonObject:
    if "$ref" not in place:
        return place
    name = str(place["$ref"]).removeprefix("#/$defs/")
    return cast("JsonObject", cast("JsonObject", whole["$defs"])[name])


def test_an_unreadable_file_has_no_sources(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        sources(HostConfig(), tmp_path / "nothing.toml")
