"""AG-UI as its own package reads it: every event is one of its models, in an order it allows."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from tempfile import TemporaryDirectory

import attrs
import httpx2
import pytest
import trio
from ag_ui.core import (
    CustomEvent,
    Event,
    Interrupt,
    ResumeEntry,
    RunAgentInput,
    RunErrorEvent,
    RunFinishedEvent,
    RunFinishedInterruptOutcome,
    TextMessageContentEvent,
    ToolCallResultEvent,
    UserMessage,
)
from pydantic import TypeAdapter

import motet
from motet.actors.storage.tokens import new_token
from motet.protocols.config import TokenConfig
from motet.protocols.sessions import Principal
from tests.scripted import Scripted, Step, call, cut, say

ALICE, BOB = new_token(), new_token()
OF_ALICE = Principal("alice")
EVENTS: TypeAdapter[Event] = TypeAdapter(Event)


@attrs.define(eq=False)
class Served:
    host: motet.Host
    script: Scripted
    http: httpx2.AsyncClient
    paid: list[int]

    async def run(
        self,
        text: str = "hi",
        *,
        run: str = "r1",
        thread: str = "t",
        resume: Sequence[ResumeEntry] | None = None,
        token: str = ALICE,
        path: str = "/v1/ag-ui/payer",
    ) -> list[Event]:
        answer = await self.post(
            text, run=run, thread=thread, resume=resume, token=token, path=path
        )
        assert answer.status_code == 200, answer.text
        assert answer.headers["content-type"].startswith("text/event-stream")
        events = [EVENTS.validate_json(line[6:]) for line in answer.text.split("\n\n") if line]
        check(events)
        return events

    async def post(
        self,
        text: str = "hi",
        *,
        run: str = "r1",
        thread: str = "t",
        resume: Sequence[ResumeEntry] | None = None,
        token: str = ALICE,
        path: str = "/v1/ag-ui/payer",
    ) -> httpx2.Response:
        said = [UserMessage(id="1", content=text)]
        given = RunAgentInput(
            thread_id=thread,
            run_id=run,
            messages=list(said),
            resume=None if resume is None else list(resume),
        )
        return await self.http.post(
            path,
            content=given.model_dump_json(by_alias=True),
            headers={"content-type": "application/json", "authorization": f"Bearer {token}"},
        )


def check(events: Sequence[Event]) -> None:
    """The order that clients insist on: one run, and all that was started ended before its end."""
    types = [event.type.value for event in events]
    assert types[0] == "RUN_STARTED"
    assert types[-1] in ("RUN_FINISHED", "RUN_ERROR")
    assert len({"RUN_FINISHED", "RUN_ERROR"} & set(types[:-1])) == 0
    for kind in ("TEXT_MESSAGE", "TOOL_CALL", "REASONING", "REASONING_MESSAGE"):
        ends = [name for name in types if name in (f"{kind}_START", f"{kind}_END")]
        assert ends == [f"{kind}_START", f"{kind}_END"] * (len(ends) // 2)


def text_of(events: Sequence[Event]) -> str:
    return "".join(event.delta for event in events if isinstance(event, TextMessageContentEvent))


@asynccontextmanager
async def served(*steps: Step, hold: float = 60.0) -> AsyncGenerator[Served]:
    script, paid = Scripted(*steps), list[int]()

    @motet.tool(approval=True)
    async def pay(euros: int) -> str:
        """Pay something."""
        paid.append(euros)
        return f"paid {euros}"

    @motet.tool
    async def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    agent = motet.Agent("payer", model=script, tools=[add, pay])
    config = motet.HostConfig(approvals=motet.ApprovalsConfig(hold=hold))
    tokens = (TokenConfig(token=ALICE, user="alice"), TokenConfig(token=BOB, user="bob"))
    with TemporaryDirectory() as work:
        async with motet.open_host(config=config, agents=[agent], workspace=work) as host:
            url = await host.serve(motet.GatewayConfig(listen="127.0.0.1:0", tokens=tokens))
            async with httpx2.AsyncClient(base_url=url, timeout=20) as http:
                yield Served(host, script, http, paid)


async def test_a_run_has_events_for_its_calls_and_its_usage() -> None:
    async with served(
        call(("add", {"a": 2, "b": 3}), text="Let me see."), say("It ", "is 5.")
    ) as it:
        events = await it.run("2+3?")

        names = [event.type.value for event in events]
        assert [name for name in names if name not in ("CUSTOM", "TEXT_MESSAGE_CONTENT")] == [
            "RUN_STARTED",
            "TEXT_MESSAGE_START",
            "TEXT_MESSAGE_END",
            "TOOL_CALL_START",
            "TOOL_CALL_ARGS",
            "TOOL_CALL_END",
            "TOOL_CALL_RESULT",
            "TEXT_MESSAGE_START",
            "TEXT_MESSAGE_END",
            "RUN_FINISHED",
        ]
        assert text_of(events) == "Let me see.It is 5."
        end = events[-1]
        assert isinstance(end, RunFinishedEvent)
        assert end.usage is not None
        assert end.usage[0].total_tokens == 30


async def test_a_thread_is_a_session_with_its_history() -> None:
    async with served(say("Hello."), say("Ada.")) as it:
        await it.run("I am Ada.")
        await it.run("Who am I?", run="r2")
        assert [m.text for m in it.script.requests[-1].messages] == [
            "I am Ada.",
            "Hello.",
            "Who am I?",
        ]
        refused = await it.post("hi", run="r3", token=BOB)
        assert (refused.status_code, refused.json()["error"]["code"]) == (404, "not_found")


@pytest.mark.parametrize("hold", [0.0, 60.0])
async def test_an_approval_is_an_interrupt_and_its_answer_the_next_request(hold: float) -> None:
    async with served(call(("pay", {"euros": 5})), say("Done."), hold=hold) as it:
        first = interrupts(await it.run("pay"))
        assert [one.tool_call_id for one in first] == ["c0"]
        assert it.paid == []

        allowed = ResumeEntry(
            interrupt_id=first[0].id, status="resolved", payload={"decision": "allow-once"}
        )
        events = await it.run(run="r2", resume=[allowed])
        results = [event.content for event in events if isinstance(event, ToolCallResultEvent)]
        assert (results, text_of(events), it.paid) == (["paid 5"], "Done.", [5])

        again = await it.run(run="r2", resume=[allowed])
        assert [event.type for event in again if event.type.value != "CUSTOM"][-5:] == [
            event.type for event in events if event.type.value != "CUSTOM"
        ][-5:]
        assert (text_of(again), it.paid) == ("Done.", [5])
        denied = allowed.model_copy(update={"payload": {"decision": "deny"}})
        refused = await it.post(run="r3", resume=[denied])
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "already_answered")


def interrupts(events: Sequence[Event]) -> list[Interrupt]:
    end = events[-1]
    assert isinstance(end, RunFinishedEvent)
    assert isinstance(end.outcome, RunFinishedInterruptOutcome)
    return end.outcome.interrupts


async def test_pending_calls_are_one_interrupt_each_and_answered_one_by_one() -> None:
    both = call(("pay", {"euros": 1}), ("pay", {"euros": 2}), ("add", {"a": 1, "b": 1}))
    async with served(both, say("Done.")) as it:
        first, second = interrupts(await it.run("pay twice"))
        yes = ResumeEntry(interrupt_id=first.id, status="resolved", payload={"approved": True})
        (left,) = interrupts(await it.run(run="r2", resume=[yes]))
        assert left.id == second.id
        no = ResumeEntry(interrupt_id=second.id, status="cancelled")
        assert text_of(await it.run(run="r3", resume=[no])) == "Done."
        assert first.metadata is not None
        assert first.metadata["args"] == {"euros": it.paid[0]}
        assert len(it.paid) == 1


@pytest.mark.parametrize("payload", [None, True, "allow-once", {}, {"decision": "yes"}, {"ok": 1}])
async def test_an_unclear_answer_allows_nothing(payload: object) -> None:
    async with served(call(("pay", {"euros": 5})), say("Done.")) as it:
        (asked,) = interrupts(await it.run("pay"))
        entry = ResumeEntry(interrupt_id=asked.id, status="resolved", payload=payload)
        assert (await it.post(run="r2", resume=[entry])).status_code == 400
        assert it.paid == []


async def test_foreign_and_unknown_interrupts_are_not_found() -> None:
    async with served(call(("pay", {"euros": 5})), say("Done.")) as it:
        (asked,) = interrupts(await it.run("pay"))
        yes = ResumeEntry(interrupt_id=asked.id, status="resolved", payload={"approved": True})
        made_up = ResumeEntry(interrupt_id="apr_1", status="resolved", payload={"approved": True})
        assert (await it.post(run="r2", resume=[yes], token=BOB)).status_code == 404
        assert (await it.post(run="r2", resume=[yes], thread="other")).status_code == 404
        assert (await it.post(run="r2", resume=[made_up])).status_code == 404
        assert it.paid == []


async def test_a_second_run_in_a_busy_thread_is_refused() -> None:
    async with served(None) as it, trio.open_nursery() as nursery:
        nursery.start_soon(it.post)
        await it.script.asked.wait()
        refused = await it.post(run="r2")
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "session_busy")
        nursery.cancel_scope.cancel()


async def test_closing_the_connection_stops_the_run() -> None:
    async with served(None) as it:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(it.post)
            await it.script.asked.wait()
            nursery.cancel_scope.cancel()
        (run,) = await it.host.runs(principal=OF_ALICE)
        ended = await it.host.wait_run(run.run_id, timeout=5, principal=OF_ALICE)
        assert ended.status == "cancelled"


async def test_a_repeated_run_id_gets_the_same_events_and_no_second_run() -> None:
    async with served(say("Once.")) as it:
        assert text_of(await it.run()) == text_of(await it.run()) == "Once."
        assert len(it.script.requests) == 1
        assert (await it.post("something else")).status_code == 409


async def test_withdrawn_text_is_reported() -> None:
    async with served(cut("Half an ans"), say("An answer.")) as it:
        events = await it.run()
        assert text_of(events).endswith("An answer.")
        assert any(isinstance(e, CustomEvent) and e.name == "text.withdrawn" for e in events)


async def test_a_run_that_fails_ends_with_an_error_and_its_text() -> None:
    async with served() as it:
        end = (await it.run())[-1]
        assert isinstance(end, RunErrorEvent)
        assert end.message


async def test_a_command_is_answered_without_a_run() -> None:
    async with served() as it:
        assert "/stop" in text_of(await it.run("/help"))
        assert await it.host.runs(principal=OF_ALICE) == ()


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{}", 400),
        (b"[", 400),
        (b'{"threadId": "", "runId": "r", "messages": []}', 400),
        (b'{"threadId": "t", "runId": "r", "messages": []}', 400),
        (b'{"threadId": "t", "runId": "r", "messages": [{"role": "assistant"}]}', 400),
        (b" " * 1_048_577, 413),
    ],
)
async def test_a_malformed_request_is_refused_with_a_reason(body: bytes, status: int) -> None:
    async with served() as it:
        headers = {"content-type": "application/json", "authorization": f"Bearer {ALICE}"}
        answer = await it.http.post("/v1/ag-ui", content=body, headers=headers)
        assert answer.status_code == status
        assert answer.json()["error"]["message"]
