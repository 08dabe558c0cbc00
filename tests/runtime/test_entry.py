"""A program with real signals: the first drains, the second cancels."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager

import pytest
import trio

from motet.protocols.messages import Request
from motet.runtime import Actor, RestartLimitExceeded, Supervision, System, handles
from motet.runtime.entry import run_system

PROGRAM = """
import logging
import sys
import trio
from motet.protocols.messages import Request
from motet.runtime import Actor, System, handles
from motet.runtime.entry import run_system


class Work(Request[str], frozen=True, tag="work"):
    seconds: float


class Worker(Actor[Work]):
    @handles(Work)
    async def work(self, request: Work) -> str:
        say("working")
        try:
            await trio.sleep(request.seconds)
        except trio.Cancelled:
            say("cancelled")
            raise
        return "done"

    async def on_stop(self) -> None:
        say("clean")


def say(word: str) -> None:
    print(word, flush=True)


async def main(system: System) -> str:
    worker = await system.start(Worker, name="worker")
    say(await worker.ask(Work(float(sys.argv[1]))))
    await trio.sleep_forever()
    return "never"


logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s")
say(repr(run_system(main, grace=float(sys.argv[2]))))
"""


@contextmanager
def program(seconds: float, grace: float) -> Generator[subprocess.Popen[str]]:
    """A process of PROGRAM that has begun to work."""
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(seconds), str(grace)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "working\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def stop(process: subprocess.Popen[str], number: signal.Signals) -> None:
    """Send a first signal, and wait until the program has handled it."""
    process.send_signal(number)
    assert process.stdout is not None
    assert process.stdout.readline() == f"{number.name}: stopping; once more to stop at once\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_lets_running_handlers_answer(number: signal.Signals) -> None:
    with program(0.3, grace=20) as process:
        stop(process, number)
        out, err = process.communicate(timeout=20)
    assert out.split() == ["done", "clean", "None"] or out.split() == ["clean", "done", "None"]
    assert (process.returncode, err) == (0, "")


def test_the_second_signal_cancels_at_once_and_cleans_up() -> None:
    with program(1000, grace=1000) as process:
        stop(process, signal.SIGTERM)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=20)
    assert out.split() == ["cancelled", "clean"]
    assert (process.returncode, err) == (128 + signal.SIGTERM, "")


def test_the_grace_ends_a_handler_that_does_not_end_by_itself() -> None:
    with program(1000, grace=0.1) as process:
        stop(process, signal.SIGINT)
        out, err = process.communicate(timeout=20)
    assert out.split() == ["cancelled", "clean", "None"]
    assert (process.returncode, err) == (0, "")


# ---------------------------------------------------------------------- within this process


class Ping(Request[int], frozen=True, tag="ping"):
    pass


class Ponger(Actor[Ping]):
    stopped = False

    @handles(Ping)
    async def ping(self, request: Ping) -> int:
        return 1

    async def on_stop(self) -> None:
        type(self).stopped = True


def test_the_value_of_main_is_returned_after_the_system_was_stopped() -> None:
    async def main(system: System) -> int:
        ref = await system.start(Ponger, name="ponger")
        return await ref.ask(Ping())

    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    Ponger.stopped = False
    assert run_system(main) == 1
    assert Ponger.stopped
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers


def test_an_error_of_main_is_raised() -> None:
    async def main(system: System) -> None:
        raise LookupError("nothing")

    with pytest.raises(LookupError, match="nothing"):
        run_system(main)


def test_a_system_that_gives_up_ends_the_program() -> None:
    async def main(system: System) -> None:
        await system.start(Ponger, name="ponger")
        system.inject("/s/ponger", "crash")
        await trio.sleep_forever()

    with pytest.raises(RestartLimitExceeded):
        run_system(main, name="s", supervision=Supervision(intensity=0))


def test_leftovers_of_a_stop_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    class Slow(Ponger):
        cleanup_budget = 0.01

        async def on_stop(self) -> None:
            await trio.sleep_forever()

    async def main(system: System) -> None:
        await system.start(Slow, name="slow")

    with caplog.at_level(logging.WARNING):
        run_system(main)
    assert "left by the stop: /system/slow" in caplog.text


def test_run_system_needs_the_main_thread() -> None:
    errors: list[BaseException] = []

    async def main(system: System) -> None: ...

    def elsewhere() -> None:
        try:
            run_system(main)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert [type(error) for error in errors] == [RuntimeError]
