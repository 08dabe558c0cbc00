"""The recorder: parents, ends and sums, whatever happens in which order."""

from __future__ import annotations

import gc
from typing import cast
from weakref import ref

import attrs
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from motet.actors.telemetry import tracer as recorder
from motet.protocols.chat import Call
from motet.protocols.models import CallStart, ModelRequest, Retrying, TextPart, Usage
from motet.protocols.sessions import RunStatus
from motet.protocols.traces import Span, root_span_id, trace_identity
from tests.actors.telemetry.stage import (
    START,
    Clock,
    answer,
    begun,
    call,
    named,
    result,
    taken,
    tracer,
)


def test_the_first_span_is_the_agents_and_the_others_are_its_parts() -> None:
    clock = Clock()
    traces = tracer(clock)
    trace = begun(traces)
    clock.at = 1.0
    with trace.model("openai:gpt-5.2", iteration=1) as span:
        clock.at = 1.5
        span.part(CallStart(0, "c0", "look"))
        clock.at = 2.0
        span.answered(answer("hi"))
    with trace.tool(call()) as span:
        clock.at = 2.25
        span.returned(result())
    trace.finish("completed", "done")

    root, model, tool = taken(traces)
    assert (root.kind, root.name, root.parent, root.status) == ("agent", "helper", None, "ok")
    assert (root.started, root.ended, root.output) == (START, START + 2.25, "done")
    assert (model.kind, model.provider, model.name, model.iteration) == (
        *("model", "openai", "gpt-5.2", 1),
    )
    assert (model.started, model.ended, model.first_token) == (START + 1, START + 2, 0.5)
    assert model.usage == Usage(10, 5, cost=0.25)
    assert (tool.kind, tool.name, tool.call_id, tool.outcome) == ("tool", "look", "c0", "done")
    assert model.parent == tool.parent == root.id == root_span_id("run_1")


def test_a_trace_that_was_taken_is_freed_at_once() -> None:
    """It leaves no cycle that the garbage collector would have to find."""
    traces = tracer()
    trace = begun(traces)
    with trace.tool(call()) as span:
        span.returned(result())
    trace.finish("completed")
    gc.disable()
    try:
        taken(traces)
        kept = ref(trace)
        del trace, span
        assert kept() is None
    finally:
        gc.enable()


async def test_parents_are_right_across_parallel_tools() -> None:
    """Each stores an error and asks a model while the others do, in tasks that end crosswise."""
    traces = tracer()
    trace = begun(traces)
    gates = [trio.Event() for _ in range(5)]
    gates[4].set()

    async def use(index: int) -> None:
        with trace.tool(call(f"c{index}", f"tool{index}")) as span:
            await gates[index + 1].wait()
            with trace.store("store", tool=f"tool{index}", call_id=f"c{index}") as stored:
                await trio.lowlevel.checkpoint()
                stored.error_id = f"err_{index}"
            with trace.model("demo", parent=span, purpose=f"for {index}"):
                gates[index].set()
                await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        for index in range(4):
            nursery.start_soon(use, index)
    trace.finish("completed")

    spans = taken(traces)
    for index in range(4):
        tool = named(spans, f"tool{index}")
        assert tool.parent == root_span_id("run_1")
        parts = {(s.name, s.purpose, s.error_id) for s in spans if s.parent == tool.id}
        assert parts == {
            ("error_store.store", "", f"err_{index}"),
            ("demo", f"for {index}", None),
        }


def test_a_run_that_a_call_starts_is_a_part_of_that_call() -> None:
    traces = tracer()
    above = begun(traces, "run_1")
    with above.tool(call("c7")) as span:
        below = traces.begin(
            "run_2", session="s2", agent="scout", user="alice", caller=("run_1", "c7")
        )
        below.finish("completed")
    above.finish("completed")
    first, second = (batch.info for batch in traces.take(9))
    assert first.trace_id == second.trace_id == trace_identity("run_1")[0]
    assert (first.parent, second.parent) == (None, span.id)


def test_what_is_done_after_a_run_is_a_part_of_its_trace() -> None:
    traces = tracer()
    begun(traces, "run_1").finish("completed")
    with (
        traces.beside("run_1", "summary", session="s", agent="helper", user="alice") as trace,
        trace.model("demo", purpose="summary"),
    ):
        pass
    _, after = traces.take(9)
    assert (after.info.run_id, after.info.status) == ("run_1.summary", "completed")
    assert (after.info.trace_id, after.info.parent) == (
        trace_identity("run_1")[0],
        root_span_id("run_1"),
    )


