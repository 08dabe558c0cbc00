"""A hand-over happens once, with the policy of all who handed over, whenever its host is killed,
whatever the tool is called, and though it could not be stored (G10, G15).
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Literal, TypeAlias

import attrs
import pytest
import trio

import motet
from motet import testing as mt
from motet.actors.host import Host
from motet.actors.transcript.grammar import violations
from motet.protocols.chat import AssistantMessage, ToolMessage, UserMessage
from motet.protocols.errors import MotetError
from motet.protocols.events import EventRecord
from motet.protocols.models import ModelRequest
from motet.runtime.errors import MotetRuntimeError
from motet.runtime.testing.loop import Interrupted

Way: TypeAlias = Literal["plain", "named", "own"]
Place: TypeAlias = Literal["session", "room"]
WAYS: tuple[Way, ...] = ("plain", "named", "own")
"""How the tool is called: as usual, by a name of its own, or it is a tool of the program."""
CONFIG = motet.HostConfig(recovery=motet.RecoveryConfig(quarantine_after=9))


@attrs.define(eq=False)
class Relay:
    """``lead`` hands over to ``clerk``, who hands over to ``writer``. Each may not do one thing."""

    host: mt.SimulatedHost
    way: Way
    place: Place
    effects: list[str] = attrs.field(factory=list[str])
    asked: list[str] = attrs.field(factory=list[str])
    room: motet.Room | None = None

    def agents(self) -> list[motet.Agent[None, str]]:
        made: list[motet.Agent[None, str]] = []
        for name, target in (("writer", ""), ("clerk", "writer"), ("lead", "clerk")):
            rules = motet.ToolRules(deny=(f"not_{name}",) if target else ())
            model = mt.FunctionModel(partial(self.answer, name, target), name=f"model of {name}")
            agent = motet.Agent(name, model=model, policy=rules)
            for tool in ("not_lead", "not_clerk", "all"):
                agent.tool(effects="write", name=tool)(partial(self.work, tool))
            if made:
                self.may_hand(agent, made[-1])
            made.append(agent)
        return made[::-1]

    def may_hand(self, agent: motet.Agent[None, str], to: motet.Agent[None, str]) -> None:
        match self.way:
            case "plain":
                agent.may_hand_to(to)
            case "named":
                agent.may_hand_to(motet.Handoff(to, name=f"pass_to_{to.name}"))
            case "own":

                @agent.tool(effects="write", name=f"give_{to.name}")
                async def give(ctx: motet.Context[None]) -> str:
                    return ctx.hand_over_to(to)

    def tool(self, target: str) -> str:
        names = {"plain": "transfer_to_", "named": "pass_to_", "own": "give_"}
        return names[self.way] + target

    def answer(self, name: str, target: str, request: ModelRequest) -> mt.Step:
        rows = request.messages
        at = max(i for i, row in enumerate(rows) if isinstance(row, UserMessage) and not row.note)
        if not self.host.ledger.cut_off:
            self.asked.append(name)
        said = [
            call.name
            for row in rows[at:]
            if isinstance(row, AssistantMessage)
            for call in row.calls
        ]
        if target:
            return mt.slow(mt.call(self.tool(target)), seconds=0.03)
        if "all" in said:
            return mt.say("done")
        return mt.slow(mt.call("not_lead") + mt.call("not_clerk") + mt.call("all"), seconds=0.03)

    async def work(self, tool: str) -> str:
        if not self.host.ledger.cut_off:
            self.effects.append(tool)
        await trio.sleep(0.03)
        return "worked"

    def start(self) -> None:
        agents = self.agents()
        for agent in agents:
            self.host.know(agent)
        if self.place == "room":
            self.room = motet.Room("hall", members=agents[:1])
            self.host.room(self.room)

    def say(self) -> None:
        if self.room is not None:
            self.host.post(self.room, "go", user="ann", key="once")
        else:
            self.host.start(None, "go", session="s", key="once")

    @property
    def unsure(self) -> tuple[str, ...]:
        """The tools that are not repeated after a kill."""
        return ("all", *map(self.tool, TARGETS)) if self.way == "own" else ("all",)

    def problems(self) -> list[str]:
        found = [f"{tool} had its effect" for tool in self.effects if tool != "all"]
        if self.effects.count("all") > (1 if self.place == "session" else 2):
            found.append("all had its effect twice")
        for info in self.host.call(Host.runs):
            rows = [item.row for item in self.host.call(Host.history, info.session)]
            found += violations(rows)
            results = [row for row in rows if isinstance(row, ToolMessage)]
            # A tool of the program may have done more than to hand over; and a room asks its member
            # again, in a run of its own.
            unsure = info.status == "interrupted" and (
                self.place == "room"
                or any(row.outcome == "unknown" and row.name in self.unsure for row in results)
            )
            if info.status != "completed" and not unsure:
                found.append(f"{info.run_id} is {info.status}: {info.detail}")
            if info.status == "completed" and info.agent != "writer":
                found.append(f"{info.run_id} is completed by {info.agent}")
            hands = [row.outcome for row in results if row.name in map(self.tool, TARGETS)]
            if hands != ["done", "done"] and not unsure:
                found.append(f"the hand-overs are {hands}")
            found += self.told(info.session, {row.call_id for row in results})
        return found

    def told(self, session: str, calls: set[str]) -> list[str]:
        records = self.host.call(_events, session)
        told = Counter((type(one.event).__name__, getattr(one.event, "id", "")) for one in records)
        kinds = ("ToolCall", "ToolResult")
        return [
            f"the {kind} of {call} is told {told[kind, call]} times"
            for call in calls
            for kind in kinds
            if told[kind, call] != 1
        ]


TARGETS = ("clerk", "writer")


async def _events(host: Host, session: str) -> list[EventRecord]:
    return list(await host.events.read(f"session:{session}", 0))


def killed(way: Way, place: Place, kind: str, at: int) -> bool:
    """Whether the host was killed before this step, or change of its disk."""
    with mt.simulated_host(at, config=CONFIG) as host:
        relay = Relay(host, way, place)
        relay.start()
        hit = (at_change if kind == "change" else at_step)(relay, at, full=kind == "full")
        host.advance(2)
        host.settle()
        found = relay.problems()
        assert found == [], (way, place, kind, at, found, relay.asked, host.report(30))
        return hit


def at_change(relay: Relay, at: int, *, full: bool) -> bool:
    del full
    with mt.power_cut(relay.host, at) as power:
        relay.say()
        relay.host.advance(1)
    return power.failed


def at_step(relay: Relay, at: int, *, full: bool) -> bool:
    """``full``: the disk is full from this step on, for a while, and then the host is killed."""
    host = relay.host

    def interrupt() -> None:
        raise Interrupted

    host.loop.at(host.loop.scheduler.steps + at, interrupt)
    try:
        relay.say()
        host.advance(1)
    except Interrupted:
        if full:
            host.disk.room = host.disk.used
            host.advance(host.seed % 7 * 0.02)
            host.disk.room = None
        host.crash()
        return True
    except (MotetError, MotetRuntimeError):
        host.crash()
        return True
    finally:
        host.loop.at(10**12, lambda: None)
    return False


def everywhere(way: Way, place: Place, gaps: dict[str, int]) -> None:
    for kind, gap in gaps.items():
        at, hit = 1 + (len(way) + len(place)) % gap, True
        while hit:
            hit = killed(way, place, kind, at)
            at += gap


@pytest.mark.parametrize("place", ["session", "room"])
@pytest.mark.parametrize("way", WAYS)
def test_a_hand_over_happens_and_is_told_once_whenever_its_host_is_killed(
    way: Way, place: Place
) -> None:
    """Law: in the end the last agent has answered, each call and result is told once, and no agent
    has done what the policy of one before it forbids."""
    everywhere(way, place, {"step": 317, "change": 61, "full": 379})


@pytest.mark.sweep
@pytest.mark.parametrize("place", ["session", "room"])
@pytest.mark.parametrize("way", WAYS)
def test_a_hand_over_happens_and_is_told_once_at_whichever_step_its_host_is_killed(
    way: Way, place: Place
) -> None:
    everywhere(way, place, {"step": 3, "change": 1, "full": 5})
