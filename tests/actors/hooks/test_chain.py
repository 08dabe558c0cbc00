"""A chain of gates: their events, their failures, and the merged verdict."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from motet.actors.hooks.chain import decide
from motet.actors.hooks.registry import HookSet
from motet.protocols.chat import JsonObject
from motet.protocols.hook_rules import HookFault, merge
from motet.protocols.hooks import (
    Abort,
    AfterTool,
    Allow,
    AnyDecision,
    Ask,
    BeforeTool,
    Continue,
    Decision,
    Deny,
    OnError,
    Replace,
    Respond,
    Verdict,
)
from motet.protocols.sessions import LOCAL

BEFORE = BeforeTool("run", "session", "helper", LOCAL, "call", "shell", {"cmd": ["ls"]})
AFTER = AfterTool("run", "session", "helper", LOCAL, "call", "shell", {}, True, "text", 1.0)

VERDICTS = st.builds(
    Verdict,
    st.one_of(
        st.builds(Allow, st.none() | st.fixed_dictionaries({"a": st.integers()})),
        st.builds(Deny, st.text()),
        st.builds(Ask, st.text()),
        st.builds(Continue, st.text()),
        st.builds(Respond, st.text()),
        st.builds(Replace, st.text()),
        st.builds(Abort, st.text()),
    ),
    st.sampled_from(["a", "b"]),
)
ORDER = [Abort, Deny, Ask, Continue, Respond, Replace, Allow]


def rank(verdict: Verdict) -> int:
    return ORDER.index(type(verdict.decision))


@given(st.lists(VERDICTS))
def test_the_strongest_verdict_wins(verdicts: list[Verdict]) -> None:
    """Law: strongest first as in ORDER; of equals the first, of replacements the last."""
    merged = merge(verdicts)
    assert rank(merged) == min(map(rank, verdicts), default=rank(Verdict(Allow())))
    same = [v for v in verdicts if type(v.decision) is type(merged.decision)]
    match merged.decision:
        case Allow(args=args):
            allowed = [v.decision.args for v in same if isinstance(v.decision, Allow)]
            assert args == next((a for a in reversed(allowed) if a is not None), None)
        case Replace():
            assert merged is same[-1]
        case _:
            assert merged is same[0]


@given(st.lists(VERDICTS), st.lists(VERDICTS))
def test_merging_in_parts_is_merging_at_once(left: list[Verdict], right: list[Verdict]) -> None:
    """Law: merge(left + right) = merge([merge(left), merge(right)])."""
    assert merge(left + right) == merge([merge(left), merge(right)])


GateLike = Callable[[BeforeTool], Awaitable[Any]]


async def ask_all(
    *gates: GateLike, on_error: OnError = "block"
) -> tuple[AnyDecision, list[HookFault]]:
    hooks, faults = HookSet(), list[HookFault]()
    for gate in gates:
        hooks.add("before_tool", gate, on_error=on_error, timeout=2)
    verdict = await decide(hooks.of(BEFORE), BEFORE, faults.append)
    return verdict.decision, faults


def replacing(args: JsonObject) -> GateLike:
    async def replace(_event: BeforeTool) -> Decision:
        return Allow(args)

    return replace


def always(decision: object) -> GateLike:
    async def gate(_event: BeforeTool) -> Decision:
        return cast(Decision, decision)  # a gate may return anything

    return gate


async def test_replacements_chain() -> None:
    seen: list[JsonObject] = []

    async def look(event: BeforeTool) -> Decision:
        seen.append(event.args)
        return Allow()

    decision, _ = await ask_all(look, replacing({"n": 1}), look, replacing({"n": 2}), look)
    assert seen == [{"cmd": ["ls"]}, {"n": 1}, {"n": 2}]
    assert decision == Allow({"n": 2})


async def test_a_gate_that_edits_the_event_in_place_changes_nothing() -> None:
    async def edit(event: BeforeTool) -> Decision:
        cast("list[str]", event.args["cmd"]).append("-rf")
        return Allow()

    seen: list[JsonObject] = []

    async def look(event: BeforeTool) -> Decision:
        seen.append(event.args)
        return Allow()

    decision, _ = await ask_all(edit, look)
    assert decision == Allow()
    assert seen == [BEFORE.args] == [{"cmd": ["ls"]}]


async def test_a_gate_cannot_change_its_replacement_after_the_verdict() -> None:
    kept: JsonObject = {"cmd": ["ls"]}
    decision, _ = await ask_all(replacing(kept))
    cast("list[str]", kept["cmd"]).append("-rf")
    assert decision == Allow({"cmd": ["ls"]})


async def test_abort_ends_the_chain() -> None:
    asked: list[str] = []

    async def later(_event: BeforeTool) -> Decision:
        asked.append("later")
        return Allow()

    decision, _ = await ask_all(always(Deny("no")), always(Abort("stop")), later)
    assert decision == Abort("stop")
    assert asked == []


async def raising(_event: BeforeTool) -> Decision:
    raise ValueError("secret detail")


async def hanging(_event: BeforeTool) -> Decision:
    await trio.sleep_forever()
    raise AssertionError


async def stubborn(_event: BeforeTool) -> Decision:
    with trio.CancelScope(shield=True):
        await trio.sleep(3)
    return Allow()


async def cancelling_itself(_event: BeforeTool) -> Decision:
    with trio.CancelScope() as scope:
        scope.cancel()
        await trio.lowlevel.checkpoint()
    return cast(Decision, None)  # what a careless gate falls through to


NOT_A = "TypeError: a hook at before_tool returns Abort, Deny, Ask, Respond, Allow, not "
FAULTS = [
    (raising, "ValueError: secret detail"),
    (hanging, "no answer within 2 s"),
    (stubborn, "no answer within 2 s"),
    (
        cancelling_itself,
        NOT_A + "NoneType",
    ),
    (
        always(True),
        NOT_A + "bool",
    ),
    (
        always(Allow),
        NOT_A + "StructMeta",
    ),
    (always(Allow(cast(Any, "yes"))), "ValidationError: Expected `object | null`, got `str`"),
    (always(Allow({"a": object()})), "TypeError: Encoding objects of type object"),
    (always(Respond(cast(Any, 5))), "ValidationError: Expected `str`, got `int`"),
]


@pytest.mark.parametrize(("gate", "message"), FAULTS)
async def test_a_fault_denies_and_hides_its_reason_from_the_model(
    gate: GateLike, message: str, autojump_clock: MockClock
) -> None:
    decision, faults = await ask_all(gate)
    assert isinstance(decision, Deny)
    assert gate.__qualname__ in decision.reason
    assert "secret" not in decision.reason
    assert [fault.message[: len(message)] for fault in faults] == [message]
    del autojump_clock


@pytest.mark.parametrize(("gate", "message"), FAULTS)
async def test_a_fault_of_a_gate_declared_continue_allows_and_is_reported(
    gate: GateLike, message: str, autojump_clock: MockClock
) -> None:
    decision, faults = await ask_all(gate, on_error="continue")
    assert decision == Allow()
    assert [(fault.on_error, fault.tool, fault.event) for fault in faults] == [
        ("continue", "shell", BEFORE)
    ]
    assert faults[0].message.startswith(message)
    del autojump_clock


async def test_each_gate_has_its_whole_time_after_slow_ones(autojump_clock: MockClock) -> None:
    """They share a scope, whose deadline is that of the gate that is asked."""
    asked: list[str] = []

    async def slow(_event: BeforeTool) -> Decision:
        await trio.sleep(1.5)
        asked.append("slow")
        return Allow()

    assert await ask_all(slow, slow, always(Allow()), slow) == (Allow(), [])
    assert asked == ["slow"] * 3
    decision, faults = await ask_all(slow, hanging, slow, on_error="continue")
    assert (decision, [fault.hook for fault in faults]) == (Allow(), [hanging.__qualname__])
    assert asked == ["slow"] * 5
    del autojump_clock


async def test_gates_are_asked_after_one_that_refuses_too_late(autojump_clock: MockClock) -> None:
    asked: list[str] = []

    async def late(_event: BeforeTool) -> Decision:
        with trio.CancelScope(shield=True):
            await trio.sleep(3)
        return Deny("late")

    async def next_one(_event: BeforeTool) -> Decision:
        await trio.sleep(1)
        asked.append("next")
        return Allow()

    assert await ask_all(late, next_one) == (Deny("late"), [])
    assert asked == ["next"]
    del autojump_clock


@pytest.mark.parametrize("kind", [Abort, Deny, Ask])
async def test_a_restriction_works_whatever_on_error_says(
    kind: Callable[[Any], Decision], autojump_clock: MockClock
) -> None:
    """Even when it comes late, or is malformed."""

    async def late(_event: BeforeTool) -> Decision:
        with trio.CancelScope(shield=True):
            await trio.sleep(3)
        return kind("late")

    assert await ask_all(always(kind("no")), on_error="continue") == (kind("no"), [])
    assert await ask_all(late, on_error="continue") == (kind("late"), [])
    assert await ask_all(always(kind(5)), on_error="continue") == (kind("<int>"), [])
    del autojump_clock


async def test_a_cancelled_chain_gives_no_verdict() -> None:
    with trio.move_on_after(0) as scope:
        await ask_all(hanging, on_error="continue")
        raise AssertionError("there must be no verdict")
    assert scope.cancelled_caught


async def test_a_broken_observer_is_reported_and_the_next_one_gets_the_event(
    autojump_clock: MockClock,
) -> None:
    seen: list[AfterTool] = []
    hooks, faults = HookSet(), list[HookFault]()

    async def broken(_event: AfterTool) -> None:
        raise OSError("log is full")

    async def slow(_event: AfterTool) -> None:
        await trio.sleep_forever()

    async def good(event: AfterTool) -> None:
        seen.append(event)

    for fn in (broken, slow, good):
        hooks.add("after_tool", fn, name=fn.__name__)
    await decide(hooks.of(AFTER), AFTER, faults.append)
    assert seen == [AFTER]
    assert [(fault.hook, fault.message) for fault in faults] == [
        ("broken", "OSError: log is full"),
        ("slow", "no answer within 5 s"),
    ]
    del autojump_clock
