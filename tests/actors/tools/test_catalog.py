"""The tools of each agent: one per name, a stable list, and the nearest name for a wrong one."""

from __future__ import annotations

import attrs
import pytest

from motet.actors.tools.catalog import ToolCatalog
from motet.actors.tools.tool import Tool, tool
from motet.protocols.chat import Call
from motet.protocols.errors import ConfigError, UnknownName


def named(name: str, *, writes: bool = False) -> Tool:
    def nothing() -> None: ...

    return tool(nothing, name=name, effects="write" if writes else "read")


@pytest.fixture
def catalog() -> ToolCatalog:
    catalog = ToolCatalog()
    catalog.add("helper", [named("write_file", writes=True), named("read_file")])
    catalog.add("writer", [named("publish")])
    return catalog


def test_the_list_is_sorted_whatever_the_order_of_adding(catalog: ToolCatalog) -> None:
    catalog.add("helper", [named("list_files")])
    assert catalog.names("helper") == ("list_files", "read_file", "write_file")
    assert [spec.name for spec in catalog.specs("helper")] == list(catalog.names("helper"))


def test_an_agent_has_its_own_tools_only(catalog: ToolCatalog) -> None:
    assert catalog.get("writer", "publish").name == "publish"
    assert catalog.specs("stranger") == ()
    with pytest.raises(UnknownName, match="unknown tool 'publish'"):
        catalog.get("helper", "publish")


def test_a_wrong_name_is_answered_with_the_nearest(catalog: ToolCatalog) -> None:
    with pytest.raises(UnknownName, match="did you mean 'read_file'"):
        catalog.get("helper", "reed_file")
    assert catalog.nearest_first("helper", "Write") == "write_file, read_file"
    assert catalog.nearest_first("stranger", "x") == "none"


def test_a_duplicate_is_refused_and_nothing_is_added(catalog: ToolCatalog) -> None:
    with pytest.raises(ConfigError, match="agent 'helper' has two tools named 'read_file'"):
        catalog.add("helper", [named("new"), named("read_file")])
    assert catalog.names("helper") == ("read_file", "write_file")


def test_one_write_makes_a_batch_serial(catalog: ToolCatalog) -> None:
    read, write = Call("1", "read_file"), Call("2", "write_file")
    assert not catalog.in_order("helper", [read, Call("3", "unknown")])
    assert catalog.in_order("helper", [read, write])


def test_a_tool_that_runs_beside_no_other_makes_a_batch_serial(catalog: ToolCatalog) -> None:
    catalog.add("helper", [attrs.evolve(named("lonely"), parallel=False)])
    assert catalog.in_order("helper", [Call("1", "read_file"), Call("2", "lonely")])


def test_the_tools_of_a_source_are_available_at_once_to_all_agents_that_name_it(
    catalog: ToolCatalog,
) -> None:
    catalog.declare(["mcp:git"])
    catalog.put("helper", [named("read_file")], ["mcp:git"])
    kinds = catalog.kinds("helper")
    assert catalog.provided_by("mcp:git") is None

    catalog.provide("mcp:git", [named("log"), named("commit", writes=True)])
    assert catalog.names("helper") == ("commit", "log", "read_file")
    assert catalog.names("writer") == ("publish",)
    # A live run holds on to these.
    assert kinds == {"commit": "write", "log": "read", "read_file": "read"}

    catalog.provide("mcp:git", [named("log")])
    assert catalog.names("helper") == ("log", "read_file")
    catalog.remove("helper")
    catalog.provide("mcp:git", [named("log")])
    assert catalog.names("helper") == ()


def test_an_own_tool_stays_when_a_source_has_one_of_its_name(catalog: ToolCatalog) -> None:
    own = named("log")
    catalog.put("helper", [own], ["mcp:git"])
    catalog.provide("mcp:git", [named("log")])
    assert catalog.get("helper", "log") is own
