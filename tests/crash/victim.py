"""The host that is killed: fifty people, ten who interrupt their agents, approvals, and rooms.

``python -m tests.crash.victim FOLDER SEED LIFE [MODE]``; the last life is ``quiet``: nobody says
anything new, and it ends by itself when nothing is left to be done. In any other mode its storage
is taken away for a while, and everybody tries again.
"""

from __future__ import annotations

import logging
import signal
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any, TypeVar
from zlib import crc32

import trio

import motet
from motet.actors.storage import location
from motet.protocols.approvals import ApprovalDecision
from motet.protocols.errors import MotetError
from motet.protocols.recovery import RecoveryConfig
from motet.protocols.rooms import ROOM_MODES
from motet.protocols.sessions import QueueFull, RunStatus, ShuttingDown
from motet.protocols.storage import StorageUnavailable
from tests import room_sums
from tests.crash import clubs
from tests.crash.workload import Diary, lines, listener, mixed_plans, plans, worker

T = TypeVar("T")
SESSIONS = 50
MIXED = 10
PATIENCE = 3
MIXED_PATIENCE = 6
"""Texts to which a person awaits an answer, at most: with long queues nearly all of a life would go
into taking up what was said in earlier ones, and no text would steer."""
BUSY: tuple[RunStatus, ...] = ("queued", "running", "waiting")


