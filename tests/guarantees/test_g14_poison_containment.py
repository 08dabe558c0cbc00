"""G14: a session whose resumption ends its host again and again is put aside; others go on."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

import motet
from motet.protocols import events
from tests import forks
from tests.actors.sessions.crashes import crashed, ended, opened
from tests.scripted import Scripted, say

TRIES = 2


def poison(*answers: str) -> motet.Agent[None, str]:
    """Its host never lives to see its answer, unless there is one."""
    return motet.Agent("poison", model=Scripted(*[say(text) for text in answers] or [None]))


def sound() -> motet.Agent[None, str]:
    return motet.Agent("sound", model=Scripted(say("fine"), name="sound"))


async def deaths(state: Path, number: int) -> Path:
    """The state after so many hosts have died while they took its session up."""
    for _ in range(number):
        async with opened(state, poison(), quarantine_after=TRIES):
            state = await crashed(state)
    return state


async def accepted(state: Path) -> tuple[Path, str]:
    async with opened(state, poison()) as host:
        ack = await host.submit("drink me", session="bad", agent="poison")
        return await crashed(state), ack.run_id


async def test_a_session_that_kills_its_hosts_is_put_aside_and_says_so(tmp_path: Path) -> None:
    state, run_id = await accepted(tmp_path / "a")
    state = await deaths(state, TRIES)
    async with opened(state, poison("late"), sound(), quarantine_after=TRIES) as host:
        assert [run.run_id for run in host.interrupted] == [run_id]
        assert host.resumed == ()
        (one,) = await host.quarantined()
        assert (one.session, one.owner, one.tries) == ("bad", "local", TRIES)
        assert await host.quarantined(principal=motet.Principal("bob")) == ()
        told = [record.event for record in await host.events.read("session:bad", 0)]
        assert events.SessionQuarantined(TRIES) in told

        # It is not taken up; what is said to it now is answered as ever.
        again = await host.resend(run_id)
        assert (await ended(host, again.run_id))[0].status == "completed"


async def test_every_other_session_is_taken_up(tmp_path: Path) -> None:
    state, _ = await accepted(tmp_path / "a")
    state = await deaths(state, TRIES)
    good = motet.Agent("sound", model=Scripted(None, name="sound"))
    async with opened(state, poison(), good, quarantine_after=TRIES) as host:
        ack = await host.submit("hi", session="good", agent="sound")
        state = await crashed(state)
    async with opened(state, poison(), sound(), quarantine_after=TRIES) as host:
        assert [run.run_id for run in host.resumed] == [ack.run_id]
        assert (await ended(host, ack.run_id))[0].status == "completed"


async def test_while_it_is_aside_it_is_not_taken_up_and_after_a_release_it_is(
    tmp_path: Path,
) -> None:
    state, _ = await accepted(tmp_path / "a")
    state = await deaths(state, TRIES)
    async with opened(state, poison(), quarantine_after=TRIES) as host:
        await host.submit("once more", session="bad")
        state = await crashed(state)
    async with opened(state, poison(), quarantine_after=TRIES) as host:
        (run,) = host.interrupted
        assert "quarantined" in run.detail
        with pytest.raises(motet.NotFound):
            await host.release("bad", principal=motet.Principal("bob"))
        await host.release("bad")
        with pytest.raises(motet.NotFound, match="not quarantined"):
            await host.release("bad")
        ack = await host.submit("and again", session="bad")
        state = await crashed(state)
    async with opened(state, poison("cured"), quarantine_after=TRIES) as host:
        assert [run.run_id for run in host.resumed] == [ack.run_id]
        await ended(host, ack.run_id)


async def test_only_deaths_in_a_row_count(tmp_path: Path) -> None:
    state, run_id = await accepted(tmp_path / "a")
    state = await deaths(state, TRIES - 1)
    async with opened(state, poison("phew"), quarantine_after=TRIES) as host:
        await ended(host, run_id)
        host.add(slow := motet.Agent("slow", model=Scripted(None, name="slow")))
        await host.submit("next", session="bad", agent=slow.name)
        state = await crashed(state)
    async with opened(state, poison(), slow, quarantine_after=TRIES) as host:
        assert await host.quarantined() == ()
        assert len(host.resumed) == 1


async def test_a_host_that_ends_in_order_has_not_died_of_it(tmp_path: Path) -> None:
    state, _ = await accepted(tmp_path / "a")
    for _ in range(TRIES + 1):
        async with opened(state, poison(), quarantine_after=TRIES) as host:
            assert len(host.resumed) == 1
            with trio.move_on_after(0.02):
                await trio.sleep_forever()
            await host.drain(0)


async def test_the_doctor_names_it_and_a_release_beside_the_host_is_enough(tmp_path: Path) -> None:
    state, _ = await accepted(tmp_path / "a")
    state = await deaths(state, TRIES)
    async with opened(state, poison(), quarantine_after=TRIES):
        await trio.sleep(0)
    ran = [
        forks.ran("-m", "motet.cli", *command, "--state", str(state), cwd=tmp_path)
        for command in (("doctor",), ("sessions", "release", "bad"), ("doctor",))
    ]
    said = [one.stdout for one in ran]
    assert "bad is quarantined: 2 hosts in a row died while they took it up" in said[0]
    assert ran[1].returncode == 0, ran[1].stderr
    assert "quarantined" not in said[2]
