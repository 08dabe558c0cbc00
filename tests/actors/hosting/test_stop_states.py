"""A stop ends what is the principal's in whatever state it is, and names all of it (G2, G16)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import attrs
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

import motet
from motet.actors.storage.writer import Writer
from motet.actors.transcript.grammar import violations
from motet.protocols.approvals import ApprovalsConfig
from motet.protocols.chat import JsonObject
from motet.protocols.config import HostConfig
from motet.protocols.errors import NotFound
from motet.protocols.host import Expected
from motet.protocols.sessions import StopReport
from motet.protocols.storage import Rows, StorageError, Transaction
from tests.actors.runs.ops import parts_of, pending, suspended
from tests.paced import Paced
from tests.scripted import Scripted, Step, call, say

ALICE, BOB = motet.Principal("alice"), motet.Principal("bob")
GROUP = "agent:worker:tcp:group:den"
DIRECT = "agent:worker:tcp:direct:alice"
CLEAN_UP = 3.0


@attrs.define
class Disk:
    """A disk that a test makes get stuck for a minute."""

    free: trio.Event = attrs.field(factory=trio.Event)

    def __attrs_post_init__(self) -> None:
        self.free.set()

    def gets_stuck(self, cast: Cast) -> None:
        self.free = trio.Event()
        cast.nursery.start_soon(cast.later, self.free.set)

    def between(self, patch: pytest.MonkeyPatch) -> None:
        """Stand between the host's writer and its disk."""
        commit = Writer._commit  # pyright: ignore[reportPrivateUsage]

        async def committed(
            writer: Writer, group: list[Transaction]
        ) -> Sequence[Rows | StorageError]:
            await self.free.wait()
            return await commit(writer, group)

        patch.setattr(Writer, "_commit", committed)


@attrs.define
class Cast:
    """A host with agents that do nothing by themselves, and what a stop is to name."""

    host: motet.Host
    nursery: trio.Nursery
    disk: Disk
    session: str = "s"
    ids: list[str] = attrs.field(factory=list[str])
    held: list[Expected] = attrs.field(factory=list[Expected])

    def agent(self, *steps: Step, name: str = "a") -> motet.Agent[None]:
        agent = motet.Agent(name, model=Scripted(*steps, name=name))

        @agent.tool
        async def hang() -> None:
            await trio.sleep_forever()

        @agent.tool
        async def tidy() -> None:
            try:
                await trio.sleep_forever()
            finally:
                with trio.CancelScope(shield=True):
                    await trio.sleep(CLEAN_UP)

        @agent.tool(approval=True)
        async def wipe() -> str:
            return "wiped"

        self.host.add(agent)
        return agent

    async def go(self, *steps: Step) -> None:
        """Have alice's first run begin."""
        agent = self.agent(*steps)
        ack = await self.host.submit("go", session="s", agent=agent.name, principal=ALICE)
        self.ids.append(ack.run_id)

    async def later(self, do: Callable[[], None]) -> None:
        await trio.sleep(60)
        do()


async def _asking(cast: Cast) -> None:
    await cast.go(None)


async def _in_a_tool(cast: Cast) -> None:
    await cast.go(call(("hang", {}), ("hang", {})))


async def _cleaning_up(cast: Cast) -> None:
    await cast.go(call(("tidy", {})))


async def _waiting_for_a_person(cast: Cast) -> None:
    await cast.go(call(("wipe", {})))
    await pending(cast.host)


async def _suspended(cast: Cast) -> None:
    await cast.go(call(("wipe", {})))
    await suspended(cast.host, cast.ids[0])


async def _with_children(cast: Cast) -> None:
    worker = Paced()
    cast.host.add(worker.agent())
    task: JsonObject = {"agent": "worker", "task": "never ends"}
    model = Scripted(call(("spawn", task), ("spawn", task)), say("I wait"), name="lead")
    lead = motet.Agent("lead", model=model, tools=["group:agents"])
    cast.host.add(lead)
    ack = await cast.host.submit("go", session="s", agent="lead", principal=ALICE)
    cast.ids.append(ack.run_id)
    while worker.working < 2:
        await trio.sleep(0.01)


async def _on_its_way_to_disk(cast: Cast) -> None:
    agent = cast.agent(say("hi"), say("never"))
    await cast.host.run(agent, "hello", session="s", principal=ALICE)
    cast.disk.gets_stuck(cast)

    async def submit() -> None:
        ack = await cast.host.submit("go", session="s", agent=agent.name, principal=ALICE)
        assert ack.run_id in cast.ids

    cast.nursery.start_soon(submit)
    await trio.sleep(1)
    cast.ids += [run.id for run in parts_of(cast.host).table.runs.values()]
    assert len(cast.ids) == 1


async def _not_registered(cast: Cast) -> None:
    cast.held.append(cast.host.expect("s", principal=ALICE))
    cast.ids.append(cast.held[0].run_id)
    cast.agent(say("never"))


async def _held_while_its_sender_types(cast: Cast) -> None:
    cast.session = DIRECT
    cast.agent(say("never"))
    for text in ("one", "two"):
        ack = await cast.host.submit(text, session=DIRECT, agent="a", principal=ALICE)
        cast.ids.append(ack.run_id)


