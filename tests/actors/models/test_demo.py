"""The demo model: plain words to tool calls, steps in sequence, parts in parallel."""

from collections.abc import Sequence

import msgspec
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from motet.actors.models.demo import INTRODUCTION, DemoModel, Plan, plan
from motet.protocols.chat import AssistantMessage, Call, ChatMessage, ToolMessage, UserMessage
from motet.protocols.model_answers import assemble
from motet.protocols.models import ModelRequest, TextPart
from motet.protocols.tools import ToolSpec
from tests.actors.models.builders import events_of

NAMES = {
    "list_files": "path",
    "read_file": "path",
    "write_file": "path",
    "shell": "command",
    "http_fetch": "url",
    "get_error_detail": "error_id",
}
TOOLS = [ToolSpec(n, "", {"type": "object", "properties": {a: {}}}) for n, a in NAMES.items()]
ERROR = "Tool 'read_file' failed: no such file\n[Error ID: err_20261121_070501_a1b2c3]\nhint"


def planned(text: str, tools: Sequence[ToolSpec] = TOOLS) -> Plan:
    return plan([UserMessage(text)], tools)


def called(made: Plan) -> list[tuple[str, dict[str, str]]]:
    return [
        (call.name, msgspec.json.decode(call.arguments, type=dict[str, str])) for call in made.calls
    ]


def taken(made: Plan, *results: str) -> list[ChatMessage]:
    """The rows of a plan that was carried out."""
    pairs = zip(made.calls, results, strict=True)
    rows = [ToolMessage(call.id, call.name, result) for call, result in pairs]
    return [AssistantMessage(made.text, made.calls), *rows]


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ("list files", [("list_files", {"path": "."})]),
        ("List the files in src/lib.", [("list_files", {"path": "src/lib"})]),
        ("list files in ..", [("list_files", {"path": ".."})]),
        ("read a.txt", [("read_file", {"path": "a.txt"})]),
        (
            "read a and b, c",
            [("read_file", {"path": name}) for name in ("a", "b", "c")],
        ),
        (
            "write notes.txt: salt and pepper",
            [("write_file", {"path": "notes.txt", "content": "salt and pepper"})],
        ),
        ("run ls -l | wc", [("shell", {"command": "ls -l | wc"})]),
        ("fetch https://example.org/x", [("http_fetch", {"url": "https://example.org/x"})]),
        ("wait 5 seconds", [("shell", {"command": "sleep 5"})]),
        (
            "list files and run date and read a and b",
            [
                ("list_files", {"path": "."}),
                ("shell", {"command": "date"}),
                ("read_file", {"path": "a"}),
                ("read_file", {"path": "b"}),
            ],
        ),
        ("@demo read a", [("read_file", {"path": "a"})]),
    ],
)
def test_plain_words_become_calls(text: str, calls: list[tuple[str, dict[str, str]]]) -> None:
    assert called(planned(text)) == calls


@pytest.mark.parametrize("text", ["hello", "Who are you?", "", "what is the meaning of life"])
def test_it_introduces_itself_when_greeted_or_without_a_rule(text: str) -> None:
    made = planned(text)
    assert made.calls == ()
    assert "I am motet's demo model" in made.text


def test_an_empty_transcript_is_a_greeting() -> None:
    assert plan([], TOOLS) == Plan(INTRODUCTION)


def test_the_name_of_an_argument_is_the_tools_own() -> None:
    own = [ToolSpec("read_file", "", {"properties": {"filename": {}}})]
    assert called(planned("read a", own)) == [("read_file", {"filename": "a"})]


def test_steps_are_taken_one_after_the_other_and_reported_at_the_end() -> None:
    rows: list[ChatMessage] = [
        UserMessage("write a: x and then read a and list files and then run date")
    ]
    first = plan(rows, TOOLS)
    rows += taken(first, "written")
    second = plan(rows, TOOLS)
    rows += taken(second, "x", "a")
    third = plan(rows, TOOLS)
    rows += taken(third, "today")
    last = plan(rows, TOOLS)

    steps = [[call.name for call in made.calls] for made in (first, second, third, last)]
    assert steps == [["write_file"], ["read_file", "list_files"], ["shell"], []]
    assert last.text == "write_file:\nwritten\n\nread_file:\nx\n\nlist_files:\na\n\nshell:\ntoday"
    ids = [call.id for made in (first, second, third) for call in made.calls]
    assert ids == ["call_1", "call_2", "call_3", "call_4"]


def test_a_notice_of_the_host_is_no_request() -> None:
    made = planned("read a")
    rows = [UserMessage("read a"), *taken(made, "x"), UserMessage("[2 requests are left.]")]
    assert plan(rows, TOOLS).text == "read_file:\nx"


