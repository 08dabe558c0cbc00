"""Copies of messages that no head of theirs marks.

In pages of results and errors, answers to escalations, summaries for newcomers, and rooms below.
"""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import cast

import msgspec
import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

import motet
from motet import testing as mt
from motet.protocols.chat import JsonObject
from motet.protocols.models import ModelRequest
from motet.protocols.result_pages import PAGE_LIMIT, page_of, page_text
from motet.protocols.results import Kind, ResultInfo, StoredResult
from motet.protocols.room_acts import AddPerson, SetTerms
from motet.protocols.room_copies import corrected
from motet.protocols.rooms import RoomPlan
from tests.actors.rooms.talk import agent, model_of, on_disk

SECRET = "the-password-is-swordfish"
ADA = motet.Principal("ada")


@given(st.integers(0, 40), st.sampled_from(("text", "json")), st.integers(1, 30), st.booleans())
@settings(max_examples=30)
def test_a_page_of_a_result_that_begins_within_a_message_is_corrected_with_it(
    offset: int, kind: Kind, limit: int, long: bool
) -> None:
    """Law: no page has the words of a message that is withdrawn, and each has those of others."""
    word = "x" * 9_000 if long else "x"
    said = [f"[#{n} person p{n}] {word}\n{SECRET if n == 2 else 'KEPT'}\nend" for n in (1, 2, 3)]
    text = msgspec.json.encode(said).decode() if kind == "json" else "Found:\n" + "\n".join(said)
    info = ResultInfo("res_0123456789abcdef", "s", "t", kind, len(text), "")
    answer = page_of(StoredResult(info, text.encode()), offset, limit)
    if answer["success"]:
        shown = page_text(cast("JsonObject", answer["data"]))
        after = corrected(shown, "2", "[#2 withdrawn person p2]")
        assert SECRET not in after
        assert len(shown.encode()) <= PAGE_LIMIT
        if kind == "text":
            assert shown.count("KEPT") == after.count("KEPT")


@pytest.mark.parametrize("through", ["result", "error"])
async def test_a_page_that_is_read_is_corrected_with_the_message_that_it_begins_in(
    tmp_path: Path, through: str
) -> None:
    """In the turn under way and on disk."""
    quoted: list[str] = []
    seen: list[str] = []
    has_read, changed = trio.Event(), trio.Event()

    def answers(request: ModelRequest) -> mt.Step:
        last = request.messages[-1].text
        seen.append(repr(request.messages))
        if found := re.search(r"res_\w+", last) if len(seen) == 2 else None:
            return mt.call("get_tool_result", result_id=found[0], offset=1_420)
        if found := re.search(r"err_\w+", last) if len(seen) == 2 else None:
            return mt.call("get_error_detail", error_id=found[0], part="tail")
        step = {1: mt.call("quotes"), 3: mt.call("waits")}
        return step.get(len(seen), mt.say("ok"))

    ops = motet.Agent("ops", model=mt.FunctionModel(answers, name="ops"))

    @ops.tool
    async def waits() -> str:
        has_read.set()
        await changed.wait()
        return "waited"

    @ops.tool
    async def quotes() -> str:
        if through == "error":
            raise RuntimeError("cannot read:\n" + quoted[0])
        return "Found:\n" + quoted[0]

    async with motet.open_host(tmp_path, agents=[ops]) as host:
        name = (await host.rooms.create("den", RoomPlan(("ops",)), principal=ADA)).name
        text = "\n".join(["a story", *["bla bla bla"] * 1_500, SECRET])
        await host.rooms.post(name, text, principal=ADA)
        quoted.append(f"[#1 person ada] {text}")
        await host.rooms.post(name, "@ops read", principal=ADA)
        with trio.fail_after(20):
            await has_read.wait()
        assert seen[2].count(SECRET) > seen[1].count(SECRET)
        await host.rooms.delete_message(name, 1, principal=ADA)
        changed.set()
        await (await host.open_room(name, principal=ADA)).wait()
        assert SECRET not in seen[3]
    assert SECRET not in on_disk(tmp_path)


@pytest.mark.parametrize("edited", [False, True])
async def test_the_answer_to_an_escalation_is_left_nowhere_when_its_message_is_changed(
    tmp_path: Path, edited: bool
) -> None:
    def answers(request: ModelRequest) -> mt.Step:
        whole = repr(request.messages)
        return mt.say("ok") if SECRET in whole else mt.call("breaks", n=len(request.messages))

    ops = motet.Agent("ops", model=mt.FunctionModel(answers, name="ops"))

    @ops.tool
    def breaks(n: int) -> str:
        raise RuntimeError(f"the service is unreachable {n}")

    async with motet.open_host(tmp_path, agents=[ops]) as host:
        name = (await host.rooms.create("den", RoomPlan(("ops",)), principal=ADA)).name
        room = await host.open_room(name, principal=ADA)
        await host.rooms.post(name, "@ops go", principal=ADA)
        await room.wait()
        (asked,) = await host.escalations()
        note = f"use {SECRET} instead"
        await host.resolve(asked.id, "advice", note=note, principal=ADA)
        await room.wait()
        (answer,) = (one for one in await room.history() if SECRET in one.text)
        if edited:
            await host.rooms.edit_message(name, answer.seq, "@ops wait\nfor me", principal=ADA)
        else:
            await host.rooms.delete_message(name, answer.seq, principal=ADA)
        (asked,) = await host.escalations()
        assert asked.note == ("wait\nfor me" if edited else "[withdrawn]")
        await room.wait()
    assert SECRET not in on_disk(tmp_path)


