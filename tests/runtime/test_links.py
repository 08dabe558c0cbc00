"""Links: what each end of one actor does to those that are linked to it, and who hears why.

The law over random worlds is in ``tests/guarantees/worlds/linked.py``.
"""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from motet.protocols.messages import Message, Request
from motet.runtime import (
    Actor,
    ActorDead,
    ActorRef,
    LinkBroken,
    StartFailed,
    Supervision,
    Terminated,
    handles,
    open_system,
)
from motet.runtime.ref import cell_of


class Crash(Message, frozen=True, tag="links.crash"):
    pass


class Work(Request[str], frozen=True, tag="links.work"):
    seconds: float = 0.0


class End(Message, frozen=True, tag="links.end"):
    pass


class Unlink(Message, frozen=True, tag="links.unlink"):
    pass


class Part(Actor[Crash | Work | End | Unlink | Terminated]):
    """Is linked to ``other`` in each of its lives."""

    stop_grace = 3.0

    def __init__(self, other: ActorRef[Any] | None = None, wait: float = 0.0) -> None:
        self.other = other
        self.wait = wait
        self.reason: Exception | None = None

    async def on_start(self) -> None:
        self.reason = self.restart_reason
        if self.other is not None:
            self.link(self.other)
        await trio.sleep(self.wait)

    @handles(Crash)
    async def crash(self, _: Crash) -> None:
        raise ValueError("lost")

    @handles(Work)
    async def work(self, request: Work) -> str:
        await trio.sleep(request.seconds)
        return repr(self.reason)

    @handles(End)
    async def end(self, _: End) -> None:
        self.stop_soon()

    @handles(Unlink)
    async def parted(self, _: Unlink) -> None:
        assert self.other is not None
        self.unlink(self.other)

    @handles(Terminated)
    async def gone(self, _: Terminated) -> None:
        raise AssertionError("a link is no watch")


async def test_the_reason_leads_back_along_a_chain_of_any_length() -> None:
    """The failure of the first is that of five hundred, each told by its neighbour."""
    async with open_system(supervision=Supervision(intensity=1000)) as system:
        first = last = await system.start(Part, name="part-0")
        for number in range(1, 500):
            last = await system.start(Part, last, name=f"part-{number}")
        await first.tell(Crash())
        assert await first.ask(Work()) == "ValueError('lost')"
        assert "part-498, to which it is linked, has failed with" in await last.ask(Work())
        for path in ("part-250", "part-499"):
            ref = system.find(f"/system/{path}")
            assert ref is not None
            assert ref.statistics().restarts == 1


async def test_the_running_handler_of_the_other_may_end_within_its_grace(
    autojump_clock: MockClock,
) -> None:
    async with open_system() as system, trio.open_nursery() as nursery:
        one = await system.start(Part)
        other = await system.start(Part, one)
        answers: list[str] = []

        async def ask(seconds: float) -> None:
            try:
                answers.append(await other.ask(Work(seconds)))
            except ActorDead:
                answers.append(f"dead {trio.current_time():g}")

        nursery.start_soon(ask, 2.0)
        await wait_all_tasks_blocked()
        await one.tell(Crash())
        await trio.sleep(10)
        nursery.start_soon(ask, 20.0)
        await wait_all_tasks_blocked()
        await one.tell(Crash())
        await trio.sleep(10)
        assert answers == ["None", "dead 13"]
        assert other.statistics().restarts == 2


@pytest.mark.parametrize("how", ["end", "stop", "unlink"])
async def test_an_end_that_is_no_failure_ends_the_link_silently(how: str) -> None:
    async with open_system() as system:
        one = await system.start(Part, name="one")
        other = await system.start(Part, one, name="other")
        await other.ask(Work())
        match how:
            case "end":
                await one.tell(End())
            case "stop":
                await one.stop()
            case _:
                await other.tell(Unlink())
                await other.ask(Work())
        await wait_all_tasks_blocked()
        assert cell_of(other).links is None
        assert cell_of(one).links is None
        if how != "stop":
            await one.tell(Crash())  # its next life has no link
            await wait_all_tasks_blocked()
        assert await other.ask(Work()) == "None"


async def test_a_link_to_one_that_ends_for_ever_is_refused() -> None:
    async with open_system() as system:
        one = await system.start(Part, name="one")
        await one.stop()
        with pytest.raises(StartFailed) as failed:
            await system.start(Part, one)
        assert isinstance(failed.value.__cause__, ActorDead)


async def test_an_actor_that_starts_fails_at_once(autojump_clock: MockClock) -> None:
    async with open_system() as system:
        one = await system.start(Part, name="one")
        async with trio.open_nursery() as nursery:

            async def start() -> None:
                with pytest.raises(StartFailed) as failed:
                    await system.start(Part, one, 1_000.0)
                assert isinstance(failed.value.__cause__, LinkBroken)
                assert isinstance(failed.value.__cause__.__cause__, ValueError)

            nursery.start_soon(start)
            await wait_all_tasks_blocked()
            await one.tell(Crash())
        assert trio.current_time() < 1


async def test_a_link_made_while_the_other_waits_for_its_restart_is_to_its_next_life(
    autojump_clock: MockClock,
) -> None:
    """Otherwise two who link each other would fail in turn: each starts while the other ends."""
    async with open_system(supervision=Supervision(backoff=5, jitter=0)) as system:
        one = await system.start(Part, name="one")
        other = await system.start(Part, one, name="other", restart="temporary")
        await one.tell(Crash())
        await wait_all_tasks_blocked()
        other = await system.start(Part, one, name="other", restart="temporary")
        await trio.sleep(20)
        assert one.statistics().restarts == 1
        assert await other.ask(Work()) == "None"
        await one.tell(Crash())
        ended = await other.wait_terminated()
        assert ended.exit == "crashed"
        assert isinstance(ended.exception, LinkBroken)


async def test_a_stop_in_order_fails_nobody() -> None:
    async with open_system() as system:
        one = await system.start(Part, name="one")
        await system.start(Part, one, name="other")
        report = await system.stop()
        assert report.ended == ("/system/other", "/system/one")
    assert system.restarts.count == 0


async def test_a_link_or_a_watch_of_an_identity_says_to_use_the_reference_of_its_actor() -> None:
    class Linking(Part):
        @handles(End)
        async def end(self, _: End) -> None:
            identity: Any = self.system.registry.ref("parts", "a")
            for use in (self.link, self.unlink, self.watch, self.unwatch):
                with pytest.raises(TypeError, match=r"<IdentityRef parts/a.*self\.ref"):
                    use(identity)

    async with open_system() as system:
        await system.registry.kind("parts", lambda _: Part())
        one = await system.start(Linking, name="one")
        await one.tell(End())
        assert await one.ask(Work()) == "None"
