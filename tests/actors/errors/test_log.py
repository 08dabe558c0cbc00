"""Logs of the library arrive as records of the standard library, with fields."""

from __future__ import annotations

import logging

import pytest

from motet.actors.errors.log import logger


def test_the_fields_of_a_line_arrive_as_extra(caplog: pytest.LogCaptureFixture) -> None:
    logger("motet.test").warning("100% full", run="run_1", count=2)

    (record,) = caplog.records
    assert (record.name, record.levelname) == ("motet.test", "WARNING")
    assert record.getMessage() == "100% full"
    assert (vars(record)["run"], vars(record)["count"]) == ("run_1", 2)


def test_a_line_names_the_place_that_logged_it(caplog: pytest.LogCaptureFixture) -> None:
    logger("motet.test").error("here")

    assert caplog.records[0].funcName == "test_a_line_names_the_place_that_logged_it"


def test_a_field_may_be_called_as_it_likes(caplog: pytest.LogCaptureFixture) -> None:
    logger("motet.test").warning("said", name="theirs", message="theirs", self="theirs")

    fields = vars(caplog.records[0])
    assert (fields["name_"], fields["message_"], fields["self"]) == ("theirs",) * 3


def test_an_exception_comes_without_the_secrets_in_it(caplog: pytest.LogCaptureFixture) -> None:
    key = "sk-proj-" + "a1B2" * 12
    logger("motet.test").error("failed", exc_info=ValueError(f"no entry for {key}"))

    assert "no entry for" in caplog.text
    assert key not in caplog.text


def test_below_its_level_nothing_is_made(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, logger="motet.test")
    logger("motet.test").warning("unheard")

    assert not caplog.records
