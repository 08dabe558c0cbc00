"""A world of linked actors of which some fail (G9).

Three actors that are supervised one by one, and a group of two that restarts together. Links come
and go between any of them; one by one, or several in the same moment, the actors crash, end by
themselves, or are stopped for ever.

The law: whoever is linked to an actor that fails or restarts with its group fails too, directly or
through others, and so does the group of each; nobody else is restarted, and nobody twice. A link is
on both sides or on none. After a burst, in which the order decides what is linked to what, only the
last sentence holds, and that everybody who lives is started again.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import attrs
import trio

from motet.protocols.messages import Message, Request
from motet.runtime import Actor, ActorDead, ActorRef, LinkBroken, Supervision, handles, open_system
from motet.runtime.ref import cell_of
from motet.runtime.testing import Simulation
from tests.guarantees.law import Law, Search

__all__ = ["LINKED", "NAME", "Crash", "End", "Join", "Linked", "Model", "Work", "links_of"]

NAME = "G9 links"
ROUNDS = 12
GROUP = ("/system/group/d", "/system/group/e")
PATHS = ("/system/a", "/system/b", "/system/c", *GROUP)


class Crash(Message, frozen=True, tag="linked.crash"):
    pass


class End(Message, frozen=True, tag="linked.end"):
    pass


class Join(Message, frozen=True, tag="linked.join"):
    """Link to ``path``, or undo it."""

    path: str
    undone: bool = False


class Work(Request[str], frozen=True, tag="linked.work"):
    """Takes a while; the answer is the path of its actor."""


class Broken(Exception):
    """A handler was told to fail."""


class Linked(Actor[Crash | End | Join | Work]):
    def __init__(self, reasons: list[tuple[str, str]]) -> None:
        self.reasons = reasons

    async def on_start(self) -> None:
        if isinstance(self.restart_reason, LinkBroken):
            self.reasons.append((self.path, self.restart_reason.path))

    async def on_stop(self) -> None:
        await trio.sleep(0)

    @handles(Crash)
    async def crash(self, _: Crash) -> None:
        raise Broken

    @handles(End)
    async def end(self, _: End) -> None:
        self.stop_soon()

    @handles(Work)
    async def work(self, _: Work) -> str:
        await trio.sleep(0.5)
        return self.path

    @handles(Join)
    async def join(self, message: Join) -> None:
        other = self.system.find(message.path)
        if other is None:
            return
        if message.undone:
            self.unlink(other)
            return
        try:
            self.link(other)
        except ActorDead:
            return  # it ends, and is still to be found


class Pair(Actor[End]):
    supervision = Supervision(strategy="one_for_all", intensity=1000)

    def __init__(self, make: partial[Linked]) -> None:
        self.make = make

    async def on_start(self) -> None:
        for path in GROUP:
            await self.start_child(self.make, name=path.rsplit("/", 1)[-1])

    @handles(End)
    async def end(self, _: End) -> None:
        self.stop_soon()


@attrs.define
class Model:
    """Who is linked to whom, and how often each was restarted."""

    links: set[frozenset[str]] = attrs.field(factory=set[frozenset[str]])
    restarts: dict[str, int] = attrs.field(factory=lambda: dict.fromkeys(PATHS, 0))

    def after(self, path: str, message: Message | None) -> None:
        """``message`` is handled by the actor at ``path``; None: it is stopped."""
        match message:
            case Join(other, undone):
                if undone:
                    self.links.discard(frozenset((path, other)))
                elif other != path and other in self.restarts and path in self.restarts:
                    self.links.add(frozenset((path, other)))
            case Crash():
                self.fail(path)
            case None:
                self.part([path])
                self.restarts.pop(path, None)
            case _:
                # A normal end of one restarts its group, but it has not failed itself.
                self.part([path])
                others = [one for one in GROUP if path in GROUP and one != path]
                self.restarts[path] += 1
                for one in others:
                    if one in self.restarts:
                        self.fail(one, [path])

    def fail(self, path: str, restarted: Iterable[str] = ()) -> None:
        """``path`` and all who hang on it fail; those in ``restarted`` are being so already."""
        failed = [path]
        for one in failed:
            near = {other for pair in self.links if one in pair for other in pair}
            near.update(GROUP if one in GROUP else ())
            failed += [
                other
                for other in sorted(near)
                if other in self.restarts and other not in failed and other not in restarted
            ]
        for one in failed:
            self.restarts[one] += 1
        self.part(failed)

    def part(self, ended: Iterable[str]) -> None:
        """No link of those who have ended is left."""
        self.links = {pair for pair in self.links if not pair & {*ended}}


async def _linked(sim: Simulation) -> None:
    chance = sim.random
    model = Model()
    reasons: list[tuple[str, str]] = []
    make = partial(Linked, reasons)
    async with open_system(supervision=Supervision(intensity=1000)) as system:
        for path in PATHS[:3]:
            await system.start(make, name=path.rsplit("/", 1)[-1])
        await system.start(partial(Pair, make), name="group")
        refs = {path: system.find(path) for path in PATHS}
        living: dict[str, ActorRef[Any]] = {path: ref for path, ref in refs.items() if ref}
        for _ in range(ROUNDS):
            burst = chance.choice((1, 1, 1, 2, 4))
            for _ in range(burst):
                path, message = _drawn(chance.random(), chance.choice([*living]), sim)
                if message is None:
                    if len(living) < 4:
                        continue
                    await living.pop(path).stop()
                else:
                    await living[path].tell(message)
                model.after(path, message)
            await trio.sleep(100)
            seen = {path: ref.statistics().restarts for path, ref in living.items()}
            links = links_of(sim, living)
            if burst == 1:
                if seen != model.restarts:
                    sim.violated("G9", "/system", f"restarts {seen}, expected {model.restarts}")
                if links != model.links:
                    sim.violated("G9", "/system", f"links {links}, expected {model.links}")
            model.links, model.restarts = links, seen
            for path, other in reasons:
                if path == other:
                    sim.violated("G9", path, "failed by itself")


def _drawn(roll: float, path: str, sim: Simulation) -> tuple[str, Message | None]:
    if roll < 0.6:
        return path, Join(sim.random.choice(PATHS), undone=roll < 0.08)
    if roll < 0.85:
        return path, Crash()
    return path, End() if roll < 0.95 else None


def links_of(sim: Simulation, living: dict[str, ActorRef[Any]]) -> set[frozenset[str]]:
    """The links there are; each has to be on both sides, and between two who live."""
    sides = [
        (path, other.path) for path, ref in living.items() for other in cell_of(ref).links or ()
    ]
    for one, other in sides:
        if (other, one) not in sides:
            sim.violated("G9", one, f"is linked to {other}, which is not linked to it")
    return {frozenset(pair) for pair in sides}


LINKED = Law(NAME, Search("G9", _linked))
