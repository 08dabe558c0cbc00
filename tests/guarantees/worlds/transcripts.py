"""A world of runs that end in every way there is: whatever is stored is a valid transcript (G7).

A run works on many calls at once. It is stopped, cancelled with whoever waits for it, crashed with
a part of its host, or killed with all of it. Then the next host loads what is there, and some of
them go on with it. What a result says of a call is compared with what the tool itself has noted.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import count

import attrs
import msgspec
import trio

import motet
from motet.actors.models.provider import Played
from motet.actors.storage.readers import Readers
from motet.actors.storage.run_access import PATIENCE
from motet.actors.storage.sessions import SessionStore
from motet.actors.storage.writer import Writer
from motet.actors.transcript.grammar import violations
from motet.protocols.chat import AssistantMessage, Call, ChatMessage, ToolMessage, UserMessage
from motet.protocols.models import (
    CallArguments,
    CallStart,
    Finished,
    ModelEvent,
    ModelRequest,
    TextPart,
    Usage,
    UsageReport,
)
from motet.protocols.queueing import QueueMode
from motet.protocols.sessions import LoadTranscript, RecoverRuns, SessionBusy
from motet.protocols.storage import StorageError
from motet.runtime import ActorDead, open_system
from motet.runtime.testing import Simulation
from tests.guarantees.law import HOST_POLICIES, Law, Search
from tests.guarantees.worlds.hosts import Life, Place, new_place, settled

SESSIONS = ("a", "b")
ENDS = (*("power",) * 5, "stop", "cancel", "crash", "storage", "none")
PARTS = ("/host/tools", "/host/router", "/host/router/a", "/host/events", "/host/models")
STORES = ("/host/sessions", "/host/database")
STEPS = 240  # within which it strikes
MOST_CALLS = 11
MODES: tuple[QueueMode, ...] = ("followup", "steer", "interrupt", "collect")
REFUSALS = (motet.NotFound, SessionBusy, ActorDead, StorageError)

WITHOUT_ROWS = """
SELECT run_id FROM runs WHERE status NOT IN ('queued', 'running', 'dropped', 'steered')
AND NOT EXISTS (SELECT 1 FROM messages WHERE messages.run_id = runs.run_id)"""


@attrs.define
class Effect:
    """What a call has done, as its tool has noted it. ``ended`` is in virtual seconds."""

    began: bool = False
    ended: float | None = None
    failed: bool = False


class Labour:
    """The effects of all calls, by the number that each has as its argument."""

    def __init__(self, sim: Simulation) -> None:
        self.sim = sim
        self.effects: dict[int, Effect] = {}
        self.numbers = count()
        self.life: Life | None = None

    @property
    def is_watched(self) -> bool:
        """After a power cut nothing happens any more."""
        return self.life is not None and not self.life.is_over

    def begin(self, n: int) -> None:
        if self.is_watched:
            effect = self.effects.setdefault(n, Effect())
            if effect.began:
                self.sim.violated("G7", f"call {n}", "it was run twice")
            effect.began = True

    def end(self, n: int, *, failed: bool) -> None:
        if self.is_watched:
            self.effects[n].ended, self.effects[n].failed = trio.current_time(), failed


class Worker:
    """A model that has some batches of calls made, and then says that it is done."""

    name = "worker"

    def __init__(self, labour: Labour) -> None:
        self.labour = labour

    @asynccontextmanager
    async def request(self, request: ModelRequest) -> AsyncGenerator[AsyncIterator[ModelEvent]]:
        await trio.lowlevel.checkpoint()
        chance = self.labour.sim.random
        turns = [row for row in request.messages if isinstance(row, UserMessage)]
        batches = [row for row in request.messages if isinstance(row, AssistantMessage)]
        more = request.tools and len(batches) < len(turns) + 1 and chance.random() < 0.7
        calls = chance.choice((1, 2, 2, 3, MOST_CALLS)) if more else 0
        events: list[ModelEvent] = [TextPart("so"), TextPart(" be it")]
        for index in range(calls):
            # Ids neither in the order of the calls nor in that of their numbers as text.
            events.append(CallStart(index, f"call_{calls - index}", "work"))
            events.append(CallArguments(index, self._arguments()))
        end = Finished("tool_calls" if calls else "stop")
        yield Played([*events, UsageReport(Usage(10, 5)), end])

    def _arguments(self) -> str:
        chance, n = self.labour.sim.random, next(self.labour.numbers)
        job = {"n": n, "seconds": chance.choice((0, 0, 1, 2)), "fails": chance.random() < 0.2}
        return msgspec.json.encode(job).decode()


def worker(labour: Labour) -> motet.Agent[None, str]:
    agent = motet.Agent("worker", model=Worker(labour))

    @agent.tool
    async def work(n: int, seconds: float, fails: bool) -> str:
        await trio.lowlevel.checkpoint()
        labour.begin(n)
        await trio.sleep(seconds)
        labour.end(n, failed=fails)
        if fails:
            raise OSError(f"{n} went wrong")
        return f"did {n}"

    return agent


# ---------------------------------------------------------------------- the world


async def transcripts(sim: Simulation) -> None:
    """A host that ends somehow, and what the next one finds."""
    labour = Labour(sim)
    with new_place(sim) as place:
        end = await _first_life(sim, place, labour)
        # What could not be written while a store was down is known to nobody later.
        whole, cut_at = end != "storage", trio.current_time()
        if sim.random.random() < 0.3:
            async with place.life(worker(labour)) as labour.life:
                await settled(labour.life.open_host)
        with place.opened() as stored:
            for (run_id,) in stored.run(WITHOUT_ROWS):
                sim.violated("G7", str(run_id), "it has ended, and has no rows")
    found = await _loaded(place)
    for session, rows in found.items():
        _judge(sim, labour, session, rows, cut_at if whole else 0.0)
    told = {call.n for rows in found.values() for call in _calls(rows)}
    for n, effect in labour.effects.items():
        if whole and effect.began and n not in told:
            sim.violated("G7", f"call {n}", "it was run, and no transcript has it")


async def _first_life(sim: Simulation, place: Place, labour: Labour) -> str:
    """Returns how it ended."""
    chance = sim.random
    end, steps = chance.choice(ENDS), chance.randrange(1, STEPS)
    agent, struck = worker(labour), trio.Event()
    async with place.life(agent) as life, trio.open_nursery() as nursery:
        labour.life = life
        host, scopes = life.open_host, [trio.CancelScope() for _ in SESSIONS]
        for session, scope in zip(SESSIONS, scopes, strict=True):
            nursery.start_soon(_talk, sim, host, agent, session, scope)
        match end:
            case "power" if chance.random() < 0.7:
                life.strike_after(steps, life.power_cut)
            case "power":
                nursery.start_soon(_cut_later, life, chance.choice((0.5, 1.5, 2.5)))
            case "crash" | "storage":
                life.crash_after(steps, chance.choice(PARTS if end == "crash" else STORES))
            case "cancel":
                life.strike_after(steps, chance.choice(scopes).cancel)
            case "stop":
                life.strike_after(steps, struck.set)
                nursery.start_soon(_stop, host, struck, chance.choice(SESSIONS))
            case _:
                pass
        await trio.sleep(chance.choice((0, 0.5, 100)))
        if end != "power":
            await settled(host)
        nursery.cancel_scope.cancel()
    return end


async def _talk(
    sim: Simulation,
    host: motet.Host,
    agent: motet.Agent[None, str],
    session: str,
    scope: trio.CancelScope,
) -> None:
    with suppress(*REFUSALS):
        if sim.random.random() < 0.4:
            with scope:
                await host.run(agent, "go", session=session, check=False)
            return
        await host.submit("go", session=session, agent=agent.name)
        if sim.random.random() < 0.3:
            await host.submit("on", session=session, mode=sim.random.choice(MODES))


async def _cut_later(life: Life, seconds: float) -> None:
    """While nothing happens but what takes long."""
    await trio.sleep(seconds)
    life.power_cut()


async def _stop(host: motet.Host, struck: trio.Event, session: str) -> None:
    await struck.wait()
    await host.stop(session=session, grace=60)


async def _loaded(place: Place) -> dict[str, tuple[ChatMessage, ...]]:
    """What a host that finds nobody to go on makes of the runs that were left."""
    with place.disk.location() as location:
        readers, writer = Readers(location), Writer(location)
        await writer.open()
        async with open_system() as system:
            store = await system.start(lambda: SessionStore(writer.submit, readers), name="store")
            await store.ask(RecoverRuns())
            found = {name: await store.ask(LoadTranscript(name)) for name in SESSIONS}
        await readers.aclose()
        await writer.aclose()
    return found


# ---------------------------------------------------------------------- the law


@attrs.frozen
class _Told:
    """A call as a transcript has it."""

    n: int
    results: tuple[ToolMessage, ...]


def _calls(rows: Sequence[ChatMessage]) -> list[_Told]:
    """All calls, each with the rows that stand where its result has to be."""
    told: list[_Told] = []
    for at, row in enumerate(rows):
        if not isinstance(row, AssistantMessage):
            continue
        for place, call in enumerate(row.calls, at + 1):
            result = rows[place] if place < len(rows) else None
            mine = isinstance(result, ToolMessage) and result.call_id == call.id
            told.append(_Told(_number(call), (result,) if mine else ()))  # type: ignore[arg-type]
    return told


def _judge(
    sim: Simulation, labour: Labour, session: str, rows: Sequence[ChatMessage], cut_at: float
) -> None:
    wrong = violations(rows)
    if wrong:
        sim.violated("G7", session, "; ".join(wrong))
    if rows and not (isinstance(rows[-1], AssistantMessage) and not rows[-1].calls):
        sim.violated("G7", session, "its last run has no end")
    for call in _calls(rows):
        for result in call.results:
            problem = _untrue(call.n, result, labour.effects.get(call.n, Effect()), cut_at)
            if problem:
                sim.violated("G7", f"call {call.n}", problem)


def _untrue(n: int, result: ToolMessage, effect: Effect, cut_at: float) -> str | None:
    """What is wrong with a result, given what its call has done."""
    said = result.outcome
    if effect.ended is not None and not effect.failed:
        if said == "done":
            return None if result.text == f"did {n}" else f"its result is {result.text!r}"
        # What was done a moment ago may be on its way to disk.
        young = said == "unknown" and effect.ended >= cut_at - PATIENCE
        return None if young else f"it was done, and is told to be {said}"
    if effect.began:
        # While a failure is put on record it may be cut off.
        honest = ("cancelled_while_running", "unknown", *(["failed"] if effect.failed else []))
        return None if said in honest else f"it was not done, and is told to be {said}"
    return "it has not begun, and is told to be done" if said == "done" else None


def _number(call: Call) -> int:
    job: dict[str, int] = msgspec.json.decode(call.arguments)
    return job["n"]


VALID_TRANSCRIPT = Law("G7", Search("G7", transcripts, policies=HOST_POLICIES))
