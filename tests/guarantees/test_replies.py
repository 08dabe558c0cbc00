"""Answers that come later: one outcome for each ask, and no work for an asker that has left."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from motet.runtime import ask as asking
from motet.runtime import ref as refs
from motet.runtime.envelope import Answer, Ask, Deferred
from motet.runtime.kernel import Owner
from motet.runtime.reply import ReplyTo
from motet.runtime.testing.scheduler import Patch
from tests.guarantees.law import ANY, SEARCH, Law, Mutant, first_finding, planted
from tests.guarantees.worlds import replies

# A mutant is by its nature inside.
# pyright: reportPrivateUsage=false

LAW = Law(ANY, replies.SEARCH)


def test_an_ask_that_is_answered_later_has_one_outcome_and_leaves_no_work() -> None:
    """Law: for each schedule of askers that cancel, time out and ask many at once, of answers from
    the handler, other handlers, tasks and other actors, of errors, crashes and stops: every ask
    ends, an answer that was taken is the answer of its asker, a token answers once, and nobody
    works for an asker that goes on (G1, G3)."""
    assert first_finding(LAW, range(60)) is None


@pytest.mark.sweep
@pytest.mark.parametrize("part", range(5))
def test_answers_come_later_in_10_000_schedules(part: int) -> None:
    assert first_finding(LAW, range(part * 2_000, (part + 1) * 2_000)) is None


def _leave_what_the_dead_have_not_answered() -> list[Patch]:
    def forget(_: Deferred, path: str) -> None:
        assert path

    return [(Deferred, "refuse", forget)]


def _answer_those_who_left() -> list[Patch]:
    def take(self: ReplyTo[Any]) -> Ask | None:
        ask, self._ask = self._ask, None
        if ask is not None and self._store is not None and ask in self._store:
            del self._store[ask]
        return ask

    def is_open(self: ReplyTo[Any]) -> bool:
        return self._ask is not None and self._act is None

    return [(ReplyTo, "_take", take), (ReplyTo, "is_open", property(is_open))]


def _let_the_asker_go_while_the_task_works() -> list[Patch]:
    async def run(self: ReplyTo[Any], fn: Callable[..., Awaitable[Any]], *args: Any) -> None:
        try:
            self.send(await fn(*args))
        except Exception as error:
            self.fail(error)

    return [(ReplyTo, "run", run)]


def _answer_before_the_handler_has_ended() -> list[Patch]:
    act = ReplyTo[Any].act

    def at_once(self: ReplyTo[Any], do: Callable[[Ask], None]) -> bool:
        ask = self._ask
        if self._store is None and self.is_open and ask is not None:
            self._ask = None
            do(ask)
            return True
        return act(self, do)

    return [(ReplyTo, "act", at_once), (Ask, "settle", _settle_once)]


def _settle_once(ask: Ask, result: Any) -> None:
    if not ask.settled:
        ask.settled = True
        ask._deliver(ask._cancelled() if result is None else result)


def _forward_a_copy() -> list[Patch]:
    """The other actor works, while the first still has the ask."""

    def forward(owner: Owner, request: Any, reply_to: ReplyTo[Any]) -> bool:
        if not reply_to.is_open:
            return False
        owner.mailbox.put(owner.envelope(request))
        return reply_to.act(lambda ask: ask.settle(Answer(request.number)))

    return [(asking, "forward", forward), (refs, "forward", forward)]


MUTANTS = (
    Mutant(ANY, "leaves what the dead have not answered", _leave_what_the_dead_have_not_answered),
    Mutant(ANY, "answers those who left", _answer_those_who_left),
    Mutant(ANY, "lets the asker go while work runs", _let_the_asker_go_while_the_task_works),
    Mutant(ANY, "answers before the handler has ended", _answer_before_the_handler_has_ended),
    Mutant(ANY, "forwards a copy", _forward_a_copy),
)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_law_finds_a_kernel_that(mutant: Mutant) -> None:
    """A planted defect is found within 200 schedules."""
    with planted(mutant):
        assert first_finding(LAW, range(SEARCH)) is not None
