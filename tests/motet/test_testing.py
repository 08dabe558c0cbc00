"""The models of ``motet.testing`` as a host meets them, and its switch."""

from pathlib import Path

import pytest

import motet
from motet import testing as mt
from motet.protocols.chat import ToolMessage
from motet.protocols.errors import Llm
from motet.testing import RecordedModel, ScriptedModel, call, fail, say


@motet.tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def test_a_script_calls_tools_and_then_answers() -> None:
    model = ScriptedModel(
        [say("I add.") + call("add", a=1, b=2) + call("add", a=3, b=4), say("3 and 7")]
    )
    agent = motet.Agent("t", model=model, tools=[add])
    async with motet.open_host() as host:
        result = await host.run(agent, "go")
    assert result.output == "3 and 7"
    results = [row.text for row in model.requests[1].messages[-2:] if isinstance(row, ToolMessage)]
    assert results == ["3", "7"]
    model.assert_complete()


async def test_a_run_with_tools_is_recorded_in_one_host_and_played_in_another(
    tmp_path: Path,
) -> None:
    cassette = tmp_path / "sums.jsonl"
    script = ScriptedModel([call("add", a=1, b=2), say("3")])
    players = [RecordedModel(cassette, script, mode="record"), None]
    for session in ("first", "second"):
        model = players.pop(0) or RecordedModel(cassette)
        agent = motet.Agent("t", model=model, tools=[add, "group:fs"])
        async with motet.open_host(workspace=tmp_path / session) as host:
            result = await host.run(agent, "1 + 2", session=f"user:{session}")
        assert result.output == "3"


async def test_a_request_too_many_says_so_and_a_step_too_many_too() -> None:
    model = ScriptedModel([call("add", a=1, b=2)])
    agent = motet.Agent("t", model=model, tools=[add])
    async with motet.open_host() as host:
        with pytest.raises(Llm, match="the script has 1 steps, and this is request 2"):
            await host.run(agent, "go")
    with pytest.raises(AssertionError, match="1 of 1 steps were not reached"):
        ScriptedModel([say("never")]).assert_complete()


@pytest.mark.parametrize(
    ("failure", "kind"), [(fail(401), "auth"), (fail(kind="bad_request"), "bad_request")]
)
async def test_a_failure_of_a_script_fails_the_run(failure: mt.Failure, kind: str) -> None:
    async with motet.open_host() as host:
        with pytest.raises(Llm) as caught:
            await host.run(motet.Agent("t", model=ScriptedModel([failure])), "go")
    assert caught.value.kind == kind


async def test_with_the_switch_off_no_provider_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mt, "ALLOW_MODEL_REQUESTS", False)
    agent = motet.Agent("t", model="openai:gpt-5.2")
    async with motet.open_host() as host:
        with pytest.raises(Llm, match=r"openai:gpt-5\.2 would be asked for real by ") as caught:
            await host.run(agent, "go")
    assert "motet.testing.ALLOW_MODEL_REQUESTS is False" in str(caught.value)
    assert f" by {__file__}:" in str(caught.value)


def test_the_switch_is_on_unless_a_suite_says_otherwise() -> None:
    assert mt.ALLOW_MODEL_REQUESTS
