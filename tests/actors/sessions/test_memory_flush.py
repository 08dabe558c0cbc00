"""The memory flush: the files it can reach, when it counts as done, and that it always ends."""

from __future__ import annotations

import os
from datetime import date
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from motet.actors.hooks.chain import HooksClient
from motet.actors.hooks.registry import HookSet
from motet.actors.sessions.memory_flush import LARGEST, MemoryFlush, memory_executor, memory_tools
from motet.actors.tools.context import Context
from motet.actors.transcript.grammar import violations
from motet.actors.transcript.summary import BEGINNING
from motet.protocols.chat import AssistantMessage, Call, UserMessage
from motet.protocols.hooks import Allow, BeforeTool, Decision, Deny
from motet.protocols.models import ModelRequest, ModelResponse
from motet.protocols.sessions import LOCAL, SessionContext
from motet.protocols.storage import StorageUnavailable
from motet.protocols.tools import CallResult, ToolFailure
from tests.actors.runs.histories import rows_of
from tests.actors.tools.stage import on_stage

TODAY = date(2026, 3, 16)
NOTE = "memory/2026-03-16.md"


async def test_no_call_of_a_refused_answer_is_run(tmp_path: Path) -> None:
    call = Call("c1", "write_file", '{"path": "x", "content": "y"}')
    fake = Fake(tmp_path, ModelResponse("no", calls=(call,), stop_reason="content_filter"))
    refused = (UserMessage("bad"), AssistantMessage("[Refused]", note="refused"))
    await fake.flush(SessionContext(rows=(*refused, *rows_of("ua"))))
    assert len(fake.requests) == 1
    assert "bad" not in str(fake.requests[0].messages)
    assert list(tmp_path.iterdir()) == []


class Fake:
    """A model that answers by a script, and an executor without gates."""

    def __init__(self, workspace: Path, *answers: ModelResponse | Exception | None) -> None:
        self.requests: list[ModelRequest] = []
        self.answers = list(answers)
        self.flush = MemoryFlush(
            "m", self.ask, self.execute, lambda: TODAY, self.begin, "You are Ada."
        )
        self.begun: list[bool | Exception] = []
        self.context = Context[object](
            deps=None,
            run_id="r",
            session="s",
            agent="a",
            principal=LOCAL,
            call_id="c",
            workspace=workspace,
        )

    async def ask(self, request: ModelRequest) -> ModelResponse:
        self.requests.append(request)
        answer = self.answers.pop(0) if self.answers else ModelResponse("NO_REPLY")
        if answer is None:
            await trio.sleep_forever()
        if isinstance(answer, Exception):
            raise answer
        assert answer is not None
        return answer

    async def begin(self, _: SessionContext) -> bool:
        """Whether it may write, or the error of the storage."""
        answer = self.begun.pop(0) if self.begun else True
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def execute(self, call: Call) -> CallResult:
        tools = {tool.name: tool for tool in memory_tools()}
        try:
            tool = tools[call.name]
            text = await tool.run(self.context, tool.accepts.parse(call.arguments))
        except ToolFailure as failure:
            return CallResult(call.id, call.name, str(failure), "failed")
        return CallResult(call.id, call.name, str(text))


def write(path: str, content: str) -> ModelResponse:
    return ModelResponse(
        calls=(Call("c1", "write_file", f'{{"path":"{path}","content":"{content}"}}'),)
    )


def context(letters: str = "ua" * 8, summary: str = "") -> SessionContext:
    return SessionContext(1, summary, rows_of(letters))


async def test_notes_are_appended_to_the_file_of_the_day(tmp_path: Path) -> None:
    (tmp_path / "memory").mkdir()
    (tmp_path / NOTE).write_text("- likes tea")
    fake = Fake(tmp_path, write(NOTE, "- has a cat"))
    assert await fake.flush(context())
    assert (tmp_path / NOTE).read_text() == "- likes tea\n- has a cat\n"


async def test_it_sees_the_summary_and_the_latest_rows(tmp_path: Path) -> None:
    fake = Fake(tmp_path)
    assert await fake.flush(context("ua" * 8, "what was before"))
    (request,) = fake.requests
    assert violations(request.messages) == ()
    assert isinstance(request.messages[0], UserMessage)
    assert "what was before" in request.messages[0].text
    assert request.messages[2:-1] == rows_of("ua" * 8)[-10:]
    assert request.system.startswith("You are Ada.")
    assert NOTE in request.system
    assert [tool.name for tool in request.tools] == ["read_file", "write_file"]


