"""Copies of messages beside the transcripts: in errors of megabytes, in the file of errors that
wait for the database, in results, and in calls that wait for a person.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from trio.testing import MockClock

import motet
from motet import testing as mt
from motet.actors.host import Host
from motet.actors.storage.error_spool import SPILL_FILE
from motet.actors.storage.location import Location
from motet.actors.storage.schema import migrate
from motet.protocols.chat import ToolMessage, UserMessage
from motet.protocols.config import ModelsConfig
from motet.protocols.error_rows import PART, SELECT_ERROR, insert_statement, part_statements
from motet.protocols.errors import ErrorRecord
from motet.protocols.models import ModelRequest
from motet.protocols.results import Packed, pack, repacked, unpack
from motet.protocols.room_changes import ChangedMessages, quoted_by, said_digest, scrub
from motet.protocols.rooms import RoomMessage, RoomPlan
from motet.protocols.sessions import KeyConflict
from motet.runtime.spill import SpillFile
from motet.testing.errors import record
from tests.actors.rooms.talk import agent, on_disk, until_idle

SECRET = "the-password-is-swordfish"
ADA, ROOT = motet.Principal("ada"), motet.Principal("root", "admin")
OLD = f"[#2 person ada] {SECRET}"
GONE = RoomMessage(2, "ada", "person", "", 1, 1.0, edited=2.0, deleted=True)


@given(
    st.integers(-60, 60) | st.sampled_from((-PART + 12, 2 * PART)),
    st.sampled_from(("", "short", "long" * 20_000)),
    st.booleans(),
)
@settings(max_examples=8)
def test_a_line_in_a_raw_error_of_several_parts_is_changed_wherever_it_is_cut(
    at: int, now: str, as_json: bool
) -> None:
    """Law: it reads as if the error had been stored with the new line, its size too."""
    message = replace(GONE, text=now, deleted=not now)
    front, end = "." * (PART + at), "." * 30
    text, head = f"{front}\\n{OLD}\\n[{end}", '{"message":"'
    whole = f'{head}{text}"}}' if as_json else text.replace("\\n", "\n")
    made = replace(record(0, user="room:den", session="s"), raw_error=whole)
    known = ChangedMessages()
    known.keep("room:den", message)
    wanted = known.corrected(made).raw_error
    assert SECRET not in wanted
    with Location.memory() as location:
        connection = location.connect()
        migrate(connection)
        connection.run(
            "INSERT INTO sessions (session, agent, owner, created, updated)"
            " VALUES ('s', 'a', 'room:den', 1, 1)"
        )
        other = replace(made, id=record(1).id, session_id="other")
        for one in (made, other):
            for each in (insert_statement([one]), *part_statements([one])):
                for params in each.each or (each.params,):
                    connection.run(each.sql, params)
        for statement in scrub("den", message, ""):
            connection.run(statement.sql, statement.params)
        for one, text in ((made, wanted), (other, whole)):
            ((*_, size),) = rows = connection.run(SELECT_ERROR, (one.id,))
            assert rows[0][4] == text
            assert size == len(text.encode())
        parts = connection.run("SELECT part, length(text) FROM error_parts WHERE seq = 1")
        assert [part for part, _ in parts] == [*range(len(parts))]
        assert all(length == PART for _, length in parts[:-1])


async def test_errors_that_a_killed_host_has_left_in_the_file_quote_messages_as_they_are_now(
    tmp_path: Path,
) -> None:
    """Also where a message of an agent was changed, whose old text nobody knows any more."""
    room = motet.Room("r", members=[agent("ann", f"{SECRET} it is")], speakers=motet.mentions())
    async with motet.open_host(tmp_path) as host:
        opened = await host.open_room(room)
        async with opened.subscribe() as events:
            await opened.post("hello", user="ada")
            await until_idle(events)
            await opened.post(f"@ann {SECRET}", user="ada")
            await until_idle(events)
        (spoke,) = (run for run in await host.runs() if run.agent == "ann")
        await host.rooms.delete_message("r", 2, principal=ROOT)
        await host.rooms.delete_message("r", 3, principal=ROOT)
    quotes = f'{{"message":"it broke","task":"[#1 person ada] hello\\n{OLD}"}}'
    says = f'{{"message":"not sent: {SECRET} it is"}}'
    left = [
        replace(record(1, user="room:r", session=spoke.session), raw_error=quotes),
        replace(record(2, user="room:r", session=spoke.session, run=spoke.run_id), raw_error=says),
        replace(record(3, user="ada", session="s"), raw_error=quotes),
    ]
    file = SpillFile(tmp_path / SPILL_FILE, ErrorRecord, 1_000_000)
    file.append(left)
    file.close()
    async with motet.open_host(tmp_path, agents=[]) as host:
        first, second, third = [(await host.error(one.id)).raw_error for one in left]
    assert first == {
        "message": "it broke",
        "task": "[#1 person ada] hello\n[#2 withdrawn person ada]",
    }
    assert second == {"message": "[withdrawn]"}
    assert SECRET in str(third)  # it is of no room, and quotes a message of none
    assert not (tmp_path / SPILL_FILE).exists()
    assert on_disk(tmp_path).count(SECRET) == on_disk(tmp_path).count("it broke") / 2


def test_an_error_that_waits_loses_the_own_text_of_its_agent() -> None:
    known = ChangedMessages()
    known.keep("room:den", replace(GONE, author="a", kind="agent"), f"{SECRET} it is")
    made = replace(record(1, user="room:den"), raw_error=f'{{"message":"no: {SECRET} it is"}}')
    assert SECRET not in known.corrected(made).raw_error
    for other in (replace(made, user="room:hall"), replace(made, agent="b")):
        assert known.corrected(other) is other


def test_the_messages_that_an_error_may_quote_are_found_by_their_numbers() -> None:
    quotes = f"{OLD}\n[#7.2 reply to #7 agent ann] x [#12 edited person bob] y [#1x] [#9]"
    found = quoted_by(replace(record(1, user="room:den"), raw_error=quotes))
    assert found == {"den": [2, 12], "den/7": [3]}
    assert quoted_by(replace(record(1, user="ada"), raw_error=quotes)) == {}


@given(st.binary(max_size=300) | st.just(f"{OLD}\n".encode() * 9_000), st.integers(0, 90_000))
@settings(max_examples=30)
def test_a_packed_result_is_packed_again_with_the_text_as_it_is_now(data: bytes, more: int) -> None:
    """Law: it unpacks to the corrected text; one that is the same, or no text, stays as it is."""
    packed = pack(data + b" " * more, compress_from=1_000)
    fields = (packed.packing, packed.data, packed.held, packed.size, packed.sha256)
    again = repacked(*fields, fix=lambda text: text.replace(SECRET, "no"))
    if SECRET.encode() in data:
        made = Packed(*msgspec.json.decode(again))
        assert unpack(made) == unpack(packed).replace(SECRET.encode(), b"no")
    else:
        assert again == ""
    assert repacked(*fields[:4], "0" * 64, fix=str.upper) == ""


# Calls that wait for a person, and quote a message that is changed meanwhile

QUOTES = motet.HostConfig(approvals=motet.ApprovalsConfig(hold=5, expires=60))


def sender(sent: list[str]) -> motet.Agent[None, str]:
    """An agent that sends what it was told last, which a person has to approve."""

    def answer(request: ModelRequest) -> mt.Step:
        last = request.messages[-1]
        if isinstance(last, ToolMessage) and "call it again" not in last.text:
            return mt.say("done")
        lines = [row.text for row in request.messages if isinstance(row, UserMessage)]
        return mt.call("send", text=lines[-1])

    one = motet.Agent("ann", model=mt.FunctionModel(answer))

    @one.tool(approval=True)
    async def send(text: str) -> str:
        sent.append(text)
        return "sent"

    return one


@pytest.mark.parametrize("suspended", [False, True])
def test_a_call_that_waits_for_a_person_never_runs_with_a_text_that_was_changed(
    suspended: bool,
) -> None:
    """It ends; the model calls anew with the text as it is now, and the person is asked for it."""
    sent: list[str] = []
    member = sender(sent)
    with mt.simulated_host(1, agents=[member], config=QUOTES) as host:

        async def begin(host: Host) -> None:
            plan = motet.RoomPlan(members=("ann",), speakers=("mentions",))
            await host.rooms.create("den", plan, principal=ADA)

        async def room_name(host: Host) -> str:
            return (await host.rooms.list(principal=ADA))[0].name

        async def post(host: Host) -> None:
            await host.rooms.post(await room_name(host), f"@ann {SECRET}", principal=ADA)

        async def edit(host: Host) -> None:
            name = await room_name(host)
            await host.rooms.edit_message(name, 1, "@ann hello", principal=ADA)

        async def pending(host: Host) -> list[motet.ApprovalInfo]:
            return list(await host.approvals(state="pending"))

        async def allow(host: Host, approval: str) -> None:
            await host.approve(approval, "allow-once")

        host.call(begin)
        host.call(post)
        host.advance(30 if suspended else 0.5)
        (before,) = host.call(pending)
        assert SECRET in str(before.args)
        host.call(edit)
        host.advance(1)
        for _ in range(3):
            for one in host.call(pending):
                assert SECRET not in str(one.args)
                host.call(allow, one.id)
            host.advance(1)
        assert sent == ["[#1 edited person ada] @ann hello"]


@pytest.mark.parametrize("why", ["a place", "a retry"])
async def test_a_request_that_waits_at_its_model_has_no_text_that_was_withdrawn_meanwhile(
    why: str, autojump_clock: MockClock
) -> None:
    """It keeps its place in the line, and its number of attempts."""
    sent: list[str] = []

    def answers(request: ModelRequest) -> mt.Step:
        sent.append(repr(request.messages))
        is_first = why == "a retry" and len(sent) == 1
        return mt.fail(503, retry_after=9) if is_first else mt.slow(mt.say("ok"), seconds=9)

    model = mt.FunctionModel(answers, name="busy")
    members = [motet.Agent(name, model=model) for name in ("ann", "ben")]
    config = motet.HostConfig(models=ModelsConfig(concurrency=1))
    async with motet.open_host(agents=members, config=config) as host:
        first = await host.rooms.create("den", RoomPlan(("ann",)), principal=ADA)
        room = await host.rooms.create("hall", RoomPlan(("ben",)), principal=ADA)
        if why == "a place":
            await host.rooms.post(first.name, "go", principal=ADA)
            await trio.sleep(1)
        await host.rooms.post(room.name, f"@ben {SECRET}", principal=ADA)
        await trio.sleep(1)
        assert len(sent) == 1
        await host.rooms.post(room.name, "never mind", principal=ADA)
        await host.rooms.delete_message(room.name, 1, principal=ADA)
        await trio.sleep(30)
        assert SECRET not in sent[1]
        assert "[#1 withdrawn person ada]" in sent[1]


async def test_a_summary_that_waits_for_its_model_has_no_text_that_was_withdrawn_meanwhile(
    autojump_clock: MockClock,
) -> None:
    sent: list[str] = []

    def answers(request: ModelRequest) -> mt.Step:
        sent.append(repr(request.messages))
        return mt.slow(mt.say("ok"), seconds=9)

    model = mt.FunctionModel(answers, name="busy")
    members = [motet.Agent(name, model=model) for name in ("ann", "ben")]
    config = motet.HostConfig(models=ModelsConfig(concurrency=1))
    async with motet.open_host(agents=members, config=config) as host:
        first = await host.rooms.create("den", RoomPlan(("ann",)), principal=ADA)
        room = await host.rooms.create("hall", RoomPlan(("ben",)), principal=ADA)
        for text in (f"@ben {SECRET}", *["@ben and now? " + "so " * 2_000] * 3):
            await host.rooms.post(room.name, text, principal=ADA)
            await trio.sleep(20)
        await host.rooms.post(first.name, "go", principal=ADA)
        await trio.sleep(1)
        (session,) = (one.session for one in await host.sessions() if one.agent == "ben")
        before = len(sent)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(host.compact, session)
            await trio.sleep(1)
            await host.rooms.delete_message(room.name, 1, principal=ADA)
        assert len(sent) > before
        assert not any(SECRET in one for one in sent[before:])


async def test_a_turn_under_way_recalls_no_text_that_was_withdrawn_meanwhile(
    autojump_clock: MockClock,
) -> None:
    """It is in the system prompt, in one line with what stood around it."""
    sent: list[str] = []

    def answers(request: ModelRequest) -> mt.Step:
        sent.append(request.system)
        return mt.call("wait") if "tell me" in request.messages[-1].text else mt.say("ok")

    ann = motet.Agent("ann", model=mt.FunctionModel(answers, name="ann"), memory=True)

    @ann.tool
    async def wait() -> str:
        await trio.sleep(9)
        return "waited"

    async with motet.open_host(agents=[ann]) as host:
        room = (await host.rooms.create("den", RoomPlan(("ann",)), principal=ADA)).name
        for where, text in (
            (room, f"gardening: {SECRET}"),
            (room, "hello"),
            (f"{room}/2", "@ann tell me of gardening"),
        ):
            await host.rooms.post(where, text, principal=ADA)
            await trio.sleep(1)
        assert SECRET in sent[-1]
        await host.rooms.delete_message(room, 1, principal=ADA)
        await trio.sleep(20)
        assert "waited" not in sent[-1]
        assert SECRET not in sent[-1]
        assert "</extra_context>" in sent[-1]


async def test_the_tasks_and_names_of_a_summary_go_with_the_message_that_named_them(
    autojump_clock: MockClock,
) -> None:
    """Also from the requests of a turn under way; those that somebody else has named stay."""
    sent: list[str] = []

    def answers(request: ModelRequest) -> mt.Step:
        sent.append(repr(request.messages))
        if request.messages[-1].text.endswith("work"):
            return mt.call("work")
        return mt.say("They must rake leaves." if "Write the summary" in sent[-1] else "ok")

    ann = motet.Agent("ann", model=mt.FunctionModel(answers, name="ann"))

    @ann.tool
    async def work() -> str:
        await trio.sleep(9)
        return "done"

    async with motet.open_host(agents=[ann]) as host:
        room = (await host.rooms.create("den", RoomPlan(("ann",)), principal=ADA)).name
        said = (
            f"note:\n- [ ] call {SECRET}\n- [ ] water roses\nsee https://a.test/{SECRET}, b/c.md",
            "note:\n- [ ] water roses\n- [ ] rake leaves\nsee b/c.md",
            *["@ann and now? " + "so " * 2_000] * 3,
        )
        for text in said:
            await host.rooms.post(room, text, principal=ADA)
            await trio.sleep(20)
        (session,) = (one.session for one in await host.sessions() if one.agent == "ann")
        await host.compact(session)
        await host.rooms.post(room, "@ann work", principal=ADA)
        await trio.sleep(1)
        assert f"call {SECRET}" in sent[-1]
        await host.rooms.edit_message(room, 1, "- [ ] sleep", principal=ADA)
        await trio.sleep(20)
        assert "'done'" in sent[-1]
        await host.rooms.post(room, "@ann go on", principal=ADA)
        await trio.sleep(20)
        for request in sent[-2:]:
            assert SECRET not in request
            assert all(one in request for one in ("They must rake leaves", "Named:"))
        assert all(one in sent[-1] for one in ("water roses", "b/c.md"))


async def test_a_notice_that_nobody_has_a_name_goes_with_the_message_that_called_it(
    autojump_clock: MockClock,
) -> None:
    """In all tables, and in what a member is told of its own message."""
    sent: list[str] = []

    def answers(request: ModelRequest) -> mt.Step:
        sent.append(repr(request.messages))
        return mt.say(f"hello @{SECRET} and @bob")

    ann = motet.Agent("ann", model=mt.FunctionModel(answers, name="ann"))
    async with motet.open_host(agents=[ann]) as host:
        room = (await host.rooms.create("den", RoomPlan(("ann",)), principal=ADA)).name
        for text in (f"@{SECRET} or @zed is my password", "@ann hello", "@ann go"):
            await host.rooms.post(room, text, principal=ADA)
            await trio.sleep(1)
        assert f"[nobody here is called @{SECRET}, @bob: ann]" in sent[-1]
        await host.rooms.edit_message(room, 1, "@zed is my password", principal=ADA)
        await host.rooms.delete_message(room, 2, principal=ROOT)
        await host.rooms.post(room, "@ann and now?", principal=ADA)
        await trio.sleep(1)
        assert "[nobody here is called [withdrawn]: ann]" in sent[-1]
        assert f"[nobody here is called @{SECRET}, @bob: ann]" in sent[-1], "of a later answer"
        for one in await host.rooms.history(room, principal=ADA):
            if SECRET in one.text:
                await host.rooms.delete_message(room, one.seq, principal=ROOT)
        read = host._parts.readers.read  # pyright: ignore[reportPrivateUsage]
        for (table,) in await read("SELECT name FROM sqlite_schema WHERE type = 'table'"):
            assert SECRET not in repr(await read(f'SELECT * FROM "{table}"')), table
        ((told,),) = await read("SELECT data FROM events WHERE data LIKE '%called @%'")
        assert "nobody here is called @zed: ann" in str(told)


async def test_no_hash_of_a_text_is_left_when_it_was_changed(autojump_clock: MockClock) -> None:
    """A resend under its key is a duplicate all the same; the key is not free for another room."""
    async with motet.open_host(agents=[agent("ann", "yes")]) as host:
        rooms = host.rooms
        den, hall = [
            (await rooms.create(name, RoomPlan(("ann",)), principal=ADA)).name
            for name in ("den", "hall")
        ]
        read = host._parts.readers.read  # pyright: ignore[reportPrivateUsage]
        for key, text in (("one", "pin 4711"), ("two", "pin 4712")):
            said = await rooms.post(den, text, key=key, principal=ADA)
            digest = said_digest(den, "ada", text)
            assert digest in repr(await read("SELECT * FROM idempotency"))
            await rooms.edit_message(den, said.seq, "pin", principal=ADA)
            assert digest not in repr(await read("SELECT * FROM idempotency"))
            again = await rooms.post(den, text, key=key, principal=ADA)
            assert (again.seq, again.duplicate) == (said.seq, True)
            with pytest.raises(KeyConflict):
                await rooms.post(hall, text, key=key, principal=ADA)
