"""Cases of an evaluation, and what a judge is shown of an answer.

Invariants: a case that could not fail is refused before anything runs, and so is an expected
output that no answer of the agent could be; all problems of all cases are named at once.
"""

from __future__ import annotations

import tomllib
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from inspect import isawaitable, iscoroutinefunction
from pathlib import Path
from typing import Any, Generic, TypeAlias, cast

import attrs
import msgspec
import msgspec.yaml
import trio
from typing_extensions import TypeIs, TypeVar

from motet.actors.agents.output import Unreadable
from motet.actors.agents.spec import AgentSpec, AnyAgent
from motet.actors.rooms.definition import Room
from motet.protocols.chat import AssistantMessage, JsonObject, Outcome, ToolMessage, json_object
from motet.protocols.errors import ConfigError, UnknownName
from motet.protocols.evals import Score, fingerprint, shortened
from motet.protocols.models import Usage
from motet.protocols.rooms import RoomMessage
from motet.protocols.run import RunResult
from motet.protocols.sessions import RunStatus

__all__ = [
    "Called",
    "EvalCase",
    "Judge",
    "Trial",
    "Verdict",
    "asked",
    "checked",
    "is_agent",
    "load_cases",
    "name_of",
]

O_co = TypeVar("O_co", covariant=True, default=str)
Out = TypeVar("Out")

MOST_REPEATS = 1_000
NAME_CHARS = 200


class Called(msgspec.Struct, frozen=True):
    """One tool call of a trial, with its arguments as the model gave them, and its result."""

    tool: str
    arguments: JsonObject
    outcome: Outcome
    result: str


@attrs.frozen
class Trial(Generic[O_co]):
    """One run of one case, for a judge. ``O_co`` is the type of the agent's output.

    Attributes:
        case: the case.
        repeat: the number of this trial among those of its case, from 1.
        results: of each input, in order.
        seconds: until the last answer.
        deps: what the agent's tools were given.
        messages: in a room, what its agents have said since the first input.
    """

    case: EvalCase
    repeat: int
    results: tuple[RunResult[O_co], ...]
    seconds: float = 0.0
    deps: object = None
    messages: tuple[RoomMessage, ...] = ()
    _expected: object = attrs.field(default=msgspec.UNSET, repr=False, alias="expected")

    @property
    def result(self) -> RunResult[O_co]:
        """The result of the last input."""
        return self.results[-1]

    @property
    def output(self) -> O_co:
        """The last answer. Raises as ``RunResult.output`` does, if there is none."""
        return self.result.output

    @property
    def text(self) -> str:
        """The last answer as it was said."""
        return self.result.text

    @property
    def expected(self) -> O_co:
        """The expected output. Raises ``ConfigError`` when the case has none."""
        if self._expected is msgspec.UNSET:
            raise ConfigError(f"the case {self.case.name!r} has no expected output")
        return cast("O_co", self._expected)  # read by the agent's own form

    @property
    def usage(self) -> Usage:
        """Tokens and dollars of all inputs together."""
        return sum((one.usage for one in self.results), Usage())

    @property
    def calls(self) -> tuple[Called, ...]:
        """All tool calls, in the order of the transcript."""
        rows = [row for result in self.results for row in result.rows]
        ends = {row.call_id: row for row in rows if isinstance(row, ToolMessage)}
        asked = [call for row in rows if isinstance(row, AssistantMessage) for call in row.calls]
        return tuple(
            Called(call.name, _arguments(call.arguments), end.outcome, end.text)
            for call in asked
            if (end := ends.get(call.id)) is not None
        )


def _arguments(text: str) -> JsonObject:
    try:
        return json_object(msgspec.json.decode(text))
    except msgspec.DecodeError:  # the model's mistake, of which the call's result tells
        return {}


Verdict: TypeAlias = bool | float | Score
"""What a judge gives. A bare number is a score from 0 to 1, and passes from 0.5 on."""

Judge: TypeAlias = Callable[[Trial[Out]], Verdict | Awaitable[Verdict]] | AnyAgent
"""A function of a trial, sync or async, or an agent.

A sync function runs in a thread, an async one on Trio. A failed ``assert`` in it is the verdict
"not passed", with its message as the reason; any other exception is an error of the judge. An agent
is asked about the trial; its ``output_type`` is :class:`mt.Score <motet.protocols.evals.Score>`,
``bool`` or ``float``.
"""


