"""The tools of servers that a model sees."""

from __future__ import annotations

from motet.actors.tools.mcp.tool_search import INLINE, MCP_SEARCH, called, foreign, search, shown
from motet.protocols.chat import AssistantMessage, Call, UserMessage
from motet.protocols.tools import ToolSpec


def spec(name: str, description: str = "") -> ToolSpec:
    return ToolSpec(name, description, {})


OWN, SEARCH = spec("read_file"), spec(MCP_SEARCH)


def many(count: int) -> tuple[ToolSpec, ...]:
    return tuple(spec(f"mcp__git__t{n}") for n in range(count))


def test_few_tools_are_all_shown_without_a_search() -> None:
    specs = (OWN, *many(INLINE), SEARCH)
    assert shown(specs, frozenset()) == (OWN, *many(INLINE))
    assert shown((OWN,), frozenset()) == (OWN,)


def test_of_many_tools_only_found_ones_are_shown() -> None:
    tools = many(INLINE + 1)
    specs = (OWN, *tools, SEARCH)
    assert shown(specs, frozenset()) == (OWN, SEARCH)
    assert shown(specs, frozenset({tools[3].name, "mcp__gone__x"})) == (OWN, tools[3], SEARCH)


def test_the_same_list_stays_the_same_object() -> None:
    specs = many(2)
    assert shown(specs, frozenset()) is specs


def test_tools_that_were_called_before_stay_visible() -> None:
    calls = (Call("c0", "mcp__git__log", "{}"), Call("c1", "read_file", "{}"))
    assert called([UserMessage("hi"), AssistantMessage("", calls)]) == {"mcp__git__log"}


def test_a_search_looks_at_names_first_and_then_at_descriptions() -> None:
    specs = (
        spec("mcp__git__log", "Shows commits."),
        spec("mcp__git__show", "Prints one commit of the log."),
        spec("mcp__db__query", "Runs SQL."),
    )
    found = [tool.name for tool in search(foreign(specs), "the LOG, please", 5)]
    assert found == ["mcp__git__log", "mcp__git__show"]
    assert [tool.name for tool in search(foreign(specs), "log", 1)] == ["mcp__git__log"]
    assert search(foreign(specs), "?!", 5) == []
