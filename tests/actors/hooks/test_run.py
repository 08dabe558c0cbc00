"""The hooks of a run, besides their decisions: events, counts, storage."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, Literal

import pytest
import trio
from trio.testing import MockClock

import motet
from motet.protocols import events
from motet.protocols.chat import AssistantMessage, UserMessage
from motet.protocols.errors import Aborted, InputValidation
from motet.protocols.hooks import Abort, Continue, Deny, Point, Replace
from motet.protocols.models import ModelResponse
from tests.actors.hooks.stage import (
    WENT_ON,
    computed,
    new_request,
    raising,
    register,
    returning,
    turn,
)
from tests.scripted import Scripted, say


async def test_a_replaced_request_is_what_the_model_gets() -> None:
    happened = await turn("before_model", computed(new_request))
    assert [request.system for request in happened.model.requests] == ["Be kind."] * 2


async def test_the_cost_of_a_refused_answer_is_counted() -> None:
    happened = await turn("before_output", returning(Deny("secret")))
    assert happened.result.usage.total_tokens == 30


async def test_usage_is_not_for_hooks_to_change() -> None:
    happened = await turn("after_model", returning(Replace(response=ModelResponse("free"))))
    assert happened.result.usage.total_tokens == 15


@pytest.mark.parametrize("point", ["before_output", "after_model"])
async def test_an_answer_that_may_be_refused_is_not_streamed(point: Point) -> None:
    """Neither as parts nor as a message: a client must not read a text that is then withheld."""
    happened = await turn(point, returning(Abort("secret")), "block")
    shown = [e for e in happened.seen if isinstance(e, events.TextDelta)]
    assert shown == []
    assert not any("done" in getattr(event, "text", "") for event in happened.seen)


async def test_an_observer_of_answers_does_not_hold_them_back() -> None:
    happened = await turn("after_model", returning(None))
    deltas = [e.text for e in happened.seen if isinstance(e, events.TextDelta)]
    assert deltas == ["do", "ne"]


async def test_a_denied_input_is_never_shown_to_the_model() -> None:
    model = Scripted(say("hello"))
    agent = motet.Agent("a", model=model)
    async with motet.open_host() as host:

        @host.on("before_input")
        async def polite(event: motet.BeforeInput) -> motet.Allow | motet.Deny:
            return Deny("rude") if "damn" in event.text else motet.Allow()

        with pytest.raises(InputValidation, match="the input was not accepted: rude"):
            await host.run(agent, "damn", session="s")
        await host.run(agent, "please", session="s")
    assert model.requests[0].messages == (UserMessage("please"),)


async def test_a_stop_at_the_gate_of_the_input_leaves_no_row(autojump_clock: MockClock) -> None:
    asked = trio.Event()
    agent = motet.Agent("a", model=Scripted())

    async def slow(_event: object) -> None:
        asked.set()
        await trio.sleep_forever()

    async with motet.open_host() as host:
        register(host, "before_input", slow, timeout=60)
        async with host.stream(agent, "go", session="s") as run:
            await asked.wait()
            run.cancel()
            result = await run.wait()
        assert (result.status, result.rows) == ("cancelled", ())
    del autojump_clock


async def test_continue_ends_at_the_limit_with_the_last_answer() -> None:
    model = Scripted(*[say(f"answer {n}") for n in range(3)])
    agent = motet.Agent("a", model=model, limits=motet.Limits(turns=3))
    async with motet.open_host() as host:
        register(host, "before_output", returning(Continue("more")))
        result = await host.run(agent, "go", check=False)
    assert (result.status, result.limit, result.output) == ("limited", "turns", "answer 2")


async def test_a_session_starts_and_ends_once_around_its_runs() -> None:
    seen: list[str] = []
    agent = motet.Agent("a", model=Scripted(say("1"), say("2")))
    async with motet.open_host() as host:

        async def note(event: Any) -> None:
            seen.append(type(event).__name__ + (" resumed" if getattr(event, "resumed", 0) else ""))

        for point in ("session_start", "session_end", "run_end"):
            register(host, point, note)
        await host.run(agent, "a", session="s")
        await host.run(agent, "b", session="s")
    assert seen == ["SessionStart", "RunEnd", "RunEnd", "SessionEnd"]


async def test_observers_see_failures_and_warnings() -> None:
    seen: list[object] = []
    agent = motet.Agent("a", model=Scripted())

    async def note(event: Any) -> None:
        seen.append(event)

    async with motet.open_host() as host:
        register(host, "error", note)
        register(host, "warning", note)
        register(host, "before_model", raising, on_error="continue")
        register(host, "before_input", returning(motet.Allow()))
        await host.run(agent, "go", check=False)
    warned = [e.message for e in seen if isinstance(e, motet.RunWarning)]
    assert warned == ["hook 'raising' failed: OSError: the policy cannot be read"]
    assert [e.kind for e in seen if isinstance(e, motet.RunError)] == ["Internal"]


async def test_a_failing_hook_at_warnings_does_not_loop() -> None:
    happened = await turn("warning", raising)
    assert happened.outcome == WENT_ON
    agent = motet.Agent("a", model=Scripted(say("hi")))
    async with motet.open_host() as host:
        register(host, "warning", raising)
        register(host, "after_model", raising)
        assert (await host.run(agent, "go")).output == "hi"


@pytest.mark.parametrize("end", ["stopped", "killed"])
async def test_without_a_hooks_actor_blocking_gates_block(
    end: Literal["stopped", "killed"],
) -> None:
    agent = motet.Agent("a", model=Scripted(say("hi")))
    async with motet.open_host() as host:
        register(host, "before_input", returning(motet.Allow()))
        hooks = host.system.find("/host/hooks")
        assert hooks is not None
        await hooks.stop(grace=0 if end == "killed" else None)
        with pytest.raises(Aborted) as caught:
            await host.run(agent, "go")
    assert caught.value.cause == "error"


async def test_the_row_of_a_continued_answer_is_the_assistants() -> None:
    hook = computed(lambda e: motet.Allow() if e.continued else Continue("sure?"))
    happened = await turn("before_output", hook)
    kinds = [type(row) for row in happened.result.rows]
    assert kinds[-3:] == [AssistantMessage, UserMessage, AssistantMessage]


async def test_after_a_crash_no_input_is_in_the_history_that_its_gates_did_not_let_pass(
    tmp_path: Path,
) -> None:
    asked = trio.Event()

    async def gate(event: motet.BeforeInput) -> motet.Replace:
        if "wait" in event.text:
            asked.set()
            await trio.sleep_forever()
        return Replace("censored")

    async def crashed(copy: str) -> list[str]:
        """The state as another host finds it now."""
        shutil.copytree(tmp_path / "state", tmp_path / copy)
        async with motet.open_host(tmp_path / copy) as host:
            return [getattr(row.row, "text", "") for row in await host.history("s")]

    agent = motet.Agent("a", model=Scripted(None))
    async with motet.open_host(tmp_path / "state", agents=[agent]) as host:
        register(host, "before_input", gate, timeout=600)
        async with host.stream(agent, "wait for the secret", session="s") as run:
            await asked.wait()
            at_the_gate = await crashed("first")
            run.cancel()
        async with host.stream(agent, "the secret", session="s") as run:
            async for event in run:
                if isinstance(event, events.Activity):
                    break
            behind_it = await crashed("second")
    assert at_the_gate[0].startswith("[Input withheld")
    assert behind_it[0] in ("censored", at_the_gate[0])
    assert not any("secret" in text for text in at_the_gate + behind_it)
