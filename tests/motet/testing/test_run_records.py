"""A run as a file: what is read is what was written, without secrets; other files are refused."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

import motet
from motet.actors.hosting.replay import replay
from motet.protocols.errors import ConfigError
from motet.protocols.run_journal import RunJournal
from motet.testing import ScriptedModel, call, say
from motet.testing.run_records import decode_record, encode_record, read_record

SECRET = "sk-" + "a1" * 16


def helper(*, key: str = "a") -> motet.Agent:
    async def lookup(key: str) -> str:
        """Look up a key."""
        return f"book {key}"

    model = ScriptedModel([say("one"), call("lookup", key=key), say("found")])
    return motet.Agent("helper", model=model, tools=[lookup])


async def journal_of(agent: motet.Agent) -> RunJournal:
    """The second run of a session."""
    async with motet.open_host() as host:
        await host.run(agent, "first", session="s")
        run = await host.run(agent, "second", session="s")
        return (await host.replay(run.run_id)).journal


async def test_a_record_is_read_as_it_was_written() -> None:
    journal = await journal_of(helper())
    assert [row.text for row in journal.before] == ["first", "one"]
    assert decode_record(encode_record(journal), "case.json") == journal


async def test_secrets_are_taken_out_and_the_run_is_the_same_with_itself(tmp_path: Path) -> None:
    file = tmp_path / "case.json"
    file.write_bytes(encode_record(await journal_of(helper(key=SECRET))))

    assert SECRET not in file.read_text()
    done = await replay(read_record(file), helper())

    assert done.rows.now == done.rows.then
    assert done.same
    assert any('call lookup {"key":"[secret:openai]"}' in line for line in done.rows.now)


async def test_another_file_is_refused_with_advice(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"gone\.json cannot be read: No such file"):
        read_record(tmp_path / "gone.json")
    with pytest.raises(ConfigError, match=r"x is no record of a run: .*`motet record RUN > x`"):
        decode_record(b"{}", "x")
    plain: dict[str, object] = msgspec.json.decode(encode_record(await journal_of(helper())))
    later = msgspec.json.encode(plain | {"version": 2})
    with pytest.raises(ConfigError, match="of version 2, this motet reads 1: record the run anew"):
        decode_record(later, "x")
    with pytest.raises(ConfigError, match="has no rows"):
        decode_record(msgspec.json.encode(plain | {"rows": []}), "x")