def test_where_there_was_nothing_to_do_after_a_run_nothing_is_recorded() -> None:
    traces = tracer()
    with traces.beside("run_1", "summary", session="s", agent="helper", user="alice"):
        pass
    assert (traces.take(9), traces.live) == ([], {})


async def test_work_that_is_left_early_ends_as_it_was_left() -> None:
    traces = tracer()
    with (
        pytest.raises(KeyError),
        traces.beside("run_1", "flush", session="s", agent="a", user="u") as trace,
        trace.model("demo"),
    ):
        raise KeyError("no")
    with (
        trio.CancelScope() as scope,
        traces.beside("run_2", "flush", session="s", agent="a", user="u") as trace,
        trace.model("demo"),
    ):
        scope.cancel()
        await trio.sleep_forever()
    assert [batch.info.status for batch in traces.take(9)] == ["failed", "cancelled"]


@pytest.mark.parametrize(
    ("status", "root", "cut"),
    [
        ("cancelled", "cancelled", "cancelled"),
        ("limited", "limited", "limited"),
        ("failed", "error", "cancelled"),
        ("completed", "ok", "cancelled"),
        ("escalated", "escalated", "cancelled"),
    ],
)
def test_a_cut_span_takes_the_status_of_its_run(status: RunStatus, root: str, cut: str) -> None:
    traces = tracer()
    trace = begun(traces)
    trace.model("demo")
    trace.finish(status)
    assert [span.status for span in taken(traces)] == [root, cut]


async def test_every_span_of_a_cancelled_run_is_cancelled() -> None:
    traces = tracer()
    trace = begun(traces)
    with trace.model("demo") as asked:
        asked.answered(answer())
    with trace.tool(call("c0", "broken")) as called:
        called.returned(result("c0", "no", "failed", "timeout"))
    with trio.CancelScope() as scope, trace.tool(call("c1", "slow")):
        scope.cancel()
        await trio.sleep_forever()
    trace.finish("cancelled")
    (batch,) = traces.take(1)
    assert {span.status for span in batch.spans} == {"cancelled"}
    assert named(batch.spans, "broken").error == "timeout"
    assert (batch.info.errors, batch.info.usage) == (1, Usage(10, 5, cost=0.25))


def test_what_raises_has_failed_and_what_is_denied_has_not() -> None:
    traces = tracer()
    trace = begun(traces)
    with pytest.raises(KeyError), trace.model("demo"):
        raise KeyError("no")
    with trace.tool(call("c0", "forbidden")) as span:
        span.returned(result(outcome="denied", kind="denied"))
    trace.finish("failed", error="Internal", error_id="err_1")
    (batch,) = traces.take(1)
    model, denied = named(batch.spans, "demo"), named(batch.spans, "forbidden")
    assert (model.status, model.error) == ("error", "KeyError")
    assert (denied.status, denied.outcome) == ("ok", "denied")
    assert (batch.info.errors, batch.spans[0].error_id) == (1, "err_1")


def test_a_model_that_is_asked_again_counts_its_attempts() -> None:
    clock = Clock()
    traces = tracer(clock)
    with begun(traces).model("demo") as span:
        span.part(TextPart("wro"))
        span.part(Retrying(1, 0.5, "cut"))
        clock.at = 3.0
        span.part(TextPart("right"))
        clock.at = 4.0
        span.part(TextPart("."))
    (model,) = (span for span in taken(traces) if span.kind == "model")
    assert (model.attempts, model.first_token) == (2, 3.0)


def test_an_open_span_is_told_once_it_begins_and_again_when_it_ends() -> None:
    traces = tracer()
    trace = begun(traces)
    span = trace.tool(call())
    assert [(s.name, s.ended) for s in taken(traces)] == [("helper", None), ("look", None)]
    assert taken(traces) == []
    span.end()
    trace.finish("completed")
    assert [(s.name, s.status) for s in taken(traces)] == [("look", "ok"), ("helper", "ok")]


def test_a_wall_clock_that_is_set_back_makes_no_span_end_before_it_began() -> None:
    walls = iter([START, START - 3_600])
    clock = Clock()
    traces = attrs.evolve(tracer(clock), wall=lambda: next(walls))
    trace = begun(traces)
    clock.at = 2.0
    trace.finish("completed")
    (root,) = taken(traces)
    assert (root.started, root.ended) == (START, START + 2)


def test_whole_inputs_are_kept_only_when_asked_for() -> None:
    request = ModelRequest("demo", (), system="be kind")
    for verbose in (False, True):
        traces = tracer(verbose=verbose)
        trace = traces.begin("r", session="s", agent="a", user="u", text="hello")
        trace.model("demo", request)
        trace.tool(Call("c", "look", '{"a": 1}'))
        root, model, tool = taken(traces)
        assert (root.input, tool.input) == (("hello", '{"a": 1}') if verbose else ("", ""))
        assert ('"system":"be kind"' in model.input) is verbose


