"""Decisions by the error, reasons of restarts, and ends as values that a program can match on."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
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
    ActorDead,
    ActorRef,
    AskCycle,
    Directive,
    Feed,
    RestartEvent,
    RestartLimitExceeded,
    StartFailed,
    StartTimeout,
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


# ---------------------------------------------------------------------- groups, and times


class Query(Request[str], frozen=True, tag="supervision.query"):
    pass


class Crash(Message, frozen=True, tag="supervision.crash"):
    pass


class Server(Actor[Query | Crash]):
    """Crashes while others wait for it."""

    async def on_stop(self) -> None:
        pass

    @handles(Query)
    async def query(self, request: Query) -> str:
        return "answer"

    @handles(Crash)
    async def crash(self, message: Crash) -> None:
        await trio.sleep(1)
        raise ERRORS["value"]


class Client(Actor[Crash]):
    """Asks its sibling, or another who asks that."""

    def __init__(self, path: str, seen: list[Exception]) -> None:
        self.asked = path
        self.seen = seen

    async def on_stop(self) -> None:
        pass

    @handles(Crash)
    async def ask(self, message: Crash) -> None:
        ref = self.system.find(self.asked)
        assert ref is not None
        try:
            await ref.ask(Query())
        except Exception as error:
            self.seen.append(error)


class Between(Actor[Query]):
    """Is no member of the group, and asks one."""

    @handles(Query)
    async def query(self, request: Query) -> str:
        ref = self.system.find("/system/group/server")
        assert ref is not None
        return await ref.ask(Query())


class Group(Actor[Crash]):
    supervision = Supervision(strategy="one_for_all")

    def __init__(self, children: dict[str, Callable[[], Actor[Any]]]) -> None:
        self.started = children

    async def on_start(self) -> None:
        for name, factory in self.started.items():
            await self.start_child(factory, name=name)

    @handles(Crash)
    async def crash(self, message: Crash) -> None:
        for name in ("server", "client"):
            ref = self.child(name)
            assert ref is not None
            await ref.tell(message)
            await trio.lowlevel.checkpoint()


@pytest.mark.parametrize("by", ["server", "between"])
async def test_the_failure_of_a_sibling_reaches_who_waits_for_it_at_once(
    by: str, autojump_clock: MockClock
) -> None:
    """The ask is queued at the sibling that crashes, or at one who asks that; both are kept until
    the group has been stopped, and the asker is a part of it."""
    seen: list[Exception] = []
    path = "/system/group/server" if by == "server" else "/system/between"
    async with open_system() as system:
        await system.start(Between, name="between")
        children: dict[str, Callable[[], Actor[Any]]] = {
            "server": Server,
            "client": lambda: Client(path, seen),
        }
        group = await system.start(lambda: Group(children), name="group")
        await group.tell(Crash())
        server = system.find("/system/group/server")
        assert server is not None
        with trio.fail_after(60):
            while server.statistics().restarts == 0:
                await trio.sleep(0.1)
        assert await server.ask(Query()) == "answer"
        assert trio.current_time() < 1.5
        (error,) = seen
        assert isinstance(error, ActorDead)
        assert "ValueError('a value')" in str(error)


class Patient(Actor[Crash]):
    """Its handler, or its start, takes a while."""

    def __init__(self, seconds: float, starts: list[float] | None = None) -> None:
        self.seconds = seconds
        self.starts = starts if starts is not None else []

    async def on_start(self) -> None:
        self.starts.append(trio.current_time())
        if len(self.starts) > 1:
            await trio.sleep(self.seconds)

    @handles(Crash)
    async def crash(self, message: Crash) -> None:
        if self.starts and self.seconds:
            raise ERRORS["value"]
        await trio.sleep(100)


@pytest.mark.parametrize(("own", "took"), [(None, 5.0), (0.5, 0.5), (20.0, 20.0)])
async def test_a_stop_gives_an_actor_the_grace_that_it_declares(
    own: float | None, took: float, autojump_clock: MockClock
) -> None:
    class Slow(Patient):
        stop_grace = own

    async with open_system() as system:
        ref = await system.start(lambda: Slow(0), name="slow")
        await ref.tell(Crash())
        await wait_all_tasks_blocked()
        await ref.stop()
        assert trio.current_time() == took
        again = await system.start(lambda: Slow(0), name="slow")
        await again.tell(Crash())
        await wait_all_tasks_blocked()
        await again.stop(grace=2)  # who says it decides
        assert trio.current_time() == took + 2


async def test_a_stop_waits_for_an_endless_clean_up_that_is_declared(
    autojump_clock: MockClock,
) -> None:
    class Endless(Patient):
        stop_grace = math.inf
        cleanup_budget = math.inf

        async def on_stop(self) -> None:
            await trio.sleep(100_000)

    async with open_system() as system:
        ref = await system.start(lambda: Endless(0), name="endless")
        report = await ref.stop()
        assert trio.current_time() == 100_000
        assert not report.abandoned


async def test_an_actor_takes_no_more_of_the_time_of_its_parent_than_it_declares(
    autojump_clock: MockClock,
) -> None:
    class Slow(Patient):
        stop_grace = 1.0

    async with open_system() as system:
        for name in ("a", "b", "c"):
            ref = await system.start(lambda: Slow(0), name=name)
            await ref.tell(Crash())
        await wait_all_tasks_blocked()
        report = await system.stop(grace=60)
        assert trio.current_time() == 3
        assert report.ended == ("/system/c", "/system/b", "/system/a")


async def test_a_restart_of_a_group_gives_each_the_grace_that_it_declares(
    autojump_clock: MockClock,
) -> None:
    class Slow(Patient):
        stop_grace = 0.25

    async with open_system(supervision=Supervision(strategy="one_for_all")) as system:
        frail = await system.start(lambda: Frail([]), name="frail")
        slow = await system.start(lambda: Slow(0), name="slow")
        await slow.tell(Crash())
        await frail.tell(Fail("value"))
        assert await frail.ask(Reasons()) == ["ValueError('a value')"]
        assert trio.current_time() == 0.25


async def test_a_start_that_takes_too_long_fails(autojump_clock: MockClock) -> None:
    class Late(Patient):
        start_timeout = 2.0

    starts = [0.0]
    async with open_system() as system:
        with pytest.raises(StartFailed, match="within 2 s") as failed:
            await system.start(lambda: Late(10, starts), name="late")
        assert isinstance(failed.value.__cause__, StartTimeout)
        assert trio.current_time() == 2
        await system.start(lambda: Late(1, starts), name="late")  # its name is free
        assert trio.current_time() == 3


async def test_a_restart_that_takes_too_long_counts_as_a_crash(autojump_clock: MockClock) -> None:
    class Late(Patient):
        start_timeout = 2.0

    starts: list[float] = []

    async def fail() -> None:
        async with open_system(supervision=Supervision(intensity=2, period=60)) as system:
            ref = await system.start(lambda: Late(10, starts), name="late")
            await ref.tell(Crash())
            await trio.sleep_forever()

    with pytest.raises(RestartLimitExceeded) as given_up:
        await fail()
    assert isinstance(given_up.value.__cause__, StartTimeout)
    assert starts == [0, 0, 2]


@pytest.mark.parametrize("strategy", ["one_for_one", "one_for_all", "rest_for_one"])
async def test_a_restart_that_hangs_holds_up_no_decision(
    strategy: Strategy, autojump_clock: MockClock
) -> None:
    """While on_start of one child hangs in its restart, the crash of another is dealt with."""
    starts: list[float] = []
    async with open_system(supervision=Supervision(strategy=strategy)) as system:
        other = await system.start(lambda: Frail([]), name="other")
        hangs = await system.start(lambda: Patient(1000, starts), name="hangs")
        await hangs.tell(Crash())
        await wait_all_tasks_blocked()
        assert len(starts) == 2
        if strategy == "one_for_all":
            assert other.statistics().restarts == 1
        before = other.statistics().restarts
        await other.tell(Fail("value"))
        with trio.fail_after(30):
            assert await other.ask(Reasons()) == ["ValueError('a value')"]
        assert other.statistics().restarts == before + 1
        await system.stop(grace=0)


class Circular(Actor[Crash | Query]):
    """Ends, and asks its own turn, which only the next incarnation would have."""

    def __init__(self, seen: list[Exception]) -> None:
        self.seen = seen

    @handles(Crash, concurrent=2)
    async def crash(self, message: Crash) -> None:
        self.stop_soon()
        try:
            await self.ref.ask(Query())
        except Exception as error:
            self.seen.append(error)

    @handles(Query)
    async def query(self, request: Query) -> str:
        return "answer"


@pytest.mark.parametrize("strategy", ["one_for_one", "one_for_all"])
async def test_a_circle_is_called_so_while_a_sibling_starts(
    strategy: Strategy, autojump_clock: MockClock
) -> None:
    """What its supervisor is busy with is no reason for this circle."""
    seen: list[Exception] = []
    starts: list[float] = []
    async with open_system(supervision=Supervision(strategy=strategy)) as system:
        circular = await system.start(lambda: Circular(seen), name="circular")
        hangs = await system.start(lambda: Patient(1000, starts), name="hangs")
        await hangs.tell(Crash())
        await wait_all_tasks_blocked()
        assert len(starts) == 2
        await circular.tell(Crash())
        await wait_all_tasks_blocked()
        assert [str(one) for one in seen] == [str(AskCycle(["/system/circular"] * 2))]
        await system.stop(grace=0)


# ---------------------------------------------------------------------- restarts to follow


async def _read(feed: Feed[RestartEvent]) -> list[RestartEvent]:
    await wait_all_tasks_blocked()
    events: list[RestartEvent] = []
    with suppress(trio.WouldBlock, trio.EndOfChannel):
        while True:
            events.append(feed.receive_nowait())
    return events


async def test_restarts_can_be_followed_with_reason_number_and_back_off(
    autojump_clock: MockClock,
) -> None:
    supervision = Supervision(backoff=1, jitter=0, intensity=2, period=60, give_up="child")
    async with open_system(supervision=supervision) as system:
        ref = await system.start(lambda: Frail([]), name="frail")
        with system.restarts.follow() as restarts:
            for _ in range(3):
                await ref.tell(Fail("value"))
                await trio.sleep(10)
            seen = await _read(restarts)
        error = repr(ERRORS["value"])
        path = "/system/frail"
        assert seen == [
            RestartEvent(path, "restart", path, error, 1, 1.0),
            RestartEvent(path, "restart", path, error, 2, 2.0),
            RestartEvent(path, "give_up", path, error, 2),
        ]
        assert system.restarts.count == 2


async def test_the_restart_of_a_group_names_the_one_that_failed(autojump_clock: MockClock) -> None:
    feeds: list[Feed[RestartEvent]] = []

    async def fail_twice() -> None:
        spec = Supervision(strategy="one_for_all", intensity=1)
        async with open_system(supervision=spec) as system:
            await system.start(lambda: Frail([]), name="calm")
            ref = await system.start(lambda: Frail([]), name="frail")
            with system.restarts.follow() as restarts:
                feeds.append(restarts)
                for _ in range(2):
                    await ref.tell(Fail("value"))
                    await trio.sleep(1)

    with pytest.raises(RestartLimitExceeded):
        await fail_twice()
    seen = await _read(feeds[0])  # what was decided before its block was cancelled
    assert [(one.path, one.kind, one.by, one.restarts) for one in seen] == [
        ("/system/calm", "restart", "/system/frail", 1),
        ("/system/frail", "restart", "/system/frail", 1),
        ("/system/frail", "escalate", "/system/frail", 1),
    ]


async def test_a_child_that_is_let_go_is_no_restart() -> None:
    async with open_system(supervision=Supervision(decide=lambda _: "stop")) as system:
        ref = await system.start(lambda: Frail([]), name="frail")
        with system.restarts.follow() as restarts:
            await ref.tell(Fail("value"))
            assert await _read(restarts) == []
