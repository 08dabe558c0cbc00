"""The command line with the models of providers, against an independent server of their APIs."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.aimock import Aimock, serving
from tests.motet.command import ROOT, motet, terminal

KEYS = {"OPENAI_API_KEY": "sk-test", "ANTHROPIC_API_KEY": "sk-test"}


@pytest.fixture(scope="module")
def aimock(node: Path) -> Iterator[Aimock]:
    with serving(node, ROOT / "tests" / "actors" / "models" / "fixtures") as server:
        yield server


@pytest.mark.slow
def test_text_that_is_cut_off_is_withdrawn_in_sight_and_made_anew(
    aimock: Aimock, tmp_path: Path
) -> None:
    env = KEYS | {"OPENAI_BASE_URL": aimock.openai_url}
    with terminal("chat", "-m", "openai:gpt-test", cwd=tmp_path, env=env) as chat:
        chat.expect("> ")
        chat.type("cut once, openai\r")
        assert "This first" in chat.expect("the text above is withdrawn; trying again in")
        chat.expect("Whole.")
        chat.expect("> ")
        chat.type("/quit\r")
        assert chat.end() == 0


@pytest.mark.slow
def test_on_a_pipe_nothing_is_printed_that_could_be_withdrawn(
    aimock: Aimock, tmp_path: Path
) -> None:
    env = KEYS | {"ANTHROPIC_BASE_URL": aimock.url}

    done = motet("run", "helper", "cut once, anthropic", "-m", "anthropic:m", cwd=tmp_path, env=env)

    assert (done.code, done.out) == (0, "Whole.\n")
    assert "trying again in" in done.err


EVALS = """
import motet
from motet import testing as mt

agent = motet.Agent("cutter", model="openai:gpt-test")
whole = mt.Evaluation("whole", agent, [mt.EvalCase("cut", "cut once, openai", "Whole.")])
"""


@pytest.mark.slow
def test_an_evaluation_records_a_real_model_and_replays_it_without_a_server(
    aimock: Aimock, tmp_path: Path
) -> None:
    (tmp_path / "evals.py").write_text(EVALS)
    env = KEYS | {"OPENAI_BASE_URL": aimock.openai_url}
    # The server's own count of this message may stand anywhere: another test says it, too.
    done = motet("eval", "--record", "tapes", cwd=tmp_path, env=env)
    assert (done.code, "1 of 1 cases passed" in done.out) == (0, True), done

    gone = {"OPENAI_BASE_URL": "http://127.0.0.1:9/v1"}
    again = motet("eval", "--replay", "tapes", cwd=tmp_path, env=gone)

    assert (again.code, "1 of 1 cases passed" in again.out) == (0, True), again
    assert "since whole 1" in again.out
