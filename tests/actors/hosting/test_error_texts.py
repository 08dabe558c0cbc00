"""The texts that a model reads of failed calls, from the result of the call to a compaction."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest

import motet
from motet import testing as mt
from motet.actors.errors.tracker import with_error_blocks
from motet.actors.models.dialects import lawful
from motet.actors.tools.tool import Tool, tool
from motet.actors.transcript.window import ContextWindow
from motet.protocols.chat import AssistantMessage, ChatMessage, ToolMessage
from motet.protocols.errors import StoredError
from motet.protocols.models import ModelRequest
from tests.actors.models.test_lawful import Strict, each
from tests.scripted import Scripted, Step, call, say
from tests.vectors.areas_compact import raised
from tests.vectors.cases import Case, Given, load

VECTORS = Path(__file__).parents[2] / "vectors" / "error_channel.json"
CATEGORIES = [
    case
    for case in load(VECTORS)["compact error formatting + categories"]
    if "error_type" in Given(case.expect)
]
TIMES = re.compile(r'"timestamp": "[^"]*"')
FREE = motet.Limits(turns=90, tool_calls=None, tool_errors=None, total_errors=None)


def failing(name: str, error: Callable[[], BaseException]) -> Tool:
    def fail() -> str:
        raise error()

    return tool(fail, name=name, description="It fails.")


def results(rows: tuple[ChatMessage, ...]) -> list[ToolMessage]:
    return [row for row in rows if isinstance(row, ToolMessage)]


def block_of(row: ToolMessage) -> str:
    """The block that a failed call becomes in a compaction."""
    rows = with_error_blocks((row, AssistantMessage("I see")))
    return rows[0].text


async def stored(host: motet.Host) -> dict[str, StoredError]:
    return {error.tool_name: error for error in await host.errors(limit=100)}


async def test_the_kind_is_with_the_failure_and_stays_as_it_was_stored(tmp_path: Path) -> None:
    """Law: in every request, and in the block of a compaction, the kind is that of the store."""
    assert len(CATEGORIES) >= 12
    tools = [failing(f"t{at}", partial(as_exception, case)) for at, case in enumerate(CATEGORIES)]
    steps: list[Step] = [call((one.name, {})) for one in tools]
    model = Scripted(*steps, say("done"))
    agent = motet.Agent("helper", model=model, tools=tools, limits=FREE)
    async with motet.open_host(tmp_path) as host:
        await host.run(agent, "go", session="s")
        known = await stored(host)
    for at, (case, one) in enumerate(zip(CATEGORIES, tools, strict=True)):
        (*_, told) = results(model.requests[at + 1].messages)
        kind = known[one.name].kind
        expected = Given(case.expect)
        assert kind == expected.get("error_type"), case.name
        suggestion = expected.get("suggestion")
        lines = f"\ntype: {kind}" + (f"\nsuggestion: {suggestion}" if suggestion else "")
        assert f"{told.text}\n".count(f"{lines}\n") == 1, case.name
        assert f"\ntype: {kind}\n" in block_of(told), case.name
    # The next host sends what this one did.
    model.then(say("still"))
    async with motet.open_host(tmp_path) as host:
        await host.run(agent, "and now?", session="s")
    again = results(model.requests[-1].messages)
    assert again == results(model.requests[-2].messages)
    assert [row.kind for row in again] == [known[one.name].kind for one in tools]


def as_exception(case: Case) -> BaseException:
    error = raised(case.given)
    return error if isinstance(error, BaseException) else Exception(error)


async def test_a_declared_kind_counts_also_beside_a_detail() -> None:
    def fail() -> str:
        raise motet.ToolFailure("nothing is wrong", kind="rate_limit", detail={"after": 3})

    model = Scripted(call(("fail", {})), say("so"))
    async with motet.open_host() as host:
        result = await host.run(motet.Agent("a", model=model, tools=[fail]), "go")
        (error,) = await host.errors()
    assert [one.kind for one in result.errors] == ["rate_limit"]
    assert error.kind == "rate_limit"
    (told,) = results(model.requests[-1].messages)
    assert told.text.endswith(
        "\ntype: rate_limit\nsuggestion: Wait and retry, or use alternative API"
    )


async def test_a_failure_with_structure_keeps_its_cause_and_traceback() -> None:
    def inner() -> None:
        raise OSError(28, "no space left")

    def fail() -> str:
        try:
            inner()
        except OSError as error:
            raise motet.ToolFailure("not saved", code="E42", detail={"path": "a.txt"}) from error
        return ""

    model = Scripted(call(("fail", {})), say("so"))
    async with motet.open_host() as host:
        await host.run(motet.Agent("a", model=model, tools=[fail]), "go")
        (error,) = await host.errors()
    raw = error.raw_error
    assert (raw["message"], raw["code"], raw["path"]) == ("not saved", "E42", "a.txt")
    assert raw["causes"] == [{"message": "[Errno 28] no space left", "type": "OSError"}]
    assert "in inner" in str(raw["traceback"])
    assert "direct cause" in str(raw["traceback"])


@pytest.mark.parametrize("detail", [[1, 2], "text", {"type": "mine", "x": object()}, {}])
async def test_whatever_the_detail_is_the_error_keeps_its_message_and_traceback(
    detail: object,
) -> None:
    def fail() -> str:
        raise motet.ToolFailure("not saved", detail=detail)  # type: ignore[arg-type]  # as users do

    model = Scripted(call(("fail", {})), say("so"))
    async with motet.open_host() as host:
        await host.run(motet.Agent("a", model=model, tools=[fail]), "go")
        (error,) = await host.errors()
    assert error.raw_error["message"] == "not saved"
    assert "in fail" in str(error.raw_error["traceback"])


def refused() -> motet.Agent:
    def fetch() -> str:
        raise motet.ToolFailure("all quiet", kind="rate_limit")

    model = mt.ScriptedModel([mt.call("fetch"), mt.slow(mt.say("so"), seconds=5)])
    return motet.Agent("a", model=model, tools=[fetch])


def fails_once(host: mt.SimulatedHost) -> None:
    host.start(refused(), "go", user="ann")
    host.settle()


async def failed_rows(host: motet.Host) -> list[ToolMessage]:
    try:
        found = await host.history("main", principal=motet.Principal("ann"))
    except motet.NotFound:  # killed before the input was on disk
        return []
    rows = [one.row for one in found if isinstance(one.row, ToolMessage)]
    return [row for row in rows if row.outcome == "failed"]


def keeps_its_kind(host: mt.SimulatedHost, seen: list[str]) -> None:
    for row in host.call(failed_rows):
        seen.append(row.kind)
        assert "\ntype: rate_limit\n" in row.text
        assert "\ntype: rate_limit\n" in block_of(row)


@pytest.mark.parametrize("fault", ["crash", "power"])
def test_a_kind_stays_what_it_was_wherever_the_host_is_killed(fault: mt.HostFault) -> None:
    seen: list[str] = []
    mt.sweep(fails_once, fault, every=29, check=partial(keeps_its_kind, seen=seen)).check()
    assert set(seen) == {"rate_limit"}


# What was sent stays as it was


def sent_bytes(provider: Strict, request: ModelRequest) -> tuple[bytes, bytes]:
    """The conversation of a request's body without its end, and the rest of the body."""
    body = provider.body(lawful(request, provider.rules))
    name = "contents" if "contents" in body else "messages"
    messages = json.dumps(body.pop(name), default=str).removesuffix("]")
    messages = TIMES.sub("", messages)  # of objects of pydantic-ai, which no provider is sent
    return messages.encode(), json.dumps(body, default=str).encode()


