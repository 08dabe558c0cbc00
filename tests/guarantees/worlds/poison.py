"""A world in which taking up one session ends the host, again and again (G14).

What the first host finds was accepted by one before: an input that is poison, and others beside it.
While a host dies of the poison, a session that is new to it gets its first input, for the next host
to take up. After so many deaths in a row the poison is cured, or is to be put aside.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

import attrs
import msgspec
import trio

import motet
from motet.actors.models.provider import Played
from motet.actors.storage import session_runs
from motet.actors.storage.writer import commit_group
from motet.protocols.models import Finished, ModelEvent, ModelRequest, TextPart, Usage, UsageReport
from motet.protocols.recovery import InputOptions, Quarantined
from motet.protocols.sessions import NewInput
from motet.protocols.storage import StorageError
from motet.runtime import ActorDead
from motet.runtime.testing import Simulation
from tests.guarantees.law import HOST_POLICIES, Law, Search
from tests.guarantees.worlds.hosts import ADMIN, EPOCH, Life, Place, new_place, settled

BAD = "bad"
SOUND = ("a", "z")  # a session that is taken up before or after the bad one, if by name
STEPS = 30  # that a host goes on for after it was poisoned

ANN = motet.Principal("ann")

RUNS = "SELECT run_id, status FROM runs"
TOLD = "SELECT count(*) FROM events WHERE stream = ? AND event = 'session.quarantined'"


@attrs.define
class Story:
    """What the hosts of one world have lived through.

    Attributes:
        most: deaths in a row after which the bad session is to be put aside.
        cure: deaths after which the poison is none any more.
        deaths: of hosts that had taken it up.
        is_said_now: it is no host's legacy: somebody says it to this one.
        late: runs of sessions that were begun by hosts which were dying.
    """

    sim: Simulation
    most: int
    cure: int
    deaths: int = 0
    is_said_now: bool = False
    late: list[str] = attrs.field(factory=list[str])
    aside: tuple[Quarantined, ...] = ()
    life: Life | None = None
    drunk: trio.Event = attrs.field(factory=trio.Event)

    @property
    def is_cured(self) -> bool:
        return self.deaths >= self.cure

    def drink(self) -> None:
        """The host will die of it in a moment."""
        life = self.life
        if life is None or life.is_over:
            return
        if not self.is_said_now:
            self.deaths += 1
            if self.aside:
                self.sim.violated("G14", BAD, "it was taken up while it was aside")
        self.drunk.set()
        life.strike_after(self.sim.random.randrange(1, STEPS), life.power_cut)

    async def next_life(self, place: Place) -> bool:
        """Open a host; whether it has ended of its own accord."""
        recovery = motet.RecoveryConfig(quarantine_after=self.most)
        agents = [motet.Agent(name, model=Model(name, self)) for name in (BAD, "sound")]
        config = motet.HostConfig(recovery=recovery)
        async with place.life(*agents, config=config) as life, trio.open_nursery() as nursery:
            self.life, was_said = life, self.is_said_now
            self.is_said_now, self.drunk = False, trio.Event()
            self.aside = await life.open_host.quarantined(principal=ADMIN)
            nursery.start_soon(self._begin_late, life)
            await settled(life.open_host)
            if self.aside and not was_said and self.sim.random.random() < 0.3:
                self.is_said_now = True
                await life.open_host.submit("once more", session=BAD, principal=ANN)
                await settled(life.open_host)
            nursery.cancel_scope.cancel()
            return True
        return False

    async def _begin_late(self, life: Life) -> None:
        """What a dying host has begun was never taken up: the next one must do it."""
        await self.drunk.wait()
        with suppress(ActorDead):
            name = f"late {len(self.late)}"
            ack = await life.open_host.submit("hello", session=name, agent="sound", principal=ANN)
            if not life.is_over:
                self.late.append(ack.run_id)


class Model:
    """Answers in a moment, unless it is poisoned."""

    def __init__(self, name: str, story: Story) -> None:
        self.name = name
        self.story = story

    @asynccontextmanager
    async def request(self, request: ModelRequest) -> AsyncGenerator[AsyncIterator[ModelEvent]]:
        del request
        await trio.sleep(0.5)
        if self.name == BAD and not self.story.is_cured:
            await trio.sleep(0.5)  # so that what is sound has been answered
            self.story.drink()
            await trio.sleep_forever()
        yield Played([TextPart("fine"), UsageReport(Usage(10, 5)), Finished("stop")])


async def poison(sim: Simulation) -> None:
    """Hosts until one of them does not die."""
    most = sim.random.choice((1, 2))
    story = Story(sim, most, cure=sim.random.choice((0, 1, 2, 99)))
    with new_place(sim) as place:
        sound = sim.random.choice(SOUND)
        _accept(place, sorted((sound, BAD)))
        for _ in range(most + 3):
            if await story.next_life(place):
                break
        else:
            sim.violated("G14", "host", f"it has died {most + 3} times")
        _judge(story, place, sound)


def _accept(place: Place, sessions: Sequence[str]) -> None:
    """What a host before all others has acknowledged, and no more."""
    with place.opened() as stored:
        for name in sessions:
            agent = name if name == BAD else "sound"
            given = msgspec.json.encode(InputOptions(role="operator")).decode()
            new = NewInput(f"run {name}", name, agent, ANN.user, "drink me", given=given)
            (done,) = commit_group(stored, [session_runs.input_statements(new, EPOCH)], "the disk")
            assert not isinstance(done, StorageError), done


def _judge(story: Story, place: Place, sound: str) -> None:
    found = story.sim.violated
    with place.opened() as stored:
        runs = {str(run_id): str(status) for run_id, status in stored.run(RUNS)}
        ((told,),) = stored.run(TOLD, (f"session:{BAD}",))
    expected = min(story.cure, story.most)
    if story.deaths != expected:
        found("G14", BAD, f"{story.deaths} hosts died of it, not {expected}")
    aside = [(one.session, one.tries) for one in story.aside]
    is_due = story.cure >= story.most
    if aside != ([(BAD, story.most)] if is_due else []):
        found("G14", BAD, f"after {story.deaths} deaths these are aside: {aside}")
    if told != int(is_due):
        found("G14", BAD, f"that it is aside was told {told} times")
    ended = "interrupted" if is_due else "completed"
    if runs[f"run {BAD}"] != ended:
        found("G14", BAD, f"its input is {runs[f'run {BAD}']}, not {ended}")
    for run_id in (f"run {sound}", *story.late):
        if runs.get(run_id) != "completed":
            found("G14", run_id, f"it is {runs.get(run_id, 'missing')}")


CONTAINMENT = Law("G14", Search("G14", poison, policies=HOST_POLICIES))
