"""A run that goes on in its caller's task, in a session without an actor, and all that meets it.

Law: whatever comes while it goes on, and whenever, each input has one end, nothing is left in
memory for it, and the session answers the next input.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from random import Random

import apsw
import attrs
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

import motet
from motet import testing as mt
from motet.actors.runs.runner import Runner
from motet.protocols.chat import AssistantMessage, UserMessage
from motet.protocols.events import InputEnd, event_name
from motet.protocols.models import Finished, ModelEvent, ModelRequest, TextPart
from motet.protocols.queueing import QueueMode
from motet.protocols.sessions import FINAL, RunInfo
from motet.runtime.testing.loop import Job
from tests.actors.runs.ops import parts_of
from tests.scripted import Scripted, call, say

ACTOR = "/host/router/s"
SLOW = 1.0
"""Seconds of each request on the virtual clock."""


class Slow:
    """Answers after :data:`SLOW` seconds with the last text that it was told."""

    name = "slow"

    @asynccontextmanager
    async def request(self, request: ModelRequest) -> AsyncGenerator[AsyncIterator[ModelEvent]]:
        yield _parts([row.text for row in request.messages if isinstance(row, UserMessage)][-1])


async def _parts(text: str) -> AsyncGenerator[ModelEvent]:
    await trio.sleep(SLOW)
    yield TextPart(text)
    yield Finished("stop")


def actors(host: motet.Host) -> list[str]:
    return [row.path for row in host.system.snapshot() if row.path == ACTOR]


async def test_a_run_that_is_alone_needs_no_actor() -> None:
    async with motet.open_host(agents=[motet.Agent("a", model="demo")]) as host:
        for _ in range(2):
            await host.run("a", "hi", session="s")
            assert not actors(host)
        assert len(await host.history("s")) == 4
        assert host.status().live_sessions == 1


@pytest.mark.parametrize("at_start", [True, False])
async def test_hooks_of_sessions_have_an_actor_to_begin_and_end_with(at_start: bool) -> None:
    heard: list[str] = []

    async def started(event: motet.SessionStart) -> None:
        heard.append(event.session)

    async def ended(event: motet.SessionEnd) -> None:
        heard.append(event.session)

    async with motet.open_host(agents=[motet.Agent("a", model="demo")]) as host:
        if at_start:
            host.on("session_start")(started)
        else:
            host.on("session_end")(ended)
        await host.run("a", "hi", session="s")
        assert actors(host)
    assert heard == ["s"]


async def test_a_child_beside_the_run_has_an_actor(autojump_clock: MockClock) -> None:
    spawned = call(("spawn", {"agent": "child", "task": "look"}))
    model = Scripted(spawned, say("I wait"), say("it has ended"))
    lead = motet.Agent("lead", model=model, tools=["group:agents"])
    async with motet.open_host(agents=[lead, motet.Agent("child", model=Slow())]) as host:
        result = await host.run("lead", "go", session="s")
        assert result.output == "it has ended"
        assert actors(host)
    del autojump_clock


async def test_a_run_whose_caller_goes_says_so(autojump_clock: MockClock) -> None:
    async with motet.open_host(agents=[motet.Agent("a", model=Slow())]) as host:
        with trio.move_on_after(SLOW / 2):
            await host.run("a", "first", session="s")
        (run,) = await host.runs()
        assert (run.status, run.detail) == ("cancelled", "its caller has gone")
        assert (await host.run("a", "second", session="s")).output == "second"
    del autojump_clock


async def test_a_run_that_ends_with_the_router_is_cancelled_and_not_over_its_time(
    autojump_clock: MockClock,
) -> None:
    results: list[motet.RunResult[str]] = []

    async def wait(host: motet.Host) -> None:
        results.append(await host.run("a", "first", session="s", check=False))

    async with motet.open_host(agents=[motet.Agent("a", model=Slow())]) as host:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait, host)
            await trio.sleep(SLOW / 2)
            assert host.system.inject("/host/router", "crash")
        assert [(one.status, one.detail) for one in results] == [
            ("cancelled", "the host is closing")
        ]
    del autojump_clock


async def test_nobody_waits_for_a_run_that_breaks_off(monkeypatch: pytest.MonkeyPatch) -> None:
    async with motet.open_host(agents=[motet.Agent("a", model="demo")]) as host:
        with monkeypatch.context() as patch, trio.fail_after(60):
            patch.setattr(Runner, "execute", _break)
            with pytest.raises(ZeroDivisionError):
                await host.run("a", "hi", session="s")
        assert not parts_of(host).table.runs
        assert (await host.run("a", "hi", session="s")).status == "completed"


async def _break(_: Runner) -> None:
    raise ZeroDivisionError


Meet = Callable[[motet.Host], Awaitable[object]]


async def _submit(host: motet.Host, **options: object) -> None:
    await host.submit("second", session="s", agent="a", **options)  # type: ignore[arg-type]


async def _steer(host: motet.Host) -> None:
    await _submit(host, mode="steer")


async def _interrupt(host: motet.Host) -> None:
    await _submit(host, mode="interrupt")


async def _stop(host: motet.Host) -> None:
    await host.stop(session="s")


async def _crash_router(host: motet.Host) -> None:
    host.system.inject("/host/router", "crash")


async def _run(host: motet.Host) -> None:
    await host.run("a", "second", session="s", check=False)


MEETINGS: dict[str, Meet] = {
    "another input": _submit,
    "another caller": _run,
    "steer": _steer,
    "interrupt": _interrupt,
    "stop": _stop,
    "crash of the router": _crash_router,
}


@given(
    meets=st.lists(
        st.tuples(st.sampled_from([*MEETINGS, "caller goes"]), st.floats(0, 2.5)), max_size=4
    )
)
def test_a_run_alone_and_all_that_meets_it(meets: list[tuple[str, float]]) -> None:
    async def story() -> None:
        async with motet.open_host(agents=[motet.Agent("a", model=Slow())]) as host:
            caller = trio.CancelScope()
            results: list[motet.RunResult[str]] = []

            async def wait() -> None:
                with caller:
                    results.append(await host.run("a", "first", session="s", check=False))

            async def meet(what: str, at: float) -> None:
                await trio.sleep(at)
                if what == "caller goes":
                    caller.cancel()
                else:
                    await MEETINGS[what](host)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(wait)
                for what, at in meets:
                    nursery.start_soon(meet, what, at)
            await trio.sleep(60)  # after a crash, the router restarts in a while
            parts = parts_of(host)
            assert not parts.table.runs
            assert not parts.session_actors.alone
            assert all(run.status in FINAL for run in await host.runs())
            gone = any(what == "caller goes" for what, _ in meets)
            assert results or gone
            with trio.fail_after(60):
                last = await host.run("a", "last", session="s")
            assert last.output == "last"

    trio.run(story, clock=MockClock(autojump_threshold=0))


@pytest.mark.parametrize("at", [0.0, 0.5, 1.0])
async def test_a_host_that_closes_ends_the_run_and_its_caller_has_the_result(
    at: float, autojump_clock: MockClock
) -> None:
    results: list[motet.RunResult[str]] = []

    async def wait(host: motet.Host) -> None:
        results.append(await host.run("a", "first", session="s", check=False))

    opened = motet.open_host(agents=[motet.Agent("a", model=Slow())])
    async with trio.open_nursery() as nursery, opened as host:
        nursery.start_soon(wait, host)
        await trio.sleep(at)
        await trio.testing.wait_all_tasks_blocked()
    assert [result.status for result in results] == ["cancelled" if at < SLOW else "completed"]
    del autojump_clock


def leads(request: ModelRequest) -> mt.Step:
    """Spawn a child, then call a tool, then answer."""
    answers = [row for row in request.messages if isinstance(row, AssistantMessage)]
    steps = [mt.call("spawn", agent="child", task="look"), mt.call("act"), mt.say("done")]
    return mt.slow(steps[len(answers)], seconds=0.05)


def with_a_child(host: mt.SimulatedHost) -> None:
    """A run in its caller's task has a child beside it, and thereby an actor for its session."""
    lead = motet.Agent("lead", model=mt.FunctionModel(leads, name="leads"), tools=["group:agents"])

    @lead.tool(effects="write")
    async def act() -> str:
        await trio.sleep(0.1)
        return "acted"

    child = mt.FunctionModel(lambda _: mt.slow(mt.say("seen"), seconds=0.2), name="sees")
    host.know(motet.Agent("child", model=child))
    host.run(lead, "go", session="s", check=False)
    host.advance(1)


