"""Areas of inputs that wait: schedules of runs, and what comes in from channels."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import attrs
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

import motet
from motet.actors.runs.queue import SessionQueue, allowed
from motet.protocols.events import EventRecord, InputDropped
from motet.protocols.queueing import Overflow, QueueConfig, QueueMode
from motet.protocols.session_keys import Chat, is_group, session_key
from motet.protocols.sessions import QueueFull, RunInfo, ShuttingDown
from tests.scripted import Scripted, call, say
from tests.vectors.cases import Facts, Given, NotUnderstood

OVERFLOWS: dict[str, Overflow] = {"new": "reject", "old": "drop_oldest"}
"""What they call *new* refuses the input and stores nothing."""
MODES: dict[str, QueueMode] = {"queue": "followup", "interrupt": "interrupt"}
SPEC_STOP = "r2 starts only after r1 really ended"


def schedules(given: Given) -> Facts:
    """The cases by the form of their input."""
    steps = given.texts("do")
    if "enqueue" in given:
        return _run(partial(_overflowing, given))
    if "tokens" in given:
        most, tokens = given.number("max_concurrent"), given.get("tokens")
        known = tokens if isinstance(tokens, int) else None
        return {"effective": allowed(most, known, given.number("window"), QueueConfig().throttle)}
    if "peer" in given:
        group = is_group(_key("x", given.text("peer")))
        return {"max_concurrent": SessionQueue("s", group=group).limit(QueueConfig())}
    if "submit" in given:
        return _run(_withdrawn)
    if given.value == {}:
        rules = QueueConfig()
        pause = round(rules.debounce * 1000)
        return {"mode": rules.direct, "cap": rules.capacity, "debounce_ms": pause}
    for words, scenario in _SCENARIOS.items():
        if any(words in step for step in steps):
            return _run(scenario)
    raise NotUnderstood(str(given))


def inbound(given: Given) -> Facts:
    """How many runs come of what a channel brings."""
    if "messages" in given:
        said = [_message(one) for one in given.items("messages")]
        return _run(partial(_said, said))
    if "ids" in given:
        return _run(partial(_resent, given.texts("ids")))
    raise NotUnderstood(str(given))


def _run(scenario: Callable[[], Awaitable[Facts]]) -> Facts:
    return trio.run(scenario, clock=MockClock(autojump_threshold=0))


def _key(chat: str, kind: str = "direct") -> str:
    return session_key(
        Chat(agent="a", channel="tcp", kind="group" if kind == "group" else "direct", chat=chat)
    )


@attrs.define
class _World:
    """A host whose first run blocks until it is stopped, or for ever; the next answer at once."""

    queue: QueueConfig = attrs.field(factory=QueueConfig)
    clean_up: float = 0.0
    blocked: trio.Event = attrs.field(factory=trio.Event)
    ended_at: float = 0.0

    async def block(self) -> None:
        self.blocked.set()
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(self.clean_up)
            self.ended_at = trio.current_time()

    def open(self) -> motet.HostConfig:
        return motet.HostConfig(queue=self.queue)

    def agent(self) -> motet.Agent[None]:
        model = Scripted(call(("block", {})), *[say("ok")] * 9)
        return motet.Agent("a", model=model, tools=[self.block])


async def _named(host: motet.Host) -> dict[str, RunInfo]:
    return {run.text: run for run in await host.runs(limit=100)}


# Scenarios


async def _overflowing(given: Given) -> Facts:
    world = _World(
        QueueConfig(capacity=given.number("cap"), overflow=OVERFLOWS[given.text("drop")])
    )
    facts: dict[str, object] = {}
    async with motet.open_host(agents=[world.agent()], config=world.open()) as host:
        for one in given.texts("enqueue"):
            name = one.split()[0]
            try:
                await host.submit(name, session="s", mode=MODES[given.text("mode")])
            except QueueFull:
                facts[name] = "error queue full"
            await world.blocked.wait()
        await wait_all_tasks_blocked()
        runs = sorted((await _named(host)).items())
        facts |= {name: "error queue dropped" for name, run in runs if _was_full(run)}
        facts["running"] = [name for name, run in runs if run.status == "running"]
        facts["queued"] = [name for name, run in runs if run.status == "queued"]
        await host.stop(everything=True)
    return facts


def _was_full(run: RunInfo) -> bool:
    return run.status == "dropped" and run.detail.startswith("the queue was full")


async def _withdrawn() -> Facts:
    """An input whose sender has gone before it was accepted, while another run blocks."""
    world = _World()
    async with motet.open_host(agents=[world.agent()]) as host:
        await host.submit("r1", session="s")
        await world.blocked.wait()
        with trio.CancelScope() as scope:
            scope.cancel()
            await host.submit("r2", session="s")
        await wait_all_tasks_blocked()
        executed = "r2" in await _named(host)
        await host.stop(everything=True)
    return {"error": scope.cancelled_caught, "executed": executed}


async def _stopped_all() -> Facts:
    world = _World()
    async with motet.open_host(agents=[world.agent()]) as host:
        await host.submit("r1", session="s")
        await world.blocked.wait()
        await host.submit("r2", session="s")
        await host.stop(everything=True)
        runs = await _named(host)
    stopped = runs["r2"].status == "dropped" and runs["r2"].detail == "stopped by local"
    ended = runs["r1"].status == "cancelled"
    return {"r1": "its context is cancelled" if ended else "", "r2": "cancelled" if stopped else ""}


async def _interrupted() -> Facts:
    world = _World()
    async with motet.open_host(agents=[world.agent()]) as host:
        await host.submit("r1", session="s")
        await world.blocked.wait()
        await host.submit("r2", session="s", mode="interrupt")
        await wait_all_tasks_blocked()
        runs = await _named(host)
    return {
        "r1": f"{runs['r1'].status} error",
        "r2": "ok" if runs["r2"].status == "completed" else runs["r2"].status,
    }


async def _stop_is_not_early() -> Facts:
    world = _World(clean_up=1.0)
    begun: list[float] = []
    async with motet.open_host(agents=[world.agent()]) as host:

        @host.on("before_model")
        async def note(_event: motet.BeforeModel) -> motet.Allow:
            begun.append(trio.current_time())
            return motet.Allow()

        first = await host.submit("r1", session="s")
        await world.blocked.wait()
        await host.submit("r2", session="s")
        await host.stop(run_id=first.run_id, grace=0)
        while host.status().running or host.status().queued:
            await trio.sleep(0.01)
    return {"good": SPEC_STOP if len(begun) == 2 and begun[1] >= world.ended_at > 0 else begun}


async def _stop_answers_at_once() -> Facts:
    world = _World(clean_up=1.0)
    async with motet.open_host(agents=[world.agent()]) as host:
        await host.submit("r1", session="A")
        await world.blocked.wait()
        blocked = motet.Agent("b", model=Scripted(None, name="other"))
        host.add(blocked)
        await host.submit("r2", session="B", agent="b")
        began = trio.current_time()
        report = await host.stop(session="B")
        took = trio.current_time() - began
        await host.stop(everything=True)
    return {"good": "answers at once" if report.stopped and not took else f"after {took:g} s"}


async def _stop_empties_what_is_held() -> Facts:
    told: list[str] = []

    def hear(record: EventRecord) -> None:
        if isinstance(record.event, InputDropped):
            told.append(record.event.reason)

    agent, key = motet.Agent("a", model=Scripted()), _key("x")
    async with motet.open_host(agents=[agent]) as host:
        host.events.attach(f"session:{key}", hear)
        ack = await host.submit("m1", session=key)
        await trio.sleep(0.3)
        report = await host.stop(everything=True)
        await trio.sleep(5)
        status = (await _named(host))["m1"].status
    dropped = report.dropped_inputs == [ack.run_id] and status == "dropped" and len(told) == 1
    return {"good": "m1 is dropped or reported" if dropped else status}


async def _draining() -> Facts:
    agent = motet.Agent("a", model=Scripted())
    async with motet.open_host(agents=[agent]) as host:
        await host.drain()
        try:
            await host.submit("r1", session="s")
        except ShuttingDown:
            return {"r1": "error gateway draining"}
    return {"r1": "accepted"}


_SCENARIOS: dict[str, Callable[[], Awaitable[Facts]]] = {
    "mark_draining": _draining,
    "while r1 runs": _interrupted,
    "cancel_one": _stop_is_not_early,
    "cancel_all on B": _stop_answers_at_once,
    "cancel_all": _stopped_all,
    "/stopall": _stop_empties_what_is_held,
}


# What channels bring


def _message(one: object) -> tuple[str, float, str]:
    match one:
        case [str(sender), int(at), str(text)]:
            return sender, at / 1000, text
        case _:
            raise NotUnderstood(str(one))


async def _said(messages: list[tuple[str, float, str]]) -> Facts:
    """In a group: each at its time."""
    model = Scripted(*[say("ok")] * len(messages))
    key, began = _key("x", "group"), trio.current_time()
    async with motet.open_host(agents=[motet.Agent("a", model=model)]) as host:
        for sender, at, text in messages:
            await trio.sleep_until(began + at)
            await host.submit(text, session=key, sender=sender)
        await trio.sleep(60)
    return {"runs": len(model.requests)}


async def _resent(keys: list[str]) -> Facts:
    """The id of a message on its channel is the key of the input."""
    model = Scripted(*[say("ok")] * len(keys))
    async with motet.open_host(agents=[motet.Agent("a", model=model)]) as host:
        for key in keys:
            await host.submit("hi", session=_key("x"), key=key)
        await trio.sleep(60)
    return {"runs": len(model.requests)}
