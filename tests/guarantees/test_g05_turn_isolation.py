"""G5: one handler of an actor at a time, unless it says otherwise; and never a changing message."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from motet.protocols.messages import Message, Request
from motet.runtime import Actor, ActorRef, MessageNotPortable, handles, open_system
from tests.guarantees.laws import holds, is_found, mutants_of


class Turn(Request[int], frozen=True, tag="g5.turn"):
    pass


class Aside(Request[int], frozen=True, tag="g5.aside"):
    pass


class Keep(Message, frozen=True, tag="g5.keep"):
    items: list[int]


class Strange(Message, frozen=True, tag="g5.strange"):
    thing: object


class Watched(Actor[Turn | Aside | Keep | Strange]):
    def __init__(self) -> None:
        self.in_turn = 0
        self.aside_now = 0
        self.most_aside = 0
        self.kept: list[int] = []

    @handles(Turn)
    async def turn(self, _: Turn) -> int:
        self.in_turn += 1
        most = self.in_turn
        await trio.sleep(1)
        most = max(most, self.in_turn)
        self.in_turn -= 1
        return most

    @handles(Aside, concurrent=3)
    async def aside(self, _: Aside) -> int:
        self.aside_now += 1
        self.most_aside = max(self.most_aside, self.aside_now)
        await trio.sleep(1)
        self.aside_now -= 1
        return self.most_aside

    @handles(Keep)
    async def keep(self, message: Keep) -> None:
        self.kept = message.items

    @handles(Strange)
    async def strange(self, _: Strange) -> None: ...


def test_one_handler_is_in_the_turn_and_no_message_changes_under_it() -> None:
    """Law: in all schedules and crashes, one handler of an actor at most is in its turn, no more
    run next to it than declared, and a checked message stays what it was when it was sent."""
    holds("G5", schedules=120)


@pytest.mark.parametrize("mutant", mutants_of("G5"))
def test_the_law_finds_a_kernel_that(mutant: str) -> None:
    """A planted defect is found within 200 schedules."""
    is_found(mutant)


async def test_only_one_handler_is_in_its_turn(autojump_clock: MockClock) -> None:
    most: list[int] = []

    async def asker(ref: ActorRef[Turn]) -> None:
        most.append(await ref.ask(Turn()))

    async with open_system() as system, trio.open_nursery() as nursery:
        ref = await system.start(Watched, name="watched")
        for _ in range(5):
            nursery.start_soon(asker, ref)

    assert most == [1] * 5
    assert trio.current_time() == 5


async def test_concurrent_handlers_run_next_to_the_turn_up_to_their_limit(
    autojump_clock: MockClock,
) -> None:
    watched = Watched()
    async with open_system() as system:
        ref = await system.start(lambda: watched, name="watched")
        async with trio.open_nursery() as nursery:
            for _ in range(7):
                nursery.start_soon(ref.ask, Aside())
            nursery.start_soon(ref.ask, Turn())
            await trio.testing.wait_all_tasks_blocked()

            assert ref.statistics().running == 3 + 1
            assert ref.statistics().stashed == 4

        assert watched.most_aside == 3
        # Seven at three a time; the turn did not wait for them.
        assert trio.current_time() == 3


async def test_with_checking_on_the_receiver_has_a_copy_of_its_own() -> None:
    watched = Watched()
    items = [1, 2]
    async with open_system(check_messages=True) as system:
        ref = await system.start(lambda: watched, name="watched")
        await ref.tell(Keep(items))
        items.append(3)
        await trio.testing.wait_all_tasks_blocked()

    assert watched.kept == [1, 2]


async def test_what_cannot_cross_a_process_border_is_refused_at_the_sender() -> None:
    async with open_system(check_messages=True) as system:
        ref = await system.start(Watched, name="watched")

        with pytest.raises(MessageNotPortable, match="Strange does not survive"):
            await ref.tell(Strange(print))
        with pytest.raises(MessageNotPortable, match=r"comes back as .*\[1, 2\]"):
            await ref.tell(Strange((1, 2)))
