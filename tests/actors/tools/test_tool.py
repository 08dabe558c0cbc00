"""Tools made of functions, and the threads of synchronous ones."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Literal, cast

import msgspec
import pydantic
import pytest
import trio

import motet
from motet.actors.tools import tool as threads
from motet.actors.tools.context import Context
from motet.actors.tools.schema import schema_of
from motet.actors.tools.tool import Length, Pattern, Range, Tool, run_in_thread, tool
from motet.protocols.chat import JsonObject
from motet.protocols.tools import ToolFailure, ToolSpec
from motet.runtime import held_by
from tests.actors.tools.stage import CONTEXT, on_stage
from tests.scripted import Scripted, call, say


class Filter(msgspec.Struct):
    level: Literal["error", "info"]
    words: list[str] = []


class Tree(msgspec.Struct):
    name: str
    children: list[Tree] = []


async def read_log(
    ctx: Context[dict[str, str]],
    unit: str,
    limit: Annotated[int, Range(1, 200)] = 50,
) -> str:
    """Read recent log lines of one unit.

    Newest first.

    Args:
        unit: systemd unit name.
        limit: how many lines at most.
    """
    return f"{ctx.deps['greeting']} {unit} {limit}"


def test_the_hints_and_the_docstring_describe_the_tool() -> None:
    made = tool(read_log)
    parameters: JsonObject = {
        "type": "object",
        "properties": {
            "unit": {"type": "string", "description": "systemd unit name."},
            "limit": {
                "type": "integer",
                "minimum": 1,
                "maximum": 200,
                "description": "how many lines at most.",
                "default": 50,
            },
        },
        "required": ["unit"],
        "additionalProperties": False,
    }
    description = "Read recent log lines of one unit.\n\nNewest first."
    assert made.spec == ToolSpec("read_log", description, parameters, "read")


def numpy_style(unit: str) -> None:
    """Restart it.

    Parameters
    ----------
    unit : str
        the unit's name.
    """


def sphinx_style(unit: str) -> None:
    """Restart it.

    :param unit: the unit's name.
    """


@pytest.mark.parametrize("fn", [numpy_style, sphinx_style])
def test_numpy_and_sphinx_docstrings_describe_parameters_too(fn: Callable[..., object]) -> None:
    made = tool(fn)
    assert made.description == "Restart it."
    unit = {"type": "string", "description": "the unit's name."}
    assert made.parameters["properties"] == {"unit": unit}


def test_the_decorator_takes_limits_and_another_name() -> None:
    @tool(name="restart-unit", description="Restart.", timeout=3, max_output=10, effects="write")
    def restart(unit: str) -> str:
        """This is for readers of the code."""
        return unit

    assert restart.name == "restart-unit"
    assert restart.description == "Restart."
    assert (restart.timeout, restart.max_output, restart.effects) == (3, 10, "write")


def test_a_function_that_is_made_again_is_described_by_what_it_is_now() -> None:
    """Functions of one code share a description only while hints, defaults and text are equal."""

    def made(kind: object, default: object, text: str) -> Tool:
        def fetch(key: str, limit: object = default) -> None: ...

        fetch.__annotations__["limit"] = kind
        fetch.__doc__ = text
        return tool(fetch)

    def limit(of: Tool) -> JsonObject:
        return cast("dict[str, JsonObject]", of.parameters["properties"])["limit"]

    first = made(int, 1, "Fetch.")
    assert limit(first) == {"type": "integer", "default": 1}
    assert limit(made(int, 2, "Fetch.")) == {"type": "integer", "default": 2}
    assert limit(made(bool, True, "Fetch.")) == {"type": "boolean", "default": True}
    assert str(limit(made(float, 1.0, "Fetch."))) == "{'type': 'number', 'default': 1.0}"
    assert limit(made(list[int], [1], "Fetch."))["default"] == [1]
    assert limit(made(list[int], [2], "Fetch."))["default"] == [2]
    assert made(int, 1, "Fetch it.").description == "Fetch it."

    limit(first)["maximum"] = 3  # its owner narrows the schema of this tool
    assert limit(made(int, 1, "Fetch.")) == {"type": "integer", "default": 1}


def test_a_module_that_is_loaded_anew_gives_its_hints_their_new_meaning() -> None:
    code = compile("def pick(size: Size) -> str:\n    return size", "sizes", "exec")
    again = compile("def pick(size: Size) -> str:\n    return size", "sizes", "exec")
    module: dict[str, object] = {"Size": Literal["s", "m"], "__name__": "sizes"}
    other: dict[str, object] = {"Size": int, "__name__": "other"}

    def sizes(of: dict[str, object]) -> object:
        return tool(cast("Callable[..., str]", of["pick"])).parameters["properties"]

    exec(code, module)
    small = {"size": {"enum": ["m", "s"]}}
    assert sizes(module) == small
    module["Size"] = Literal["l"]
    exec(again, module)  # equal to the code before
    assert sizes(module) == {"size": {"enum": ["l"]}}
    exec(code, other)  # the very same code, in another module
    assert sizes(other) == {"size": {"type": "integer"}}


def test_a_nested_type_is_described_in_place() -> None:
    def search(filter: Filter, path: Path = Path("/")) -> None: ...

    properties = tool(search).parameters["properties"]
    assert properties == {
        "filter": {
            "title": "Filter",
            "type": "object",
            "properties": {
                "level": {"enum": ["error", "info"]},
                "words": {"type": "array", "items": {"type": "string"}, "default": []},
            },
            "required": ["level"],
        },
        "path": {"type": "string", "format": "path"},
    }


def test_a_recursive_type_keeps_its_definition() -> None:
    def plant(tree: Tree) -> None: ...

    parameters = tool(plant).parameters
    assert parameters["properties"] == {"tree": {"$ref": "#/$defs/Tree"}}
    definition: JsonObject = {
        "title": "Tree",
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "children": {"type": "array", "items": {"$ref": "#/$defs/Tree"}, "default": []},
        },
        "required": ["name"],
    }
    assert parameters["$defs"] == {"Tree": definition}


def test_text_and_number_limits_reach_the_model_and_the_check() -> None:
    def name(text: Annotated[str, Length(1, 3)], code: Annotated[str, Pattern("^[a-z]+$")]) -> None:
        del text, code

    made = tool(name)
    assert made.parameters["properties"] == {
        "text": {"type": "string", "minLength": 1, "maxLength": 3},
        "code": {"type": "string", "pattern": "^[a-z]+$"},
    }


async def test_the_context_is_injected_and_python_fills_in_defaults() -> None:
    assert await tool(read_log).run(CONTEXT, {"unit": "ssh"}) == "hello ssh 50"


async def test_a_function_gets_the_types_it_asked_for() -> None:
    seen: list[object] = []

    def take(filter: Filter, path: Path, numbers: set[int]) -> None:
        seen.extend([filter, path, numbers])

    args: JsonObject = {"filter": {"level": "info"}, "path": "a/b", "numbers": [1, 1]}
    await tool(take).run(CONTEXT, args)
    assert seen == [Filter("info"), Path("a/b"), {1}]


async def test_a_synchronous_function_runs_in_a_worker_thread() -> None:
    def where() -> int:
        return threading.get_ident()

    assert await tool(where).run(CONTEXT, {}) != threading.get_ident()


@pytest.mark.parametrize("name", ["__traceback__", "__class__", "__context__"])
async def test_an_error_whose_attributes_raise_comes_out_of_a_thread(name: str) -> None:
    class Unreadable(Exception):
        def __getattribute__(self, asked: str) -> object:
            if asked == name:
                raise RuntimeError(asked)
            return super().__getattribute__(asked)

    def fail() -> str:
        """Fail."""
        raise Unreadable

    with pytest.raises(Unreadable):
        await tool(fail).run(CONTEXT, {})


# Refusals. Each message says what is wrong and where.


def no_hint(unit) -> None:  # type: ignore[no-untyped-def]
    del unit


def star(*units: str) -> None: ...


def keywords(**units: str) -> None: ...


def positional(unit: str, /) -> None: ...


def late_context(unit: str, ctx: Context[None]) -> None: ...


def complex_number(number: complex) -> None: ...


def two_arrays(items: list[int] | set[int]) -> None: ...


def lines() -> Iterator[str]:
    yield ""


def unknown_type(x: Missing) -> None: ...  # type: ignore[name-defined]  # noqa: F821


REFUSED: list[tuple[Callable[..., object], str]] = [
    (no_hint, "parameter 'unit' needs a type annotation"),
    (star, r"parameter 'units': \* and \*\* parameters cannot be described"),
    (keywords, r"parameter 'units': \* and \*\* parameters cannot be described"),
    (positional, "parameter 'unit': arguments are passed by name"),
    (late_context, "parameter 'ctx': Context must be the first parameter"),
    (complex_number, "parameter 'number' cannot be described to a model: .*complex"),
    (two_arrays, "parameter 'items' cannot be described to a model: .*array"),
    (lines, "a generator has no one result"),
    (
        unknown_type,
        "name 'Missing' is not defined; types in its annotations must be",
    ),
    (lambda: None, "tool name '<lambda>'"),
]


@pytest.mark.parametrize(("fn", "said"), REFUSED)
def test_an_indescribable_parameter_is_refused_when_the_tool_is_made(
    fn: Callable[..., object], said: str
) -> None:
    with pytest.raises(TypeError, match=said):
        tool(fn)


@pytest.mark.parametrize("name", ["", "a b", "größe", "x" * 65, "a.b"])
def test_a_name_that_providers_refuse_is_refused(name: str) -> None:
    run = tool(read_log).run
    with pytest.raises(TypeError, match="1 to 64 letters"):
        Tool(name=name, description="", parameters={}, run=run)


@pytest.mark.parametrize("limit", [{"timeout": 0.0}, {"timeout": float("nan")}, {"max_output": 0}])
def test_a_limit_that_allows_nothing_is_refused(limit: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(limit))} must be above 0"):
        tool(read_log, **limit)  # type: ignore[call-overload]


class Celsius:
    """A type of the program's own, described by its annotation only."""


