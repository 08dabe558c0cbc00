"""The command line with every command: each of these modules adds its own when it is imported."""

from __future__ import annotations

from motet.cli import (
    look_commands,
    operation_commands,
    record_commands,
    testing_commands,
)
from motet.cli.app import app

__all__ = ["MODULES", "app"]

MODULES = (
    look_commands,
    operation_commands,
    record_commands,
    testing_commands,
)
