"""Asks that are withdrawn by the thousand: the cost of each does not depend on their number."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import trio
from trio.testing import wait_all_tasks_blocked

from motet.protocols.messages import Request
from motet.runtime import Actor, MailboxSpec, handles, mailbox, open_system


class Forever(Request[None], frozen=True, tag="forever"):
    pass


class Busy(Actor[Forever]):
    mailbox = MailboxSpec(capacity=2)

    @handles(Forever)
    async def forever(self, _: Forever) -> None:
        await trio.sleep_forever()


async def opcodes_of_a_cancellation(senders: int) -> int:
    """The steps of Python's own machine in the mailbox while all that wait for room give up."""
    counted = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal counted
        if frame.f_code.co_filename != mailbox.__file__:
            return None
        frame.f_trace_opcodes = True
        counted += event == "opcode"
        return trace

    async with open_system() as system:
        busy = await system.start(Busy, name="busy")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(busy.ask, Forever())
            await wait_all_tasks_blocked()
            async with trio.open_nursery() as crowd:
                for _ in range(senders):
                    crowd.start_soon(busy.ask, Forever())
                await wait_all_tasks_blocked()
                assert busy.statistics().waiting == senders - 2
                before = sys.gettrace()
                sys.settrace(trace)
                try:
                    crowd.cancel_scope.cancel()
                    await wait_all_tasks_blocked()
                finally:
                    sys.settrace(before)
            assert busy.statistics().waiting == 0
            nursery.cancel_scope.cancel()
    return counted


async def test_giving_up_costs_the_same_however_many_wait() -> None:
    """Law: four times as many askers take at most four times as many steps, and some that the
    number does not change."""
    # Trio cancels them in an order of its own. In an unlucky one, those that leave make room for
    # others that leave next, and each costs twice.
    few = min([await opcodes_of_a_cancellation(100) for _ in range(20)])
    many = min([await opcodes_of_a_cancellation(400) for _ in range(20)])
    assert 0 < few < many < 4.2 * few


async def test_those_that_wait_come_in_in_their_order_around_one_that_gave_up() -> None:
    order: list[int] = []

    class Numbered(Request[None], frozen=True, tag="numbered"):
        number: int

    class Slow(Actor[Numbered]):
        mailbox = MailboxSpec(capacity=1)

        @handles(Numbered)
        async def numbered(self, request: Numbered) -> None:
            order.append(request.number)
            await trio.lowlevel.checkpoint()

    async with open_system() as system:
        slow = await system.start(Slow, name="slow")
        scopes = [trio.CancelScope() for _ in range(8)]

        async def ask(number: int) -> None:
            with scopes[number]:
                await slow.ask(Numbered(number))

        slow.suspend()
        async with trio.open_nursery() as nursery:
            for number in range(8):
                nursery.start_soon(ask, number)
                await wait_all_tasks_blocked()
            for number in (3, 0, 7):
                scopes[number].cancel()
            await wait_all_tasks_blocked()
            slow.resume()
    assert order == [1, 2, 4, 5, 6]
