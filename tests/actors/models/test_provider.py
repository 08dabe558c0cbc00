"""The provider actor: limits, retries, and one clear error at the end."""

from itertools import pairwise
from random import Random

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from motet.actors.models.provider import Provider
from motet.protocols.chat import Call
from motet.protocols.errors import Llm, MissingExtra
from motet.protocols.fair_queue import FairQueue
from motet.protocols.models import (
    CallArguments,
    CallStart,
    Finished,
    Generate,
    ModelEvent,
    ModelFailure,
    ModelProtocol,
    ModelResponse,
    Notice,
    Queued,
    Retrying,
    TextPart,
)
from motet.runtime import ActorRef, System, open_system
from tests.actors.models.builders import ScriptedModel, Step, request, say

ASK = Generate(request("hi"))


async def start(
    system: System, model: ScriptedModel, concurrency: int = 16
) -> ActorRef[ModelProtocol]:
    return await system.start(
        lambda: Provider(model, queue=FairQueue(concurrency), random=Random(7)), name="provider"
    )


async def asked(model: ScriptedModel) -> tuple[list[ModelEvent | Notice], ModelResponse]:
    async with open_system() as system:
        provider = await start(system, model)
        async with provider.stream(ASK) as stream:
            items = [item async for item in stream]
        return items, stream.result


async def refused(model: ScriptedModel) -> Llm:
    async with open_system() as system:
        provider = await start(system, model)
        with pytest.raises(Llm) as caught:
            await provider.ask(ASK)
    return caught.value


def failing(kind: str, *, after: tuple[Step, ...] = (), **more: float) -> tuple[Step, ...]:
    wait = more.get("retry_after")
    return (*after, ModelFailure(f"it was {kind}", kind=kind, retry_after=wait))


async def test_every_event_is_streamed_and_the_response_is_complete() -> None:
    events: tuple[ModelEvent, ...] = (
        TextPart("Let me "),
        TextPart("look."),
        CallStart(0, "c1", "f"),
        CallArguments(0, "{}"),
        Finished("tool_calls"),
    )
    items, response = await asked(ScriptedModel([events]))
    assert items == list(events)
    assert response == ModelResponse(
        "Let me look.", calls=(Call("c1", "f"),), stop_reason="tool_calls"
    )


async def test_a_plain_ask_gets_the_response_too() -> None:
    async with open_system() as system:
        provider = await start(system, ScriptedModel([say("hello")]))
        assert (await provider.ask(ASK)).text == "hello"


async def test_text_streamed_before_a_failure_is_withdrawn(autojump_clock: MockClock) -> None:
    model = ScriptedModel([failing("cut", after=(TextPart("ha"),)), say("whole")])
    items, response = await asked(model)
    assert items[0] == TextPart("ha")
    retrying = items[1]
    assert isinstance(retrying, Retrying)
    assert (retrying.attempt, retrying.reason) == (1, "it was cut")
    assert response.text == "whole"


async def test_a_stream_that_just_ends_is_retried_as_a_cut(autojump_clock: MockClock) -> None:
    _, response = await asked(ScriptedModel([(TextPart("ha"),), say("whole")]))
    assert response.text == "whole"


async def test_four_attempts_and_no_more_with_growing_bounds(autojump_clock: MockClock) -> None:
    model = ScriptedModel([failing("server")])
    error = await refused(model)
    assert model.attempts == 4
    pauses = [later - earlier for earlier, later in pairwise(model.at)]
    assert all(0 <= pause <= bound for pause, bound in zip(pauses, (0.5, 1.0, 2.0), strict=True))
    assert str(error) == (
        "scripted:model failed: it was server (after 4 attempts); try again later"
    )
    assert error.kind == "unavailable"
    assert isinstance(error.__cause__, ModelFailure)


async def test_the_requested_delay_is_kept(autojump_clock: MockClock) -> None:
    model = ScriptedModel([failing("rate_limit", retry_after=90.0), say("late")])
    await asked(model)
    assert model.at[1] - model.at[0] == pytest.approx(90)


async def test_a_wait_that_is_too_long_is_not_waited(autojump_clock: MockClock) -> None:
    model = ScriptedModel([failing("rate_limit", retry_after=3600.0)])
    error = await refused(model)
    assert model.attempts == 1
    assert "the provider asks to wait 3600 s, longer than the 120 s we wait" in str(error)


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("auth", "auth"),
        ("quota", "rate_limit"),
        ("bad_request", "bad_request"),
        ("context_exhausted", "context_exhausted"),
    ],
)
async def test_a_permanent_failure_ends_it_at_once(kind: str, told: str) -> None:
    model = ScriptedModel([failing(kind)])
    error = await refused(model)
    assert (model.attempts, error.kind) == (1, told)


