"""The executor as a run sees it: every call has one result that a model can act on."""

from __future__ import annotations

import sys
import time

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from motet.actors.hooks.registry import HookSet
from motet.actors.storage.error_spool import ErrorSpool, Report
from motet.actors.tools import tool as threads
from motet.actors.tools.context import Context
from motet.actors.tools.tool import Tool, tool
from motet.protocols.chat import JsonObject
from motet.protocols.hooks import Abort, AfterTool, Allow, Ask, BeforeTool, Decision, Deny, Respond
from motet.protocols.tools import ToolDenied, ToolFailure, ToolNegative, ToolRetry
from tests.actors.tools.stage import on_stage


@tool
def add(a: int, b: int = 1) -> int:
    return a + b


@tool(timeout=2)
async def hang() -> None:
    await trio.sleep_forever()


def failing(error: BaseException) -> Tool:
    async def fail() -> None:
        raise error

    return tool(fail)


async def test_a_call_gives_its_value_as_text() -> None:
    async with on_stage(add) as stage:
        result = await stage.call("add", {"a": 2, "b": "3"})
        assert (result.call_id, result.name, result.text) == ("call_add", "add", "5")
        assert result.ok


async def test_a_tool_finds_its_context() -> None:
    @tool
    async def who(ctx: Context[dict[str, str]]) -> str:
        return f"{ctx.agent} {ctx.call_id} {ctx.principal.user} {ctx.deps['greeting']}"

    async with on_stage(who) as stage:
        assert (await stage.call("who")).text == "helper call_who local hello"


async def test_an_unknown_tool_is_answered_with_the_known_names() -> None:
    async with on_stage(add, hang) as stage:
        result = await stage.call("ad")
        assert (result.outcome, result.kind) == ("failed", "not_found")
        assert result.text == "There is no tool 'ad'. Available tools, nearest first: add, hang"
        assert stage.memory.errors == []


async def test_wrong_arguments_are_all_named_and_not_stored() -> None:
    async with on_stage(add) as stage:
        result = await stage.call("add", {"c": 1, "b": "x"})
        assert (result.outcome, result.kind) == ("failed", "validation")
        assert result.text.splitlines() == [
            "Invalid arguments for 'add', nothing was done:",
            "unknown parameter 'c'; known: a, b",
            'missing parameter \'a\'; expected {"type": "integer"}',
            'b: Expected `int`, got `str`; expected {"type": "integer"}',
        ]
        assert stage.memory.errors == []


async def test_an_exception_is_stored_whole_and_summarised_for_the_model() -> None:
    error = ValueError("no such unit")
    async with on_stage(failing(error)) as stage:
        result = await stage.call("fail")
        assert (result.outcome, result.kind, result.error_id) == ("failed", "unknown", "err_1")
        assert result.text == "Tool 'fail' failed: no such unit\ntype: unknown"
        assert stage.memory.errors == [("fail", error, "")]


async def test_a_retry_message_reaches_the_model_unchanged() -> None:
    async with on_stage(failing(ToolRetry("try list_units"))) as stage:
        result = await stage.call("fail")
        assert (result.outcome, result.text, result.error_id) == ("failed", "try list_units", None)
        assert stage.memory.errors == []


async def test_a_failure_with_structure_is_stored_with_it() -> None:
    failure = ToolFailure("no row", detail={"table": "users"}, code="E404", kind="not_found")
    async with on_stage(failing(failure)) as stage:
        result = await stage.call("fail")
        assert result.kind == "not_found"
        assert stage.memory.details == [{"table": "users"}]
        assert stage.memory.errors == [
            ("fail", failure, "E404"),
        ]


async def test_an_error_from_a_tools_own_nursery_is_reported_without_its_group() -> None:
    @tool
    async def group() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            raise ToolRetry("only this")

    async with on_stage(group) as stage:
        assert (await stage.call("group")).text == "only this"


async def test_a_tool_that_exits_the_program_fails_only_itself() -> None:
    @tool
    def leave() -> None:
        sys.exit(3)

    async with on_stage(leave, add) as stage:
        assert (await stage.call("leave")).outcome == "failed"
        assert (await stage.call("add", {"a": 1})).text == "2"


async def test_the_deadline_of_a_tool_ends_it(autojump_clock: MockClock) -> None:
    async with on_stage(hang) as stage:
        result = await stage.call("hang")
        assert trio.current_time() == pytest.approx(2)
        assert (result.outcome, result.kind, result.error_id) == ("failed", "timeout", "err_1")
        assert "no result within 2 s" in result.text
        assert result.ms == pytest.approx(2000)
    del autojump_clock


async def shielded_sleep() -> str:
    with trio.CancelScope(shield=True):
        await trio.sleep(3)
    return "late"


