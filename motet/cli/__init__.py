"""The command line. It has no logic that a program could not use from the library.

Modules that take time to load are imported by the command that needs them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit. Errors become one clear sentence and an exit code."""
    from motet.cli.commands import command

    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]  # they are text files
    try:
        command()(arguments, prog_name="motet")
    except BrokenPipeError:
        # The reader of our output has gone; the interpreter must not try to flush it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except Exception as error:
        sys.exit(_failed(error))


def _failed(error: Exception) -> int:
    from motet.cli.exits import code_of_error, explained
    from motet.cli.screen import console

    if os.environ.get("MOTET_DEBUG"):
        raise error
    message = f"motet: {explained(error)}"
    console(sys.stderr).print(message, style="red", markup=False, soft_wrap=True)
    return code_of_error(error)
