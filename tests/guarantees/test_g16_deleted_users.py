"""G16: a deleted user is gone wholly, also if the host is killed or loses power meanwhile."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import count

import pytest

import motet
from motet import testing as mt
from motet.actors.host import Host
from motet.protocols.approvals import ApprovalDecision
from motet.protocols.chat import AssistantMessage, UserMessage
from motet.protocols.errors import NotFound
from motet.protocols.models import ModelRequest
from motet.protocols.room_acts import AddPerson
from motet.protocols.room_copies import GONE
from motet.protocols.room_limits import Allowance, Budgets
from motet.protocols.rooms import RoomPlan
from motet.protocols.sessions import Principal
from tests.guarantees.test_g16_deletions import WORD, End, mentions

USER = f"{WORD}-ann"
ANN, BOB = Principal(USER), Principal("bob")
SHARED, OWN = "bobs", "anns"
PLAN = RoomPlan(("ops",), mode="followup", max_turns=1)
BUDGETS = Budgets(person_hour=Allowance(turns=1))
BUSY = RoomPlan(("ops",), activation="mention", mode="interrupt", budgets=BUDGETS)

PARTS = 5
"""Of a sweep; each ends within the time of a test."""

TABLES = {
    *("messages", "idempotency", "streams", "events", "agent_errors", "error_records", "results"),
    *("traces", "spans", "approvals", "rooms", "room_messages", "room_costs", "runs", "sessions"),
    *("room_people", "room_reads", "room_invites", "memories", "tokens", "approval_grants"),
}


def answer(request: ModelRequest) -> mt.Step:
    """It fails and acts with what it was told, and then speaks of roses."""
    at = max(i for i, row in enumerate(request.messages) if isinstance(row, UserMessage))
    said = request.messages[at].text
    turn = (mt.call("fail", text=said), mt.call("act", text=said), mt.say("roses"))
    done = sum(isinstance(row, AssistantMessage) for row in request.messages[at:])
    return turn[min(done, 2)]


def agent() -> motet.Agent[None, str]:
    one = motet.Agent("ops", model=mt.FunctionModel(answer), memory=True)

    @one.tool
    async def fail(text: str) -> str:
        raise OSError(f"cannot read {text}")

    @one.tool(approval=True, effects="write")
    async def act(text: str) -> str:
        return f"{text}\n" * 3_000  # too long for the model, so that it is kept as a result

    return one


async def used(host: Host) -> None:
    """A user with a session, a token, a room, and a place in a room of another."""
    rooms = host.rooms
    await host.new_token(USER, "viewer")
    await host.new_token("bob")
    own = (await rooms.create(OWN, PLAN, people=("bob",), principal=ANN)).name
    shared = (await rooms.create(SHARED, PLAN, people=(USER,), principal=BOB)).name
    await rooms.manage(AddPerson(room=shared, user=USER, role="moderator"), principal=BOB)
    for name in (shared, own):
        await rooms.invite(name, principal=ANN)
        await rooms.post(name, "where are roses?", principal=BOB)
        await rooms.react(name, 1, "+1", principal=ANN)
        await rooms.post(name, f"@ops where is {WORD}?", key=f"post {name}", principal=ANN)
        await rooms.mark_read(name, 2, principal=ANN)
        await rooms.post(f"{name}/1", f"is {WORD} here?", principal=ANN)
        await rooms.post(name, f"ask @{USER}, please", principal=BOB)
    await rooms.create("busy", BUSY, people=(USER,), principal=BOB)
    await host.submit(f"look for {WORD}", session=WORD, key=WORD, principal=ANN)
    await host.submit("look for roses", session="other", key="other", principal=BOB)


async def talk(host: Host, principal: Principal) -> None:
    """Calls that interrupt one another, and that exceed the budget of a person."""
    found = await host.rooms.list(principal=principal)
    (name,) = [one.name for one in found if "busy" in one.name]
    await host.rooms.post(name, "@ops, please", principal=principal)


async def approve_for(host: Host) -> None:
    for info in await host.approvals(state="pending"):
        own: ApprovalDecision = "allow-always" if info.user == USER else "allow-once"
        denied = "roses" in str(info.args)
        note = f"never, by {WORD}" if denied else ""
        await host.approve(info.id, "deny" if denied else own, note=note, by=USER)


Act = Callable[[Host], Awaitable[None]]


async def delete(host: Host) -> None:
    with suppress(NotFound):
        await host.delete_user(USER, rooms="delete")


async def give(host: Host) -> None:
    with suppress(NotFound):
        await host.delete_user(USER, rooms="transfer:bob")


async def stays(host: Host) -> list[tuple[str, str]]:
    """What Bob has said, and what was said to him."""
    (shared,) = [one.name for one in await host.rooms.list(principal=BOB) if SHARED in one.name]
    said = await host.rooms.history(shared, principal=BOB)
    own = [("bob", one.row.text) for one in await host.history("other")][:1]
    return own + [(one.author, one.text) for one in said if one.kind == "person"]


async def owned(host: Host) -> int:
    return sum(one.owner == "bob" for one in await host.rooms.list(principal=BOB))


STAYS = [
    ("bob", "look for roses"),
    ("bob", "where are roses?"),
    (GONE, ""),
    ("bob", f"ask @{GONE}, please"),
]


def fill(host: mt.SimulatedHost) -> None:
    host.call(used)
    for principal in (BOB, ANN, ANN):
        host.call(talk, principal)
        host.steps(200)
    for _ in range(12):
        host.advance(1)
        host.call(approve_for)
    host.settle()


def left(at: int, end: End, act: Act = delete) -> list[str] | None:
    """The rows that name the user when a deletion was cut off ``at`` that step or change of the
    disk, and then asked for again. None: it ended before.
    """
    one = agent()
    with mt.simulated_host(at, agents=[one]) as host:
        fill(host)
        assert {row.partition(" ")[0] for row in host.call(mentions)} >= TABLES
        if end == "crash":
            job = host.begin(act)
            host.steps(at)
            is_over = job.over
            host.crash()
        else:
            with mt.power_cut(host, at) as power:
                host.call(act)
                host.steps(1)  # the power may fail in its last one
            is_over = not power.failed
        host.call(act)
        host.settle()
        found = host.call(mentions)
        assert host.call(stays) == STAYS
        assert host.call(owned) == (3 if act is give else 2)
        return None if is_over and not found else found


def test_a_deleted_user_is_gone_after_a_kill_during_the_deletion() -> None:
    """Law: what is left can be deleted, and then no table has the name or a text of the user."""
    assert not left(60, "crash", give)


def test_a_deleted_user_is_gone_after_a_power_cut_during_the_deletion() -> None:
    """A room is left that the next host opens, and that tells what it has not told yet."""
    assert not left(146, "power")


@pytest.mark.extended
@pytest.mark.parametrize("act", [delete, give])
@pytest.mark.parametrize("answers", range(4))
def test_a_user_is_deleted_whose_runs_are_at_work_or_wait(answers: int, act: Act) -> None:
    """Law: nothing that was under way writes the name or a text of theirs afterwards."""
    with mt.simulated_host(answers, agents=[agent()]) as host:
        host.call(used)
        for _ in range(answers):
            host.advance(1)
            host.call(approve_for)
        host.call(act)
        assert not host.call(mentions)
        host.settle()
        host.advance(10)
        host.settle()
        assert not host.call(mentions)


@pytest.mark.sweep
@pytest.mark.parametrize("act", [delete, give])
@pytest.mark.parametrize("end", ["crash", "power"])
@pytest.mark.parametrize("part", range(PARTS))
def test_a_deleted_user_is_gone_after_an_end_at_any_moment(end: End, act: Act, part: int) -> None:
    moments = count(1 + part, PARTS)
    at = next(at for at in moments if (found := left(at, end, act)) is None or found)
    assert left(at, end, act) is None, at
    assert at > 100, "the deletion takes steps"
