"""``motet record``: a run of a real server as a file, and the file as a test."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

import motet as library
from motet import testing as mt
from motet.actors.replay import RunJournal
from motet.actors.replay.record import encoded
from motet.protocols.errors import UnknownName
from tests.motet.command import Process, motet, started

CONFIG = """
workspace = "work"
[agents.helper]
model = "demo"
tools = ["list_files", "write_file", "read_file"]
instructions = "Be brief."
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "motet.toml").write_text(CONFIG)
    (tmp_path / "work").mkdir()
    return tmp_path


@pytest.fixture
def server(place: Path) -> Iterator[Process]:
    listen = ("--listen", "127.0.0.1:0", "--token-file", "token.txt", "--state", "state")
    with started("serve", *listen, cwd=place) as server:
        yield server


def helper() -> library.Agent:
    """What a test builds in place of the configured agent: tools of these names are enough."""
    return library.Agent("helper", model="demo", tools=["list_files", "write_file", "read_file"])


@pytest.mark.slow
def test_a_run_of_a_real_server_is_recorded_and_played(place: Path, server: Process) -> None:
    server.expect("motet serves ")
    url = server.expect("\n").strip()
    token = ("--url", url, "--token-file", "token.txt")
    said = "write notes.txt: buy milk\nread notes.txt\n"
    assert motet("chat", *token, cwd=place, stdin=said).code == 0
    traces = motet("traces", "--json", "--state", "state", cwd=place)
    assert traces.code == 0, traces
    listed = json.loads(traces.out)
    run_id: str = listed[0]["run_id"]

    stored = motet("record", run_id[:12], "--state", "state", cwd=place)
    away = motet("record", run_id, *token, cwd=place)

    assert (stored.code, away.code) == (0, 0), (stored.err, away.err)
    assert stored.out == away.out
    assert "2 answers, 1 calls; secrets are taken out" in stored.err
    case = place / "case.json"
    case.write_text(stored.out)
    done = mt.replay_run(case, helper())
    assert done.rows.now == done.rows.then
    assert done.events.now == done.events.then
    assert 'call read_file {"path":"notes.txt"}' in done.rows.now
    assert "result read_file (done) buy milk" in done.rows.now
    assert done.result.output == "read_file:\nbuy milk"


@pytest.fixture
def case(tmp_path: Path) -> Path:
    """A record of a run that called a tool once."""
    model = mt.ScriptedModel([mt.call("lookup", key="a"), mt.say("found")])

    async def run(host: library.Host) -> RunJournal:
        result = await host.run(librarian(model), "find a", session="s")
        return (await host.replay(result.run_id)).journal

    with mt.simulated_host() as host:
        file = tmp_path / "case.json"
        file.write_bytes(encoded(host.call(run)))
    return file


def librarian(model: library.Model | str = "demo", answer: str = "book") -> library.Agent:
    async def lookup(key: str) -> str:
        """Look up a key."""
        await trio.sleep(30)
        return f"{answer} {key}"

    return library.Agent("librarian", model=model, tools=[lookup])


def test_a_case_is_played_with_the_tools_of_the_record_or_with_real_ones(case: Path) -> None:
    assert mt.replay_run(case, librarian(answer="never")).same
    assert mt.replay_run(case, librarian(), tools="real").result.output == "found"
    with pytest.raises(AssertionError) as failed:
        mt.replay_run(case, librarian(answer="page"), tools="real")
    assert "- result lookup (done) book a\n+ result lookup (done) page a" in str(failed.value)
    done = mt.replay_run(case, librarian(answer="page"), tools="real", check=False)
    assert not done.same
    with pytest.raises(UnknownName, match="real"):
        mt.replay_run(case, librarian(), tools="reel")  # type: ignore[arg-type]  # pyright: ignore


def test_an_agent_that_refuses_the_call_fails_the_case(case: Path) -> None:
    agent = librarian()
    agent.limits = library.Limits(turns=1)
    with pytest.raises(AssertionError, match=r"case\.json: the run does otherwise now"):
        mt.replay_run(case, agent)
