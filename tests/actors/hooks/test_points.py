"""Every point with every outcome, on a whole host: the end of the run, and its warnings.

One scripted turn passes all points: a call, its result, an answer. The table says for each point
what a hook does there and what the run must come to; only declared errors ever leave a run.
"""

from __future__ import annotations

import attrs
import pytest
from trio.testing import MockClock

import motet
from motet.protocols import events
from motet.protocols.errors import Aborted
from motet.protocols.hook_rules import POINTS
from motet.protocols.hooks import Abort, Ask, Continue, Deny, OnError, Point, Replace, Respond
from motet.protocols.models import ModelResponse
from tests.actors.hooks.stage import (
    WENT_ON,
    Hook,
    broken_request,
    computed,
    hanging,
    new_request,
    raising,
    returning,
    turn,
    twice_the_same_call,
)

ABORTED = "failed: Aborted: hook 'h' aborted the run: stop"
RUN_POINTS: list[Point] = [
    "session_start",
    "before_input",
    "before_model",
    "after_model",
    "before_output",
    "before_compact",
]
EVERY_POINT: list[Point] = list(POINTS)


@pytest.mark.parametrize("point", RUN_POINTS)
@pytest.mark.parametrize("on_error", ["block", "continue", None])
async def test_an_abort_ends_the_run_whatever_the_policy(
    point: Point, on_error: OnError | None
) -> None:
    happened = await turn(point, returning(Abort("stop")), on_error)
    assert happened.outcome == ABORTED
    error = happened.result.error
    assert isinstance(error, Aborted)
    assert (error.hook, error.reason, error.cause) == ("h", "stop", "decision")
    assert happened.marks == []


