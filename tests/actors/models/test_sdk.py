"""The shell around an SDK: deadlines by Trio's clock, lazy loading, missing keys and packages."""

import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Self

import attrs
import pytest
import trio
from trio.testing import MockClock

from motet.actors.models.anthropic import AnthropicModel
from motet.actors.models.catalog import KNOWN
from motet.actors.models.dialects import Reader
from motet.actors.models.google import GoogleModel
from motet.actors.models.openai import OpenAIModel
from motet.actors.models.sdk import Deadlines, LazyClient, answer
from motet.protocols.errors import MissingExtra
from motet.protocols.models import Finished, ModelEvent, ModelFailure, TextPart
from tests.actors.models.builders import events_of, request

VARIABLES = [name for known in KNOWN.values() for name in (*known.keys, known.url) if name]


class Words(Reader):
    """A reader of plain words; ``.`` is how an answer ends."""

    def feed(self, chunk: object) -> Iterable[ModelEvent]:
        assert isinstance(chunk, str)
        self.reason = "stop" if chunk == "." else self.reason
        return () if chunk in {"", "."} else (TextPart(chunk),)


@attrs.define
class Chunks:
    """A stream of words, each after its silence; an error is raised."""

    steps: list[tuple[float, str | Exception]]
    closed: bool = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> None:
        self.closed = True

    async def __anext__(self) -> object:
        if not self.steps:
            raise StopAsyncIteration
        silence, step = self.steps.pop(0)
        await trio.sleep(silence)
        if isinstance(step, Exception):
            raise step
        return step


async def heard(chunks: Chunks, *, before: float = 0.0) -> Sequence[ModelEvent]:
    async def create() -> Chunks:
        await trio.sleep(before)
        return chunks

    events: list[ModelEvent] = []
    async with answer("some:model", create, Words(), Deadlines()) as stream:
        async for event in stream:
            events.append(event)
    return events


async def test_an_answer_may_be_slow_as_long_as_it_is_never_silent(
    autojump_clock: MockClock,
) -> None:
    chunks = Chunks([(50.0, "one"), (59.0, "two"), (59.0, "three"), (59.0, ".")])
    assert len(await heard(chunks)) == 4
    assert chunks.closed


@pytest.mark.parametrize(
    ("before", "first"), [(61.0, 0.0), (0.0, 61.0), (31.0, 31.0)], ids=["head", "body", "both"]
)
async def test_the_first_token_has_one_deadline_for_head_and_body(
    autojump_clock: MockClock, before: float, first: float
) -> None:
    with pytest.raises(ModelFailure, match="no first token came within 60 s") as caught:
        await heard(Chunks([(first, "late"), (0.0, ".")]), before=before)
    assert caught.value.kind == "timeout"
    assert trio.current_time() == 60.0


async def test_chunks_without_events_count_as_silence(autojump_clock: MockClock) -> None:
    with pytest.raises(ModelFailure, match="no first token"):
        await heard(Chunks([(10.0, "")] * 7))


async def test_a_stall_in_the_middle_is_a_timeout_and_closes_the_stream(
    autojump_clock: MockClock,
) -> None:
    chunks = Chunks([(1.0, "one"), (61.0, "two")])
    with pytest.raises(ModelFailure, match="no further token came within 60 s") as caught:
        await heard(chunks)
    assert caught.value.kind == "timeout"
    assert chunks.closed


async def test_the_readers_own_pauses_do_not_count(autojump_clock: MockClock) -> None:
    async def create() -> Chunks:
        return Chunks([(0.0, "one"), (0.0, "two"), (0.0, ".")])

    async with answer("some:model", create, Words(), Deadlines()) as stream:
        async for _ in stream:
            await trio.sleep(100)


async def test_a_stream_that_ends_too_early_is_a_cut() -> None:
    with pytest.raises(ModelFailure) as caught:
        await heard(Chunks([(0.0, "half")]))
    assert caught.value.kind == "cut"


async def test_a_complete_answer_survives_a_lost_end_of_the_connection(
    autojump_clock: MockClock,
) -> None:
    lost = ModelFailure("gone", kind="cut")
    whole = [TextPart("all"), Finished("stop")]
    assert await heard(Chunks([(0.0, "all"), (0.0, "."), (0.0, lost)])) == whole
    assert await heard(Chunks([(0.0, "all"), (0.0, "."), (99.0, "")])) == whole


