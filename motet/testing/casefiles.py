"""Case files under pytest: a failed test writes its finding to a file, and the file is a test.

The plugin loads this module when a test with programs has failed, when files are replayed, and
where a project has a corpus. Invariants: a case in the corpus fails as long as it finds anything,
and when it can find nothing any more since its file or its test is broken or gone; a finding that
is gone is told with its reason, which may be that the versions are others.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, cast

import attrs
import msgspec
import pytest

from motet.testing.outside import fingerprints
from motet.testing.reproduction import Verdict, verdict_of
from motet.testing.stories.cases import (
    Case,
    Replaying,
    load_case,
    other_versions,
    play_case,
    replaying,
    save_case,
    unreproduced,
)
from motet.testing.stories.program import BoundProgram, InvariantBroken, Play, latest

__all__ = [
    "CASE",
    "FOLDER",
    "TOLD",
    "CaseFile",
    "Kept",
    "Written",
    "case_in",
    "kept_in",
    "replay_in",
    "with_cases",
    "write_cases",
]

FOLDER = Path(".motet", "cases")
"""The folder of new cases, below the root of the project; those in ``corpus`` beside it are kept,
and replayed with the tests."""


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
        return _case_in(file)
    except (OSError, ValueError) as error:
        raise pytest.UsageError(f"--motet-replay: {error}") from error


def _case_in(file: Path) -> Case:
    if _is_record(file):
        raise pytest.UsageError(
            f"{file} is the record of a run: a test plays it by mt.replay_run(FILE, agent)"
        )
    return load_case(file)


# Cases as tests


@attrs.frozen
class Kept:
    """A case to replay. ``wrong``: why its file cannot be read; then there is no ``case``.

    ``corpus``: it is replayed beside all tests, where a finding that is gone is good news.
    """

    path: Path
    case: Case | None
    wrong: str = ""
    corpus: bool = False

    @property
    def test(self) -> str:
        """The id of the test that found it; empty: none did."""
        return self.case.test if self.case is not None else ""


CASE: pytest.StashKey[Kept] = pytest.StashKey()
"""Of an item that replays a case."""


def kept_in(folder: Path) -> list[Kept]:
    """The cases of a corpus, in the order of their names. A broken file is one, too."""
    found: list[Kept] = []
    for path in sorted(folder.glob("*.json")):
        try:
            found.append(Kept(path, _case_in(path), corpus=True))
        except (OSError, ValueError, pytest.UsageError) as error:
            found.append(Kept(path, None, str(error), corpus=True))
    return found


def with_cases(
    session: pytest.Session, items: list[pytest.Item], cases: Iterable[Kept], *, alone: bool
) -> list[pytest.Item]:
    """The items that replay these cases: copies of their tests, or a test of the file itself.

    ``alone``: also those whose test is not among ``items``: cases without a test, those whose test
    is gone, and broken files.
    """
    found: list[pytest.Item] = []
    for kept in cases:
        test = next((item for item in items if _is_test_of(kept, item)), None)
        if isinstance(test, pytest.Function):
            found.append(_copied(test, kept))
        elif alone:
            # pytest does not say what else it takes.
            file = CaseFile.from_parent(session, path=kept.path)  # pyright: ignore[reportUnknownMemberType]
            file.stash[CASE] = kept
            found += file.collect()
    return found


def _is_test_of(kept: Kept, item: pytest.Item) -> bool:
    """``--motet-replay`` may find another root of the project than the run that wrote the case."""
    file, _, rest = kept.test.partition("::")
    if kept.corpus or not rest:
        return item.nodeid == kept.test
    return item.nodeid.partition("::")[2] == rest and item.path.match(file)


def _copied(test: pytest.Function, kept: Kept) -> pytest.Item:
    """The same test once more, with the program of the case."""
    label = f"{test.originalname} <- {kept.path.stem}"
    callspec: object = getattr(test, "callspec", None)
    params = f"[{getattr(callspec, 'id', '')}]" if callspec is not None else ""
    copied = cast("Any", type(test)).from_parent(
        test.parent,
        name=f"{label}{params}",
        originalname=label,
        callspec=callspec,
        callobj=test.obj,
        # With the parameters of the test, which are not found by their names.
        fixtureinfo=getattr(test, "_fixtureinfo", None),
    )
    assert isinstance(copied, pytest.Item)
    copied.stash[CASE] = kept
    return copied


@contextmanager
def replay_in(item: pytest.Item) -> Generator[None]:
    """Let the test of an item replay its case in the block, and tell what has come of it.

    Outside of a corpus, a finding that is gone fails: somebody has asked for it.
    """
    kept = item.stash[CASE]
    assert kept.case is not None
    with replaying(kept.case, kept.path, strict=False) as now:
        try:
            yield
        except BaseException:
            _tell(item, kept, "it still fails")
            raise
    if not now.times:
        pytest.fail("the test has executed no program: it is not the one of the case", False)
    _judge_gone(item, kept, now)


def _judge_gone(item: pytest.Item, kept: Kept, now: Replaying) -> None:
    """Nothing was found again: say why, and fail where that was asked for."""
    assert kept.case is not None
    if kept.case.irreproducible:
        why = unreproduced(kept.case)
    elif now.diverged is not None:
        why = f"not reproduced any more: {now.diverged}"
    else:
        was = "; ".join(kept.case.violations) or "a failure"
        why = (
            f"not reproduced any more: the program runs as then, and nothing is wrong. Then: {was}"
        )
    _tell(item, kept, why)
    if not kept.corpus and (kept.case.irreproducible or now.diverged is not None):
        pytest.fail(why, False)


TOLD = "motet: cases"
"""Name of the property of a report with the sentence about its case."""


def _tell(item: pytest.Item, kept: Kept, what: str) -> None:
    assert kept.case is not None
    versions = other_versions(kept.case)
    if versions and versions not in what:
        what = f"{what.rstrip()}\n  the case is of other versions: {versions}"
    item.user_properties.append((TOLD, f"{kept.path.name}: {what.rstrip()}"))


class CaseFile(pytest.File):
    """A case without a test, which is collected as a test itself."""

    def collect(self) -> list[pytest.Item]:
        # pytest does not say what else it takes.
        item = _CaseItem.from_parent(self, name=self.path.stem)  # pyright: ignore[reportUnknownMemberType]
        if CASE in self.stash:
            item.stash[CASE] = self.stash[CASE]
        return [item]


class _CaseItem(pytest.Item):
    def runtest(self) -> None:
        kept = self.stash[CASE]
        if kept.case is None:
            raise _Reproduced(kept.wrong)
        if kept.test:
            raise _Reproduced(
                f"the test of the case, {kept.test}, is not there any more: name it anew in the "
                f"case (`test`), or delete {self.path.name}"
            )
        with replaying(kept.case, self.path, strict=False) as now:
            wrong = play_case(kept.case)
        if wrong:
            _tell(self, kept, "it still fails")
            raise _Reproduced("\n".join(wrong))
        _judge_gone(self, kept, now)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        if isinstance(excinfo.value, _Reproduced | ValueError):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, None, str]:
        return self.path, None, f"case {self.path.name}"


class _Reproduced(Exception):
    """The case still fails, with these findings, or cannot be replayed."""


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
