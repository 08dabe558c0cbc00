"""The board against a plain model of one: the same answers to the same changes."""

from __future__ import annotations

from typing import Literal, TypeAlias

import attrs
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from motet.protocols.errors import NotFound
from motet.protocols.teams import ListTasks, TaskRefused, TaskState
from tests.actors.storage.test_boards import ALICE, Stage, stage

Verb: TypeAlias = Literal["create", "claim", "any", "end", "done", "failed", "open", "cancelled"]
VERBS: tuple[Verb, ...] = (
    *("create", "create", "claim", "any", "end"),
    *("done", "done", "failed", "open", "cancelled"),
)
RUNS = ("run_1", "run_2", "run_3")


@attrs.frozen
class Step:
    """``needs``: as bits, which of the first tasks a new one needs."""

    verb: Verb
    number: int
    run_id: str
    needs: int


STEPS = st.lists(
    st.builds(
        Step,
        st.sampled_from(VERBS),
        st.integers(1, 5),
        st.sampled_from(RUNS),
        st.integers(0, 3),
    ),
    min_size=4,
    max_size=25,
)


@attrs.define
class Model:
    """What a board is, in the plainest words."""

    states: dict[int, TaskState] = attrs.field(factory=dict[int, TaskState])
    owners: dict[int, str] = attrs.field(factory=dict[int, str])
    needs: dict[int, list[int]] = attrs.field(factory=dict[int, list[int]])
    ended: set[str] = attrs.field(factory=set[str])

    def state(self, number: int) -> TaskState:
        void = self.states[number] == "claimed" and self.owners[number] in self.ended
        return "open" if void else self.states[number]

    def free(self) -> list[int]:
        return [
            number
            for number in self.states
            if self.state(number) == "open"
            and all(self.states[need] == "done" for need in self.needs[number])
        ]

    def take(self, step: Step) -> int | None:
        """The number of the task that changes; None: it is refused."""
        number, mine = step.number, self.owners.get(step.number) == step.run_id
        match step.verb:
            case "create":
                number = len(self.states) + 1
                needs = [n for n in (1, 2) if step.needs & n]
                if any(need >= number for need in needs):
                    return None
                self.states[number], self.needs[number] = "open", needs
            case "claim" | "any":
                if step.verb == "any":
                    number = min(self.free(), default=0)
                if number not in self.free():
                    return None
                self.states[number], self.owners[number] = "claimed", step.run_id
            case "done" | "failed":
                if self.states.get(number) != "claimed" or not mine:
                    return None
                self.states[number] = step.verb
            case "open":
                held = self.states.get(number) == "claimed" and mine
                if self.states.get(number) not in ("failed", "cancelled") and not held:
                    return None
                self.states[number] = "open"
            case "cancelled":
                if number not in self.states or self.state(number) not in ("open", "claimed"):
                    return None
                self.states[number] = "cancelled"
            case "end":
                return None
        return number


@given(STEPS)
@settings(max_examples=60, deadline=None)
def test_a_board_equals_its_model(steps: list[Step]) -> None:
    """Law: after any steps both refuse the same, change the same, and show the same states."""
    trio.run(compare, steps)


async def do(on: Stage, step: Step) -> int:
    match step.verb:
        case "create":
            return await on.create("t", *[n for n in (1, 2) if step.needs & n])
        case "claim":
            return (await on.claim(step.run_id, step.number)).number
        case "any":
            return (await on.claim(step.run_id)).number
        case "done" | "failed" | "open" | "cancelled":
            return (await on.update(step.number, step.run_id, step.verb)).number
        case "end":
            raise AssertionError("the end of a run is no change of a task")


async def compare(steps: list[Step]) -> None:
    model = Model()
    async with stage() as on:
        for run_id in RUNS:
            await on.begin(run_id)
        for step in steps:
            if step.verb == "end":
                await on.end(step.run_id)
                model.ended.add(step.run_id)
            elif step.run_id not in model.ended:
                changed = model.take(step)
                try:
                    number = await do(on, step)
                except (TaskRefused, NotFound):
                    number = None
                assert number == changed, (step, model)
            shown = {task.number: task.state for task in await on.boards.ask(ListTasks(ALICE))}
            assert shown == {n: model.state(n) for n in model.states}
