"""Sweeps find planted defects, and nothing in actors without defects."""

from __future__ import annotations

import pytest
import trio
from trio.lowlevel import Abort, RaiseCancelT

from motet.protocols.messages import Message, Request
from motet.runtime import Actor, ActorDead, StartFailed, Supervision, handles, open_system
from motet.runtime.envelope import Ask, Result
from motet.runtime.testing import Fault, FaultKind, Outcome, Simulation, SweepReport, World, run
from motet.runtime.testing.sweep import sweep
from tests.runtime.testing.worlds import small


class Move(Request[None], frozen=True, tag="bank.move"):
    amount: int


class Book(Message, frozen=True, tag="bank.book"):
    amount: int


class Vault:
    """The state outside of the actors that must stay consistent: two accounts and a lease."""

    def __init__(self) -> None:
        self.left = 10
        self.right = 0
        self.leased = False
        self.booked = 0

    def whole(self) -> str | None:
        return None if self.left + self.right == 10 else f"{self.left} + {self.right} is not 10"


class Careful(Actor[Move | Book]):
    """Has none of the defects: its changes happen in one step."""

    def __init__(self, vault: Vault) -> None:
        self.vault = vault

    async def on_start(self) -> None:
        self.vault.leased = True

    async def on_stop(self) -> None:
        self.vault.leased = False

    @handles(Move)
    async def move(self, request: Move) -> None:
        await trio.lowlevel.checkpoint()
        self.vault.left -= request.amount
        self.vault.right += request.amount

    @handles(Book)
    async def book(self, message: Book) -> None:
        await trio.lowlevel.checkpoint()
        self.vault.booked += message.amount


class TornByCancel(Careful):
    """Moves in two steps and does not undo the first when it is cancelled between them."""

    @handles(Move)
    async def move(self, request: Move) -> None:
        self.vault.left -= request.amount
        await trio.lowlevel.checkpoint()
        self.vault.right += request.amount


class TornByCrash(Careful):
    """The same, but only for told messages, which only a crash cancels."""

    @handles(Book)
    async def book(self, message: Book) -> None:
        self.vault.left -= message.amount
        await trio.lowlevel.checkpoint()
        self.vault.right += message.amount


class LeaksByStop(Careful):
    """Returns its lease at the end of a handler instead of in on_stop."""

    async def on_stop(self) -> None:
        """Nothing, which is the defect."""


class Hurried(Careful):
    """Assumes that a task has run three checkpoints after its start."""

    @handles(Move)
    async def move(self, request: Move) -> None:
        ready: list[int] = []

        async def prepare() -> None:
            ready.append(request.amount)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(prepare)
            for _ in range(3):
                await trio.lowlevel.checkpoint()
            self.vault.left -= request.amount
            self.vault.right += sum(ready)


def bank(actor: type[Careful]) -> World[None]:
    """A world in which ``actor`` is asked once and told once, and any fault may hit it."""

    async def world(sim: Simulation) -> None:
        vault = Vault()
        async with open_system(supervision=Supervision(intensity=9)) as system:
            sim.watch(system)
            ref = await system.start(lambda: actor(vault), name="bank")
            sim.may_hit(ref.path)
            try:
                with sim.may_cancel("asker"):
                    await ref.ask(Move(2))
                await ref.tell(Book(1))
                await trio.sleep(1)
            except ActorDead:
                sim.note("the bank is closed")
        problem = vault.whole() or ("the lease was not given back" if vault.leased else None)
        if problem:
            sim.violated("vault", "world", problem)

    return may_not_start(world)


def may_not_start(world: World[None]) -> World[None]:
    """A start that a fault undid raises StartFailed, which is correct and no finding."""

    async def tolerant(sim: Simulation) -> None:
        try:
            await world(sim)
        except StartFailed:
            sim.note("it did not start")

    return tolerant


@pytest.mark.parametrize(
    ("kind", "actor"),
    [
        ("cancel", TornByCancel),
        ("crash", TornByCrash),
        ("kill", TornByCrash),
        ("stop", LeaksByStop),
        ("delay", Hurried),
    ],
)
def test_a_sweep_finds_the_planted_defect_and_nothing_without_it(
    kind: FaultKind, actor: type[Careful]
) -> None:
    clean = sweep(bank(Careful), kind, seeds=range(3))
    assert clean.findings == ()
    assert clean.struck > 0

    found = sweep(bank(actor), kind, seeds=range(20))
    assert found.findings, f"{kind} did not find {actor.__name__}"
    assert "vault" in found.findings[0].broken[0]
    with pytest.raises(AssertionError, match="vault broken"):
        found.check()


