"""Gates that take their time, in the manners in which a stop can find one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeAlias

import trio

import motet
from motet.actors.host import Host

Gate: TypeAlias = Callable[[object], Awaitable[motet.Allow]]


async def _slow(_: object) -> motet.Allow:
    await trio.sleep(0.2)
    return motet.Allow()


async def _swallows(_: object) -> motet.Allow:
    with suppress(trio.Cancelled):
        await trio.sleep(0.2)
    return motet.Allow()


async def _shields(_: object) -> motet.Allow:
    with trio.CancelScope(shield=True):
        await trio.sleep(0.2)
    return motet.Allow()


async def _raises(_: object) -> motet.Allow:
    try:
        await trio.sleep(0.2)
    except trio.Cancelled:
        raise OSError("the gate fails in its clean-up") from None
    return motet.Allow()


GATES: dict[str, Gate] = {
    "slow": _slow,
    "swallows": _swallows,
    "shields": _shields,
    "raises": _raises,
}


def gated(point: str, kind: str) -> Callable[[Host], None]:
    """Registers the gate with each new host."""

    def setup(host: Host) -> None:
        host.on(point, timeout=5)(GATES[kind])  # type: ignore[call-overload]

    return setup


def slow_in(*names: str) -> Callable[[Host], None]:
    """A gate that takes its time for one tool in the first host, for another in the next, ..."""
    slow = iter(names)

    def setup(host: Host) -> None:
        name = next(slow, "")

        async def gate(before: motet.BeforeTool) -> motet.Allow:
            return await _slow(before) if before.name == name else motet.Allow()

        host.on("before_tool", timeout=5)(gate)

    return setup
