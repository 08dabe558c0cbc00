"""The tables of the kernel as Markdown: complete, and written only between their markers."""

from __future__ import annotations

from pathlib import Path

import pytest

from motet.runtime.diagram import life_cycle, main, restarts, strategies, with_tables
from motet.runtime.lifecycle import TRANSITIONS

STALE = "before\n<!-- table: restarts -->\nold\n<!-- end -->\nafter\n"


def test_the_life_cycle_shows_every_transition() -> None:
    drawn = {
        (arrow.partition(" --> ")[0], arrow.partition(" --> ")[2], event)
        for line in life_cycle().splitlines()
        for arrow, _, events in [line.strip().partition(": ")]
        for event in events.split(", ")
        if events
    }
    assert drawn == {
        (state, target, event)
        for state, following in TRANSITIONS.items()
        for event, target in following.items()
    }


def test_restarts_and_strategies_match_the_decisions_of_the_table() -> None:
    assert "| transient | gone | started again |" in restarts()
    assert "| rest_for_one | c | b, c |" in strategies()


def test_only_text_between_markers_is_replaced(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(STALE)

    main([str(page)])

    text = page.read_text()
    assert text == STALE.replace("old", restarts())
    assert with_tables(text) == text


def test_an_unknown_table_is_an_error() -> None:
    with pytest.raises(KeyError, match="seasons"):
        with_tables(STALE.replace("restarts", "seasons"))


def test_without_files_all_tables_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    main([])

    said = capsys.readouterr().out
    assert all(table in said for table in (life_cycle(), restarts(), strategies()))
