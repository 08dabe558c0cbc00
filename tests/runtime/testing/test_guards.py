"""Real resources are refused inside a simulation, by line, and work again after it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, date, datetime
from time import time as by_name

import pytest
import trio

from motet.runtime import open_system
from motet.runtime.testing import NotSimulated, Simulation, run
from tests.runtime.testing.worlds import Node


async def opens_a_socket() -> None:
    socket.socket()


async def opens_a_trio_socket() -> None:
    trio.socket.socket()


async def connects() -> None:
    await trio.open_tcp_stream("127.0.0.1", 9)


async def listens() -> None:
    await trio.open_tcp_listeners(0, host="127.0.0.1")


async def uses_a_trio_thread() -> None:
    await trio.to_thread.run_sync(int)


async def uses_a_path() -> None:
    await trio.Path("/").exists()


async def opens_a_file() -> None:
    await trio.open_file(os.devnull)


async def resolves_a_name() -> None:
    await trio.socket.getaddrinfo("localhost", 80)


async def starts_a_thread() -> None:
    threading.Thread(target=int).start()


async def runs_a_process() -> None:
    await trio.run_process([sys.executable, "-c", ""])


async def starts_a_popen() -> None:
    subprocess.Popen([sys.executable, "-c", ""])


@pytest.mark.parametrize(
    ("mistake", "guard"),
    [
        (opens_a_socket, "socket"),
        (opens_a_trio_socket, "socket"),
        (connects, "thread"),
        (listens, "thread"),
        (uses_a_trio_thread, "thread"),
        (uses_a_path, "thread"),
        (opens_a_file, "thread"),
        (resolves_a_name, "thread"),
        (starts_a_thread, "thread"),
        (runs_a_process, "thread"),
        (starts_a_popen, "process"),
    ],
)
def test_real_resources_are_refused_with_the_line_that_used_them(
    mistake: Callable[[], Awaitable[None]], guard: str
) -> None:
    trio.run(uses_a_trio_thread)  # a thread of Trio's is idle now, and would be used again

    async def world(sim: Simulation) -> None:
        await mistake()

    error = run(world).error

    assert isinstance(error, NotSimulated)
    assert error.guard in (guard, "socket", "process")
    assert error.line.startswith(f"{__file__}:")
    assert error.line.endswith(f"(in {mistake.__name__})")


def test_a_refusal_that_the_world_swallows_is_still_the_error_of_the_run() -> None:
    async def world(sim: Simulation) -> None:
        with pytest.raises(NotSimulated):
            socket.socket()

    assert isinstance(run(world).error, NotSimulated)


def test_clocks_are_refused_on_demand_and_not_to_libraries() -> None:
    async def world(sim: Simulation) -> float:
        sim.note("the log asks for the time")
        return time.time()

    assert run(world).ok
    error = run(world, guards={"clock"}).error
    assert isinstance(error, NotSimulated)
    assert "time.time inside a simulation" in str(error)
    assert "trio.current_time()" in str(error)


@pytest.mark.parametrize(
    ("read", "shown"),
    [
        (lambda: time.time(), "time.time"),
        (lambda: by_name(), "time.time"),
        (lambda: datetime.now(), "datetime.now"),
        (lambda: datetime.now(UTC), "datetime.now"),
        (lambda: date.today(), "date.today"),
    ],
)
def test_every_way_to_read_the_time_of_day_is_refused(
    read: Callable[[], object], shown: str
) -> None:
    async def world(sim: Simulation) -> None:
        assert isinstance(datetime(2026, 1, 1), datetime)
        read()

    error = run(world, guards={"clock"}).error

    assert isinstance(error, NotSimulated)
    assert f"used {shown} inside a simulation" in str(error)
    assert error.line.startswith(f"{__file__}:")
    assert datetime.now(UTC).year > 2025
    assert by_name() > 1.7e9


def test_actors_use_no_real_resource() -> None:
    async def world(sim: Simulation) -> None:
        async with open_system() as system:
            await system.start(lambda: Node(sim, None), name="node")

    run(world, guards={"socket", "thread", "process", "clock"}).check()


def test_other_threads_are_not_affected() -> None:
    begin, done = threading.Event(), threading.Event()
    opened: list[socket.socket] = []

    def elsewhere() -> None:
        begin.wait()
        opened.append(socket.socket())
        done.set()

    thread = threading.Thread(target=elsewhere)
    thread.start()

    async def world(sim: Simulation) -> None:
        begin.set()
        done.wait(10)

    assert run(world).ok
    thread.join()
    opened[0].close()


def test_real_resources_work_again_after_the_run() -> None:
    run(uses_nothing)
    socket.socket().close()
    trio.run(uses_a_trio_thread)
    subprocess.run([sys.executable, "-c", ""], check=True)


async def uses_nothing(sim: Simulation) -> None:
    await trio.lowlevel.checkpoint()


def test_an_unknown_guard_is_named() -> None:
    with pytest.raises(ValueError, match=r"no such guard: \['files'\]"):
        run(uses_nothing, guards={"files"})  # type: ignore[arg-type]  # pyright: ignore
