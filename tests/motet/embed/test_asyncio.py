"""Hosts as coroutines of asyncio use them: in a thread, and as the guest of their loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

import motet
from motet.runtime import open_system
from motet.sqlite_journal import open_journal
from tests.motet.embed.stage import Waiting, talker
from tests.scripted import Scripted, call, say

Open = Callable[[], AbstractAsyncContextManager[motet.AsyncioHost]]


@asynccontextmanager
async def threaded() -> AsyncGenerator[motet.AsyncioHost]:
    with motet.HostThread() as host:
        yield host.asyncio


@pytest.fixture(params=[threaded, motet.guest], ids=["thread", "guest"])
def opened(request: pytest.FixtureRequest) -> Open:
    found: Open = request.param
    return found


async def until(flag: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not flag():
            await asyncio.sleep(0.001)


def test_asyncio_awaits_an_answer(opened: Open) -> None:
    async def main() -> None:
        async with opened() as host:
            agent = talker("one", "two")
            results = await asyncio.gather(host.run(agent, "hi"), host.run(agent, "hi"))
            assert {result.output for result in results} == {"one", "two"}
            assert len(await host.call(motet.Host.sessions)) == 2
            with pytest.raises(motet.UnknownName):
                await host.run("nobody", "hi")

    asyncio.run(main(), debug=True)


def test_asyncio_iterates_events(opened: Open) -> None:
    async def main() -> None:
        async with opened() as host:
            async with host.stream(talker("hello"), "hi") as run:
                events = [event async for event in run]
            assert isinstance(events[-1], motet.RunCompleted)
            assert run.result is (await run.wait())
            with pytest.raises(motet.UnknownName):
                async with host.stream("nobody", "hi"):
                    raise AssertionError

    asyncio.run(main(), debug=True)


def test_a_cancelled_task_goes_on_when_its_run_has_ended(opened: Open) -> None:
    async def main() -> None:
        stage = Waiting()
        async with opened() as host:
            task = asyncio.create_task(host.run(stage.agent, "hi", session="s"))
            await until(stage.begun.is_set)

            task.cancel()
            await asyncio.sleep(0)
            task.cancel()  # somebody else who is impatient
            with pytest.raises(asyncio.CancelledError):
                await task

            assert stage.ended.is_set()
            assert (await host.call(motet.Host.runs, session="s"))[0].status == "cancelled"

    asyncio.run(main(), debug=True)


def test_a_time_out_of_asyncio_cancels_the_run(opened: Open) -> None:
    async def main() -> None:
        stage = Waiting()
        async with opened() as host:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await host.run(stage.agent, "hi")
            assert stage.ended.is_set() == stage.begun.is_set()

    asyncio.run(main(), debug=True)


def test_leaving_a_stream_early_ends_its_run(opened: Open) -> None:
    async def main() -> None:
        stage = Waiting()
        async with opened() as host:
            async with host.stream(stage.agent, "hi", session="s"):
                await until(stage.begun.is_set)
            assert stage.ended.is_set()

    asyncio.run(main(), debug=True)


def test_asyncio_stops_a_run(opened: Open) -> None:
    async def main() -> None:
        stage = Waiting()
        async with opened() as host:
            run = asyncio.create_task(host.run(stage.agent, "hi", session="s", check=False))
            await until(stage.begun.is_set)
            assert len((await host.stop(session="s")).stopped) == 1
            assert (await run).status == "cancelled"

    asyncio.run(main(), debug=True)


def test_leaving_the_block_ends_all_runs(opened: Open) -> None:
    async def main() -> None:
        stage = Waiting()
        async with opened() as host:
            task = asyncio.create_task(host.run(stage.agent, "hi"))
            await until(stage.begun.is_set)
        assert stage.ended.is_set()
        with pytest.raises(motet.HostClosed):
            await task
        with pytest.raises(motet.HostClosed):
            await host.run(stage.agent, "hi")

    asyncio.run(main(), debug=True)


def test_a_synchronous_tool_does_not_hold_up_the_loop(opened: Open) -> None:
    async def main() -> None:
        release = asyncio.Event()
        loop = asyncio.get_running_loop()

        def ask_the_loop() -> str:
            asyncio.run_coroutine_threadsafe(release.wait(), loop).result(20)
            return "released"

        agent = motet.Agent(
            "a", model=Scripted(call(("ask_the_loop", {})), say("ok")), tools=[ask_the_loop]
        )
        async with opened() as host:
            run = asyncio.create_task(host.run(agent, "hi"))
            await asyncio.sleep(0)
            release.set()
            assert (await run).errors == ()

    asyncio.run(main(), debug=True)


# A thread


def test_a_future_of_the_thread_is_awaited_and_cancels_its_run() -> None:
    async def main() -> None:
        stage = Waiting()
        with motet.HostThread() as host:
            answer = host.start(talker("hello"), "hi")
            assert (await asyncio.wrap_future(answer.future)).output == "hello"

            run = host.start(stage.agent, "hi")
            waiting = asyncio.wrap_future(run.future)
            await until(stage.begun.is_set)
            waiting.cancel()
            assert await asyncio.to_thread(run.wait, 20)
            assert stage.ended.is_set()

    asyncio.run(main(), debug=True)


def test_a_blocking_call_inside_asyncio_names_the_awaitable_one() -> None:
    async def main() -> None:
        with motet.HostThread() as host:
            with pytest.raises(RuntimeError, match=r"await host\.asyncio\.run"):
                host.run("a", "hi")
            with pytest.raises(RuntimeError, match=r"host\.asyncio\.stream"), host.stream("a", "b"):
                raise AssertionError
            with pytest.raises(RuntimeError, match=r"`host\.asyncio`"):
                host.stop(everything=True)
        with pytest.raises(RuntimeError, match="HostThread"):
            talker("hello").run_sync("hi")

    asyncio.run(main())


@pytest.mark.parametrize(
    ("opening", "method"),
    [
        (motet.open_host, "run"),
        (motet.guest, "run"),
        (partial(motet.connect, "ws://127.0.0.1:1"), "send"),
        (open_system, "start"),
        (partial(open_journal, "missing/journal.db"), "read"),
    ],
)
def test_a_block_that_was_not_entered_says_how_to_enter_it(
    opening: Callable[[], Any], method: str
) -> None:
    name = getattr(opening, "func", opening).__name__
    block = opening()
    with pytest.raises(
        AttributeError,
        match=rf"^{name}\(\) is not open yet, .*`async with {name}\(\.\.\.\) as it:`.*it\.{method}",
    ):
        getattr(block, method)
    assert not hasattr(block, method)  # an error of the class that `hasattr` knows


ITERATED = (
    r"^stream\(\) is a block.*`async with stream\(\.\.\.\) as it:`, and `async for \.\.\. in it`"
)


async def iterated(block: Any) -> None:
    async for _ in block:
        raise AssertionError


def test_a_stream_that_is_iterated_without_its_block_says_how_to_enter_it() -> None:
    async def on_trio() -> None:
        with pytest.raises(TypeError, match=ITERATED):
            await iterated(talker("hello").stream("hi"))
        async with motet.open_host() as host:
            with pytest.raises(TypeError, match=ITERATED):
                await iterated(host.stream(talker("hello"), "hi"))

    async def on_asyncio() -> None:
        async with motet.guest() as host:
            with pytest.raises(TypeError, match=ITERATED):
                await iterated(host.stream(talker("hello"), "hi"))

    trio.run(on_trio)
    asyncio.run(on_asyncio())


def test_calls_of_trio_inside_asyncio_name_the_right_ones() -> None:
    async def main() -> None:
        with pytest.raises(RuntimeError, match=r"inside asyncio: .*HostThread.*motet\.guest"):
            async with motet.open_host():
                pass
        with pytest.raises(RuntimeError, match=r"connect\(\) runs on Trio .*inside asyncio"):
            async with motet.connect("ws://127.0.0.1:1"):
                pass
        with pytest.raises(RuntimeError, match=r"open_system\(\) runs on Trio .*inside asyncio"):
            async with open_system():
                pass
        with pytest.raises(RuntimeError, match=r"open_journal\(\) runs on Trio .*inside asyncio"):
            async with open_journal("missing/journal.db"):
                pass
        with pytest.raises(RuntimeError, match=r"host\.asyncio\.run\(agent"):
            await talker("hello").run("hi")
        with pytest.raises(RuntimeError, match=r"host\.asyncio\.stream\(agent"):
            async with talker("hello").stream("hi"):
                pass

    asyncio.run(main())


def test_run_sync_inside_trio_names_the_right_call() -> None:
    async def main() -> None:
        with pytest.raises(RuntimeError, match=r"await agent\.run"):
            talker("hello").run_sync("hi")

    trio.run(main)


# A guest


def test_a_guest_runs_in_the_thread_of_its_loop() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with motet.guest() as host:

            async def both(_: motet.Host) -> bool:
                await trio.sleep(0)
                return asyncio.get_running_loop() is loop and trio.lowlevel.in_trio_task()

            assert await host.call(both)

    asyncio.run(main(), debug=True)


def test_a_guest_that_cannot_open_raises_where_it_is_opened(tmp_path: Path) -> None:
    async def main() -> None:
        with pytest.raises(motet.ConfigError, match=r"nowhere\.toml"):
            async with motet.guest(tmp_path / "nowhere.toml"):
                raise AssertionError
        async with motet.guest(state=tmp_path):
            with pytest.raises(RuntimeError, match="a guest host already"):
                async with motet.guest():
                    raise AssertionError

    asyncio.run(main(), debug=True)


def test_a_guest_that_is_cancelled_while_it_opens_is_closed(tmp_path: Path) -> None:
    async def opening() -> None:
        async with motet.guest(state=tmp_path):
            await asyncio.sleep(60)

    async def main() -> None:
        for yields in range(12):
            task = asyncio.create_task(opening())
            for _ in range(yields):
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        async with motet.guest(state=tmp_path) as host:  # nobody has it in use
            assert await host.call(motet.Host.runs) == ()

    asyncio.run(main(), debug=True)


def test_a_guest_inside_trio_is_refused() -> None:
    async def main() -> None:
        with pytest.raises(RuntimeError, match=r"motet\.open_host"):
            async with motet.guest():
                raise AssertionError

    trio.run(main)
