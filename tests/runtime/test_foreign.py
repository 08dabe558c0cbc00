"""Exceptions that are no ``Exception``, at the edges where an actor's own code is called."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Generator, Iterator
from functools import partial
from types import FrameType
from typing import cast

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.errors import StopTest
from trio.testing import MockClock, wait_all_tasks_blocked

from motet.protocols.messages import Message, Request, StreamRequest
from motet.runtime import (
    Actor,
    ActorRef,
    Replies,
    StartFailed,
    ask_each,
    handles,
    open_system,
)
from motet.runtime.foreign import PROGRAM_ENDS, ForeignError, HarnessEnd, divided, shown
from motet.runtime.outside import foreign_code
from tests.stray import ERRORS, MakeError, Panic, Unreadable, stray_cancelled

each_error = pytest.mark.parametrize("make", ERRORS.values(), ids=ERRORS)


class Told(Message, frozen=True, tag="foreign.told"):
    pass


class Asked(Request[int], frozen=True, tag="foreign.asked"):
    fails: bool = True


class Aside(Request[int], frozen=True, tag="foreign.aside"):
    pass


class Many(StreamRequest[int, None], frozen=True, tag="foreign.many"):
    pass


class Work(Message, frozen=True, tag="foreign.work"):
    pass


class Child(Message, frozen=True, tag="foreign.child"):
    pass


class Frail(Actor[Told | Asked | Aside | Many | Work | Child]):
    """Fails in everything that it is told or asked, but ``Asked(fails=False)``."""

    def __init__(self, make: MakeError, *, at_stop: bool = False) -> None:
        self._make = make
        self._at_stop = at_stop

    async def on_stop(self) -> None:
        if self._at_stop:
            raise self._make()

    def on_child_end(self, name: str, error: Exception | None) -> None:
        raise self._make()

    @handles(Told)
    async def told(self, _: Told) -> None:
        raise self._make()

    @handles(Asked)
    async def asked(self, request: Asked) -> int:
        if request.fails:
            raise self._make()
        return 1

    @handles(Aside, concurrent=2)
    async def aside(self, _: Aside) -> int:
        await trio.lowlevel.checkpoint()
        raise self._make()

    @handles(Many)
    async def many(self, _: Many, replies: Replies[int]) -> None:
        await replies.send(1)
        raise self._make()

    @handles(Work)
    async def work(self, _: Work) -> None:
        self.start_soon(self._fail)

    @handles(Child)
    async def child_ends(self, _: Child) -> None:
        child = await self.start_child(lambda: Frail(self._make), name="child")
        await child.stop(grace=0)

    async def _fail(self) -> None:
        raise self._make()


# ---------------------------------------------------------------------- the kernel


@each_error
async def test_an_asker_gets_the_failure_and_the_actor_lives(make: MakeError) -> None:
    async with open_system() as system:
        ref = await system.start(lambda: Frail(make), name="frail")
        seen = seen_by_asker(make)
        for request in (Asked(), Aside()):
            with pytest.raises(seen):
                await ref.ask(request)
        with pytest.raises(seen):  # noqa: PT012
            async with ref.stream(Many()) as items:
                async for _ in items:
                    pass
        with pytest.raises(seen):
            async with ref.stream(Many()):
                await wait_all_tasks_blocked()  # it is raised where the block is left
        with pytest.raises(Exception):  # noqa: B017, PT011
            await ref.stream_to(Many(), lambda _: raised(make))
        assert await ref.ask(Asked(fails=False)) == 1


@each_error
@pytest.mark.parametrize("message", [Told(), Work(), Child()], ids=lambda one: type(one).__name__)
async def test_a_crash_is_restarted_and_siblings_live(
    message: Told | Work | Child, make: MakeError, autojump_clock: MockClock
) -> None:
    async with open_system() as system:
        sibling = await system.start(lambda: Frail(make), name="sibling")
        ref = await system.start(lambda: Frail(make), name="frail")
        await ref.tell(message)
        with trio.fail_after(60):
            while not ref.statistics().restarts:
                await trio.sleep(0.1)
        assert await ref.ask(Asked(fails=False)) == 1
        assert await sibling.ask(Asked(fails=False)) == 1


@each_error
async def test_a_start_fails_and_a_clean_up_is_abandoned(make: MakeError) -> None:
    def none() -> Frail:
        raise make()

    class Unstartable(Frail):
        async def on_start(self) -> None:
            raise make()

    async with open_system() as system:
        for factory in (none, lambda: Unstartable(make)):
            with pytest.raises(StartFailed):
                await system.start(factory, name="never")
        ref = await system.start(lambda: Frail(make, at_stop=True), name="frail")
        report = await ref.stop()
        assert [left.path for left in report.abandoned] == [ref.path]
        assert await (await system.start(lambda: Frail(make), name="other")).ask(Asked(False)) == 1


def raised(make: MakeError) -> None:
    raise make()


def seen_by_asker(make: MakeError) -> type[BaseException]:
    """What ends a program reaches the asker as it is; some Exception stands for all else."""
    error = make()
    if type(error) is BaseExceptionGroup and len(error.exceptions) == 1:
        (error,) = error.exceptions
    return type(error) if type(error) in PROGRAM_ENDS else Exception


class Between(Actor[Asked | Told]):
    """Asks another, as a program would call a function."""

    def __init__(self, other: ActorRef[Asked], seen: list[object]) -> None:
        self.other = other
        self.seen = seen

    async def on_start(self) -> None:
        self.seen.append(self.restart_reason)

    @handles(Asked)
    async def asked(self, request: Asked) -> int:
        return await self.other.ask(request)

    @handles(Told)
    async def told(self, _: Told) -> None:
        await self.other.ask(Asked())


@pytest.mark.parametrize("kind", PROGRAM_ENDS)
def test_what_ends_a_program_ends_it_out_of_the_handler_of_a_request(
    kind: type[BaseException],
) -> None:
    """Through any number of actors, bare, with its argument, after all clean-ups."""
    stopped: list[str] = []

    class Tidy(Frail):
        async def on_stop(self) -> None:
            stopped.append("tidy")

    async def main() -> None:
        async with open_system() as system:
            first: ActorRef[Asked] = await system.start(lambda: Tidy(lambda: kind(3)), name="first")
            for name in ("second", "third"):
                first = await system.start(partial(Between, first, []), name=name)
            await first.ask(Asked())

    with pytest.raises(kind, match="3"):
        trio.run(main)
    assert stopped == ["tidy"]


async def test_what_ends_a_program_is_a_crash_of_whoever_asks_in_a_told_message(
    autojump_clock: MockClock,
) -> None:
    """Nobody above called it. And it is a value where it is one outcome of many."""
    seen: list[object] = []
    async with open_system() as system:
        frail = await system.start(lambda: Frail(lambda: SystemExit(3)), name="frail")
        between = await system.start(lambda: Between(frail, seen), name="between")
        await between.tell(Told())
        assert await between.ask(Asked(fails=False)) == 1
        assert [repr(one) for one in seen] == ["None", "ForeignError(SystemExit(3))"]
        (failed,) = await ask_each(frail, [Asked()], limit=1)
        assert repr(failed) == "Failed(error=ForeignError(SystemExit(3)))"


# ---------------------------------------------------------------------- the rule

STRAY = stray_cancelled()
LEAVES = (ValueError, Panic, GeneratorExit, KeyboardInterrupt, trio.Cancelled)


def grown(tree: object) -> BaseException:
    """The error, or group of errors, of nested lists of classes."""
    if isinstance(tree, list):
        return BaseExceptionGroup("group", [grown(one) for one in cast("list[object]", tree)])
    assert isinstance(tree, type)
    return STRAY if tree is trio.Cancelled else cast("BaseException", tree())


def leaves(error: BaseException | None) -> Iterator[BaseException]:
    if isinstance(error, ForeignError):
        error = error.raised
    if isinstance(error, BaseExceptionGroup):
        for one in cast("BaseExceptionGroup[BaseException]", error).exceptions:
            yield from leaves(one)
    elif error is not None:
        yield error


@given(
    st.recursive(
        st.sampled_from(LEAVES), lambda inner: st.lists(inner, min_size=1, max_size=3), max_leaves=8
    ),
    st.booleans(),
)
def test_no_part_of_an_error_is_lost_and_only_a_cancellation_goes_on(
    tree: object, cancelled: bool
) -> None:
    """Law: each error of a group is in the failure or goes on, and what goes on are the Cancelled
    under a cancelled scope; that scope gets them from the edge, and the failures leave it."""

    async def main() -> None:
        error = grown(tree)
        failure, going_on = divided(error, cancelled=cancelled)
        caught: Exception | None = None
        try:
            with trio.CancelScope() as scope:
                if cancelled:
                    scope.cancel()
                with foreign_code:
                    raise error
        except Exception as left:
            caught = left

        parts = [*leaves(failure), *leaves(going_on)]
        assert sorted(map(id, parts)) == sorted(map(id, leaves(error)))
        wanted = [one for one in leaves(error) if cancelled and one is STRAY]
        assert list(leaves(going_on)) == wanted
        assert list(leaves(caught)) == list(leaves(failure))

    trio.run(main)


def test_outside_of_tasks_a_generator_is_closed_in_silence() -> None:
    generator = waits()
    next(generator)
    generator.close()

    with pytest.raises(ForeignError), foreign_code:
        raise STRAY


def waits() -> Generator[None]:
    with foreign_code:
        yield


def test_what_a_signal_handler_raises_is_the_programs() -> None:
    """In a function, in a method, in another function that a partial calls, under groups."""

    class Handler:
        def __call__(self, *_: object) -> None:
            sys.exit(143)

        def method(self, *_: object) -> None:
            self()

    def handler(leave: Callable[[], None], _number: int, _frame: FrameType | None) -> None:
        leave()

    for one in (Handler(), Handler().method, partial(handler, Handler().method)):
        before = signal.signal(signal.SIGTERM, one)
        try:
            with pytest.raises(SystemExit, match="143"), foreign_code:
                signal.raise_signal(signal.SIGTERM)
            with pytest.raises(BaseExceptionGroup) as caught, foreign_code:
                grouped(lambda: signal.raise_signal(signal.SIGTERM))
            assert [type(error) for error in leaves(caught.value)] == [Panic, SystemExit]
        finally:
            signal.signal(signal.SIGTERM, before)

    with pytest.raises(ForeignError), foreign_code:
        sys.exit(143)


def grouped(fail: Callable[[], None]) -> None:
    try:
        fail()
    except BaseException as error:
        raise BaseExceptionGroup("group", [error, Panic()]) from None


def test_ctrl_c_reaches_the_main_task_through_an_edge() -> None:
    async def main() -> None:
        with foreign_code:
            trio.lowlevel.spawn_system_task(press)
            await trio.sleep_forever()

    async def press() -> None:  # a protected task, so that Trio delivers it to the main task
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        trio.run(main)


def test_the_end_of_a_simulation_passes() -> None:
    class End(HarnessEnd):
        pass

    with pytest.raises(End), foreign_code:
        raise End


@pytest.mark.parametrize("end", [pytest.fail.Exception, pytest.skip.Exception, StopTest])
def test_the_end_of_a_test_passes(end: type[BaseException]) -> None:
    with pytest.raises(end), foreign_code:
        raise end("over")


def test_what_ends_a_test_is_a_failure_where_no_test_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTEST_CURRENT_TEST")
    for end in (pytest.fail.Exception, pytest.skip.Exception):
        with pytest.raises(ForeignError, match="over"), foreign_code:
            raise end("over")
    with pytest.raises(StopTest), foreign_code:
        raise StopTest(0)


def test_an_error_without_a_text_is_shown_by_its_type() -> None:
    assert shown(Unreadable()) == "<Unreadable without a text>"
    assert repr(ForeignError(Unreadable())) == "ForeignError(<Unreadable without a text>)"
    assert str(ForeignError(Panic("x"))) == "Panic('x')"