@pytest.mark.parametrize(
    ("fault", "every"),
    [
        ("kill", 8),
        *(
            pytest.param(fault, 1, marks=pytest.mark.sweep)
            for fault in ("kill", "crash", "cancel", "stop")
        ),
    ],
)
def test_a_router_that_ends_at_some_step_leaves_nobody_waiting_for_a_child(
    fault: mt.HostFault, every: int
) -> None:
    """Law: a run ends, though no actor is started any more for the child that it has spawned."""
    mt.sweep(with_a_child, fault, target="/host/router", every=every, seeds=(1,)).check()


# Kills, storage that is away, reloads and compaction


WINDOWS = (9_000, 100_000)
MODES: tuple[QueueMode, ...] = ("followup", "steer", "collect", "interrupt")
CONFIGS = [
    motet.HostConfig(limits=motet.Limits(turns=9)),
    motet.HostConfig(policy=(motet.PolicyRule(tool="act", effect="deny"),)),
]


@attrs.define
class Alone:
    """A host whose sessions are used by callers of ``Host.run``, and all that meets them.

    ``sent``: the numbers of the texts that callers gave, with their tasks; ``taken``: those of
    which they were told so.
    """

    host: mt.SimulatedHost
    chance: Random
    sent: dict[str, Job[object]] = attrs.field(factory=dict[str, "Job[object]"])
    taken: list[str] = attrs.field(factory=list[str])
    broken: list[str] = attrs.field(factory=list[str])

    def agent(self) -> motet.Agent[None, str]:
        window = self.chance.choice(WINDOWS)
        model = mt.FunctionModel(self.answer, name="worker")
        agent = motet.Agent("a", model=model, window=window, tools=[])

        @agent.tool(effects="write")
        async def act(ctx: motet.Context[None], what: str) -> str:
            await trio.sleep(self.chance.choice((0, 0.1, 3)))
            self.host.ledger.did(ctx, what)
            await trio.sleep(self.chance.choice((0, 0.1)))
            return "done " + "x" * self.chance.choice((0, 3_000))

        return agent

    def answer(self, request: ModelRequest) -> mt.Step:
        rows = request.messages
        if not request.tools:
            return mt.say("They work on it.")
        at = max(i for i, row in enumerate(rows) if isinstance(row, UserMessage))
        acted = any(isinstance(row, AssistantMessage) for row in rows[at:])
        (number, acts) = re.findall(r"<(\d+)>(act)?", rows[at].text)[-1]
        step = mt.call("act", what=number) if acts and not acted else mt.say(f"did {number}")
        return mt.slow(step, seconds=self.chance.choice((0.01, 0.2)))

    async def send(self, host: motet.Host, how: str, text: str) -> None:
        """Give a text, and note that it was taken, if its host was not dead by then."""
        session = self.chance.choice("st")
        if how == "submit":
            mode = self.chance.choice(MODES)
            ack = await host.submit(text, session=session, agent="a", mode=mode, key=text)
            is_taken = ack.status != "dropped"
        else:
            result = await host.run("a", text, session=session, check=False)
            is_taken = result.status != "dropped"
        if is_taken and not self.host.ledger.cut_off:
            self.taken.append(text[: text.index(">") + 1])

    def meet(self) -> None:
        host, chance = self.host, self.chance
        does = ("run", "run", "run", "submit", "wait", "wait", "steps", "stop", "caller goes")
        match chance.choice((*does, "reload", "compact", "away", "back", "crash", "restart")):
            case "run" | "submit" as how:
                number = str(len(self.sent))
                acts, pad = chance.choice(("", "act", "act")), "pad " * chance.choice((0, 900))
                text = f"<{number}>{acts} {pad}"
                self.sent[number] = host.begin(self.send, how, text)
            case "wait":
                host.advance(chance.choice((0.001, 0.1, 1, 20)))
            case "stop":
                host.begin(_stopped, chance.choice("st"))
            case "caller goes":
                going = [job for job in self.sent.values() if not job.over]
                host.loop.cancel([chance.choice(going)] if going else [])
            case "reload":
                host.begin(_reloaded, chance.choice(CONFIGS))
            case "compact":
                host.begin(_compacted, chance.choice("st"))
            case "away":
                away(host, chance)
            case "back":
                back(host)
            case "crash":
                back(host)
                host.crash()
            case "restart" if chance.random() < 0.3:
                back(host)
                host.restart(chance.choice((0.0, 1.0)))
            case _:
                host.steps(chance.randrange(1, 80))

    def end(self) -> None:
        back(self.host)
        self.host.advance(120)
        self.host.settle()
        parts = parts_of(self.host.host)
        if parts.table.runs or parts.session_actors.alone:
            self.broken.append(f"{parts.table.runs} are left in memory")
        self.broken += [f"the caller of {n} waits" for n, job in self.sent.items() if not job.over]
        told = " ".join(run.text for run in self.host.call(_runs))
        self.broken += [f"{one} was taken and is lost" for one in self.taken if one not in told]
        self.broken += self.host.call(_ends)
        effects = Counter(effect.what for effect in self.host.ledger.effects)
        self.broken += [f"{what} has {n} effects" for what, n in effects.items() if n > 1]
        for session in "st":
            last = self.host.call(_last, session)
            if last != "did 999":
                self.broken.append(f"session {session} answers {last!r} in the end")


