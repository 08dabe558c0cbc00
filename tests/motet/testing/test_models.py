"""Models that need no script, as a host meets them: one calls every tool, one is a function."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from datetime import date
from typing import Annotated, Literal

import msgspec
import pytest
import trio
import trio.testing

import motet
from motet.protocols.chat import AssistantMessage, ToolMessage, UserMessage
from motet.protocols.errors import Llm
from motet.protocols.models import (
    CallArguments,
    CallStart,
    Finished,
    ModelFailure,
    ModelRequest,
    OutputSchema,
    TextPart,
)
from motet.testing import FunctionModel, Step, TestModel, call, fail, say
from motet.testing.models import Part


class Ticket(msgspec.Struct):
    title: Annotated[str, motet.Length(3)]
    severity: Annotated[int, motet.Range(1, 5)]


@motet.tool
def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


@motet.tool
def book(
    kind: Literal["train", "bus"],
    seats: Annotated[int, motet.Range(2, 6)],
    on: date,
    names: Annotated[list[str], motet.Length(2)],
    code: Annotated[str, motet.Pattern(r"^[A-Z]{3}-\d+$")],
    note: str | None = None,
) -> str:
    """Books."""
    return f"{kind} {seats} {on} {names} {code} {note}"


async def run(agent: motet.Agent[None, str], text: str = "go") -> motet.RunResult[str]:
    async with motet.open_host() as host:
        return await host.run(agent, text)


async def test_every_tool_is_called_once_with_arguments_that_it_takes() -> None:
    model = TestModel()
    result = await run(motet.Agent("t", model=model, tools=[add, book]))
    assert msgspec.json.decode(result.output) == {
        "add": "0",
        "book": "bus 2 2026-01-01 ['a', 'a'] AAA-0 None",
    }
    assert [len(row.calls) for row in result.rows if isinstance(row, AssistantMessage)] == [2, 0]
    assert len(model.requests) == 2


async def test_the_tools_and_the_answer_can_be_chosen() -> None:
    model = TestModel(tools=["add"], text="finished")
    result = await run(motet.Agent("t", model=model, tools=[book, add]))
    assert result.output == "finished"
    assert [row.name for row in result.rows if isinstance(row, ToolMessage)] == ["add"]


async def test_a_tool_that_is_not_offered_is_a_mistake_of_the_test() -> None:
    agent = motet.Agent("t", model=TestModel(tools=["bok"]), tools=[book])
    with pytest.raises(Llm, match="no tool 'bok' is offered; did you mean 'book'"):
        await run(agent)


async def test_each_turn_calls_the_tools_again() -> None:
    model = TestModel()
    agent = motet.Agent("t", model=model, tools=[add])
    async with motet.open_host() as host:
        for _ in range(2):
            result = await host.run(agent, "go", session="main")
            assert result.output == '{"add":"0"}'
    assert len(model.requests) == 4


async def test_a_structured_answer_matches_its_schema() -> None:
    agent = motet.Agent("t", model=TestModel(), tools=[add], output_type=Ticket)
    given = motet.Agent(
        "g",
        model=TestModel(output={"title": "fire", "severity": 5}, name="fire"),
        output_type=Ticket,
    )
    async with motet.open_host() as host:
        assert (await host.run(agent, "go")).output == Ticket("a..", 1)
        assert (await host.run(given, "go")).output == Ticket("fire", 5)


async def test_a_schema_that_the_provider_enforces_is_filled_too() -> None:
    schema: dict[str, object] = {
        "type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"],
    }  # fmt: skip
    request = ModelRequest("m", (UserMessage("go"),), output=OutputSchema("form", schema))
    async with TestModel().request(request) as events:
        parts = [event async for event in events]
    assert parts[0] == TextPart('{"n":0}')


async def test_an_agents_own_tool_may_be_called_final_answer() -> None:
    def final_answer(text: str) -> str:
        """Says it."""
        return f"said {text}"

    agent = motet.Agent("t", model=TestModel(), tools=[add, motet.tool(final_answer)])
    result = await run(agent)
    assert "said a" in result.output


def test_pytest_does_not_take_it_for_a_test() -> None:
    assert TestModel.__test__ is False


async def test_a_function_answers_by_its_request() -> None:
    def answer(request: ModelRequest) -> Step | str:
        last = request.messages[-1]
        if isinstance(last, ToolMessage):
            return f"the sum is {last.text}"
        return say("I add. ") + call("add", a=1, b=2)

    model = FunctionModel(answer)
    result = await run(motet.Agent("t", model=model, tools=[add]))
    assert result.output == "the sum is 3"
    assert len(model.requests) == 2
    assert repr(model) == "<FunctionModel answer, 2 requests>"


async def test_an_async_function_may_wait_and_fail(autojump_clock: object) -> None:
    answers: list[Step | str] = [fail(503, retry_after=3), "back again"]

    async def answer(_: ModelRequest) -> Step | str:
        await trio.sleep(1)
        return answers.pop(0)

    started = trio.current_time()
    result = await run(motet.Agent("t", model=FunctionModel(answer)))
    assert result.output == "back again"
    assert trio.current_time() - started >= 5


async def test_a_generator_gives_the_parts_of_an_answer() -> None:
    def parts(_: ModelRequest) -> Iterator[Part]:
        yield "one "
        yield "two"

    async def with_call(request: ModelRequest) -> AsyncIterator[Part]:
        await trio.lowlevel.checkpoint()
        if any(isinstance(row, ToolMessage) for row in request.messages):
            yield "done"
            return
        yield CallStart(0, "mine", "add")
        yield CallArguments(0, '{"a": 1, ')
        yield CallArguments(0, '"b": 2}')
        yield Finished("tool_calls")
        yield "and nothing is read behind the end"

    assert (await run(motet.Agent("t", model=FunctionModel(parts)))).output == "one two"
    result = await run(motet.Agent("t", model=FunctionModel(with_call), tools=[add]))
    assert [row.text for row in result.rows if isinstance(row, ToolMessage)] == ["3"]
    assert result.output == "done"


async def test_a_generator_that_breaks_off_is_retried_and_always_closed(
    autojump_clock: object,
) -> None:
    closed: list[int] = []

    async def breaking(_: ModelRequest) -> AsyncIterator[Part]:
        try:
            yield "the be"
            if len(closed) < 1:
                raise ModelFailure("gone", kind="cut")
            yield "ginning"
            yield Finished("stop")
            yield "never"
        finally:
            closed.append(1)

    result = await run(motet.Agent("t", model=FunctionModel(breaking)))
    assert result.output == "the beginning"
    assert len(closed) == 2


async def test_an_async_function_is_cancelled_with_its_run() -> None:
    ended = trio.Event()

    async def never(_: ModelRequest) -> str:
        try:
            await trio.sleep_forever()
        finally:
            ended.set()
        raise AssertionError("nobody wakes it")

    async with motet.open_host() as host, trio.open_nursery() as nursery:
        model = FunctionModel(never)
        nursery.start_soon(run_in, host, motet.Agent("t", model=model))
        await trio.testing.wait_all_tasks_blocked()
        await host.stop(session="main")
        await ended.wait()


async def run_in(host: motet.Host, agent: motet.Agent[None, str]) -> None:
    result = await host.run(agent, "go", session="main", check=False)
    assert result.status == "cancelled"