@tool(timeout=0.02)
def in_a_thread() -> str:
    time.sleep(0.06)  # a function in a thread works in real time
    return "late"


@tool(timeout=0.02)
async def in_the_loop() -> str:
    return await shielded_sleep()


@pytest.mark.parametrize("late", [in_a_thread, in_the_loop])
async def test_a_result_after_the_deadline_is_a_failure_that_says_that_the_work_went_on(
    autojump_clock: MockClock, late: Tool
) -> None:
    async with on_stage(late) as stage, trio.open_nursery() as nursery:
        nursery.start_soon(trio.sleep, 10)
        result = await stage.call(late.name)
        assert (result.outcome, result.kind) == ("failed", "timeout")
        assert "no result within 0.02 s" in result.text
        assert "could not be stopped and went on to its end, which took" in result.text
    del autojump_clock


@pytest.mark.parametrize(
    "error",
    [
        ToolNegative("no hit"),
        ToolRetry("give a date"),
        ToolDenied("not yours"),
        FileNotFoundError("no x"),
    ],
    ids=repr,
)
async def test_an_answer_that_is_raised_after_the_deadline_is_as_late_as_one_that_is_returned(
    autojump_clock: MockClock, error: Exception
) -> None:
    @tool(timeout=0.02)
    async def refuses() -> None:
        await shielded_sleep()
        raise error

    async with on_stage(refuses) as stage:
        result = await stage.call("refuses")
        assert (result.outcome, result.kind, result.failure) == ("failed", "timeout", "fault")
        assert "could not be stopped and went on to its end" in result.text
    del autojump_clock


async def test_an_error_that_is_raised_after_the_deadline_is_told(
    autojump_clock: MockClock,
) -> None:
    @tool(timeout=0.02)
    async def breaks() -> None:
        await shielded_sleep()
        raise RuntimeError("kaboom")

    async with on_stage(breaks) as stage:
        result = await stage.call("breaks")
        assert (result.outcome, result.failure) == ("failed", "fault")
        assert "kaboom" in result.text
    del autojump_clock


@tool(timeout=3_600)
def quick() -> str:
    time.sleep(0.01)
    return "in time"


async def test_a_clock_that_jumps_while_a_thread_works_makes_its_tool_no_later(
    autojump_clock: MockClock,
) -> None:
    async with on_stage(quick) as stage, trio.open_nursery() as nursery:
        nursery.start_soon(trio.sleep, 10_000)
        result = await stage.call(quick.name)
        assert trio.current_time() > 3_600
        assert (result.outcome, result.text) == ("done", "in time")
    del autojump_clock


async def test_a_call_that_got_no_thread_in_time_has_done_nothing(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "THREADS", 1)
    async with on_stage(tool(timeout=9, name="first")(in_a_thread_long), in_a_thread) as stage:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stage.call, "first")
            await trio.sleep(0.5)
            result = await stage.call("in_a_thread")
        assert (result.outcome, result.kind) == ("failed", "timeout")
        assert "it waited for a thread and never began: nothing was done" in result.text
    del autojump_clock


def in_a_thread_long() -> str:
    return trio.from_thread.run(shielded_sleep)


async def test_a_broken_error_store_costs_the_id_and_nothing_else() -> None:
    async with on_stage(failing(ValueError("x" * 1_000))) as stage:
        stage.memory.broken = True
        result = await stage.call("fail")
        assert (result.outcome, result.kind, result.error_id) == ("failed", "unknown", None)
        assert result.text.startswith("Error: xxx")
        assert len(result.text) <= 500


async def test_long_output_is_cut_and_unreadable_output_reported() -> None:
    @tool(max_output=5)
    def long() -> str:
        return "abcdefgh"

    @tool
    def strange() -> object:
        return object()

    async with on_stage(long, strange) as stage:
        assert (await stage.call("long")).text == "ab\n[truncated: 2 of 8 bytes]"
        strange_text = (await stage.call("strange")).text
        assert strange_text.startswith("[unserializable result of type object")


async def test_a_cancelled_call_ends_its_tool_before_the_caller_goes_on() -> None:
    log: list[str] = []
    hooks = HookSet()

    async def seen(event: AfterTool) -> None:
        log.append(f"seen {event.name} ok={event.ok}")

    @tool
    async def slow() -> None:
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.lowlevel.checkpoint()
            log.append("cleaned up")

    hooks.add("after_tool", seen)
    async with on_stage(slow, hooks=hooks) as stage:
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(stage.call, "slow")
                await wait_all_tasks_blocked()
                scope.cancel()
        assert log[:1] == ["cleaned up"]
        await wait_all_tasks_blocked()
        assert log == ["cleaned up", "seen slow ok=False"]


def gate(decision: Decision) -> HookSet:
    async def decide(_event: BeforeTool) -> Decision:
        return decision

    hooks = HookSet()
    hooks.add("before_tool", decide)
    return hooks


