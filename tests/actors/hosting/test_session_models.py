"""The model that somebody has chosen for a session."""

from __future__ import annotations

from pathlib import Path

import pytest

import motet
from motet.actors.gateway.commands import answer_command, parse_command
from motet.protocols.events import RunStarted
from motet.protocols.sessions import Principal
from tests.scripted import Scripted, say

ALICE, BOB = Principal("alice"), Principal("bob")


def agents(*, with_large: bool = True) -> list[motet.Agent[None]]:
    """One that asks a small model, and one that asks a large one."""
    small = motet.Agent("small", model=Scripted(*[say("s")] * 9, name="small-1"))
    large = motet.Agent("large", model=Scripted(*[say("l")] * 9, name="large-1"))
    return [small, large] if with_large else [small]


async def typed(host: motet.Host, text: str, session: str = "s") -> str:
    command = parse_command(text)
    assert command is not None
    return (await answer_command(host, ALICE, session, command)).text


async def test_a_session_keeps_the_model_that_was_set_over_a_restart(tmp_path: Path) -> None:
    async with motet.open_host(tmp_path, agents=agents()) as host:
        assert "say something first" in (await typed(host, "/model large-1")).lower()
        assert (await host.run("small", "one", session="s", principal=ALICE)).text == "s"
        told = await typed(host, "/model large-1")
        assert told == "small asks large-1, as was set here; its own is small-1."
        assert (await host.run("small", "two", session="s", principal=ALICE)).text == "l"
        assert (await host.run("small", "else", session="t", principal=ALICE)).text == "s"
        started = [
            one.event
            for one in await host.events.read("session:s", 0)
            if isinstance(one.event, RunStarted)
        ]
        assert started == [RunStarted("small", "small-1"), RunStarted("small", "large-1")]
    async with motet.open_host(tmp_path, agents=agents()) as host:
        assert host.session_model("s") == "large-1"
        assert (await host.run("small", "three", session="s", principal=ALICE)).text == "l"
        assert await typed(host, "/model default") == "small asks small-1."
        assert (await host.run("small", "four", session="s", principal=ALICE)).text == "s"
        assert "/model NAME changes that: large-1" in await typed(host, "/model")


async def test_a_model_that_the_host_has_not_is_refused_with_the_nearest_name() -> None:
    async with motet.open_host(agents=agents()) as host:
        await host.run("small", "one", session="s", principal=ALICE)
        told = await typed(host, "/model larg-1")
        assert told == "Nothing was changed: unknown model 'larg-1'; did you mean 'large-1'?"
        with pytest.raises(motet.UnknownName):
            await host.set_model("s", "openai:gpt-5.2", principal=ALICE)
        with pytest.raises(motet.NotFound):
            await host.set_model("s", "large-1", principal=BOB)
        assert host.session_model("s") is None


async def test_a_model_that_has_gone_counts_no_more(tmp_path: Path) -> None:
    async with motet.open_host(tmp_path, agents=agents()) as host:
        await host.run("small", "one", session="s", principal=ALICE)
        await host.set_model("s", "large-1", principal=ALICE)
    async with motet.open_host(tmp_path, agents=agents(with_large=False)) as host:
        assert host.session_model("s") is None
        assert (await host.run("small", "two", session="s", principal=ALICE)).text == "s"
        assert await typed(host, "/model") == "small asks small-1."


async def test_an_offered_model_can_be_chosen(tmp_path: Path) -> None:
    file = tmp_path / "motet.toml"
    file.write_text('[models]\noffered = ["openai:gpt-5.2-mini"]\n[agents.small]\nmodel = "demo"\n')
    async with motet.open_host(config=file) as host:
        assert host.models() == ("demo", "openai:gpt-5.2-mini")
    file.write_text('[models]\noffered = ["opnai:gpt-5.2"]\n')
    with pytest.raises(motet.UnknownName, match="openai"):
        async with motet.open_host(config=file):
            raise AssertionError("it was opened")
