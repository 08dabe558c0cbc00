"""Tools that misbehave by plan, and the ledger of what they did."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

import motet
from motet import testing as mt
from motet.protocols.chat import ToolMessage
from motet.testing import Flaw, Ledger, ScriptedModel, call, flaky_tool, say, with_flaws


def autojump() -> MockClock:
    return MockClock(autojump_threshold=0)


def results(result: motet.RunResult[str]) -> list[tuple[str, str]]:
    return [(row.outcome, row.text) for row in result.rows if isinstance(row, ToolMessage)]


def calls_of(name: str, times: int) -> ScriptedModel:
    """Calls the tool again and again, each time in another way, and then answers."""
    return ScriptedModel([*(call(name, what=f"{n}") for n in range(times)), say("done")])


async def run(tool: motet.Tool, times: int = 1) -> motet.RunResult[str]:
    agent = motet.Agent("t", model=calls_of(tool.name, times), tools=[tool])
    async with motet.open_host() as host:
        return await host.run(agent, "go")


def test_each_call_misbehaves_as_its_place_in_the_plan_says() -> None:
    async def main() -> None:
        ledger = Ledger()
        tool = flaky_tool(
            "pay",
            [Flaw(error=ConnectionError), Flaw(half=True), Flaw(size=3), Flaw(opaque=True)],
            ledger=ledger,
        )
        ended = results(await run(tool, times=5))
        assert [outcome for outcome, _ in ended] == ["failed", "failed", "done", "done", "done"]
        assert "pay fails, as planned" in ended[0][1]
        assert "half of it is done" in ended[1][1]
        assert ended[2][1] == "xxx"
        assert "Opaque" in ended[3][1]
        assert ended[4][1] == "done"
        begun, done = ledger.count("pay: begun"), ledger.count("pay: done")
        assert (begun, done) == (4, 3)

    trio.run(main, clock=autojump())


def test_a_hanging_call_is_ended_by_its_timeout_and_a_deaf_one_later() -> None:
    async def main() -> None:
        ledger = Ledger()
        plan = [Flaw(hang=True), Flaw(deaf=4, hang=True), Flaw(latency=1), Flaw(deaf=6)]
        tool = flaky_tool("pay", plan, ledger=ledger, timeout=2)
        agent = motet.Agent("t", model=calls_of("pay", 4), tools=[tool])
        async with motet.open_host() as host, host.stream(agent, "go") as stream:
            ends = [
                trio.current_time() async for event in stream if isinstance(event, motet.ToolResult)
            ]
        assert [outcome for outcome, _ in results(stream.result)] == [
            "failed",
            "failed",
            "done",
            "failed",
        ]
        first, second, third, fourth = ends
        assert second - first == pytest.approx(4)
        assert third - second == pytest.approx(1)
        assert fourth - third == pytest.approx(6)
        assert ledger.count("pay: done") == 2

    trio.run(main, clock=autojump())


def test_a_huge_result_is_stored_and_read_in_pages() -> None:
    async def main() -> None:
        ((outcome, text),) = results(await run(flaky_tool("pay", [Flaw(size=500_000)])))
        assert outcome == "done"
        assert len(text) < 20_000

    trio.run(main, clock=autojump())


def test_a_wrapped_tool_does_its_work_unless_it_fails_first() -> None:
    paid: list[int] = []

    def pay(what: str) -> str:
        """Pays."""
        paid.append(int(what))
        return "paid"

    async def main() -> None:
        ledger = Ledger()
        plan = [Flaw(error=TimeoutError), Flaw(half=True, error=TimeoutError)]
        tool = with_flaws(pay, plan, ledger=ledger)
        ended = results(await run(tool, times=3))
        assert [outcome for outcome, _ in ended] == ["failed", "failed", "done"]
        assert paid == [1, 2]  # reported as failed is not the same as not done
        assert ledger.count("pay: done") == 2

    trio.run(main, clock=autojump())


def test_an_effect_twice_for_one_call_is_doubled_unless_repeatable() -> None:
    ledger = Ledger()
    ledger.did("call_1", "paid")
    ledger.did("call_2", "paid")
    ledger.did("call_1", "sent a receipt")
    assert not ledger.doubled()
    ledger.did("call_3", "looked", repeatable=True)
    ledger.did("call_3", "looked", repeatable=True)
    ledger.did("call_1", "paid")
    assert ledger.doubled() == [mt.Effect("call_1", "paid")]
    assert ledger.of("call_1") == ["paid", "sent a receipt", "paid"]


async def test_equal_call_ids_of_two_runs_are_two_calls() -> None:
    ledger = Ledger()
    tool = flaky_tool("pay", ledger=ledger)
    await run(tool)
    await run(tool)
    assert ledger.count("pay: done") == 2
    assert not ledger.doubled()
    assert len({effect.call for effect in ledger.effects}) == 2


def test_no_effect_is_recorded_while_the_ledger_is_cut_off() -> None:
    ledger = Ledger()
    ledger.cut_off = True
    ledger.did("call_1", "paid")
    ledger.cut_off = False
    ledger.did("call_1", "paid")
    assert ledger.of("call_1") == ["paid"]


def test_a_drawn_plan_begins_without_a_flaw_and_can_be_repeated() -> None:
    async def main() -> None:
        plan = mt.FuzzPlan([0, 8, 17])
        first = results(await run(flaky_tool("pay", plan), times=4))
        assert [outcome for outcome, _ in first] == ["done", "failed", "done", "done"]
        assert plan.drawn == [Flaw(), Flaw(half=True), Flaw(opaque=True), Flaw()]
        assert repr(plan.drawn[1]) == "Flaw(half=True)"
        second = results(await run(flaky_tool("pay", plan.drawn), times=4))
        assert [outcome for outcome, _ in second] == [outcome for outcome, _ in first]

    trio.run(main, clock=autojump())


def test_no_drawn_flaw_keeps_a_run_from_its_end() -> None:
    """Law: whatever a tool does, its run ends, and each call has one result."""

    async def main(seed: int) -> None:
        tool = flaky_tool("pay", mt.FuzzPlan(seed), timeout=5)
        agent = motet.Agent("t", model=calls_of("pay", 8), tools=[tool])
        async with motet.open_host() as host:
            result = await host.run(agent, "go", check=False)
        assert result.status in ("completed", "escalated")  # a person decides after three errors
        assert len(results(result)) == sum(len(getattr(row, "calls", ())) for row in result.rows)

    for seed in range(10):
        trio.run(main, seed, clock=autojump())


@pytest.mark.parametrize("idempotent", [False, True])
def test_a_call_has_its_effects_at_most_once_after_a_power_cut_at_any_step(
    idempotent: bool,
) -> None:
    """Law: of one call nothing is done twice, unless its tool says that it may be."""
    ends: set[str] = set()
    again = 0
    for step in range(10, 400, 26):
        with mt.simulated_host(seed=step) as host:
            tool = flaky_tool("pay", [Flaw(latency=5)], ledger=host.ledger, idempotent=idempotent)
            model = ScriptedModel([call("pay"), *[say("paid")] * 3])
            host.start(motet.Agent("t", model=model, tools=[tool]), "pay", session="main")
            host.steps(step)
            host.crash()
            host.settle()
            assert not host.ledger.doubled()
            ends |= {effect.what for effect in host.ledger.effects}
            again += host.ledger.count("pay: begun") > 1
    assert ends == {"pay: begun", "pay: done"}
    assert bool(again) == idempotent


def test_a_flaw_is_written_as_the_python_that_makes_it() -> None:
    flaw = Flaw(latency=2, error=ConnectionError, half=True)
    assert repr(flaw) == "Flaw(latency=2, error=ConnectionError, half=True)"
    assert repr(Flaw()) == "Flaw()"