@attrs.frozen
class EvalCase:
    """One case: an input, and what is wanted of the answer.

    Args:
        name: in the table, and for ``--only``; no other case of the evaluation may have it.
        input: what the agent is told; a sequence of texts is one conversation.
        expected: the output that is wanted: of the agent's type, or its JSON data. Without any
            judge, the output must be equal to it.
        judges: in addition to those of the evaluation.
        status: how the last run has to end: ``refused`` for what the agent shall not answer.
        metadata: data for judges and for ``deps``.
        timeout: seconds for all inputs together; None: as the evaluation says.
        repeats: trials of this case; None: as the evaluation says.
    """

    name: str
    input: str | Sequence[str]
    expected: object = msgspec.UNSET
    judges: Sequence[Judge[Any]] = ()
    status: RunStatus = "completed"
    metadata: Mapping[str, object] = attrs.field(factory=dict[str, object])
    timeout: float | None = None
    repeats: int | None = None

    @property
    def inputs(self) -> tuple[str, ...]:
        """All inputs of the conversation."""
        return (self.input,) if isinstance(self.input, str) else tuple(self.input)

    def fingerprint(self, judges: Iterable[str]) -> str:
        """A digest of what is asked and wanted; it changes when the case becomes another one."""
        expected = None if self.expected is msgspec.UNSET else [_plain(self.expected)]
        return fingerprint([self.inputs, expected, self.status, sorted(judges)])


