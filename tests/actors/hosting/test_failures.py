"""Answers, mistakes and refusals are no faults of a tool: no run ends by them, no tool is taken."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

import motet
from motet.actors.storage.error_spool import ErrorSpool
from motet.actors.telemetry.subscription import subscribe
from motet.protocols import events
from motet.protocols.chat import FailureClass, ToolMessage
from motet.protocols.config import HostConfig, ShellConfig, ToolsConfig
from motet.protocols.errors import NotFound, StoredError
from motet.protocols.events import ToolResult, event_name
from motet.protocols.queueing import QueueConfig
from motet.protocols.storage import StorageError
from tests.actors.tools.mcp.stage import faulty
from tests.scripted import Scripted, Step, call, say

UNSAFE = HostConfig(tools=ToolsConfig(shell=ShellConfig(mode="unsafe")))
ROOT = motet.Principal("root", "admin")
GROUP = "agent:a:tcp:group:den"
TEST = f"{sys.executable} -m unittest -q test_sum 2>&1"


def results(result: motet.RunResult[object]) -> list[ToolMessage]:
    return [row for row in result.rows if isinstance(row, ToolMessage)]


def offered(model: Scripted) -> list[bool]:
    return ["tested" in [tool.name for tool in request.tools] for request in model.requests]


async def test_a_test_driven_loop_with_ten_failing_runs_completes(tmp_path: Path) -> None:
    """With the real shell and a real test, which an edit repairs in the end."""
    (tmp_path / "test_sum.py").write_text(
        "import unittest\nfrom code_of import total\n\n"
        "class Sum(unittest.TestCase):\n"
        "    def test_total(self):\n        self.assertEqual(total([1, 2]), 3)\n"
    )
    steps: list[Step] = []
    for number in range(10):
        wrong = f"def total(numbers):\n    return {number + 10}\n"
        steps += [call(("write_file", {"path": "code_of.py", "content": wrong}))]
        steps += [call(("shell", {"command": TEST}))]
    right = "def total(numbers):\n    return sum(numbers)\n"
    steps += [call(("write_file", {"path": "code_of.py", "content": right}))]
    steps += [call(("shell", {"command": TEST})), say("it passes")]
    model = Scripted(*steps)
    agent = motet.Agent(
        "a", model=model, tools=["group:fs", "group:shell"], limits=motet.Limits(turns=30)
    )
    async with motet.open_host(config=UNSAFE, workspace=tmp_path) as host:
        async with host.stream(agent, "make it pass", session="s") as run:
            told = [event async for event in run if isinstance(event, ToolResult)]
        result = run.result
        stored = await host.errors()
    runs = [row for row in results(result) if row.name == "shell"]
    assert (result.status, result.text) == ("completed", "it passes")
    assert [row.failure for row in runs] == ["negative"] * 10 + [""]
    assert all("AssertionError" in row.text and "!= 3" in row.text for row in runs[:10])
    assert "OK" in runs[10].text
    assert (result.errors, stored) == ((), ())
    assert [event.failure for event in told if not event.ok] == ["negative"] * 10
    assert all("shell" in [tool.name for tool in request.tools] for request in model.requests)


async def test_a_hundred_users_who_miss_files_leave_the_tool_to_all() -> None:
    missing = [call(("read_file", {"path": f"missing-{n}.txt"})) for n in range(5)]
    model = Scripted(*[*missing, say("there is no such file")] * 101)
    agent = motet.Agent("a", model=model, tools=["group:fs"])
    async with motet.open_host() as host:
        for number in range(101):
            user = motet.Principal(f"user{number}")
            result = await host.run(agent, "read", session=f"s{number}", principal=user)
            assert result.status == "completed"
        assert await host.errors() == ()
    for request in model.requests:
        assert "read_file" in [tool.name for tool in request.tools]
    assert "no 'missing-4.txt' in folder '.'" in str(model.requests[-1].messages)


class StatusError(Exception):
    """As a client library raises it."""

    status_code = 404


RAISED: dict[str, tuple[Callable[[], Exception], FailureClass]] = {
    "missing file": (lambda: FileNotFoundError(2, "No such file", "x"), "negative"),
    "missing file, in words": (lambda: FileNotFoundError("no x"), "negative"),
    "existing file": (lambda: FileExistsError("x is there"), "negative"),
    "not found": (lambda: NotFound("no session 'x'"), "negative"),
    "status": (lambda: StatusError("404 for /x"), "negative"),
    "exit code": (lambda: subprocess.CalledProcessError(1, ["grep", "x"]), "negative"),
    "said so": (lambda: motet.ToolNegative("no match"), "negative"),
    "kind": (lambda: motet.ToolFailure("no order 7", kind="not_found"), "negative"),
    "retry": (lambda: motet.ModelRetry("give a date"), "argument"),
    "validation": (lambda: motet.ToolFailure("no date", kind="validation"), "argument"),
    "denied": (lambda: motet.ToolDenied("not yours"), "refusal"),
    "permission": (lambda: PermissionError(13, "Permission denied", "x"), "refusal"),
    "error": (lambda: RuntimeError("kaboom"), "fault"),
    "value": (lambda: ValueError("not a number"), "fault"),
    "key": (lambda: KeyError("x"), "fault"),
    "index": (lambda: IndexError("list index out of range"), "fault"),
    "lookup": (lambda: LookupError("x not found"), "fault"),
    "words": (lambda: RuntimeError("user not found"), "fault"),
    "network": (lambda: ConnectionError("refused"), "fault"),
    "time-out": (lambda: TimeoutError("late"), "fault"),
    "storage": (lambda: StorageError("the disk is full"), "infrastructure"),
    "disk": (lambda: OSError(28, "No space left on device"), "infrastructure"),
}


@pytest.mark.parametrize("name", RAISED)
async def test_what_a_tool_raises_counts_where_the_table_says(name: str) -> None:
    """Ten times by each of three users: nobody loses the tool, or one does, or all do."""
    raised, failure = RAISED[name]
    users = [motet.Principal(name) for name in ("ann", "bob", "cyd")]
    limits = motet.Limits(tool_errors=None, total_errors=None)
    model = Scripted()
    agent = motet.Agent("a", model=model, limits=limits)

    @agent.tool
    def tested(n: int) -> str:
        """Fail."""
        raise raised()

    async with motet.open_host() as host:
        # Ten runs, so that no loop is seen in one of them.
        for n in range(10):
            model.then(call(("tested", {"n": n})), say("well"))
            result = await host.run(agent, "go", session=f"s{n}", principal=users[0])
            (row,) = results(result)
            if n < 5:
                assert row.failure == failure
        model.requests.clear()
        for user in users:
            model.then(say("hi"))
            await host.run(agent, "go", session=f"of {user.user}", principal=user)
    lost = {"fault": [False, True, True], "infrastructure": [False] * 3}
    assert offered(model) == lost.get(failure, [True] * 3)


@pytest.mark.parametrize("name", [name for name, (_, c) in RAISED.items() if c == "negative"])
async def test_answers_that_say_no_end_no_run(name: str) -> None:
    raised, _ = RAISED[name]
    asked = [call(("tested", {"n": n})) for n in range(3)]
    agent = motet.Agent("a", model=Scripted(*asked, say("so be it")))

    @agent.tool
    def tested(n: int) -> str:
        """Fail."""
        raise raised()

    async with motet.open_host() as host:
        result = await host.run(agent, "go")
    assert (result.status, result.errors) == ("completed", ())


async def test_wrong_arguments_are_advised_on_and_end_no_run() -> None:
    wrong = [call(("tested", {"m": "x"}), ("testet", {})) for _ in range(2)]
    model = Scripted(*wrong, call(("tested", {"n": 1})), say("now"))
    agent = motet.Agent("a", model=model, limits=motet.Limits(tool_errors=2, total_errors=3))

    @agent.tool
    def tested(n: int) -> str:
        """Work."""
        return "fine"

    async with motet.open_host() as host:
        result = await host.run(agent, "go")
    assert result.status == "completed"
    assert [row.failure for row in results(result)] == ["argument"] * 4 + [""]
    assert ["[Advice:" in row.text for row in results(result)] == [False] * 2 + [True] * 2 + [False]


async def test_a_servers_own_errors_are_answers_and_its_death_is_not() -> None:
    calls = [call((f"mcp__it__{name}", {})) for name in ("fail", "absent", "fail", "absent")]
    model = Scripted(*calls, say("it says no"))
    agent = motet.Agent("a", model=model, tools=["mcp:it"])
    async with motet.open_host(mcp={"it": faulty()}) as host:
        said_no = await host.run(agent, "go")
        model.then(call(("mcp__it__die", {})), say("it is gone"))
        died = await host.run(agent, "go")
    assert said_no.status == "completed"
    assert [row.failure for row in results(said_no)] == ["negative"] * 4
    assert [row.failure for row in results(died)] == ["infrastructure"]


# In groups


AT_ONCE = motet.HostConfig(queue=QueueConfig(debounce=0.0))


async def answered(host: motet.Host, sender: str, group: str = GROUP) -> str:
    """The status of the end of an input."""
    ack = await host.submit("go", session=group, sender=sender)
    async with subscribe(host.events, f"session:{group}", 0) as records:
        async for record in records:
            if record.run_id == ack.run_id and isinstance(record.event, events.Terminal):
                return event_name(record.event).removeprefix("run.")
    raise AssertionError("the stream of events has ended")


def broken(
    model: Scripted, limits: motet.Limits | None = None, name: str = "a"
) -> motet.Agent[None]:
    agent = motet.Agent(name, model=model, limits=limits or motet.Limits())

    @agent.tool
    def tested(n: int) -> str:
        """Fail."""
        raise RuntimeError("kaboom")

    return agent


@pytest.mark.parametrize(("last", "status"), [("bob", "limited"), ("ann", "escalated")])
async def test_in_a_group_the_faults_of_each_person_are_counted_alone(
    last: str, status: str
) -> None:
    """Runs that reach a limit answer nobody, so that their faults stay counted."""
    agent = broken(Scripted(*[call(("tested", {"n": 1}))] * 3), motet.Limits(turns=1))
    async with motet.open_host(agents=[agent], config=AT_ONCE) as host:
        ends = [await answered(host, sender) for sender in ("ann", "ann", last)]
    assert ends == ["limited", "limited", status]


async def test_in_a_group_an_answered_run_ends_the_counts_of_its_person() -> None:
    model = Scripted(*[call(("tested", {"n": 1})), say("it is broken")] * 4)
    async with motet.open_host(agents=[broken(model)], config=AT_ONCE) as host:
        assert [await answered(host, "ann") for _ in range(4)] == ["completed"] * 4


async def test_in_a_group_one_persons_faults_take_the_tool_from_nobody_else() -> None:
    model = Scripted(*[call(("tested", {"n": 1})), say("it is broken")] * 5, say("hi"), say("hi"))
    async with motet.open_host(agents=[broken(model)], config=AT_ONCE) as host:
        for sender in ("ann",) * 6 + ("bob",):
            await answered(host, sender)
    assert offered(model) == [True] * 9 + [False] * 2 + [True]


@pytest.mark.parametrize(("sender", "has"), [("ann", False), ("bob", True)])
async def test_an_input_that_is_sent_again_finds_the_tools_of_its_person(
    sender: str, has: bool
) -> None:
    model = Scripted(*[call(("tested", {"n": 1})), say("it is broken")] * 5, None)
    async with motet.open_host(agents=[broken(model)], config=AT_ONCE) as host:
        for _ in range(5):
            await answered(host, "ann")
        model.requests.clear()
        for text in ("go", "go on"):
            ack = await host.submit(text, session=GROUP, sender=sender, debounce=0)
        await model.asked.wait()
        await host.stop(session=GROUP)
        model.then(say("hi"))
        again = await host.resend(ack.run_id)
        await host.wait_run(again.run_id)
    assert offered(model)[-1] == has


@pytest.mark.parametrize(("sender", "has"), [("ann", False), ("bob", True)])
async def test_a_sub_agent_works_for_the_person_whose_group_run_called_it(
    sender: str, has: bool
) -> None:
    below, above = Scripted(name="below"), Scripted(name="above")
    child = broken(below, name="b")
    agent = motet.Agent("a", model=above, tools=[child.as_tool()])
    task = call(("b", {"task": "go"}))
    async with motet.open_host(agents=[agent], config=AT_ONCE) as host:
        for _ in range(5):
            above.then(task, say("it is broken"))
            below.then(call(("tested", {"n": 1})), say("no"))
            assert await answered(host, "ann") == "completed"
        below.requests.clear()
        above.then(task, say("hi"))
        below.then(say("hi"))
        await answered(host, sender)
    assert offered(below) == [has]


# In rooms


async def said(room: motet.OpenRoom, *authors: str) -> None:
    """Each of them says something, and the round ends."""
    for author in authors:
        await room.post("go", user=author)
        await room.wait()


def den(*agents: motet.Agent[None], name: str = "den") -> motet.Room:
    """A room whose agents answer everybody, also among several people."""
    speakers = motet.mentions() | motet.round_robin()
    return motet.Room(name, members=list(agents), speakers=speakers, max_turns=len(agents))


async def test_in_a_room_one_persons_faults_take_the_tool_from_nobody_else() -> None:
    model = Scripted(*[call(("tested", {"n": 1})), say("it is broken")] * 5, say("hi"), say("hi"))
    async with motet.open_host() as host:
        room = await host.open_room(den(broken(model)))
        await said(room, *("ann",) * 6, "bob")
    assert offered(model) == [True] * 9 + [False] * 2 + [True]


@pytest.mark.parametrize(("last", "status"), [("bob", "limited"), ("ann", "escalated")])
async def test_in_a_room_the_faults_of_each_person_are_counted_alone(
    last: str, status: str
) -> None:
    agent = broken(Scripted(*[call(("tested", {"n": 1}))] * 3), motet.Limits(turns=1))
    async with motet.open_host() as host:
        await said(await host.open_room(den(agent)), "ann", "ann", last)
        ends = [run.status for run in await host.runs(principal=ROOT)]
    assert ends == [status, "limited", "limited"]


async def test_in_a_room_what_members_say_to_each_other_counts_for_the_person_they_answer() -> None:
    """The second member is told only what the first has said: its turn is still the person's."""
    model = Scripted(*[call(("tested", {"n": 1}))] * 3, name="faulty")
    faulty_one = broken(model, motet.Limits(turns=1), name="b")
    first = motet.Agent("a", model=Scripted(*[say("@b and @b again")] * 3))
    async with motet.open_host() as host:
        room = motet.Room(
            "den", members=[first, faulty_one], speakers=motet.mentions(), max_turns=2
        )
        opened = await host.open_room(room)
        for author in ("ann", "ann", "bob"):
            await opened.post("@a go", user=author)
            await opened.wait()
        ends = [one.status for one in await host.runs(principal=ROOT) if one.agent == "b"]
    assert ends == ["limited"] * 3


