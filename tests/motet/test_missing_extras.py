"""A package that an extra would have installed is missing: one line says which command does it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import motet
from motet.protocols.errors import Llm, MissingExtra
from tests.motet.command import motet as command
from tests.motet.command import started

HINT = "the model 'openai:gpt-x' needs an optional package: pip install 'motet[openai]'"
CONFIG = '[agents.helper]\nmodel = "openai:gpt-x"\n'


@pytest.fixture
def without_openai(tmp_path: Path) -> tuple[Path, dict[str, str]]:
    """A folder with a configuration, and an environment in which the SDK is not there."""
    hidden, here = tmp_path / "hidden" / "openai", tmp_path / "here"
    hidden.mkdir(parents=True)
    here.mkdir()
    (here / "motet.toml").write_text(CONFIG)
    missing = "raise ModuleNotFoundError(\"No module named 'openai'\", name='openai')"
    (hidden / "__init__.py").write_text(missing)
    root = str(Path(__file__).parents[2])
    path = f"{hidden.parent}:{root}"
    return here, {"PYTHONPATH": path, "OPENAI_API_KEY": "sk-none"}


class Absent:
    """A model whose package is not installed."""

    name = "absent"

    def request(self, _request: object) -> object:
        raise MissingExtra("openai", "the model 'openai:gpt-x'")


async def test_a_program_is_told_in_one_line() -> None:
    agent = motet.Agent("a", model=Absent())  # type: ignore[arg-type]  # it never gets further
    with pytest.raises(Llm) as failed:
        await agent.run("hi")
    assert str(failed.value) == HINT


async def test_a_package_that_only_a_provider_of_pydantic_ai_needs_is_told_in_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GROQ_API_KEY", "none")
    monkeypatch.setitem(sys.modules, "groq", None)
    agent = motet.Agent("a", model="pydantic_ai:groq:some")
    with pytest.raises(Llm, match=r"needs an optional package: pip install '.*groq.*'") as failed:
        await agent.run("hi")
    assert "\n" not in str(failed.value)


@pytest.mark.slow
def test_run_and_chat_tell_it_in_one_line(
    without_openai: tuple[Path, dict[str, str]],
) -> None:
    here, environment = without_openai
    run = command("run", "helper", "hi", "--state", "../st", cwd=here, env=environment)
    assert run.code != 0
    chat = command("chat", "helper", "--state", "../st2", cwd=here, env=environment, stdin="hi\n")
    for done in (run, chat):
        assert f"failed: {HINT}" in done.err
        assert "Traceback" not in done.err + done.out


@pytest.mark.slow
def test_serve_tells_it_when_it_starts(tmp_path: Path) -> None:
    (tmp_path / "motet.toml").write_text('[agents.helper]\nmodel = "openai:gpt-x"\n')
    serve = ("serve", "--listen", "127.0.0.1:0", "--state", "../st")
    with started(*serve, cwd=tmp_path, env={"OPENAI_API_KEY": ""}) as server:
        server.expect("problem  openai: package installed, but OPENAI_API_KEY is not set")
