"""``motet record``: a run of a real server as a file, and the file as a test."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import trio

import motet as library
from motet import testing as mt
from motet.cli import main
from motet.protocols.errors import UnknownName
from motet.protocols.gateway import Sent
from motet.protocols.run_journal import RunJournal
from motet.testing.run_records import encode_record
from tests.motet.command import PATIENCE, Process, started

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


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[str, str]:
    """Both streams of a command that succeeds, run in this process."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    streams = capsys.readouterr()
    assert ended.value.code == 0, streams.err
    return streams.out, streams.err


async def talk(url: str, token: str, *texts: str) -> str:
    """Say all that in one session; the id of the last run."""
    run_id = ""
    with trio.fail_after(PATIENCE):
        async with library.connect(url, token=token) as client:
            for text in texts:
                ack = await client.send("notes", text, agent="helper")
                assert isinstance(ack, Sent)
                run_id = ack.run_id
                await client.call("runs.wait", run_id=run_id)
    return run_id


@pytest.mark.slow
def test_a_run_of_a_real_server_is_recorded_and_played(
    place: Path, server: Process, capsys: pytest.CaptureFixture[str]
) -> None:
    server.expect("motet serves ")
    url = server.expect("\n").strip()
    token = place / "token.txt"
    said = ("write notes.txt: buy milk", "read notes.txt")
    run_id = trio.run(partial(talk, url, token.read_text().strip(), *said))

    stored, note = printed(capsys, "record", run_id[:12], "--state", str(place / "state"))
    away, _ = printed(capsys, "record", run_id, "--url", url, "--token-file", str(token))

    assert stored == away
    assert "2 answers, 1 calls; secrets are taken out" in note
    case = place / "case.json"
    case.write_text(stored)
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
        file.write_bytes(encode_record(host.call(run)))
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
