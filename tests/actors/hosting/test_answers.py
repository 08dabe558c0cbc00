"""An escalation is answered once, whenever its answers come and whatever ends the host."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, TypeAlias

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import motet
from motet import testing as mt
from motet.protocols import events
from motet.protocols.chat import UserMessage
from motet.protocols.escalations import (
    Answer,
    EscalationAnswered,
    EscalationInfo,
    follow_up,
)
from motet.protocols.rooms import RoomPlan
from motet.protocols.sessions import FINAL, StopReport
from tests import forks
from tests.scripted import Scripted, call, say

ALICE, BOB = motet.Principal("alice"), motet.Principal("bob")
Fault: TypeAlias = Literal["none", "crash", "power", "restart"]
Beside: TypeAlias = Literal["none", "stop", "delete", "input"]


@attrs.frozen
class Given:
    """An answer, and the number of steps before the next thing happens."""

    decision: Answer
    note: str
    by: motet.Principal
    steps: int


def ops() -> motet.Agent[None]:
    agent = motet.Agent(
        "ops",
        model=Scripted(call(("deploy", {"to": "prod"})), *[say("ok")] * 30),
        limits=motet.Limits(tool_errors=1),
    )

    @agent.tool
    def deploy(to: str) -> None:
        raise OSError(f"no route to {to}")

    return agent


async def answer(host: motet.Host, escalation: str, one: Given) -> EscalationInfo | None:
    try:
        return await host.resolve(escalation, one.decision, note=one.note, principal=one.by)
    except (EscalationAnswered, motet.NotFound):
        return None


@attrs.frozen
class Answering:
    """Keeps the answers that were acknowledged before the host was cut off."""

    world: mt.SimulatedHost
    acknowledged: list[EscalationInfo] = attrs.field(factory=list[EscalationInfo])

    async def __call__(self, host: motet.Host, escalation: str, one: Given) -> None:
        info = await answer(host, escalation, one)
        if info is not None and not self.world.history.cut_off:
            self.acknowledged.append(info)


async def stop(host: motet.Host) -> StopReport:
    return await host.stop(session="s", principal=ALICE)


async def delete(host: motet.Host) -> int:
    return await host.delete("s", principal=ALICE)


async def speak(host: motet.Host) -> object:
    return await host.submit("well?", session="s", agent="ops", principal=ALICE)


async def told(host: motet.Host, run_id: str) -> int:
    records = await host.events.read("session:s", 0, 1_000)
    ends = [one for one in records if one.run_id == run_id]
    return sum(isinstance(one.event, events.Terminal | events.InputDropped) for one in ends)


answers = st.builds(
    Given,
    st.sampled_from(["retry", "advice", "skip", "give_up"]),
    st.sampled_from(["one", "two"]),
    st.sampled_from([ALICE, motet.LOCAL]),
    st.integers(0, 25),
)


@settings(max_examples=12)
@given(
    st.lists(answers, min_size=1, max_size=3),
    st.sampled_from(["none", "none", "stop", "delete", "input"]),
    st.sampled_from(["none", "crash", "power", "power", "restart"]),
    st.integers(1, 40),
    st.integers(0, 2**32),
)
def test_one_answer_counts_and_starts_one_run(
    given_: list[Given], beside: Beside, fault: Fault, at: int, seed: int
) -> None:
    """Law: of any answers one counts, which each of the others is told of; it is on disk together
    with the input of the run that it starts, or neither is; that run ends once, in this host or in
    the next; an answer that was acknowledged is never lost, and the same answer starts no other.
    """
    acts = {"stop": stop, "delete": delete, "input": speak}
    with mt.simulated_host(seed, agents=[ops()]) as host:
        first = host.call(motet.Host.run, "ops", "go", session="s", principal=ALICE, check=False)
        assert first.status == "escalated"
        (waiting,) = host.call(motet.Host.escalations, principal=ALICE)
        answering = Answering(host)

        def play() -> None:
            for index, one in enumerate(given_):
                host.begin(answering, waiting.id, one)
                host.steps(one.steps)
                if index == 0 and beside != "none":
                    host.begin(acts[beside])
            if fault == "crash":
                host.steps(at)
                host.crash()
            elif fault == "restart":
                host.steps(at)
                host.restart(0.0)
            else:
                host.settle()

        if fault == "power":
            with mt.power_cut(host, at):
                play()
        else:
            play()
        host.settle()
        check(host, waiting.id, answering.acknowledged, beside)


def check(
    host: mt.SimulatedHost, escalation: str, acknowledged: Sequence[EscalationInfo], beside: Beside
) -> None:
    found = host.call(motet.Host.escalations, principal=ALICE)
    runs = {one.run_id: one for one in host.call(motet.Host.runs, principal=ALICE)}
    if not found:
        assert beside == "delete"
        return
    (now,) = (one for one in found if one.id == escalation)
    own = [one for one in runs.values() if one.text != "well?" and one.text != "go"]
    assert all(one == now for one in acknowledged)
    assert now.state == "resolved" or not own
    assert [one.run_id for one in own] == ([now.next_run] if now.next_run else [])
    for one in own:
        assert one.status in FINAL
        assert beside in ("stop", "delete") or one.status == "completed"
        assert '1. deploy({"to":"prod"}): unknown: no route to prod [err_' in one.text
        assert host.call(told, one.run_id) == 1
    if now.decision is None:
        return
    same = Given(now.decision, now.note, ALICE, 0)
    other = Given("give_up", "something else", ALICE, 0)
    assert host.call(answer, escalation, same) == now
    with pytest.raises(EscalationAnswered, match="has answered"):
        host.call(motet.Host.resolve, escalation, other.decision, note=other.note)
    host.settle()
    assert len(host.call(motet.Host.runs, principal=ALICE)) == len(runs)


async def talked(host: motet.Host) -> str:
    """The name of a room in which a member's run was escalated."""
    room = (await host.rooms.create("den", RoomPlan(("ops",)), principal=ALICE)).name
    await host.rooms.post(room, "@ops deploy", principal=ALICE)
    await (await host.open_room(room, principal=ALICE)).wait()
    return room