class _InFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A case as a file describes it."""

    name: str
    input: str | tuple[str, ...]
    expected: object = msgspec.UNSET
    status: RunStatus = "completed"
    metadata: dict[str, object] = {}
    timeout: float | None = None
    repeats: int | None = None


def load_cases(path: str | Path) -> tuple[EvalCase, ...]:
    """The cases in a file: a list in JSON or YAML, a case for each line of JSON lines, or the
    tables ``[[cases]]`` of TOML. Each has the fields of :class:`EvalCase` but judges.

    Raises ``ConfigError`` for a file that cannot be read, and for a case with a wrong field.
    """
    path = Path(path)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"the cases {path} cannot be read: {error.strerror}") from error
    try:
        found: object = _decoded(path.suffix, data)
    except (ValueError, msgspec.MsgspecError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    if isinstance(found, dict):
        found = json_object(cast("object", found)).get("cases")
    if not isinstance(found, list):
        raise ConfigError(f"{path} has no list of cases")
    cases: list[EvalCase] = []
    for number, one in enumerate(cast("list[object]", found), 1):
        try:
            case = msgspec.convert(one, _InFile)
        except msgspec.ValidationError as error:
            raise ConfigError(f"{path}, case {number}: {error}") from error
        cases.append(EvalCase(**msgspec.structs.asdict(case)))
    return tuple(cases)


def _decoded(suffix: str, data: bytes) -> object:
    match suffix:
        case ".jsonl":
            return [msgspec.json.decode(line) for line in data.splitlines() if line.strip()]
        case ".yaml" | ".yml":
            return msgspec.yaml.decode(data)
        case ".toml":
            return tomllib.loads(data.decode())
        case ".json":
            return msgspec.json.decode(data)
        case _:
            raise ValueError("cases are .json, .jsonl, .yaml or .toml")


async def asked(
    judge: Callable[[Trial[Any]], object],
    trial: Trial[Any],
    limiter: trio.CapacityLimiter | None = None,
) -> object:
    """The verdict of a function, as it gave it. Raises what it raises.

    A sync function runs in a thread, which is left behind when this is cancelled.
    """

    def call() -> tuple[object]:
        return (judge(trial),)  # in a tuple, since Trio refuses a coroutine as a thread's result

    if iscoroutinefunction(judge):
        (found,) = call()
    else:
        (found,) = await trio.to_thread.run_sync(call, abandon_on_cancel=True, limiter=limiter)
    return await cast("Awaitable[object]", found) if isawaitable(found) else found


def is_agent(judge: object) -> TypeIs[AnyAgent]:
    """Whether a judge is an agent, and no function."""
    return isinstance(judge, AgentSpec)


def name_of(judge: Judge[Any]) -> str:
    """The name of a judge in reports."""
    own: object = getattr(judge, "name", None)
    if isinstance(own, str):
        return own
    inner: object = getattr(judge, "func", judge)  # of a partial
    name: object = getattr(inner, "__name__", type(inner).__name__)
    return "lambda" if name == "<lambda>" else str(name)


# Checks before anything runs


def checked(
    subject: AnyAgent | Room,
    cases: Sequence[EvalCase],
    judges: Sequence[Judge[Any]],
    *,
    repeats: int,
    timeout: float | None,
) -> tuple[object, ...]:
    """The expected output of each case as the agent's type; ``UNSET`` for a case without one.
    What a room gives is the text that was said last.

    Raises ``ConfigError`` with all problems.
    """
    wrong: list[str] = []
    if isinstance(subject, Room):
        wrong += _unknown_members(subject)
    elif not is_agent(subject):
        raise ConfigError(f"{subject!r} is no agent: give the motet.Agent itself")
    others = [one for one in cases if not _is_case(one)]
    if others:
        raise ConfigError(f"{shortened(repr(others[0]), 80)} is no case: give mt.EvalCase(...)")
    if not cases:
        wrong.append("there are no cases")
    if not _is_count(repeats):
        wrong.append(f"repeats must be from 1 to {MOST_REPEATS}, not {repeats!r}")
    if timeout is not None and not _is_time(timeout):
        wrong.append(f"timeout must be above 0 or None, not {timeout!r}")
    wrong += [f"{one!r} is no judge: give a function or an agent" for one in judges if _is_no(one)]
    names = [case.name for case in cases]
    for name in dict.fromkeys(name for name in names if names.count(name) > 1):
        wrong.append(f"{names.count(name)} cases are named {name!r}: each needs a name of its own")
    expected: list[object] = []
    for case in cases:
        wrong += [f"case {case.name!r}: {problem}" for problem in _problems(case, judges)]
        try:
            expected.append(_read(subject, case.expected))
        except Unreadable as error:
            said = "; ".join(error.problems)
            wrong.append(f"case {case.name!r}: expected is no output of {subject.name}: {said}")
    if wrong:
        raise ConfigError("\n".join(wrong))
    return tuple(expected)


def _problems(case: EvalCase, judges: Sequence[Judge[Any]]) -> Iterable[str]:
    name, given = cast("object", case.name), cast("object", case.input)
    if not _is_text(name) or len(case.name) > NAME_CHARS or not case.name.isprintable():
        yield f"its name must be 1 to {NAME_CHARS} characters on one line"
    if not _are_texts(given):
        yield f"its input must be a text or several, not {shortened(repr(given), 80)}"
    elif not case.inputs or not all(map(_is_text, case.inputs)):
        yield "its input is empty"
    if case.timeout is not None and not _is_time(case.timeout):
        yield f"timeout must be above 0, not {case.timeout!r}"
    if case.repeats is not None and not _is_count(case.repeats):
        yield f"repeats must be from 1 to {MOST_REPEATS}, not {case.repeats!r}"
    if case.status not in _STATUSES:
        yield str(UnknownName("status", case.status, _STATUSES))
    yield from (f"{one!r} is no judge" for one in case.judges if _is_no(one))
    alone = case.expected is msgspec.UNSET and not (judges or case.judges)
    if alone and case.status == "completed":
        yield (
            "it cannot fail: give an expected output or a judge "
            "(mt.judges.answers() if any answer will do)"
        )


_STATUSES = ("completed", "refused", "limited", "escalated", "failed", "waiting")
"""Ends that a case may ask for."""


def _is_case(value: object) -> bool:
    return isinstance(value, EvalCase)


def _are_texts(value: object) -> bool:
    if isinstance(value, list | tuple):
        return all(isinstance(one, str) for one in cast("Sequence[object]", value))
    return isinstance(value, str)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _is_count(value: object) -> bool:
    return isinstance(value, int) and 1 <= value <= MOST_REPEATS


def _is_time(value: object) -> bool:
    return isinstance(value, int | float) and value > 0


def _is_no(judge: object) -> bool:
    return not callable(judge) and not is_agent(judge)


def _unknown_members(room: Room) -> Iterable[str]:
    names = [one.name for one in room.members if isinstance(one.agent, str)]
    if names:
        yield f"the members {names} of room {room.name!r} are only names: give the agents"


def _read(subject: AnyAgent | Room, expected: object) -> object:
    """The expected output as the agent's type. Raises ``Unreadable``."""
    if expected is msgspec.UNSET:
        return expected
    form = None if isinstance(subject, Room) else subject.form
    if form is None:
        if isinstance(expected, str):
            return expected
        raise Unreadable([f"{shortened(repr(expected), 80)} is no text"])
    try:
        text = msgspec.json.encode(_plain(expected)).decode()
    except (TypeError, ValueError, RecursionError) as error:
        raise Unreadable([f"{shortened(repr(expected), 80)} is no data: {error}"]) from error
    return form.read(text).value


def _plain(value: object) -> object:
    """JSON data; models of pydantic say themselves what theirs is."""
    return msgspec.to_builtins(value, enc_hook=_dumped)


def _dumped(value: object) -> object:
    dump: object = getattr(value, "model_dump", None)
    if callable(dump):
        return dump(mode="json")
    raise TypeError(f"{type(value).__name__} has no JSON form")
