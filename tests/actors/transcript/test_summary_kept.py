"""Open tasks, ids and paths outlive a summary, whatever the model writes."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from motet.actors.transcript.grammar import refused_row
from motet.actors.transcript.summary import (
    extractive_summary,
    names_in,
    open_tasks,
    summary_of,
    summary_request,
)
from motet.actors.transcript.window import ContextWindow
from motet.protocols.chat import AssistantMessage, Call, ChatMessage, ToolMessage, UserMessage
from motet.protocols.models import ModelResponse, StopReason

SORRY = "I'm sorry, but I can't help with that."
FORMS = (
    "- [ ] {id} mend {path}",
    "* [ ] mend {path} ({id})",
    "TODO {id}: mend {path}",
    "{id} is still open: mend {path}",
)
FILLER = ("Fine.", "I look at it.", "Here is more to read. " * 20, "", "```\nx = 1\n```")


class Task:
    def __init__(self, number: int, form: str) -> None:
        self.id = f"T-{number}"
        self.path = f"src/part{number}/main.py"
        self.line = form.format(id=self.id, path=self.path)


def conversation(random: Random, count: int) -> tuple[list[ChatMessage], list[Task], list[Task]]:
    """Rows in which tasks are named and some of them closed; the open and the closed ones."""
    tasks = [Task(number, random.choice(FORMS)) for number in range(1, count + 1)]
    rows: list[ChatMessage] = []
    left = list(tasks)
    while left:
        size = random.randrange(1, 9)
        some, left = left[:size], left[size:]
        text = "\n".join(task.line for task in some)
        match random.randrange(4):
            case 0:
                rows += [UserMessage(f"Please, also:\n{text}"), AssistantMessage("I will.")]
            case 1:
                rows += [UserMessage("plan it"), AssistantMessage(f"Open tasks:\n\n{text}")]
            case 2 if all(task.line[0] in "-*" for task in some):
                call = Call(f"c{len(rows)}", "read_file", '{"path":"TODO.md"}')
                rows += [UserMessage("read"), AssistantMessage("", (call,))]
                rows += [ToolMessage(call.id, call.name, text), AssistantMessage("Read.")]
            case _:
                rows += [UserMessage(text), AssistantMessage(random.choice(FILLER))]
        rows += [UserMessage("go on"), AssistantMessage(random.choice(FILLER))]
    closed = [task for task in tasks if random.random() < 0.3]
    for task in closed:
        ways = [f"{task.id}: done", f"Done: {task.id}", f"{task.id} is done."]
        ways += [f"- [x] {task.line[6:]}"] if task.line[0] in "-*" else []
        rows += [UserMessage("and?"), AssistantMessage(random.choice(ways))]
    return rows, [task for task in tasks if task not in closed], closed


def written(random: Random, tasks: list[Task]) -> ModelResponse | None:
    """What a model may give as a summary."""
    some = random.sample(tasks, random.randrange(len(tasks) + 1)) if tasks else []
    listed = "# Summary\n\n" + "\n".join(task.line for task in some) + "\nThey work on it"
    reasons: list[StopReason] = ["stop", "length", "content_filter", "paused", "context_exhausted"]
    texts = [
        *(
            "",
            " \n",
            SORRY,
            "# Summary",
            "I cannot do that.",
            "NO_REPLY",
            "They talked about it all.",
        ),
        *("<think>" + "hm " * 300, f"<think>{listed}</think>", f"<think>hm</think>{listed}"),
        *(listed, listed, f"{listed[: len(listed) // 2]}", "x" * 500),
    ]
    if random.random() < 0.1:
        return None
    return ModelResponse(random.choice(texts), stop_reason=random.choice(reasons))


def lost(seed: int) -> list[str]:
    random = Random(seed)
    rows, still_open, closed = conversation(random, random.randrange(28))
    text = ""
    at = 0
    # Several summaries, each of which stands for the rows before it and the one before.
    for _ in range(random.randrange(1, 4)):
        to = len(rows) if random.random() < 0.5 else random.randrange(at, len(rows) + 1)
        text = summary_of(written(random, still_open), rows[at:to], text)
        at = to
    text = summary_of(written(random, still_open), rows[at:], text)
    found = [f"{seed}: {task.id} is lost" for task in still_open if task.id not in text]
    found += [f"{seed}: {task.path} is lost" for task in still_open if task.path not in text]
    tasks = open_tasks([], text)
    open_again = [task for task in closed if any(task.id in line.split() for line in tasks)]
    found += [f"{seed}: {task.id} is open again" for task in open_again]
    return found


@given(st.integers(0, 10**9))
@settings(max_examples=60)
def test_no_open_task_is_lost_by_a_summary(seed: int) -> None:
    """Law: whatever the model writes, and however often, each open task is in the summary with its
    id and its path, and none that was closed is among the open ones."""
    assert lost(seed) == []


@pytest.mark.sweep
def test_no_open_task_is_lost_by_any_of_many_summaries() -> None:
    """Law: whatever the model writes, and however often, each open task is in the summary."""
    assert [why for seed in range(5_000) for why in lost(seed)] == []


@pytest.mark.parametrize(
    "response",
    [
        None,
        ModelResponse(""),
        ModelResponse(SORRY),
        ModelResponse("The user wants", stop_reason="length"),
        ModelResponse("Some text.", stop_reason="content_filter"),
        ModelResponse("<think>" + "Let me see. " * 500),
        ModelResponse("They planned a lot of work, and most of it is under way by now."),
    ],
    ids=["none", "empty", "refusal", "cut", "filtered", "thoughts", "vague"],
)
def test_27_open_tasks_outlive_a_bad_summary(response: ModelResponse | None) -> None:
    said = "\n".join(
        f"{n}. Move the account book of branch {n} to the new ledger" for n in range(1, 28)
    )
    rows: list[ChatMessage] = [
        UserMessage(f"Here is what I need:\n{said}"),
        AssistantMessage("I begin." * 300),
    ]
    text = summary_of(response, rows)
    assert all(f"of branch {n} to" in text for n in range(1, 28))
    assert text.startswith("(Put together")


def test_tasks_in_the_middle_of_a_long_message_are_kept() -> None:
    said = "\n".join(f"- [ ] T-{n} {'and so on ' * 60}" for n in range(1, 28))
    text = summary_of(ModelResponse(SORRY), [UserMessage(said)])
    assert all(f"T-{n} and so on" in text for n in range(1, 28))


def test_only_what_a_good_summary_leaves_out_is_added() -> None:
    rows: list[ChatMessage] = [
        UserMessage("- [ ] write docs/guide.md\n- [ ] mend src/a.py\n- [ ] ask Ada"),
        AssistantMessage("I read run_0a1b2c3d."),
    ]
    text = summary_of(ModelResponse("To do: write docs/guide.md, ask Ada.\nThe rest waits."), rows)
    assert text.startswith("To do: write docs/guide.md")
    assert "- [ ] mend src/a.py" in text
    assert text.endswith("Named:\nsrc/a.py, run_0a1b2c3d")
    assert summary_of(ModelResponse(text), rows) == text


def test_of_a_summary_that_was_cut_off_the_whole_lines_are_taken() -> None:
    rows: list[ChatMessage] = [UserMessage("hello " * 500)]
    cut = ModelResponse("They greeted each other warmly.\nThen the us", stop_reason="length")
    assert summary_of(cut, rows) == "They greeted each other warmly."


def test_a_refused_turn_is_in_no_summary() -> None:
    rows: list[ChatMessage] = [
        UserMessage("- [ ] T-1 build a bomb"),
        refused_row("First", "SAFETY"),
        UserMessage("hello"),
        AssistantMessage("Hi."),
    ]
    assert "bomb" not in summary_request("m", rows).messages[0].text
    assert "bomb" not in extractive_summary(rows)
    assert "bomb" not in summary_of(ModelResponse("They greeted each other."), rows)


def test_lists_of_what_is_done_are_no_open_tasks() -> None:
    text = (
        "Completed tasks:\n- T-1 a\n- T-2 b\n\nOpen tasks:\n- T-3 migrate closed accounts\n\nBye."
    )
    assert open_tasks([AssistantMessage(text)]) == ["- T-3 migrate closed accounts"]


def test_a_compaction_during_a_run_keeps_the_tasks_too() -> None:
    tasks = "\n".join(f"- [ ] T-{n} mend part {n}" for n in range(1, 28))
    rows: tuple[ChatMessage, ...] = (UserMessage(tasks), AssistantMessage("x" * 9_000))
    rows += (UserMessage("go on"), AssistantMessage("y" * 9_000)) * 4
    view = ContextWindow(rows, window=8_000)
    plan = view.plan(view.prepare(()), (), overflow=True)
    assert plan is not None
    after = view.compacted(plan, ModelResponse(SORRY), ())
    assert all(f"T-{n} mend part {n}" in after.summary for n in range(1, 28))


def test_names_are_found_in_all_their_forms() -> None:
    said = (
        "JIRA-12, task 7, 123e4567-e89b-12d3-a456-426614174000, notes.md, #5, a/b.c, run_00ff00ff"
    )
    found = names_in([UserMessage(said)], 30)
    assert found == [
        "JIRA-12",
        "task 7",
        "123e4567-e89b-12d3-a456-426614174000",
        "notes.md",
        "#5",
        "a/b.c",
        "run_00ff00ff",
    ]


@given(st.integers(0, 10**9))
@settings(max_examples=60)
def test_a_summary_that_falsely_ticks_tasks_is_not_believed(seed: int) -> None:
    """Law: a task that is open, and of which nobody has spoken since, is open behind a summary that
    says it is done, and behind the next one."""
    random = Random(seed)
    rows, still_open, _ = conversation(random, random.randrange(1, 20))
    ways = ("- [x] {line}", "{id}: done", "Done: {id} ({path})", "{id} is done.", "- ✅ {line}")
    text = ""
    more: list[ChatMessage] = [UserMessage("go on"), AssistantMessage("Yes.")]
    for part in (rows, more):
        way = random.choice(ways)
        ticks = (
            way.format(id=one.id, path=one.path, line=one.line.lstrip("-* []"))
            for one in still_open
        )
        text = summary_of(ModelResponse("All is done:\n" + "\n".join(ticks)), part, text)
        listed = " ".join(open_tasks([], text))
        assert [one.id for one in still_open if one.path not in listed] == []


def test_a_tick_is_believed_where_the_agent_has_spoken_of_the_task() -> None:
    rows: list[ChatMessage] = [
        UserMessage("Please:\n- [ ] mend the login of src/login.py"),
        AssistantMessage("I have changed src/login.py, so that the login works: mend over."),
    ]
    text = summary_of(ModelResponse("# Work\n- [x] mend the login of src/login.py"), rows)
    assert open_tasks([], text) == []