def away(host: mt.SimulatedHost, chance: Random) -> None:
    match chance.choice(("locked", "full", "io")):
        case "locked":
            with suppress(apsw.BusyError):
                host.disk.locked = True
        case "full":
            host.disk.room = host.disk.used
        case _:
            host.disk.broken = "io"


def back(host: mt.SimulatedHost) -> None:
    host.disk.locked, host.disk.room, host.disk.broken = False, None, ""


async def _stopped(host: motet.Host, session: str) -> None:
    await host.stop(session=session, grace=1.0)


async def _reloaded(host: motet.Host, config: motet.HostConfig) -> None:
    await host.reload(config)


async def _compacted(host: motet.Host, session: str) -> None:
    with suppress(motet.MotetError):  # nobody has used the session yet
        await host.compact(session)


async def _runs(host: motet.Host) -> tuple[RunInfo, ...]:
    return await host.runs(limit=200)


async def _last(host: motet.Host, session: str) -> str:
    with trio.fail_after(600):
        last = await host.run("a", "<999>", session=session, check=False)
        return last.text or f"{last.status} {last.detail}"


async def _ends(host: motet.Host) -> list[str]:
    """Runs without one end, texts in the rows of two runs, and ends that differ from the record."""
    found: list[str] = []
    for session in "st":
        records = await host.events.read(f"session:{session}", 0, 10_000)
        ends = Counter(one.run_id for one in records if isinstance(one.event, InputEnd))
        runs = {run.run_id: run for run in await host.runs(session=session, limit=200)}
        found += [
            f"{one.run_id} is {one.status}" for one in runs.values() if one.status not in FINAL
        ]
        found += [f"{one} has {ends[one]} ends" for one in runs if ends[one] != 1]
        found += [
            f"{one.run_id} is told to be {event_name(one.event)}, and is {runs[one.run_id].status}"
            for one in records
            if isinstance(one.event, InputEnd) and one.run_id in runs
            if event_name(one.event).partition(".")[2] != runs[one.run_id].status
        ]
        texts = Counter[str]()
        with suppress(motet.NotFound):
            for item in await host.history(session, limit=500):
                if isinstance(item.row, UserMessage) and not item.row.note:
                    texts.update(re.findall(r"<(\d+)>", item.row.text))
        found += [f"{text} is in {count} rows" for text, count in texts.items() if count > 1]
    return found


def played(seed: int) -> tuple[list[str], int]:
    """How one random story breaks the law, and its effects."""
    chance = Random(seed)
    with mt.simulated_host(seed=seed, config=CONFIGS[0]) as host:
        alone = Alone(host, chance)
        host.know(alone.agent())
        for _ in range(chance.randrange(6, 26)):
            alone.meet()
        alone.end()
        return alone.broken, len(host.ledger.effects)


@pytest.mark.parametrize(
    "part", [0, *(pytest.param(n, marks=pytest.mark.sweep) for n in range(1, 9))]
)
def test_runs_alone_meet_kills_full_disks_reloads_and_compaction(part: int) -> None:
    """Law: whatever meets runs in their callers' tasks, and whenever, each text has one end, as on
    record, and is in the rows of one run; no effect comes twice, no caller waits for ever, nothing
    is left in memory, and each session answers the next caller.
    """
    size, effects = (8, 0) if part == 0 else (150, 0)
    for seed in range(part * 1_000, part * 1_000 + size):
        broken, some = played(seed)
        effects += some
        assert not broken, f"seed {seed}: {broken}"
    assert effects
