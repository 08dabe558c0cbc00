"""What carries a key is carried out once; a failure or a cancellation gives it free again."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from motet.actors.gateway.once import KEPT_FOR, Once
from motet.protocols.gateway import CommandAnswer
from motet.protocols.sessions import KeyConflict

WHOSE = ("alice", "command", "k")


class Work:
    """Counts how often it is done; waits for ``leave``, and fails ``failures`` times."""

    def __init__(self, failures: int = 0) -> None:
        self.done = 0
        self.failures = failures
        self.leave = trio.Event()

    async def __call__(self) -> CommandAnswer:
        self.done += 1
        number = self.done
        await self.leave.wait()
        if number <= self.failures:
            raise OSError("no")
        return CommandAnswer("stop", f"answer {number}")


async def test_a_resend_gets_the_first_answer_and_another_body_is_a_conflict() -> None:
    once, work = Once(lambda: 0.0), Work()
    work.leave.set()
    assert await once.do(WHOSE, "a", CommandAnswer, work) == (
        CommandAnswer("stop", "answer 1"),
        False,
    )
    assert await once.do(WHOSE, "a", CommandAnswer, work) == (
        CommandAnswer("stop", "answer 1"),
        True,
    )
    with pytest.raises(KeyConflict, match="'k'"):
        await once.do(WHOSE, "b", CommandAnswer, work)
    answer, again = await once.do(("bob", "command", "k"), "b", CommandAnswer, work)
    assert (answer.text, again) == ("answer 2", False)


@pytest.mark.parametrize("end", ["answer", "failure", "cancel"])
async def test_of_those_at_once_one_does_it_and_another_takes_the_place_of_one_that_failed(
    autojump_clock: MockClock, end: str
) -> None:
    once, work = Once(lambda: 0.0), Work(failures=int(end == "failure"))
    answers: list[str] = []

    async def ask(scope: trio.CancelScope) -> None:
        with scope:
            try:
                answer, _ = await once.do(WHOSE, "a", CommandAnswer, work)
            except OSError:
                answers.append("failed")
            else:
                answers.append(answer.text)

    first = trio.CancelScope()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask, first)
        await wait_all_tasks_blocked()
        for _ in range(3):
            nursery.start_soon(ask, trio.CancelScope())
        await wait_all_tasks_blocked()
        assert work.done == 1
        if end == "cancel":
            first.cancel()
            await wait_all_tasks_blocked()
        work.leave.set()
    expected = {
        "answer": ["answer 1"] * 4,
        "failure": ["answer 2"] * 3 + ["failed"],
        "cancel": ["answer 2"] * 3,
    }
    assert sorted(answers) == expected[end]
    del autojump_clock


async def test_old_answers_and_too_many_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("motet.actors.gateway.once.MOST", 20)
    now = [0.0]
    once, work = Once(lambda: now[0]), Work()
    work.leave.set()
    for number in range(25):
        await once.do(("alice", "command", str(number)), "a", CommandAnswer, work)
    assert len(once) == 20
    now[0] = KEPT_FOR + 1
    _, again = await once.do(("alice", "command", "24"), "a", CommandAnswer, work)
    assert not again
    assert len(once) == 1
