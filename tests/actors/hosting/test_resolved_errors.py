"""Errors that a later success of their tool resolves: stored with the end of the run.

The law is that of the tracker, over the rows of the transcript: an error is resolved if its tool
has succeeded behind it in the session, and else it is open.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import trio
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

import motet
from motet.protocols.chat import JsonObject
from motet.protocols.errors import ErrorRecord, Errors, GroupErrors, ListErrors
from motet.testing.errors import MemoryErrors
from tests.scripted import Scripted, Step, call, say

TOOLS: tuple[str, ...] = ("fetch", "save")
Batch = list[tuple[str, bool]]
RUNS = st.lists(
    st.lists(
        st.lists(st.tuples(st.sampled_from(TOOLS), st.booleans()), min_size=1, max_size=3),
        max_size=3,
    ),
    min_size=1,
    max_size=3,
)


def with_tools(agent: motet.Agent[None]) -> motet.Agent[None]:
    """The agent with tools that work or fail as each call says."""

    @agent.tool
    def fetch(works: bool, n: int) -> str:
        if not works:
            raise OSError(f"no route to host {n}")
        return f"fetched {n}"

    @agent.tool
    def save(works: bool, n: int) -> str:
        if not works:
            raise OSError(f"no such shelf {n}")
        return f"saved {n}"

    return agent


def agent_of(runs: list[list[Batch]]) -> motet.Agent[None]:
    """Its calls succeed or fail as each of them says."""
    answers: list[Step] = []
    number = itertools.count()  # no two calls and no two results are equal: no loop
    for batches in runs:
        for one in batches:
            said: list[tuple[str, JsonObject]] = [
                (tool, {"works": works, "n": next(number)}) for tool, works in one
            ]
            answers.append(call(*said))
        answers.append(say("done"))
    limits = motet.Limits(tool_errors=None, total_errors=None)
    return with_tools(motet.Agent("a", model=Scripted(*answers), limits=limits))


def expected(runs: list[list[Batch]]) -> dict[str, tuple[int, int]]:
    """Of each tool, the errors that are open and those that are resolved."""
    found: dict[str, tuple[int, int]] = {}
    for tool, works in (one for batches in runs for batch in batches for one in batch):
        open_, resolved = found.get(tool, (0, 0))
        found[tool] = (0, resolved + open_) if works else (open_ + 1, resolved)
    return {tool: found.get(tool, (0, 0)) for tool in TOOLS}


def most_in_a_row(runs: list[list[Batch]], tool: str) -> int:
    """The failures of a tool in a row, at most: calls of one batch end in any order."""
    most = now = 0
    for batch in (batch for batches in runs for batch in batches):
        ends = [works for name, works in batch if name == tool]
        failed = ends.count(False)
        most = max(most, now + failed)
        now = failed if True in ends else now + failed
    return most


async def stored(host: motet.Host) -> dict[str, tuple[int, int]]:
    return {
        tool: (
            len(await host.errors(session="s", tool=tool, resolved=False)),
            len(await host.errors(session="s", tool=tool, resolved=True)),
        )
        for tool in TOOLS
    }


@settings(max_examples=15)
@given(runs=RUNS)
@example([[[("fetch", True)] * 3, [("fetch", True)] * 3]])
def test_an_error_is_resolved_by_a_success_of_its_tool_behind_it(runs: list[list[Batch]]) -> None:
    """Law: over any calls, in any batches and runs, records say what the transcript says."""
    assume(all(most_in_a_row(runs, tool) < 5 for tool in TOOLS))  # or a breaker takes it out

    async def story() -> None:
        agent = agent_of(runs)
        async with motet.open_host(agents=[agent]) as host:
            for _ in runs:
                await host.run(agent, "go", session="s")
            assert await stored(host) == expected(runs)

    trio.run(story)


FAILS, WORKS = [("fetch", False)], [("fetch", True)]


async def test_a_success_in_the_next_host_resolves_and_groups_say_so(tmp_path: Path) -> None:
    agent = agent_of([[FAILS, FAILS], [WORKS]])
    async with motet.open_host(agents=[agent], state=tmp_path) as host:
        await host.run(agent, "go", session="s")
        assert [g.open for g in (await host.error_groups(GroupErrors())).groups] == [2]
    async with motet.open_host(agents=[agent], state=tmp_path) as host:
        await host.run(agent, "go", session="s")
        assert [g.open for g in (await host.error_groups(GroupErrors())).groups] == [0]
        (one, other) = await host.errors(resolved=True)
        assert one.resolved == other.resolved is not None


async def test_a_given_store_is_told_of_successes() -> None:
    errors: Errors = MemoryErrors()
    agent = agent_of([[FAILS], [WORKS, FAILS]])
    async with motet.open_host(agents=[agent], errors=errors) as host:
        await host.run(agent, "go", session="s")
        await host.run(agent, "go", session="s")
    found = (await errors.page(ListErrors(), None)).errors
    assert [error.resolved is None for error in found] == [True, False]


class Closed(MemoryErrors):
    """A store that takes nothing until it is open."""

    is_open = False

    async def store(self, records: Sequence[ErrorRecord]) -> set[str]:
        if not self.is_open:
            raise OSError("no route to the store")
        return await super().store(records)


async def test_an_error_in_the_spool_is_not_stored_after_its_session_was_deleted(
    autojump_clock: MockClock,
) -> None:
    errors = Closed()
    agent = agent_of([[FAILS], [FAILS], [WORKS]])
    async with motet.open_host(agents=[agent], errors=errors) as host:
        await host.run(agent, "go", session="gone")
        await host.run(agent, "go", session="kept")
        await host.run(agent, "go", session="kept")
        await host.delete("gone")
        errors.is_open = True
        await trio.sleep(60)
        (error,) = (await errors.page(ListErrors(), None)).errors
        assert error.session_id == "kept"
        assert error.resolved is not None
