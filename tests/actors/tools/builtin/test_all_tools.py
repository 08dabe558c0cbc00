"""The set of built-in tools, and the tools for stored errors."""

import msgspec
import pytest

from motet.actors.tools.builtin.all_tools import GROUPS, builtin_tools, error_detail_tools
from motet.actors.tools.context import Context
from motet.protocols.chat import JsonObject
from motet.protocols.config import ShellConfig
from motet.protocols.tools import ToolRetry


async def lookup(ctx: Context[object], error_id: object) -> JsonObject:
    if error_id == "err_known":
        return {"success": True, "data": {"error_id": error_id, "session": ctx.session}}
    return {"success": False, "error": {"code": "ERROR_NOT_FOUND", "message": "no such error"}}


def test_every_name_of_a_group_is_a_tool_and_every_tool_is_in_one() -> None:
    names = [name for group in GROUPS.values() for name in group]
    assert sorted(names) == sorted(builtin_tools())


def test_every_tool_and_parameter_is_described() -> None:
    assert all(tool.description for tool in builtin_tools(lookup=lookup).values())


def test_only_what_changes_something_is_a_write() -> None:
    writes = {
        name for name, tool in builtin_tools(lookup=lookup).items() if tool.effects == "write"
    }
    assert writes == {"write_file", "edit_file", "shell"}


def test_the_shell_says_how_it_is_configured() -> None:
    def said(config: ShellConfig) -> str:
        return builtin_tools(config)["shell"].description

    assert "no network" in said(ShellConfig())
    assert "not confined" in said(ShellConfig(mode="unsafe"))
    assert "switched off" in said(ShellConfig(mode="off"))


@pytest.mark.parametrize("name", ["get_error_detail", "get_error_details"])
async def test_details_are_those_of_the_callers_session(
    context: Context[object], name: str
) -> None:
    tool = builtin_tools(lookup=lookup)[name]
    answer = await tool.run(context, {"error_id": "err_known"})
    assert answer == {
        "success": True,
        "data": {"error_id": "err_known", "session": context.session},
    }


async def test_an_unknown_error_fails_without_being_stored(context: Context[object]) -> None:
    tool, _ = error_detail_tools(lookup)
    with pytest.raises(ToolRetry) as caught:
        await tool.run(context, {"error_id": "err_unknown"})
    answer = msgspec.json.decode(str(caught.value), type=dict[str, object])
    assert answer["error"] == {"code": "ERROR_NOT_FOUND", "message": "no such error"}