def unchanged(before: bytes, after: bytes) -> float:
    equal = (one == other for one, other in zip(before, after, strict=False))
    return next((at for at, same in enumerate(equal) if not same), len(before)) / len(before)


@each
@pytest.mark.parametrize("seed", range(3))
async def test_a_request_begins_with_the_one_before_it(provider: Strict, seed: int) -> None:
    """Law: whichever calls fail and succeed, 99 % of the last request are in front of the next."""
    random = Random(seed)
    names = ["read", "fetch", "save"]
    ends = [(random.choice(names), random.random() < 0.5) for _ in range(20)]
    left = iter(ends)

    def end_of(name: str) -> Tool:
        async def run() -> str:
            drawn, fails = next(left)
            assert drawn == name
            if fails:
                raise random.choice([TimeoutError, ValueError, OSError])(
                    f"no {name}: {random.random()}"
                )
            return "ok " * random.randrange(1, 200)

        return tool(run, name=name, description="It may fail.")

    model = Scripted()
    agent = motet.Agent("helper", model=model, tools=[end_of(name) for name in names], limits=FREE)
    async with motet.open_host() as host:
        for at in range(0, len(ends), 4):
            model.then(*(call((name, {})) for name, _ in ends[at : at + 4]), say("so it is"))
            await host.run(agent, f"go on, {at}", session="s")
    assert sum(fails for _, fails in ends) >= 6
    bodies = [sent_bytes(provider, request) for request in model.requests]
    assert len({rest for _, rest in bodies}) == 1
    for (before, _), (after, _) in pairwise(bodies):
        assert unchanged(before, after) >= 0.99


