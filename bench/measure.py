"""Runs samples, each in a fresh process, in interleaved rounds, so that noise affects all equally.

A peer is measured in this environment if it is installed here, else in the peers' environment,
which :func:`make_peers` makes on request, else not at all.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tomllib
import venv
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path

from msgspec.structs import replace

from bench.rows import Case, Row

__all__ = ["Samples", "interpreter", "make_peers", "measure", "versions"]

ROOT = Path(__file__).resolve().parent.parent
PEERS = ROOT / ".venv" / "peers"
PEERS_PINNED = ROOT / "bench" / "peers" / "constraints.txt"
PATIENCE = 300.0  # seconds for one sample

Samples = dict[tuple[str, str], list[float]]


def interpreter(case: Case) -> str | None:
    """The Python that can run ``case``; None if its package is not installed anywhere."""
    if case.package is None or _is_here(case.package):
        return sys.executable
    own, module = PEERS / "bin" / "python", case.package.replace(".", "/")
    if own.exists() and any(PEERS.glob(f"lib/python*/site-packages/{module}/__init__.py")):
        return str(own)
    return None


def _is_here(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:  # of the package that it is in
        return False


def make_peers() -> None:
    """Make the peers' environment, with the packages of the extra ``bench``."""
    if not (PEERS / "bin" / "python").exists():
        venv.create(PEERS, with_pip=True)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    packages: list[str] = project["optional-dependencies"]["bench"]
    pip = [str(PEERS / "bin" / "python"), "-m", "pip", "install", "-qq", "--no-input"]
    quiet = ["--disable-pip-version-check", "-c", str(PEERS_PINNED)]
    subprocess.run([*pip, *quiet, *packages], check=True)


def measure(rows: Iterable[Row], rounds: int, say: Callable[[str], object]) -> Samples:
    """All samples of ``rows``, by row and implementation; ``say`` reports skipped cases.

    In each round the cases of a row run one after the other, so that their ratio has little drift.
    """
    work = _runnable(rows, say)
    samples: Samples = {(row.name, case.impl): [] for row, cases in work for case, _ in cases}
    order = random.Random(0)
    for number in range(rounds):
        say(f"round {number + 1} of {rounds}")
        order.shuffle(work)
        taken: dict[Case, tuple[float, ...]] = {}
        for row, cases in work:
            if row.rounds is not None and number >= row.rounds:
                continue
            order.shuffle(cases)
            for case, python in cases:
                values = _values(python, case, taken)
                say(f"  {row.name}, {case.impl}: {values[case.figure]:,.4g} {row.unit}")
                samples[row.name, case.impl].append(values[case.figure])
    return samples


def _values(python: str, case: Case, taken: dict[Case, tuple[float, ...]]) -> tuple[float, ...]:
    """All values of a function; cached, since cases of one round may share it."""
    key = replace(case, impl="", goal=None, figure=0)
    if key not in taken:
        taken[key] = _sample(python, case)
    return taken[key]


def _runnable(
    rows: Iterable[Row], say: Callable[[str], object]
) -> list[tuple[Row, list[tuple[Case, str]]]]:
    work: list[tuple[Row, list[tuple[Case, str]]]] = []
    missing: set[str] = set()
    for row in rows:
        found = [(case, interpreter(case)) for case in row.cases]
        missing.update(case.impl for case, python in found if python is None)
        work.append((row, [(case, python) for case, python in found if python is not None]))
    for impl in sorted(missing):
        say(f"{impl}: skipped, not installed (python -m bench --install-peers)")
    return work


def _sample(python: str, case: Case) -> tuple[float, ...]:
    command = [python, "-m", "bench.sample", case.module, case.function, str(case.count)]
    # The hash seed affects the speed of some peers: all get the same one.
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "0"}
    # With bytecode, as in an installed package: the peers have theirs.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=PATIENCE
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr}")
    return tuple(float(word) for word in done.stdout.splitlines()[-1].split())


def versions(names: Iterable[str]) -> dict[str, str]:
    """The versions of the installed ones of the named distributions."""
    script = (
        "import sys, importlib.metadata as m\n"
        "for name in sys.argv[1:]:\n"
        "    try: print(name, m.version(name))\n"
        "    except m.PackageNotFoundError: pass"
    )
    found: dict[str, str] = {}
    for python in (str(PEERS / "bin" / "python"), sys.executable):
        if Path(python).exists():
            done = subprocess.run(
                [python, "-c", script, *names], capture_output=True, text=True, check=True
            )
            for line in done.stdout.splitlines():
                name, _, number = line.partition(" ")
                found[name] = number
    return found
