"""One run per key, whatever the order in which inputs arrive and are given up."""

from __future__ import annotations

import attrs
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from motet.actors.storage.location import Location
from motet.protocols.sessions import KeyConflict, ListRuns
from tests.actors.sessions.store_builders import Store, new_input, open_store


@attrs.frozen
class Sent:
    """An input with a key and a body, sent after some steps and given up after some more."""

    key: str
    body: str
    after: int
    patience: int | None


SENT = st.builds(
    Sent,
    key=st.sampled_from("xyz"),
    body=st.sampled_from("ab"),
    after=st.integers(0, 6),
    patience=st.none() | st.integers(0, 12),
)


async def steps(count: int) -> None:
    for _ in range(count):
        await trio.lowlevel.checkpoint()


async def send(store: Store, index: int, sent: Sent, answers: dict[int, str]) -> None:
    await steps(sent.after)
    try:
        request = new_input(f"r{index}", key=sent.key, body=sent.body)
        answers[index] = (await store.ref.ask(request)).run_id
    except KeyConflict:
        answers[index] = "conflict"


async def send_and_give_up(store: Store, index: int, sent: Sent, answers: dict[int, str]) -> None:
    if sent.patience is None:
        await send(store, index, sent, answers)
        return
    async with trio.open_nursery() as nursery:
        nursery.start_soon(send, store, index, sent, answers)
        await steps(sent.after + sent.patience)
        nursery.cancel_scope.cancel()


@given(st.lists(SENT, max_size=12))
@settings(max_examples=60)
def test_a_key_makes_exactly_one_run(inputs: list[Sent]) -> None:
    """Law: each key with an answer has one run, of its first body; other bodies conflict (G15)."""
    answers: dict[int, str] = {}

    async def world() -> set[str]:
        with Location.memory() as location:
            async with open_store(location) as store:
                async with trio.open_nursery() as nursery:
                    for index, sent in enumerate(inputs):
                        nursery.start_soon(send_and_give_up, store, index, sent, answers)
                return {run.run_id for run in await store.ref.ask(ListRuns())}

    stored = trio.run(world)
    owners = {key: run for run in stored for key in inputs[int(run[1:])].key}
    assert len(owners) == len(stored)
    for index, answer in answers.items():
        first = inputs[int(owners[inputs[index].key][1:])]
        assert (answer == "conflict") == (inputs[index].body != first.body)
        assert answer in ("conflict", owners[inputs[index].key])
    assert stored >= {answer for answer in answers.values() if answer != "conflict"}
