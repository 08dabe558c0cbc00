"""``motet traces``: runs as a table, as a tree with bars, and on their way to a collector."""

from __future__ import annotations

import json
import re
from pathlib import Path

import msgspec
import pytest

from motet.cli.waterfall import bar_of, drawn, header, seconds
from motet.protocols.models import Usage
from motet.protocols.traces import Span, Trace, TraceInfo
from tests.motet.command import motet
from tests.motet.test_cli_look import printed

INFO = TraceInfo("run_7f3a", "f" * 32, "s", "helper", "alice", "completed", 100.0, 104.0)


def span(number: int, parent: int, start: float, end: float | None, **fields: object) -> Span:
    """A tool's, unless the fields say otherwise; 0 is nobody's parent."""
    made: dict[str, object] = {
        "id": f"{number:016}",
        "parent": f"{parent:016}" if parent else None,
        "kind": "tool",
        "name": f"t{number}",
        "started": 100 + start,
        "ended": None if end is None else 100 + end,
        "status": "ok",
    }
    return msgspec.convert(made | fields, Span, from_attributes=True)


def test_a_waterfall_is_a_tree_with_a_bar_for_the_time_of_each_part() -> None:
    spans = (
        span(1, 0, 0, 4, kind="agent", name="helper"),
        span(2, 1, 0, 1, kind="model", name="gpt-5.2", usage=Usage(812, 64), first_token=0.5),
        span(3, 1, 1, 2, name="read_log", status="error", error="timeout", error_id="err_1"),
        span(4, 3, 2, 2, kind="store", name="error_store.store", error_id="err_1"),
        span(5, 1, 2, None, kind="model", name="gpt-5.2", status="running"),
    )
    lines = [line for line, _ in drawn(Trace(INFO, spans), 104.0, bars=True)]
    assert lines == [
        "run_7f3a  helper  user:alice  completed  4.00s  876 tok  1 error",
        "├ chat gpt-5.2         █████················    1.00s  812→64  first token 0.50s",
        "├ tool read_log        ·····█████···········    1.00s  err_1  timeout",
        "│ └ error_store.store  ··········█··········      0ms  err_1",
        "└ chat gpt-5.2         ··········███████████    2.00s  running",
    ]
    assert {len(re.findall("[█·]", line)) for line in lines[1:]} == {21}


def test_a_part_whose_parent_is_missing_hangs_from_the_root() -> None:
    root = span(1, 0, 0, 4, kind="agent")
    lines = drawn(Trace(INFO, (root, span(9, 7, 1, 2))), 104.0, bars=False)
    assert [line for line, _ in lines][1:] == ["└ tool t9    1.00s"]


def test_a_trace_without_spans_is_a_line() -> None:
    assert drawn(Trace(INFO, ()), 104.0, bars=True) == [(header(Trace(INFO, ())), "bold")]


@pytest.mark.parametrize(
    ("start", "end", "bar"),
    [(0, 0, "█···"), (0, 4, "████"), (4, 4, "···█"), (1, 2, "·█··"), (-1, 9, "████")],
)
def test_a_bar_is_never_empty_and_never_too_long(start: float, end: float, bar: str) -> None:
    assert bar_of(start, end, 0, 4, 4) == bar
    assert len(bar_of(start, end, 0, 0, 4)) == 4


def test_times_are_short() -> None:
    assert [seconds(value) for value in (0.0061, 0.4, 59.999, 185)] == [
        *("6ms", "0.40s", "60.00s", "3m 05s"),
    ]


def test_runs_are_listed_shown_and_exported(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    motet("run", "helper", "hello", "-s", "one", "--state", "../st", cwd=here)
    motet("run", "helper", "read /nothing.txt", "-s", "two", "--state", "../st", cwd=here)

    _, table, _ = printed(capsys, "traces", "--state", "../st")
    heading, *rows = table.splitlines()
    assert heading.split() == [
        *("time", "run", "agent", "user", "status", "seconds", "tokens", "errors"),
    ]
    assert [row.split()[3:6] for row in rows] == [["helper", "local", "completed"]] * 2
    assert rows[0].split()[-1] == "1"

    _, listed, _ = printed(capsys, "traces", "--session", "two", "--json", "--state", "../st")
    (info,) = json.loads(listed)
    beginning = info["run_id"][:10]
    _, shown, _ = printed(capsys, "traces", "show", beginning, "-w", "--state", "../st")
    lines = shown.splitlines()
    assert lines[0].startswith(f"{info['run_id']}  helper  user:local  completed")
    assert [line.split()[1] for line in lines[1:-1]] == ["chat", "tool", "└", "chat"]
    assert lines[-1].startswith("motet errors show err_")
    assert "err_" in lines[2]
    _, whole, _ = printed(capsys, "traces", "show", info["run_id"], "--json", "--state", "../st")
    assert [part["kind"] for part in json.loads(whole)["spans"]] == [
        *("agent", "model", "tool", "store", "model"),
    ]


def test_a_trace_that_cannot_be_shown_is_refused_with_the_reason(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    motet("run", "helper", "hello", "--state", "../st", cwd=here)
    motet("run", "helper", "hello", "--state", "../st", cwd=here)
    for arguments, why in (
        (("show",), "which one? give the id of its run"),
        (("show", "run_x"), "no trace of a run 'run_x'"),
        (("show", "run_"), "more than one run begins with 'run_'"),
        (("list", "--status", "done"), "unknown status 'done'"),
        (("export",), "where to? motet traces export --otlp"),
        (("export", "--otlp", "ftp://x"), "not an http:// or https:// address"),
    ):
        code, out, err = printed(capsys, "traces", *arguments, "--state", "../st")
        assert (code != 0, out) == (True, "")
        assert why in err