@pytest.mark.parametrize(
    ("decision", "text"),
    [
        (Deny("not on Sundays"), "Permission denied: not on Sundays"),
        (Abort("stop this"), "Permission denied: stop this"),
        (
            Ask("is it urgent?"),
            "Permission denied: a person has to decide, and there is nobody to ask: is it urgent?",
        ),
    ],
)
async def test_the_refusal_of_a_gate_is_the_result_for_the_model(
    decision: Decision, text: str
) -> None:
    async with on_stage(failing(AssertionError("must not run")), hooks=gate(decision)) as stage:
        result = await stage.call("fail")
        assert (result.outcome, result.kind, result.text) == ("denied", "denied", text)
        assert stage.memory.errors == []


async def test_a_gate_can_answer_in_place_of_the_tool() -> None:
    hooks = gate(Respond("cached"))
    async with on_stage(failing(AssertionError("must not run")), hooks=hooks) as stage:
        result = await stage.call("fail")
        assert (result.outcome, result.text) == ("answered", "cached")
        assert result.ok


async def test_a_gate_can_replace_the_arguments() -> None:
    async with on_stage(add, hooks=gate(Allow({"a": 40, "b": 2}))) as stage:
        assert (await stage.call("add", {"a": 1})).text == "42"


@pytest.mark.parametrize("args", [{"a": "40"}, {"a": 1, "c": 2}, {}])
async def test_a_replacement_that_is_not_valid_denies(args: JsonObject) -> None:
    async with on_stage(add, hooks=gate(Allow(args))) as stage:
        result = await stage.call("add", {"a": 1})
        assert result.outcome == "denied"
        assert "a gate replaced the arguments by invalid ones" in result.text


async def test_observers_see_every_call_and_change_none() -> None:
    hooks, seen = HookSet(), list[AfterTool]()

    async def watch(event: AfterTool) -> None:
        seen.append(event)
        raise RuntimeError("the observer is broken")

    hooks.add("after_tool", watch)
    async with on_stage(add, failing(ValueError("no")), hooks=hooks) as stage:
        assert (await stage.call("add", {"a": "1"})).ok
        await stage.call("fail")
        await stage.call("unknown")
        await wait_all_tasks_blocked()
        assert [(event.name, event.ok, event.text) for event in seen] == [
            ("add", True, "2"),
            ("fail", False, "Tool 'fail' failed: no\ntype: unknown"),
            (
                "unknown",
                False,
                "There is no tool 'unknown'. Available tools, nearest first: add, fail",
            ),
        ]
        assert seen[0].args == {"a": 1}
        assert seen[1].error_id == "err_1"
        assert [fault.message for fault in stage.faults] == [
            "RuntimeError: the observer is broken"
        ] * 3


class _Slow(ErrorSpool):
    """Thousands fail at once, so that an error waits for a minute."""

    def __init__(self, takes: float = 0.0) -> None:
        self.left: list[Report] = []
        self._takes = takes

    @property
    def is_crowded(self) -> bool:
        return True

    async def turn(self) -> None:
        await trio.sleep(self._takes)

    def now(self) -> float:
        return 1_000.0

    def leave(self, item: Report, since: float) -> None:
        assert since == 960.0
        self.left.append(item)


@pytest.mark.parametrize(
    ("timeout", "told"),
    [
        (25, "Tool 'fail' failed: no such unit\ntype: unknown"),
        (40, "Error: ValueError; stored later"),
    ],
)
async def test_a_call_that_failed_is_not_late_while_its_error_waits(
    timeout: float, told: str, autojump_clock: MockClock
) -> None:
    """Its time-out ends only the wait."""

    async def fail() -> None:
        raise ValueError("no such unit")

    assert autojump_clock.current_time() == 0
    async with on_stage(tool(fail, timeout=timeout)) as stage:
        stage.memory.spool = slow = _Slow(60)
        result = await stage.call("fail")
    assert (result.outcome, result.kind, result.failure) == ("failed", "unknown", "fault")
    assert result.text.startswith(told)
    assert [one.origin.tool_name for one in slow.left] == (["fail"] if "later" in told else [])


async def test_no_error_is_asked_for_its_class_while_thousands_fail() -> None:
    """Its answer is code of others, which may raise what ends a host."""

    class Evil(ValueError):
        @property
        def __class__(self) -> type:
            raise SystemExit("out of a look at the class")

        @__class__.setter
        def __class__(self, kind: type) -> None: ...

    async with on_stage(failing(Evil("boom"))) as stage:
        stage.memory.spool = _Slow()
        result = await stage.call("fail")
        assert (result.outcome, result.failure) == ("failed", "fault")
        assert await stage.call("nothing")
