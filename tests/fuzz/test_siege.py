"""A short siege; the long one is ``python -m tests.fuzz --minutes 10``."""

from __future__ import annotations

import random
from contextlib import suppress

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from motet.protocols import gateway as wire
from tests.fuzz.cases import case_of, frame
from tests.fuzz.siege import siege

SECONDS = 2.0


@pytest.mark.slow
def test_no_client_can_harm_the_server_or_another_client_or_leave_anything_behind() -> None:
    trio.run(_short)


async def _short() -> None:
    async with siege(random.SystemRandom().randrange(2**40)) as attack:
        await attack.go_on(SECONDS / 3)
        warm = attack.footprint()
        await attack.go_on(SECONDS)

        assert attack.findings == []
        assert attack.footprint().leaked_since(warm) == []
        assert attack.cases > 20


@given(st.integers(0, 2**60))
@settings(max_examples=200, deadline=None)
def test_a_case_is_made_from_its_seed_alone_and_goes_against_the_rules_only_in_bytes(
    seed: int,
) -> None:
    """Law: the same seed is the same case but for the masks of its frames."""
    one, two = case_of(seed, ("mtt_x",)), case_of(seed, ("mtt_x",))

    assert [len(step.data) for step in one.steps] == [len(step.data) for step in two.steps]
    assert (one.reset, len(one.steps)) == (two.reset, len(two.steps))


@given(st.binary(max_size=4_000))
@settings(max_examples=200, deadline=None)
def test_bytes_that_are_no_frame_raise_a_frame_error_and_nothing_else(data: bytes) -> None:
    """Law: decoding raises FrameError or gives a frame."""
    for decode in (wire.decode_request, wire.decode_frame):
        with suppress(wire.FrameError):
            decode(data)


def test_frames_are_masked_as_the_rfc_says() -> None:
    made = frame(b"hello")

    mask, body = made[2:6], made[6:]
    assert bytes(one ^ mask[at % 4] for at, one in enumerate(body)) == b"hello"