async def test_in_a_room_an_answered_run_ends_the_counts_of_its_person() -> None:
    model = Scripted(*[call(("tested", {"n": 1})), say("it is broken")] * 4)
    async with motet.open_host() as host:
        await said(await host.open_room(den(broken(model))), *("ann",) * 4)
        ends = [run.status for run in await host.runs(principal=ROOT)]
    assert ends == ["completed"] * 4


async def test_thirty_people_who_miss_files_leave_the_tool_to_a_group_and_a_room() -> None:
    missing = [call(("read_file", {"path": f"missing-{n}.txt"})) for n in range(5)]
    model = Scripted(*[*missing, say("there is no such file")] * 30)
    agent = motet.Agent("a", model=model, tools=["group:fs"])
    async with motet.open_host(agents=[agent], config=AT_ONCE) as host:
        for group in range(5):
            for number in range(3):
                assert await answered(host, f"person{number}", f"{GROUP}{group}") == "completed"
            room = await host.open_room(den(agent, name=f"den{group}"))
            await said(room, *(f"{group}-{number}" for number in range(3)))
        runs = await host.runs(limit=1_000, principal=ROOT)
        assert [run.status for run in runs] == ["completed"] * 30
        assert await host.errors() == ()
    for request in model.requests:
        assert "read_file" in [tool.name for tool in request.tools]
    assert len(model.requests) == 30 * 6