def test_an_older_turn_is_over() -> None:
    rows = [UserMessage("read a"), *taken(planned("read a"), "x"), AssistantMessage("read_file: x")]
    assert called(plan([*rows, UserMessage("read b")], TOOLS)) == [("read_file", {"path": "b"})]


def test_a_missing_tool_is_named() -> None:
    made = planned("run date", TOOLS[:2])
    assert made.text == (
        "That needs the tool shell, which I am not offered here: list_files and read_file."
    )
    assert planned("run date", []).text.endswith("not offered here: none.")


def test_a_failure_on_demand_leads_to_its_detail() -> None:
    rows: list[ChatMessage] = [UserMessage("fail and then explain the error")]
    first = plan(rows, TOOLS)
    assert [call.name for call in first.calls] == ["read_file"]
    rows += taken(first, ERROR)
    second = plan(rows, TOOLS)
    assert called(second) == [("get_error_detail", {"error_id": "err_20261121_070501_a1b2c3"})]


def test_without_an_error_there_is_nothing_to_explain() -> None:
    assert planned("detail").text.startswith("There is no error id in this conversation")


def test_a_failed_call_is_reported_as_one() -> None:
    rows: list[ChatMessage] = [
        UserMessage("read a"),
        AssistantMessage("", (Call("c", "read_file"),)),
        ToolMessage("c", "read_file", "no such file", outcome="failed"),
    ]
    assert plan(rows, TOOLS).text == "read_file (failed):\nno such file"


def test_a_long_result_is_shown_in_part() -> None:
    rows = [UserMessage("read a"), *taken(planned("read a"), "line\n" * 1000)]
    text = plan(rows, TOOLS).text
    assert len(text) < 800
    assert text.endswith("… and 4940 more characters")


async def test_it_streams_word_by_word_at_its_pace(autojump_clock: MockClock) -> None:
    asked = ModelRequest("demo", (UserMessage("hello"),))
    events = await events_of(DemoModel(pace=0.5), asked)
    words = [event for event in events if isinstance(event, TextPart)]
    assert len(words) == len(INTRODUCTION.split())
    assert trio.current_time() == pytest.approx(0.5 * len(words))
    response = assemble(events)
    assert response.text == INTRODUCTION
    assert response.usage.output_tokens == -(-len(INTRODUCTION) // 4)
    assert response.usage.input_tokens > 0


async def test_without_a_shell_it_waits_itself_and_shows_it(autojump_clock: MockClock) -> None:
    asked = ModelRequest("demo", (UserMessage("wait 2.5"),))
    response = assemble(await events_of(DemoModel(pace=0), asked))
    assert response.text == ".. I waited 2.5 s."
    assert trio.current_time() == pytest.approx(2.5)


@pytest.mark.parametrize("seconds", ["1000000", "9" * 400, "-1", "1e9"])
def test_a_wait_beyond_a_day_is_not_understood(seconds: str) -> None:
    assert planned(f"wait {seconds}", []).wait == 0


async def test_a_wait_can_be_cancelled(autojump_clock: MockClock) -> None:
    with trio.move_on_after(3) as scope:
        await events_of(DemoModel(), ModelRequest("demo", (UserMessage("wait 1000"),)))
    assert scope.cancelled_caught
    assert trio.current_time() == pytest.approx(3)


async def test_a_call_is_streamed_with_its_arguments() -> None:
    asked = ModelRequest("demo", (UserMessage("read a and b"),), tools=tuple(TOOLS))
    response = assemble(await events_of(DemoModel(pace=0), asked))
    assert [call.arguments for call in response.calls] == ['{"path":"a"}', '{"path":"b"}']
    assert response.stop_reason == "tool_calls"


VERBS = ["read", "write", "run", "fetch", "fail", "wait", "detail", "list"]
words = st.sampled_from(
    [*VERBS, "files", "in", "and", "then", "a.txt", "x:", "3", "hello", ":", "@d"]
)


@given(st.lists(words, max_size=9).map(" ".join), st.lists(st.sampled_from(TOOLS), unique_by=id))
def test_every_request_ends_and_calls_only_offered_tools(text: str, tools: list[ToolSpec]) -> None:
    """Law: each call is of an offered tool and has a fresh id; within as many answers as there
    are steps, and one, there is an answer without calls that says something."""
    rows: list[ChatMessage] = [UserMessage(text)]
    seen: list[str] = []
    for _ in range(text.count("and then") + 2):
        made = plan(rows, tools)
        assert made == plan(rows, tools)
        if not made.calls:
            assert made.text
            break
        assert {call.name for call in made.calls} <= {tool.name for tool in tools}
        seen += [call.id for call in made.calls]
        rows += taken(made, *["ok"] * len(made.calls))
    else:
        raise AssertionError("it went on and on")
    assert len(set(seen)) == len(seen)
