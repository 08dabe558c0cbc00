"""``motet sessions``: what is stored of a talk, and what can be done with it."""

import json
import re
from pathlib import Path

import pytest
import trio

from motet import Agent, open_host
from motet.testing import ScriptedModel, call, say
from tests.motet.command import motet, started
from tests.motet.test_cli_look import printed


def test_sessions_are_listed_shown_and_exported(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "notes.txt").write_text("one\n" * 40)
    motet("run", "helper", "read notes.txt", "-s", "one", "--state", "../st", cwd=here)
    motet("run", "helper", "hello", "-s", "two", "--state", "../st", cwd=here)

    _, table, _ = printed(capsys, "sessions", "--state", "../st")
    assert [line.split()[2] for line in table.splitlines()[1:]] == ["two", "one"]

    _, shown, _ = printed(capsys, "sessions", "show", "one", "--state", "../st")
    lines = shown.splitlines()
    assert lines[0] == "user: read notes.txt"
    assert "→ read_file" in shown
    assert "✓ read_file done" in shown
    assert "more lines" in shown

    code, _, note = printed(
        capsys, "sessions", "export", "one", "-o", "one.jsonl", "--state", "../st"
    )
    exported = [json.loads(line) for line in Path("one.jsonl").read_text().splitlines()]
    assert (code, exported[0]["session"]["session"]) == (0, "one")
    assert [line["row"]["pos"] for line in exported[1:]] == [1, 2, 3, 4]
    assert note == "4 rows in one.jsonl\n"

    code, _, missing = printed(capsys, "sessions", "export", "x", "-o", "x", "--state", "../st")
    assert (code, "no session 'x'" in missing) == (1, True)
    assert not list(Path().glob("x*"))


SECRET = "Zq81kfLw02xPabQ77"


async def leaked(state: Path) -> None:
    async def fails() -> str:
        raise OSError(f"refused: DB_PASSWORD={SECRET}")

    model = ScriptedModel([call("fails"), say(f"the password is {SECRET}x")])
    async with open_host(state) as host:
        await host.run(Agent("lead", model=model, tools=[fails]), f"token={SECRET}", session="s")


def test_an_export_is_redacted_on_request_with_the_rules_and_tags_of_its_host(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Law: the lines and their fields are those of the export as it was said."""
    trio.run(leaked, here / "st")
    plain = printed(capsys, "sessions", "export", "s", "--state", "st")[1]
    own = '[[redaction.deny]]\npattern = "(Zq81[0-9A-Za-z]{8,40})"\nkind = "acme"\n'
    (here / "motet.toml").write_text(own)
    code, clean, _ = printed(capsys, "sessions", "export", "s", "--redact", "--state", "st")
    assert (code, SECRET in plain, SECRET in clean) == (0, True, False)
    said = [json.loads(line) for line in plain.splitlines()]
    told = [json.loads(line) for line in clean.splitlines()]
    assert [one["line"] for one in told] == [one["line"] for one in said]
    for one, other in zip(said[1:], told[1:], strict=True):
        assert {**one["row"], "row": 0} == {**other["row"], "row": 0}
        assert one["row"]["row"].keys() == other["row"]["row"].keys()
    asked, _, failed, answered = (one["row"]["row"]["text"] for one in told[1:])
    (mask,) = re.findall(r"\[secret:password:[0-9a-f]{4}\]", failed)
    assert mask[-5:] in asked, "the key of the tags is the host's"
    assert "[secret:acme:" in answered


def test_a_reset_and_a_deletion_are_refused_beside_a_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    motet("run", "helper", "hello", "-s", "one", "--state", "st", cwd=tmp_path)
    with started("serve", "--state", "st", "--listen", "127.0.0.1:0", cwd=tmp_path) as server:
        server.expect("token")
        code, _, refused = printed(capsys, "sessions", "reset", "one", "--state", "st")
        assert (code, "is used by" in refused) == (1, True)

    code, _, asked = printed(capsys, "sessions", "delete", "one", "--state", "st")
    assert (code, "--yes" in asked) == (2, True)
    code, _, which = printed(capsys, "sessions", "reset", "--state", "st")
    assert (code, "which one?" in which) == (2, True)

    code, _, short = printed(capsys, "sessions", "compact", "one", "--state", "st")
    assert (code, short) == (0, "one is too short to be summarised\n")
    code, _, done = printed(capsys, "sessions", "reset", "one", "--state", "st")
    assert (code, "starts from an empty history" in done) == (0, True)
    code, _, done = printed(capsys, "sessions", "delete", "one", "--yes", "--state", "st")
    assert (code, "2 rows" in done) == (0, True)
    _, _, nothing = printed(capsys, "sessions", "--state", "st")
    assert nothing == "no sessions in st\n"


async def used(state: Path) -> None:
    worker = Agent("worker", model="demo")
    model = ScriptedModel([call("worker", task="hello"), say("well")])
    async with open_host(state) as host:
        await host.run(Agent("lead", model=model, tools=[worker.as_tool()]), "go", session="s")


def test_sessions_of_sub_agents_are_listed_when_they_are_asked_for(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    del here
    trio.run(used, Path("../st"))
    _, some, _ = printed(capsys, "sessions", "--state", "../st", "--json")
    assert [one["session"] for one in json.loads(some)] == ["s"]
    _, all_of_them, _ = printed(capsys, "sessions", "--state", "../st", "--json", "--children")
    assert {one["agent"] for one in json.loads(all_of_them)} == {"lead", "worker"}
