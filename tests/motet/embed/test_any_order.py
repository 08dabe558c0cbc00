"""Threads use a host in any order at the same time, and nothing of any run is left behind."""

from __future__ import annotations

import threading
from concurrent.futures import CancelledError, ThreadPoolExecutor

import trio
from hypothesis import given, settings
from hypothesis import strategies as st

import motet
from tests.scripted import Scripted, call, say

ACTIONS = ("wait", "cancel", "give up", "time out", "stop", "watch", "leave")


class Ledger:
    """Counts the calls of its tool that have begun, and those whose clean-up has ended."""

    def __init__(self, runs: int) -> None:
        self.begun = self.ended = 0
        self._lock = threading.Lock()
        # Each call has its own argument: a run that gets the calls of several would else be a loop.
        steps = [
            step
            for number in range(runs)
            for step in (call(("work", {"number": number})), say("done"))
        ]
        self.agent = motet.Agent("worker", model=Scripted(*steps), tools=[self.work])

    async def work(self, number: int) -> None:
        del number
        self.begun += 1
        try:
            await trio.sleep(0.002)
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(0.001)
            self.ended += 1


def act(host: motet.HostThread, ledger: Ledger, action: str, session: str) -> None:
    agent = ledger.agent
    match action:
        case "time out":
            host.run(agent, "go", session=session, timeout=0.002)
        case "watch":
            with host.stream(agent, "go", session=session) as run:
                assert list(run)
        case "leave":
            with host.stream(agent, "go", session=session) as run:
                next(iter(run))
        case _:
            started = host.start(agent, "go", session=session)
            if action == "cancel":
                started.cancel()
            elif action == "give up":
                started.future.cancel()
            elif action == "stop":
                host.stop(session=session, grace=20)
            assert started.wait(20)
            started.result()


@given(
    st.lists(st.tuples(st.sampled_from(ACTIONS), st.sampled_from("abcd")), min_size=1, max_size=12),
    st.booleans(),
)
@settings(max_examples=15)
def test_every_call_ends_once_and_every_tool_has_cleaned_up(
    actions: list[tuple[str, str]], closes: bool
) -> None:
    """Threads run, cancel, stop and leave in any order, while the host is perhaps closed.

    Each of their calls returns or raises one of the errors it may raise, and afterwards every
    tool that began has ended, before the block of the host is left.
    """
    ledger = Ledger(len(actions))
    with ThreadPoolExecutor(4) as pool:
        with motet.HostThread(grace=20) as host:
            calls = [pool.submit(act, host, ledger, *action) for action in actions]
            if not closes:
                for asked in calls:
                    asked.exception(20)
        assert ledger.begun == ledger.ended

    allowed = (motet.RunCancelled, motet.HostClosed, CancelledError, TimeoutError)
    failures = [error for asked in calls if (error := asked.exception(20)) is not None]
    assert [error for error in failures if not isinstance(error, allowed)] == []
