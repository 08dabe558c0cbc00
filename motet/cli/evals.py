"""``motet eval``: evaluations in a file, with their progress, a table or JSON, and an exit code."""

from __future__ import annotations

import importlib
import importlib.util
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from types import ModuleType

import attrs
import msgspec
import trio

from motet.actors.hosting.config import load_config
from motet.cli.exits import CANCELLED, FAILED, OK
from motet.cli.render import in_json
from motet.cli.screen import console
from motet.cli.setup import chosen_file, load_setup
from motet.protocols.config import HostConfig
from motet.protocols.errors import ConfigError, UnknownName
from motet.runtime.errors import only_error
from motet.testing.evals.evaluation import STATE, EvalOptions, Evaluation, RunOptions
from motet.testing.evals.progress import Silent, watching
from motet.testing.evals.report import EvalReport, load_report, print_report

DEFAULT_FILE = "evals.py"
FORMAT = 1


class Reports(msgspec.Struct, frozen=True):
    """The output of ``--json``. ``passed``: whether the exit code is 0."""

    passed: bool
    stopped: bool
    evaluations: tuple[EvalReport, ...]
    format: int = FORMAT


@attrs.frozen
class Order:
    """The options of the command line."""

    target: str | None
    only: Sequence[str]
    jobs: int | None
    repeats: int | None
    timeout: float | None
    model: str | None
    budget: float | None
    record: Path | None
    replay: Path | None
    resume: bool
    least: float
    against: Path | None
    json: bool
    config: Path | None
    state: Path | None


def evaluate(order: Order) -> int:
    """Run the evaluations; 0: enough cases have passed, 1: not, 4: stopped.

    Raises ``ConfigError`` for a file without evaluations, and for what is wrong with one.
    """
    chosen_file(order.config)  # before anything here is imported
    sys.path.insert(0, os.getcwd())
    found = _evaluations(order.target or DEFAULT_FILE)
    if order.against is not None and len(found) > 1:
        raise ConfigError(f"--against compares one evaluation: choose one of {_names(found)}")
    found = [_adjusted(one, order) for one in found]
    told = _Told(order)

    def leave(report: EvalReport) -> None:
        """A tool holds its thread for ever, and so the host: the process ends without them."""
        code = told.end(report, more=False)
        print("left at once, since a tool does not end", file=sys.stderr)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

    code = OK
    for evaluation in found:
        options = _options(evaluation, order)
        with watching(None if order.json else True, leave) as watch:
            report = trio.run(_attended, evaluation, watch, options)
        code = told.end(report, more=evaluation is not found[-1])
        if report.stopped:
            break
    return code


class _Told:
    """The output of the command: a table after each evaluation, or JSON after the last one."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._reports: list[EvalReport] = []

    def end(self, report: EvalReport, *, more: bool) -> int:
        """Tell of an evaluation; the exit code so far. ``more``: another one follows."""
        order, stopped = self._order, report.stopped
        self._reports.append(report)
        if not order.json:
            print_report(report, console(sys.stdout))
            print()
        if report.unsaved:
            note = f"warning: the results are not all stored: {report.unsaved}"
            console(sys.stderr).print(note, style="yellow", markup=False, soft_wrap=True)
        passed = not stopped and all(one.share >= order.least for one in self._reports)
        if order.json and (stopped or not more):
            print(in_json(Reports(passed, stopped, tuple(self._reports))))
        elif stopped:
            again = f"motet eval {order.target or ''} --resume".replace("  ", " ")
            console(sys.stderr).print(f"stopped; to go on: {again}", style="yellow", markup=False)
        return CANCELLED if stopped else OK if passed else FAILED


async def _attended(evaluation: Evaluation, watch: Silent, options: RunOptions) -> EvalReport:
    """Run it; the first signal stops it in order, the second one at once."""
    stopping = trio.Event()
    try:
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_stop_on_signal, stopping, signals)
                report = await evaluation.watched(watch, stopping, **options)
                nursery.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        raise only_error(group) from None
    return report


async def _stop_on_signal(stopping: trio.Event, signals: AsyncIterator[int]) -> None:
    await anext(signals)
    stopping.set()
    print("\nstopping the runs; once more to leave at once", file=sys.stderr)
    number = await anext(signals)
    print("left at once; the trials that have ended are kept", file=sys.stderr, flush=True)
    os._exit(128 + number)


def _options(evaluation: Evaluation, order: Order) -> RunOptions:
    options = RunOptions(
        only=order.only,
        model=order.model,
        budget=order.budget,
        record=order.record,
        replay=order.replay,
        resume=order.resume,
        state=order.state or _state(evaluation.config, order.config),
    )
    if order.jobs is not None:
        options["jobs"] = order.jobs
    if order.against is not None:
        options["against"] = _earlier(order.against, evaluation.name)
    return options


def _state(config: HostConfig, file: Path | None) -> Path:
    """The default directory; beside the program's own state, where tools could read it here."""
    workspace = Path(config.workspace).resolve() if config.workspace else None
    if workspace is None or not STATE.resolve().is_relative_to(workspace):
        return STATE
    return load_setup(file, None).state / STATE.name


