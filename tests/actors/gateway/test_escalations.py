"""An escalation over the wire: each decision starts its run, for its own user and admins only."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import attrs
import msgspec
import pytest
import trio

import motet
from motet.actors.storage.tokens import new_token
from motet.client import Client, RequestFailed, connect
from motet.protocols.config import GatewayConfig, TokenConfig
from motet.protocols.escalations import Answer, EscalationInfo
from motet.protocols.gateway_records import RunWaited
from motet.protocols.sessions import RunInfo
from tests.scripted import Scripted, call, say

ALICE = motet.Principal("alice")
DECISIONS: tuple[Answer, ...] = ("retry", "advice", "skip")


def failing(times: int) -> motet.Agent[None]:
    """Fails at every other input, and then says something."""
    steps = [step for n in range(times) for step in (call(("deploy", {"n": n})), say("done"))]
    limits = motet.Limits(tool_errors=1)
    agent = motet.Agent("ops", model=Scripted(*steps), limits=limits)

    @agent.tool
    def deploy(n: int) -> None:
        raise OSError(f"no route {n}")

    return agent


@attrs.frozen
class Wire:
    """A host, and a client of each user."""

    host: motet.Host
    alice: Client
    bob: Client
    root: Client

    async def fail(self) -> EscalationInfo:
        """Have a run of alice's escalated."""
        await self.host.run("ops", "go", session="s", principal=ALICE, check=False)
        (waiting,) = await self.alice.escalations(session="s", state="open")
        return waiting

    async def end_of(self, run_id: str | None) -> RunInfo:
        found = await self.alice.call("runs.wait", run_id=run_id, timeout_ms=20_000)
        return msgspec.convert(found, RunWaited).run


@asynccontextmanager
async def wire(times: int) -> AsyncGenerator[Wire]:
    tokens = tuple(
        TokenConfig(token=new_token(), user=user, role="admin" if user == "root" else "operator")
        for user in ("alice", "bob", "root")
    )
    async with motet.open_host(agents=[failing(times)]) as host:
        url = await host.serve(GatewayConfig(listen="127.0.0.1:0", tokens=tokens))
        async with (
            connect(url, token=str(tokens[0].token)) as alice,
            connect(url, token=str(tokens[1].token)) as bob,
            connect(url, token=str(tokens[2].token)) as root,
        ):
            yield Wire(host, alice, bob, root)


async def test_each_decision_starts_the_next_run() -> None:
    async with wire(3) as here:
        for number, decision in enumerate(DECISIONS):
            waiting = await here.fail()
            (tried,) = waiting.error_history
            assert (tried.tool_name, tried.arguments) == ("deploy", f'{{"n":{number}}}')
            assert (tried.message, tried.error_type) == (f"no route {number}", "unknown")
            assert await here.host.error(str(tried.error_id)) is not None
            client = here.root if decision == "advice" else here.alice
            answered = await client.resolve(waiting.id, decision, note="use staging")
            assert await client.resolve(waiting.id, decision, note="use staging") == answered
            run = await here.end_of(answered.next_run)
            assert (run.status, run.user) == ("completed", "alice")
            assert "use staging" in run.text
            assert f"no route {number}" in run.text
            with pytest.raises(RequestFailed, match=f"has answered {waiting.id}") as again:
                await here.alice.resolve(waiting.id, "give_up")
            assert again.value.code == "already_answered"


async def test_giving_up_starts_none() -> None:
    async with wire(1) as here:
        waiting = await here.fail()
        assert (await here.alice.resolve(waiting.id, "give_up")).next_run is None
        assert len(await here.alice.runs(session="s")) == 1
        assert await here.alice.escalations(state="open") == ()


async def test_another_user_neither_sees_nor_answers_it() -> None:
    async with wire(1) as here:
        waiting = await here.fail()
        assert await here.bob.escalations() == await here.bob.escalations(session="s") == ()
        for decision in (*DECISIONS, "give_up"):
            told = list[tuple[str, str]]()
            for escalation in (waiting.id, "esc_none"):
                with pytest.raises(RequestFailed) as refused:
                    await here.bob.call(
                        "escalations.resolve", escalation=escalation, decision=decision, note="x"
                    )
                told.append((refused.value.code, str(refused.value).replace(escalation, "ID")))
            assert told[0] == told[1]
            assert told[0][0] == "not_found"
        with pytest.raises(RequestFailed) as foreign:
            await here.bob.escalations(room="alices")
        assert foreign.value.code == "not_found"
        assert await here.alice.escalations(state="open") == (waiting,)


async def test_of_two_answers_at_once_one_counts() -> None:
    async with wire(1) as here:
        waiting = await here.fail()
        told = list[EscalationInfo | str]()

        async def answer(client: Client, note: str) -> None:
            try:
                told.append(await client.resolve(waiting.id, "advice", note=note))
            except RequestFailed as error:
                told.append(error.code)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(answer, here.alice, "one")
            nursery.start_soon(answer, here.root, "two")
        assert told.count("already_answered") == 1
        (info,) = (one for one in told if isinstance(one, EscalationInfo))
        await here.end_of(info.next_run)
        assert len(await here.alice.runs(session="s")) == 2