def test_what_is_too_much_is_counted_and_its_tokens_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "SPAN_LIMIT", 3)
    traces = tracer()
    trace = begun(traces)
    for _ in range(5):
        with trace.model("demo") as span:
            span.answered(answer())
    trace.finish("completed")
    (batch,) = traces.take(1)
    assert (len(batch.spans), batch.info.spans, batch.info.left_out) == (3, 3, 3)
    assert batch.info.usage.input_tokens == 50


def test_traces_that_nobody_takes_are_bounded_and_the_lost_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recorder, "WAITING_LIMIT", 3)
    traces = tracer()
    begun(traces, "live")
    for number in range(5):
        begun(traces, f"run_{number}").finish("completed")
    assert traces.lost == 2
    assert [batch.info.run_id for batch in traces.take(9)] == ["live", "run_2", "run_3", "run_4"]
    begun(traces, "next").finish("completed")
    assert traces.lost == 2


def test_traces_of_many_spans_are_taken_a_few_at_a_time() -> None:
    """So that their rows are made in steps that are short for the event loop."""
    traces = tracer()
    for number in range(30):
        trace = begun(traces, f"run_{number}")
        for index in range(99):
            trace.tool(call(f"c{index}")).end()
    taken = [len(traces.take(9)) for _ in range(7)]
    assert taken == [5, 5, 5, 5, 5, 5, 0]


def test_what_cannot_be_shown_keeps_no_other_trace_from_it() -> None:
    traces = tracer()
    trace = begun(traces, "run_1")
    trace.tool(call(name=cast("str", None))).end()
    begun(traces, "run_2")
    assert [batch.info.run_id for batch in traces.take(9)] == ["run_2"]
    assert traces.lost == 1
    trace.finish("completed")
    assert [batch.info.run_id for batch in traces.take(9)] == ["run_1"]


def test_a_run_that_goes_on_before_its_trace_was_taken_is_told_of_twice() -> None:
    traces = tracer()
    begun(traces).finish("waiting")
    trace = begun(traces)
    assert [batch.info.status for batch in traces.take(9)] == ["waiting", "running"]
    trace.finish("completed")
    assert [batch.info.status for batch in traces.take(9)] == ["completed"]


def test_news_is_told_once_until_it_is_taken() -> None:
    told: list[int] = []
    traces = tracer()
    traces.on_news(lambda: told.append(1))
    trace = begun(traces)
    trace.model("demo").end()
    assert len(told) == 1
    traces.take(1)
    trace.finish("completed")
    assert len(told) == 2


Ops = st.lists(
    st.tuples(st.sampled_from(["model", "tool", "store", "end", "cut", "take"]), st.integers(0, 9)),
    max_size=40,
)


@given(Ops, st.sampled_from(["completed", "cancelled", "limited", "failed"]))
def test_laws_of_a_trace(ops: list[tuple[str, int]], status: RunStatus) -> None:
    """Law: after the end no span is open, each was begun after and within its parent's run, the
    sums are those of the model spans, and of a cancelled run the last word on each is cancelled."""
    clock = Clock()
    traces = tracer(clock)
    trace = begun(traces)
    opened = [trace.root]
    seen: dict[str, Span] = {}
    for op, number in ops:
        clock.at += number
        parent = opened[number % len(opened)]
        match op:
            case "model":
                span = trace.model("demo", parent=parent)
                span.answered(answer(tokens=(number, 1)))
                opened.append(span)
            case "tool":
                opened.append(trace.tool(call(f"c{len(opened)}"), parent=parent))
            case "store":
                opened.append(trace.store("get", call_id=getattr(parent, "call_id", "")))
            case "end" | "cut" if parent is not trace.root:
                parent.end() if op == "end" else parent.cut()
            case _:
                seen.update({span.id: span for span in taken(traces)})
    usages = [span.usage for span in opened if isinstance(span, recorder.ModelSpan) and span.usage]
    trace.finish(status)
    (batch,) = traces.take(1)
    seen.update({span.id: span for span in batch.spans})
    assert len(seen) == len(opened) == batch.info.spans
    for last in seen.values():
        assert last.ended is not None
        assert last.ended >= last.started
        assert last.parent is None or seen[last.parent].started <= last.started
    assert batch.info.usage == sum(usages, Usage())
    assert not traces.live
    if status == "cancelled":
        assert {span.status for span in batch.spans} == {"cancelled"}
