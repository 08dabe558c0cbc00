"""Areas of what people type: words that stop, and what a stop ends and answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import attrs
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

import motet
from motet.actors.gateway.commands import answer_command
from motet.protocols.chat import JsonObject
from motet.protocols.commands import Command, is_bare_stop, parse_command
from motet.protocols.sessions import StopReport
from tests.paced import Paced
from tests.scripted import Scripted, call, say
from tests.vectors.cases import MAIN, Facts, Given, NotUnderstood
from tests.vectors.compare import AnyOf


def intent(given: Given) -> Facts:
    """What a text is beside a message; None: it is one."""
    command = parse_command(_typed(given))
    return {MAIN: "cancel" if command == Command("stop") else command and command.name}


def exact(given: Given) -> Facts:
    """Whether a text is a word that stops, and nothing else."""
    return {MAIN: is_bare_stop(_typed(given))}


def _typed(given: Given) -> str:
    if not isinstance(given.value, str):
        raise NotUnderstood(str(given))
    return given.value


def stopped(given: Given) -> Facts:
    running = given.get("running")
    if isinstance(running, int):
        scenario: Callable[[], Awaitable[Facts]] = partial(
            _counted, given.text("text"), running, given.number("queued")
        )
    elif isinstance(running, list):
        scenario = partial(_shared, [str(one).split()[0] for one in given.items("running")])
    elif "subagents" in given.text("running"):
        scenario = _cascade
    else:
        raise NotUnderstood(str(given))
    return trio.run(scenario, clock=MockClock(autojump_threshold=0))


@attrs.define
class _Desk:
    """Tools that never end by themselves."""

    model: Scripted = attrs.field(factory=lambda: Scripted(*[call(("hang", {}))] * 9))

    async def hang(self) -> None:
        await trio.sleep_forever()

    def agent(self) -> motet.Agent[None]:
        return motet.Agent("a", model=self.model, tools=[self.hang])


async def _counted(text: str, running: int, queued: int) -> Facts:
    """Each run in a session of its own; what is queued waits in the first."""
    async with motet.open_host(agents=[_Desk().agent()]) as host:
        for number in range(running):
            await host.submit("go", session=f"s{number}")
        await wait_all_tasks_blocked()
        for _ in range(queued):
            await host.submit("later", session="s0", mode="followup")
        command = parse_command(text)
        assert command is not None
        answer = await answer_command(host, motet.LOCAL, "s0", command)
        status = host.status()
    assert isinstance(answer.report, StopReport)
    return {
        "reply": AnyOf((answer.text, _as_they_say(command, answer.report))),
        "queued_left": status.queued,
        "running_left": status.running,
    }


def _as_they_say(command: Command, report: StopReport) -> str:
    """What was done, in the words of the vectors; ours say how much of it."""
    if command.name == "stop":
        return "Task stopped." if report.stopped else "No active task to stop."
    return "All tasks stopped." if report.stopped else "No active tasks to stop."


async def _shared(users: list[str]) -> Facts:
    """Each user has a run, and the last one stops."""
    async with motet.open_host(agents=[_Desk().agent()]) as host:
        runs: dict[str, str] = {}
        for user in users:
            ack = await host.submit("go", session=f"s-{user}", principal=motet.Principal(user))
            runs[ack.run_id] = user
            await wait_all_tasks_blocked()
        asker = motet.Principal(users[-1])
        answer = await answer_command(host, asker, f"s-{users[-1]}", Command("stop"))
        assert isinstance(answer.report, StopReport)
        return {"cancelled": [runs[run_id] for run_id in answer.report.stopped], "by": asker.user}


async def _cascade() -> Facts:
    """A run starts two sub-agents that work beside it, and is stopped."""
    worker = Paced()
    task: JsonObject = {"agent": "worker", "task": "never ends"}
    model = Scripted(call(("spawn", task), ("spawn", task)), say("I wait"))
    lead = motet.Agent("lead", model=model, tools=["group:agents"])
    async with motet.open_host(agents=[worker.agent()]) as host:
        async with host.stream(lead, "go", session="s") as run:
            while worker.working < 2:
                await trio.sleep(0.01)
            await answer_command(host, motet.LOCAL, "s", Command("stop"))
            result = await run.wait()
        left = host.status().running
    return {"run": result.status, "subagents": "have ended" if not left else f"{left} go on"}
