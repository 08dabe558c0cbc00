"""A program that was played once is played again from its file: byte for byte, anywhere."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
from hypothesis import given, settings

import motet
from motet import testing as mt
from motet.testing.stories.cases import replaying
from tests.motet.testing.elsewhere import replayed_elsewhere
from tests.motet.testing.faulty import trimmer, webhook

TWICE = mt.Program(
    [
        mt.Send("ann", "ann/1: hello", session="ann", key="k1"),
        mt.Crash(),
        mt.Resend("ann", session="ann"),
    ],
    choices=[0, 1, 0, 2],
    seed=7,
)
LONG = mt.Program(
    [mt.Send("ann", "ann/1: hello", session="ann"), mt.Run(40), mt.Stop("ann", session="ann")],
    {"reader": [mt.call("look", name=str(number)) for number in range(3)]},
)


def found(
    program: mt.BoundProgram, setup: Callable[[motet.Host], None] | None = None
) -> mt.InvariantBroken:
    """What is wrong with a program that is known to find something."""
    with mt.simulated_host(seed=program.seed, setup=setup) as host:
        program.execute(host)
        with pytest.raises(mt.InvariantBroken) as raised:
            mt.check(host)
    return raised.value


def test_a_finding_is_replayed_in_another_process_with_another_hash_seed(tmp_path: Path) -> None:
    program = TWICE.bind(webhook.agent, receive=webhook.receive)
    wrong = found(program)
    path = mt.save_case(program, tmp_path / "cases" / "one.json", violations=wrong.violations)
    assert replayed_elsewhere(path) == [str(one) for one in wrong.violations]


def test_a_case_is_complete_and_gives_its_program_to_its_test(tmp_path: Path) -> None:
    program = LONG.bind(trimmer.agent)
    with mt.simulated_host(setup=trimmer.install) as host:
        program.execute(host)
    path = mt.save_case(program, tmp_path / "long.json", test="tests/test_it.py::test_it")
    case = mt.load_case(path)
    assert (case.subject, case.setup) == (
        "tests.motet.testing.faulty.trimmer:agent",
        ("tests.motet.testing.faulty.trimmer:install",),
    )
    assert {"python", "trio", "motet", "hypothesis"} == set(case.versions)
    assert case.program == LONG
    assert case.trace
    assert mt.replay_case(path) == ()
    with replaying(case, path) as replay, mt.simulated_host(setup=trimmer.install) as host:

        @settings(max_examples=5, database=None)
        @given(mt.programs(trimmer.agent))
        def play(program: mt.BoundProgram) -> None:
            assert program.program == LONG
            program.execute(host)

        play()
        assert replay.times == 1


def test_a_diverged_replay_is_named_by_its_first_different_line(tmp_path: Path) -> None:
    program = LONG.bind(trimmer.agent)
    path = mt.save_case(program, tmp_path / "long.json")
    record = json.loads(path.read_text())
    record["trace"][5] = "something else"
    record["hash"] = "another"
    path.write_text(json.dumps(record))
    with pytest.raises(AssertionError, match="differs from line 6 of the trace"):
        mt.replay_case(path)


def test_the_same_program_twice_is_the_same_trace() -> None:
    assert mt.run_twice(LONG.bind(trimmer.agent)) == mt.run_twice(LONG.bind(trimmer.agent))


def test_hidden_randomness_is_found_by_running_twice() -> None:
    agent = motet.Agent("dice")
    rolled = iter(range(100))

    @agent.tool
    async def roll() -> int:
        """Roll the dice."""
        for _ in range(next(rolled)):
            await trio.lowlevel.checkpoint()
        return 6

    program = mt.Program([mt.Send("ann", "hi")], {"dice": [mt.call("roll")]})
    with pytest.raises(AssertionError, match="the second run: the replay differs"):
        mt.run_twice(program.bind(agent))


@pytest.mark.parametrize(
    ("text", "words"),
    [("{", "is no case"), ('{"versions": 1}', "is no case"), ("[]", "is no case")],
)
def test_a_file_that_is_not_a_case_is_refused(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "it.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=words):
        mt.load_case(path)


def test_a_case_whose_agent_has_no_name_needs_its_test(tmp_path: Path) -> None:
    program = mt.Program([mt.Send("ann", "hi")]).bind(motet.Agent("nobody"))
    path = mt.save_case(program, tmp_path / "it.json")
    with pytest.raises(ValueError, match="pytest --motet-replay"):
        mt.replay_case(path)
