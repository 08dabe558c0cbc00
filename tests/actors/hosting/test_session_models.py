"""The model that somebody has chosen for a session."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from itertools import permutations
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import trio
from hypothesis import given
from hypothesis import settings as settings_of
from hypothesis import strategies as st

import motet
from motet.actors.gateway.commands import answer_command
from motet.actors.runs.queue import SessionSettings
from motet.protocols.commands import parse_command
from motet.protocols.events import RunStarted
from motet.protocols.sessions import Principal, SessionInfo
from tests.scripted import Scripted, say

ALICE, BOB = Principal("alice"), Principal("bob")


def agents(*, with_large: bool = True) -> list[motet.Agent[None]]:
    """One that asks a small model, and one that asks a large one."""
    small = motet.Agent("small", model=Scripted(*[say("s")] * 40, name="small-1"))
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
        assert told == "small uses large-1, set for this session; its own is small-1."
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
        assert await typed(host, "/model default") == "small uses small-1."
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
        assert await typed(host, "/model") == "small uses small-1."


async def test_an_offered_model_can_be_chosen(tmp_path: Path) -> None:
    file = tmp_path / "motet.toml"
    file.write_text('[models]\noffered = ["openai:gpt-5.2-mini"]\n[agents.small]\nmodel = "demo"\n')
    async with motet.open_host(config=file) as host:
        assert host.models() == ("demo", "openai:gpt-5.2-mini")
    file.write_text('[models]\noffered = ["opnai:gpt-5.2"]\n')
    with pytest.raises(motet.UnknownName, match="openai"):
        async with motet.open_host(config=file):
            raise AssertionError("it was opened")


# Names that change hands


async def settled(later: list[int], state: str) -> None:
    """Alice sets, deletes and makes her session anew while bob tries to take its name."""

    async def after(steps: int, act: Callable[[], Awaitable[object]]) -> None:
        for _ in range(steps):
            await trio.lowlevel.checkpoint()
        with suppress(motet.MotetError):
            await act()

    async def takes_over() -> None:
        for _ in range(20):
            with suppress(motet.MotetError):
                result = await host.run("small", "mine", session="s", principal=BOB)
                assert result.text == "s"

    async with motet.open_host(state, agents=agents()) as host:
        await host.run("small", "one", session="s", principal=ALICE)
        await host.set_queue("s", "collect", principal=ALICE)
        assert settings(host, BOB) == (None, "steer")
        acts: list[Callable[[], Awaitable[object]]] = [
            partial(host.set_model, "s", "large-1", principal=ALICE),
            partial(host.set_queue, "s", "reject", principal=ALICE),
            partial(host.delete, "s", principal=ALICE),
            partial(host.run, "small", "mine", session="s", principal=ALICE),
            takes_over,
            partial(host.set_queue, "s", "interrupt", principal=BOB),
        ]
        async with trio.open_nursery() as nursery:
            for steps, act in zip(later, acts, strict=True):
                nursery.start_soon(after, steps, act)
        now = {user: settings(host, user) for user in (ALICE, BOB)}
    async with motet.open_host(state, agents=agents()) as host:
        assert now == {user: settings(host, user) for user in (ALICE, BOB)}


def settings(host: motet.Host, user: Principal) -> tuple[str | None, str]:
    return host.session_model("s", principal=user), host.queue_mode("s", principal=user)


@settings_of(max_examples=12)
@given(st.lists(st.integers(0, 150), min_size=6, max_size=6))
def test_a_setting_counts_for_its_own_session_only(later: list[int]) -> None:
    """Law: the owner of a session has the settings that are stored for it; nobody else has."""
    with TemporaryDirectory() as state:
        trio.run(settled, later, state)


@pytest.mark.parametrize("order", tuple(permutations(range(3))))
def test_settings_and_deletions_may_be_noticed_in_any_order(order: tuple[int, ...]) -> None:
    """Their order on disk is fixed; the tasks that wait for it go on in any order."""
    known = SessionSettings()
    alices, bobs = (
        SessionInfo("s", "small", user, 0.0, 0.0, 0, generation=f"g-{user}")
        for user in ("alice", "bob")
    )
    news = (
        partial(known.change, alices, mode="collect"),
        partial(known.forget, "s", alices.generation),
        partial(known.change, bobs, mode="reject"),
    )
    for one in order:
        news[one]()
        assert known.of("s", "bob").mode in (None, "reject")
    assert (known.of("s", "alice").mode, known.of("s", "bob").mode) == (None, "reject")