@pytest.mark.parametrize("letters", ["u" + "ctt" * 6 + "a", "ua" * 3, "u" + "ct" * 9])
async def test_wherever_the_latest_rows_begin_the_request_is_valid(
    letters: str, tmp_path: Path
) -> None:
    fake = Fake(tmp_path)
    assert await fake.flush(context(letters))
    messages = fake.requests[0].messages
    assert violations(messages) == ()
    assert messages[0].text.startswith(BEGINNING)


async def test_nothing_to_remember_counts_as_done(tmp_path: Path) -> None:
    assert await Fake(tmp_path, ModelResponse("NO_REPLY")).flush(context())
    assert not (tmp_path / "memory").exists()


@pytest.mark.parametrize("answer", [False, StorageUnavailable("the disk is full")])
async def test_nothing_is_written_before_it_is_on_record(
    answer: bool | Exception, tmp_path: Path
) -> None:
    fake = Fake(tmp_path, write(NOTE, "likes tea"))
    fake.begun = [answer]
    assert not await fake.flush(context())
    assert list(tmp_path.iterdir()) == []


async def test_it_is_put_on_record_once_however_much_it_writes(tmp_path: Path) -> None:
    fake = Fake(tmp_path, write(NOTE, "likes tea"), write(NOTE, "likes milk"))
    fake.begun = [True, False]
    assert await fake.flush(context())
    assert (tmp_path / NOTE).read_text() == "likes tea\nlikes milk\n"
    assert fake.begun == [False]


async def test_a_model_that_fails_leaves_it_undone(tmp_path: Path) -> None:
    assert not await Fake(tmp_path, RuntimeError("no model")).flush(context())


async def test_it_ends_after_90_seconds(tmp_path: Path, autojump_clock: MockClock) -> None:
    started = trio.current_time()
    assert not await Fake(tmp_path, None).flush(context())
    assert trio.current_time() - started == 90


async def test_it_ends_after_five_requests_the_last_without_tools(tmp_path: Path) -> None:
    fake = Fake(tmp_path, *[write("notes.md", "x")] * 9)
    assert not await fake.flush(context()), "nothing was written"
    assert [len(request.tools) for request in fake.requests] == [2, 2, 2, 2, 0]

    fake = Fake(tmp_path, *[write(NOTE, "x")] * 9)
    assert await fake.flush(context()), "something was written"


@pytest.mark.parametrize(
    "path",
    ["notes.md", "memory", "memory/../notes.md", "/etc/passwd", "memory/out.md", "x/memory/a"],
)
async def test_its_tools_reach_the_memory_folder_only(path: str, tmp_path: Path) -> None:
    (tmp_path / "memory").mkdir()
    (tmp_path / "notes.md").write_text("mine")
    os.symlink(tmp_path / "notes.md", tmp_path / "memory" / "out.md")
    fake = Fake(tmp_path)
    for name, more in (("read_file", ""), ("write_file", ',"content":"x"')):
        result = await fake.execute(Call("c", name, f'{{"path":"{path}"{more}}}'))
        assert result.outcome == "failed"
        assert "memory folder" in result.text or "leads out" in result.text
    assert (tmp_path / "notes.md").read_text() == "mine"


async def test_a_file_does_not_grow_without_end(tmp_path: Path) -> None:
    (tmp_path / "memory").mkdir()
    (tmp_path / NOTE).write_text("x" * LARGEST)
    result = await Fake(tmp_path).execute(write(NOTE, "more").calls[0])
    assert result.outcome == "failed"
    assert "use another file" in result.text


async def test_the_gates_of_its_calls_are_asked(tmp_path: Path) -> None:
    seen: list[str] = []

    async def decide(event: BeforeTool) -> Decision:
        seen.append(f"{event.agent} {event.name}")
        return Deny("no writing") if event.name == "write_file" else Allow()

    hooks = HookSet()
    hooks.add("before_tool", decide)
    async with on_stage(hooks=hooks) as stage:
        client = HooksClient(hooks, stage.hooks)
        execute = memory_executor(client, stage.memory, Fake(tmp_path).context)
        denied = await execute(write(NOTE, "x").calls[0])
        missing = await execute(Call("c2", "read_file", f'{{"path":"{NOTE}"}}'))
        foreign = await execute(Call("c3", "shell", "{}"))
    assert (denied.outcome, denied.text) == ("denied", "Permission denied: no writing")
    assert not (tmp_path / "memory").exists()
    assert missing.outcome == "failed"
    assert "There is no tool 'shell'" in foreign.text
    assert seen == ["a write_file", "a read_file"]
