"""The intake: a stored input starts, whatever happens right after that."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import trio
from trio.testing import MockClock

import motet
from motet.actors.sessions.router import Retire
from motet.actors.sessions.session import Session
from motet.actors.storage.writer import Writer
from motet.protocols.chat import AssistantMessage
from motet.protocols.sessions import LOCAL, Ack
from motet.protocols.storage import Rows, StorageError, Transaction
from motet.runtime import ActorDead
from tests.actors.runs.ops import ended, parts_of
from tests.scripted import Scripted, say

AGENT = "a"


def agent(*texts: str) -> motet.Agent[None]:
    return motet.Agent(AGENT, model=Scripted(*(say(text) for text in texts)))


async def submit(host: motet.Host, text: str = "hi", session: str = "s") -> Ack:
    return await host.submit(text, session=session, agent=AGENT)


async def answer(host: motet.Host, run_id: str) -> str:
    assert (await ended(host, run_id)).status == "completed"
    rows = [item.row for item in await host.history("s") if item.run_id == run_id]
    assert isinstance(rows[-1], AssistantMessage)
    return rows[-1].text


def crash_session(host: motet.Host) -> None:
    assert host.system.inject("/host/router/s", "crash")


def kill_session(host: motet.Host) -> None:
    assert host.system.inject("/host/router/s", "kill")


def crash_router(host: motet.Host) -> None:
    assert host.system.inject("/host/router", "crash")


@pytest.mark.parametrize("strike", [crash_session, kill_session])
async def test_a_stored_input_starts_although_its_session_ends_before_it_has_seen_it(
    autojump_clock: MockClock, strike: Callable[[motet.Host], None]
) -> None:
    async with motet.open_host(agents=[agent("one", "two")]) as host:
        assert await answer(host, (await submit(host)).run_id) == "one"
        ack = await submit(host)
        assert ack.status == "accepted"

        strike(host)  # nothing has run since the input was acknowledged

        assert await answer(host, ack.run_id) == "two"
    del autojump_clock


async def test_an_input_stored_without_a_router_starts_when_there_is_one(
    autojump_clock: MockClock,
) -> None:
    async with motet.open_host(agents=[agent("one")]) as host:
        crash_router(host)
        ack = await submit(host)
        assert await answer(host, ack.run_id) == "one"
    del autojump_clock


async def test_without_a_router_for_good_nobody_waits_for_ever(autojump_clock: MockClock) -> None:
    helper = agent()
    async with motet.open_host(agents=[helper]) as host:
        assert host.system.inject("/host/router", "kill")
        with pytest.raises(ActorDead, match="no session is run any more"):
            await host.run(helper, "hi")
        with pytest.raises(ActorDead):
            await submit(host)
    del autojump_clock


async def test_an_input_to_an_ending_session_is_acknowledged_and_answered_after_that(
    autojump_clock: MockClock,
) -> None:
    async with motet.open_host(agents=[agent("one", "two")]) as host:

        @host.on("session_end")
        async def slow(_: motet.SessionEnd) -> None:
            await trio.sleep(0.5)

        await answer(host, (await submit(host)).run_id)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(parts_of(host).router.ask, Retire("s", LOCAL.user))
            await trio.sleep(0.1)
            began = trio.current_time()
            ack = await submit(host)
            assert (ack.status, trio.current_time()) == ("accepted", began)
        assert await answer(host, ack.run_id) == "two"
    del autojump_clock


async def test_the_next_actor_starts_the_inputs_of_a_retired_session(
    autojump_clock: MockClock,
) -> None:
    async with motet.open_host(agents=[agent("one", "two")]) as host:
        await answer(host, (await submit(host)).run_id)
        actor = parts_of(host).session_actors.find("s")
        assert actor is not None
        actor.suspend()
        ack = await submit(host)
        await parts_of(host).router.ask(Retire("s", LOCAL.user))
        assert await answer(host, ack.run_id) == "two"
    del autojump_clock


async def test_a_session_that_cannot_begin_drops_its_input_and_says_why(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(_: Session) -> None:
        raise LookupError("no luck")

    async with motet.open_host(agents=[agent("one")]) as host:
        with monkeypatch.context() as broken:
            broken.setattr(Session, "on_start", fail)
            first = await submit(host)
            dropped = await ended(host, first.run_id)
        assert (first.status, dropped.status) == ("accepted", "dropped")
        assert "no luck" in dropped.detail
        second = await submit(host)
        assert await answer(host, second.run_id) == "one"
    del autojump_clock


async def test_an_input_whose_caller_is_cancelled_during_the_commit_was_sent(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = Writer._commit  # pyright: ignore[reportPrivateUsage]
    commits, free = trio.Event(), trio.Event()
    free.set()

    async def slowly(writer: Writer, group: list[Transaction]) -> Sequence[Rows | StorageError]:
        commits.set()
        with trio.CancelScope(shield=True):
            await free.wait()
        return await commit(writer, group)

    monkeypatch.setattr(Writer, "_commit", slowly)
    async with motet.open_host(agents=[agent("one")]) as host:
        commits, free = trio.Event(), trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(submit, host)
            await commits.wait()
            nursery.cancel_scope.cancel()
            free.set()
        (run,) = await host.runs()
        assert await answer(host, run.run_id) == "one"
    del autojump_clock


async def test_a_stop_right_after_the_acknowledgement_ends_the_run_before_its_model_is_asked(
    autojump_clock: MockClock,
) -> None:
    model = Scripted(say("never"))
    async with motet.open_host(agents=[motet.Agent(AGENT, model=model)]) as host:
        ack = await submit(host)
        report = await host.stop(run_id=ack.run_id)
        assert report.stopped == [ack.run_id]
        assert (await ended(host, ack.run_id)).status == "cancelled"
        assert model.requests == []
    del autojump_clock
