"""A request with a key is carried out once; after a failure or a cancellation, once more."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path

import apsw
import msgspec
import pytest
import trio
from msgspec.structs import replace
from trio.testing import MockClock, wait_all_tasks_blocked

import motet
from motet.actors.gateway.idempotency import KEPT_FOR, Idempotency
from motet.client.client import Client, connect
from motet.client.requests import RequestFailed
from motet.protocols.chat import JsonObject, ToolMessage
from motet.protocols.commands import COMMANDS
from motet.protocols.gateway import CommandAnswer
from motet.protocols.models import ModelRequest
from motet.protocols.rooms import RoomPlan
from motet.protocols.sessions import KeyConflict
from motet.testing import Answer, FunctionModel, call, say
from tests.scripted import Scripted

WHOSE = ("alice", "command", "k")


class Work:
    """Counts how often it is done; waits for ``leave``, and fails ``failures`` times."""

    def __init__(self, failures: int = 0) -> None:
        self.done = 0
        self.failures = failures
        self.leave = trio.Event()

    async def __call__(self) -> CommandAnswer:
        self.done += 1
        number = self.done
        await self.leave.wait()
        if number <= self.failures:
            raise OSError("no")
        return CommandAnswer("stop", f"answer {number}")


async def test_a_resend_gets_the_first_answer_and_another_body_is_a_conflict() -> None:
    known, work = Idempotency(lambda: 0.0), Work()
    work.leave.set()
    assert await known.once(WHOSE, "a", CommandAnswer, work) == (
        CommandAnswer("stop", "answer 1"),
        False,
    )
    assert await known.once(WHOSE, "a", CommandAnswer, work) == (
        CommandAnswer("stop", "answer 1"),
        True,
    )
    with pytest.raises(KeyConflict, match="'k'"):
        await known.once(WHOSE, "b", CommandAnswer, work)
    answer, again = await known.once(("bob", "command", "k"), "b", CommandAnswer, work)
    assert (answer.text, again) == ("answer 2", False)


@pytest.mark.parametrize("end", ["answer", "failure", "cancel"])
async def test_concurrent_resends_run_once_and_one_replaces_a_request_that_failed(
    autojump_clock: MockClock, end: str
) -> None:
    known, work = Idempotency(lambda: 0.0), Work(failures=int(end == "failure"))
    answers: list[str] = []

    async def ask(scope: trio.CancelScope) -> None:
        with scope:
            try:
                answer, _ = await known.once(WHOSE, "a", CommandAnswer, work)
            except OSError:
                answers.append("failed")
            else:
                answers.append(answer.text)

    first = trio.CancelScope()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask, first)
        await wait_all_tasks_blocked()
        for _ in range(3):
            nursery.start_soon(ask, trio.CancelScope())
        await wait_all_tasks_blocked()
        assert work.done == 1
        if end == "cancel":
            first.cancel()
            await wait_all_tasks_blocked()
        work.leave.set()
    expected = {
        "answer": ["answer 1"] * 4,
        "failure": ["answer 2"] * 3 + ["failed"],
        "cancel": ["answer 2"] * 3,
    }
    assert sorted(answers) == expected[end]
    del autojump_clock


async def test_old_and_surplus_answers_are_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("motet.actors.gateway.idempotency.MOST", 20)
    now = [0.0]
    known, work = Idempotency(lambda: now[0]), Work()
    work.leave.set()
    for number in range(25):
        await known.once(("alice", "command", str(number)), "a", CommandAnswer, work)
    assert len(known) == 20
    now[0] = KEPT_FOR + 1
    _, again = await known.once(("alice", "command", "24"), "a", CommandAnswer, work)
    assert not again
    assert len(known) == 1


def kept(state: Path) -> int:
    """How many answers kill -9 would leave."""
    with closing(apsw.Connection(str(state / "motet.db"))) as db:
        ((found,),) = db.execute("SELECT count(answer) FROM idempotency")  # pyright: ignore[reportUnknownMemberType]  # its stub
        return int(str(found))


async def test_answers_are_stored_and_known_to_the_next_host(tmp_path: Path) -> None:
    stop: dict[str, object] = {"session": "s", "key": "k", "grace_ms": 1_000}

    @asynccontextmanager
    async def served() -> AsyncGenerator[tuple[motet.Host, Client]]:
        agent = motet.Agent("helper", model=Scripted(None))
        async with motet.open_host(tmp_path, agents=[agent]) as host:
            url = await host.serve(motet.GatewayConfig(listen="127.0.0.1:0"))
            async with connect(url) as client:
                await client.send("s", "hi", agent="helper")
                yield host, client

    async with served() as (_, client):
        first = await client.call("runs.stop", **stop)
        asked = await client.send("s", "/queue steer", key="c")
        with trio.fail_after(5):
            while kept(tmp_path) != 2:
                await trio.sleep(0.01)
    async with served() as (host, client):
        again = await client.call("runs.stop", **stop)
        assert again == {**msgspec.convert(first, JsonObject), "status": "duplicate"}
        goes_on, stopped = await host.runs(session="s")
        assert goes_on.status in ("queued", "running")
        assert stopped.status == "cancelled"
        assert await client.send("s", "/queue steer", key="c") == replace(asked, status="duplicate")
        with pytest.raises(RequestFailed, match="used for something else"):
            await client.call("runs.stop", **{**stop, "session": "other"})
        await host.delete("s")
        assert kept(tmp_path) == 0  # they may quote it


WORD = "tangerine"


async def test_no_answer_that_is_kept_quotes_a_withdrawn_message(tmp_path: Path) -> None:
    """Law: once a message is withdrawn, no row has its text, whatever was asked meanwhile, and by
    whom; a resend of the question gets what there is then."""

    def pays(request: ModelRequest) -> Answer:
        last = request.messages[-1]
        return say("well") if isinstance(last, ToolMessage) else call("pay", to=last.text)

    helper = motet.Agent("helper", model=FunctionModel(pays, name="helper"))

    @helper.tool(effects="write", approval=True)
    def pay(to: str) -> str:
        return to

    plan = RoomPlan(("helper",))
    questions = [
        f"/{name}" for name in COMMANDS if name not in ("leave", "archive", "stop", "stopall")
    ]
    questions += ["/approve deny", "/approve apr_1 yes", "/resolve retry", f"/search {WORD}"]
    async with motet.open_host(tmp_path, agents=[helper]) as host:
        url = await host.serve(motet.GatewayConfig(listen="127.0.0.1:0"))
        async with connect(url) as client:
            room = (await client.create_room("den", plan)).name
            for _ in range(2):
                await client.post(room, f"@helper pay {WORD}")
            with trio.fail_after(10):
                while not (asked := await client.approvals(room=room)):
                    await trio.sleep(0.01)
            quoted = 0
            for number, text in enumerate(questions):
                with suppress(RequestFailed):
                    quoted += WORD in str(await client.post(room, text, key=f"q{number}"))
            assert quoted >= 2
            denied: dict[str, object] = {"id": asked[0].id, "decision": "deny", "key": "d"}
            assert WORD in str(await client.call("approvals.resolve", **denied))
            for seq in (1, 2):
                await client.delete(room, seq)
            again = msgspec.convert(await client.call("approvals.resolve", **denied), JsonObject)
            assert again["status"] == "duplicate"
            assert WORD not in str(again)
            for number, text in enumerate(questions):
                with suppress(RequestFailed):
                    assert WORD not in str(await client.post(room, text, key=f"q{number}")) or (
                        WORD in text
                    )
    with closing(apsw.Connection(str(tmp_path / "motet.db"))) as db:
        rows = [*db.execute("SELECT key, answer FROM idempotency")]  # pyright: ignore[reportUnknownMemberType]  # its stub
    assert [key for key, answer in rows if WORD in str(answer)] == []
    assert len(rows) > len(COMMANDS) // 2
