"""Case files under pytest: a failed test writes its finding to a file, and the file is a test.

The plugin loads this module when a test with programs has failed, or when a file is replayed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, cast

import attrs
import msgspec
import pytest

from motet.runtime.testing.replay import ReplayDiverged
from motet.testing.outside import fingerprints
from motet.testing.reproduction import Verdict, verdict_of
from motet.testing.stories.cases import Case, load_case, replay_case, save_case
from motet.testing.stories.program import BoundProgram, InvariantBroken, Play, latest

__all__ = ["FOLDER", "CaseFile", "Written", "case_in", "write_cases"]

FOLDER = Path(".motet", "cases")
"""The folder of cases, below the root of the project."""


@attrs.frozen
class Written:
    """The case of a finding: its file, the printed test, and what came of running that again."""

    file: Path
    test: str = ""
    verdict: str = "not run again"


def write_cases(
    root: Path, nodeid: str, error: BaseException, *, again: bool = True
) -> list[Written]:
    """Write a case for each program of an error.

    ``again``: each finding is first run again, as its printed test, in a process of its own.
    """
    files: list[Written] = []
    for leaf in _leaves(error):
        program = _program_of(leaf)
        if program is None:
            continue
        wrong = leaf.violations if isinstance(leaf, InvariantBroken) else (_sentence(leaf),)
        number = f"-{len(files) + 1}" if files else ""
        file = root / FOLDER / f"{_name(nodeid)}{number}.json"
        play = latest(program)
        source = _source_of(leaf, program, play)
        verdict = Verdict(True)
        if again and source:
            verdict = verdict_of(source, leaf, fingerprints(), root)
            if isinstance(leaf, InvariantBroken):
                leaf.verdict = str(verdict)
        why = "" if verdict.reproduced else verdict.why
        save_case(program, file, test=nodeid, violations=wrong, irreproducible=why)
        # The text of a broken invariant has the test already.
        shown = "" if isinstance(leaf, InvariantBroken) else source
        files.append(Written(file, shown, str(verdict) if again else "not run again"))
    return files


def _source_of(error: BaseException, program: BoundProgram, play: Play | None) -> str:
    if isinstance(error, InvariantBroken):
        return error.test
    return play.as_test() if play is not None else program.as_test()


def case_in(file: Path) -> Case:
    """Read the case to replay. Raises ``UsageError`` for a wrong file."""
    try:
        if _is_record(file):
            raise pytest.UsageError(
                f"{file} is the record of a run: a test plays it by mt.replay_run(FILE, agent)"
            )
        return load_case(file)
    except (OSError, ValueError) as error:
        raise pytest.UsageError(f"--motet-replay: {error}") from error


class CaseFile(pytest.File):
    """A case without a test, which is collected as a test itself."""

    def collect(self) -> Iterable[pytest.Item]:
        # pytest does not say what else it takes.
        yield _CaseItem.from_parent(self, name=self.path.stem)  # pyright: ignore[reportUnknownMemberType]


class _CaseItem(pytest.Item):
    def runtest(self) -> None:
        wrong = replay_case(self.path)
        if wrong:
            raise _Reproduced("\n".join(wrong))

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        if isinstance(excinfo.value, _Reproduced | ReplayDiverged | ValueError):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, None, str]:
        return self.path, None, f"case {self.path.name}"


class _Reproduced(Exception):
    """The case still fails, with these findings."""


class _Kind(msgspec.Struct):
    case: str = ""


def _is_record(file: Path) -> bool:
    try:
        return msgspec.json.decode(file.read_bytes(), type=_Kind).case == "run"
    except msgspec.DecodeError:
        return False


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for member in cast("BaseExceptionGroup[BaseException]", error).exceptions:
            yield from _leaves(member)
    else:
        yield error


def _program_of(error: BaseException) -> BoundProgram | None:
    """The executed program: of the error itself, or of a local variable in its traceback."""
    if isinstance(error, InvariantBroken) and error.program is not None:
        return error.program
    found: BoundProgram | None = None
    trace: TracebackType | None = error.__traceback__
    while trace is not None:
        held = [one for one in trace.tb_frame.f_locals.values() if isinstance(one, BoundProgram)]
        found = held[0] if held else found
        trace = trace.tb_next
    return found


def _sentence(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]


def _name(nodeid: str) -> str:
    """A file name with the name of the test."""
    return re.sub(r"[^\w.-]+", "_", nodeid.rpartition("/")[2].replace(".py::", "-"))[:120]