@pytest.mark.parametrize("kind", ["cancel", "crash", "kill", "stop", "delay"])
def test_choices_and_fault_repeat_a_run(kind: FaultKind) -> None:
    """Law: for all faults, run(seed, fault) and run(its choices, fault) have one trace."""
    target = {"cancel": "asker 0", "delay": ""}.get(kind, "/system/node1")
    for step in range(10, 40, 3):
        plan = [Fault(kind, step, target)]
        outcome = run(small, seed=step, faults=plan)
        again = run(small, seed=step, choices=outcome.choices, faults=plan)
        assert again.hash == outcome.hash


def test_a_kernel_whose_asker_does_not_wait_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    original_abort = Ask.abort
    original_deliver = Ask._deliver  # pyright: ignore[reportPrivateUsage]  # a mutant is made of it
    let_go: set[Ask] = set()

    def abort(ask: Ask, raise_cancel: RaiseCancelT) -> Abort:
        if ask.queue is not None:
            return original_abort(ask, raise_cancel)
        ask.cancel()
        let_go.add(ask)
        return Abort.SUCCEEDED

    def deliver(ask: Ask, result: Result) -> None:
        if ask not in let_go:
            original_deliver(ask, result)

    monkeypatch.setattr(Ask, "abort", abort)
    monkeypatch.setattr(Ask, "_deliver", deliver)
    (finding,) = sweep(small, "cancel", seeds=range(20)).findings
    assert finding.broken[0].startswith("G1 broken")


def test_a_finding_is_repeated_by_its_choices_and_fault() -> None:
    world = bank(TornByCancel)
    (finding,) = sweep(world, "cancel", seeds=range(20)).findings
    assert finding.fault is not None
    again = run(world, seed=finding.seed, choices=finding.choices, faults=[finding.fault])
    assert tuple(map(str, again.violations)) == finding.broken


def test_a_sweep_hits_every_step_until_it_passes_the_end() -> None:
    undisturbed = run(small)
    report = sweep(small, "cancel", targets=["asker 0"])
    assert report.findings == ()
    # One run without a fault, one for each step, and the one whose fault comes too late.
    assert report.worlds >= undisturbed.steps * 0.8
    assert report.struck > 0


@pytest.mark.parametrize("kind", ["cancel", "crash", "kill", "stop", "delay"])
def test_a_clean_kernel_survives_every_fault_at_every_step(kind: FaultKind) -> None:
    """Law: with any fault at any step, G1 to G6 and G13 hold after each step."""
    report = sweep(small, kind, seeds=range(2))
    report.check()
    assert report.struck > 10


def test_a_sweep_with_nothing_to_hit_is_refused() -> None:
    async def world(sim: Simulation) -> None:
        await trio.lowlevel.checkpoint()

    with pytest.raises(ValueError, match=r"nothing to crash: no target.*sim.watch\(system, path\)"):
        sweep(world, "crash")
    with pytest.raises(ValueError, match=r"nothing to cancel: \['x'\]"):
        sweep(world, "cancel", targets=["x"])


def test_a_broken_world_is_a_finding_without_any_fault() -> None:
    async def world(sim: Simulation) -> None:
        sim.may_cancel("scope")
        raise LookupError("always")

    report: SweepReport = sweep(world, "cancel")
    assert report.worlds == 1
    assert report.findings[0].fault is None


def test_an_incomplete_fault_is_refused() -> None:
    with pytest.raises(ValueError, match="a crash needs a target"):
        Fault("crash", 1)
    with pytest.raises(ValueError, match="no step 0"):
        Fault("delay", 0)


def test_a_scope_is_marked_once_and_never_by_a_path() -> None:
    async def twice(sim: Simulation) -> None:
        sim.may_cancel("a")
        sim.may_cancel("a")

    async def path(sim: Simulation) -> None:
        sim.may_cancel("/a")

    outcomes: list[Outcome[None]] = [run(twice), run(path)]
    assert "a scope 'a' already" in str(outcomes[0].error)
    assert "does not begin with '/'" in str(outcomes[1].error)