async def test_a_summary_for_newcomers_is_left_nowhere_when_one_of_its_messages_is_changed(
    tmp_path: Path,
) -> None:
    """Also where another summary has gone on from it."""
    ann = agent("ann", lambda text: f"they told {SECRET}" if SECRET in text else "of roses")
    async with motet.open_host(tmp_path, agents=[ann]) as host:
        plan = RoomPlan(("ann",), speakers=("mentions",))
        room = (await host.rooms.create("den", plan, principal=ADA)).name
        await host.rooms.manage(SetTerms(room=room, newcomers="summary"), principal=ADA)
        for text, user in ((f"it is {SECRET}", "bob"), ("and roses", "cleo")):
            await host.rooms.post(room, text, principal=ADA)
            await host.rooms.manage(AddPerson(room=room, user=user), principal=ADA)
            found = await host.rooms.summary(room, principal=motet.Principal(user))
            assert SECRET in found.text
        await host.rooms.delete_message(room, 1, principal=ADA)
        assert "roses" in (await host.rooms.summary(room, principal=motet.Principal("cleo"))).text
    assert SECRET not in on_disk(tmp_path)


async def test_a_summary_that_is_made_while_a_message_is_withdrawn_is_made_again(
    tmp_path: Path,
) -> None:
    ann = agent("ann", lambda text: f"they told {SECRET}" if SECRET in text else "of roses")
    model = model_of(ann)
    got: list[str] = []

    async with motet.open_host(tmp_path, agents=[ann]) as host, trio.open_nursery() as nursery:
        plan = RoomPlan(("ann",), speakers=("mentions",))
        room = (await host.rooms.create("den", plan, principal=ADA)).name
        await host.rooms.manage(SetTerms(room=room, newcomers="summary"), principal=ADA)
        for text in (f"it is {SECRET}", "and roses"):
            await host.rooms.post(room, text, principal=ADA)
        await host.rooms.manage(AddPerson(room=room, user="bob"), principal=ADA)
        model.gate = trio.Event()

        @nursery.start_soon
        async def ask() -> None:
            got.append((await host.rooms.summary(room, principal=motet.Principal("bob"))).text)

        await trio.testing.wait_all_tasks_blocked(0.01)
        while not model.requests:
            await trio.testing.wait_all_tasks_blocked(0.01)
        await host.rooms.delete_message(room, 1, principal=ADA)
        model.gate.set()
    assert got == ["of roses"]
    assert len(model.requests) == 2
    assert SECRET not in on_disk(tmp_path)


async def test_a_withdrawn_answer_of_a_room_below_is_left_in_none_of_the_rooms_it_came_from(
    tmp_path: Path,
) -> None:
    """At every depth; the rooms of other calls, and what else was said below, stay."""

    def answers(text: str) -> str:
        return f"it is {SECRET}" if "first" in text else "it is a quiet garden"

    members = [agent("ann", "roses grow"), agent("ben", answers)]
    deep = motet.Room("deep", members=members, speakers=motet.round_robin(), max_turns=2)
    inner = motet.Room("inner", members=[motet.room_agent(deep)], max_turns=1)
    room = motet.Room("r", members=[motet.room_agent(inner)], speakers=motet.mentions())
    async with motet.open_host(tmp_path) as host:
        opened = await host.open_room(room)
        for text in ("@inner the first?", "@inner another?"):
            await opened.post(text, user="ada")
            await opened.wait()
        first, second = (one for one in await opened.history() if one.kind == "agent")
        assert SECRET in first.text
        await host.rooms.delete_message("r", first.seq, principal=motet.Principal("root", "admin"))
        assert (await opened.history())[-1] == second
    left = on_disk(tmp_path)
    assert SECRET not in left
    assert "roses grow" in left
    with closing(sqlite3.connect(tmp_path / "motet.db")) as base:
        said = "SELECT count(*) FROM room_messages WHERE kind = 'agent'"
        for where, count in (("deleted", 3), ("text LIKE '%garden%'", 3), ("NOT deleted", 5)):
            assert base.execute(f"{said} AND {where}").fetchone() == (count,), where
