"""Journals of evaluations in a state directory: ``results/NAME/00012.jsonl``.

Invariants: a trial is in the journal as soon as it has ended, so that a kill loses the trials
under way and no others; a disk that cannot be written ends no evaluation, it is reported as
``unsaved``; the numbers of a name only grow.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import attrs

from motet.protocols.errors import ConfigError
from motet.protocols.evals import End, Journal, Line, Plan, TrialRecord, journal_of, line_of

__all__ = ["KEPT", "Writer", "baseline", "journals", "last"]

FOLDER = "results"
KEPT = 100
"""Journals of one name that are kept; older ones are deleted."""
_NUMBERED = re.compile(r"(\d{5,})\.jsonl")


def _folder(state: Path, name: str) -> Path:
    return state / FOLDER / name


def _files(state: Path, name: str) -> dict[int, Path]:
    """The journals of a name by their numbers, the oldest first."""
    folder = _folder(state, name)
    files = folder.iterdir() if folder.is_dir() else ()
    found = {int(match[1]): file for file in files if (match := _NUMBERED.fullmatch(file.name))}
    return dict(sorted(found.items()))


def journals(state: Path, name: str) -> Iterator[Journal]:
    """The journals of an evaluation, newest first. What cannot be read is left out."""
    for file in reversed(_files(state, name).values()):
        try:
            journal = journal_of(file.read_bytes())
        except OSError:
            continue
        if journal is not None and journal.plan.name == name:
            yield journal


def last(state: Path, name: str) -> Journal | None:
    """The newest journal of a name, whole or not."""
    return next(journals(state, name), None)


def baseline(state: Path, name: str) -> Journal | None:
    """The newest complete journal, with which the next evaluation is compared."""
    return next((one for one in journals(state, name) if one.complete), None)


def next_number(state: Path, name: str) -> int:
    """The number of the next evaluation of this name."""
    return max(_files(state, name), default=0) + 1


@attrs.define(eq=False)
class Writer:
    """The journal of an evaluation under way.

    Each line is written at once: it is a few kilobytes, and its loss would cost a model's answer.
    ``unsaved``: why the rest of the journal is not on disk; empty: all of it is.
    """

    _file: BinaryIO | None = None
    unsaved: str = ""

    @classmethod
    def begin(cls, state: Path | None, plan: Plan) -> Writer:
        """Begin a journal; one without a state directory is not written at all.

        Raises ``ConfigError`` when another evaluation has taken the number meanwhile.
        """
        if state is None:
            return cls()
        folder = _folder(state, plan.name)
        writer = cls()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for old in list(_files(state, plan.name).values())[: -KEPT + 1]:
                old.unlink(missing_ok=True)
            # Unbuffered, so that a line is in the file when `write` returns.
            writer._file = (folder / f"{plan.number:05}.jsonl").open("xb", buffering=0)
        except FileExistsError:
            raise ConfigError(
                f"another evaluation {plan.name!r} has just begun in {state}: give it a state of "
                "its own"
            ) from None
        except OSError as error:
            writer.unsaved = error.strerror or str(error)
        writer._write(plan)
        return writer

    def add(self, trial: TrialRecord) -> None:
        """Write the record of an ended trial."""
        self._write(trial)

    def close(self, end: End) -> None:
        """Write the end, and close the file."""
        self._write(end)
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write(self, line: Line) -> None:
        if self._file is None or self.unsaved:
            return  # after a torn line nothing would be read
        data = line_of(line)
        try:
            if self._file.write(data) != len(data):
                self.unsaved = "No space left on device"
        except OSError as error:
            self.unsaved = error.strerror or str(error)
