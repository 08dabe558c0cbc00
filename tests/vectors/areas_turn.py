"""The area of the loop itself: stages of one turn."""

from __future__ import annotations

import json
from typing import cast

import trio

import motet
from motet.actors.runs.turn import CallModel, Finish, RunCalls, Turn
from motet.actors.tools.tool import Tool
from motet.actors.transcript.guards import CUT_CALL, before_request
from motet.protocols.chat import (
    AssistantMessage,
    Call,
    ChatMessage,
    JsonObject,
    ToolMessage,
    UserMessage,
)
from motet.protocols.limits import Limits
from motet.protocols.models import Finished, ModelResponse, StopReason
from motet.protocols.tools import CallResult
from tests.scripted import Scripted, Step, call, say
from tests.vectors import areas_loop
from tests.vectors.cases import Facts, Given

REASONS: dict[str, StopReason] = {"length": "length", "tool_calls": "tool_calls", "stop": "stop"}

_NEEDED = {
    "write_file": ("path", "content"),
    "edit": ("path", "old_text", "new_text"),
    "exec": ("command",),
    "create_image": ("prompt",),
    "read_file": ("path",),
}
_ORDINALS = ("first", "second", "third", "fourth", "fifth")


def pipeline(given: Given) -> Facts:
    if "llm" in given:
        return trio.run(_host, given.sub("llm"), given.number("retries_before"))
    if "iteration" in given:
        return _nudges(given.number("iteration"), given.number("max"))
    if "max_iterations" in given:
        return _whole_turn(given.number("max_iterations"))
    if "cancel" in given:
        return _cancelled(given)
    if "injected" in given:
        turn = _begun(Limits())
        turn.inject(*map(UserMessage, given.texts("injected")))
        return {"pending": [message.text for message in turn.waiting]}
    if "budget_left" in given or "max_tool_calls" in given:
        left = given.number("budget_left", given.number("max_tool_calls"))
        return _few_calls(left, given.number("calls", given.number("total")))
    if "loop_killed" in given:
        return _loop()
    return areas_loop.stages(given)


async def _host(llm: Given, before: int) -> Facts:
    """One answer of a model, which has been so before, and what a host made of it then."""
    names = dict.fromkeys(name for name, _ in _calls(llm))
    model = Scripted(*[_step(llm)] * (before + 1), say("done"))
    agent = motet.Agent("a", model=model, tools=[_tool(name) for name in names])
    async with motet.open_host() as host:
        result = await host.run(agent, "go", check=False)
    between: list[ChatMessage] = list(result.rows[1:-1])
    asked = model.requests[before + 1 :]
    closes = bool(names) and bool(asked) and not asked[0].tools
    results = [row for row in between if isinstance(row, ToolMessage)]
    return {
        "signal": "closing" if closes else "continue" if asked else "break",
        "retries": sum(row.text == CUT_CALL for row in results),
        "pending": len(between) // (before + 1),
        "pending_roles": [
            "assistant" if isinstance(row, AssistantMessage) else "tool"
            for row in between[len(between) * before // (before + 1) :]
        ],
        "kinds": [one.kind for one in result.errors],
    }


def _tool(name: str) -> Tool:
    """A tool that needs what the original's tool of that name needs."""
    needed = _NEEDED.get(name, ())

    async def run(_ctx: object, _args: JsonObject) -> object:
        return "done"

    schema: JsonObject = {
        "type": "object",
        "properties": {key: {"type": "string"} for key in needed},
        "required": list(needed),
    }
    return Tool(name=name, description="", parameters=schema, run=run)


def _calls(llm: Given) -> list[tuple[str, JsonObject]]:
    return [_named(item) for item in llm.items("tool_calls")]


def _step(llm: Given) -> Step:
    made = call(*_calls(llm), text=llm.text("content"))
    assert isinstance(made, list)
    return [*made[:-1], Finished(REASONS[llm.text("finish")])]


def _named(item: object) -> tuple[str, JsonObject]:
    return cast("tuple[str, JsonObject]", item) if isinstance(item, list) else (str(item), {})


def _begun(limits: Limits) -> Turn:
    turn = Turn(limits)
    turn.begin("go")
    return turn


def _nudges(used: int, most: int) -> Facts:
    """What is said at the request after so many, and how often by then."""
    said = [before_request(iteration, most, "") for iteration in range(1, used + 2)]
    texts = {share: f"{most - most * share // 100} of {most} " for share in (70, 90)}
    return {
        "nudge70": texts[70] in said[-1],
        "nudge90": texts[90] in said[-1],
        "times": sum(texts[70] in text for text in said),
    }


def _whole_turn(turns: int) -> Facts:
    turn = Turn(Limits(turns=turns))
    decision = turn.begin("go")
    ends = 0
    while not isinstance(decision, Finish):
        look = Call("c", "look", json.dumps({"page": turn.iteration}))
        if isinstance(decision, CallModel):
            decision = turn.answered(ModelResponse(calls=(look,)))
        else:
            results = [CallResult(one.id, one.name, one.arguments) for one in decision.calls]
            decision = turn.observed(results)
        ends += isinstance(decision, Finish)
    inputs = sum(isinstance(row, UserMessage) for row in turn.rows)
    return {"setup": inputs, "iterations": turn.iteration, "finalize": ends}


def _cancelled(given: Given) -> Facts:
    turn = _begun(Limits())
    calls = tuple(Call(f"c{n}", "write") for n in range(given.number("calls", 1)))
    turn.answered(ModelResponse(calls=calls))
    said = given.text("cancel")
    done = next((n for n, word in enumerate(_ORDINALS, 1) if word in said), 1)
    finish = turn.stop(done=[CallResult(call.id, call.name, "ok") for call in calls[:done]])
    ends = sum(isinstance(row, AssistantMessage) and row.note == "stopped" for row in turn.rows)
    return {
        "executed": sum(result.ok for result in turn.results),
        "error": finish.status == "failed",
        "exit": "abort" if finish.status == "cancelled" else finish.status,
        "finalize": ends,
    }


def _few_calls(left: int, calls: int) -> Facts:
    turn = _begun(Limits(tool_calls=left))
    asked = tuple(Call(f"c{n}", "look") for n in range(calls))
    decision = turn.answered(ModelResponse(calls=asked))
    run = decision.calls if isinstance(decision, RunCalls) else ()
    if run:
        decision = turn.observed([CallResult(one.id, one.name, "ok") for one in run])
    closes = isinstance(decision, CallModel) and not decision.offer_tools
    return {
        "executed": len(run),
        "path": "sequential" if len(run) == 1 else "parallel",
        "signal": "closing" if closes else "continue",
    }


def _loop() -> Facts:
    turn = _begun(Limits())
    same = Call("c", "look")
    for _ in range(5):
        turn.answered(ModelResponse(calls=(same,)))
        decision = turn.observed([CallResult("c", "look", "same")])
        if isinstance(decision, CallModel) and not decision.offer_tools:
            return {"signal": "closing"}
    return {"signal": "continue"}