async def test_errors_are_hidden_where_history_is_compacted_anyway() -> None:
    fails = True

    async def fetch() -> str:
        if fails:
            raise TimeoutError("no answer")
        return "page"

    steps: list[Step] = [call(("fetch", {})) for _ in range(3)]
    model = Scripted(*steps, say("it fails"), call(("fetch", {})), say("there"))
    async with motet.open_host() as host:
        agent = motet.Agent("helper", model=model, tools=[fetch], limits=FREE)
        await host.run(agent, "go", session="s")
        fails = False
        await host.run(agent, "again", session="s")
    rows = model.requests[-1].messages
    assert [row.outcome for row in results(rows)] == ["failed"] * 3 + ["done"]
    assert all("no answer" in row.text for row in results(rows)[:3])
    shown = ContextWindow(history=rows).visible(())
    assert [row.text for row in results(shown)[:3]] == [
        "[Failed; a later call of this tool succeeded]"
    ] * 3


# Details


def fails_plainly() -> str:
    raise OSError("no route to host")


async def detail_of(error: Callable[..., object], **arguments: object) -> ToolMessage:
    """What a model gets that looks up the error of such a tool."""
    model = Scripted(call(("fails", {})), say("it fails"))
    async with motet.open_host() as host:
        agent = motet.Agent("helper", model=model, tools=[tool(error, name="fails")], limits=FREE)
        failed = await host.run(agent, "go", session="s")
        name = str(arguments.pop("name", "get_error_detail"))
        model.then(call((name, {"error_id": failed.errors[0].error_id, **arguments})), say("so"))
        await host.run(agent, "why?", session="s")
    return results(model.requests[-1].messages)[-1]


@pytest.mark.parametrize("name", ["get_error_detail", "get_error_details"])
async def test_a_plain_error_of_a_sync_tool_is_at_most_400_bytes(name: str) -> None:
    told = await detail_of(fails_plainly, name=name)
    assert told.outcome == "done"
    assert len(told.text.encode()) <= 400
    assert told.text.count("no route to host") == 1
    assert "test_error_texts.py:" in told.text
    assert "library frames)" in told.text


async def test_a_long_error_is_read_from_both_ends_and_searched() -> None:
    def fails() -> str:
        raise OSError("first\n" + "filler\n" * 9_000 + "needle 7\n" + "filler\n" * 9_000 + "last")

    head = json.loads((await detail_of(fails)).text)["data"]
    assert "first" in head["text"]
    assert "end" not in head
    tail = json.loads((await detail_of(fails, part="tail")).text)["data"]
    assert tail["text"].endswith("last")
    found = json.loads((await detail_of(fails, part="search", query="NEEDLE")).text)["data"]
    assert [match["text"] for match in found["matches"]] == ["needle 7"]
    assert found["end"] is True
    wrong = await detail_of(fails, part="head", offset=-1)
    assert wrong.outcome == "failed"
    assert "offset must be from 0 to" in wrong.text
    other = await detail_of(fails, part="middle")
    assert other.outcome == "failed"
    assert "part" in other.text
