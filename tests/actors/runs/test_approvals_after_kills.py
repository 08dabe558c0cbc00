"""A host that is killed while calls wait: each tool is run at most once, and only when allowed."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

import motet
from motet.actors.transcript.grammar import violations
from motet.protocols.chat import ToolMessage
from tests import forks
from tests.actors.runs.ops import PATIENT, ended, pending, rows
from tests.scripted import Scripted, say


def killed(state: Path, marks: Path, moment: str) -> str:
    """A host that has ended by SIGKILL at this moment; the id of its run."""
    ran = forks.ran("-m", "tests.actors.runs.victim", str(state), str(marks), moment)
    assert ran.returncode == -signal.SIGKILL, ran.stderr
    return ran.stdout.strip()


def survivor(marks: Path) -> motet.Agent[None, str]:
    agent = motet.Agent("ops", model=Scripted(say("done")))

    @agent.tool(approval=True)
    def write(text: str) -> str:
        with marks.open("a") as file:
            file.write(text)
        return text

    @agent.tool
    def note() -> str:
        with marks.open("a") as file:
            file.write("n")
        return "noted"

    return agent


async def outcomes(host: motet.Host) -> list[str]:
    stored = [item.row for item in await rows(host, "s")]
    assert violations(stored) == ()
    return [row.outcome for row in stored if isinstance(row, ToolMessage)]


@pytest.mark.parametrize("moment", ["waiting", "suspended"])
async def test_a_kill_while_calls_wait_loses_no_approval(moment: str, tmp_path: Path) -> None:
    state, marks = tmp_path / "state", tmp_path / "marks"
    run_id = killed(state, marks, moment)
    async with motet.open_host(state, config=PATIENT, agents=[survivor(marks)]) as host:
        assert host.interrupted == ()
        a, b = await pending(host, 2)
        await host.approve(a.id, "allow-once")
        await host.approve(b.id, "deny")
        assert (await ended(host, run_id)).status == "completed"
        assert await outcomes(host) == ["done", "denied", "done"]
    assert marks.read_text() == "na"


async def test_after_a_kill_between_answer_and_tool_the_next_host_runs_it(
    tmp_path: Path,
) -> None:
    state, marks = tmp_path / "state", tmp_path / "marks"
    run_id = killed(state, marks, "answered")
    assert marks.read_text() == "n"
    async with motet.open_host(state, config=PATIENT, agents=[survivor(marks)]) as host:
        (b,) = await pending(host)
        while marks.read_text() != "na":  # by itself: its answer is on disk
            await pending(host)
        await host.approve(b.id, "allow-once")
        await ended(host, run_id)
        assert await outcomes(host) == ["done", "done", "done"]
        answered = {info.resolved_by for info in await host.approvals()}
    assert marks.read_text() == "nab"
    assert answered == {"first", "local"}


async def test_after_a_kill_during_an_approved_tool_it_does_not_run_again(tmp_path: Path) -> None:
    state, marks = tmp_path / "state", tmp_path / "marks"
    run_id = killed(state, marks, "running")
    async with motet.open_host(state, config=PATIENT, agents=[survivor(marks)]) as host:
        (b,) = await pending(host)
        await host.approve(b.id, "allow-once")
        await ended(host, run_id)
        assert await outcomes(host) == ["unknown", "done", "done"]
    assert marks.read_text() == "nab"


async def test_after_many_kills_it_has_still_run_once(tmp_path: Path) -> None:
    state, marks = tmp_path / "state", tmp_path / "marks"
    run_id = killed(state, marks, "waiting")
    for _ in range(2):
        async with motet.open_host(state, config=PATIENT, agents=[survivor(marks)]) as host:
            assert len(await pending(host, 2)) == 2
    async with motet.open_host(state, config=PATIENT, agents=[survivor(marks)]) as host:
        for info in await pending(host, 2):
            await host.approve(info.id, "allow-once")
        await ended(host, run_id)
    assert sorted(marks.read_text()) == ["a", "b", "n"]
