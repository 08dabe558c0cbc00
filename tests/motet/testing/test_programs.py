"""Programs as data: how they are drawn, written, kept in files; nothing is played here."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable
from random import Random

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis import seed as seeded
from hypothesis.strategies import SearchStrategy

import motet
from motet import testing as mt
from motet.testing.stories.acts import INPUTS
from motet.testing.stories.printing import Place, place_of, source

agent = motet.Agent("helper")


@agent.tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


room = motet.Room("den", members=[motet.Agent("planner"), motet.Agent("coder")])

FEW = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
NAMES = {name: getattr(mt, name) for name in ("call", "cut", "fail", "raw_call", "say", "slow")}


@FEW
@given(mt.programs(agent, users=3, sessions=2, max_steps=30))
def test_a_program_is_written_as_the_python_and_the_json_that_make_it(
    program: mt.BoundProgram,
) -> None:
    """Law: what is printed and what is stored make an equal program."""
    data = program.program
    assert eval(source(data), {"mt": mt, **NAMES}) == data
    assert msgspec.json.decode(msgspec.json.encode(data), type=mt.Program) == data


@FEW
@given(mt.programs(agent, users=3, sessions=2, max_steps=30))
def test_every_input_of_a_program_is_unique(program: mt.BoundProgram) -> None:
    """Law: at most the steps that were allowed, the first an input; no two texts are the same."""
    assert 1 <= len(program.steps) <= 30
    assert isinstance(program.steps[0], mt.Send)
    texts = [getattr(step, "text", "") for step in program.steps if isinstance(step, INPUTS)]
    assert max(Counter(filter(None, texts)).values(), default=1) == 1


@FEW
@given(mt.programs(agent, faults=mt.Faults.NONE))
def test_without_faults_nothing_goes_wrong(program: mt.BoundProgram) -> None:
    assert not program.mishaps
    assert not program.choices
    assert not any(isinstance(step, mt.Crash) for step in program.steps)
    steps = [step for steps in program.script.values() for step in steps]
    assert all(isinstance(step, mt.Answer) for step in steps)


@FEW
@given(mt.programs(room, users=2))
def test_in_a_room_users_post_and_members_have_scripts(program: mt.BoundProgram) -> None:
    assert isinstance(program.steps[0], mt.Post)
    assert not any(isinstance(step, mt.Send | mt.Steer) for step in program.steps)
    assert set(program.script) <= {"planner", "coder"}


def simplest(
    programs: SearchStrategy[mt.BoundProgram], wanted: Callable[[mt.BoundProgram], bool]
) -> mt.BoundProgram:
    """The simplest program of this kind."""
    how = settings(max_examples=2_000, database=None, deadline=None)
    return find(programs, wanted, settings=how, random=Random(1))


def has_crash(program: mt.BoundProgram) -> bool:
    return any(isinstance(step, mt.Crash) for step in program.steps)


def has_mishap(program: mt.BoundProgram) -> bool:
    return bool(program.mishaps)


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        (has_crash, "mt.Send('ann', 'ann/1: hello', session='ann'),\n        mt.Crash(),"),
        pytest.param(
            has_mishap,
            "mishaps=[\n        mt.Mishap(1, fails='planned to fail'),\n    ],",
            marks=pytest.mark.sweep,
        ),
    ],
)
def test_programs_shrink_to_readable_ones(
    wanted: Callable[[mt.BoundProgram], bool], words: str
) -> None:
    program = simplest(mt.programs(agent, users=3, max_steps=4), wanted)
    assert words in source(program.program)
    assert len(program.steps) <= 2
    assert not program.choices
    assert program.seed == 0


def test_models_call_the_tools_that_every_host_has() -> None:
    def reads(program: mt.BoundProgram) -> bool:
        answers = [step for step in program.script.get("reader", ()) if isinstance(step, mt.Answer)]
        return any(
            one[0] == "read_file" for a in answers for one in a.calls if isinstance(one, tuple)
        )

    reader = motet.Agent("reader", tools=["group:fs"])
    found = simplest(mt.programs(reader, max_steps=1), reads)
    assert "call('read_file', path=" in repr(found)


def test_an_object_is_found_by_its_module_and_name() -> None:
    assert place_of(agent) == Place(__name__, "agent")
    assert place_of(add) == Place(__name__, "add")
    assert place_of(motet.Agent("nobody")) is None
    with pytest.raises(ValueError, match=r"myapp\.agents:agent"):
        Place.of("agent")


def test_wrong_bounds_are_refused_when_the_strategy_is_made() -> None:
    with pytest.raises(ValueError, match="users must be from 1 to 8, not 9"):
        mt.programs(agent, users=9)
    with pytest.raises(ValueError, match="a chance from 0 to 1, not 2"):
        mt.Faults(crash=2)
    with pytest.raises(motet.ConfigError, match="are only names"):
        mt.programs(motet.Room("r", members=["planner"]))


def test_a_printed_test_has_its_imports() -> None:
    program = mt.Program([mt.Send("ann", "hi")], {"helper": [mt.call("add", a=1, b=2)]})
    text = program.bind(agent, own_models=True).as_test("myapp.agents:helper", name="test_it")
    ast.parse(text)
    assert text.startswith(
        "from motet import testing as mt\nfrom motet.testing import call\n\n"
        "from myapp.agents import helper\n\n\ndef test_it() -> None:\n"
    )
    assert "program.execute(host, helper, own_models=True)" in text
    nowhere = program.bind(motet.Agent("nobody")).as_test()
    assert "from myapp import agent  # say where it is" in nowhere


def test_no_program_is_the_copy_of_another_one() -> None:
    """Law: programs differ in their steps or answers, although Hypothesis makes copies by default.

    The first tenth is left out, which Hypothesis keeps as small as possible.
    """
    drawn = list[bytes]()

    @settings(max_examples=100, phases=(Phase.generate,), database=None, deadline=None)
    @seeded(5)
    @given(mt.programs(agent))
    def search(program: mt.BoundProgram) -> None:
        drawn.append(msgspec.json.encode((program.steps, program.script)))

    search()
    assert len(set(drawn[10:])) >= 75


def test_a_program_that_has_passed_is_not_tried_again_while_another_one_shrinks() -> None:
    """Law: after the first failure, hardly a program runs that has passed since then.

    The same choices run again, since Hypothesis takes another end of theirs for a flaky test.
    """
    passed, again, failed = set[bytes](), list[bytes](), list[bytes]()

    @settings(max_examples=100, phases=(Phase.generate, Phase.shrink), database=None, deadline=None)
    @seeded(2)
    @given(mt.programs(agent))
    def search(program: mt.BoundProgram) -> None:
        data = msgspec.json.encode(program.program)
        if sum(isinstance(step, mt.Crash) for step in program.steps) >= 2:
            failed.append(data)
            raise AssertionError
        if failed:
            again.extend({data} & passed)
            passed.add(data)

    with pytest.raises(AssertionError):
        search()
    assert len(passed) > 10
    assert len(again) <= len(passed) / 10
