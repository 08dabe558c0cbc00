"""Decisions by the error, reasons of restarts, and ends as values that a program can match on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from motet.protocols.messages import Message, Request
from motet.runtime import (
    Actor,
    ActorRef,
    Directive,
    Supervision,
    Terminated,
    handles,
    open_system,
)
from motet.runtime.supervision import ChildTable, Decision, ExitKind, Restart, Strategy


class Fail(Message, frozen=True, tag="supervision.fail"):
    kind: str


class Reasons(Request[list[str]], frozen=True, tag="supervision.reasons"):
    pass


ERRORS: dict[str, Exception] = {
    "value": ValueError("a value"),
    "key": KeyError("a key"),
    "os": OSError("a disk"),
}


class Frail(Actor[Fail | Reasons]):
    def __init__(self, reasons: list[str]) -> None:
        self.reasons = reasons

    async def on_start(self) -> None:
        self.reasons.append(repr(self.restart_reason))

    @handles(Fail)
    async def fail(self, message: Fail) -> None:
        if message.kind == "end":
            self.stop_soon()
        else:
            raise ERRORS[message.kind]

    @handles(Reasons)
    async def answer(self, request: Reasons) -> list[str]:
        return self.reasons


def decide(error: Exception) -> Directive:
    match error:
        case ValueError():
            return "restart"
        case KeyError():
            return "stop"
        case _:
            return "escalate"


def broken(error: Exception) -> Directive:
    raise LookupError("decide is broken")


def undecided(error: Exception) -> Any:
    return "resume"


# ---------------------------------------------------------------------- the table

names = st.sampled_from(["a", "b", "c"])
restarts: st.SearchStrategy[Restart] = st.sampled_from(["permanent", "transient", "temporary"])
strategies_: st.SearchStrategy[Strategy] = st.sampled_from(
    ["one_for_one", "one_for_all", "rest_for_one"]
)
exits: st.SearchStrategy[tuple[str, ExitKind]] = st.tuples(
    names, st.sampled_from(["normal", "crashed"])
)


def table_of(strategy: Strategy, kinds: list[Restart], intensity: int = 3) -> ChildTable:
    table = ChildTable(Supervision(strategy=strategy, intensity=intensity))
    for name, restart in zip("abc", kinds, strict=True):
        table.add(name, restart)
        table.starting(name, 0.0)
    return table


def carry_out(table: ChildTable, decision: Decision, now: float) -> None:
    for name in decision.starts:
        table.starting(name, now)


@given(strategies_, st.lists(restarts, min_size=3, max_size=3), st.lists(exits, max_size=6), names)
def test_a_child_to_stop_is_treated_as_a_temporary_one(
    strategy: Strategy, kinds: list[Restart], before: list[tuple[str, ExitKind]], last: str
) -> None:
    """Law: after any exits, ``stop`` decides as if the child had been declared temporary."""
    table, other = (table_of(strategy, kinds, 100) for _ in range(2))
    for now, (name, kind) in enumerate(before):
        for one in (table, other):
            carry_out(one, one.exited(name, kind, now, 0.0), now)
    decision = table.exited(last, "crashed", 10.0, 0.0, "stop")
    if not other.is_running(last):
        assert decision == Decision()
        return
    assert decision == Decision(removes=(last,))
    assert last not in table.running
    assert [name for name in other.running if name != last] == [*table.running]


@given(strategies_, st.lists(restarts, min_size=3, max_size=3), names)
def test_an_escalation_stops_all_as_the_limit_does(
    strategy: Strategy, kinds: list[Restart], last: str
) -> None:
    """Law: ``escalate`` decides as one restart too many of a permanent child, whatever it is."""
    permanent: list[Restart] = [
        "permanent" if name == last else kind for name, kind in zip("abc", kinds, strict=True)
    ]
    spent = table_of(strategy, permanent, intensity=0).exited(last, "crashed", 1.0, 0.0)
    ordered = table_of(strategy, kinds).exited(last, "crashed", 1.0, 0.0, "escalate")
    assert ordered == spent
    assert ordered.escalate


# ---------------------------------------------------------------------- the tree


async def test_the_error_decides_whether_a_child_is_restarted_or_stopped() -> None:
    seen: list[str] = []
    supervision = Supervision(intensity=1, decide=decide)
    async with open_system(supervision=supervision) as system:
        ref = await system.start(lambda: Frail(seen), name="frail")
        await ref.tell(Fail("value"))
        assert await ref.ask(Reasons()) == ["None", "ValueError('a value')"]
        await ref.tell(Fail("key"))
        end = await ref.wait_terminated()
        assert (end.exit, end.exception) == ("crashed", ERRORS["key"])
        again = await system.start(lambda: Frail([]), name="frail")  # its name is free
        assert await again.ask(Reasons()) == ["None"]


@pytest.mark.parametrize(
    ("decider", "expected"), [(decide, OSError), (broken, LookupError), (undecided, ValueError)]
)
async def test_an_escalation_raises_the_error_that_decided(
    decider: Callable[[Exception], Directive], expected: type[Exception]
) -> None:
    async def fail() -> None:
        async with open_system(supervision=Supervision(decide=decider)) as system:
            ref = await system.start(lambda: Frail([]), name="frail")
            await ref.tell(Fail("os"))
            await trio.sleep_forever()

    with pytest.raises(expected):
        await fail()


async def test_a_restart_without_an_error_has_no_reason() -> None:
    """An actor that ended by itself, and one that was restarted for its sibling's crash."""
    seen: list[str] = []
    supervision = Supervision(strategy="one_for_all")
    async with open_system(supervision=supervision) as system:
        ref = await system.start(lambda: Frail(seen), name="frail")
        sibling = await system.start(lambda: Frail([]), name="sibling")
        await ref.tell(Fail("value"))
        await wait_all_tasks_blocked()
        await sibling.tell(Fail("value"))
        await wait_all_tasks_blocked()
        await ref.tell(Fail("end"))
        await wait_all_tasks_blocked()
        assert seen == ["None", "ValueError('a value')", "None", "None"]


