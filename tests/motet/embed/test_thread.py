"""A host in a thread of its own, as threads use it."""

from __future__ import annotations

import os
import signal
import subprocess
import textwrap
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextvars import ContextVar
from pathlib import Path

import pytest
import trio

import motet
from tests import forks
from tests.motet.embed.stage import Waiting, talker
from tests.scripted import Scripted, call

PATIENCE = 20.0
ROOT = Path(__file__).parents[3]


@pytest.fixture
def host() -> Iterator[motet.HostThread]:
    with motet.HostThread() as host:
        yield host


# Running


def test_a_thread_gets_an_answer(host: motet.HostThread) -> None:
    result = host.run(talker("hello"), "hi", session="user:bob")

    assert (result.status, result.output, result.session) == ("completed", "hello", "user:bob")


def test_a_run_that_did_not_complete_raises_unless_it_is_not_checked(
    host: motet.HostThread,
) -> None:
    limits = motet.Limits(turns=1)
    agent = motet.Agent("a", model=Scripted(*[call(("gone", {}))] * 2), limits=limits)

    with pytest.raises(motet.LimitReached):
        host.run(agent, "hi")
    assert host.run(agent, "hi", check=False).status == "limited"


def test_many_threads_use_one_host(host: motet.HostThread) -> None:
    agent = talker(*map(str, range(24)))

    with ThreadPoolExecutor(8) as pool:
        runs = [pool.submit(host.run, agent, "hi") for _ in range(24)]

    assert sorted(int(run.result().output) for run in runs) == list(range(24))


def test_a_time_out_ends_the_run_and_its_tool_before_it_raises(host: motet.HostThread) -> None:
    stage = Waiting()

    with pytest.raises(TimeoutError, match=r"no answer within 0\.1 s"):
        host.run(stage.agent, "hi", timeout=0.1)

    assert stage.ended.is_set() == stage.begun.is_set()
    assert host.call(motet.Host.runs)[0].status == "cancelled"


def test_a_cancelled_future_cancels_the_run(host: motet.HostThread) -> None:
    stage = Waiting()
    run = host.start(stage.agent, "hi")
    assert stage.begun.wait(PATIENCE)

    assert run.future.cancel()

    assert run.wait(PATIENCE)
    assert stage.ended.is_set()
    with pytest.raises(CancelledError):
        run.result()


def test_a_cancelled_run_says_so_when_it_has_ended(host: motet.HostThread) -> None:
    stage = Waiting()
    run = host.start(stage.agent, "hi")
    assert stage.begun.wait(PATIENCE)

    run.cancel()

    with pytest.raises(motet.RunCancelled):
        run.result(PATIENCE)
    assert stage.ended.is_set()


def test_stop_reports_the_stopped_runs(host: motet.HostThread) -> None:
    stage = Waiting()
    run = host.start(stage.agent, "hi", session="s", check=False)
    assert stage.begun.wait(PATIENCE)

    report = host.stop(session="s")

    assert report.stopped == [run.result(PATIENCE).run_id]
    assert run.result().status == "cancelled"


def test_the_events_of_a_run_are_iterated(host: motet.HostThread) -> None:
    with host.stream(talker("hello"), "hi") as run:
        events = list(run)

    assert "hello" in [event.text for event in events if isinstance(event, motet.TextDelta)]
    assert isinstance(events[-1], motet.RunCompleted)
    assert run.result.output == run.result.output == "hello"


def test_leaving_the_block_of_a_stream_ends_its_run(host: motet.HostThread) -> None:
    stage = Waiting()

    with host.stream(stage.agent, "hi") as run:
        assert any(isinstance(event, motet.ToolCall) for event in run)

    assert stage.ended.is_set() == stage.begun.is_set()
    assert run.wait(PATIENCE).status == "cancelled"


def test_a_stream_that_cannot_begin_says_why(host: motet.HostThread) -> None:
    with pytest.raises(motet.UnknownName, match="nobody"), host.stream("nobody", "hi"):
        raise AssertionError


def test_the_rest_of_the_host_is_called_in_its_own_thread(host: motet.HostThread) -> None:
    host.run(talker("hello"), "hi", session="s")
    span: ContextVar[str] = ContextVar("span")
    span.set("mine")

    async def look(host: motet.Host, word: str) -> tuple[str, str, bool]:
        return word, span.get(), trio.lowlevel.in_trio_run() and not host.status().running

    assert host.call(look, "word") == ("word", "mine", True)
    assert len(host.call(motet.Host.history, "s", limit=5)) == 2
    with pytest.raises(motet.NotFound):
        host.call(motet.Host.session, "another")


# Opening and closing


def test_an_error_at_the_start_is_raised_where_the_host_is_opened(tmp_path: Path) -> None:
    with pytest.raises(motet.ConfigError, match=r"nowhere\.toml"):
        motet.HostThread(tmp_path / "nowhere.toml").open()
    with (
        motet.HostThread(state=tmp_path),
        pytest.raises(motet.StateInUse),
        motet.HostThread(state=tmp_path),
    ):
        raise AssertionError


def test_ctrl_c_while_a_host_is_opened_closes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Impatient(Future[object]):
        def result(self, timeout: float | None = None) -> object:
            raise KeyboardInterrupt

    host = motet.HostThread(state=tmp_path)
    monkeypatch.setattr(host, "_portal", Impatient())

    with pytest.raises(KeyboardInterrupt):
        host.open()

    assert "closed" in repr(host)
    with motet.HostThread(state=tmp_path):  # nobody has it in use
        pass


