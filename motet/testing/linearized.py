"""Programs for plain actors: clients that send at once, crashes, and a sequential model.

The clients send what the actor's protocol names; the actor crashes and its supervisor restarts it.
Afterwards there must be an order of all operations in which the model gives the same answers. A
lost update has none, and neither has an acknowledged change that a restart forgets.

Invariant: the same program gives the same history (G12). An operation whose asker got an error may
have happened or not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs
import msgspec
import trio

from motet.protocols.errors import MissingExtra
from motet.protocols.linearizable import Operation, linearization, shown
from motet.protocols.messages import Message, Request
from motet.runtime import Actor, ActorRef, Supervision, open_system
from motet.runtime.system import System
from motet.runtime.testing import Outcome, Simulation, explore, run

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

__all__ = ["ActorProgram", "Model", "NotLinearizable", "actor_programs"]

Model: TypeAlias = Callable[[Any, Any], tuple[Any, object]]
"""``model(state, message)`` gives the next state and the answer. Any: each actor has its own."""

Factory: TypeAlias = Callable[[], Actor[Any]]

NAME = "subject"
PATH = f"/system/{NAME}"
RESTARTS = 100
NUMBERS = (1, 2, 0, 5, 10, -1)
TEXTS = ("a", "b", "")
OFTEN = 3
"""Talks and clients are most often as many as they may be: those that are few find little."""
CRASHING = 0.8
"""The share of crashes that are allowed and happen."""
SEEDED = 0.6
"""The share of programs whose schedule is of the default policy; the others have its choices."""


class NotLinearizable(AssertionError):
    """No order of the operations explains their answers."""

    def __init__(self, program: ActorProgram, history: Sequence[Operation[Message]]) -> None:
        lines = "\n".join(f"  {line}" for line in shown(history))
        super().__init__(f"no order of these explains their answers:\n{lines}\nIn {program!r}")
        self.program = program
        self.history = tuple(history)


@attrs.frozen
class ActorProgram:
    """What clients send to one actor, and when it crashes.

    Attributes:
        actor: makes the actor, again for each restart.
        model, initial: the sequential model, and its first state.
        clients: the messages of each client, one after the other; clients are concurrent.
        crashes: the actor crashes after so many answers.
        choices, seed: of the schedule: choices, or the seed of the default policy without any.
    """

    actor: Factory = attrs.field(repr=lambda made: getattr(made, "__name__", repr(made)))
    model: Model = attrs.field(repr=lambda made: getattr(made, "__name__", repr(made)))
    initial: Any = None
    clients: tuple[tuple[Message, ...], ...] = ()
    crashes: tuple[int, ...] = ()
    choices: tuple[int, ...] | None = ()
    seed: int = 0

    def check(self) -> None:
        """Run it. Raises :class:`NotLinearizable`, and errors of the actor's start."""
        history: list[Operation[Message]] = []
        outcome = run(self._world(history), seed=self.seed, choices=self.choices, traced=False)
        self._judge(outcome, history)

    def explore(self, limit: int = 10_000) -> int:
        """Run it under every schedule; for two clients and a few messages. Returns the runs."""
        history: list[Operation[Message]] = []
        runs = 0
        for outcome in explore(self._world(history), limit=limit, seed=self.seed):
            self._judge(outcome, history)
            runs += 1
        return runs

    def _judge(self, outcome: Outcome[None], history: list[Operation[Message]]) -> None:
        outcome.check()
        if linearization(history, self.initial, self.model) is None:
            raise NotLinearizable(self, history)

    def _world(
        self, history: list[Operation[Message]]
    ) -> Callable[[Simulation], Any]:  # Any: a coroutine of the world
        async def world(_: Simulation) -> None:
            history.clear()
            clock = _Clock(sum(map(len, self.clients)))
            async with open_system(supervision=Supervision(intensity=RESTARTS)) as system:
                ref = await system.start(self.actor, name=NAME)
                clock.awaited = {answers: trio.Event() for answers in self.crashes}
                async with trio.open_nursery() as nursery:
                    for number, messages in enumerate(self.clients, 1):
                        # Named as of the actor, for its steps and theirs depend on each other.
                        name = f"{PATH} client {number}"
                        nursery.start_soon(
                            _client, f"client {number}", ref, messages, history, clock, name=name
                        )
                    for event in clock.awaited.values():
                        nursery.start_soon(_crash, system, event, name=f"{PATH} crash")
                    clock.answered(0)
                await trio.testing.wait_all_tasks_blocked()
            _close(history, clock, crashed=bool(self.crashes))

        return world


