"""A real host in which Alice has one of everything, and another user's connection to it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import attrs
import msgspec

import motet
from motet.actors.gateway.auth import StaticTokens, token_entry
from motet.actors.gateway.context import Context, Settings
from motet.actors.storage.tokens import new_token
from motet.protocols.approvals import ApprovalsConfig
from motet.protocols.config import HostConfig
from motet.protocols.rooms import RoomPlan
from tests.actors.runs.ops import ended, pending, suspended
from tests.scripted import Scripted, call, say

SECRET = "amaryllis"
"""It is in every text of Alice's."""
ALICE = motet.Principal("alice")
BOB, ADMIN = new_token(), new_token()
TOKENS = StaticTokens((token_entry(BOB, "bob", "operator"), token_entry(ADMIN, "root", "admin")))


@attrs.define
class World:
    """What Alice has, by the names of parameters.

    ``unknown`` has the same forms of names, which nobody has.
    """

    host: motet.Host
    context: Context
    known: dict[str, str]
    unknown: dict[str, str]

    async def state(self) -> bytes:
        """All that there is of Alice's, to see whether somebody touched it."""
        host = self.host
        sessions = await host.sessions(principal=ALICE)
        histories = [await host.history(one.session, principal=ALICE) for one in sessions]
        records = (
            sessions,
            histories,
            await host.runs(principal=ALICE),
            await host.approvals(principal=ALICE),
            await host.grants(principal=ALICE),
            await host.escalations(principal=ALICE),
            await host.errors(principal=ALICE),
            await host.traces(principal=ALICE),
            await host.tokens(),
            await host.rooms.list(principal=ALICE),
            await host.rooms.history(self.known["room"], principal=ALICE),
            await host.rooms.people(self.known["room"], principal=ALICE),
            await host.rooms.invites(self.known["room"], principal=ALICE),
        )
        return msgspec.json.encode(records)


def _asking(name: str) -> motet.Agent[None, str]:
    """An agent that asks before it restarts something, once."""
    agent = motet.Agent(
        name, model=Scripted(call(("restart", {"unit": SECRET})), say(f"done {SECRET}"), name=name)
    )

    @agent.tool(approval=True)
    def restart(unit: str) -> str:
        return f"restarted {unit}"

    return agent


def _failing() -> motet.Agent[None, str]:
    limits = motet.Limits(tool_errors=1)
    agent = motet.Agent(
        "failing", model=Scripted(call(("fail", {})), name="failing"), limits=limits
    )

    @agent.tool
    def fail() -> None:
        raise RuntimeError(f"no {SECRET} here")

    return agent


@asynccontextmanager
async def alices() -> AsyncGenerator[World]:
    """Alice has talked, has a run that goes on, one that waits and one that was escalated."""
    config = HostConfig(approvals=ApprovalsConfig(hold=0))
    helper = motet.Agent("helper", model=Scripted(say(f"{SECRET} it is"), name="helper"))
    slow = motet.Agent("slow", model=Scripted(None, name="slow"))
    agents = [helper, slow, _failing(), _asking("granted"), _asking("asking")]
    async with motet.open_host(config=config, agents=agents) as host:
        await host.run("helper", SECRET, session="al:talk", principal=ALICE)
        await host.run("failing", SECRET, session="al:bad", principal=ALICE, check=False)
        live = await host.submit(SECRET, session="al:live", agent="slow", principal=ALICE)
        first = await host.submit(SECRET, session="al:done", agent="granted", principal=ALICE)
        await host.approve((await pending(host))[0].id, "allow-always", principal=ALICE)
        await ended(host, first.run_id)
        waits = await host.submit(SECRET, session="al:ask", agent="asking", principal=ALICE)
        await suspended(host, waits.run_id)
        made = await host.new_token("alice", label=SECRET)
        plan = RoomPlan(("helper",), speakers=("mentions",))
        room = (await host.rooms.create("al", plan, people=("carol",), principal=ALICE)).name
        invite = (await host.rooms.invite(room, principal=ALICE)).invite
        await host.rooms.post(room, SECRET, principal=ALICE)
        await (await host.open_room(room, principal=ALICE)).wait()
        known = {
            "session": "al:talk",
            "live": "al:live",
            "run_id": live.run_id,
            "error": (await host.errors(principal=ALICE))[0].id,
            "grant": (await host.grants(principal=ALICE))[0].id,
            "approval": (await pending(host))[0].id,
            "escalation": (await host.escalations(principal=ALICE))[0].id,
            "token": made.info.id,
            "room": room,
            "invite": invite.id,
        }
        unknown = {name: value[:-2] + "zz" for name, value in known.items()}
        unknown["error"] = known["error"][:-6] + (
            "000000" if known["error"][-1] != "0" else "000001"
        )
        yield World(host, Context(host, Settings(tokens=TOKENS)), known, unknown)
