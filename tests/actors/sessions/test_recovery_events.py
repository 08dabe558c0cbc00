"""The next host publishes the events that a kill has lost, once."""

from __future__ import annotations

import sqlite3
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path
from shutil import copytree

import pytest
from hypothesis import given
from hypothesis import strategies as st

import motet
from motet.actors.sessions.recovery_events import missing_events, published
from motet.protocols import events as ev
from motet.protocols.chat import AssistantMessage, Call, ChatMessage, ToolMessage, UserMessage
from motet.protocols.sessions import RunInfo
from motet.protocols.storage import Row
from tests.actors.runs.ops import AT_ONCE, ended, ops, pending, suspended
from tests.actors.runs.ops import told as of_session
from tests.scripted import Scripted, call, say

INFO = RunInfo("run_1", "s", "ops", "alice", "completed", "go", 0.0, 0.0)

texts = st.sampled_from(["", "well", "well", "done"])
batches = st.lists(st.sampled_from(["c0", "c1", "c2"]), max_size=3, unique=True)


@st.composite
def transcripts(draw: st.DrawFn) -> list[ChatMessage]:
    rows: list[ChatMessage] = [UserMessage("go")]
    for text, ids in draw(st.lists(st.tuples(texts, batches), max_size=4)):
        rows.append(AssistantMessage(text, tuple(Call(one, "look", "{}") for one in ids)))
        rows += [ToolMessage(one, "look", f"saw {one}") for one in ids]
    return rows


def as_rows(told: list[ev.AnyEvent]) -> list[Row]:
    """As the journal gives them."""
    return [
        (
            ev.event_name(one),
            getattr(one, "id", ""),
            getattr(one, "i", None),
            getattr(one, "role", None),
            getattr(one, "text", None),
        )
        for one in told
    ]


@given(transcripts(), st.data())
def test_published_and_republished_events_together_are_complete(
    rows: list[ChatMessage], data: st.DataObject
) -> None:
    """Law: wherever the journal was cut off, the rest follows, in its order and numbers."""
    whole = list(missing_events(INFO, rows, published(())))
    cut = data.draw(st.integers(0, len(whole)))
    assert list(missing_events(INFO, rows, published(as_rows(whole[:cut])))) == whole[cut:]
    numbers = [one.i for one in whole if isinstance(one, ev.MessageAdded)]
    assert numbers == list(range(len(numbers)))


def test_withdrawn_approvals_are_published_again() -> None:
    rows: list[ChatMessage] = [UserMessage("go"), AssistantMessage("well")]
    user, answer = missing_events(INFO, rows, published(()))
    known = published(as_rows([user, answer, ev.RunResumed(1)]))
    assert list(missing_events(INFO, rows, known)) == [answer]


@contextmanager
def journal(state: Path) -> Generator[sqlite3.Connection]:
    with closing(sqlite3.connect(state / "motet.db")) as db, db:
        yield db


async def test_the_answer_of_a_run_is_published_before_its_end(tmp_path: Path) -> None:
    agent = motet.Agent("ops", model=Scripted(call(("look", {}), text="I look."), say("All well.")))

    @agent.tool
    async def look() -> str:
        return "all well"

    async with motet.open_host(tmp_path, agents=[agent]) as host:
        await host.submit("go", session="s", agent="ops", key="k")
        (run,) = await host.runs()
        await host.wait_run(run.run_id)
        before = await of_session(host, "s")
    with journal(tmp_path) as db:
        end = "SELECT data FROM events WHERE event = 'run.completed'"
        db.execute(f"UPDATE runs SET open = 1, ending = ({end})")
        db.execute("DELETE FROM events WHERE event <> 'run.started'")
    for _ in range(2):  # and it is told once
        async with motet.open_host(tmp_path, agents=[agent]) as host:
            after = await of_session(host, "s")
        kinds = [ev.event_name(one) for one in after]
        assert kinds == [
            "run.started",
            "input.accepted",
            *("message", "message", "tool.call", "tool.result", "message"),
            "run.completed",
        ]
        messages = [one for one in before if isinstance(one, ev.MessageAdded | ev.InputAccepted)]
        assert [one for one in after if isinstance(one, ev.MessageAdded | ev.InputAccepted)] == (
            messages
        )


async def test_the_approval_of_a_suspended_run_is_published_once(tmp_path: Path) -> None:
    own = ops(call(("restart", {"unit": "ssh"}), text="I restart it."), say("done"))
    async with motet.open_host(tmp_path, config=AT_ONCE, agents=[own.agent]) as host:
        ack = await host.submit("go", session="s", agent="ops")
        await suspended(host, ack.run_id)
        before = await of_session(host, "s")
    lost = ("message", "tool.call", "approval.requested")
    with journal(tmp_path) as db:
        marks = ", ".join("?" * len(lost))
        db.execute(f"DELETE FROM events WHERE event IN ({marks}) AND seq > 3", lost)
    for _ in range(2):  # and it is told once
        async with motet.open_host(tmp_path, config=AT_ONCE, agents=[own.agent]) as host:
            after = await of_session(host, "s")
        assert after[-2:] == [
            next(one for one in before if isinstance(one, ev.MessageAdded) and one.i == 1),
            next(one for one in before if isinstance(one, ev.ApprovalRequested)),
        ]
        assert len([one for one in after if isinstance(one, ev.ApprovalRequested)]) == 1


@pytest.mark.parametrize("kept", [0, 1, 2, 4, 6])
async def test_all_of_a_run_is_told_that_was_accepted_and_suspended_in_a_life_that_ended(
    tmp_path: Path, kept: int
) -> None:
    """However few of its first events were on disk when the host was killed."""
    own = ops(call(("restart", {"unit": "ssh"}), text="I restart it."), say("done"))
    async with motet.open_host(tmp_path / "one", config=AT_ONCE, agents=[own.agent]) as host:
        ack = await host.submit("go", session="s", agent="ops", key="k")
        await suspended(host, ack.run_id)
        with journal(copytree(tmp_path / "one", tmp_path / "two")) as db:
            db.execute("DELETE FROM events WHERE seq > ?", (kept,))
            db.execute("UPDATE streams SET head = ?", (kept,))
        whole = await of_session(host, "s")
    async with motet.open_host(tmp_path / "two", config=AT_ONCE, agents=[own.agent]) as host:
        told = await of_session(host, "s")
        (waits,) = await pending(host)
        await host.approve(waits.id, "allow-once")
        await ended(host, ack.run_id)
    async with motet.open_host(tmp_path / "two", config=AT_ONCE, agents=[own.agent]) as host:
        kinds = [ev.event_name(one) for one in await of_session(host, "s")]
    # When it goes on, its model is known, and it announces the calls that it goes on with.
    later = [one for one in whole if isinstance(one, ev.RunStarted | ev.ToolCall)]
    assert {*map(repr, whole)} - {*map(repr, told)} <= {*map(repr, later)}
    assert len(told) == len({*map(repr, told)})
    assert sorted(kinds) == sorted(
        [
            *("input.accepted", "run.started", "message", "message", "tool.call"),
            *("approval.requested", "run.waiting", "approval.resolved", "run.resumed"),
            *("tool.result", "message", "run.completed"),
        ]
    )