@attrs.define
class _Clock:
    """The order of calls and answers. At the last of them all awaited crashes are due."""

    left: int
    now: int = 0
    answers: int = 0
    awaited: dict[int, trio.Event] = attrs.field(factory=dict[int, trio.Event])

    def tick(self) -> int:
        self.now += 1
        return self.now

    def over(self, *, answered: bool) -> None:
        """An operation is over."""
        self.left -= 1
        self.answered(int(answered))

    def answered(self, more: int) -> None:
        """So many answers more."""
        self.answers += more
        for answers, event in self.awaited.items():
            if answers <= self.answers or not self.left:
                event.set()


async def _client(
    who: str,
    ref: ActorRef[Any],
    messages: Sequence[Message],
    history: list[Operation[Message]],
    clock: _Clock,
) -> None:
    for message in messages:
        place, told = len(history), not isinstance(message, Request)
        history.append(Operation(who, message, clock.tick(), told=told))
        answered = False
        with suppress(Exception):  # whatever it was: nobody knows whether it has happened
            if told:
                await ref.tell(message)
            else:
                asked: Request[object] = message  # type: ignore[assignment]  # `told` has looked
                answer = await ref.ask(asked)
                answered = True
                history[place] = msgspec.structs.replace(
                    history[place], returned=clock.tick(), answer=answer
                )
        clock.over(answered=answered)


async def _crash(system: System, due: trio.Event) -> None:
    await due.wait()
    system.inject(PATH, "crash")


def _close(history: list[Operation[Message]], clock: _Clock, *, crashed: bool) -> None:
    """What was told has happened by now, unless a crash may have lost it."""
    if not crashed:
        now = clock.tick()
        history[:] = [
            msgspec.structs.replace(one, returned=now) if one.told else one for one in history
        ]


# ---------------------------------------------------------------------- drawing


def actor_programs(
    actor: Factory,
    model: Model,
    initial: Any = None,
    *,
    clients: int = 3,
    messages: int = 3,
    crashes: int = 1,
    arguments: Mapping[type[Message], SearchStrategy[Any]] | None = None,
    protocol: Sequence[type[Message]] = (),
) -> SearchStrategy[ActorProgram]:
    """Programs for an actor, for ``@given``; each is tried by ``program.check()``.

    Args:
        actor: its class, or a function that makes it.
        model: ``model(state, message)`` gives the next state and the answer, and changes nothing.
        initial: the model's first state.
        clients, messages: the most clients, and the most messages of each.
        crashes: the most crashes; 0 for an actor that may forget.
        arguments: a strategy for the messages of a class, in place of small numbers and texts.
        protocol: the classes of messages, for a function that makes the actor.

    Raises ``ValueError`` without any message, ``MissingExtra`` without Hypothesis.
    """
    kinds = tuple(protocol) or tuple(getattr(actor, "__motet_handlers__", ()))
    if not kinds:
        raise ValueError(f"{actor!r} names no messages: pass protocol=[...]")
    try:
        from hypothesis import strategies as st
    except ImportError as error:
        raise MissingExtra("test", "motet.testing.actor_programs") from error

    from motet.runtime.testing.strategies import schedules
    from motet.testing.stories.choosing import Draw, between, happens, one_of, several, unlike

    given = dict(arguments or {})
    sent = [given[kind] if kind in given else _messages(kind) for kind in kinds]
    orders = schedules(48)

    @st.composite
    def program(draw: Draw) -> ActorProgram:
        draw = unlike(draw)

        def message() -> Message:
            found: Message = draw(one_of(draw, sent))
            return found

        def talk() -> tuple[Message, ...]:
            said = several(draw, message, least=1, most=messages, about=OFTEN * messages)
            return tuple(said)

        talks = tuple(several(draw, talk, least=1, most=clients, about=OFTEN * clients))
        total = sum(map(len, talks))
        hits = [between(draw, 0, total) for _ in range(crashes) if happens(draw, CRASHING)]
        seeded = happens(draw, SEEDED)
        choices = None if seeded else draw(orders)
        seed = between(draw, 0, 10_000) if seeded else 0
        return ActorProgram(actor, model, initial, talks, tuple(hits), choices, seed)

    return program()


def _messages(kind: type[Message]) -> SearchStrategy[Message]:
    """Messages with small values, so that clients meet."""
    from hypothesis import strategies as st

    def of(hint: object) -> SearchStrategy[Any]:
        if hint is int:
            return st.sampled_from(NUMBERS)
        if hint is str:
            return st.sampled_from(TEXTS)
        found: SearchStrategy[Any] = st.from_type(hint)  # type: ignore[arg-type]  # of any type
        return found

    fields = {one.name: of(one.type) for one in msgspec.structs.fields(kind)}
    return st.builds(kind, **fields)
