"""Inputs that are sent again, by their own users or by an operator."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

import motet
from motet.actors.runs.run import Run
from motet.actors.storage.tokens import ROLES
from motet.protocols.errors import InputValidation
from motet.protocols.queueing import MODES, QueueMode
from motet.protocols.sessions import Role
from tests.actors.runs.ops import parts_of
from tests.actors.sessions.crashes import crashed, ended
from tests.scripted import Scripted, call, say

GROUP, DIRECT = "agent:a:irc:group:den", "mine"
TWO_TURNS = motet.Limits(turns=2)


@attrs.frozen
class Sent:
    """An input as its users give it. ``limits``: those of ``host.run``, which has no sender."""

    session: str
    role: Role
    sender: str
    mode: QueueMode
    limits: motet.Limits | None

    @property
    def principal(self) -> motet.Principal:
        return motet.Principal("ann", self.role)


def settings_of(run: Run) -> tuple[object, ...]:
    """All that another run is to have too, but for the role."""
    said = run.input
    limits = None if run.limits is run.agent.limits else run.limits
    mode = run.placement.mode
    return said.text, said.sender, said.author, said.session, said.principal.user, limits, mode


def stuck() -> motet.Agent[None, str]:
    """An agent whose model never answers."""
    return motet.Agent("a", model=Scripted(None, None, None))


async def dropped(host: motet.Host, agent: motet.Agent[None, str], sent: Sent) -> Run:
    """Send an input behind another one, and stop the session."""
    table = parts_of(host).table
    author = "" if sent.limits else sent.sender
    first = await host.submit(
        "first", session=sent.session, agent="a", principal=sent.principal, sender=author
    )
    known = {first.run_id}

    async def send() -> None:
        if sent.limits is not None:
            to, who = sent.session, sent.principal
            await host.run(agent, "hi", session=to, principal=who, limits=sent.limits, check=False)
            return
        await host.submit(
            "hi",
            session=sent.session,
            principal=sent.principal,
            sender=sent.sender,
            mode=sent.mode,
            debounce=0,
        )

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        with trio.fail_after(60):
            while not (added := set(table.runs) - known):
                await trio.sleep(0.01)
            run = table.runs[added.pop()]
            await trio.testing.wait_all_tasks_blocked()
        await host.stop(session=sent.session, principal=sent.principal)
    (info,) = await ended(host, run.id)
    assert info.status == "dropped"
    return run


async def sent_again(sent: Sent, by: Role, *, own: bool) -> None:
    agent = stuck()
    async with motet.open_host(agents=[agent]) as host:
        first = await dropped(host, agent, sent)
        who = motet.Principal("ann", by) if own else motet.Principal("root", "admin")
        ack = await host.resend(first.id, principal=who)
        again = parts_of(host).table.runs[ack.run_id]
        assert settings_of(again) == settings_of(first)
        role = again.input.principal.role
        assert role == ROLES[min(map(ROLES.index, (sent.role, who.role)))], "no right is added"
        await host.stop(everything=True, principal=who)


INPUTS = st.builds(
    Sent,
    session=st.sampled_from((GROUP, DIRECT)),
    role=st.sampled_from(("operator", "admin")),
    sender=st.sampled_from(("", "Ben", "Cleo")),
    mode=st.sampled_from([mode for mode in MODES if mode in ("followup", "collect")]),
    limits=st.sampled_from((None, None, TWO_TURNS)),
)


@settings(max_examples=12)
@given(sent=INPUTS, by=st.sampled_from(("operator", "admin")), own=st.booleans())
def test_an_input_that_is_sent_again_has_the_author_limits_and_mode_of_the_first(
    sent: Sent, by: Role, own: bool
) -> None:
    """Law: all that it came with, and no right that its first sender or who resends it lacked."""

    async def example() -> None:
        await sent_again(sent, by, own=own)

    trio.run(example, clock=MockClock(autojump_threshold=0))


async def test_after_a_kill_a_run_whose_caller_is_gone_is_sent_again_with_its_limits(
    tmp_path: Path,
) -> None:
    """It does not resume: nobody waits for its result. Whoever asks for it later gets it."""
    agent, state = stuck(), tmp_path / "a"
    async with motet.open_host(state, agents=[agent]) as host, trio.open_nursery() as nursery:

        async def ask() -> None:
            await host.run(agent, "hi", session="s", limits=TWO_TURNS, check=False)

        nursery.start_soon(ask)
        left = await crashed(state, "run.started")
        nursery.cancel_scope.cancel()
    async with motet.open_host(left, agents=[stuck()]) as host:
        assert host.resumed == ()
        (info,) = host.interrupted
        ack = await host.resend(info.run_id)
        assert parts_of(host).table.runs[ack.run_id].limits == TWO_TURNS
        await host.stop(everything=True)


async def test_a_run_with_deps_is_sent_again_by_its_program_only() -> None:
    with_deps = motet.Agent("b", model=Scripted(None, name="other"), deps_type=int)
    async with motet.open_host(agents=[stuck(), with_deps]) as host:
        first = await host.submit("first", session="s", agent="a")
        async with trio.open_nursery() as nursery:

            async def ask() -> None:
                await host.run(with_deps, "hi", session="s", deps=3, check=False)

            nursery.start_soon(ask)
            table = parts_of(host).table
            while len(table.runs) < 2:
                await trio.sleep(0.01)
            (run,) = table.runs.keys() - {first.run_id}
            await host.stop(session="s")
        with pytest.raises(InputValidation, match="deps"):
            await host.resend(run)


def hands_over() -> list[motet.Agent[None, str]]:
    """Two agents; the first one hands its first conversation over."""
    answers = [say("done") for _ in range(8)]
    second = motet.Agent("second", model=Scripted(*answers, name="second"))
    transfer = call(("transfer_to_second", {}))
    first = motet.Agent("first", model=Scripted(transfer, *answers, name="first"))
    first.may_hand_to(second)
    return [first, second]


@given(
    st.lists(st.sampled_from((None, "first", "second")), min_size=1, max_size=4),
    st.booleans(),
    st.sampled_from([mode for mode in MODES if mode != "reject"]),
)
@settings(max_examples=15)
def test_an_input_is_the_same_one_whichever_agent_answers_by_now(
    agents: list[str | None], sends: bool, mode: QueueMode
) -> None:
    """Law: the same key and text in a session are one input, though the agent that answers there
    by default is another one since a hand-over, or since an input that named its agent.
    """

    async def send(host: motet.Host, text: str, key: str, agent: str | None) -> motet.Ack:
        if sends and agent is None:
            return await host.send(text, session=DIRECT, mode=mode, key=key)
        return await host.submit(text, session=DIRECT, agent=agent, mode=mode, key=key)

    async def main() -> None:
        async with motet.open_host(agents=hands_over()) as host:
            first: list[motet.Ack] = []
            for number, agent in enumerate(agents):
                first.append(await send(host, f"text {number}", f"key {number}", agent))
                await ended(host, first[-1].run_id)
            for number, ack in enumerate(first):
                for agent in (None, "first", "second"):
                    again = await send(host, f"text {number}", f"key {number}", agent)
                    assert (again.run_id, again.status) == (ack.run_id, "duplicate")
                with pytest.raises(motet.KeyConflict):
                    await send(host, "another text", f"key {number}", agents[number])

    trio.run(main, clock=MockClock(autojump_threshold=0))