async def test_a_missing_package_is_raised_unchanged() -> None:
    with pytest.raises(MissingExtra):
        await asked(ScriptedModel([(MissingExtra("openai", "the model"),)]))


async def test_a_bug_in_a_model_is_raised_unchanged_and_the_provider_lives_on() -> None:
    model = ScriptedModel([(AttributeError("oops"),), say("fine")])
    async with open_system() as system:
        provider = await start(system, model)
        with pytest.raises(AttributeError):
            await provider.ask(ASK)
        assert (await provider.ask(ASK)).text == "fine"


async def test_no_more_requests_than_allowed_are_at_the_model(autojump_clock: MockClock) -> None:
    model = ScriptedModel([(1.0, *say("done"))])
    async with open_system() as system:
        provider = await start(system, model, concurrency=3)
        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(provider.ask, ASK)
    assert (model.attempts, model.most_open) == (10, 3)


async def test_requests_wait_in_a_fair_queue_and_say_so(autojump_clock: MockClock) -> None:
    """A room that asks once is answered before the rest of one that has asked for more before."""
    model = ScriptedModel([(1.0, *say("done"))])
    order: list[str] = []
    async with open_system() as system:
        provider = await start(system, model, concurrency=2)

        async def asks(payer: str) -> None:
            seen: list[object] = []
            await provider.stream_to(Generate(request("hi"), payer), seen.append)
            waited = [one for one in seen if isinstance(one, Queued)]
            positions = [one.position for one in waited if one.waits]
            assert waited[len(positions) :] == [Queued(waits=False)] * bool(waited)
            order.append(payer + " waited" * bool(waited))

        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(asks, "room:flood")
            await wait_all_tasks_blocked()
            nursery.start_soon(asks, "room:quiet")
    assert sorted(order[2:4]) == ["room:flood waited", "room:quiet waited"]
    assert trio.current_time() == 3


async def test_a_request_that_is_cancelled_just_when_it_gets_its_place_gives_it_on(
    autojump_clock: MockClock,
) -> None:
    model = ScriptedModel([(1.0, *say("done"))])
    async with open_system() as system:
        provider = await start(system, model, concurrency=1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(provider.ask, ASK)
            await wait_all_tasks_blocked()

            async def leaves() -> None:
                with trio.move_on_at(1.0):  # in the step in which the first one ends
                    await provider.ask(ASK)

            for _ in range(3):
                nursery.start_soon(leaves)
            await trio.sleep(1.0)
            with trio.fail_after(3):
                await provider.ask(ASK)


async def test_a_retry_waits_outside_of_its_turn(autojump_clock: MockClock) -> None:
    model = ScriptedModel([failing("rate_limit", retry_after=100.0), say("quick"), say("late")])
    async with open_system() as system:
        provider = await start(system, model, concurrency=1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(provider.ask, ASK)
            await wait_all_tasks_blocked()
            assert (await provider.ask(ASK)).text == "quick"
            assert trio.current_time() < 100


async def test_leaving_a_stream_closes_the_request_and_frees_its_turn(
    autojump_clock: MockClock,
) -> None:
    model = ScriptedModel([(TextPart("one"), 1000.0, TextPart("two")), say("next")])
    async with open_system() as system:
        provider = await start(system, model, concurrency=1)
        async with provider.stream(ASK) as stream:
            assert await anext(stream) == TextPart("one")
        assert model.open == 0
        assert (await provider.ask(ASK)).text == "next"
    assert trio.current_time() < 1000


@pytest.mark.parametrize("waits_for", ["a turn", "a retry"])
async def test_a_waiting_request_can_be_cancelled(
    autojump_clock: MockClock, waits_for: str
) -> None:
    first: tuple[Step, ...] = (50.0, *say("slow"))
    if waits_for == "a retry":
        first = failing("server", retry_after=50.0)
    model = ScriptedModel([first, say("never")])
    async with open_system() as system:
        provider = await start(system, model, concurrency=1)
        async with trio.open_nursery() as nursery:
            if waits_for == "a turn":
                nursery.start_soon(provider.ask, ASK)
                await wait_all_tasks_blocked()
            with trio.move_on_after(5) as scope:
                await provider.ask(ASK)
            assert scope.cancelled_caught
            assert trio.current_time() == pytest.approx(5)
    assert model.attempts == 1
