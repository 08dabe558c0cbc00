"""The metrics of a host count what has ended, in a bounded number of series."""

from __future__ import annotations

import re
from collections import Counter
from typing import get_args

import attrs
from msgspec.structs import replace

import motet
from motet import testing as mt
from motet.protocols.host import HostStatus
from motet.protocols.meters import Figures, Meters
from motet.protocols.metrics import MOST_REQUESTS, GatewayCounts, exposition
from motet.protocols.models import Usage
from motet.protocols.sessions import FINAL
from motet.protocols.storage import Histogram
from motet.protocols.traces import Span, SpanStatus, TraceBatch, TraceInfo

STATUS = HostStatus("boot", "0.1.0", 1.0, 1.0, 1, 0, 0, 0, 0)
COUNTS = GatewayCounts(0, 0, 0, 0, 0, 0, {})


def shown(figures: Figures, counts: GatewayCounts = COUNTS) -> dict[str, float]:
    """The samples of the metrics by their names with labels."""
    text = exposition(STATUS, figures, counts, 1.0, 1)
    samples = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
    assert len({name for name, _, _ in samples}) == len(samples)
    return {name: float(value) for name, _, value in samples}


def test_a_histogram_counts_each_duration_in_its_bucket_and_all_above() -> None:
    one = Histogram((0.1, 1.0, 10.0))
    for seconds in (0.0, 0.1, 0.5, 1.0, 99.0):
        one.observe(seconds)
    assert one.cumulative() == [2, 4, 4, 5]
    assert one.total == 100.6
    meters = Meters(one)
    samples = shown(Figures(meters))
    assert samples['motet_commit_seconds_bucket{le="1"}'] == 4
    assert samples['motet_commit_seconds_bucket{le="+Inf"}'] == 5
    assert samples["motet_commit_seconds_count"] == 5
    assert samples["motet_commit_seconds_sum"] == 100.6


def batch(status: str, *spans: Span, agent: str = "a", ended: float | None = 12.0) -> TraceBatch:
    info = TraceInfo("run_1", "t", "s", agent, "ann", "running", 10.0, ended)
    return TraceBatch(replace(info, status=status), spans)


def test_only_what_has_ended_counts_and_a_suspended_run_has_not() -> None:
    usage = Usage(10, 5, 3, 0.25)
    model = Span("1", "model", "m", 10.0, ended=11.5, status="ok", usage=usage, first_token=0.2)
    tool = Span("2", "tool", "t", 11.5, ended=11.6, status="error")
    meters = Meters()
    meters.note([batch("running", model, replace(tool, ended=None), ended=None)])
    meters.note([batch("waiting", tool), batch("completed", agent="")])
    assert (meters.outcomes, meters.turns.cumulative()[-1]) == (Counter(), 0)
    meters.note([batch("completed", replace(model, usage=Usage(1, 1)))])
    assert meters.outcomes == {"completed": 1}
    assert meters.calls == {("model", "ok"): 2, ("tool", "error"): 1}
    assert meters.tokens == {"input": 11, "output": 6, "cached": 3, "cache_write": 0}
    assert (meters.dollars, meters.unpriced) == (0.25, 1)
    assert meters.turns.total == 2.0
    assert meters.models.total == 3.0
    assert meters.first_tokens.total == 0.4


def test_however_much_happens_there_are_at_most_300_series() -> None:
    meters = Meters()
    for one in FINAL:
        meters.outcomes[one] = 1
    for kind in ("model", "tool"):
        for status in get_args(SpanStatus):
            meters.calls[kind, status] = 1
    for kind in ("input", "output", "cached", "cache_write"):
        meters.tokens[kind] = 1
    requests = {(f"m{n}", "ok"): n + 1 for n in range(1_000)}
    samples = shown(Figures(meters), attrs.evolve(COUNTS, requests=requests))
    assert len(samples) <= 300
    asked = {name: n for name, n in samples.items() if "requests_total" in name}
    assert len(asked) == MOST_REQUESTS + 1
    assert sum(asked.values()) == sum(requests.values())
    assert asked['motet_gateway_requests_total{method="m999",code="ok"}'] == 1_000


def test_a_host_counts_its_turns_calls_commits_and_waiting_approvals() -> None:
    agent = motet.Agent(
        "ops",
        model=mt.ScriptedModel([mt.call("look"), mt.call("act"), mt.say("done"), mt.say("again")]),
    )

    @agent.tool(effects="read")
    def look() -> str:
        return "fine"

    @agent.tool(approval=True)
    def act() -> str:
        return "done"

    with mt.simulated_host(1, agents=[agent]) as host:
        host.start_soon(agent, "go", session="s")
        host.advance(5.0)
        before = shown(host.call(_figures))
        assert before["motet_approvals_waiting"] == 1
        assert 'motet_runs_ended_total{status="completed"}' not in before
        host.call(_allow)
        host.settle()
        host.advance(5.0)
        after = shown(host.call(_figures))
    assert after["motet_approvals_waiting"] == 0
    assert after['motet_runs_ended_total{status="completed"}'] == 1
    assert after['motet_calls_ended_total{kind="tool",status="ok"}'] == 2
    assert after['motet_calls_ended_total{kind="model",status="ok"}'] == 3
    assert after["motet_turn_seconds_count"] == 1
    assert after["motet_turn_seconds_sum"] >= 5.0
    assert after["motet_commit_seconds_count"] > before["motet_commit_seconds_count"] > 0
    assert after["motet_breakers_open"] == 0
    for name in after:
        assert re.fullmatch(r'[a-z_]+(\{[a-z]+="[^"]*"(,[a-z]+="[^"]*")*\})?', name), name


async def _figures(host: motet.Host) -> Figures:
    return host.figures()


async def _allow(host: motet.Host) -> None:
    (asked,) = await host.approvals()
    await host.approve(asked.id, "allow-once")
