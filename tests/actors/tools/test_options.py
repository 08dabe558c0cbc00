"""Declarations of a tool besides its function, under our names and those from elsewhere."""

from __future__ import annotations

from typing import Any

import pytest

import motet
from motet.actors.tools.context import Context
from motet.protocols.chat import JsonObject


def big(_ctx: Context[Any], args: JsonObject) -> bool:
    return len(args) > 3


@pytest.mark.parametrize("name", ["approval", "requires_approval", "needs_approval"])
@pytest.mark.parametrize("value", [True, False, big])
def test_approval_has_three_names(name: str, value: object) -> None:
    options: dict[str, Any] = {name: value}
    agent = motet.Agent("a")

    @agent.tool(**options)
    def plain() -> None: ...

    @motet.tool(**options)
    def made() -> None: ...

    (known,) = agent.tools
    assert isinstance(known, motet.Tool)
    assert known.approval is made.approval is value


def test_two_names_of_one_option_are_refused() -> None:
    with pytest.raises(TypeError, match="approval and needs_approval mean the same"):
        motet.tool(approval=True, needs_approval=False)


def test_an_unknown_option_is_named_with_those_there_are() -> None:
    wrong: dict[str, Any] = {"time_out": 5}
    with pytest.raises(TypeError, match="no option 'time_out'; there are timeout, max_output"):
        motet.tool(**wrong)
    with pytest.raises(TypeError, match="no option 'time_out'"):
        motet.Agent("a").tool(**wrong)


def test_a_tool_is_read_in_parallel_and_not_approved_unless_it_says_so() -> None:
    @motet.tool
    def plain() -> None: ...

    assert (plain.effects, plain.parallel, plain.approval, plain.polling) == (
        "read",
        True,
        False,
        False,
    )


def test_names_from_elsewhere_are_the_same_things() -> None:
    assert motet.ModelRetry is motet.ToolRetry
    assert motet.UsageLimits is motet.Limits


async def test_max_turns_stands_for_the_limit_and_final_output_for_the_output() -> None:
    agent = motet.Agent("a", model="demo", tools=["list_files"])
    result = await agent.run("hello", max_turns=1)
    assert result.final_output == result.output
    with pytest.raises(ValueError, match=r"limits\.turns must be at least 1"):
        await agent.run("hello", max_turns=0)
