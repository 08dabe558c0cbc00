"""Server-sent events from bytes, however they are cut, and the end of a body."""

from collections.abc import AsyncGenerator
from itertools import pairwise

import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from motet.actors.models.sdk import SseDecoder, SseStream

BODY = (
    ': a comment\nevent: chunk\ndata: {"a": "\u2028\x85é"}\n\n'
    "id: 7\r\ndata: one\r\ndata:two\r\n\r\ndata: [DONE]\n\n\n"
).encode()
EVENTS = ['{"a": "\u2028\x85é"}'.encode(), b"one\ntwo", b"[DONE]"]


@given(st.lists(st.integers(0, len(BODY))))
def test_the_events_are_the_same_however_the_bytes_are_cut(places: list[int]) -> None:
    """For all cuts of a body into pieces: the events are those of the whole body."""
    cuts = [0, *sorted(places), len(BODY)]
    decoder = SseDecoder()
    pieces = [BODY[start:end] for start, end in pairwise(cuts)]
    assert [event for piece in pieces for event in decoder.feed(piece)] == EVENTS


def test_an_unfinished_event_is_ignored() -> None:
    assert list(SseDecoder().feed(b"data: {}\n")) == []


async def nothing() -> None:
    """The close of a response that has nothing to close."""


async def test_the_body_is_read_to_its_end_after_the_end_mark() -> None:
    ended = False

    async def received() -> AsyncGenerator[bytes]:
        nonlocal ended
        yield b'data: {"a":1}\n\ndata: [DONE]\n\n'
        yield b": bye\n"
        ended = True

    stream = SseStream(received(), nothing)
    assert await anext_of(stream) == {"a": 1}
    assert await anext_of(stream) is None
    assert ended


async def test_a_body_that_does_not_end_is_not_waited_for(autojump_clock: MockClock) -> None:
    async def received() -> AsyncGenerator[bytes]:
        yield b"data: [DONE]\n\n"
        await trio.sleep_forever()

    assert await anext_of(SseStream(received(), nothing)) is None
    assert trio.current_time() == 1.0


async def anext_of(stream: SseStream) -> object:
    """The next value; None at the end."""
    try:
        return await stream.__anext__()
    except StopAsyncIteration:
        return None