def test_a_type_of_ones_own_is_described_by_its_annotation() -> None:
    degrees = Annotated[Celsius, msgspec.Meta(extra_json_schema={"type": "number"})]
    assert schema_of(degrees) == {"type": "number"}
    with pytest.raises(TypeError, match=r"Celsius'> is not supported"):
        schema_of(Celsius)


class Blocking:
    """A function that blocks until a test releases it."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.leave = threading.Event()

    def grind(self) -> str:
        """Works until it may go."""
        self.entered.set()
        assert self.leave.wait(10)
        return "ground"

    async def wait_entered(self) -> None:
        assert await trio.to_thread.run_sync(partial(self.entered.wait, 10))


async def test_a_cancelled_call_waits_until_its_function_has_returned() -> None:
    work = Blocking()
    returned = False

    async def run() -> None:
        nonlocal returned
        try:
            await run_in_thread(work.grind, run_id="r", tool="grind")
        finally:
            returned = True

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        await work.wait_entered()
        nursery.cancel_scope.cancel()
        with trio.CancelScope(shield=True):
            await trio.testing.wait_all_tasks_blocked()
            assert not returned
            work.leave.set()
    assert returned


async def test_a_stop_names_the_functions_it_waits_for() -> None:
    """G2: never silently."""
    work = Blocking()
    model = Scripted(call(("grind", {})), say("done"))
    agent = motet.Agent("a", model=model, tools=[work.grind])
    async with motet.open_host(agents=[agent]) as host:
        ack = await host.submit("go", session="s")
        await work.wait_entered()
        report = await host.stop(run_id=ack.run_id, grace=0.01)
        assert report.still_running == [ack.run_id]
        (line,) = report.held_by
        assert line.startswith(f"{ack.run_id}: tool 'grind' runs in a thread")
        work.leave.set()
        again = await host.stop(session="s")
        assert again.still_running == again.held_by == []


async def test_a_call_that_waits_for_a_thread_is_named_as_such(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(threads, "THREADS", 1)
    first, second = Blocking(), Blocking()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(run_in_thread, first.grind, run_id="r1", tool="one"))
        await first.wait_entered()
        nursery.start_soon(partial(run_in_thread, second.grind, run_id="r2", tool="two"))
        await trio.testing.wait_all_tasks_blocked()
        assert held_by(["r2"]) == ["r2: tool 'two' has not begun: it waits for a thread"]
        assert held_by(["other"]) == []
        for work in (first, second):
            work.leave.set()
    assert held_by(["r1", "r2"]) == []


# Results that no model could read


class Row:
    """An object without a JSON form."""


class Order(pydantic.BaseModel):
    id: int = 7


async def fetched() -> str:
    return "text"


async def forgets_to_await() -> str:
    return fetched()  # type: ignore[return-value]  # the mistake


def calls_without_await() -> str:
    return fetched()  # type: ignore[return-value]  # the mistake


def returns_an_object() -> str:
    return Row()  # type: ignore[return-value]  # the mistake


def returns_a_list_of_objects() -> list[Row]:
    return [Row()]


def returns_its_own_cycle() -> list[object]:
    made: list[object] = []
    made.append(made)
    return made


def returns_a_number_without_a_text() -> int:
    return 10**5_000


def returns_such_a_number_in_a_list() -> list[int]:
    return [10**5_000]


@pytest.mark.parametrize(
    ("fn", "does", "remedy"),
    [
        (forgets_to_await, "returned a coroutine", "await it"),
        (calls_without_await, "returned a coroutine", "await it"),
        (returns_an_object, "returned a Row with no JSON form", "return text or data"),
        (returns_a_list_of_objects, "returned a list with no JSON form", "return text or data"),
        (returns_its_own_cycle, "returned a list with no JSON form", "return text or data"),
        (returns_a_number_without_a_text, "returned a int with no JSON form", "return text"),
        (returns_such_a_number_in_a_list, "returned a list with no JSON form", "return text"),
    ],
)
async def test_a_result_that_no_model_could_read_is_a_failure_that_says_what_to_do(
    fn: Callable[[], object], does: str, remedy: str
) -> None:
    with pytest.raises(ToolFailure) as raised:
        await tool(fn).run(CONTEXT, {})
    assert str(raised.value).startswith(f"{__name__}.{fn.__name__} {does}")
    assert remedy in str(raised.value).splitlines()[0]
    async with on_stage(tool(fn)) as stage:
        result = await stage.call(fn.__name__)
    assert (result.outcome, result.failure) == ("failed", "fault")


async def test_a_result_with_a_form_is_no_failure_and_neither_is_one_without_a_declared_type() -> (
    None
):
    def order() -> Order:
        return Order()

    def rows() -> dict[str, list[Order]]:
        return {"rows": [Order()]}

    def anything() -> object:
        return Row()

    def awaited() -> Awaitable[str]:
        return fetched()

    def surrogates() -> list[object]:
        return ["\ud800", 1 << 80, b"x", Path("/x")]

    tools = [tool(fn) for fn in (order, rows, anything, awaited, surrogates)]
    async with on_stage(*tools) as stage:
        texts: list[str] = []
        for one in tools:
            result = await stage.call(one.name)
            assert result.ok
            texts.append(result.text)
    assert texts[:2] == ['{"id": 7}', '{"rows": [{"id": 7}]}']
    assert texts[2].startswith("[unserializable result of type")
    assert texts[3] == "text"
    assert "/x" in texts[4]
