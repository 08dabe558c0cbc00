"""Messages on the pipes of a server: whole, in order, in any chunks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock, lockstep_stream_one_way_pair, wait_all_tasks_blocked

from motet.actors.tools.mcp.stdio import (
    LIST_CHANGED,
    STUCK,
    End,
    Incoming,
    Listing,
    Outgoing,
    StderrLog,
)
from tests.late import Late

if TYPE_CHECKING:
    import mcp_types
    from mcp.shared import message as mcp
else:
    mcp, mcp_types = Late("mcp.shared.message"), Late("mcp_types")


TORN = ('{"jsonrpc":"2.0","id":3,', '{"jsonrpc":"2.0","method":"c", "params":{"text":"x')
"""Messages that a server has left in their middle; its next one follows on the same line."""


def notice(method: str, text: str = "") -> mcp.SessionMessage:
    return mcp.SessionMessage(
        mcp_types.JSONRPCNotification(jsonrpc="2.0", method=method, params={"text": text})
    )


def line(method: str) -> bytes:
    return f'{{"jsonrpc":"2.0","method":"{method}","params":{{"text":"é\\\\n"}}}}\n'.encode()


class Pieces(trio.abc.ReceiveStream):
    """A stream of the given chunks."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self.pieces = list(pieces)

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        await trio.lowlevel.checkpoint()
        return self.pieces.pop(0) if self.pieces else b""

    async def aclose(self) -> None:
        pass


@given(
    st.lists(st.sampled_from(["a/b", LIST_CHANGED, "", "nonsense", "{", *TORN]), max_size=8),
    st.lists(st.integers(0, 400), max_size=12),
)
def test_messages_are_read_in_any_chunks(lines: list[str], cuts: list[int]) -> None:
    """Law: one message for each valid line, in order; then the end. So behind a torn message."""
    methods = [name for name in lines if "/" in name]
    others = {name: name if name in TORN else f"{name}\r\n" for name in lines}
    data = b"".join(line(name) if "/" in name else others[name].encode() for name in lines)
    places = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    pieces = [data[start:end] for start, end in pairwise(places)]
    end, listing = End(), Listing()

    async def read() -> list[str]:
        incoming = Incoming(Pieces(pieces), StderrLog("it"), end, listing)
        return [
            item.message.method
            async for item in incoming
            if isinstance(item, mcp.SessionMessage)
            and isinstance(item.message, mcp_types.JSONRPCNotification)
        ]

    assert trio.run(read) == methods
    assert end.reason == "it has closed its output"
    assert listing.stale.is_set() == (LIST_CHANGED in methods)


async def test_a_message_whose_sending_was_cancelled_is_sent_whole() -> None:
    send, receive = lockstep_stream_one_way_pair()
    end = End()
    outgoing = Outgoing(send, end)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(outgoing.run)
        with trio.CancelScope() as scope:
            nursery.start_soon(_cancel_when_blocked, scope)
            await outgoing.send(notice("first", "x" * 1000))
        assert scope.cancelled_caught
        nursery.start_soon(outgoing.send, notice("second"))
        received = b""
        while received.count(b"\n") < 2:
            received += await receive.receive_some(10)
        nursery.cancel_scope.cancel()
    first, second = received.splitlines()
    assert first.endswith(b'{"text":"' + b"x" * 1000 + b'"}}')
    assert b'"second"' in second
    assert not end.happened.is_set()


async def _cancel_when_blocked(scope: trio.CancelScope) -> None:
    await wait_all_tasks_blocked()
    scope.cancel()


async def test_a_server_that_does_not_read_a_cancellation_is_ended(
    autojump_clock: MockClock,
) -> None:
    send, _receive = lockstep_stream_one_way_pair()
    end = End()
    outgoing = Outgoing(send, end)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(outgoing.run)
        await outgoing.send(notice("notifications/cancelled"))
        assert end.hopeless
        assert trio.current_time() >= STUCK
        nursery.cancel_scope.cancel()


async def test_a_notice_after_a_list_was_read_makes_it_stale_again() -> None:
    listing = Listing()
    listing.read()
    assert listing.fresh.is_set()
    listing.changed()
    await listing.next()
    listing.changed()  # while it is being read
    listing.read()
    assert not listing.fresh.is_set()
    await listing.next()
    listing.read()
    assert listing.fresh.is_set()
