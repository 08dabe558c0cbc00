"""Large results: worked on in a thread and in parts, to the same text as in one piece."""

from __future__ import annotations

import threading
from base64 import b64encode
from textwrap import fill

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

import motet
from motet.actors.errors.classify import result_text
from motet.actors.tools import results
from motet.actors.tools.results import is_large, readable, worked_on
from motet.protocols import binary
from motet.protocols.binary import omitted, text_without_binary
from motet.testing import ScriptedModel, call, say
from tests.actors.tools.builders import noise

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=8) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=30,
)


def encoded(size: int, seed: int, width: int) -> str:
    """Noise as base64, in lines of ``width`` characters; 0: in one."""
    text = b64encode(noise(size, seed)).decode()
    return fill(text, width) if width else text


PIECES = st.one_of(
    st.text("abc XYZ019+/=_-\n\r.", max_size=90),
    st.builds(encoded, st.integers(0, 600), st.integers(0, 3), st.sampled_from([0, 60, 70, 76])),
    st.just("data:image/png;base64," + "A" * 40),
)


@given(pieces=st.lists(PIECES, max_size=8), part=st.integers(1, 200))
def test_binary_is_found_in_parts_as_in_the_whole(pieces: list[str], part: int) -> None:
    text = "".join(pieces)
    whole = text_without_binary(text, omitted)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(binary, "_PART", part)
        assert text_without_binary(text, omitted) == whole


@given(value=JSON, limit=st.integers(0, 200), items=st.integers(1, 4))
def test_json_is_the_same_in_parts(value: object, limit: int, items: int) -> None:
    whole = readable(value)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(results, "IN_THREAD_FROM", limit)
        patched.setattr(results, "_ITEMS", items)
        assert readable(value) == whole
    if not isinstance(value, str):
        assert whole.text == results.storable(result_text(whole.value))


@given(JSON)
def test_a_value_is_large_by_all_its_texts_together(value: object) -> None:
    assert not is_large(value)
    assert is_large([value, ["x" * results.IN_THREAD_FROM], value])
    assert is_large({"k": value, "x" * results.IN_THREAD_FROM: 1})
    assert is_large([0] * results.IN_THREAD_FROM)


async def test_work_on_a_large_value_is_done_in_a_thread_and_on_a_small_one_here() -> None:
    here = threading.get_ident()
    assert await worked_on("small", threading.get_ident) == here
    assert await worked_on("x" * 200_000, threading.get_ident) != here


def test_a_text_that_is_too_long_is_cut_before_anything_is_done_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(results, "LONGEST", 1_000)
    assert readable("x " * 501).text == "x " * 500 + "\n[truncated: 1000 of 1002 characters]"
    assert readable("x " * 500).text == "x " * 500


@pytest.mark.parametrize(
    "value",
    [
        "word " * 400_000,
        "a line of words\n" * 130_000,
        [{"number": n, "text": f"row {n}"} for n in range(60_000)],
        b64encode(noise(1_500_000, 1)).decode(),
    ],
    ids=["one line", "lines", "rows", "base64"],
)
async def test_other_tasks_run_while_a_large_result_is_worked_on(value: object) -> None:
    agent = motet.Agent("a", model=ScriptedModel([call("big"), say("done")]))
    steps = 0

    @agent.tool
    async def big() -> object:
        nonlocal steps
        steps = 0
        return value

    async def count() -> None:
        nonlocal steps
        while True:
            steps += 1
            await trio.sleep(0)

    async with motet.open_host() as host, trio.open_nursery() as nursery:
        nursery.start_soon(count)
        result = await host.run(agent, "go")
        nursery.cancel_scope.cancel()
    assert result.output == "done"
    assert steps > 20