def test_leaving_the_block_ends_all_runs_and_keeps_their_transcripts(tmp_path: Path) -> None:
    stage = Waiting()
    with motet.HostThread(state=tmp_path) as host:
        run = host.start(stage.agent, "hi", session="s")
        assert stage.begun.wait(PATIENCE)

    assert stage.ended.is_set()
    with pytest.raises(motet.HostClosed):
        run.result(0)
    with motet.HostThread(state=tmp_path) as host:
        assert [run.status for run in host.call(motet.Host.runs, session="s")] == ["cancelled"]
        assert len(host.call(motet.Host.history, "s")) >= 3


def test_closing_is_bounded_and_can_be_repeated() -> None:
    begun, release = threading.Event(), threading.Event()

    def block() -> None:
        begun.set()
        release.wait(PATIENCE)

    agent = motet.Agent("a", model=Scripted(call(("block", {}))), tools=[block])
    host = motet.HostThread(grace=0.05)
    host.open().start(agent, "hi")
    assert begun.wait(PATIENCE)
    with pytest.raises(TimeoutError, match="synchronous tool"):
        host.close()

    release.set()
    host.grace = PATIENCE
    host.close()
    host.close()
    assert "closed" in repr(host)


def test_an_error_of_the_block_is_not_hidden_by_a_slow_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    begun, release = threading.Event(), threading.Event()
    agent = motet.Agent("a", model=Scripted(call(("block", {}))))

    @agent.tool
    def block() -> None:
        begun.set()
        release.wait(PATIENCE)

    slow = motet.HostThread(grace=0.05)

    def use() -> float:
        with slow:
            slow.start(agent, "hi")
            assert begun.wait(PATIENCE)
            return 1 / 0

    with pytest.raises(ZeroDivisionError):
        use()

    assert "did not end well" in caplog.text
    release.set()
    slow.grace = PATIENCE
    slow.close()


def test_a_dead_host_fails_every_waiting_call_and_its_block() -> None:
    class Fatal(BaseException):
        pass

    async def die(_: motet.Host) -> None:
        raise Fatal

    stage = Waiting()
    host = motet.HostThread().open()
    run = host.start(stage.agent, "hi")
    assert stage.begun.wait(PATIENCE)

    with pytest.raises(motet.HostClosed):
        host.call(die)

    with pytest.raises(motet.HostClosed):
        run.result(PATIENCE)
    with pytest.raises((Fatal, BaseExceptionGroup)):  # its cause, or that with what came of it
        host.close()
    with pytest.raises(motet.HostClosed, match="open another"):
        host.run(stage.agent, "hi")


# In the wrong place


def test_a_host_is_used_while_it_is_open() -> None:
    host = motet.HostThread()
    with pytest.raises(RuntimeError, match="with HostThread"):
        host.run("a", "hi")
    host.close()

    with host:
        assert "open in process" in repr(host)
        with pytest.raises(RuntimeError, match="make another"):
            host.open()

    with pytest.raises(motet.HostClosed, match="open another"):
        host.start("a", "hi")


def test_a_blocking_call_inside_trio_is_refused(host: motet.HostThread) -> None:
    async def inside() -> None:
        with pytest.raises(RuntimeError, match=r"await host\.run"):
            host.run("a", "hi")
        with pytest.raises(RuntimeError, match=r"motet\.open_host"), motet.HostThread():
            raise AssertionError

    trio.run(inside)


def test_a_host_cannot_wait_for_its_own_end(host: motet.HostThread) -> None:
    async def close(_: motet.Host) -> None:
        host.close()

    with pytest.raises(RuntimeError, match="another thread"):
        host.call(close)


# Processes


def python(code: str) -> subprocess.CompletedProcess[str]:
    """Run a program with this checkout, all warnings errors."""
    return forks.ran("-W", "error", "-c", textwrap.dedent(code), timeout=60)


@pytest.mark.slow
def test_ctrl_c_ends_the_run_that_is_waited_for_and_then_the_host() -> None:
    ran = python("""
        import os, signal, motet, trio
        agent = motet.Agent("a", model="demo")

        @agent.tool
        async def shell(command: str) -> None:
            try:
                os.kill(os.getpid(), signal.SIGINT)
                await trio.sleep_forever()
            finally:
                print("ended", command, flush=True)

        with motet.HostThread(agents=[agent]) as host:
            try:
                host.run("a", "run first")
            except KeyboardInterrupt:
                print(host.call(motet.Host.runs)[0].status)
            host.run("a", "run second")
    """)

    assert ran.stdout == "ended first\ncancelled\nended second\n", ran.stderr
    assert ran.returncode == -signal.SIGINT, ran.stderr
    assert ran.stderr.count("Traceback") == 1


@pytest.mark.slow
def test_a_program_without_a_block_loses_nothing_and_a_fork_is_refused(tmp_path: Path) -> None:
    ran = python(f"""
        import os, motet
        agent = motet.Agent("a", model="demo")
        host = motet.HostThread(state={str(tmp_path / "state")!r}, agents=[agent]).open()
        if os.fork() == 0:
            try:
                host.run("a", "hi")
            except RuntimeError as error:
                print(error, flush=True)
            raise SystemExit  # its atexit calls find nothing to wait for
        os.wait()
        with host.stream("a", "wait 60", session="s") as run:
            next(iter(run))
            raise SystemExit(3)
    """)

    assert ran.returncode == 3, ran.stderr
    assert "after the fork" in ran.stdout
    assert ran.stderr == ""
    with motet.HostThread(state=tmp_path / "state") as host:
        assert host.call(motet.Host.runs, session="s")[0].status == "cancelled"
    assert os.listdir(tmp_path) == ["state"]