class Watcher(Actor[Terminated]):
    def __init__(self, targets: list[ActorRef[Any]]) -> None:
        self.targets = targets
        self.ends: dict[str, Terminated] = {}

    async def on_start(self) -> None:
        for target in self.targets:
            self.watch(target)

    @handles(Terminated)
    async def ended(self, message: Terminated) -> None:
        self.ends[message.path] = message


async def test_a_watcher_can_match_on_the_end() -> None:
    async with open_system() as system:
        refs = {
            name: await system.start(lambda: Frail([]), name=name, restart="temporary")
            for name in ("value", "end", "stop")
        }
        watcher = Watcher([*refs.values()])
        await system.start(lambda: watcher, name="watcher")
        await refs["value"].tell(Fail("value"))
        await refs["end"].tell(Fail("end"))
        await refs["stop"].stop()
        await wait_all_tasks_blocked()
        found = {path[8:]: (end.exit, end.exception) for path, end in watcher.ends.items()}
        assert found == {
            "value": ("crashed", ERRORS["value"]),
            "end": ("ended", None),
            "stop": ("stopped", None),
        }


async def test_the_report_of_a_stop_names_an_actor_in_its_back_off(
    autojump_clock: MockClock,
) -> None:
    async with open_system(supervision=Supervision(backoff=60, backoff_max=60)) as system:
        refs = [await system.start(lambda: Frail([]), name=name) for name in ("a", "b")]
        for ref in refs:
            await ref.tell(Fail("value"))
        await wait_all_tasks_blocked()
        assert [info.state for info in system.snapshot()] == ["suspended"] * 2
        assert (await refs[0].stop()).ended == ("/system/a",)
        assert (await refs[0].stop()).ended == ()
        assert (await system.stop()).ended == ("/system/b",)


def test_the_rules_are_data_that_compares() -> None:
    one = Supervision(decide=decide)
    assert one == Supervision(decide=decide) != Supervision(decide=broken)
    assert msgspec.structs.replace(one, intensity=5).decide is decide
