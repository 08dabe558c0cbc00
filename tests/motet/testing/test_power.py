"""A loss of power within a commit: what was acknowledged is there, once, whatever was half written.

G15 where no step of a world ends: between the writes of a commit, and between it and its answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest

import motet
from motet import testing as mt
from motet.actors.storage.connection import Connection
from motet.protocols.chat import UserMessage
from motet.protocols.errors import MotetError
from motet.protocols.models import ModelRequest
from motet.protocols.sessions import Principal
from motet.protocols.storage import Row, SqlValue
from motet.testing.world import power_cut

ANN = Principal("ann")
CHANGES = range(1, 60, 7)
"""Moments within a run with a tool, which changes the disk some fifty times."""


def paying(host: mt.SimulatedHost) -> motet.Agent[None, str]:
    """An agent whose tool has an effect on the outside world."""

    async def pay(ctx: motet.Context[None]) -> str:
        host.ledger.did(ctx, "paid")
        return "paid"

    def answer(request: ModelRequest) -> mt.Answer:
        asked = isinstance(request.messages[-1], UserMessage)
        return mt.call("pay") if asked else mt.say("done")

    return motet.Agent("clerk", model=mt.FunctionModel(answer), tools=[pay])


def inputs(host: mt.SimulatedHost) -> list[str]:
    async def read(h: motet.Host) -> list[str]:
        rows = await h.history("s", principal=ANN)
        return [each.row.text for each in rows if isinstance(each.row, UserMessage)]

    return host.call(read)


@pytest.mark.parametrize("change", CHANGES)
def test_an_input_is_there_once_when_the_power_fails_before_or_after_its_answer(
    change: int,
) -> None:
    with mt.simulated_host(seed=change) as host:
        agent = paying(host)
        with power_cut(host, change) as power:
            host.start(agent, "go", session="s", user="ann", key="one")
            host.settle()
        host.start(agent, "go", session="s", user="ann", key="one")
        host.settle()
        assert inputs(host) == ["go"]
        assert host.ledger.count("paid") <= 1
        assert power.failed == (host.history.crashes != [])


def cut_after_the_answer(changes: Iterable[int]) -> None:
    for change in changes:
        _cut_after_the_answer(change)


def _cut_after_the_answer(change: int) -> None:
    with mt.simulated_host(seed=change) as host:
        agent = paying(host)
        host.start(agent, "go", session="s", user="ann", key="one")
        with power_cut(host, change):
            host.settle()
        host.settle()
        assert inputs(host) == ["go"]


def test_an_input_that_was_acknowledged_is_there() -> None:
    cut_after_the_answer(CHANGES)


def test_a_host_that_does_not_sync_its_commits_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Connection.run

    def weak(self: Connection, sql: str, params: Sequence[SqlValue] = ()) -> tuple[Row, ...]:
        return run(self, sql.replace("synchronous = FULL", "synchronous = OFF"), params)

    monkeypatch.setattr(Connection, "run", weak)
    with pytest.raises((AssertionError, MotetError)):
        cut_after_the_answer(CHANGES)


def test_a_block_that_changes_nothing_ends_with_the_power_on() -> None:
    with mt.simulated_host() as host:
        with power_cut(host, 1) as power:
            host.advance(0.001)
        assert not power.failed
        host.run(paying(host), "go")
        assert host.history.crashes == []