class Life:
    """One life of the host, from its start to its kill."""

    def __init__(self, folder: Path, seed: int, life: int, *, quiet: bool) -> None:
        self.folder, self.seed, self.quiet = folder, seed, quiet
        self.random = Random(f"{seed}:{life}")
        self.acks = Diary(folder / "acks")
        self.posts = Diary(folder / "posts")
        self.said = Diary(folder / "said")
        self.starts = Diary(folder / "starts")
        self.began, self.cpu = time.monotonic(), time.process_time()
        self.served = False
        self.unanswered = Counter[str]()

    async def live(self) -> None:
        effects = Diary(self.folder / "effects")
        agent = worker(self.random, effects)
        mixed = worker(self.random, effects, "mixed", mixed=True)
        config = motet.HostConfig(
            approvals=motet.ApprovalsConfig(hold=0.05),
            recovery=RecoveryConfig(quarantine_after=10),
        )
        agents = [agent, mixed, *clubs.agents(self.random, self.folder)]
        async with motet.open_host(self.folder / "state", config=config, agents=agents) as host:
            for one in await host.quarantined():
                self.starts.write(f"released {one.session}")
                await host.release(one.session)
            self.starts.write(f"resumed {len(host.resumed)}")
            self.starts.write(f"interrupted {len(host.interrupted)}")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.approve, host)
                nursery.start_soon(told_to_end, self.gather, host, agent)
                nursery.start_soon(told_to_end, self.talk_over, host)
                nursery.start_soon(self.drain, host, nursery.cancel_scope)
                if self.quiet:
                    await self.wait_quiet(host)
                    nursery.cancel_scope.cancel()
                else:
                    acked = lines(self.folder / "acks")
                    await self.count(host)
                    nursery.start_soon(self.keep_count, host)
                    for session in range(SESSIONS):
                        nursery.start_soon(told_to_end, self.talk, host, session, acked)
                    for session in range(MIXED):
                        nursery.start_soon(told_to_end, self.mix, host, session, acked)
                    for mode in ROOM_MODES:
                        club = clubs.Club(self.folder, mode, self.random, stored)
                        nursery.start_soon(told_to_end, club.live, host)

    async def keep_count(self, host: motet.Host) -> None:
        while True:
            await self.count(host)
            await trio.sleep(0.05)

    async def count(self, host: motet.Host) -> None:
        """Count the texts of each session that are not answered."""
        found = [await host.runs(status=status, limit=1_000) for status in BUSY]
        self.unanswered = Counter(run.session for runs in found for run in runs)

    async def patient(self, session: str, most: int) -> None:
        while self.unanswered[session] >= most:
            await trio.sleep(0.02)

    async def talk(self, host: motet.Host, session: int, acked: list[str]) -> None:
        """Say one thing after the other; what was not acknowledged is said again."""
        done = sum(1 for line in acked if line.startswith(f"{session}/"))
        for text in islice(plans(self.seed, session), done, None):
            key = text.split(" ")[0]
            await self.patient(f"s{session}", PATIENCE)
            ack = await self.insist(host, text, f"s{session}", key)
            self.acks.write(f"{key} {ack.run_id}")
            if not self.served:
                self.served = True
                elapsed, cpu = time.monotonic() - self.began, time.process_time() - self.cpu
                self.starts.write(f"serving {elapsed:.4f} {cpu:.4f}")
                print("serving", flush=True)
            await trio.sleep(self.random.expovariate(1 / 0.5))

    async def insist(
        self, host: motet.Host, text: str, session: str, key: str, agent: str = "worker"
    ) -> motet.Ack:
        while True:
            try:
                return await host.submit(text, session=session, agent=agent, key=key)
            except (QueueFull, StorageUnavailable):
                await trio.sleep(0.05)

    async def mix(self, host: motet.Host, session: int, acked: list[str]) -> None:
        """Send texts in all modes while runs think, work, and wait for a person; stop some."""
        done, name = sum(1 for line in acked if line.startswith(f"m{session}/")), f"m{session}"
        for key, text, mode, pause in islice(mixed_plans(self.seed, session), done, None):
            await self.patient(name, MIXED_PATIENCE)
            try:
                ack = await host.submit(text, session=name, agent="mixed", key=key, mode=mode)
            except (QueueFull, StorageUnavailable):
                await trio.sleep(0.05)
                ack = await self.insist(host, text, name, key, "mixed")
            self.acks.write(f"{key} {ack.run_id}")
            self.unanswered[name] += 1
            await trio.sleep(pause)
            if self.random.random() < 0.05:
                with suppress(MotetError):
                    await host.stop(session=name, newest=True)

    async def drain(self, host: motet.Host, scope: trio.CancelScope) -> None:
        """End in order when the process is told to."""
        with trio.open_signal_receiver(signal.SIGTERM) as signals:
            async for _ in signals:
                await host.drain(0.05)
                scope.cancel()

    async def approve(self, host: motet.Host) -> None:
        """Two of three calls are allowed, always the same ones."""
        again = 0
        while True:
            waiting = await host.approvals(state="pending", limit=100)
            for run in await host.runs(status="waiting", limit=100) if not again % 10 else ():
                # One that was taken up too often waits for the person to say so again.
                known = await host.approvals(session=run.session, limit=1_000)
                waiting += tuple(one for one in known if one.blocked and one.run_id == run.run_id)
            again += 1
            for info in waiting:
                decision: ApprovalDecision = "allow-once"
                if crc32(info.id.encode()) % 3 == 0:
                    decision = "deny"
                try:
                    await host.approve(info.id, decision)
                except MotetError:
                    continue  # its run has ended meanwhile
            await trio.sleep(0.03)

    async def gather(self, host: motet.Host, agent: motet.Agent[None, str]) -> None:
        """A room in which a person says something now and then, and three agents answer."""
        members = [motet.Agent(name, model=agent.model) for name in ("ann", "ben")]
        members.insert(1, listener(self.random, Diary(self.folder / "effects")))
        hall = motet.Room("hall", members=members, max_turns=3)
        room = await stored(lambda: host.open_room(hall))
        posted = len(lines(self.folder / "posts"))
        while not self.quiet:
            post = partial(room.post, f"words {posted}", user="carl", key=f"post-{posted}")
            said = await stored(post)
            self.posts.write(f"{posted} {said.seq}")
            posted += 1
            await trio.sleep(self.random.expovariate(1 / 0.4))

    async def talk_over(self, host: motet.Host) -> None:
        """A room in which a person goes on talking, into turns that wait for an approval."""
        member = listener(self.random, Diary(self.folder / "effects"), "dot")
        settings = motet.Room("den", members=[member], max_turns=2, mode="steer")
        room = await stored(lambda: host.open_room(settings))
        posted = len(lines(self.folder / "said"))
        while not self.quiet:
            post = partial(room.post, f"words {posted}", user="dora", key=f"said-{posted}")
            said = await stored(post)
            self.said.write(f"{posted} {said.seq}")
            posted += 1
            await trio.sleep(self.random.expovariate(1 / 0.1))

    async def wait_quiet(self, host: motet.Host) -> None:
        with trio.fail_after(120):
            while True:
                found = [await host.runs(status=status, limit=1) for status in BUSY]
                rooms = await host.rooms.list()
                if rooms and all(room.idle for room in rooms) and not any(found):
                    return
                await trio.sleep(0.05)


async def stored(call: Callable[[], Awaitable[T]]) -> T:
    """Try again until the storage takes it."""
    while True:
        try:
            return await call()
        except StorageUnavailable:
            await trio.sleep(0.05)


async def told_to_end(person: Callable[..., Awaitable[None]], *given: Any) -> None:
    """A person who says nothing more when the host shuts down."""
    with suppress(ShuttingDown):
        await person(*given)


def main(folder: str, seed: str, life: str, mode: str = "") -> None:
    logging.disable(logging.CRITICAL)
    if mode:  # one that waits long for a lock would see the end of few
        location.BUSY_TIMEOUT = 0.05
    one = Life(Path(folder), int(seed), int(life), quiet=mode == "quiet")
    with clubs.recorded(Path(folder), int(life)), room_sums.watched():
        trio.run(one.live)


if __name__ == "__main__":
    main(*sys.argv[1:])
