"""Each flood against a real server, for a few tries; ``make fuzz`` has the figures of many."""

from __future__ import annotations

import pytest
import trio

from tests.fuzz.floods import FLOODS, Fared, flooded

TRIES = 20


@pytest.mark.extended
@pytest.mark.parametrize("name", list(FLOODS))
def test_a_client_is_admitted_and_answered_while_others_flood_the_server(name: str) -> None:
    """No bound on seconds, which a busy machine would miss: it is admitted and gets all answers."""
    fared = trio.run(flooded, name, TRIES)

    assert len(fared.answers) == TRIES
    assert fared.figures < (10.0, 10.0, 10.0)


def test_what_was_too_slow_is_told_in_words() -> None:
    good, bad = (0.01,) * 100, (0.01,) * 90 + (2.0,) * 10

    assert Fared(good, good, good).problems("idle") == []
    assert [one.split(":")[1].split(" 2")[0] for one in Fared(bad, bad, bad).problems("idle")] == [
        " admitted after",
        " answered after",
        " the first word after",
    ]
