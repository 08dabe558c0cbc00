"""Streams: a request whose handler sends items before its answer (G1, G3).

A stream is an ask on which no task is parked: its handler sends into a bounded channel, and its
outcome is kept for the reader. Leaving the block early cancels the handler and waits for it. Each
item resumes the reader; where a function call is enough, ``ActorRef.stream_to`` resumes it once.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any, Generic, TypeVar, cast

import msgspec
import trio
from trio.lowlevel import current_task

from motet.protocols.messages import StreamRequest
from motet.runtime.envelope import WOKEN, AskerLeft, ItemsAsk, Raised, Replies, Result, left_behind
from motet.runtime.errors import AskTimeout
from motet.runtime.foreign import PROGRAM_ENDS, shown
from motet.runtime.kernel import Owner
from motet.runtime.observe import asking
from motet.runtime.scopes import only_in_a_block
from motet.runtime.waits import current_deadline, current_work

__all__ = ["STREAM_BUFFER", "ReplyStream", "StreamAsk", "observed_stream", "open_stream"]

T = TypeVar("T")
R = TypeVar("R")
T_contra = TypeVar("T_contra", contravariant=True)

STREAM_BUFFER = 64  # items by which a handler may be ahead of its reader


class _Queued(Replies[T_contra]):
    """Puts the items into the channel of a reader."""

    def __init__(self, channel: trio.MemorySendChannel[T_contra]) -> None:
        self._channel = channel

    async def send(self, item: T_contra) -> None:
        try:
            await self._channel.send(item)
        except trio.BrokenResourceError:
            raise AskerLeft("the reader has left") from None

    def send_nowait(self, item: T_contra) -> None:
        try:
            self._channel.send_nowait(item)
        except trio.BrokenResourceError:
            raise AskerLeft("the reader has left") from None


class ReplyStream(Generic[T, R]):
    """The reader's end of a stream: iterate, then read :attr:`result`."""

    def __init__(self, envelope: StreamAsk) -> None:
        self._envelope = envelope
        self._receive = envelope.channel[1].receive

    def __aiter__(self) -> ReplyStream[T, R]:
        return self

    async def __anext__(self) -> T:
        """The next item. After the last one the handler's error is raised, if it failed."""
        try:
            # The types were checked where the handler was declared (`handles`).
            return await self._receive()  # type: ignore[no-any-return]
        except trio.EndOfChannel:
            pass
        # Outside of the except clause, or the handler's error would have EndOfChannel as context.
        self._envelope.take_outcome()
        raise StopAsyncIteration

    @property
    def result(self) -> R:
        """The handler's answer; raises its error. Only after the iteration has ended."""
        return cast("R", self._envelope.take_outcome())  # as above


_Channel = tuple[trio.MemorySendChannel[Any], trio.MemoryReceiveChannel[Any]]


def _open_channel() -> _Channel:
    return trio.open_memory_channel(STREAM_BUFFER)


class StreamAsk(ItemsAsk, eq=False):
    """The envelope of a stream: it keeps its outcome, with which the reader's iteration ends."""

    channel: _Channel = msgspec.field(default_factory=_open_channel)
    ended: trio.Event = msgspec.field(default_factory=trio.Event)
    _outcome: Result | None = None
    _taken: bool = False

    @property
    def prompt(self) -> bool:
        return False

    @property
    def replies(self) -> Replies[object]:
        return _Queued(self.channel[0])

    def take_outcome(self) -> object:
        """Return the answer or raise the error. The end of the block raises no error twice."""
        if self._outcome is None:
            raise RuntimeError("the stream has not ended: iterate over it to the end first")
        self._taken = True
        return self._outcome.unwrap()

    async def leave(self) -> BaseException | None:
        """End the handler if it runs, wait for it, and return an error that was never raised.

        What the handler raises because of this end is logged: nobody asked for the rest.
        """
        # Closed before the cancellation: a handler that sends items in a shielded clean-up gets
        # BrokenResourceError instead of waiting for a reader for ever.
        self.channel[1].close()
        if self.queue is not None:
            self.mailbox.withdraw(self)
        elif not self.settled:
            self.cancel()
            # Shielded without a limit: it is the wait of G1, as long as the handler's clean-up.
            with trio.CancelScope(shield=True):
                await self.ended.wait()
            if isinstance(self._outcome, Raised):
                left_behind(self, self._outcome.error)
                self._taken = True
        match self._outcome:
            case Raised(error=error) if not self._taken:
                # Not a Cancelled, which belongs to the handler.
                return error if isinstance(error, (Exception, *PROGRAM_ENDS)) else None
            case _:
                return None

    def _cancelled(self) -> Result:
        if self.cancelled_at is not None:
            return WOKEN  # the reader has left, so nothing reads the outcome
        return super()._cancelled()

    def _deliver(self, result: Result) -> None:
        self._outcome = result
        self.channel[0].close()
        self.ended.set()

    def _settle_unhandled(self) -> None:
        # The same deadline cancels the reader. The error is for a reader that moved it.
        self.settled = True
        self._deliver(Raised(AskTimeout(self.mailbox.path, type(self.message), 0)))


async def _open_stream(
    owner: Owner, request: StreamRequest[T, R], context: str | None = None
) -> AsyncGenerator[ReplyStream[T, R]]:
    """Stream ``request`` from an actor (see :meth:`ActorRef.stream`)."""
    mailbox, target = owner.mailbox, owner.work_for(type(request))
    work = current_work.get()
    # Read once: a reader that moves its deadline later does not change when the handler may begin.
    deadline = min(trio.current_effective_deadline(), current_deadline())
    envelope = StreamAsk(mailbox, request, target, current_task(), deadline, queue=mailbox.queue)
    envelope.context = context
    if work is not None:
        owner.refuse_endless(work, type(request))
        work.waits.append(envelope)
    try:
        if not mailbox.put(envelope):
            mailbox.put_ask_or_overflow(envelope)
        items: ReplyStream[T, R] = ReplyStream(envelope)
        try:
            yield items
        except BaseException as error:
            unseen = await envelope.leave()
            if unseen is not None:
                error.add_note(
                    f"while leaving it, the stream's handler failed too: {shown(unseen)}"
                )
            raise
        unseen = await envelope.leave()
        if unseen is not None:
            raise unseen
    finally:
        if work is not None:
            work.waits.remove(envelope)


async def _observed_stream(
    owner: Owner, request: StreamRequest[T, R]
) -> AsyncGenerator[ReplyStream[T, R]]:
    """As :func:`_open_stream`, with a span and a trace around it."""
    with asking(owner.kernel, owner.path, request) as context:
        async with open_stream(owner, request, context) as items:
            yield items


open_stream = only_in_a_block(_open_stream, "stream")
observed_stream = only_in_a_block(_observed_stream, "stream")
