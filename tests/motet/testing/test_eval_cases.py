"""Cases of evaluations: read from files, and checked before anything runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

import motet
from motet import testing as mt
from motet.protocols.errors import ConfigError
from motet.protocols.models import ModelRequest


class City(msgspec.Struct, frozen=True):
    name: str
    people: int = 0


def test_a_case_that_cannot_fail_or_is_wrong_is_refused_before_anything_runs() -> None:
    ran: list[str] = []

    def remember(request: ModelRequest) -> str:
        ran.append(request.messages[-1].text)
        return "a"

    agent = motet.Agent("typed", model=mt.FunctionModel(remember), output_type=City)
    cases = [
        mt.EvalCase("twice", "a", City("a")),
        mt.EvalCase("twice", "a", {"name": "a"}),
        mt.EvalCase("typed", "a", {"nam": "a"}),
        mt.EvalCase("empty", " ", City("a")),
        mt.EvalCase("no judge", "a"),
        mt.EvalCase("a\nb", "a", City("a"), timeout=-1, repeats=0),
        mt.EvalCase("five", cast("str", 5), City("a"), status=cast("Any", "refuse")),
        mt.EvalCase("number", "a", judges=[7]),  # type: ignore[list-item]
    ]
    with pytest.raises(ConfigError) as wrong:
        mt.evaluate(agent, cases, state=None)

    said = str(wrong.value)
    for part in (
        "2 cases are named 'twice'",
        "case 'typed': expected is no output of typed",
        "case 'empty': its input is empty",
        "case 'no judge': it cannot fail",
        "1 to 200 characters on one line",
        "timeout must be above 0, not -1",
        "repeats must be from 1 to 1000, not 0",
        "case 'number': 7 is no judge",
        "case 'five': its input must be a text or several, not 5",
        "case 'five': unknown status 'refuse'; did you mean 'refused'?",
    ):
        assert part in said
    assert ran == []
    one = mt.EvalCase("a", "a", City("a"))
    whole: Any = mt.evaluate  # as it is called without a type checker
    nothing: list[object] = []
    wrong_calls: list[tuple[object, object, object, str]] = [
        ("typed", [mt.EvalCase("a", "a")], nothing, "'typed' is no agent"),
        (agent, [mt.EvalCase("a", "a")], mt.judges.equals(), "judges are a list"),
        (agent, mt.EvalCase("a", "a"), nothing, "cases are a list"),
        (agent, [nothing], nothing, "is no case"),
    ]
    for subject, given, judges, says in wrong_calls:
        with pytest.raises(ConfigError, match=says):
            whole(subject, given, judges, state=None)
    for cases, name, jobs in (([], "a", 1), ([one], "a/b", 1), ([one], "a", 0)):
        with pytest.raises(ConfigError):
            mt.evaluate(agent, cases, state=None, name=name, jobs=jobs)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("cases.json", '[{"name": "a", "input": "x", "expected": "y", "timeout": 2}]'),
        ("cases.jsonl", '{"name": "a", "input": "x", "expected": "y", "timeout": 2}\n\n'),
        ("cases.yaml", "- name: a\n  input: x\n  expected: y\n  timeout: 2\n"),
        ("cases.toml", '[[cases]]\nname = "a"\ninput = "x"\nexpected = "y"\ntimeout = 2\n'),
    ],
)
def test_cases_come_from_files(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)

    assert mt.load_cases(tmp_path / name) == (mt.EvalCase("a", "x", "y", timeout=2),)


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("cases.json", "[{", "cannot be read"),
        ("cases.json", '{"a": 1}', "no list of cases"),
        ("cases.json", '[{"name": "a", "inputs": "x"}]', "case 1: Object contains unknown field"),
        ("cases.yaml", "a: [", "cannot be read"),
        ("cases.csv", "a,b", ".json, .jsonl, .yaml or .toml"),
        ("none.json", None, "No such file"),
    ],
)
def test_a_wrong_file_of_cases_is_named(
    tmp_path: Path, name: str, text: str | None, says: str
) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)

    with pytest.raises(ConfigError, match=says):
        mt.load_cases(tmp_path / name)


def test_a_fingerprint_is_that_of_what_is_asked_and_wanted() -> None:
    case = mt.EvalCase("a", "x", City("Paris"))
    same = mt.EvalCase("b", ("x",), {"name": "Paris", "people": 0}, metadata={"n": 1})

    assert case.fingerprint(["p", "q"]) == same.fingerprint(["q", "p"])
    for other in (
        mt.EvalCase("a", "y", City("Paris")),
        mt.EvalCase("a", "x", City("Lyon")),
        mt.EvalCase("a", "x"),
        mt.EvalCase("a", "x", City("Paris"), status="refused"),
    ):
        assert other.fingerprint(["p", "q"]) != case.fingerprint(["p", "q"])
    assert case.fingerprint(["p"]) != case.fingerprint(["q"])
