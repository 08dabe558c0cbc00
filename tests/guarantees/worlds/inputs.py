"""A world of people who send inputs to hosts that die (G15).

Each input says which one it is, so that it can be found wherever it has got to. Whoever gets no
acknowledgement sends it again, with its key, to this host or the next. In the end all is quiet:
what was acknowledged is answered once, or listed as interrupted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, suppress

import attrs
import trio

import motet
from motet.actors.models.provider import Played
from motet.protocols.models import Finished, ModelEvent, ModelRequest, TextPart, Usage, UsageReport
from motet.protocols.queueing import QueueMode
from motet.protocols.storage import StorageError
from motet.runtime import ActorDead
from motet.runtime.testing import Simulation
from tests.guarantees.law import HOST_POLICIES, Law, Search
from tests.guarantees.worlds.hosts import Life, Place, new_place, settled

USERS = ("ann", "bob")
MOST = 2  # inputs of one user
STEPS = 180  # within which the power goes
MODES: tuple[QueueMode, ...] = ("followup", "followup", "collect", "steer")

RUNS = "SELECT run_id, status, text FROM runs"
ASKED = "SELECT body FROM messages WHERE role = 'user'"
ENDS = """
SELECT run_id, event FROM events WHERE event IN
('run.completed', 'run.failed', 'run.cancelled', 'run.limited', 'run.interrupted')"""


@attrs.define
class Input:
    """``runs``: what it was acknowledged as; ``tries``: how often it was sent."""

    name: str
    user: str
    key: str | None
    mode: QueueMode
    runs: set[str] = attrs.field(factory=set[str])
    tries: int = 0

    @property
    def is_due(self) -> bool:
        """Without a key it is not sent again: nobody could tell that it is the same."""
        return not self.runs and (self.tries == 0 or self.key is not None)


class Clerk:
    """A model that takes its time, and has an answer to everything."""

    name = "clerk"

    def __init__(self, sim: Simulation) -> None:
        self.sim = sim

    @asynccontextmanager
    async def request(self, request: ModelRequest) -> AsyncGenerator[AsyncIterator[ModelEvent]]:
        del request
        await trio.sleep(self.sim.random.choice((0, 0, 1)))
        yield Played([TextPart("noted"), UsageReport(Usage(10, 5)), Finished("stop")])


async def inputs(sim: Simulation) -> None:
    """Hosts that lose their power, and one that does not."""
    chance = sim.random
    sent = [
        Input(f"input {user} {n}.", user, f"k{n}" if chance.random() < 0.7 else None, _mode(sim))
        for user in USERS
        for n in range(chance.randrange(1, MOST + 1))
    ]
    listed = set[str]()
    with new_place(sim) as place:
        for _ in range(chance.choice((0, 1, 1, 1, 2))):
            await _life(sim, place, sent, listed, chance.randrange(1, STEPS))
        await _life(sim, place, sent, listed, None)
        found = Found.on(place)
    _judge(sim, found, sent, listed)


def _mode(sim: Simulation) -> QueueMode:
    return sim.random.choice(MODES)


async def _life(
    sim: Simulation, place: Place, sent: list[Input], listed: set[str], steps: int | None
) -> None:
    agent = motet.Agent("clerk", model=Clerk(sim))
    async with place.life(agent) as life, trio.open_nursery() as nursery:
        listed |= {run.run_id for run in life.open_host.interrupted}
        if steps is not None:
            life.strike_after(steps, life.power_cut)
        for user in USERS:
            mine = [one for one in sent if one.user == user]
            nursery.start_soon(_send, sim, life, mine, steps is None)


async def _send(sim: Simulation, life: Life, mine: list[Input], to_the_end: bool) -> None:
    """Send what is due, one after the other; at times nobody waits for the acknowledgement.

    What has a key may be sent once more, whatever was said of it before.
    """
    for one in mine:
        if one.runs and one.key is not None and sim.random.random() < 0.2:
            await _send_one(life, one)
    while due := [one for one in mine if one.is_due]:
        for one in due:
            patience = 100.0 if to_the_end else sim.random.choice((0, 0.001, 100, 100))
            with trio.move_on_after(patience), suppress(ActorDead, StorageError):
                await _send_one(life, one)
            await trio.sleep(sim.random.choice((0, 0, 0.5)))
    await settled(life.open_host)


async def _send_one(life: Life, one: Input) -> None:
    one.tries += 1
    ack = await life.open_host.submit(
        one.name,
        session=one.user,
        agent="clerk",
        mode=one.mode,
        key=one.key,
        principal=motet.Principal(one.user),
    )
    if not life.is_over:
        one.runs.add(ack.run_id)


# ---------------------------------------------------------------------- the law


@attrs.frozen
class Found:
    """What the disk has in the end: runs, the rows of users, how runs were told to have ended."""

    runs: dict[str, str]
    texts: dict[str, str]
    asked: list[str]
    told: list[tuple[str, str]]

    @classmethod
    def on(cls, place: Place) -> Found:
        with place.opened() as stored:
            runs = [tuple(map(str, row)) for row in stored.run(RUNS)]
            return cls(
                {run_id: status for run_id, status, _ in runs},
                {run_id: text for run_id, _, text in runs},
                [str(body) for (body,) in stored.run(ASKED)],
                [(str(run_id), str(event)) for run_id, event in stored.run(ENDS)],
            )


def _judge(sim: Simulation, found: Found, sent: list[Input], listed: set[str]) -> None:
    listed = listed | {run_id for run_id, event in found.told if event == "run.interrupted"}
    for one in sent:
        for problem in _problems(found, one, listed):
            sim.violated("G15", one.name, problem)
    for run_id, count in Counter(run_id for run_id, _ in found.told).items():
        if count > 1:
            sim.violated("G15", run_id, f"its end was told {count} times")


def _problems(found: Found, one: Input, listed: set[str]) -> list[str]:
    problems: list[str] = []
    started = [run_id for run_id, text in found.texts.items() if one.name in text]
    # What has entered another run is in the text of that one too.
    answering = [run_id for run_id in started if found.runs[run_id] != "steered"]
    asked = sum(one.name in body for body in found.asked)
    if len(answering) > 1:
        problems.append(f"it has started the runs {answering}")
    if asked > 1:
        problems.append(f"it is in {asked} rows")
    if len(one.runs) > 1:
        problems.append(f"it was acknowledged as {sorted(one.runs)}")
    for run_id in sorted(one.runs):
        status = found.runs.get(run_id, "missing")
        if status in ("completed", "steered") and not asked:
            problems.append(f"it is {status}, and no transcript has it")
        elif status == "interrupted" and run_id not in listed:
            problems.append("it was interrupted, and nobody was told")
        elif status not in ("completed", "steered", "interrupted"):
            problems.append(f"it was acknowledged as {run_id}, which is {status}")
    return problems


DURABLE_INPUT = Law("G15", Search("G15", inputs, policies=HOST_POLICIES))
