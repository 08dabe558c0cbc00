"""One connection of a client, from its dialling to its end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import attrs
import trio

from motet.actors.client.errors import (
    FINAL_CLOSES,
    ClientError,
    RequestFailed,
    TurnedAway,
    Unreachable,
)
from motet.actors.client.link import Dial, Link, LinkLost
from motet.actors.client.machine import Machine
from motet.actors.farewell import cancelled_inside
from motet.protocols.gateway import CLOSE_POLICY, CLOSE_PROTOCOL, Connected, FrameError

CONNECT_SECONDS: Final = 10.0
_SILENT_TICKS: Final = 2.5
_MAY_PASS: Final = frozenset({"internal"})


@attrs.frozen
class Ended:
    """Why a connection is no more.

    Attributes:
        held: seconds since the host let us in; 0: it did not.
        retry_after: seconds that the host asks for.
        error: there is no use in coming back.
    """

    reason: str
    held: float = 0.0
    retry_after: float = 0.0
    error: ClientError | None = None


async def hold(
    dial: Dial,
    machine: Machine,
    outgoing: Callable[[], Awaitable[str]],
    let_in: Callable[[Connected], None],
) -> Ended:
    """Connect and stay so as long as it goes; ``let_in`` is called when the host has answered.

    Cancelled, it says good-bye to the host and waits for its answer, for at most a second.
    """
    ended: Ended | None = None
    # The link's own tasks outlive the talk: they read the answer to our good-bye.
    async with cancelled_inside() as scope, trio.open_nursery() as nursery:
        with scope:
            ended = await _held(dial, nursery, machine, outgoing, let_in)
        nursery.cancel_scope.cancel()
    assert ended is not None, "whoever is cancelled does not come here"
    return ended


async def _held(
    dial: Dial,
    nursery: trio.Nursery,
    machine: Machine,
    outgoing: Callable[[], Awaitable[str]],
    let_in: Callable[[Connected], None],
) -> Ended:
    try:
        link = await dial(nursery)
    except (Unreachable, TurnedAway) as error:
        return _not_made(error)
    try:
        machine.opened()
        return await _Talk(link, machine, let_in).run(outgoing)
    finally:
        machine.lost()
        await link.aclose()


def _not_made(error: Unreachable | TurnedAway) -> Ended:
    if isinstance(error, TurnedAway):
        return Ended(str(error), error=error)
    return Ended(str(error), retry_after=error.retry_after or 0.0)


@attrs.define(eq=False)
class _Talk:
    link: Link
    machine: Machine
    let_in: Callable[[Connected], None]
    _since: float | None = None
    _ended: Ended | None = None

    async def run(self, outgoing: Callable[[], Awaitable[str]]) -> Ended:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._write, outgoing, nursery.cancel_scope)
            try:
                await self._read()
            except LinkLost as lost:
                self._end(self._lost(lost))
            except RequestFailed as refused:
                self._end(self._refused(refused))
            except FrameError as error:
                self._end(Ended(f"the host said what nobody understands: {error}", self._held()))
            nursery.cancel_scope.cancel()
        assert self._ended is not None, "reading and writing end by an error"
        return self._ended

    async def _write(self, outgoing: Callable[[], Awaitable[str]], scope: trio.CancelScope) -> None:
        while True:
            text = await outgoing()
            try:
                await self.link.send(text)
            except LinkLost as lost:
                if lost.code != 1006:
                    return  # the reader is told as well, after the frames that came before
                self._end(self._lost(lost))
                scope.cancel()
                return

    async def _read(self) -> None:
        while True:
            text = None
            with trio.move_on_after(self._patience()):
                text = await self.link.receive()
            if text is None:
                raise LinkLost(1006, "the host is silent")
            self.machine.received(text)
            if self._since is None and self.machine.server is not None:
                self._since = trio.current_time()
                self.let_in(self.machine.server)

    def _patience(self) -> float:
        """The host says something at every tick of its own."""
        server = self.machine.server
        return CONNECT_SECONDS if server is None else server.limits.ping_ms * _SILENT_TICKS / 1000

    def _held(self) -> float:
        return 0.0 if self._since is None else trio.current_time() - self._since

    def _end(self, ended: Ended) -> None:
        self._ended = self._ended or ended

    def _lost(self, lost: LinkLost) -> Ended:
        error = TurnedAway(lost.code, lost.reason) if lost.code in FINAL_CLOSES else None
        return Ended(lost.reason, self._held(), error=error)

    def _refused(self, refused: RequestFailed) -> Ended:
        if refused.retryable or refused.code in _MAY_PASS:
            return Ended(str(refused), retry_after=refused.retry_after or 0.0)
        code = CLOSE_PROTOCOL if refused.code == "protocol_version" else CLOSE_POLICY
        return Ended(str(refused), error=TurnedAway(code, str(refused)))