async def test_a_model_that_insists_on_a_tool_that_is_taken_out_is_in_a_loop() -> None:
    """Its refusals are no faults, and say a smaller number of seconds each time."""
    model = Scripted(*[call(("tested", {"n": 1})), say("it is broken")] * 5)
    agent = broken(model, motet.Limits(tool_errors=3, total_errors=None))
    async with motet.open_host() as host:
        for n in range(5):
            await host.run(agent, "go", session=f"s{n}")
        model.then(*[call(("tested", {"n": n})) for n in range(12)])
        result = await host.run(agent, "go", session="insists", check=False)
    assert (result.status, result.limit) == ("limited", "tool_loop")
    refused = [row.failure for row in results(result)]
    assert 4 <= refused.count("refusal") == len([one for one in refused if one]) <= 7


# Any order


class Expected:
    """A recount: who has the tool, while no time passes."""

    def __init__(self) -> None:
        self.rows: dict[str, int] = dict.fromkeys(USERS, 0)
        self.all = 0

    def has(self, user: str) -> bool:
        return self.rows[user] < 5 and self.all < 5

    def ends(self, user: str, failure: str) -> None:
        if failure == "fault":
            self.rows[user] += 1
        elif failure == "infrastructure":
            self.all += 1
        elif not failure:
            self.rows[user] = self.all = 0