async def test_a_bug_is_not_taken_for_a_failure() -> None:
    with pytest.raises(AttributeError):
        await heard(Chunks([(0.0, AttributeError("oops"))]))


class Nested:
    """A stream as the SDKs make them: generators in generators, of which it knows the outermost."""

    def __init__(self) -> None:
        self.ended: list[str] = []
        self._words = self.outer()

    async def connection(self) -> AsyncGenerator[str]:
        try:
            for word in ("one", "two", "three"):
                yield word
            await trio.sleep_forever()
        finally:
            self.ended.append("connection")

    async def inner(self) -> AsyncGenerator[str]:
        try:
            async for word in self.connection():
                yield word
        finally:
            self.ended.append("inner")

    async def outer(self) -> AsyncGenerator[str]:
        try:
            async for word in self.inner():
                yield word
        finally:
            self.ended.append("outer")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> None:
        assert self.ended == ["connection", "inner", "outer"]

    async def __anext__(self) -> object:
        return await anext(self._words)


@pytest.mark.parametrize("leave", ["break", "error", "cancel"])
async def test_all_generators_under_a_stream_end_with_it(leave: str) -> None:
    nested = Nested()

    async def create() -> Nested:
        return nested

    with trio.CancelScope() as scope, suppress(LookupError):
        async with answer("some:model", create, Words(), Deadlines()) as events:
            assert await anext(events) == TextPart("one")
            if leave == "error":
                raise LookupError("the reader's own")
            if leave == "cancel":
                scope.cancel()
    assert nested.ended == ["connection", "inner", "outer"]


@pytest.mark.parametrize("silence", [0.0, -1.0, float("nan")])
def test_a_deadline_is_above_zero(silence: float) -> None:
    with pytest.raises(ValueError, match="must be above 0"):
        Deadlines(between_tokens=silence)


@attrs.define
class CountedClient:
    closed: int = 0

    async def close(self) -> None:
        await trio.lowlevel.checkpoint()
        self.closed += 1


async def test_many_first_uses_make_one_client_and_a_failure_is_not_kept() -> None:
    made: list[CountedClient] = []

    def make() -> CountedClient:
        made.append(CountedClient())
        if len(made) == 1:
            raise ModelFailure("no key", kind="auth")
        return made[-1]

    lazy = LazyClient(make)
    with pytest.raises(ModelFailure):
        await lazy.get()
    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(lazy.get)
    assert len(made) == 2
    with trio.CancelScope() as scope:
        scope.cancel()
        await lazy.aclose()
    await lazy.aclose()
    assert made[1].closed == 1


async def test_a_cancelled_first_use_does_not_wait_for_the_import() -> None:
    imports, made = threading.Event(), list[CountedClient]()
    reached = trio.Event()
    token = trio.lowlevel.current_trio_token()

    def make() -> CountedClient:
        if not reached.is_set():
            trio.from_thread.run_sync(reached.set, trio_token=token)
            imports.wait(60)
        made.append(CountedClient())
        return made[-1]

    lazy = LazyClient(make)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lazy.get)
            await reached.wait()
            nursery.cancel_scope.cancel()
        assert not made
    finally:
        imports.set()
    assert await lazy.get() is await lazy.get()


@pytest.mark.parametrize(
    ("adapter", "variable"),
    [
        (OpenAIModel, "OPENAI_API_KEY"),
        (AnthropicModel, "ANTHROPIC_API_KEY"),
        (GoogleModel, "GEMINI_API_KEY"),
    ],
)
async def test_a_missing_key_is_named(
    adapter: type[OpenAIModel | AnthropicModel | GoogleModel],
    variable: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ModelFailure, match=f"set the variable {variable}") as caught:
        await events_of(adapter("m"), request("hi"))
    assert caught.value.kind == "auth"


@pytest.mark.parametrize("provider", KNOWN)
async def test_a_missing_package_names_the_extra(
    provider: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = KNOWN[provider].adapter("some:m", api_key="key")
    package = KNOWN[provider].package
    # What stands for a module that is not there hides it, and what was imported of it.
    for name in [name for name in sys.modules if f"{name}.".startswith(f"{package}.")]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtra, match=rf"pip install 'motet\[{provider}\]'"):
        await events_of(model, request("hi"))


def test_importing_the_models_imports_no_sdk() -> None:
    script = (
        "import sys, motet.actors.models\n"
        "sdks = {'openai', 'anthropic', 'google', 'pydantic_ai', 'httpx2'}\n"
        "print(sorted(sdks & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
