"""``motet errors`` in pipes, in a pager and on terminals of any width, with errors of any size."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import apsw
import pytest
import trio

import motet
from motet.actors.storage.location import DATABASE_FILE
from motet.cli.errors import described
from motet.protocols.errors import StoredError
from tests.motet.command import command, environment, terminal
from tests.motet.command import motet as run
from tests.scripted import Scripted, call, say

ROWS = 215_000
BOLD = re.compile("\x1b\\[[0-9;]*m")
NEEDLE = "row 123456 of the dump"


def stored(state: Path, error: Callable[[], Exception], times: int = 1) -> StoredError:
    """The last error of a tool that fails so many times."""

    async def main() -> StoredError:
        steps = [call(("dump", {"number": number})) for number in range(times)]
        agent = motet.Agent(
            "helper",
            model=Scripted(*steps, say("so")),
            limits=motet.Limits(tool_errors=None, total_errors=None),
        )

        @agent.tool
        def dump(number: int) -> str:
            raise error()

        async with motet.open_host(agents=[agent], state=state) as host:
            await host.run(agent, "go", session="s")
            return await host.error((await host.errors())[0].id)

    return trio.run(main)


def large() -> Exception:
    return RuntimeError(
        "\n".join(f"row {n} of the dump, as it was sent from the worker" for n in range(ROWS))
    )


def piped(shell: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """A command line, in which ``motet`` is the command as a user starts it."""
    text = shell.replace("motet", shlex.join(command()), 1)
    return subprocess.run(
        ["sh", "-c", text],
        cwd=cwd,
        env=environment(cwd),
        capture_output=True,
        text=True,
        check=True,
    )


@pytest.mark.slow
def test_an_error_of_12_mb_is_read_in_a_pipe_in_a_pager_and_as_json(tmp_path: Path) -> None:
    error = stored(tmp_path / "st", large)
    show = ("errors", "show", error.id, "--state", "st")
    message = str(error.raw_error["message"])
    assert 11_000_000 < len(message) < 12_000_000

    whole = run(*show, cwd=tmp_path)
    assert (whole.code, whole.err) == (0, "")
    assert f"\nmessage:\n{message}\n" in whole.out
    line = run(*show, "--json", cwd=tmp_path).out
    assert line.count("\n") == 1
    read = json.loads(line)
    assert read["raw_error"]["message"] == message
    assert read["id"] == error.id

    line = f"motet {shlex.join(show)}"
    head, tail = piped(f"{line} | head -n 5", tmp_path), piped(f"{line} | tail -n 1", tmp_path)
    assert head.stdout.splitlines() == whole.out.splitlines()[:5]
    assert tail.stdout.splitlines() == whole.out.splitlines()[-1:]
    found = piped(f"{line} | grep '{NEEDLE}'", tmp_path)
    assert set(found.stdout.splitlines()) == {f"{NEEDLE}, as it was sent from the worker"}
    assert head.stderr == tail.stderr == found.stderr == ""

    pager = {"PAGER": f"cat >{shlex.quote(str(tmp_path / 'paged'))}; echo paged"}
    with terminal(*show, cwd=tmp_path, env=pager) as process:
        process.expect("paged")
        assert process.end() == 0
    assert (tmp_path / "paged").read_text().rstrip("\n") == whole.out.rstrip("\n")


def test_an_error_is_shown_in_parts_that_can_be_read(tmp_path: Path) -> None:
    """Lines of its message are lines, and no character of it steers the terminal."""

    def failure() -> Exception:
        return motet.ToolFailure("first\nsecond \x1b[31mred", code="E1", detail={"host": "db1"})

    lines = described(stored(tmp_path / "st", failure)).splitlines()
    assert lines[lines.index("arguments:") :][:4] == ["arguments:", "{", '  "number": 0', "}"]
    at = lines.index("message:")
    assert lines[at + 1 :][:2] == ["first", "second \ufffd[31mred"]
    assert '  "host": "db1"' in lines[lines.index("details:") :]
    assert "Traceback (most recent call last):" in lines[lines.index("traceback:") :]


@pytest.mark.slow
@pytest.mark.parametrize("width", [40, 80, 120])
def test_a_list_fits_its_terminal_and_breaks_no_id(tmp_path: Path, width: int) -> None:
    def failure() -> Exception:
        return OSError("no route to the host that keeps the reports of all regions, of this year")

    error = stored(tmp_path / "st", failure, times=2)
    for more in ((), ("--all",)):
        with terminal(
            *("errors", *more, "--state", "st"), cwd=tmp_path, env={"COLUMNS": str(width)}
        ) as process:
            assert process.end() == 0
            lines = BOLD.sub("", process.said).splitlines()
        assert all(len(line) <= width for line in lines), lines
        assert any(error.id in line for line in lines)
        assert (lines[0].split()[0] in ("time", "last")) == (width == 120)


def test_a_row_that_another_program_has_damaged_costs_no_command_its_answer(tmp_path: Path) -> None:
    """Its time is that of the epoch, also in the chart, which counts it in its first step."""
    good = stored(tmp_path, lambda: OSError("no route to host"), times=2)
    with closing(apsw.Connection(str(tmp_path / DATABASE_FILE))) as database:
        database.execute(  # pyright: ignore[reportUnknownMemberType]  # its stub
            "INSERT INTO agent_errors (id, timestamp, session_id, tool_name, raw_error,"
            " short_summary, kind) VALUES ('err_20240101_000000_00abff', 'yesterday', 's', x'ff',"
            " '{not json', 42, 'odd')"
        )
    of = ("--state", str(tmp_path))
    for words in ((), ("--all",), ("show", "err_20240101_000000_00abff"), ("stats",)):
        done = run("errors", *words, *of, cwd=tmp_path)
        assert (done.code, done.err) == (0, ""), words
    counted = json.loads(run("errors", "stats", "--json", *of, cwd=tmp_path).out)
    assert sum(sum(tool["steps"]) for tool in counted["tools"]) == 3
    assert (
        "older ones: motet errors --all -n 10"
        in run("errors", "--all", "-n", "1", *of, cwd=tmp_path).err
    )
    assert run("errors", "prune", "--older-than", "2000-01-01", *of, cwd=tmp_path).code == 0
    listed = json.loads(run("errors", "--json", *of, cwd=tmp_path).out)
    assert [error["short_summary"] for error in listed] == [good.short_summary] * 2