def _adjusted(evaluation: Evaluation, order: Order) -> Evaluation:
    """With the configuration and the numbers of the command line."""
    file = order.config or (None if evaluation.configured else chosen_file(None))
    changes = EvalOptions()
    if file is not None:
        load_config(file)  # what is wrong with it is said before anything runs
        changes["config"] = file
    if order.repeats is not None:
        changes["repeats"] = order.repeats
    if order.timeout is not None:
        changes["timeout"] = order.timeout
    return evaluation.changed(**changes)


def _earlier(file: Path, name: str) -> EvalReport:
    """A report of the evaluation, from the output of ``--json`` or as one report."""
    try:
        several = msgspec.json.decode(file.read_bytes(), type=Reports)
    except (OSError, msgspec.DecodeError):
        return load_report(file)
    found = [report for report in several.evaluations if report.name == name]
    if not found:
        raise UnknownName("evaluation", name, [report.name for report in several.evaluations])
    return found[0]


# Finding the evaluations


def _evaluations(target: str) -> list[Evaluation]:
    """The evaluations of ``FILE``, ``FILE:NAME``, ``MODULE`` or ``MODULE:NAME``."""
    place, _, attribute = target.partition(":")
    module = _file(place) if place.endswith(".py") else _module(place)
    known = {key: one for key, one in vars(module).items() if isinstance(one, Evaluation)}
    if not known:
        raise ConfigError(
            f"{place} has no evaluation: write `NAME = mt.Evaluation('NAME', agent, cases)` in it"
        )
    if attribute and attribute not in known:
        raise UnknownName("evaluation", attribute, tuple(known))
    # One that has two names in the file runs once.
    found = [known[attribute]] if attribute else list({id(o): o for o in known.values()}.values())
    names = [one.name for one in found]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ConfigError(f"{place} has two evaluations named {twice[0]!r}: rename one")
    return found


def _file(place: str) -> ModuleType:
    file = Path(place)
    if not file.is_file():
        missing = f"there is no file {place}"
        if place == DEFAULT_FILE:
            raise ConfigError(f"{missing}: say which one, `motet eval FILE` or `motet eval MODULE`")
        raise ConfigError(missing)
    sys.path.insert(0, str(file.absolute().parent))
    # Its own name, so that it can be imported by others, unless another module has that.
    name = f"motet_{file.stem}" if file.stem in _taken() else file.stem
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{place} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (ImportError, SyntaxError) as error:
        raise ConfigError(f"{place} cannot be imported: {error}") from error
    return module


def _taken() -> frozenset[str]:
    return sys.stdlib_module_names | sys.modules.keys()


def _module(place: str) -> ModuleType:
    try:
        return importlib.import_module(place)
    except (ImportError, SyntaxError, ValueError) as error:
        raise ConfigError(
            f"{place} cannot be imported: {error}; give a file such as evals.py, or a module that "
            "`import` finds here"
        ) from error


def _names(evaluations: Sequence[Evaluation]) -> str:
    return ", ".join(one.name for one in evaluations)