USERS = ("ann", "bob", "cyd")
NAMES = (*RAISED, "error", "error", "error", "storage", "storage", "fine")
turns = st.lists(
    st.tuples(st.sampled_from(USERS), st.lists(st.sampled_from(NAMES), min_size=1, max_size=4)),
    max_size=25,
)


def searched(played: list[tuple[str, list[str]]]) -> None:
    """Law: only faults count, for their user, and the infrastructure's for all; a success ends
    the row; and no answer, mistake or refusal ends a run."""

    async def play() -> None:
        expected, model, plan = Expected(), Scripted(), list[str]()
        limits = motet.Limits(tool_errors=3, total_errors=None)
        agent = motet.Agent("a", model=model, limits=limits)

        @agent.tool(polling=True)
        def tested(n: int) -> str:
            """Do as planned."""
            if plan[n] != "fine":
                raise RAISED[plan[n]][0]()
            return "fine"

        async with motet.open_host() as host:
            for number, (user, names) in enumerate(played):
                plan[:] = names
                has, row, escalates = expected.has(user), 0, False
                steps = [call(("tested", {"n": n})) for n in range(len(names))]
                model.then(*steps, say("well"))
                asked = len(model.requests)
                who = motet.Principal(user)
                result = await host.run(
                    agent, "go", session=f"s{number}", principal=who, check=False
                )
                assert offered(model)[asked] == has
                for name in names:
                    failure = "" if name == "fine" else RAISED[name][1]
                    if expected.has(user):
                        expected.ends(user, failure)
                    else:
                        failure = "refusal"  # it is not run
                    row = row + 1 if failure in ("fault", "infrastructure") else row
                    row = 0 if not failure else row
                    escalates = escalates or row >= 3
                    if escalates:
                        break
                assert (result.status == "escalated") == escalates
                assert result.status in ("escalated", "completed")
                model.forget()

    trio.run(play, clock=MockClock())


