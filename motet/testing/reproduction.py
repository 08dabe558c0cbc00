"""A finding is run again before it is reported: as the printed test, in a process of its own.

``python -m motet.testing.reproduction FILE`` imports a file and calls the only test in it. Its
answer says how the test ended, and the digests of the project's own state before and after it. So a
finding that needs what other programs left behind is told apart, and the place is named.

Invariant: a printed test that is said to fail has failed.
"""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from motet.testing.outside import changes, fingerprints

__all__ = ["Ended", "Verdict", "judged", "run_file", "run_source", "verdict_of"]

PATIENCE = 300.0
"""Seconds that the other process may take."""
MARK = "motet-reproduction: "
NAMED = 5
_NUMBERS = re.compile(r"\d+")


class Ended(msgspec.Struct, frozen=True):
    """How a printed test has ended in another process.

    Attributes:
        failed: it raised an error.
        kind, sentence: the class of the error and its first line.
        before: digests of the project's state before the test; ``changed``: places it has changed.
        broken: the process did not get as far as the test.
    """

    failed: bool
    kind: str = ""
    sentence: str = ""
    before: dict[str, str] = {}
    changed: tuple[str, ...] = ()
    broken: str = ""


class Verdict(msgspec.Struct, frozen=True):
    """``reproduced``: the printed test fails in the same way; ``why``: in words, if it does not."""

    reproduced: bool
    why: str = ""

    def __str__(self) -> str:
        return "it fails again in a process of its own" if self.reproduced else self.why


def sentence_of(error: BaseException) -> str:
    """The first line of an error, by which it is known again."""
    return str(error).partition("\n")[0]


def run_file(file: Path) -> Ended:
    """Call the test in a file, in this process."""
    from motet.actors.models import switch

    switch.allow(False)
    names = runpy.run_path(str(file), run_name="motet_found")
    tests = [one for name, one in names.items() if name.startswith("test_") and callable(one)]
    own: list[Callable[[], object]] = [
        one for one in tests if getattr(one, "__module__", "") == "motet_found"
    ]
    before = fingerprints()
    kind = sentence = ""
    try:
        own[-1]()
    except Exception as error:
        kind, sentence = type(error).__name__, sentence_of(error)
    return Ended(bool(kind), kind, sentence, before, tuple(changes(before, fingerprints())))


def run_source(source: str, folder: Path | None = None) -> Ended:
    """Run a printed test in a process of its own, which imports as this one does."""
    with tempfile.TemporaryDirectory(prefix="motet-found-") as place:
        file = Path(place, "test_motet_found.py")
        file.write_text(source, encoding="utf-8")
        paths = [str(Path(path or os.getcwd()).absolute()) for path in sys.path]
        try:
            told = subprocess.run(
                [sys.executable, "-m", "motet.testing.reproduction", str(file)],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONHASHSEED": "0"},
                cwd=folder,
                capture_output=True,
                text=True,
                timeout=PATIENCE,
                check=False,
            )
        except (OSError, subprocess.SubprocessError) as error:
            return Ended(False, broken=f"{type(error).__name__}: {error}")
    lines = [line for line in told.stdout.splitlines() if line.startswith(MARK)]
    if not lines:
        last = (told.stderr.strip() or told.stdout.strip()).splitlines()[-1:]
        return Ended(False, broken="".join(last) or f"exit code {told.returncode}")
    return msgspec.json.decode(lines[-1].removeprefix(MARK), type=Ended)


def judged(ended: Ended, error: BaseException, here: Mapping[str, str]) -> Verdict:
    """Whether a test has failed as ``error`` did. ``here``: the project's state in this process."""
    if ended.broken:
        return Verdict(False, f"it was not run again, since the printed test broke: {ended.broken}")
    if ended.failed and _alike(ended, error):
        return Verdict(True)
    places = changes(ended.before, here) or list(ended.changed)
    if ended.failed:
        return Verdict(
            False,
            f"in a process of its own it fails otherwise, with {ended.kind}: {ended.sentence}"
            + _outside(places),
        )
    return Verdict(False, f"in a process of its own it does not fail{_outside(places)}")


def _alike(ended: Ended, error: BaseException) -> bool:
    """The same class of error; its numbers and ids may differ, as a pasted test is another file."""
    if ended.kind != type(error).__name__:
        return False
    ours, theirs = (_NUMBERS.sub("0", text) for text in (sentence_of(error), ended.sentence))
    return ours == theirs or ended.kind == "AssertionError"


def _outside(places: Sequence[str]) -> str:
    if not places:
        return ", so something outside of the simulation decides, such as a clock or a file"
    named = ", ".join(f"`{place}`" for place in places[:NAMED])
    return (
        f": state outside of the simulation decides. {named} changed between two runs of one plan;"
        " give each program its own, or empty it when a host opens"
    )


def verdict_of(
    source: str, error: BaseException, here: Mapping[str, str], folder: Path | None = None
) -> Verdict:
    """Run a printed test in a process of its own, and compare its end with ``error``."""
    return judged(run_source(source, folder), error, here)


def main() -> None:
    """Answer with one line of JSON."""
    try:
        ended = run_file(Path(sys.argv[1]))
    except BaseException as error:
        traceback.print_exc()
        ended = Ended(False, broken=f"{type(error).__name__}: {error}")
    print(MARK + msgspec.json.encode(ended).decode(), flush=True)


if __name__ == "__main__":
    main()