FAULTS = {
    "raises": (raising, "OSError: the policy cannot be read"),
    "hangs": (hanging, "no answer within 2 s"),
    "nonsense": (returning(5), "TypeError: a hook at "),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("point", RUN_POINTS)
async def test_a_failing_hook_that_blocks_ends_the_run(
    point: Point, fault: str, autojump_clock: MockClock
) -> None:
    hook, message = FAULTS[fault]
    happened = await turn(point, hook, "block")
    error = happened.result.error
    assert isinstance(error, Aborted)
    assert (happened.result.status, error.hook, error.cause) == ("failed", "h", "error")
    (mark,) = happened.marks
    assert mark.startswith(f"hook 'h' failed at {point}, the run ended: {message}")
    del autojump_clock


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("point", EVERY_POINT)
async def test_a_failing_hook_that_continues_only_leaves_a_warning(
    point: Point, fault: str, autojump_clock: MockClock
) -> None:
    hook, message = FAULTS[fault]
    happened = await turn(point, hook, "continue")
    assert (happened.outcome, happened.executed) == (WENT_ON, 1)
    assert all(message in mark for mark in happened.marks)
    # What happens when the run is over is marked behind its last event.
    over = point in ("session_end", "after_child", "after_compact", "run_end", "error", "warning")
    assert len(happened.marks) >= (0 if over else 1)
    del autojump_clock


@pytest.mark.parametrize("point", [p for p in EVERY_POINT if POINTS[p].on_error == "block"])
async def test_a_blocking_hook_that_returns_none_has_failed(point: Point) -> None:
    happened = await turn(point, returning(None))
    if point in ("before_tool", "before_child"):
        assert (happened.outcome, happened.executed) == (WENT_ON, int(point == "before_child"))
    else:
        assert happened.outcome.startswith("failed: Aborted: hook 'h' aborted the run: it failed")


OTHERS = [Deny("no"), Ask("may I?"), Respond("instead"), Replace("other"), Continue("go on")]
WRONG = [
    (point, decision)
    for point, rule in POINTS.items()
    for decision in OTHERS
    if rule.is_gate and not isinstance(decision, rule.decides)
]


@pytest.mark.parametrize(("point", "decision"), WRONG)
async def test_a_decision_that_its_point_does_not_allow_is_a_failure(
    point: Point, decision: object
) -> None:
    open_ = await turn(point, returning(decision), "continue")
    assert (open_.outcome, open_.executed) == (WENT_ON, 1)
    assert all("TypeError: a hook at" in mark for mark in open_.marks)
    assert open_.marks
    closed = await turn(point, returning(decision), "block")
    if point in ("before_tool", "after_tool", "before_child"):
        assert (closed.outcome, closed.executed) == (WENT_ON, int(point != "before_tool"))
    else:
        assert isinstance(closed.result.error, Aborted)


@attrs.frozen
class Row:
    """One line of the table. ``rows``: texts that the transcript holds, in this order."""

    point: Point
    hook: Hook
    outcome: str
    rows: list[str]
    requests: int = 2
    executed: int = 1


FAILED_CLOSED = (
    "failed: Aborted: hook 'h' aborted the run: it failed, and is declared to block when it does"
)
SUMMED_UP = "completed: The sum of it: they spoke of what was long ago."
USUAL = ["go", "", "acted", "done"]
HELPED = ["go", "", "helped", *USUAL[1:]]
TABLE = [
    Row("session_start", returning(None), WENT_ON, USUAL),
    Row("session_end", returning(None), WENT_ON, USUAL),
    Row("before_input", returning(motet.Allow()), WENT_ON, USUAL),
    Row("before_input", returning(Replace("stay")), WENT_ON, ["stay", "", "acted", "done"]),
    Row(
        "before_input", returning(Respond("no need")), "completed: no need", ["go", "no need"], 0, 0
    ),
    Row(
        "before_input",
        returning(Deny("rude")),
        "failed: InputValidation: the input was not accepted: rude",
        [],
        0,
        0,
    ),
    Row("before_model", returning(motet.Allow()), WENT_ON, USUAL),
    Row("before_model", computed(new_request), WENT_ON, USUAL),
    Row("before_model", returning(Respond("cached")), "completed: cached", ["go", "cached"], 0, 0),
    Row(
        "before_model",
        computed(broken_request),
        FAILED_CLOSED,
        ["go", "[Failed:"],
        0,
        0,
    ),
    Row("after_model", returning(None), WENT_ON, USUAL),
    Row(
        "after_model",
        returning(Replace(response=ModelResponse("short"))),
        "completed: short",
        ["go", "short"],
        1,
        0,
    ),
    Row("after_model", returning(Replace("x")), "completed: x", ["go", "x", "acted", "x"]),
    Row("after_model", computed(twice_the_same_call), WENT_ON, USUAL),
    Row("before_tool", returning(motet.Allow()), WENT_ON, USUAL),
    Row(
        "before_tool",
        returning(Deny("no")),
        WENT_ON,
        ["go", "", "Permission denied: no", "done"],
        executed=0,
    ),
    Row(
        "before_tool",
        returning(Abort("no")),
        WENT_ON,
        ["go", "", "Permission denied: no", "done"],
        executed=0,
    ),
    Row(
        "before_tool",
        returning(Ask("sure?")),
        WENT_ON,
        ["go", "", "Permission denied: a person has to decide", "done"],
        executed=0,
    ),
    Row("before_tool", returning(Respond("fake")), WENT_ON, ["go", "", "fake", "done"], executed=0),
    Row(
        "before_tool",
        returning(motet.Allow({"wrong": 1})),
        WENT_ON,
        ["go", "", "Permission denied: a gate replaced the arguments by invalid ones", "done"],
        executed=0,
    ),
    Row("after_tool", returning(None), WENT_ON, USUAL),
    Row("after_tool", returning(Replace("cleaned")), WENT_ON, ["go", "", "cleaned", "done"]),
    Row(
        "after_tool",
        returning(Abort("secret")),
        WENT_ON,
        ["go", "", "[The result of this call is withheld by 'h': secret]", "done"],
    ),
    Row("before_output", returning(motet.Allow()), WENT_ON, USUAL),
    Row("before_output", returning(Replace("***")), "completed: ***", ["go", "", "acted", "***"]),
    Row(
        "before_output",
        returning(Deny("secret")),
        "failed: Aborted: hook 'h' aborted the run: secret",
        ["go", "", "acted", "[Failed:"],
    ),
    Row(
        "before_output",
        computed(lambda e: motet.Allow() if e.continued else Continue("are you sure?")),
        "completed: really done",
        ["go", "", "acted", "done", "are you sure?", "really done"],
        3,
    ),
    Row("before_child", returning(motet.Allow()), WENT_ON, HELPED, 3),
    Row(
        "before_child",
        returning(Deny("no")),
        WENT_ON,
        ["go", "", "Permission denied: no", *USUAL[1:]],
        3,
    ),
    Row("after_child", returning(None), WENT_ON, HELPED, 3),
    Row("before_compact", returning(motet.Allow()), WENT_ON, USUAL, 3),
    Row("before_compact", returning(Deny("not now")), SUMMED_UP, ["go", "The sum"], 1, 0),
    Row("after_compact", returning(None), WENT_ON, USUAL, 3),
    Row("run_end", returning(None), WENT_ON, USUAL),
    Row("error", returning(None), WENT_ON, USUAL),
    Row("warning", returning(None), WENT_ON, USUAL),
]


@pytest.mark.parametrize("row", TABLE, ids=[f"{i}-{row.point}" for i, row in enumerate(TABLE)])
async def test_the_table_of_decisions(row: Row) -> None:
    happened = await turn(row.point, row.hook)
    assert happened.outcome == row.outcome
    texts = [getattr(r, "text", "") for r in happened.result.rows]
    assert len(texts) == len(row.rows)
    assert [text[: len(want)] for text, want in zip(texts, row.rows, strict=True)] == row.rows
    assert (len(happened.model.requests), happened.executed) == (row.requests, row.executed)
    assert sum(isinstance(event, events.Terminal) for event in happened.seen) == 1


def test_the_table_and_the_wrong_decisions_reach_every_point() -> None:
    assert {row.point for row in TABLE} == set(POINTS)
    decided = {(row.point, type(d)) for row in TABLE for d in _decided(row)}
    wanted = {(p, k) for p, r in POINTS.items() for k in r.decides if k not in (motet.Allow, Abort)}
    assert wanted - decided - {("before_model", Replace), ("before_output", Continue)} == set()


def _decided(row: Row) -> list[object]:
    return [cell.cell_contents for cell in row.hook.__closure__ or ()]
