"""The command line with every command: each of these modules adds its own when it is imported."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from typer.main import get_command

from motet.cli import (
    look_commands,
    operation_commands,
    record_commands,
    testing_commands,
)
from motet.cli.app import app

__all__ = ["MODULES", "command"]

MODULES = (
    look_commands,
    operation_commands,
    record_commands,
    testing_commands,
)


@cache
def command() -> Callable[..., object]:
    """The whole command line, made once: Typer would read all annotations again in each call."""
    return get_command(app)
