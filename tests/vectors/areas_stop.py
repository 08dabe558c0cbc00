"""Areas of a run's end: who stops it, what remains of it, and who may still write."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from random import Random
from typing import TypeVar

import attrs
import trio
from trio.testing import MockClock

import motet
from motet.actors.runs.run import Input, Run
from motet.actors.runs.table import RunTable
from motet.actors.transcript.grammar import STOPPED
from motet.protocols import events
from motet.protocols.chat import UserMessage
from motet.protocols.errors import NotFound
from motet.protocols.limits import Limits
from motet.protocols.models import ModelEvent, ModelRequest
from motet.protocols.sessions import StopReport
from tests.scripted import Scripted, call, say
from tests.vectors.cases import Facts, Given, NotUnderstood
from tests.vectors.compare import AnyOf

T = TypeVar("T")
ALICE = motet.Principal("alice")


def aborted(given: Given) -> Facts:
    if "run" in given:
        return _timed(_unknown, given.text("run"))
    if "message" in given:
        return _timed(_persisted, given)
    if "by" in given:
        return _timed(_cause, given.text("by"))
    if "same moment" in given.text("do"):
        return _timed(_raced, 100)
    if "callers" in given or "grace_ms" in given or "run_exits_after_ms" in given:
        return _timed(_stopped, given)
    raise NotUnderstood(str(given))


def _timed(scenario: Callable[[T], Awaitable[Facts]], given: T) -> Facts:
    return trio.run(scenario, given, clock=MockClock(autojump_threshold=0))


@attrs.define
class _Hanging:
    """An agent whose tool never ends by itself, and cleans up for so many seconds."""

    clean_up: float = 0.0
    released: trio.Event = attrs.field(factory=trio.Event)
    started: trio.Event = attrs.field(factory=trio.Event)

    async def hang(self) -> None:
        self.started.set()
        try:
            await trio.sleep_forever()
        finally:
            with trio.move_on_after(self.clean_up, shield=True):
                await self.released.wait()

    def agent(self, limits: Limits | None = None) -> motet.Agent[None]:
        model = Scripted(call(("hang", {})))
        return motet.Agent("a", model=model, tools=[self.hang], limits=limits or Limits())


# Stops


async def _unknown(run_id: str) -> Facts:
    async with motet.open_host() as host:
        return {"result": await _stop(host, run_id, 1)}


async def _stop(host: motet.Host, run_id: str, grace: float) -> str:
    try:
        return _named(await host.stop(run_id=run_id, grace=grace))
    except NotFound:
        return "not_found"


def _named(report: StopReport) -> str:
    if report.already_stopping:
        return "already_aborting"
    return "still_running" if report.still_running else "stopped"


async def _stopped(given: Given) -> Facts:
    after, grace = given.seconds("run_exits_after_ms"), given.seconds("grace_ms")
    hanging = _Hanging(math.inf if after is None else after / 1000)
    found: Counter[str] = Counter()
    async with motet.open_host(agents=[hanging.agent()]) as host:
        ack = await host.submit("go", session="s")
        await hanging.started.wait()
        began = trio.current_time()

        async def stop() -> None:
            found[await _stop(host, ack.run_id, 5 if grace is None else grace / 1000)] += 1

        async with trio.open_nursery() as nursery:
            for _ in range(given.number("callers", 1)):
                nursery.start_soon(stop)
        waited = trio.current_time() - began
        hanging.released.set()
        while host.status().running:
            await trio.sleep(0.01)
        trace = await host.trace(ack.run_id)
    return {
        "result": found.most_common(1)[0][0],
        "stopped_or_forced": found["stopped"] + found["still_running"],
        "already_aborting": found["already_aborting"],
        "not_found": found["not_found"],
        "waited_at_least_ms": round(waited * 1000),
        "trace_finish_calls": [{"status": s.status} for s in trace.spans if s.parent is None],
    }


async def _raced(times: int) -> Facts:
    """A run is stopped some steps before or behind its end."""
    ends: list[int] = []
    async with motet.open_host() as host:
        agent = motet.Agent("a", model=Scripted(*[say("one ", "two")] * times))
        for seed in range(times):
            async with (
                host.stream(agent, "go", session=f"s{seed}") as run,
                trio.open_nursery() as nursery,
            ):
                nursery.start_soon(_stop_soon, host, run.id, Random(seed).randrange(60))
                ends.append(sum([isinstance(event, events.Terminal) async for event in run]))
        leaked = await host.runs(status="running", limit=times)
        live = host.status().running
    return {"no_crash": ends == [1] * times, "no_leak": not leaked and not live}


async def _stop_soon(host: motet.Host, run_id: str, steps: int) -> None:
    for _ in range(steps):
        await trio.lowlevel.checkpoint()
    await _stop(host, run_id, 5)


# What is said of it afterwards


async def _cause(by: str) -> Facts:
    hanging = _Hanging()
    wall = Limits(wall=1) if "deadline" in by or "timeout" in by else None
    agent = hanging.agent(wall)
    async with motet.open_host() as host:

        async def ask() -> None:
            await host.run(agent, "go", session="s", principal=ALICE, check=False)

        async with trio.open_nursery() as caller:
            caller.start_soon(ask)
            await hanging.started.wait()
            if "abort" in by or "stop" in by:
                await host.stop(session="s", principal=ALICE)
            elif wall is None:
                caller.cancel_scope.cancel()
        (run,) = await host.runs(session="s", principal=ALICE)
        rows = [item.row for item in await host.history("s", principal=ALICE)]
    by_user = run.detail == f"stopped by {ALICE.user}"
    return {
        "cause": AnyOf((run.detail, "aborted by user")) if by_user else run.detail,
        "marker_written": any(STOPPED in row.text for row in rows),
    }


async def _persisted(given: Given) -> Facts:
    """The id of a message is its key: sent again, it is found to be there."""
    sender = motet.Principal(given.text("sender", "u1"))
    text, key = given.text("message"), given.text("message_id")
    model = Scripted(None)
    async with motet.open_host(agents=[motet.Agent("a", model=model)]) as host:

        async def send() -> motet.Ack:
            return await host.submit(text, session="s", principal=sender, key=key or None)

        first = await send()
        await model.asked.wait()
        await host.stop(session="s", principal=sender)
        again = await send() if key else first
        stored = await host.history("s", principal=sender)
    known = {"id": key} if key and again.run_id == first.run_id else {}
    rows = [item.row for item in stored if item.run_id == first.run_id]
    return {
        "saved": bool(rows),
        "appended": [
            {"role": "user", "content": row.text, **known}
            if isinstance(row, UserMessage)
            else {"role": "assistant", "content": row.text}
            for row in rows
        ],
    }


# Who may write


def owned(given: Given) -> Facts:
    """Runs of one session begin (register), are stopped (unregister) or have their say (finish)."""
    steps = [(step.split()[0], step.partition(" ")[2]) for step in given.texts("do")]
    if not steps or {verb for verb, _ in steps} - {"register", "unregister", "finish"}:
        raise NotUnderstood(str(given))
    named: list[tuple[str, str]] = []
    for verb, name in steps:
        last = named[-1][1] if named else ""
        named.append((verb, name or (f"g{len(named) + 1}" if verb == "register" else last)))
    facts = _timed(_in_table, named)
    return facts if "finish" not in dict(named) else {**facts, **_timed(_on_host, named)}


async def _in_table(steps: list[tuple[str, str]]) -> Facts:
    """A run that ends frees its session once: said again, and late, it changes nothing."""
    table, agent, runs = RunTable(), motet.Agent("a"), dict[str, Run]()
    for verb, name in steps:
        if verb == "register":
            run = runs[name] = Run(Input(name, "s", ALICE, "go"), agent, Limits())
            table.admit(run)
            table.enqueue(run)
        else:
            table.cancel_run(runs[name], "over")
            table.finish(runs[name], runs[name].ends_as("cancelled", "over"))
        table.start_next(table.queue("s"))
        for ended in runs.values():
            if ended.state == "ended":
                table.finish(ended, ended.ends_as("completed", "late"))
    active = table.active("s", "")
    generations = [run.admission for run in runs.values()]
    return {
        "active": active.id if active else None,
        "second_greater_than_first": generations == sorted(set(generations)),
    }


@attrs.define
class _Speakers:
    """Each run says that it is done when it is let; ``asking``: those that wait for that."""

    name = "speakers"
    asking: list[str] = attrs.field(factory=list[str])
    let: set[str] = attrs.field(factory=set[str])

    @asynccontextmanager
    async def request(self, request: ModelRequest) -> AsyncGenerator[AsyncIterator[ModelEvent]]:
        name = request.messages[-1].text
        self.asking.append(name)
        try:
            while name not in self.let:
                await trio.sleep(0.01)
        finally:
            self.asking.remove(name)
        async with Scripted(say(f"done by {name}")).request(request) as parts:
            yield parts


async def _on_host(steps: list[tuple[str, str]]) -> Facts:
    model, runs, facts = _Speakers(), dict[str, str](), dict[str, object]()
    told: list[events.EventRecord] = []

    def ended(run_id: str) -> bool:
        return any(r.run_id == run_id and isinstance(r.event, events.Terminal) for r in told)

    async with motet.open_host(agents=[motet.Agent("a", model=model)]) as host:
        host.events.attach("session:s", told.append)
        for verb, name in steps:
            if verb == "register":
                runs[name] = (await host.submit(name, session="s")).run_id
                while not model.asking:
                    await trio.sleep(0.01)
            elif verb == "unregister":
                await _stop(host, runs[name], 5)
            else:
                facts["owner"] = model.asking[0] if model.asking else None
                facts["finished"] = name
                model.let.add(name)
                while not ended(runs[name]):
                    await trio.sleep(0.01)
                rows = [item.row.text for item in await host.history("s")]
                facts["history_written"] = f"done by {name}" in rows
        completed = [r.run_id for r in told if isinstance(r.event, events.RunCompleted)]
    finished = str(facts["finished"])
    return {**facts, "completed_event": runs[finished] in completed}