async def is_told_of_a_cut(host: motet.Host, room: str) -> bool:
    warned = [one.event for one in await host.events.read(f"room:{room}", 0, 1_000)]
    return any("was cut off" in one.message for one in warned if isinstance(one, motet.Warned))


async def open_ones(host: motet.Host, room: str) -> tuple[EscalationInfo, ...]:
    return await host.escalations(room=room, principal=ALICE)


async def said(host: motet.Host, room: str) -> list[str]:
    return [f"{one.author}: {one.text}" for one in await host.rooms.history(room, principal=ALICE)]


@settings(max_examples=6)
@given(st.lists(answers, min_size=1, max_size=2), st.integers(1, 40), st.integers(0, 2**32))
def test_in_a_room_an_answer_is_said_once_if_it_counts(
    given_: list[Given], at: int, seed: int
) -> None:
    """Law: of the answers to a member's escalation that one is said in the room which is on record,
    once, whenever the power fails; then the member answers it, or the room is told that it was cut
    off.
    """
    with mt.simulated_host(seed, agents=[ops()]) as host:
        room = host.call(talked)
        (waiting,) = host.call(open_ones, room)
        answering = Answering(host)
        with mt.power_cut(host, at):
            for one in given_:
                host.begin(answering, waiting.id, one)
                host.steps(one.steps)
            host.settle()
        host.settle()
        (now,) = host.call(open_ones, room)
        heard = host.call(said, room)
        assert all(one == now for one in answering.acknowledged)
        told = follow_up(now.decision, now.note, "deploy") if now.decision else None
        assert [text.split(": @ops ")[1] for text in heard[1:] if ": @ops " in text] == (
            [] if told is None else [told]
        )
        if told is None:
            assert heard[2:] == []
        else:
            assert heard[2:] == ["ops: ok"] or host.call(is_told_of_a_cut, room)


# Escalates, and is killed when the answer is on disk and its run is to be queued.
VICTIM = """
import os, signal, sys, trio
import motet
from motet.actors.runs.table import RunTable
from tests.actors.hosting.test_answers import ops

async def main():
    async with motet.open_host(sys.argv[1], agents=[ops()]) as host:
        await host.run("ops", "go", session="s", check=False)
        (waiting,) = await host.escalations()
        RunTable.enqueue = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
        await host.resolve(waiting.id, "skip", note="use staging")

trio.run(main)
"""


@pytest.mark.slow
async def test_a_kill_between_the_answer_and_its_run_loses_and_doubles_nothing(
    tmp_path: Path,
) -> None:
    ran = forks.ran("-c", VICTIM, str(tmp_path / "state"))
    assert ran.returncode == -signal.SIGKILL, ran.stderr
    again = motet.Agent("ops", model=Scripted(*[say("ok")] * 3))
    async with motet.open_host(tmp_path / "state", agents=[again]) as host:
        (info,) = await host.escalations()
        assert (info.decision, info.note) == ("skip", "use staging")
        assert [run.run_id for run in host.resumed] == [info.next_run]
        assert (await host.wait_run(str(info.next_run))).status == "completed"
        assert await host.resolve(info.id, "skip", note="use staging") == info
        assert len(await host.runs()) == 2
        rows = [item.row for item in await host.history("s")]
    assert isinstance(rows[-2], UserMessage)
    assert rows[-2].text.startswith("Leave out the step that failed: do not call deploy")
    assert "no route to prod [err_" in rows[-2].text