@given(turns)
@settings(max_examples=8)
def test_only_faults_count_and_only_for_those_they_belong_to(
    played: list[tuple[str, list[str]]],
) -> None:
    searched(played)


@pytest.mark.sweep
@given(turns)
def test_only_faults_count_and_only_for_those_they_belong_to_at_length(
    played: list[tuple[str, list[str]]],
) -> None:
    searched(played)


@pytest.mark.parametrize("is_cut", [False, True])
@pytest.mark.parametrize("grouped", [False, True])
async def test_a_failure_that_waits_for_its_turn_is_no_time_out_and_is_stored(
    monkeypatch: pytest.MonkeyPatch, mock_clock: MockClock, grouped: bool, is_cut: bool
) -> None:
    """Thousands fail at once, and this one waits longer than its tool may take, or is cut off."""
    waits, turn_comes = trio.Event(), trio.Event()

    async def turn(_: ErrorSpool) -> None:
        waits.set()
        await turn_comes.wait()

    def is_crowded(_: ErrorSpool) -> bool:
        return not turn_comes.is_set()

    monkeypatch.setattr(ErrorSpool, "is_crowded", property(is_crowded))
    monkeypatch.setattr(ErrorSpool, "turn", turn)

    async def breaks() -> str:
        """Break."""
        error = ValueError("no luck")
        raise ExceptionGroup("of one", [error]) if grouped else error

    tool = motet.tool(breaks, timeout=1.0)
    agent = motet.Agent("a", model=Scripted(call(("breaks", {})), say("so be it")), tools=[tool])
    ended = list[motet.RunResult[object]]()
    async with motet.open_host() as host, trio.open_nursery() as nursery:

        async def run() -> None:
            ended.append(await host.run(agent, "go", session="s", check=False))

        nursery.start_soon(run)
        await waits.wait()
        mock_clock.jump(5)
        await wait_all_tasks_blocked()
        if is_cut:
            nursery.cancel_scope.cancel()
            await trio.lowlevel.cancel_shielded_checkpoint()
        turn_comes.set()
        stored = tuple[StoredError, ...]()
        with trio.CancelScope(shield=True):
            while not stored:
                stored = await host.errors(session="s")
    assert [(one.kind, one.short_summary) for one in stored] == [("validation", "no luck")]
    if not is_cut:
        (row,) = results(ended[0])
        assert row.outcome == "failed"
        assert stored[0].id in row.text
