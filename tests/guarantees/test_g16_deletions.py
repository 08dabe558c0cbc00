"""G16: what is deleted is gone wholly, also if its host is killed or loses power meanwhile."""

from __future__ import annotations

from contextlib import suppress
from itertools import count
from typing import Literal

import pytest

import motet
from motet import testing as mt
from motet.actors.host import Host
from motet.protocols.chat import AssistantMessage, UserMessage
from motet.protocols.errors import NotFound
from motet.protocols.models import ModelRequest

WORD = "oleander"
"""In the name of what is deleted, and in all that is said and done in it."""
ROOM = f"{WORD}s"

TABLES = {
    *("messages", "idempotency", "streams", "events", "agent_errors", "error_records", "results"),
    *("traces", "spans", "approvals", "rooms", "room_messages", "room_costs", "runs", "sessions"),
}

End = Literal["crash", "power"]


def answer(request: ModelRequest) -> mt.Step:
    """It fails, acts, has a child work, and answers with the word. Of roses it only speaks."""
    at = max(i for i, row in enumerate(request.messages) if isinstance(row, UserMessage))
    if WORD not in request.messages[at].text:
        return mt.say("roses")
    turn = (
        mt.call("fail", word=WORD),
        mt.call("act", word=WORD),
        mt.call("child", task=f"find {WORD}"),
        mt.say(f"the {WORD} is here"),
    )
    return turn[sum(isinstance(row, AssistantMessage) for row in request.messages[at:])]


def agent() -> motet.Agent[None, str]:
    child = motet.Agent(
        "child", model=mt.ScriptedModel([mt.say(f"{WORD} of a child")] * 9, name="child")
    )
    one = motet.Agent("ops", model=mt.FunctionModel(answer), tools=[child.as_tool()])

    @one.tool
    async def fail(word: str) -> str:
        raise OSError(f"no {word} today")

    @one.tool(approval=True, effects="write")
    async def act(word: str) -> str:
        return f"{word} " * 20_000  # too long for the model, so that it is kept as a result

    return one


async def approve(host: Host) -> None:
    for info in await host.approvals(state="pending"):
        await host.approve(info.id, "allow-once")


def used(host: mt.SimulatedHost, member: motet.Agent[None, str]) -> None:
    """Fill a session, a room, and a session that stays."""
    host.start(None, f"look for {WORD}", session=WORD, key=WORD)
    host.start(None, "look for roses", session="other", key="other")
    host.room(motet.Room(ROOM, members=[member], mode="followup", max_turns=1))
    host.post(ROOM, f"@ops where is {WORD}?", user="ann", key="post")
    for _ in range(8):
        host.advance(1)
        host.call(approve)
    host.settle()


async def mentions(host: Host) -> list[str]:
    """The rows of all tables that have the word."""
    read = host._parts.readers.read  # pyright: ignore[reportPrivateUsage]
    tables = await read("SELECT name FROM sqlite_master WHERE type = 'table'")
    return [
        f"{table} {row!r}"
        for (table,) in tables
        for row in await read(f'SELECT * FROM "{table}"')
        if WORD in repr(row)
    ]


async def delete(host: Host) -> None:
    """Delete what is there."""
    with suppress(NotFound):
        await host.delete(WORD)
    with suppress(NotFound):
        await host.delete_room(ROOM)


def left(at: int, end: End) -> list[str] | None:
    """What is left when a deletion was cut off ``at`` that step or change of the disk, and then
    asked for again. None: it ended before.
    """
    one = agent()
    with mt.simulated_host(at, agents=[one]) as host:
        used(host, one)
        assert {row.partition(" ")[0] for row in host.call(mentions)} >= TABLES
        if end == "crash":
            job = host.begin(delete)
            host.steps(at)
            is_over = job.over
            host.crash()
        else:
            with mt.power_cut(host, at) as power:
                host.call(delete)
            is_over = not power.failed
        host.call(delete)
        host.settle()
        found = host.call(mentions)
        assert host.call(stays) == ("look for roses", "roses")
        return None if is_over and not found else found


async def stays(host: Host) -> tuple[str, ...]:
    return tuple(item.row.text for item in await host.history("other"))


@pytest.mark.parametrize("at", [1, 13, 29, 53])
def test_what_is_deleted_is_gone_after_a_kill_during_the_deletion(at: int) -> None:
    """Law: what is still there can be deleted, and after that no table has the name or a word."""
    assert not left(at, "crash")


@pytest.mark.parametrize("at", [2, 61, 130, 197])
def test_what_is_deleted_is_gone_after_a_power_cut_during_the_deletion(at: int) -> None:
    assert not left(at, "power")


@pytest.mark.sweep
@pytest.mark.parametrize("end", ["crash", "power"])
def test_what_is_deleted_is_gone_after_an_end_at_any_moment(end: End) -> None:
    at = next(at for at in count(1) if (found := left(at, end)) is None or found)
    assert left(at, end) is None, at
    assert at > 50, "the deletion takes steps"
