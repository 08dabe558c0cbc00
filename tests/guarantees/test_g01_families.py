"""G1 and G7 across trees of runs: whoever starts others ends after them, and pays for them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import attrs
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

import motet
from motet.actors.transcript.grammar import violations
from motet.protocols.chat import ChatMessage, ToolMessage, UserMessage
from motet.protocols.models import Usage
from motet.protocols.sessions import RunInfo
from tests import forks
from tests.guarantees.worlds.families import LIMITS, Node, Planned, agent_of, flat, nodes

RUN = re.compile(r"(?<!subagent:)run_[0-9a-f]{12}")  # a session outlives its runs for a while
STARTS = re.compile(r"Started node \((run_\w+)\)")
ENDS = re.compile(r"\[Sub-agent node \((run_\w+)\): ")
UNSEEN = re.compile(r"^- node \((run_\w+)\): ", re.M)
WALL = motet.Limits(depth=LIMITS.depth, children=LIMITS.children, parallel_children=2, wall=60.0)


@attrs.frozen
class Cut:
    """How a tree is cut: when, and who is: the root, its caller, or one of the children."""

    after: float
    steps: int
    whom: str


CUTS = st.none() | st.builds(
    Cut,
    st.sampled_from([0.0, 0.3, 0.5, 1.0, 1.5, 8.0]),
    st.integers(0, 400),
    st.sampled_from(["run", "caller", "child"]),
)


def tasks_of_runs() -> list[str]:
    """Names of live tasks that work for a run."""
    return [name for name in _names(trio.lowlevel.current_root_task()) if RUN.search(name)]


def _names(task: trio.lowlevel.Task | None) -> Iterator[str]:
    if task is not None:
        yield task.name
        for nursery in task.child_nurseries:
            for child in nursery.child_tasks:
                yield from _names(child)


async def cut(host: motet.Host, how: Cut, caller: trio.CancelScope) -> None:
    await trio.sleep(how.after)
    for _ in range(how.steps):
        await trio.lowlevel.checkpoint()
    if how.whom == "caller":
        caller.cancel()
        return
    live = await host.runs(status="running")
    mine = [run for run in live if (run.session == "s") == (how.whom == "run")]
    for run in mine[:1]:
        with suppress(motet.NotFound):
            await host.stop(run_id=run.run_id)


async def run_tree(root: Node, how: Cut | None) -> None:
    model = Planned(tuple(flat(root)))
    agent = agent_of(model)
    async with motet.open_host(agents=[agent]) as host:
        async with trio.open_nursery() as nursery:
            with trio.CancelScope() as caller:
                if how is not None:
                    nursery.start_soon(cut, host, how, caller)
                await host.run(agent, "0", session="s", limits=WALL, check=False)
            assert model.working == 0
            assert host.status().running == host.status().queued == 0
            assert tasks_of_runs() == []
            nursery.cancel_scope.cancel()
        runs = {run.run_id: run for run in await host.runs(limit=1000)}
        if runs:
            await check(host, runs)


async def check(host: motet.Host, runs: dict[str, RunInfo]) -> None:
    total, told = Usage(), list[str]()
    for run in runs.values():
        assert run.status not in ("queued", "running", "interrupted")
        rows = [item.row for item in await host.history(run.session, limit=200)]
        assert violations(rows) == (), rows
        if run.status != "dropped":
            total += (await host.trace(run.run_id)).info.usage
            told += beside(rows)
    (root,) = [run for run in runs.values() if run.session == "s"]
    assert root.usage == total or root.status == "dropped"
    assert len(told) == len(set(told))


def beside(rows: Sequence[ChatMessage]) -> list[str]:
    """The runs that the rows tell the end of; all that they say to have been started."""
    last = rows[-1].text if rows else ""
    injected = [row.text for row in rows if isinstance(row, UserMessage) and row.note]
    ends = [*ENDS.findall("\n".join(injected)), *UNSEEN.findall(last)]
    calls = [row.text for row in rows if isinstance(row, ToolMessage) and row.name == "spawn"]
    assert set(ends) >= set(STARTS.findall("\n".join(calls)))
    return ends


@given(nodes(), CUTS)
@settings(max_examples=15, deadline=None)
def test_a_tree_of_runs_is_gone_with_its_root_which_has_paid_for_all(
    root: Node, how: Cut | None
) -> None:
    """Law: whatever runs call, start, fail or hang, and whoever is cut at whatever instant: when
    the root's caller resumes, no run, task or model request of the tree is left; all transcripts
    are valid; and what the root has used is what all model requests of the tree have."""
    trio.run(run_tree, root, how, clock=MockClock(autojump_threshold=0))


# ---------------------------------------------------------------- killed

HOST = """
import sys, trio, motet
from tests.scripted import Scripted, call, say

model = Scripted(call(("spawn", {"task": "quick", "agent": "quick"}),
                      ("spawn", {"task": "slow", "agent": "slow"})), call(("nap", {})))
lead = motet.Agent("lead", model=model, tools=["group:agents"])
quick = motet.Agent("quick", model=Scripted(say("I was quick"), name="quick"))
slow = motet.Agent("slow", model=Scripted(None, name="slow"))

@lead.tool
async def nap() -> str:
    await trio.sleep_forever()

async def main():
    async with motet.open_host(sys.argv[1], agents=[lead, quick, slow]) as host:
        async with host.stream(lead, "go", session="s") as run:
            seen = set()
            async for event in run:
                seen.add(type(event).__name__ + getattr(event, "name", ""))
                if {"ChildEnded", "ToolCallnap"} <= seen:
                    print("now", flush=True)

trio.run(main)
"""


async def test_after_a_kill_the_transcript_tells_what_came_of_each_child(tmp_path: Path) -> None:
    with forks.started("-c", HOST, str(tmp_path)) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"now\n"
        process.kill()
    async with motet.open_host(tmp_path) as host:
        runs = {run.agent: run for run in await host.runs()}
        rows = [item.row for item in await host.history("s")]
        assert [info.session for info in await host.sessions()] == ["s"]
    assert {agent: run.status for agent, run in runs.items()} == {
        "lead": "interrupted",
        "quick": "completed",
        "slow": "interrupted",
    }
    assert violations(rows) == ()
    told = "\n".join(row.text for row in rows)
    assert told.count(f"[Sub-agent quick ({runs['quick'].run_id}): completed]\nI was quick") == 1
    assert (
        f"- slow ({runs['slow'].run_id}): interrupted, the host ended during this run"
        in rows[-1].text
    )
    async with motet.open_host(tmp_path) as host:  # and only once
        assert [item.row for item in await host.history("s")] == rows