async def _with_a_stuck_session(cast: Cast) -> None:
    await cast.go(call(("hang", {})))
    await wait_all_tasks_blocked()
    actor = parts_of(cast.host).session_actors.find("s")
    assert actor is not None
    actor.suspend()
    cast.nursery.start_soon(cast.later, actor.resume)


async def _with_a_stuck_disk(cast: Cast) -> None:
    await cast.go(call(("hang", {})))
    await wait_all_tasks_blocked()
    cast.disk.gets_stuck(cast)


State = Callable[[Cast], Awaitable[None]]
STATES: dict[str, State] = {
    state.__name__[1:]: state
    for state in (
        _asking,
        _in_a_tool,
        _cleaning_up,
        _waiting_for_a_person,
        _suspended,
        _with_children,
        _on_its_way_to_disk,
        _not_registered,
        _held_while_its_sender_types,
        _with_a_stuck_session,
        _with_a_stuck_disk,
    )
}
STUCK = {"_on_its_way_to_disk", "_with_a_stuck_disk"}
WAYS: dict[str, Callable[[Cast], Awaitable[StopReport]]] = {
    "newest": lambda cast: cast.host.stop(session=cast.session, newest=True, principal=ALICE),
    "session": lambda cast: cast.host.stop(session=cast.session, principal=ALICE),
    "everything": lambda cast: cast.host.stop(everything=True, principal=ALICE),
    "run": lambda cast: cast.host.stop(run_id=cast.ids[-1], principal=ALICE),
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("state", STATES.values(), ids=STATES)
async def test_a_stop_ends_it_and_names_it(
    autojump_clock: MockClock,
    monkeypatch: pytest.MonkeyPatch,
    state: State,
    way: Callable[[Cast], Awaitable[StopReport]],
) -> None:
    disk = Disk()
    disk.between(monkeypatch)
    hold = 0.0 if state is _suspended else 3_600.0
    config = HostConfig(approvals=ApprovalsConfig(hold=hold))
    async with motet.open_host(config=config) as host, trio.open_nursery() as nursery:
        cast = Cast(host, nursery, disk)
        await state(cast)
        await wait_all_tasks_blocked()
        assert await host.stop(session=cast.session, principal=BOB) == StopReport()
        assert await host.stop(everything=True, principal=BOB) == StopReport()
        with pytest.raises(NotFound):
            await host.stop(run_id=cast.ids[-1], principal=BOB)
        began = trio.current_time()

        report = await way(cast)

        assert trio.current_time() - began <= 5
        alone = way is WAYS["run"]
        named = {*report.stopped, *report.dropped_inputs, *report.still_running}
        # Of all that alice has, also her run's children are named.
        own = set(cast.ids[-1:] if alone else cast.ids)
        assert named == own or (way is WAYS["everything"] and state is _with_children)
        assert own <= named
        assert not report.already_stopping
        if state.__name__ not in STUCK:
            assert not report.still_running
            assert not alone or host.status().running == 0
        await trio.sleep(100)
        if cast.held:
            ack = await host.submit("x", session="s", principal=ALICE, expected=cast.held[0])
            assert [ack.run_id] == cast.ids
            await trio.sleep(1)
        assert host.status().running == 0
        again = motet.Agent("again", model=Scripted(say("back"), name="again"))
        result = await host.run(again, "x", session=cast.session, principal=ALICE)
        assert result.output == "back"
        infos = {run.run_id: run.status for run in await host.runs()}
        assert {infos[run_id] for run_id in {*report.stopped, *report.still_running}} <= {
            "cancelled"
        }
        assert {infos[run_id] for run_id in report.dropped_inputs} <= {"dropped"}
        for run in await host.runs():
            rows = [item.row for item in await host.history(run.session)]
            assert violations(rows) == ()
        nursery.cancel_scope.cancel()
    del autojump_clock


@pytest.mark.parametrize("committing", [True, False])
async def test_what_a_stop_ends_does_not_wait_for_the_disk(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, *, committing: bool
) -> None:
    """The record follows when the disk is back. ``committing``: a commit is stuck already."""
    disk, worker = Disk(), Paced()
    disk.between(monkeypatch)
    async with motet.open_host() as host, trio.open_nursery() as nursery:
        cast = Cast(host, nursery, disk)
        at_work: list[str] = []

        async def work(ctx: motet.Context[None]) -> None:
            at_work.append(ctx.call_id)
            try:
                await trio.sleep_forever()
            finally:
                at_work.remove(ctx.call_id)

        host.add(worker.agent())
        both = call(("spawn", {"agent": "worker", "task": "never ends"}), ("work", {}))
        lead = motet.Agent("lead", model=Scripted(both), tools=["group:agents", work])
        host.add(lead)
        ack = await host.submit("go", session="s", agent="lead", principal=ALICE)
        while not (worker.working and at_work):
            await trio.sleep(0.01)
        disk.gets_stuck(cast)
        if committing:
            nursery.start_soon(partial(host.submit, "more", session="t", agent="worker"))
            await trio.sleep(1)

        nursery.start_soon(partial(host.stop, run_id=ack.run_id, principal=ALICE))
        await wait_all_tasks_blocked()

        assert (worker.working, at_work) == (0, [])
        assert host.status().running, "its end is not on disk yet"
        await trio.sleep(100)
        assert (await host.find_run(ack.run_id)).status == "cancelled"
        await host.stop(everything=True)
        nursery.cancel_scope.cancel()
    del autojump_clock
