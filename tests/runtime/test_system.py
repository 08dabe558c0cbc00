"""The block of a system: the errors that it lets through."""

from __future__ import annotations

import gc
import signal
from collections.abc import Callable
from functools import partial
from typing import Any
from weakref import ref

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from motet.protocols.messages import Message, Request
from motet.runtime import Actor, handles, open_system
from tests.raised import RAISERS, State, caught, state_of


@pytest.mark.parametrize("raiser", RAISERS, ids=lambda raiser: raiser.__name__)
async def test_an_error_of_the_block_leaves_it_as_it_was_raised(
    raiser: Callable[[], None],
) -> None:
    """Law: it is the same object, with the same context, cause and parts, whatever its kind."""
    before: list[State] = []

    async def block() -> None:
        async with open_system():
            with caught(before):
                raiser()

    with pytest.raises(BaseException) as error:  # noqa: PT011 (of any kind)
        await block()
    assert before == [state_of(error.value)]


async def test_a_group_of_a_nursery_in_the_block_stays_a_group() -> None:
    async def fail() -> None:
        raise ValueError("in a task of the block")

    with pytest.raises(ExceptionGroup) as error:
        async with open_system(), trio.open_nursery() as nursery:
            nursery.start_soon(fail)
    assert [type(one) for one in error.value.exceptions] == [ValueError]


async def test_an_error_that_has_left_the_block_is_freed_without_the_garbage_collector() -> None:
    class Weak(Exception):
        pass

    async def block() -> ref[Weak]:
        try:
            async with open_system():
                raise Weak
        except Weak as error:
            return ref(error)

    gc.collect()
    gc.disable()
    try:
        error = await block()
        await trio.lowlevel.checkpoint()
        assert error() is None
    finally:
        gc.enable()


class Ask(Request[None], frozen=True, tag="system.ask"):
    pass


class AskBeside(Request[None], frozen=True, tag="system.ask_beside"):
    pass


class Tell(Message, frozen=True, tag="system.tell"):
    pass


class Interrupted(Actor[Ask | AskBeside | Tell]):
    @handles(Ask)
    async def ask(self, _message: Ask) -> None:
        await self.press()

    @handles(Tell)
    async def tell(self, _message: Tell) -> None:
        await self.press()

    @handles(AskBeside, concurrent=2)
    async def beside(self, _message: AskBeside) -> None:
        await self.press()

    async def press(self) -> None:
        """Ctrl-C, while the handler works or at its next checkpoint."""
        signal.raise_signal(signal.SIGINT)
        await trio.sleep_forever()


@pytest.mark.parametrize("in_a_nursery", [False, True])
@pytest.mark.parametrize(
    "message", [Ask(), AskBeside(), Tell()], ids=lambda one: type(one).__name__
)
def test_ctrl_c_in_a_handler_leaves_the_block_as_itself(
    message: Ask | AskBeside | Tell, in_a_nursery: bool
) -> None:
    """Not in a group with the errors by which the askers learn that their actor is dead."""

    async def main() -> None:
        async with open_system() as system:
            ref = await system.start(Interrupted)

            async def send() -> None:
                await (ref.tell(message) if isinstance(message, Tell) else ref.ask(message))

            if in_a_nursery:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(send)
                    nursery.start_soon(send)
            else:
                await send()
            await trio.sleep_forever()

    with pytest.raises(KeyboardInterrupt):
        trio.run(main)


class Unused(Message, frozen=True, tag="system.unused"):
    pass


class Nested(Actor[Unused]):
    """Has children of the names that the tree below it names, and so on."""

    def __init__(self, below: dict[str, Any]) -> None:
        self.below = below

    @handles(Unused)
    async def unused(self, message: Unused) -> None:
        pass

    async def on_start(self) -> None:
        for name, below in self.below.items():
            await self.start_child(partial(Nested, below), name=name)


_NAMES = st.sampled_from(["a", "b", "a b", "..", "system", "ä"])
_TREES = st.recursive(
    st.just(dict[str, Any]()),
    lambda below: st.dictionaries(_NAMES, below, max_size=3),
    max_leaves=9,
)
_PATHS = st.lists(_NAMES | st.just(""), max_size=4).map(lambda names: "/" + "/".join(names))


@given(_TREES, st.lists(_PATHS))
def test_find_finds_what_a_search_of_the_tree_finds(
    tree: dict[str, Any], others: list[str]
) -> None:
    """Law: for any tree and any text, ``find`` is the actor of the snapshot with this path."""

    async def main() -> None:
        async with open_system() as system:
            for name, below in tree.items():
                await system.start(partial(Nested, below), name=name)
            there = {info.path for info in system.snapshot()}
            for path in [*there, *others, "", "/", "/system", "/system/", *map(_longer, there)]:
                found = system.find(path)
                assert (found and found.path) == (path if path in there else None)

    trio.run(main)


def _longer(path: str) -> str:
    return f"{path}/"
